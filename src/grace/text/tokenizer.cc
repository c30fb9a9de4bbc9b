#include "grace/text/tokenizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "grace/files/json_file.h"
#include "grace/files/mapped_file.h"
#include "grace/text/added_tokens.h"
#include "grace/text/bpe.h"
#include "grace/text/byte_level.h"
#include "grace/text/json_fields.h"
#include "grace/text/normalizer.h"
#include "grace/text/post_processor.h"
#include "grace/text/pre_tokenizer.h"
#include "grace/text/utf8.h"

namespace grace {
namespace {

constexpr std::size_t kMaxTextBytes = INT32_MAX;  // positions within a word are 32 bits

Result<bool> parse_byte_level_decoder(const Json& json, std::string_view place) {
  if (json.is_null()) return false;
  const std::string_view type = GRACE_TRY(get_type(json, place));
  if (type != "ByteLevel") return unsupported(fmt::format("{}: type {}", place, type));
  return true;
}

std::string_view slice(std::string_view text, ByteRange range) {
  return text.substr(range.begin, range.end - range.begin);
}

}  // namespace

struct Tokenizer::Impl {
  Bpe model;
  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  AddedTokens added;
  PostProcessor post_processor;
  bool by_bytes = false;  // words need not be spelled in the byte-level alphabet to be encoded
  bool byte_level_decoder = false;
  std::unordered_map<std::int32_t, std::string_view>
      token_of_id;  // views of the model's and the added tokens
  int vocab_size = 0;

  // Working memory of one call.
  struct Call {
    RegexScratch regex;
    Bpe::Scratch bpe;
    std::vector<std::int32_t> ids;
  };

  void index_ids() {
    for (const auto& [token, id] : model.vocabulary()) token_of_id[id] = token;
    for (const AddedToken& token : added.tokens()) token_of_id[token.id] = token.spelling;
    for (const auto& [id, token] : token_of_id) vocab_size = std::max(vocab_size, id + 1);
  }

  Status encode_plain(std::string_view text, Call& call) const {
    const Pieces words = GRACE_TRY(pre_tokenizer.split(std::string(text), call.regex, by_bytes));
    for (const ByteRange& word : words.ranges) {
      if (by_bytes) {
        model.encode_bytes(slice(words.text, word), call.bpe, call.ids);
      } else {
        model.encode(slice(words.text, word), call.bpe, call.ids);
      }
    }
    return {};
  }

  // What the added tokens found in the text as it came leave over.
  Status encode_raw(std::string_view text, Call& call) const {
    const std::string normalized = GRACE_TRY(normalizer.normalize(text, call.regex));
    for (const AddedTokenMatcher::Piece& piece : added.normalized_matcher().split(normalized)) {
      if (piece.id != AddedTokenMatcher::kPlainText) {
        call.ids.push_back(piece.id);
      } else {
        GRACE_TRY(encode_plain(slice(normalized, piece.range), call));
      }
    }
    return {};
  }
};

Tokenizer::Tokenizer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

namespace {

// The parts of `json`, each with its place in messages.
struct Parts {
  const Json& json;
  std::string place;
  const Json& part(std::string_view key) const { return field_or_null(json, key); }
  std::string part_place(std::string_view key) const { return fmt::format("{}: {}", place, key); }
};

}  // namespace

Result<Tokenizer> Tokenizer::load(const std::filesystem::path& path) {
  return parse(GRACE_TRY(read_text(path)), path.string());
}

Result<Tokenizer> Tokenizer::parse(std::string_view text, std::string_view place) {
  const Json json = GRACE_TRY(parse_json(text, place));
  if (!json.is_object()) return invalid_input(fmt::format("{}: no JSON object", place));
  const Parts parts{json, std::string(place)};
  auto impl = std::make_unique<Impl>();
  impl->model = GRACE_TRY(Bpe::parse(parts.part("model"), parts.part_place("model")));
  impl->normalizer = GRACE_TRY(Normalizer::parse(parts.part("normalizer"), parts.part_place("normalizer")));
  impl->pre_tokenizer =
      GRACE_TRY(PreTokenizer::parse(parts.part("pre_tokenizer"), parts.part_place("pre_tokenizer")));
  impl->post_processor =
      GRACE_TRY(PostProcessor::parse(parts.part("post_processor"), parts.part_place("post_processor")));
  impl->byte_level_decoder =
      GRACE_TRY(parse_byte_level_decoder(parts.part("decoder"), parts.part_place("decoder")));
  impl->added = GRACE_TRY(AddedTokens::parse(parts.part("added_tokens"), impl->model, impl->normalizer,
                                             parts.part_place("added_tokens")));
  impl->by_bytes = impl->pre_tokenizer.ends_byte_level();
  impl->index_ids();
  return Tokenizer(std::move(impl));
}

Result<std::vector<std::int32_t>> Tokenizer::encode(std::string_view text, bool add_special) const {
  if (text.size() > kMaxTextBytes)
    return invalid_input(fmt::format("the text has {} bytes, over {}", text.size(), kMaxTextBytes));
  const std::size_t invalid = find_invalid_utf8(text);
  if (invalid != std::string_view::npos) return invalid_input(fmt::format("byte {} is not UTF-8", invalid));
  Impl::Call call;
  call.bpe.cache.start(text.size());
  for (const AddedTokenMatcher::Piece& piece : impl_->added.raw_matcher().split(text)) {
    if (piece.id != AddedTokenMatcher::kPlainText) {
      call.ids.push_back(piece.id);
    } else {
      GRACE_TRY(impl_->encode_raw(slice(text, piece.range), call));
    }
  }
  return add_special ? impl_->post_processor.process(std::move(call.ids)) : std::move(call.ids);
}

Result<std::string> Tokenizer::decode(std::span<const std::int32_t> ids, bool skip_special) const {
  std::string bytes;
  bool first = true;
  for (const std::int32_t id : ids) {
    const auto found = impl_->token_of_id.find(id);
    if (found == impl_->token_of_id.end()) {
      if (id < 0 || id >= impl_->vocab_size)
        return invalid_input(fmt::format("token id {} is outside [0, {})", id, impl_->vocab_size));
      return invalid_input(fmt::format("token id {} stands for no token", id));
    }
    const std::string_view token = found->second;
    if (skip_special && impl_->added.is_special(token)) continue;
    if (impl_->byte_level_decoder) {
      append_bytes_of_token(bytes, token);
    } else {  // without a decoder the reference puts a space between tokens
      if (!first) bytes.push_back(' ');
      bytes.append(token);
    }
    first = false;
  }
  return utf8_lossy(bytes);
}

int Tokenizer::vocab_size() const { return impl_->vocab_size; }

std::int32_t Tokenizer::id_of(std::string_view token) const {
  const std::int32_t added = impl_->added.id_of(token);
  return added >= 0 ? added : impl_->model.id_of(token);
}

}  // namespace grace
