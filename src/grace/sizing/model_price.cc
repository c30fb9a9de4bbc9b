#include "grace/sizing/model_price.h"

#include <algorithm>

namespace grace {
namespace {

constexpr double kBytesPerValue = 2;  // bf16

PartPrice price(const PartCost& part) {
  return {.flops_per_token = part.flops, .weight_bytes = part.parameters * kBytesPerValue};
}

PartPrice attention_price(const ModelShape& shape) {
  const PartCost alone = attention_cost(shape, Pass::kPrefill, 0);
  const PartCost prefill = attention_cost(shape, Pass::kPrefill, 1);
  const PartCost decode = attention_cost(shape, Pass::kDecode, 1);
  PartPrice attention = price(alone);
  attention.prefill_flops_per_key = prefill.flops - alone.flops;
  attention.decode_flops_per_key = decode.flops - alone.flops;
  attention.decode_bytes_per_key = decode.cache_values * kBytesPerValue;
  return attention;
}

}  // namespace

std::vector<int> simulated_layers(const ModelShape& shape, const Trace& trace) {
  std::vector<int> layers;
  for (int layer = 0; layer < shape.num_layers; ++layer) {
    const bool traced = std::ranges::find(trace.decoder_layers, layer) != trace.decoder_layers.end();
    if (traced || !shape.is_moe(layer)) layers.push_back(layer);
  }
  return layers;
}

ModelPrice price_of(const ModelShape& shape, const Trace& trace) {
  PartCost beside_experts = router_cost(shape);
  beside_experts += shared_experts_cost(shape);
  ModelPrice model;
  model.window = shape.window;
  model.head = price(lm_head_cost(shape));
  for (const int layer : simulated_layers(shape, trace)) {
    const bool is_moe = shape.is_moe(layer);
    model.layers.push_back({attention_price(shape), price(is_moe ? beside_experts : dense_ffn_cost(shape)),
                            is_moe, std::ranges::binary_search(shape.windowed_layers, layer)});
  }
  return model;
}

}  // namespace grace
