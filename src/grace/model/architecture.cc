#include "grace/model/architecture.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>

#include "grace/files/json_file.h"

namespace grace {
namespace {

constexpr std::array kKnown = {&kOlmoe, &kDeepseekV2, &kDeepseekV3, &kQwen3Moe, &kQwen2Moe, &kMixtral};

}  // namespace

std::span<const Architecture* const> known_architectures() { return kKnown; }

Result<const Architecture*> find_architecture(std::string_view name, std::string_view place) {
  const auto found = std::ranges::find(kKnown, name, [](const Architecture* a) { return a->name; });
  if (found != kKnown.end()) return *found;
  std::string known;
  for (const Architecture* architecture : kKnown) {
    known += fmt::format("{}{}", known.empty() ? "" : ", ", architecture->name);
  }
  return unsupported(fmt::format("{}: architecture {} is not one of {}", place, shown(Json(name)), known));
}

}  // namespace grace
