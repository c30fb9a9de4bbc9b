// How the older protocols of pickles spell text.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace grace {

// As repr() writes it, without the quotes: backslashes before quotes, and \n, \t, \r, \xNN. Nothing for
// what is none.
std::optional<std::string> unescape(std::string_view text);
// Python's raw-unicode-escape, as UTF-8: latin-1 but for \uXXXX and \UXXXXXXXX.
std::string decode_raw_unicode(std::string_view line);

}  // namespace grace
