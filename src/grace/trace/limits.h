// What a trace may hold at most; reader and oracle share it.
#pragma once

namespace grace::trace_limits {

inline constexpr int kMaxExperts =
    65'534;  // ids are 16 bits wide in traces, the largest stands for "not routed"
inline constexpr int kMaxDecoderLayer = 1'000'000;  // far above any model, far below overflow

}  // namespace grace::trace_limits
