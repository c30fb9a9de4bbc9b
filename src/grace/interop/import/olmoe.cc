// OLMoE's routing counts: pickled lists of Counters. docs/formats/csv.md has them beside the other counts.
#include <fmt/format.h>

#include <algorithm>

#include "grace/base/limits.h"
#include "grace/files/mapped_file.h"
#include "grace/files/pickle.h"
#include "grace/interop/import/common.h"

namespace grace {
namespace {

const std::vector<int> kUsualLayers = {0, 7, 15};  // that the published files are of

bool recognises(std::span<const std::filesystem::path> files) {
  return std::ranges::all_of(files, [](const std::filesystem::path& path) {
    return path.extension() == ".pkl" || path.extension() == ".pickle";
  });
}

Status add_counter(const PickleValue& counter, const std::string& place, std::vector<std::int64_t>& loads) {
  if (!counter.is(PickleKind::kDict))
    return invalid_input(fmt::format("{}: {} is not a Counter", place, counter.shown()));
  std::vector<bool> seen;
  for (std::size_t i = 0; i < counter.size(); ++i) {
    const PickleValue id = counter.key(i), count = counter.value(i);
    if (id.is(PickleKind::kList))
      return unsupported(fmt::format(
          "{}: counts pairs of experts of two layers; files that count one layer's are read", place));
    if (!id.is(PickleKind::kInt) || id.integer() < 0 || id.integer() >= kMaxExperts)
      return invalid_input(fmt::format("{}: expert {} is outside [0, {})", place, id.shown(), kMaxExperts));
    if (!count.is(PickleKind::kInt) || count.integer() < 0 || count.integer() > (std::int64_t{1} << 40))
      return invalid_input(
          fmt::format("{}: expert {} has a count of {}", place, id.integer(), count.shown()));
    const auto expert = static_cast<std::size_t>(id.integer());
    if (expert >= seen.size()) seen.resize(expert + 1, false);
    if (seen[expert]) return invalid_input(fmt::format("{}: expert {} occurs twice", place, expert));
    seen[expert] = true;
    if (expert >= loads.size()) loads.resize(expert + 1, 0);
    loads[expert] += count.integer();
  }
  return {};
}

Status read(std::span<const std::filesystem::path> files, const ImportOptions& options, RecordingSink& sink) {
  std::vector<std::vector<std::int64_t>> sums;
  for (const std::filesystem::path& path : files) {
    const std::string place = path.string();
    const MappedFile file = GRACE_TRY(MappedFile::open(path));
    const Pickle pickle = GRACE_TRY(Pickle::parse(file.bytes(), place));
    const PickleValue root = pickle.root();
    if (!root.is(PickleKind::kList) || root.size() == 0)
      return invalid_input(fmt::format("{}: {} is not a list of Counters", place, root.shown()));
    if (sums.empty()) sums.resize(root.size());
    if (sums.size() != root.size())
      return invalid_input(
          fmt::format("{}: {} layers, another file has {}", place, root.size(), sums.size()));
    for (std::size_t l = 0; l < root.size(); ++l)
      GRACE_TRY(add_counter(root.at(l), fmt::format("{}: layer {} of the list", place, l), sums[l]));
    GRACE_TRY(sink.read_bytes(std::ssize(file.bytes())));
  }
  std::size_t experts = 0;
  for (const auto& loads : sums) experts = std::max(experts, loads.size());
  if (options.num_experts > 0 && std::cmp_greater(experts, options.num_experts))
    return invalid_input(
        fmt::format("{}: expert {} is outside [0, {})", files[0].string(), experts - 1, options.num_experts));
  LoadProfile profile;
  profile.num_experts = options.num_experts > 0 ? options.num_experts : static_cast<int>(experts);
  if (options.num_experts == 0)
    sink.warn(fmt::format(
        "the number of experts is not in the source: taken as the largest id + 1, {}; --num-experts says it",
        experts));
  for (auto& loads : sums) loads.resize(static_cast<std::size_t>(profile.num_experts), 0);
  if (options.decoder_layers.empty() && options.dense_layers < 0 && sums.size() == kUsualLayers.size()) {
    sink.warn(
        "the three lists are taken as layers 0, 7 and 15, as the published files are; --layers says "
        "otherwise");
    profile.decoder_layers = kUsualLayers;
  } else {
    profile.decoder_layers = GRACE_TRY(decoder_layers_of(sums.size(), options, files[0].string(), sink));
  }
  profile.loads = std::move(sums);
  return sink.set_loads(std::move(profile));
}

}  // namespace

Importer olmoe_importer() {
  return {"olmoe", "pickled lists of Counters, one for each layer", recognises, read};
}

}  // namespace grace
