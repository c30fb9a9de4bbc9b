// Plans -> the files that other engines start from, and those files back. One .cc per engine and one line in
// exporters().
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "grace/base/result.h"
#include "grace/interop/slot_map.h"

namespace grace {

struct ExportOptions {
  int num_decoder_layers =
      0;  // of the model, dense ones too, for engines that want a row each; 0: the last MoE layer's + 1
  int mtp_layers = 0;  // further rows behind the last, laid out by default
};

// What stands in the file, and what a person must know to use it.
struct Exported {
  std::string bytes;
  std::vector<std::string> start_with;  // the exact flags, a line each, that the engine must be started with
  std::vector<std::string> notes;       // which version reads it, what it costs, what the engine will not do
};

struct Exporter {
  std::string_view name;       // "sglang"
  std::string_view writes;     // one line for --help
  std::string_view extension;  // that the engine insists on: ".json"; empty: any
  // REQUIRES: violations(slots) is empty.
  Result<Exported> (*write)(const SlotMap& slots, const ExportOptions& options);
  // The placement back out of such a file. `place` stands for the path in messages. num_devices: for files
  // that do not say; 0: not known, which is an error then. Errors: invalid_input with place, value and bound,
  // for whatever the engine would refuse or misread.
  Result<SlotMap> (*read)(std::string_view bytes, std::string_view place, int num_devices);
};
std::span<const Exporter> exporters();
// Errors: invalid_input, naming those there are.
Result<const Exporter*> find_exporter(std::string_view name);

// A placement in any engine's format, ours not included; detected where `format` is empty.
Result<SlotMap> read_placement(const std::filesystem::path& path, std::string_view format, int num_devices);

}  // namespace grace
