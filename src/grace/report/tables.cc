#include <fmt/format.h>

#include <algorithm>

#include "grace/base/check.h"
#include "grace/report/report.h"
#include "grace/report/text.h"

namespace grace::report {
namespace {

std::string padded(const std::string& cell, std::size_t width, bool left) {
  const std::size_t length = code_points(cell);
  const std::string space(width > length ? width - length : 0, ' ');
  return left ? cell + space : space + cell;
}

std::string without_trailing_spaces(std::string line) {
  line.erase(line.find_last_not_of(' ') + 1);
  return line;
}

std::string terminal_row(const std::vector<std::string>& cells, const std::vector<std::size_t>& widths) {
  std::string line;
  for (std::size_t c = 0; c < cells.size(); ++c) {
    if (c > 0) line += "  ";
    line += padded(cells[c], widths[c], c == 0);
  }
  return without_trailing_spaces(std::move(line)) + '\n';
}

// A cell of a Markdown table: one line, its bars escaped.
std::string markdown_cell(const std::string& cell) {
  std::string out;
  for (const char c : cell) {
    if (c == '|') out += '\\';
    out += c == '\n' ? ' ' : c;
  }
  return out;
}

}  // namespace

std::string terminal_table(const Table& table) {
  std::vector<std::size_t> widths;
  for (const std::string& column : table.columns) widths.push_back(code_points(column));
  for (const auto& row : table.rows) {
    GRACE_CHECK(row.size() == table.columns.size(), "a row of the table is not as long as its columns");
    for (std::size_t c = 0; c < row.size(); ++c) widths[c] = std::max(widths[c], code_points(row[c]));
  }
  std::string out = table.title.empty() ? "" : table.title + '\n';
  out += terminal_row(table.columns, widths);
  std::vector<std::string> rule;
  for (const std::size_t width : widths) {
    std::string line;
    for (std::size_t i = 0; i < width; ++i) line += "\u2500";
    rule.push_back(line);
  }
  out += terminal_row(rule, widths);
  for (const auto& row : table.rows) out += terminal_row(row, widths);
  return out;
}

std::string markdown_table(const Table& table) {
  const auto line = [](const std::vector<std::string>& cells) {
    std::string out = "|";
    for (const std::string& cell : cells) out += fmt::format(" {} |", markdown_cell(cell));
    return out + '\n';
  };
  std::string out = table.title.empty() ? "" : fmt::format("**{}**\n\n", table.title);
  out += line(table.columns);
  std::vector<std::string> rule(table.columns.size(), "---:");
  if (!rule.empty()) rule[0] = "---";
  out += line(rule);
  for (const auto& row : table.rows) {
    GRACE_CHECK(row.size() == table.columns.size(), "a row of the table is not as long as its columns");
    out += line(row);
  }
  return out;
}

}  // namespace grace::report
