// The trace as safetensors: docs/formats/trace.md.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <optional>

#include "grace/base/check.h"
#include "grace/base/limits.h"
#include "grace/files/json_file.h"
#include "grace/files/safetensors.h"
#include "grace/trace/trace.h"

namespace grace {
namespace {

constexpr std::string_view kFormatVersion = "1";
constexpr int kMaxExpertsOfU8 = 255;  // 255 itself stands for "not routed"
constexpr std::uint8_t kNotRoutedU8 = 255;

struct PhaseName {
  Phase phase;
  std::string_view name;
};
constexpr std::array kPhases = {PhaseName{Phase::kPrefill, "prefill"}, PhaseName{Phase::kDecode, "decode"},
                                PhaseName{Phase::kMixed, "mixed"}};

// What the file holds, and what to call it in messages.
struct File {
  const TensorMap& tensors;
  const MetadataMap& metadata;
  std::string_view place;

  Result<std::string> text(std::string_view key) const {
    const auto found = metadata.find(key);
    if (found == metadata.end()) return invalid_input(fmt::format("{}: metadata has no {}", place, key));
    return found->second;
  }
  Result<int> number(std::string_view key, int lowest, int highest) const {
    const std::string digits = GRACE_TRY(text(key));
    int value = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    if (error != std::errc() || end != digits.data() + digits.size() || value < lowest || value > highest) {
      return invalid_input(fmt::format("{}: {} is {}, not a whole number in [{}, {}]", place, key,
                                       shown(Json(digits)), lowest, highest));
    }
    return value;
  }
  // Null when absent.
  const TensorView* tensor(std::string_view name) const {
    const auto found = tensors.find(name);
    return found == tensors.end() ? nullptr : &found->second;
  }
};

std::string shape_of(const TensorView& tensor) {
  return fmt::format("{} [{}]", name_of(tensor.dtype), fmt::join(tensor.shape, ", "));
}

// Tensors need not be aligned, so values are copied out.
template <typename T>
std::vector<T> copy_of(const TensorView& tensor) {
  std::vector<T> values(tensor.bytes.size() / sizeof(T));
  if (!values.empty()) std::memcpy(values.data(), tensor.bytes.data(), values.size() * sizeof(T));
  return values;
}

// The values of a one-dimensional tensor; empty when it is absent.
template <typename T>
Result<std::vector<T>> get_list(const File& file, std::string_view name, Dtype dtype) {
  const TensorView* tensor = file.tensor(name);
  if (tensor == nullptr) return std::vector<T>{};
  if (tensor->dtype != dtype || tensor->shape.size() != 1) {
    return invalid_input(fmt::format("{}: {} is {}, must be {} of one dimension", file.place, name,
                                     shape_of(*tensor), name_of(dtype)));
  }
  return copy_of<T>(*tensor);
}

Result<std::vector<int>> parse_decoder_layers(const File& file) {
  const std::string text = GRACE_TRY(file.text("decoder_layers"));
  const Json list = GRACE_TRY(parse_json(text, fmt::format("{}: decoder_layers", file.place)));
  if (!list.is_array())
    return invalid_input(fmt::format("{}: decoder_layers is {}, not a list", file.place, shown(list)));
  std::vector<int> layers;
  for (std::size_t i = 0; i < list.size(); ++i) {
    const bool fits = list[i].is_number_unsigned() &&
                      list[i].get<std::uint64_t>() <= static_cast<std::uint64_t>(kMaxDecoderLayer);
    if (!fits) {
      return invalid_input(fmt::format("{}: decoder_layers[{}] is {}, not a whole number in [0, {}]",
                                       file.place, i, shown(list[i]), kMaxDecoderLayer));
    }
    layers.push_back(list[i].get<int>());
  }
  return layers;
}

Status parse_metadata(const File& file, Trace& trace) {
  const std::string version = GRACE_TRY(file.text("format_version"));
  if (version != kFormatVersion) {
    return invalid_input(fmt::format("{}: format_version is {}, must be \"{}\"", file.place,
                                     shown(Json(version)), kFormatVersion));
  }
  trace.model = GRACE_TRY(file.text("model"));
  trace.source = GRACE_TRY(file.text("source"));
  trace.num_experts = GRACE_TRY(file.number("num_experts", 1, kMaxExperts));
  trace.experts_per_token = GRACE_TRY(file.number("experts_per_token", 1, trace.num_experts));
  trace.decoder_layers = GRACE_TRY(parse_decoder_layers(file));
  const std::string phase = GRACE_TRY(file.text("phase"));
  for (const PhaseName& known : kPhases) {
    if (known.name == phase) {
      trace.phase = known.phase;
      return {};
    }
  }
  return invalid_input(
      fmt::format("{}: phase is {}, must be prefill, decode or mixed", file.place, shown(Json(phase))));
}

// That `tensor` is [T, M, K] for some T, which is returned.
Result<std::int64_t> check_shape(const File& file, std::string_view name, const TensorView& tensor,
                                 const Trace& trace) {
  const bool fits = tensor.shape.size() == 3 && tensor.shape[1] == trace.num_moe_layers() &&
                    tensor.shape[2] == trace.experts_per_token;
  if (!fits) {
    return invalid_input(
        fmt::format("{}: {} is {}, must be [T, {}, {}] for {} decoder_layers and {} experts_per_token",
                    file.place, name, shape_of(tensor), trace.num_moe_layers(), trace.experts_per_token,
                    trace.num_moe_layers(), trace.experts_per_token));
  }
  return tensor.shape[0];
}

Result<std::vector<std::uint16_t>> widen_ids(const File& file, const TensorView& tensor, int num_experts) {
  if (tensor.dtype == Dtype::kU16) return copy_of<std::uint16_t>(tensor);
  if (tensor.dtype != Dtype::kU8)
    return invalid_input(fmt::format("{}: topk_ids is {}, must be U8 or U16", file.place, shape_of(tensor)));
  if (num_experts > kMaxExpertsOfU8) {
    return invalid_input(fmt::format("{}: topk_ids is U8, which is for at most {} experts, num_experts is {}",
                                     file.place, kMaxExpertsOfU8, num_experts));
  }
  std::vector<std::uint16_t> ids(tensor.bytes.size());
  std::ranges::transform(tensor.bytes, ids.begin(), [](std::byte byte) {
    const auto id = std::to_integer<std::uint8_t>(byte);
    return id == kNotRoutedU8 ? kNotRouted : std::uint16_t{id};
  });
  return ids;
}

Status parse_tensors(const File& file, Trace& trace) {
  const TensorView* ids = file.tensor("topk_ids");
  if (ids == nullptr) return invalid_input(fmt::format("{}: no tensor topk_ids", file.place));
  // Without this a shape such as [2^60, 0, 2] would claim tokens that no byte backs.
  if (trace.decoder_layers.empty())
    return invalid_input(fmt::format("{}: decoder_layers is empty", file.place));
  const std::int64_t num_tokens = GRACE_TRY(check_shape(file, "topk_ids", *ids, trace));
  trace.topk_ids = GRACE_TRY(widen_ids(file, *ids, trace.num_experts));
  if (file.tensor("sequence_offsets") == nullptr)
    return invalid_input(fmt::format("{}: no tensor sequence_offsets", file.place));
  trace.sequence_offsets = GRACE_TRY(get_list<std::int64_t>(file, "sequence_offsets", Dtype::kI64));
  if (trace.sequence_offsets.size() > std::size_t{std::numeric_limits<int>::max()})
    return invalid_input(
        fmt::format("{}: {} sequences are too many", file.place, trace.sequence_offsets.size() - 1));
  if (trace.num_tokens() != num_tokens) {
    return invalid_input(fmt::format("{}: sequence_offsets ends with {}, topk_ids has {} tokens", file.place,
                                     trace.num_tokens(), num_tokens));
  }
  trace.prompt_lengths = GRACE_TRY(get_list<std::int64_t>(file, "prompt_lengths", Dtype::kI64));
  trace.token_ids = GRACE_TRY(get_list<std::int32_t>(file, "token_ids", Dtype::kI32));
  if (const TensorView* weights = file.tensor("topk_weights"); weights != nullptr) {
    GRACE_TRY(check_shape(file, "topk_weights", *weights, trace));
    if (weights->dtype != Dtype::kF16)
      return invalid_input(
          fmt::format("{}: topk_weights is {}, must be F16", file.place, shape_of(*weights)));
    trace.topk_weights.resize(weights->bytes.size() / bytes_of(Dtype::kF16));
    GRACE_TRY(read_as_f32(*weights, "topk_weights", 0, weights->num_elements(), trace.topk_weights));
  }
  return {};
}

// Owner of the bytes that a trace's tensors point to while it is written.
struct Encoded {
  std::vector<std::uint8_t> narrow_ids;
  std::vector<std::uint16_t> weights;
};

template <typename T>
TensorView view_of(const std::vector<T>& values, Dtype dtype, std::vector<std::int64_t> shape) {
  return {dtype, std::move(shape), std::as_bytes(std::span(values))};
}

TensorMap tensors_of(const Trace& trace, Encoded& owned) {
  const std::vector<std::int64_t> shape = {trace.num_tokens(), trace.num_moe_layers(),
                                           trace.experts_per_token};
  TensorMap tensors;
  if (trace.num_experts <= kMaxExpertsOfU8) {
    owned.narrow_ids.resize(trace.topk_ids.size());
    std::ranges::transform(trace.topk_ids, owned.narrow_ids.begin(), [](std::uint16_t id) {
      return id == kNotRouted ? kNotRoutedU8 : static_cast<std::uint8_t>(id);
    });
    tensors.emplace("topk_ids", view_of(owned.narrow_ids, Dtype::kU8, shape));
  } else {
    tensors.emplace("topk_ids", view_of(trace.topk_ids, Dtype::kU16, shape));
  }
  if (!trace.topk_weights.empty()) {
    for (const float weight : trace.topk_weights) owned.weights.push_back(f16_of_f32(weight));
    tensors.emplace("topk_weights", view_of(owned.weights, Dtype::kF16, shape));
  }
  const std::int64_t num_sequences = trace.num_sequences();
  tensors.emplace("sequence_offsets", view_of(trace.sequence_offsets, Dtype::kI64, {num_sequences + 1}));
  if (!trace.prompt_lengths.empty())
    tensors.emplace("prompt_lengths", view_of(trace.prompt_lengths, Dtype::kI64, {num_sequences}));
  if (!trace.token_ids.empty())
    tensors.emplace("token_ids", view_of(trace.token_ids, Dtype::kI32, {trace.num_tokens()}));
  return tensors;
}

std::string_view name_of_phase(Phase phase) {
  for (const PhaseName& known : kPhases)
    if (known.phase == phase) return known.name;
  check_failed(__FILE__, __LINE__, "phase is known", "no such phase");
}

}  // namespace

Result<Trace> parse_trace(std::span<const std::byte> bytes, std::string_view place) {
  const SafetensorsContent content = GRACE_TRY(parse_safetensors(bytes, place));
  const File file{content.tensors, content.metadata, place};
  Trace trace;
  GRACE_TRY(parse_metadata(file, trace));
  GRACE_TRY(parse_tensors(file, trace));
  const std::vector<std::string> found = violations(trace);
  if (!found.empty()) return invalid_input(fmt::format("{}: {}", place, found.front()));
  return trace;
}

Result<Trace> read_trace(const std::filesystem::path& path) {
  const MappedFile file = GRACE_TRY(MappedFile::open(path));
  return parse_trace(file.bytes(), path.string());
}

Status write_trace(const std::filesystem::path& path, const Trace& trace) {
  const std::vector<std::string> found = violations(trace);
  GRACE_CHECK(found.empty(), found.front());
  Encoded owned;
  const TensorMap tensors = tensors_of(trace, owned);
  const MetadataMap metadata = {{"format_version", std::string(kFormatVersion)},
                                {"model", trace.model},
                                {"source", trace.source},
                                {"num_experts", std::to_string(trace.num_experts)},
                                {"experts_per_token", std::to_string(trace.experts_per_token)},
                                {"decoder_layers", Json(trace.decoder_layers).dump()},
                                {"phase", std::string(name_of_phase(trace.phase))}};
  return write_safetensors(path, tensors, metadata);
}

}  // namespace grace
