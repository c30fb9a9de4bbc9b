// One line of Megatron's routing trace.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "grace/base/result.h"

namespace grace {

struct MegatronLine {
  std::int64_t step = -1, layer = -1, rank = -1, num_tokens = -1, topk = -1;
  std::int64_t num_valid = -1;  // tokens that are no padding; -1: all
  bool is_dummy = false;        // a warm-up step
  std::string_view stage, block;
  std::int64_t num_rows = 0, width = 0;
  std::vector<std::int32_t> ids;  // [num_rows, width]
};

// Reads one line into `line`, whose memory is used again. place: file and line. Errors: invalid_input for
// what is no such line: no JSON, a key absent or twice, ragged rows, numbers of rows or choices other than it
// says.
Status parse_megatron_line(std::string_view text, std::string_view place, MegatronLine& line);

}  // namespace grace
