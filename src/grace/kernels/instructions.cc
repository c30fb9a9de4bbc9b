#include "grace/kernels/instructions.h"

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#if defined(__x86_64__) && defined(__linux__)
#include <asm/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace grace::kernels {
namespace {

constexpr std::array kAll = {Instructions::kAmx, Instructions::kAvx512Bf16, Instructions::kAvx512,
                             Instructions::kAvx2, Instructions::kPortable};
constexpr std::array kAllNumbers = {Numbers::kF32, Numbers::kBf16, Numbers::kInt8};

#if defined(__x86_64__) && defined(__linux__)
bool has_avx2() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }
bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}
bool has_avx512_bf16() {
  return has_avx512() && __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vnni");
}
// The tiles' state is large, and a process has it only after it has asked (Linux,
// Documentation/x86/xstate.rst).
bool has_amx() {
  constexpr unsigned kTileBf16 = 1U << 22, kTile = 1U << 24, kTileInt8 = 1U << 25;  // leaf 7, edx
  unsigned a = 7, b = 0, c = 0, d = 0;
  __asm__("cpuid" : "+a"(a), "=b"(b), "+c"(c), "=d"(d));
  if ((d & kTileBf16) == 0 || (d & kTile) == 0 || (d & kTileInt8) == 0 || !has_avx512_bf16()) return false;
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  return ::syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}
#else
bool has_avx2() { return false; }
bool has_avx512() { return false; }
bool has_avx512_bf16() { return false; }
bool has_amx() { return false; }
#endif

template <typename T, std::size_t N>
std::string list_of(const std::array<T, N>& values) {
  std::string list;
  for (const T value : values) list += (list.empty() ? "" : ", ") + std::string(name_of(value));
  return list;
}

}  // namespace

std::string_view name_of(Instructions instructions) {
  switch (instructions) {
    case Instructions::kAmx:
      return "amx";
    case Instructions::kAvx512Bf16:
      return "avx512-bf16";
    case Instructions::kAvx512:
      return "avx512";
    case Instructions::kAvx2:
      return "avx2";
    case Instructions::kPortable:
      return "portable";
  }
  return "unknown";
}

std::string_view name_of(Numbers numbers) {
  switch (numbers) {
    case Numbers::kF32:
      return "f32";
    case Numbers::kBf16:
      return "bf16";
    case Numbers::kInt8:
      return "int8";
  }
  return "unknown";
}

std::span<const Instructions> usable_instructions() {
  static const std::vector<Instructions> usable = [] {
    std::vector<Instructions> found;
    if (has_amx()) found.push_back(Instructions::kAmx);
    if (has_avx512_bf16()) found.push_back(Instructions::kAvx512Bf16);
    if (has_avx512()) found.push_back(Instructions::kAvx512);
    if (has_avx2()) found.push_back(Instructions::kAvx2);
    found.push_back(Instructions::kPortable);
    return found;
  }();
  return usable;
}

Result<Instructions> find_instructions(std::string_view name) {
  if (name.empty() || name == "auto") return usable_instructions().front();
  const auto* const known = std::ranges::find(kAll, name, [](Instructions i) { return name_of(i); });
  if (known == kAll.end())
    return invalid_input("instructions " + std::string(name) + " are not one of auto, " + list_of(kAll));
  if (std::ranges::find(usable_instructions(), *known) == usable_instructions().end()) {
    return unsupported("this processor has no " + std::string(name) + "; its best are " +
                       std::string(name_of(usable_instructions().front())));
  }
  return *known;
}

Result<Numbers> find_numbers(std::string_view name) {
  const auto* const known = std::ranges::find(kAllNumbers, name, [](Numbers n) { return name_of(n); });
  if (known == kAllNumbers.end())
    return invalid_input("dtype " + std::string(name) + " is not one of " + list_of(kAllNumbers));
  return *known;
}

}  // namespace grace::kernels
