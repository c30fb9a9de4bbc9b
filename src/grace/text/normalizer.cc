#include "grace/text/normalizer.h"

#include <fmt/format.h>

#include <array>
#include <utility>

#include "grace/files/json_file.h"
#include "grace/text/json_fields.h"
#include "grace/text/normal_forms.h"

namespace grace {
namespace {

Result<std::string> replace(std::string_view text, const Regex& regex, std::string_view content,
                            RegexScratch& scratch) {
  std::vector<ByteRange> matches;
  GRACE_TRY(regex.find_all(text, scratch, matches));
  std::string out;
  std::size_t at = 0;
  for (const ByteRange& match : matches) {
    out.append(text.substr(at, match.begin - at)).append(content);
    at = match.end;
  }
  return std::move(out.append(text.substr(at)));
}

}  // namespace

Result<Normalizer> Normalizer::parse(const Json& json, std::string_view place) {
  Normalizer normalizer;
  GRACE_TRY(normalizer.add(json, place));
  return normalizer;
}

Status Normalizer::add(const Json& json, std::string_view place) {
  if (json.is_null()) return {};
  static constexpr std::array<std::pair<std::string_view, Kind>, 5> kPlain = {
      {{"NFC", Kind::kNfc},
       {"NFD", Kind::kNfd},
       {"NFKC", Kind::kNfkc},
       {"NFKD", Kind::kNfkd},
       {"Lowercase", Kind::kLowercase}}};
  const std::string_view type = GRACE_TRY(get_type(json, place));
  for (const auto& [name, kind] : kPlain)
    if (type == name) return steps_.push_back({kind, {}, nullptr}), Status();
  if (type == "Sequence") {
    const Json* parts = GRACE_TRY(get_array(json, "normalizers", place));
    for (const Json& part : *parts) GRACE_TRY(add(part, place));
    return {};
  }
  if (type == "Prepend") {
    std::string content = GRACE_TRY(get_string(json, "prepend", place));
    return steps_.push_back({Kind::kPrepend, std::move(content), nullptr}), Status();
  }
  if (type == "Replace") {
    Regex regex = GRACE_TRY(get_pattern(json, place));
    std::string content = GRACE_TRY(get_string(json, "content", place));
    return steps_.push_back({Kind::kReplace, std::move(content), std::make_unique<Regex>(std::move(regex))}),
           Status();
  }
  return unsupported(fmt::format("{}: type {}", place, type));
}

Result<std::string> Normalizer::normalize(std::string_view text, RegexScratch& scratch) const {
  std::string out(text);
  for (const Step& step : steps_) {
    switch (step.kind) {
      case Kind::kNfc:
        out = normal_form(out, NormalForm::kNfc);
        break;
      case Kind::kNfd:
        out = normal_form(out, NormalForm::kNfd);
        break;
      case Kind::kNfkc:
        out = normal_form(out, NormalForm::kNfkc);
        break;
      case Kind::kNfkd:
        out = normal_form(out, NormalForm::kNfkd);
        break;
      case Kind::kLowercase:
        out = lower_case(out);
        break;
      case Kind::kPrepend:
        if (!out.empty()) out.insert(0, step.content);
        break;
      case Kind::kReplace:
        out = GRACE_TRY(replace(out, *step.regex, step.content, scratch));
        break;
    }
  }
  return out;
}

}  // namespace grace
