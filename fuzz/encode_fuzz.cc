// Any bytes as a text for the small tokenizer of the tests: refused exactly when they are not UTF-8.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "grace/base/check.h"
#include "grace/text/tokenizer.h"

namespace {

// A few merges, each kind of added token, a normaliser, a splitter and a byte-level alphabet of the bytes
// that matter.
constexpr std::string_view kTokenizer = R"({
  "added_tokens": [
    {"id": 9, "content": "<s>", "special": true, "normalized": false, "lstrip": true},
    {"id": 10, "content": "<R>", "normalized": false, "rstrip": true},
    {"id": 11, "content": "word", "single_word": true, "normalized": false},
    {"id": 12, "content": "e\u0301", "normalized": true}],
  "normalizer": {"type": "NFKC"},
  "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": true, "use_regex": true},
  "decoder": {"type": "ByteLevel"},
  "model": {"type": "BPE", "unk_token": "?",
    "vocab": {"?": 0, "a": 1, "b": 2, "ab": 3, "Ġ": 4, "Ġa": 5, "Ċ": 6, "abab": 7, "ĠĠ": 8},
    "merges": [["a", "b"], ["Ġ", "a"], ["ab", "ab"], ["Ġ", "Ġ"]]}})";

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const grace::Tokenizer tokenizer = grace::Tokenizer::parse(kTokenizer, "fuzz").value();
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const bool is_utf8 = grace::find_invalid_utf8(text) == std::string_view::npos;
  const auto ids = tokenizer.encode(text, /*add_special=*/true);
  GRACE_CHECK(ids.ok() == is_utf8, "a text is refused exactly when it is not UTF-8");
  if (ids.ok()) GRACE_CHECK(tokenizer.decode(ids.value()).ok(), "an id of our own is refused");
  return 0;
}
