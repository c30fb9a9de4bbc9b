// A page of benchmark sections, each replaced by its own command while the others stay.
#pragma once

#include <string>
#include <string_view>

namespace grace::app {

// `page` with the text between `<!-- section NAME -->` and `<!-- end NAME -->` replaced by `body`; a page
// without them gets them at its end.
std::string with_section(std::string page, std::string_view name, std::string_view body);

// "Intel(R) Xeon(R) ..., 2 cores": what a figure was measured on.
std::string machine_name();

}  // namespace grace::app
