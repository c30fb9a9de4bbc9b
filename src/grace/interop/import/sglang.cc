// Files of SGLang's expert distribution recorder: docs/formats/sglang.md.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>

#include "grace/files/mapped_file.h"
#include "grace/files/torch_file.h"
#include "grace/interop/import/api_json.h"
#include "grace/interop/import/common.h"

namespace grace {
namespace {

constexpr std::size_t kSurveyedRecords = 64;      // enough to see every MoE layer, few enough to read twice
constexpr std::int64_t kMaxHeldBytes = 32 << 20;  // of a file, before its memory is let go
constexpr std::int64_t kBlockTokens = 256;        // turned round at a time
constexpr std::int64_t kDecode = 2, kIdle = 4, kTargetVerify = 5;  // ForwardMode

// The lists that take most of the pickle, of which only the length is wanted.
const PickleOptions kSkip = {.skipped = {"input_ids", "positions"}};

struct RankFile {
  std::string place;
  MappedFile file;
  TorchFile torch;
};
Result<RankFile> open_rank(const std::filesystem::path& path) {
  MappedFile file = GRACE_TRY(MappedFile::open(path));
  TorchFile torch = GRACE_TRY(TorchFile::parse(file.bytes(), path.string(), kSkip, &file));
  file.give_back(file.bytes());  // the directory led through all of it
  return RankFile{path.string(), std::move(file), std::move(torch)};
}

// Row-major numbers of a tensor as counts.
Result<std::vector<std::int64_t>> read_counts(const StridedTensor& tensor, std::string_view place) {
  std::int64_t rounded = 0;
  if (tensor.is_row_major()) {
    const auto bytes = static_cast<std::size_t>(tensor.num_elements()) * bytes_of(tensor.dtype);
    return counts_of(tensor.bytes.subspan(0, bytes), tensor.dtype, place, rounded);
  }
  return counts_of(row_major_bytes(tensor), tensor.dtype, place, rounded);
}

std::vector<bool> empty_rows(const std::vector<std::vector<std::int64_t>>& sums) {
  std::vector<bool> empty;
  for (const std::vector<std::int64_t>& row : sums)
    empty.push_back(std::ranges::all_of(row, [](std::int64_t count) { return count == 0; }));
  return empty;
}

Status set_rows(std::vector<std::vector<std::int64_t>> sums, const ImportOptions& options,
                std::string_view place, RecordingSink& sink) {
  LoadProfile profile;
  profile.decoder_layers = GRACE_TRY(moe_rows(empty_rows(sums), options, place, sink));
  profile.num_experts = sums.empty() ? 0 : static_cast<int>(sums[0].size());
  for (const int row : profile.decoder_layers) profile.loads.push_back(sums[static_cast<std::size_t>(row)]);
  return sink.set_loads(std::move(profile));
}

// logical_count [steps, L, E], or [L, E]: summed, for a ring buffer's steps are in no order.
Status add_stat(const RankFile& rank, std::vector<std::vector<std::int64_t>>& sums) {
  const std::string place = rank.place + ": logical_count";
  const PickleValue value = GRACE_TRY(rank.torch.root().field("logical_count", rank.place));
  StridedTensor tensor = GRACE_TRY(rank.torch.tensor(value, place));
  if (tensor.shape.size() == 2) {
    tensor.shape.insert(tensor.shape.begin(), 1);
    tensor.stride.insert(tensor.stride.begin(), 0);
  }
  const bool sized = tensor.shape.size() == 3 && tensor.shape[1] > 0 && tensor.shape[2] > 0;
  if (!sized)
    return invalid_input(
        fmt::format("{}: has {} dimensions, must be [steps, layers, experts]", place, tensor.shape.size()));
  const auto layers = static_cast<std::size_t>(tensor.shape[1]),
             experts = static_cast<std::size_t>(tensor.shape[2]);
  if (sums.empty()) sums.assign(layers, std::vector<std::int64_t>(experts, 0));
  if (sums.size() != layers || sums[0].size() != experts)
    return invalid_input(fmt::format("{}: [{}, {}], but another file has [{}, {}]", place, layers, experts,
                                     sums.size(), sums[0].size()));
  const std::size_t width = bytes_of(tensor.dtype);
  for (std::int64_t step = 0; step < tensor.shape[0]; ++step) {
    StridedTensor one = tensor;
    one.shape[0] = 1;
    one.bytes = tensor.bytes.subspan(static_cast<std::size_t>(step * tensor.stride[0]) * width);
    const std::vector<std::int64_t> counts = GRACE_TRY(read_counts(one, place));
    const auto step_sums = GRACE_TRY(sum_steps(counts, layers, experts, place));
    for (std::size_t l = 0; l < layers; ++l)
      for (std::size_t e = 0; e < experts; ++e) sums[l][e] += step_sums[l][e];
  }
  return {};
}

// last_physical_to_logical_map [L, P].
struct SlotOwners {
  std::vector<std::vector<std::int64_t>> logical;  // [L][P]
  int num_experts = 0;
};
Result<SlotOwners> read_map(const RankFile& rank) {
  constexpr const char* kMap = "last_physical_to_logical_map";
  const std::string place = rank.place + ": " + kMap;
  const std::optional<PickleValue> value = rank.torch.root().find(kMap);
  if (!value)
    return invalid_input(
        fmt::format("{}: ids are physical, and there is no {} to tell whose they are", rank.place, kMap));
  const StridedTensor tensor = GRACE_TRY(rank.torch.tensor(*value, place));
  if (tensor.shape.size() != 2 || tensor.shape[0] < 1 || tensor.shape[1] < 1)
    return invalid_input(fmt::format("{}: must be [layers, slots]", place));
  const std::vector<std::int64_t> flat = GRACE_TRY(read_counts(tensor, place));
  SlotOwners owners;
  const auto slots = static_cast<std::size_t>(tensor.shape[1]);
  for (std::size_t at = 0; at < flat.size(); at += slots)
    owners.logical.emplace_back(flat.begin() + static_cast<std::ptrdiff_t>(at),
                                flat.begin() + static_cast<std::ptrdiff_t>(at + slots));
  const std::int64_t largest = std::ranges::max(flat);
  if (largest >= tensor.shape[1])
    return invalid_input(
        fmt::format("{}: expert {} is outside [0, {}), its slots", place, largest, tensor.shape[1]));
  owners.num_experts = static_cast<int>(largest) + 1;
  return owners;
}

// One forward pass of one rank.
struct Pass {
  std::string place;
  StridedTensor ids;            // [L, tokens, width], physical
  std::int64_t num_tokens = 0;  // without padding
  std::int64_t mode = 0;
  std::vector<std::int64_t> lengths;  // of the sequences; adds up to num_tokens
};

std::vector<std::int64_t> lengths_of(const PickleValue& record, std::int64_t num_tokens) {
  std::vector<std::int64_t> lengths;
  std::int64_t sum = 0;
  const std::optional<PickleValue> list = record.find("extend_seq_lens");
  for (std::size_t i = 0; list && list->is(PickleKind::kList) && i < list->size(); ++i) {
    const std::int64_t length = list->at(i).is(PickleKind::kInt) ? list->at(i).integer() : -1;
    if (length < 0 || length > num_tokens - sum) return {num_tokens};
    if (length > 0) lengths.push_back(length);
    sum += length;
  }
  if (sum != num_tokens) return {num_tokens};
  return lengths;
}

Result<Pass> read_pass(const RankFile& rank, const PickleValue& record, std::size_t index,
                       RecordingSink& sink) {
  Pass pass;
  pass.place = fmt::format("{}: record {}", rank.place, index);
  const PickleValue ids = GRACE_TRY(record.field("topk_ids_of_layer", pass.place));
  pass.ids = GRACE_TRY(rank.torch.tensor(ids, pass.place + ": topk_ids_of_layer"));
  if (pass.ids.shape.size() != 3)
    return invalid_input(
        fmt::format("{}: topk_ids_of_layer has {} dimensions, must be [layers, tokens, choices]", pass.place,
                    pass.ids.shape.size()));
  pass.num_tokens = pass.ids.shape[1];
  if (const auto input = record.find("input_ids"); input && input->is(PickleKind::kSkipped)) {
    const auto valid = static_cast<std::int64_t>(input->size());
    if (valid > pass.num_tokens)
      return invalid_input(
          fmt::format("{}: {} input_ids, but choices of {} tokens", pass.place, valid, pass.num_tokens));
    if (valid < pass.num_tokens)
      sink.warn(rank.place + ": rows beyond the input_ids are padding and left out");
    pass.num_tokens = valid;
  }
  const std::optional<PickleValue> mode = record.find("forward_mode");
  pass.mode = mode && mode->is(PickleKind::kInt) ? mode->integer() : 0;
  pass.lengths = lengths_of(record, pass.num_tokens);
  return pass;
}

// Int32 elements of a pass, row-major; `copy` holds them where the file's are others.
Result<std::span<const std::byte>> int32_of(const Pass& pass, std::vector<std::int32_t>& copy) {
  const auto count = static_cast<std::size_t>(pass.ids.num_elements());
  if (pass.ids.dtype == Dtype::kI32 && pass.ids.is_row_major())
    return pass.ids.bytes.subspan(0, count * sizeof(std::int32_t));
  GRACE_TRY(ids_of(row_major_bytes(pass.ids), pass.ids.dtype, pass.place, copy));
  return std::as_bytes(std::span(copy));
}

// Which layers choose, and how many of the buffer's columns are in use.
struct Survey {
  std::vector<bool> is_empty;  // [L]
  int width = 0;
};
Status survey_pass(const Pass& pass, Survey& survey) {
  std::vector<std::int32_t> copy;
  const std::span<const std::byte> bytes = GRACE_TRY(int32_of(pass, copy));
  const auto layers = static_cast<std::size_t>(pass.ids.shape[0]);
  const std::int64_t tokens = pass.ids.shape[1], width = pass.ids.shape[2];
  if (survey.is_empty.empty()) survey.is_empty.assign(layers, true);
  if (survey.is_empty.size() != layers)
    return invalid_input(
        fmt::format("{}: {} layers, an earlier record has {}", pass.place, layers, survey.is_empty.size()));
  for (std::size_t layer = 0; layer < layers; ++layer) {
    for (std::int64_t i = 0; i < pass.num_tokens * width; ++i) {
      std::int32_t id = 0;
      const std::int64_t at = static_cast<std::int64_t>(layer) * tokens * width + i;
      std::memcpy(&id, bytes.data() + static_cast<std::size_t>(at) * sizeof(id), sizeof(id));
      if (id == RecordingSink::kNotRecorded) continue;
      survey.is_empty[layer] = false;
      survey.width = std::max(survey.width, static_cast<int>(i % width) + 1);
    }
  }
  return {};
}

// The file's bytes that reading a pass went through; nothing where they are scattered.
std::span<const std::byte> read_part(const Pass& pass) {
  if (!pass.ids.is_row_major()) return {};
  return pass.ids.bytes.subspan(0,
                                static_cast<std::size_t>(pass.ids.num_elements()) * bytes_of(pass.ids.dtype));
}

// What turns the records of all ranks into tokens.
class TokenReader {
 public:
  TokenReader(const ImportOptions& options, RecordingSink& sink) : options_(options), sink_(sink) {}

  Status read(const RankFile& rank, const PickleValue& records) {
    owners_ = GRACE_TRY(read_map(rank));
    std::int64_t counted = 0;
    if (rows_.empty()) GRACE_TRY(begin(rank, records));
    for (std::size_t i = 0; i < records.size(); ++i) {
      const Pass pass = GRACE_TRY(read_pass(rank, records.at(i), i, sink_));
      if (pass.mode != kIdle && pass.num_tokens > 0 && !rows_.empty()) GRACE_TRY(add(pass));
      const std::span<const std::byte> bytes = read_part(pass);
      release_after(rank, std::ssize(bytes));
      counted += std::ssize(bytes);
      GRACE_TRY(sink_.read_bytes(std::ssize(bytes)));
    }
    return sink_.read_bytes(std::ssize(rank.file.bytes()) - counted);
  }

 private:
  // Lets go of the file's memory now and then. All of it, for the system also maps what lies around a byte.
  void release_after(const RankFile& rank, std::int64_t bytes) {
    held_bytes_ += bytes;
    if (held_bytes_ < kMaxHeldBytes) return;
    held_bytes_ = 0;
    rank.file.give_back(rank.file.bytes());
  }

  Status begin(const RankFile& rank, const PickleValue& records) {
    Survey survey;
    const std::size_t step = std::max<std::size_t>(1, records.size() / kSurveyedRecords);
    std::size_t seen = 0;
    for (std::size_t i = 0; i < records.size() && seen < 2 * kSurveyedRecords; i += seen == 0 ? 1 : step) {
      const Pass pass = GRACE_TRY(read_pass(rank, records.at(i), i, sink_));
      if (pass.mode == kIdle || pass.num_tokens == 0) continue;
      GRACE_TRY(survey_pass(pass, survey));
      release_after(rank, std::ssize(read_part(pass)));
      ++seen;
    }
    if (survey.width == 0) return {};  // this rank was idle
    rows_ = GRACE_TRY(moe_rows(survey.is_empty, options_, rank.place, sink_));
    width_ = survey.width;
    num_layers_ = survey.is_empty.size();
    return sink_.begin_tokens(owners_.num_experts, width_, rows_);
  }

  Status add(const Pass& pass) {
    if (static_cast<std::size_t>(pass.ids.shape[0]) != num_layers_ || owners_.logical.size() != num_layers_)
      return invalid_input(fmt::format("{}: {} layers, a map of {}, an earlier record has {}", pass.place,
                                       pass.ids.shape[0], owners_.logical.size(), num_layers_));
    const std::span<const std::byte> bytes = GRACE_TRY(int32_of(pass, copy_));
    const bool decodes = pass.mode == kDecode || pass.mode == kTargetVerify;
    if (decodes) {
      sink_.warn("decode passes do not tell which request a token is of: each pass stands as one sequence");
      GRACE_TRY(sink_.begin_sequence());
      return add_range(pass, bytes, 0, pass.num_tokens, Phase::kDecode);
    }
    std::int64_t begin = 0;
    for (const std::int64_t length : pass.lengths) {
      GRACE_TRY(sink_.begin_sequence());
      GRACE_TRY(
          add_range(pass, bytes, begin, begin + length, pass.mode == 0 ? options_.phase : Phase::kPrefill));
      begin += length;
    }
    return {};
  }

  Status add_range(const Pass& pass, std::span<const std::byte> bytes, std::int64_t begin, std::int64_t end,
                   Phase phase) {
    for (std::int64_t block = begin; block < end; block += kBlockTokens) {
      const std::int64_t stop = std::min(end, block + kBlockTokens);
      ids_.resize(static_cast<std::size_t>((stop - block) * std::ssize(rows_) * width_));
      for (std::size_t m = 0; m < rows_.size(); ++m) GRACE_TRY(turn(pass, bytes, block, stop, m));
      GRACE_TRY(sink_.add_tokens(ids_, phase, {pass.place, block}));
    }
    return {};
  }

  // Layer m of tokens [begin, end) into ids_, as logical ids.
  Status turn(const Pass& pass, std::span<const std::byte> bytes, std::int64_t begin, std::int64_t end,
              std::size_t m) {
    const auto row = static_cast<std::size_t>(rows_[m]);
    const std::vector<std::int64_t>& owner = owners_.logical[row];
    const auto columns = static_cast<std::size_t>(pass.ids.shape[2]);
    const auto width = std::min(columns, static_cast<std::size_t>(width_));
    std::vector<std::int32_t>& line = line_;
    line.resize(columns);
    const std::byte* from =
        bytes.data() + (row * static_cast<std::size_t>(pass.ids.shape[1]) + static_cast<std::size_t>(begin)) *
                           columns * sizeof(std::int32_t);
    std::int32_t* to = ids_.data() + m * static_cast<std::size_t>(width_);
    for (std::int64_t token = begin; token < end; ++token) {
      std::memcpy(line.data(), from, columns * sizeof(std::int32_t));
      for (std::size_t k = 0; k < width; ++k) {
        const std::int32_t id = line[k];
        if (id != RecordingSink::kNotRecorded &&
            std::cmp_greater_equal(static_cast<std::uint32_t>(id), owner.size()))
          return invalid_input(fmt::format("{}: token {}, layer {}: physical expert {} is outside [0, {})",
                                           pass.place, token, row, id, owner.size()));
        to[k] = id == RecordingSink::kNotRecorded
                    ? id
                    : static_cast<std::int32_t>(owner[static_cast<std::size_t>(id)]);
      }
      std::fill(to + width, to + width_, RecordingSink::kNotRecorded);
      for (std::size_t k = width; k < columns; ++k)
        if (line[k] != RecordingSink::kNotRecorded)
          return invalid_input(
              fmt::format("{}: token {}, layer {}: choice {} is {}, the first records had {} a token",
                          pass.place, token, row, k, line[k], width_));
      from += columns * sizeof(std::int32_t);
      to += rows_.size() * static_cast<std::size_t>(width_);
    }
    return {};
  }

  const ImportOptions& options_;
  RecordingSink& sink_;
  SlotOwners owners_;
  std::vector<int> rows_;
  std::size_t num_layers_ = 0;
  int width_ = 0;
  std::int64_t held_bytes_ = 0;
  std::vector<std::int32_t> ids_, copy_, line_;
};

// Counts of each pass [L, P] instead of tokens.
Status add_pass_counts(const RankFile& rank, const PickleValue& records,
                       std::vector<std::vector<std::int64_t>>& sums) {
  const SlotOwners owners = GRACE_TRY(read_map(rank));
  const auto experts = static_cast<std::size_t>(owners.num_experts);
  if (sums.empty()) sums.assign(owners.logical.size(), std::vector<std::int64_t>(experts, 0));
  for (std::size_t i = 0; i < records.size(); ++i) {
    const std::string place = fmt::format("{}: record {}", rank.place, i);
    const PickleValue value = GRACE_TRY(records.at(i).field("global_physical_count", place));
    const StridedTensor tensor = GRACE_TRY(rank.torch.tensor(value, place));
    if (tensor.shape.size() != 2 || std::cmp_not_equal(tensor.shape[0], sums.size()) ||
        std::cmp_not_equal(tensor.shape[0], owners.logical.size()) || sums[0].size() != experts)
      return invalid_input(fmt::format("{}: global_physical_count is not [layers, slots] of the map", place));
    const std::vector<std::int64_t> counts = GRACE_TRY(read_counts(tensor, place));
    const auto slots = static_cast<std::size_t>(tensor.shape[1]);
    for (std::size_t layer = 0; layer < sums.size(); ++layer)
      GRACE_TRY(add_physical(std::span(counts).subspan(layer * slots, slots), owners.logical[layer],
                             sums[layer], place));
  }
  return {};
}

// Enough of a rank's tokens to tell whether another rank saw the same.
std::string sample_of(const RankFile& rank, const PickleValue& records) {
  std::string sample = std::to_string(records.size());
  for (std::size_t i = 0; i < records.size() && i < 4; ++i) {
    for (const char* name : {"topk_ids_of_layer", "global_physical_count"}) {
      const std::optional<PickleValue> value = records.at(i).find(name);
      if (!value) continue;
      const auto tensor = rank.torch.tensor(*value, rank.place);
      if (!tensor.ok() || !tensor.value().is_row_major()) continue;
      const auto bytes =
          static_cast<std::size_t>(tensor.value().num_elements()) * bytes_of(tensor.value().dtype);
      const auto part = tensor.value().bytes.subspan(0, std::min<std::size_t>(bytes, 1 << 20));
      sample.append(reinterpret_cast<const char*>(part.data()), part.size());
    }
  }
  return sample;
}

bool has_tokens(const PickleValue& records) {
  for (std::size_t i = 0; i < records.size(); ++i)
    if (records.at(i).find("topk_ids_of_layer")) return true;
  return false;
}

Status read_recorder(std::span<const std::filesystem::path> files, const ImportOptions& options,
                     RecordingSink& sink) {
  if (options.same_tokens > 1 && files.size() > 1 &&
      files.size() % static_cast<std::size_t>(options.same_tokens) != 0)
    return invalid_input(
        fmt::format("--same-tokens: {} files do not divide by {}", files.size(), options.same_tokens));
  TokenReader tokens(options, sink);
  std::vector<std::vector<std::int64_t>> sums;
  std::map<std::string, std::string, std::less<>> sampled;  // to the file's name
  bool any_tokens = false;
  for (std::size_t i = 0; i < files.size(); ++i) {
    const RankFile rank = GRACE_TRY(open_rank(files[i]));
    const PickleValue root = rank.torch.root();
    if (root.find("logical_count")) {
      GRACE_TRY(add_stat(rank, sums));
      GRACE_TRY(sink.read_bytes(std::ssize(rank.file.bytes())));
      continue;
    }
    const PickleValue records = GRACE_TRY(root.field("records", rank.place));
    if (!records.is(PickleKind::kList))
      return invalid_input(fmt::format("{}: records is {}, not a list", rank.place, records.shown()));
    const auto [first, is_new] = sampled.emplace(sample_of(rank, records), rank.place);
    if (!is_new && records.size() > 0 && options.same_tokens == 1)
      sink.warn(fmt::format(
          "{} and {} recorded the same tokens: they count twice unless --same-tokens says how many ranks "
          "share theirs",
          first->second, rank.place));
    if (!has_tokens(records)) {
      GRACE_TRY(add_pass_counts(rank, records, sums));
      GRACE_TRY(sink.read_bytes(std::ssize(rank.file.bytes())));
    } else if (i % static_cast<std::size_t>(options.same_tokens) == 0 || files.size() == 1) {
      any_tokens = true;
      GRACE_TRY(tokens.read(rank, records));
    }
  }
  if (any_tokens && !sums.empty())
    return invalid_input(fmt::format("{}: files that count and files of tokens", files[0].string()));
  if (any_tokens) return {};
  if (sums.empty()) return {};
  return set_rows(std::move(sums), options, files[0].string(), sink);
}

bool is_recorder_file(const std::filesystem::path& path) {
  const std::string head = first_bytes(path, 4096);
  return head.starts_with("PK") &&
         (head.find("logical_count") != std::string::npos || head.find("records") != std::string::npos ||
          head.find("last_physical_to_logical_map") != std::string::npos);
}

bool recognises(std::span<const std::filesystem::path> files) {
  return std::ranges::all_of(files, [](const auto& path) { return is_recorder_file(path); }) ||
         std::ranges::all_of(files, [](const auto& path) { return is_sglang_api(path); });
}

Status read(std::span<const std::filesystem::path> files, const ImportOptions& options, RecordingSink& sink) {
  if (first_bytes(files[0], 2) != "PK") return read_sglang_api(files, options, sink);
  return read_recorder(files, options, sink);
}

}  // namespace

Importer sglang_importer() {
  return {"sglang",
          "the expert distribution recorder's .pt files, and answers of its API with routed_experts",
          recognises, read};
}

}  // namespace grace
