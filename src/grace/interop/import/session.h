// The sink behind import_files: checks every choice, and writes the trace or the load profile.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "grace/interop/importer.h"
#include "grace/trace/trace_writer.h"

namespace grace {

class ImportSession final : public RecordingSink {
 public:
  // total_bytes: of all files, for progress. source: how the result names where it came from.
  ImportSession(std::filesystem::path out, const ImportOptions& options, std::string source,
                std::int64_t total_bytes)
      : out_(std::move(out)), options_(options), source_(std::move(source)), total_bytes_(total_bytes) {}

  Status begin_tokens(int num_experts, int experts_per_token, std::vector<int> decoder_layers) override;
  Status begin_sequence() override;
  Status add_tokens(std::span<const std::int32_t> ids, Phase phase, const TokenPlace& place) override;
  Status set_loads(LoadProfile profile) override;
  void warn(std::string line) override;
  Status read_bytes(std::int64_t bytes) override;

  // Writes the result. Errors: io; invalid_input where nothing was read.
  Result<ImportSummary> finish();

 private:
  Status check_row(std::span<const std::int32_t> row, const TokenPlace& place, std::int64_t token,
                   std::size_t layer);
  Error row_error(std::int64_t id, std::string_view what, const TokenPlace& place, std::int64_t token,
                  std::size_t layer) const;
  void warn_of_sums(std::span<const std::int64_t> sums);
  Status finish_tokens();
  Status finish_loads();

  std::filesystem::path out_;
  const ImportOptions& options_;
  std::string source_;
  std::int64_t total_bytes_, done_bytes_ = 0;
  ImportSummary summary_;
  std::optional<TraceWriter> writer_;
  std::optional<LoadProfile> profile_;
  std::vector<int> decoder_layers_;
  int bound_ = 0;     // ids are below it
  int largest_ = -1;  // id so far
  bool known_experts_ = false;
  bool pending_sequence_ = false;         // begins with its first token, so that none is empty
  std::vector<std::int64_t> last_row_;    // [bound] where an expert was last chosen
  std::vector<std::int64_t> layer_sums_;  // [M] choices that were routed
  std::int64_t row_ = 0;
  std::vector<std::uint16_t> ids_;  // of one add_tokens
};

}  // namespace grace
