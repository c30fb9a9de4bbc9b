// Set bits of intersections, by the widest instructions of the machine.
#pragma once

#include <cstddef>
#include <cstdint>

namespace grace::joint {

std::int64_t count_and(const std::uint64_t* a, const std::uint64_t* b, std::size_t words);
// |a & b & ~c|
std::int64_t count_and_not(const std::uint64_t* a, const std::uint64_t* b, const std::uint64_t* c,
                           std::size_t words);

}  // namespace grace::joint
