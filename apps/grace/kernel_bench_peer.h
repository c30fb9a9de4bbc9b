// Another library's products of the same shapes, to hold ours against.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "grace/kernels/instructions.h"

namespace grace::app {

inline constexpr const char* kPeerName = "oneDNN";

// Thread-compatible.
class Peer {
 public:
  virtual ~Peer() = default;
  // Keeps a bf16 weight [out, in] in the layout that it likes best for products of about `rows` rows, and
  // returns its number.
  virtual int hold(std::span<const std::uint16_t> weight, int out, int in, int rows) = 0;
  // y [rows, out] = x [rows, in] * weight^T in f32, x being its own and of the right type already.
  virtual void multiply(int weight, int rows) = 0;
};

// With so many threads. Null where it was not built in, or has no such numbers on this processor.
std::unique_ptr<Peer> make_peer(kernels::Numbers numbers, int threads);
// "oneDNN 2.6.3"; empty where it was not built in.
std::string peer_version();

}  // namespace grace::app
