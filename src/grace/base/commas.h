// Lists as people type them.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

namespace grace {

// "a,b" -> a, b. Nothing between two commas is no part.
inline std::vector<std::string> split_at_commas(const std::string& list) {
  std::vector<std::string> parts;
  for (std::size_t begin = 0; begin <= list.size();) {
    const std::size_t end = std::min(list.find(',', begin), list.size());
    if (end > begin) parts.push_back(list.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

}  // namespace grace
