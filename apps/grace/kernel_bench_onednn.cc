// oneDNN's matrix products; without it nothing stands beside ours.
#include "kernel_bench_peer.h"

#if defined(GRACE_WITH_ONEDNN)
#include <fmt/format.h>
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <oneapi/dnnl/dnnl.hpp>
#include <tuple>
#include <vector>

#include "grace/base/bf16.h"
#include "grace/kernels/packed.h"

namespace grace::app {
namespace {

using Type = dnnl::memory::data_type;
using Tag = dnnl::memory::format_tag;

struct Types {
  Type rows, weights;
};
Types types_of(kernels::Numbers numbers) {
  switch (numbers) {
    case kernels::Numbers::kF32:
      return {Type::f32, Type::f32};
    case kernels::Numbers::kBf16:
      return {Type::bf16, Type::bf16};
    case kernels::Numbers::kInt8:
      break;
  }
  return {Type::u8, Type::s8};
}
std::size_t bytes_of(Type type) { return type == Type::f32 ? 4 : type == Type::bf16 ? 2 : 1; }

// A weight in the numbers' type, still [out, in].
std::vector<std::byte> converted(std::span<const std::uint16_t> weight, Type type) {
  std::vector<std::byte> bytes(weight.size() * bytes_of(type));
  float largest = 0;
  for (const std::uint16_t value : weight) largest = std::max(largest, std::abs(f32_of_bf16(value)));
  for (std::size_t i = 0; i < weight.size(); ++i) {
    const float value = f32_of_bf16(weight[i]);
    if (type == Type::f32) std::memcpy(bytes.data() + i * 4, &value, 4);
    if (type == Type::bf16) std::memcpy(bytes.data() + i * 2, &weight[i], 2);
    if (type == Type::s8) {
      const auto whole = static_cast<std::int8_t>(std::lround(value / largest * 127));
      std::memcpy(bytes.data() + i, &whole, 1);
    }
  }
  return bytes;
}

class OneDnn : public Peer {
 public:
  OneDnn(kernels::Numbers numbers, int threads)
      : types_(types_of(numbers)), engine_(dnnl::engine::kind::cpu, 0), stream_(engine_) {
    omp_set_num_threads(threads);
  }

  int hold(std::span<const std::uint16_t> weight, int out, int in, int rows) override {
    const dnnl::memory::dims dims{in, out};
    std::vector<std::byte> plain = converted(weight, types_.weights);
    // The weight is [out, in], which the library reads as its transpose, [in, out].
    dnnl::memory from({dims, types_.weights, Tag::ba}, engine_, plain.data());
    const auto best = product_of(rows, {dims, types_.weights, Tag::any}).weights_desc();
    dnnl::memory to(best, engine_);
    dnnl::reorder(from, to).execute(stream_, from, to);
    stream_.wait();
    weights_.push_back({std::move(to), out, in});
    return static_cast<int>(weights_.size()) - 1;
  }

  void multiply(int weight, int rows) override {
    Held& held = weights_[static_cast<std::size_t>(weight)];
    const auto key = std::tuple(held.out, held.in, rows);
    auto found = products_.find(key);
    if (found == products_.end())
      found = products_.emplace(key, dnnl::matmul(product_of(rows, held.weights.get_desc()))).first;
    const dnnl::memory::dims x{rows, held.in}, y{rows, held.out};
    std::byte* from = room(
        rows_, static_cast<std::size_t>(rows) * static_cast<std::size_t>(held.in) * bytes_of(types_.rows));
    std::byte* to = room(results_, static_cast<std::size_t>(rows) * static_cast<std::size_t>(held.out) * 4);
    found->second.execute(stream_, {{DNNL_ARG_SRC, dnnl::memory({x, types_.rows, Tag::ab}, engine_, from)},
                                    {DNNL_ARG_WEIGHTS, held.weights},
                                    {DNNL_ARG_DST, dnnl::memory({y, Type::f32, Tag::ab}, engine_, to)}});
    stream_.wait();
  }

 private:
  struct Held {
    dnnl::memory weights;
    int out, in;
  };

  dnnl::matmul::primitive_desc product_of(int rows, const dnnl::memory::desc& weights) {
    const dnnl::memory::dims dims = weights.dims();
    const dnnl::memory::desc x({rows, dims[0]}, types_.rows, Tag::ab), y({rows, dims[1]}, Type::f32, Tag::ab);
    dnnl::primitive_attr attributes;
    constexpr int kOfEachOutput = 1 << 1;  // a mask of dimensions
    if (types_.weights == Type::s8)
      attributes.set_output_scales(kOfEachOutput,
                                   std::vector<float>(static_cast<std::size_t>(dims[1]), 0.01F));
    return {dnnl::matmul::desc(x, weights, y), attributes, engine_};
  }

  // At least so many bytes, none of them zero: numbers near one in every type.
  static std::byte* room(kernels::Bytes& bytes, std::size_t size) {
    if (bytes.size() < size) {
      bytes = kernels::Bytes(size);
      std::memset(bytes.data(), 0x3f, size);
    }
    return bytes.data();
  }

  Types types_;
  dnnl::engine engine_;
  dnnl::stream stream_;
  std::vector<Held> weights_;
  std::map<std::tuple<int, int, int>, dnnl::matmul> products_;
  kernels::Bytes rows_, results_;
};

}  // namespace

std::unique_ptr<Peer> make_peer(kernels::Numbers numbers, int threads) {
  try {
    auto peer = std::make_unique<OneDnn>(numbers, threads);
    const std::vector<std::uint16_t> one(64 * 64, std::uint16_t{0x3f80});
    peer->multiply(peer->hold(one, 64, 64, 1), 1);
    return peer;
  } catch (const dnnl::error&) {  // as the library says that a processor is not for these numbers
    return nullptr;
  }
}

std::string peer_version() {
  const dnnl_version_t* version = dnnl::version();
  return fmt::format("{} {}.{}.{}", kPeerName, version->major, version->minor, version->patch);
}

}  // namespace grace::app
#else
namespace grace::app {

std::unique_ptr<Peer> make_peer(kernels::Numbers, int) { return nullptr; }
std::string peer_version() { return ""; }

}  // namespace grace::app
#endif
