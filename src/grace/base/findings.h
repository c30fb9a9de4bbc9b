// The lines an oracle writes: one for each fault, up to a bound.
#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

namespace grace {

// Thread-compatible.
class Findings {
 public:
  // What has more than max_lines faults is another thing altogether.
  explicit Findings(std::size_t max_lines) : max_lines_(max_lines) {}

  template <typename... Args>
  void add(fmt::format_string<Args...> format, Args&&... args) {
    if (!full()) lines_.push_back(fmt::format(format, std::forward<Args>(args)...));
  }
  bool full() const { return lines_.size() >= max_lines_; }
  bool empty() const { return lines_.empty(); }
  std::vector<std::string> take() { return std::move(lines_); }

 private:
  std::size_t max_lines_;
  std::vector<std::string> lines_;
};

}  // namespace grace
