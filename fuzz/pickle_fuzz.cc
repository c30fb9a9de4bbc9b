// Any bytes as a pickle: refused, or a tree that can be walked a few levels down.
#include <cstddef>
#include <cstdint>
#include <span>

#include "grace/files/pickle.h"

namespace {

void walk(const grace::PickleValue& value, int depth) {
  (void)value.shown().size();
  (void)value.text().size();
  if (depth == 0 || value.is(grace::PickleKind::kSkipped)) return;
  const bool is_dict = value.is(grace::PickleKind::kDict);
  for (std::size_t i = 0; i < value.size() && i < 4; ++i) {
    if (is_dict) walk(value.key(i), depth - 1);
    walk(is_dict ? value.value(i) : value.at(i), depth - 1);
  }
  (void)value.field("records", "fuzz").ok();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  grace::PickleOptions options;
  options.skipped = {"a"};
  const auto pickle = grace::Pickle::parse(std::as_bytes(std::span(data, size)), "fuzz", options);
  if (pickle.ok()) walk(pickle.value().root(), 4);
  return 0;
}
