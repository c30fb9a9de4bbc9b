// Any bytes walked over as JSON: whatever a full parser takes, the cursor takes.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "grace/files/json_cursor.h"
#include "grace/files/json_file.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  grace::JsonCursor at(text);
  at.skip();
  if ((!at.ok() || !at.at_end()) && grace::parse_json(text, "fuzz").ok()) std::abort();
  grace::JsonCursor rows(text);
  std::vector<std::int32_t> out;
  std::int64_t num_rows = 0, width = 0;
  rows.rows(out, num_rows, width);
  if (rows.ok() && static_cast<std::int64_t>(out.size()) != num_rows * width) std::abort();
  return 0;
}
