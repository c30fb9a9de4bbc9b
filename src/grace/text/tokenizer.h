// Text <-> token ids, as a Hugging Face tokenizer.json says (byte-level BPE).
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "grace/base/result.h"

namespace grace {

// Immutable, thread-safe.
class Tokenizer {
 public:
  // Reads tokenizer.json: added tokens, normaliser (null, NFC, NFD, NFKC, NFKD, Sequence, Prepend, Replace,
  // Lowercase), pre-tokeniser (Split by regex with every behaviour, ByteLevel, Digits, Sequence), BPE model
  // (with ignore_merges, merges as strings or pairs), post-processor (ByteLevel, TemplateProcessing,
  // Sequence), decoder (ByteLevel, null). Truncation and padding are not applied. Errors: io; invalid_input;
  // unsupported, naming the component that we do not know.
  static Result<Tokenizer> load(const std::filesystem::path& path);
  // The same from the file's text; `place` stands for the path in messages.
  static Result<Tokenizer> parse(std::string_view json, std::string_view place);
  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  // Added tokens in the text are recognised. add_special applies the post-processor's template.
  // Errors: invalid_input `byte B is not UTF-8`, or 2 GiB and more; unsupported when the file's regular
  // expression does not come to an end (10 million steps, or 64 a byte, a match).
  Result<std::vector<std::int32_t>> encode(std::string_view text, bool add_special = false) const;
  // Bytes that do not form UTF-8 become U+FFFD, as the reference does. Errors: invalid_input for an id
  // outside the vocabulary.
  Result<std::string> decode(std::span<const std::int32_t> ids, bool skip_special = false) const;

  // One more than the highest id, of the model's or an added token.
  int vocab_size() const;
  // The id of a token spelled exactly so, or -1.
  std::int32_t id_of(std::string_view token) const;

 private:
  struct Impl;
  explicit Tokenizer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// The offset of the first byte of `text` that is not UTF-8 (overlong forms, surrogates and values over
// U+10FFFF included), or npos.
std::size_t find_invalid_utf8(std::string_view text);

}  // namespace grace
