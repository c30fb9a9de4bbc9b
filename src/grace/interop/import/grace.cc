// Our own traces and load profiles: several become one.
#include <fmt/format.h>

#include <algorithm>

#include "grace/files/mapped_file.h"
#include "grace/interop/import/common.h"

namespace grace {
namespace {

bool is_trace(const std::filesystem::path& path) {
  return first_bytes(path, 1 << 16).find("\"decoder_layers\"") != std::string::npos &&
         !is_load_profile(path) && first_bytes(path, 1) != "{";
}

Status add_trace(const Trace& trace, const std::string& place, RecordingSink& sink) {
  std::vector<std::int32_t> ids;
  const std::int64_t per_token = std::int64_t{trace.num_moe_layers()} * trace.experts_per_token;
  const auto add = [&](std::int64_t begin, std::int64_t end, Phase phase) -> Status {
    ids.clear();
    for (std::int64_t i = begin * per_token; i < end * per_token; ++i) {
      const std::uint16_t id = trace.topk_ids[static_cast<std::size_t>(i)];
      ids.push_back(id == kNotRouted ? RecordingSink::kNotRecorded : std::int32_t{id});
    }
    return sink.add_tokens(ids, phase, {place, begin});
  };
  for (int s = 0; s < trace.num_sequences(); ++s) {
    const std::int64_t begin = trace.sequence_offsets[static_cast<std::size_t>(s)];
    const std::int64_t end = trace.sequence_offsets[static_cast<std::size_t>(s) + 1];
    const std::int64_t split = begin + trace.prompt_length(s);
    GRACE_TRY(sink.begin_sequence());
    GRACE_TRY(add(begin, split, Phase::kPrefill));
    GRACE_TRY(add(split, end, Phase::kDecode));
  }
  return {};
}

Status read_traces(std::span<const std::filesystem::path> files, RecordingSink& sink) {
  Trace first;
  for (const std::filesystem::path& path : files) {
    const Trace trace = GRACE_TRY(read_trace(path));
    if (first.decoder_layers.empty()) {
      first.num_experts = trace.num_experts;
      first.experts_per_token = trace.experts_per_token;
      first.decoder_layers = trace.decoder_layers;
      GRACE_TRY(sink.begin_tokens(trace.num_experts, trace.experts_per_token, trace.decoder_layers));
    }
    if (trace.num_experts != first.num_experts || trace.experts_per_token != first.experts_per_token ||
        trace.decoder_layers != first.decoder_layers)
      return invalid_input(fmt::format("{}: {} experts, {} a token, {} layers: another shape than {}",
                                       path.string(), trace.num_experts, trace.experts_per_token,
                                       trace.num_moe_layers(), files[0].string()));
    if (!trace.topk_weights.empty() || !trace.token_ids.empty())
      sink.warn(fmt::format("{}: gate weights and token ids are left out", path.string()));
    GRACE_TRY(add_trace(trace, path.string(), sink));
    GRACE_TRY(sink.read_bytes(std::ssize(trace.topk_ids)));
  }
  return {};
}

Status read_profiles(std::span<const std::filesystem::path> files, RecordingSink& sink) {
  LoadProfile sum;
  for (const std::filesystem::path& path : files) {
    LoadProfile profile = GRACE_TRY(read_load_profile(path));
    if (sum.loads.empty()) {
      sum = std::move(profile);
      continue;
    }
    if (profile.num_experts != sum.num_experts || profile.decoder_layers != sum.decoder_layers ||
        profile.experts_per_token != sum.experts_per_token)
      return invalid_input(fmt::format("{}: another shape than {}", path.string(), files[0].string()));
    for (std::size_t l = 0; l < sum.loads.size(); ++l)
      for (std::size_t e = 0; e < sum.loads[l].size(); ++e) sum.loads[l][e] += profile.loads[l][e];
  }
  return sink.set_loads(std::move(sum));
}

bool recognises(std::span<const std::filesystem::path> files) {
  return std::ranges::all_of(files, is_load_profile) || std::ranges::all_of(files, is_trace);
}

Status read(std::span<const std::filesystem::path> files, const ImportOptions& /*options*/,
            RecordingSink& sink) {
  return is_load_profile(files[0]) ? read_profiles(files, sink) : read_traces(files, sink);
}

}  // namespace

Importer grace_importer() {
  return {"grace", "traces and load profiles of our own: several become one", recognises, read};
}

}  // namespace grace
