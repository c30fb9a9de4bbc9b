#include "grace/files/json_file.h"

#include <fmt/format.h>

#include <cmath>
#include <unordered_set>
#include <utility>
#include <vector>

#include "grace/files/mapped_file.h"

namespace grace {
namespace {

// Deep enough for every file we know, shallow enough for any stack that walks it.
constexpr std::size_t kMaxDepth = 64;
constexpr std::size_t kMaxShownBytes = 80;

// Builds the value itself rather than through nlohmann's own builder, which keeps the last of two equal keys
// in silence and searches all earlier keys for each new one.
class Builder : public nlohmann::json_sax<Json> {  // NOLINT(bugprone-exception-escape): its moves allocate
 public:
  Json root;
  std::string problem;

  bool null() override { return put(Json(nullptr)) != nullptr; }
  bool boolean(bool value) override { return put(Json(value)) != nullptr; }
  bool number_integer(number_integer_t value) override { return put(Json(value)) != nullptr; }
  bool number_unsigned(number_unsigned_t value) override { return put(Json(value)) != nullptr; }
  bool number_float(number_float_t value, const string_t& /*spelling*/) override {
    return put(Json(value)) != nullptr;
  }
  bool string(string_t& value) override { return put(Json(std::move(value))) != nullptr; }
  bool binary(binary_t& /*value*/) override { return false; }
  bool start_object(std::size_t /*size*/) override { return enter(Json::object()); }
  bool end_object() override { return leave(); }
  bool start_array(std::size_t /*size*/) override { return enter(Json::array()); }
  bool end_array() override { return leave(); }
  bool key(string_t& name) override {
    Level& level = levels_.back();
    if (!level.keys.insert(name).second) {
      problem = fmt::format("key {} occurs twice in one object", shown(Json(name)));
      return false;
    }
    level.key = std::move(name);
    return true;
  }
  bool parse_error(std::size_t position, const std::string& /*token*/,
                   const nlohmann::detail::exception& /*error*/) override {
    problem = fmt::format("not JSON at byte {}", position);
    return false;
  }

 private:
  struct Level {
    Json* container;  // stays put while it is on the stack: only its own children are added meanwhile
    std::unordered_set<std::string> keys;
    std::string key;
  };

  Json* put(Json value) {
    if (levels_.empty()) return &(root = std::move(value));
    Level& level = levels_.back();
    if (level.container->is_array()) {
      level.container->get_ref<Json::array_t&>().push_back(std::move(value));
      return &level.container->back();
    }
    auto& object = level.container->get_ref<Json::object_t&>();
    object.emplace_back(std::move(level.key), std::move(value));
    return &object.back().second;
  }
  bool enter(Json container) {
    if (levels_.size() == kMaxDepth) {
      problem = fmt::format("nested deeper than {}", kMaxDepth);
      return false;
    }
    levels_.push_back({put(std::move(container)), {}, {}});
    return true;
  }
  bool leave() {
    levels_.pop_back();
    return true;
  }

  std::vector<Level> levels_;
};

// The value of a key. Errors: no object, no such key.
Result<const Json*> field(const Json& object, std::string_view key, std::string_view place) {
  if (!object.is_object()) return invalid_input(fmt::format("{}: {} is not an object", place, shown(object)));
  const auto found = object.find(std::string(key));
  if (found == object.end()) return invalid_input(fmt::format("{}: {} is missing", place, key));
  return &*found;
}

Error wrong_type(std::string_view key, std::string_view place, const Json& value, std::string_view wanted) {
  return invalid_input(fmt::format("{}: {} is {}, not {}", place, key, shown(value), wanted));
}

}  // namespace

bool is_utf8(const std::string& text) {
  try {
    static_cast<void>(Json(text).dump());
    return true;
  } catch (const Json::exception&) {
    return false;
  }
}

std::string shown(const Json& value) {
  if (value.is_object() || value.is_array()) {
    const std::string_view kind = value.is_object() ? "an object" : "a list";
    if (value.size() > 8) return fmt::format("{} of {}", kind, value.size());
  }
  std::string text = value.dump(-1, ' ', /*ensure_ascii=*/true, Json::error_handler_t::replace);
  if (text.size() > kMaxShownBytes) text = text.substr(0, kMaxShownBytes) + "...";
  return text;
}

Result<Json> parse_json(std::string_view text, std::string_view place) {
  // The library takes a zero byte for the end, and what follows it for nothing.
  if (const std::size_t zero = text.find('\0'); zero != std::string_view::npos)
    return invalid_input(fmt::format("{}: not JSON at byte {}", place, zero + 1));
  Builder builder;
  if (!Json::sax_parse(text, &builder)) return invalid_input(fmt::format("{}: {}", place, builder.problem));
  return std::move(builder.root);
}

Result<Json> read_json(const std::filesystem::path& path) {
  const std::string text = GRACE_TRY(read_text(path));
  return parse_json(text, path.string());
}

Status write_json(const std::filesystem::path& path, const Json& json, int indent) {
  return write_text_atomically(path, json.dump(indent, ' ', false, Json::error_handler_t::replace) + "\n");
}

Result<std::int64_t> get_int(const Json& object, std::string_view key, std::string_view place,
                             std::int64_t lowest, std::int64_t highest) {
  const Json* value = GRACE_TRY(field(object, key, place));
  if (!value->is_number_integer()) return wrong_type(key, place, *value, "a whole number");
  const bool over = value->is_number_unsigned() && value->get<std::uint64_t>() > std::uint64_t{INT64_MAX};
  const std::int64_t number = over ? 0 : value->get<std::int64_t>();
  if (over || number < lowest || number > highest) {
    return invalid_input(
        fmt::format("{}: {} is {}, outside [{}, {}]", place, key, shown(*value), lowest, highest));
  }
  return number;
}

Result<double> get_number(const Json& object, std::string_view key, std::string_view place) {
  const Json* value = GRACE_TRY(field(object, key, place));
  if (!value->is_number() || !std::isfinite(value->get<double>())) {
    return wrong_type(key, place, *value, "a number");
  }
  return value->get<double>();
}

Result<bool> get_bool(const Json& object, std::string_view key, std::string_view place) {
  const Json* value = GRACE_TRY(field(object, key, place));
  if (!value->is_boolean()) return wrong_type(key, place, *value, "true or false");
  return value->get<bool>();
}

Result<std::string> get_string(const Json& object, std::string_view key, std::string_view place) {
  const Json* value = GRACE_TRY(field(object, key, place));
  if (!value->is_string()) return wrong_type(key, place, *value, "a string");
  return value->get<std::string>();
}

}  // namespace grace
