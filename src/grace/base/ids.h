// The ids of the house, as types, so that a node is never taken for an expert.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>

namespace grace {

// A whole number that counts one kind of thing. Converts to nothing by itself.
template <typename Tag, typename Int = std::int32_t>
struct Id {
  Int value = -1;

  constexpr Id() = default;
  constexpr explicit Id(Int v) : value(v) {}
  // As an index into an array over all ids. REQUIRES: value >= 0.
  constexpr std::size_t idx() const { return static_cast<std::size_t>(value); }
  constexpr auto operator<=>(const Id&) const =
      default;  // NOLINT(modernize-use-nullptr): <=> compares with 0
};

using ExpertId = Id<struct ExpertTag>;  // logical expert, [0, E) within its layer
using DeviceId = Id<struct DeviceTag>;  // one rank, [0, D), consecutive within a node
using NodeId = Id<struct NodeTag>;      // devices that share fast links, [0, N)
using MoeOrdinal = Id<struct MoeTag>;   // [0, M) over MoE layers only; dense layers are not counted

inline constexpr ExpertId kNoExpert{-1};
inline constexpr DeviceId kNoDevice{-1};

}  // namespace grace

template <typename Tag, typename Int>
struct std::hash<grace::Id<Tag, Int>> {
  std::size_t operator()(const grace::Id<Tag, Int>& id) const { return std::hash<Int>{}(id.value); }
};
