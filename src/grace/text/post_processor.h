// The post-processor of a tokenizer.json: special tokens around a text.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "grace/base/result.h"
#include "grace/files/json.h"

namespace grace {

// Immutable, thread-safe.
class PostProcessor {
 public:
  // null, ByteLevel (which concerns offsets only), TemplateProcessing, Sequence. `place` begins the messages.
  // Errors: invalid_input; unsupported, naming the type.
  static Result<PostProcessor> parse(const Json& json, std::string_view place);

  std::vector<std::int32_t> process(std::vector<std::int32_t> ids) const;

 private:
  struct Template {
    std::vector<std::int32_t> before;
    std::vector<std::int32_t> after;
  };
  Status add(const Json& json, std::string_view place);
  Status add_template(const Json& json, std::string_view place);

  std::vector<Template> templates_;
};

}  // namespace grace
