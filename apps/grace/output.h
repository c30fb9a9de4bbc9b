// What a command hands out: tables with notes on a terminal, as a section of a page, as JSON and as HTML.
#pragma once

#include <string>
#include <vector>

#include "context.h"
#include "grace/base/result.h"
#include "grace/files/json_file.h"
#include "grace/report/report.h"

namespace CLI {
class App;
}

namespace grace::app {

struct OutputFlags {
  std::string html, section, write;
  bool json = false;
};
// --html, --section, --write, --json.
void add_output_flags(CLI::App& command, OutputFlags& flags);
// Errors: invalid_input for a section without a page, or the other way round.
Status check_output_flags(const OutputFlags& flags, const std::string& command);

// A table and what is to be said right under it.
struct Block {
  report::Table table;
  std::vector<std::string> notes;
};
struct Output {
  std::vector<Block> blocks;
  std::vector<std::string> notes;  // of the whole: how it was measured, what follows
  // Title, summary and pictures. The blocks come first, in a section of their own, unless the page has them.
  report::Page page;
  bool page_has_blocks = false;
  Json json;
};
// Errors: io.
Status emit(const OutputFlags& flags, const Context& context, Output output);

}  // namespace grace::app
