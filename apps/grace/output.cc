#include "output.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <filesystem>

#include "bench_page.h"
#include "grace/files/mapped_file.h"

namespace grace::app {
namespace {

std::string command_line(const Context& context) {
  std::string line = "./run grace";
  for (int i = 1; i < context.argc; ++i) line += fmt::format(" {}", context.argv[i]);
  return line;
}

Status write_section(const OutputFlags& flags, const Context& context, const Output& output) {
  std::string page;
  if (std::filesystem::exists(flags.write)) page = GRACE_TRY(read_text(flags.write));
  std::string body = fmt::format("## {}\n\n```\n{}\n```\n\n", flags.section, command_line(context));
  for (const std::string& note : output.notes) body += note + "\n\n";
  body += fmt::format("Machine: {}.\n\n", machine_name());
  for (const Block& block : output.blocks) {
    body += report::markdown_table(block.table) + "\n";
    for (const std::string& note : block.notes) body += note + "\n\n";
  }
  return write_text_atomically(flags.write, with_section(std::move(page), flags.section, body));
}

Status write_page(const std::string& path, Output& output) {
  if (!output.page_has_blocks) {
    report::Section section{"Figures", "", {}};
    for (const Block& block : output.blocks) {
      report::Table table = block.table;
      for (const std::string& note : block.notes) table.note += (table.note.empty() ? "" : " ") + note;
      section.pictures.emplace_back(std::move(table));
    }
    output.page.sections.insert(output.page.sections.begin(), std::move(section));
  }
  return write_text_atomically(path, report::html(output.page));
}

}  // namespace

void add_output_flags(CLI::App& command, OutputFlags& flags) {
  command.add_option("--html", flags.html, "also one self-contained page");
  command.add_option("--section", flags.section, "write the tables as this section of --write");
  command.add_option("--write", flags.write, "a page of sections");
  command.add_flag("--json", flags.json, "one JSON value");
}

Status check_output_flags(const OutputFlags& flags, const std::string& command) {
  if (flags.section.empty() == flags.write.empty()) return {};
  return invalid_input(command + ": --section NAME and --write FILE go together");
}

Status emit(const OutputFlags& flags, const Context& context, Output output) {
  if (!flags.write.empty()) GRACE_TRY(write_section(flags, context, output));
  if (!flags.html.empty()) GRACE_TRY(write_page(flags.html, output));
  if (flags.json) {
    print_json(output.json);
    return {};
  }
  for (const Block& block : output.blocks) {
    print(report::terminal_table(block.table));
    for (const std::string& note : block.notes) print("  " + note + "\n");
    print("\n");
  }
  for (const std::string& note : output.notes) print(note + "\n");
  return {};
}

}  // namespace grace::app
