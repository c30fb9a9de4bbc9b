#include "grace/text/post_processor.h"

#include <fmt/format.h>

#include "grace/files/json_file.h"
#include "grace/text/json_fields.h"

namespace grace {
namespace {

// Appends the ids of template item {"SpecialToken": {"id": NAME}}, which stand in special_tokens[NAME].ids.
Status append_special(const Json& item, const Json& special_tokens, std::string_view place,
                      std::vector<std::int32_t>& out) {
  const std::string name = GRACE_TRY(get_string(field_or_null(item, "SpecialToken"), "id", place));
  const Json* ids = GRACE_TRY(get_array(field_or_null(special_tokens, name), "ids",
                                        fmt::format("{}: special token `{}`", place, name)));
  for (const Json& id : *ids) {
    if (!id.is_number_integer() || id < 0 || id > kMaxTokenId)
      return invalid_input(
          fmt::format("{}: special token `{}` has an id outside [0, {}]", place, name, kMaxTokenId));
    out.push_back(id.get<std::int32_t>());
  }
  return {};
}

}  // namespace

Result<PostProcessor> PostProcessor::parse(const Json& json, std::string_view place) {
  PostProcessor processor;
  GRACE_TRY(processor.add(json, place));
  return processor;
}

Status PostProcessor::add(const Json& json, std::string_view place) {
  if (json.is_null()) return {};
  const std::string_view type = GRACE_TRY(get_type(json, place));
  if (type == "ByteLevel") return {};
  if (type == "Sequence") {
    const Json* parts = GRACE_TRY(get_array(json, "processors", place));
    for (const Json& part : *parts) GRACE_TRY(add(part, place));
    return {};
  }
  if (type != "TemplateProcessing") return unsupported(fmt::format("{}: type {}", place, type));
  return add_template(json, place);
}

Status PostProcessor::add_template(const Json& json, std::string_view place) {
  const Json* items = GRACE_TRY(get_array(json, "single", place));
  Template made;
  bool has_text = false;
  for (const Json& item : *items) {
    if (item.is_object() && item.contains("Sequence")) {
      const std::string id = GRACE_TRY(get_string(item["Sequence"], "id", place));
      if (id != "A" || has_text)
        return unsupported(fmt::format("{}: a template that is not one sequence A", place));
      has_text = true;
    } else {
      GRACE_TRY(append_special(item, field_or_null(json, "special_tokens"), place,
                               has_text ? made.after : made.before));
    }
  }
  if (!has_text) return unsupported(fmt::format("{}: a template that is not one sequence A", place));
  templates_.push_back(std::move(made));
  return {};
}

std::vector<std::int32_t> PostProcessor::process(std::vector<std::int32_t> ids) const {
  for (const Template& made : templates_) {
    ids.insert(ids.begin(), made.before.begin(), made.before.end());
    ids.insert(ids.end(), made.after.begin(), made.after.end());
  }
  return ids;
}

}  // namespace grace
