#include "progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <utility>

namespace grace::app {

Progress::Progress(std::string label)
    : label_(std::move(label)),
      start_(std::chrono::steady_clock::now()),
      last_(start_),
      terminal_(isatty(STDERR_FILENO) == 1) {}

Progress::~Progress() {
  if (drawn_) std::fputs("\r\x1b[K", stderr);
}

double Progress::seconds() const {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
}

void Progress::operator()(std::int64_t done, std::int64_t total) {
  using namespace std::chrono_literals;
  const auto now = std::chrono::steady_clock::now();
  if (!terminal_ || total <= 0 || now - start_ < 1s || now - last_ < 100ms) return;
  last_ = now;
  drawn_ = true;
  constexpr std::int64_t kWidth = 30;
  const auto full = static_cast<std::size_t>(kWidth * done / total);
  const std::string line = fmt::format("\r\x1b[K{} [{}{}] {}/{}", label_, std::string(full, '#'),
                                       std::string(kWidth - full, ' '), done, total);
  std::fputs(line.c_str(), stderr);
  std::fflush(stderr);
}

}  // namespace grace::app
