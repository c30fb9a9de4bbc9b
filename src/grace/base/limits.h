// What a model may have at most; readers and oracles share it.
#pragma once

namespace grace {

inline constexpr int kMaxExperts =
    65'534;  // ids are 16 bits wide in traces, the largest is for what was not routed
inline constexpr int kMaxDecoderLayer = 1'000'000;  // far above any model, far below overflow

}  // namespace grace
