// Answers of serving APIs that carry what each token chose, in JSON files and in JSON lines.
#pragma once

#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "grace/base/result.h"
#include "grace/files/json.h"
#include "grace/interop/importer.h"

namespace grace {

// Calls `use` with each document: each line of a file of JSON lines, each element of a list, or the one
// value. Lines and elements are in memory one at a time. Errors: io; invalid_input with file and line, or
// file and element; those of `use`.
Status for_each_json(std::span<const std::filesystem::path> files, RecordingSink& sink,
                     const std::function<Status(const Json& json, const std::string& place)>& use);

// Choices of some tokens, [tokens, layers, width].
struct Choices {
  std::int64_t tokens = 0, layers = 0, width = 0;
  std::vector<std::int32_t> ids;
  bool is_unsigned = false;  // of a .npy file: its dtype
};
// Nested lists of whole numbers, or a .npy file in base64. Null gives none. Errors: invalid_input for ragged
// rows and for what is no whole number.
Result<Choices> choices_of(const Json& value, std::string_view place);
// Errors: invalid_input for what is no base64.
Result<std::vector<std::byte>> decode_base64(std::string_view text, std::string_view place);

// Whether a text file looks like answers of SGLang's API, which spell choices in base64.
bool is_sglang_api(const std::filesystem::path& path);
Status read_sglang_api(std::span<const std::filesystem::path> files, const ImportOptions& options,
                       RecordingSink& sink);

}  // namespace grace
