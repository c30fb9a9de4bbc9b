// Any bytes as a tokenizer.json: a refusal in one line, or a tokenizer that encodes and decodes a short text.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "grace/base/check.h"
#include "grace/text/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view json(reinterpret_cast<const char*>(data), size);
  const grace::Result<grace::Tokenizer> tokenizer = grace::Tokenizer::parse(json, "fuzz");
  if (!tokenizer.ok()) return 0;
  const auto ids = tokenizer.value().encode("ab ab<s>\n1 e\u0301", /*add_special=*/false);
  if (ids.ok()) GRACE_CHECK(tokenizer.value().decode(ids.value()).ok(), "an id of our own is refused");
  return 0;
}
