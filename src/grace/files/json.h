// A JSON value by name alone, for headers that only pass one on: reading the whole type takes seconds of
// every source that sees it. `json_file.h` has the type itself.
#pragma once

#include <nlohmann/json_fwd.hpp>

namespace grace {

// Keys keep their order, so that a file we write reads as we laid it out.
using Json = nlohmann::ordered_json;

}  // namespace grace
