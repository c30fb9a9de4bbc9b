// The table of importers, and the way from files to a result.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>

#include "grace/interop/import/common.h"
#include "grace/interop/import/session.h"

namespace grace {
namespace {

// Names as a person counts: rank2 before rank10.
bool before_by_number(const std::filesystem::path& left, const std::filesystem::path& right) {
  const std::string a = left.filename().string(), b = right.filename().string();
  std::size_t i = 0, j = 0;
  const auto digit = [](char c) { return c >= '0' && c <= '9'; };
  while (i < a.size() && j < b.size()) {
    if (digit(a[i]) && digit(b[j])) {
      std::uint64_t m = 0, n = 0;
      const auto left_end = std::from_chars(a.data() + i, a.data() + a.size(), m);
      const auto right_end = std::from_chars(b.data() + j, b.data() + b.size(), n);
      if (m != n) return m < n;
      i = static_cast<std::size_t>(left_end.ptr - a.data());
      j = static_cast<std::size_t>(right_end.ptr - b.data());
    } else {
      if (a[i] != b[j]) return a[i] < b[j];
      ++i, ++j;
    }
  }
  return a.size() - i != b.size() - j ? a.size() - i < b.size() - j : a < b;
}

// A folder's files, sorted, in place of the folder.
Result<std::vector<std::filesystem::path>> expanded(std::span<const std::filesystem::path> paths) {
  std::vector<std::filesystem::path> files;
  for (const std::filesystem::path& path : paths) {
    std::error_code error;
    if (!std::filesystem::exists(path, error))
      return io_error(fmt::format("{}: no such file or folder", path.string()));
    if (!std::filesystem::is_directory(path, error)) {
      files.push_back(path);
      continue;
    }
    std::vector<std::filesystem::path> inside;
    for (const auto& entry : std::filesystem::directory_iterator(path, error))
      if (entry.is_regular_file(error) && !entry.path().filename().string().starts_with('.'))
        inside.push_back(entry.path());
    if (error) return io_error(fmt::format("{}: {}", path.string(), error.message()));
    if (inside.empty()) return invalid_input(fmt::format("{}: a folder without files", path.string()));
    std::ranges::sort(inside, before_by_number);
    files.insert(files.end(), inside.begin(), inside.end());
  }
  if (files.empty()) return invalid_input("no file to import");
  return files;
}

std::vector<std::string_view> names_of_importers() {
  std::vector<std::string_view> names;
  for (const Importer& importer : importers()) names.push_back(importer.name);
  return names;
}

Result<const Importer*> choose(std::span<const std::filesystem::path> files, const ImportOptions& options) {
  std::vector<const Importer*> fitting;
  for (const Importer& importer : importers()) {
    if (options.format == importer.name) return &importer;
    if (options.format.empty() && importer.recognises(files)) fitting.push_back(&importer);
  }
  const std::string all = fmt::format("{}", fmt::join(names_of_importers(), ", "));
  if (!options.format.empty())
    return invalid_input(fmt::format("--from: '{}' is none of {}", options.format, all));
  if (fitting.size() == 1) return fitting[0];
  if (fitting.empty())
    return invalid_input(
        fmt::format("{}: looks like no format that is read; --from names it: {}", files[0].string(), all));
  return invalid_input(fmt::format("{}: looks like {} and like {}; --from names which it is",
                                   files[0].string(), fitting[0]->name, fitting[1]->name));
}

Status check(const ImportOptions& options) {
  if (options.same_tokens < 1)
    return invalid_input(fmt::format("--same-tokens: {} is below 1", options.same_tokens));
  if (options.num_experts < 0)
    return invalid_input(fmt::format("--num-experts: {} is below 0", options.num_experts));
  if (options.experts_per_token < 0)
    return invalid_input(fmt::format("--top-k: {} is below 0", options.experts_per_token));
  if (options.dense_layers >= 0 && !options.decoder_layers.empty())
    return invalid_input("--dense-layers: --layers says it already");
  for (std::size_t i = 1; i < options.decoder_layers.size(); ++i)
    if (options.decoder_layers[i] <= options.decoder_layers[i - 1])
      return invalid_input(fmt::format("--layers: {} after {} does not ascend", options.decoder_layers[i],
                                       options.decoder_layers[i - 1]));
  return {};
}

}  // namespace

std::span<const Importer> importers() {
  static const std::array kImporters = {
      sglang_importer(),        vllm_importer(),   tensorrt_llm_importer(), megatron_importer(),
      llama_imatrix_importer(), ascend_importer(), eplb_importer(),         csv_importer(),
      olmoe_importer(),         grace_importer()};
  return kImporters;
}

Result<ImportSummary> import_files(std::span<const std::filesystem::path> paths,
                                   const std::filesystem::path& out, const ImportOptions& options) {
  GRACE_TRY(check(options));
  const std::vector<std::filesystem::path> files = GRACE_TRY(expanded(paths));
  const Importer* importer = GRACE_TRY(choose(files, options));
  std::int64_t total = 0;
  for (const std::filesystem::path& file : files) {
    std::error_code error;
    const std::uintmax_t size = std::filesystem::file_size(file, error);
    if (!error) total += static_cast<std::int64_t>(size);
  }
  const std::string source =
      files.size() == 1 ? files[0].filename().string()
                        : fmt::format("{} and {} more", files[0].filename().string(), files.size() - 1);
  ImportSession session(out, options, source, total);
  GRACE_TRY(importer->read(files, options, session));
  ImportSummary summary = GRACE_TRY(session.finish());
  summary.format = std::string(importer->name);
  return summary;
}

}  // namespace grace
