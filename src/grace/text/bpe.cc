#include "grace/text/bpe.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_set>

#include "grace/files/json_file.h"
#include "grace/text/byte_level.h"
#include "grace/text/json_fields.h"
#include "grace/text/utf8.h"

namespace grace {
namespace {

constexpr std::int32_t kGone = -1;
constexpr std::int32_t kNone = -1;
constexpr std::int32_t kNoMerge = INT32_MAX;  // the rank of a pair that does not merge
constexpr std::size_t kShort = 48;            // bytes; up to here looking through all pairs beats a heap

// Later in the queue: a higher rank, or the same further right.
bool later(const Bpe::Scratch::Candidate& a, const Bpe::Scratch::Candidate& b) {
  return a.rank != b.rank ? a.rank > b.rank : a.position > b.position;
}

Status refuse_what_changes_words(const Json& model, std::string_view place) {
  for (const std::string_view key : {"continuing_subword_prefix", "end_of_word_suffix"})
    if (!GRACE_TRY(get_string_or_empty(model, key, place)).empty())
      return unsupported(fmt::format("{}: {}", place, key));
  if (GRACE_TRY(get_bool_or(model, "byte_fallback", false, place)))
    return unsupported(fmt::format("{}: byte_fallback", place));
  const Json& dropout = field_or_null(model, "dropout");
  if (!dropout.is_null() && dropout != 0.0) return unsupported(fmt::format("{}: dropout", place));
  return {};
}

// `["a", "b"]`, or `"a b"` in older files.
Result<std::pair<std::string_view, std::string_view>> sides_of_merge(const Json& merge,
                                                                     std::string_view place,
                                                                     std::size_t rank) {
  if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string())
    return std::pair<std::string_view, std::string_view>(merge[0].get_ref<const std::string&>(),
                                                         merge[1].get_ref<const std::string&>());
  if (merge.is_string()) {
    const std::string_view text = merge.get_ref<const std::string&>();
    const std::size_t space = text.find(' ');
    if (space != std::string_view::npos && text.find(' ', space + 1) == std::string_view::npos)
      return std::pair(text.substr(0, space), text.substr(space + 1));
  }
  return invalid_input(fmt::format("{}: merge {} is no pair of tokens", place, rank));
}

}  // namespace

Result<Bpe> Bpe::parse(const Json& model, std::string_view place) {
  if (!model.is_object()) return invalid_input(fmt::format("{}: no object", place));
  // Files before version 0.6 of the format do not name the only model they could hold.
  const std::string type = GRACE_TRY(get_string_or_empty(model, "type", place));
  if (!type.empty() && type != "BPE") return unsupported(fmt::format("{}: type {}", place, type));
  GRACE_TRY(refuse_what_changes_words(model, place));
  Bpe bpe;
  GRACE_TRY(bpe.read_vocabulary(model, place));
  GRACE_TRY(bpe.read_merges(model, place));
  bpe.find_bytes();
  bpe.fuse_unknown_ = GRACE_TRY(get_bool_or(model, "fuse_unk", false, place));
  bpe.ignore_merges_ = GRACE_TRY(get_bool_or(model, "ignore_merges", false, place));
  const std::string unknown = GRACE_TRY(get_string_or_empty(model, "unk_token", place));
  if (!unknown.empty()) {
    bpe.unknown_id_ = bpe.id_of(unknown);
    if (bpe.unknown_id_ < 0)
      return invalid_input(fmt::format("{}: unk_token `{}` is not in the vocabulary", place, unknown));
  }
  return bpe;
}

Status Bpe::read_vocabulary(const Json& model, std::string_view place) {
  const Json& vocabulary = field_or_null(model, "vocab");
  if (!vocabulary.is_object()) return invalid_input(fmt::format("{}: `vocab` is no object", place));
  vocabulary_.reserve(vocabulary.size());
  std::unordered_set<std::int32_t> seen;
  seen.reserve(vocabulary.size());
  for (const auto& [token, value] : vocabulary.items()) {
    const bool is_id = value.is_number_integer() && value >= 0 && value <= kMaxTokenId;
    if (!is_id)
      return invalid_input(
          fmt::format("{}: token `{}` has id {}, outside [0, {}]", place, token, value.dump(), kMaxTokenId));
    const auto id = value.get<std::int32_t>();
    if (!seen.insert(id).second) return invalid_input(fmt::format("{}: two tokens have id {}", place, id));
    vocabulary_.emplace(token, id);
  }
  return {};
}

Status Bpe::read_merges(const Json& model, std::string_view place) {
  const Json* merges = GRACE_TRY(get_array(model, "merges", place));
  merges_ = FlatMap<Merge>(merges->size());
  std::int32_t rank = 0;
  std::string whole;
  for (const Json& merge : *merges) {
    if (merge.is_string() && merge.get_ref<const std::string&>().starts_with("#version")) continue;
    const auto [left, right] = GRACE_TRY(sides_of_merge(merge, place, static_cast<std::size_t>(rank)));
    whole.assign(left).append(right);
    const std::int32_t left_id = id_of(left);
    const std::int32_t right_id = id_of(right);
    const std::int32_t merged_id = id_of(whole);
    for (const auto& [id, token] :
         {std::pair(left_id, left), {right_id, right}, {merged_id, std::string_view(whole)}})
      if (id < 0)
        return invalid_input(fmt::format("{}: merge {}: `{}` is not in the vocabulary", place, rank, token));
    merges_[pair_key(left_id, right_id)] = {rank,
                                            merged_id};  // of two equal merges the reference keeps the later
    ++rank;
  }
  return {};
}

std::int32_t Bpe::id_of(std::string_view token) const {
  const auto found = vocabulary_.find(token);
  return found == vocabulary_.end() ? -1 : found->second;
}

void Bpe::encode(std::string_view word, Scratch& scratch, std::vector<std::int32_t>& ids) const {
  if (ignore_merges_) {
    const std::int32_t id = id_of(word);
    if (id >= 0) return ids.push_back(id);
  }
  split_symbols(word, scratch);
  merge_all(scratch);
  append_symbols(scratch, ids);
}

void Bpe::append_symbols(const Scratch& scratch, std::vector<std::int32_t>& ids) const {
  for (const Scratch::Symbol& symbol : scratch.symbols)
    if (symbol.id != kGone) ids.push_back(symbol.id);
}

void Bpe::find_bytes() {
  for (unsigned byte = 0; byte < 256; ++byte) {
    std::string spelled;
    append_byte_level(spelled, std::string(1, static_cast<char>(byte)));
    id_of_byte_[byte] = id_of(spelled);
  }
}

void Bpe::encode_bytes(std::string_view word, Scratch& scratch, std::vector<std::int32_t>& ids) const {
  if (scratch.cache.find(word, ids)) return;
  const std::size_t before = ids.size();
  encode_new(word, scratch, ids);
  scratch.cache.store(word, std::span(ids).subspan(before));
}

void Bpe::encode_new(std::string_view word, Scratch& scratch, std::vector<std::int32_t>& ids) const {
  const auto id_at = [&](std::size_t i) { return id_of_byte_[static_cast<unsigned char>(word[i])]; };
  bool all_known = true;
  for (std::size_t i = 0; i < word.size(); ++i) all_known = all_known && id_at(i) >= 0;
  if (!all_known || ignore_merges_) {
    scratch.spelled.clear();
    append_byte_level(scratch.spelled, word);
    return encode(scratch.spelled, scratch, ids);
  }
  if (word.size() <= kShort) return encode_short(word, ids);
  scratch.symbols.clear();
  for (std::size_t i = 0; i < word.size(); ++i) {
    const auto position = static_cast<std::int32_t>(i);
    scratch.symbols.push_back({id_at(i), position - 1, position + 1});
  }
  scratch.symbols.back().next = kNone;
  merge_all(scratch);
  append_symbols(scratch, ids);
}

// Again and again the merge of lowest rank, and of its places the leftmost: as merge_all, in which no pair
// that has changed can still make the same token while tokens are spelled by the bytes they cover. REQUIRES:
// every byte of `word` has a token.
void Bpe::encode_short(std::string_view word, std::vector<std::int32_t>& ids) const {
  struct Part {
    std::int32_t id;
    Merge merge;  // with the next part
  };
  std::array<Part, kShort> parts;
  std::size_t size = word.size();
  const auto find = [&](std::size_t i) {
    const Merge* merge = i + 1 < size ? find_merge(parts[i].id, parts[i + 1].id) : nullptr;
    parts[i].merge = merge != nullptr ? *merge : Merge{kNoMerge, kNone};
  };
  for (std::size_t i = 0; i < size; ++i) parts[i].id = id_of_byte_[static_cast<unsigned char>(word[i])];
  for (std::size_t i = 0; i < size; ++i) find(i);
  while (size > 1) {
    std::size_t best = 0;
    for (std::size_t i = 1; i < size; ++i)
      if (parts[i].merge.rank < parts[best].merge.rank) best = i;
    if (parts[best].merge.rank == kNoMerge) break;
    parts[best].id = parts[best].merge.merged_id;
    std::copy(parts.begin() + best + 2, parts.begin() + size, parts.begin() + best + 1);
    --size;
    find(best);
    if (best > 0) find(best - 1);
  }
  for (std::size_t i = 0; i < size; ++i) ids.push_back(parts[i].id);
}

void Bpe::split_symbols(std::string_view word, Scratch& scratch) const {
  std::vector<Scratch::Symbol>& symbols = scratch.symbols;
  symbols.clear();
  bool after_unknown = false;
  for (std::size_t at = 0; at < word.size();) {
    const std::size_t length = utf8_length(word[at]);
    std::int32_t id = id_of(word.substr(at, length));
    at += length;
    const bool known = id >= 0;
    if (!known && (unknown_id_ < 0 || (fuse_unknown_ && after_unknown))) continue;
    after_unknown = !known;
    if (!known) id = unknown_id_;
    const auto position = static_cast<std::int32_t>(symbols.size());
    symbols.push_back({id, position - 1, position + 1});
  }
  if (!symbols.empty()) symbols.back().next = kNone;
}

void Bpe::push_candidate(std::int32_t position, Scratch& scratch) const {
  const Scratch::Symbol& left = scratch.symbols[static_cast<std::size_t>(position)];
  if (left.next == kNone) return;
  const Merge* merge = find_merge(left.id, scratch.symbols[static_cast<std::size_t>(left.next)].id);
  if (merge == nullptr) return;
  scratch.heap.push_back({merge->rank, position, merge->merged_id});
  std::ranges::push_heap(scratch.heap, later);
}

void Bpe::merge_all(Scratch& scratch) const {
  std::vector<Scratch::Symbol>& symbols = scratch.symbols;
  scratch.heap.clear();
  for (std::size_t i = 0; i < symbols.size(); ++i) push_candidate(static_cast<std::int32_t>(i), scratch);
  while (!scratch.heap.empty()) {
    std::ranges::pop_heap(scratch.heap, later);
    const Scratch::Candidate top = scratch.heap.back();
    scratch.heap.pop_back();
    Scratch::Symbol& left = symbols[static_cast<std::size_t>(top.position)];
    if (left.id == kGone || left.next == kNone) continue;
    Scratch::Symbol& right = symbols[static_cast<std::size_t>(left.next)];
    // The pair may have changed since. The reference asks only whether it still makes the same token, and so
    // do we.
    const Merge* merge = find_merge(left.id, right.id);
    if (merge == nullptr || merge->merged_id != top.merged_id) continue;
    left.id = top.merged_id;
    left.next = right.next;
    right.id = kGone;
    if (left.next != kNone) symbols[static_cast<std::size_t>(left.next)].previous = top.position;
    if (left.previous != kNone) push_candidate(left.previous, scratch);
    push_candidate(top.position, scratch);
  }
}

}  // namespace grace
