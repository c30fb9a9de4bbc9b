// A bar on a terminal for what takes more than a second; nothing anywhere else.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace grace::app {

class Progress {
 public:
  explicit Progress(std::string label);
  ~Progress();  // wipes the bar
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void operator()(std::int64_t done, std::int64_t total);
  double seconds() const;

 private:
  std::string label_;
  std::chrono::steady_clock::time_point start_;
  std::chrono::steady_clock::time_point last_;
  bool terminal_ = false;
  bool drawn_ = false;
};

}  // namespace grace::app
