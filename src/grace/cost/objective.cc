#include "grace/cost/objective.h"

#include <array>
#include <string>

namespace grace {
namespace {

constexpr std::array kAims = {Aim::kLayerTime, Aim::kJudgeSlow, Aim::kJudgeFast};

}  // namespace

Result<Aim> parse_aim(std::string_view name) {
  for (const Aim aim : kAims)
    if (name_of(aim) == name) return aim;
  return invalid_input("aim `" + std::string(name) + "` is none of layer-time, judge-slow, judge-fast");
}

std::string_view name_of(Aim aim) {
  switch (aim) {
    case Aim::kLayerTime:
      return "layer-time";
    case Aim::kJudgeSlow:
      return "judge-slow";
    case Aim::kJudgeFast:
      break;
  }
  return "judge-fast";
}

}  // namespace grace
