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
  int mtp_layers = 0;         // further rows behind the last, laid out by default
  std::string file = "FILE";  // what the flags call it
};

// What stands in the file, and what a person must know to use it.
struct Exported {
  std::string bytes;
  std::vector<std::string> start_with;  // the exact flags, a line each, that the engine must be started with
  std::vector<std::string> notes;       // which version reads it, what it costs, what the engine will not do
};

// What the rows of a file are numbered by.
enum class RowNumbers {
  kEveryDecoderLayer,   // one for each, dense ones too
  kNamedDecoderLayers,  // each row names its decoder layer
  kMoeOrdinals,
  kOneForAll,  // one row, the same in every layer
};

struct Exporter {
  std::string_view name;       // "sglang"
  std::string_view writes;     // one line for --help
  std::string_view extension;  // that the engine insists on: ".json"; empty: any
  RowNumbers rows;
  bool says_devices;  // whether a file tells for how many devices it is
  // The policy of the routing room that comes nearest to how the engine chooses among copies.
  std::string_view nearest_routing;
  // Whether a file looks like it.
  bool (*recognises)(std::string_view bytes);
  // Null for what is only read. REQUIRES: violations(slots) is empty, and no slot is. Errors: invalid_input
  // for what the engine would refuse.
  Result<Exported> (*write)(const SlotMap& slots, const ExportOptions& options);
  // The placement back out of such a file; rows without a name are numbered from 0. `place` stands for the
  // path in messages. num_devices: for files that do not say; 0: not known, which is an error then. Errors:
  // invalid_input with place, value and bound, for whatever the engine would refuse or misread.
  Result<SlotMap> (*read)(std::string_view bytes, std::string_view place, int num_devices);
};
std::span<const Exporter> exporters();
// Errors: invalid_input, naming those there are; to_write: those that write, and for one that is only read.
Result<const Exporter*> find_exporter(std::string_view name, bool to_write = false);

struct ExportRequest {
  std::string to;  // an exporter's name
  std::filesystem::path out;
  int slots_per_device = 0;                          // 0: what the plan's fullest device holds
  std::span<const std::vector<std::int64_t>> loads;  // [M][E] that spare slots go by; empty: the plan's own
  const SlotMap* before = nullptr;                   // what runs now: an expert that stays keeps its slot
  ExportOptions options;
};
struct ExportedPlan {
  EvenPlan even;
  Exported file;
};
// Evens a plan out and writes it as an engine's file, whole or not at all. Errors: io; invalid_input for a
// plan that holds the gate to partners, for a format that is only read, for a name without the extension that
// the engine insists on, for counts outside [0, 1,000,000]; those of even_out and of the exporter.
Result<ExportedPlan> export_plan(const Plan& plan, const ExportRequest& request);

struct PlacementOptions {
  std::string format;               // an exporter's name; empty: detected
  int num_devices = 0;              // 0: what the file says
  int num_experts = 0;              // 0: what the file says, else the largest id + 1
  std::vector<int> decoder_layers;  // [M] of the MoE layers; empty: what the file says, else 0..M-1
  int mtp_layers = 0;               // rows behind those of the MoE layers, which are left out
};
// The exporter whose file this is; null for none. Errors: invalid_input where `format` is unknown.
Result<const Exporter*> exporter_of(std::string_view bytes, std::string_view format);
// A placement in any engine's format, ours not included. Errors: io; invalid_input with the place, also where
// the file's layers or experts are not as many as the options say.
Result<SlotMap> read_placement(const std::filesystem::path& path, const PlacementOptions& options);
// The same from memory; `place` stands for the path in messages.
Result<SlotMap> parse_placement(std::string_view bytes, std::string_view place,
                                const PlacementOptions& options);

// Whether the file is in a format of exporters(); false also where it cannot be read.
bool is_placement(const std::filesystem::path& path);

// A placement as a plan.
struct ImportedPlan {
  Plan plan;
  std::string format;
  int second_copies = 0;  // on a device that has the expert already, left out
};
// options.num_devices: what devices_per_node [N] add up to, or 0. devices_per_node may be empty where the
// file says how many devices there are: all on one node then. model: the plan's. Errors: those of
// read_placement.
Result<ImportedPlan> import_placement(const std::filesystem::path& path, const PlacementOptions& options,
                                      std::string model, std::vector<int> devices_per_node);

}  // namespace grace
