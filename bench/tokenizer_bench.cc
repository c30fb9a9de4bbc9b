// What encoding costs on one core. Each result is proved against the reference's before it is timed:
//   tokenizer_bench REAL.json NAME TOKENIZER.json TEXT...
// REAL.json is tests/fixtures/tokenizer/real.json, NAME one of its entries, a TEXT one of that entry's files.
#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include "grace/files/json_file.h"
#include "grace/files/mapped_file.h"
#include "grace/text/tokenizer.h"

namespace grace {
namespace {

std::uint64_t fnv1a(const std::vector<std::int32_t>& ids) {
  std::uint64_t hash = 14695981039346656037u;
  for (const std::int32_t id : ids)
    for (int shift = 0; shift < 32; shift += 8)
      hash = (hash ^ (static_cast<std::uint32_t>(id) >> shift & 0xFF)) * 1099511628211u;
  return hash;
}

void encode(benchmark::State& state, const Tokenizer& tokenizer, const std::string& text,
            const Json& expected) {
  const std::vector<std::int32_t> ids = tokenizer.encode(text).value();
  if (ids.size() != expected.at("count") || fmt::format("{:016x}", fnv1a(ids)) != expected.at("fnv1a"))
    return state.SkipWithError("the ids differ from the reference's");
  for (auto _ : state) benchmark::DoNotOptimize(tokenizer.encode(text).value().data());
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(text.size()));
  state.SetItemsProcessed(state.iterations() * static_cast<std::int64_t>(ids.size()));
}

int run(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (argc < 5) {
    std::fputs("usage: tokenizer_bench REAL.json NAME TOKENIZER.json TEXT...\n", stderr);
    return 2;
  }
  const Json real = read_json(argv[1]).value();
  const Tokenizer tokenizer = Tokenizer::load(argv[3]).value();
  for (const Json& entry : real) {
    if (entry.at("name") != argv[2]) continue;
    for (int i = 4; i < argc; ++i) {
      const std::string file = std::filesystem::path(argv[i]).filename().string();
      benchmark::RegisterBenchmark(
          (std::string(argv[2]) + "/" + file).c_str(),
          [&tokenizer, text = read_text(argv[i]).value(), expected = entry.at("files").at(file)](
              benchmark::State& state) { encode(state, tokenizer, text, expected); });
    }
  }
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}

}  // namespace
}  // namespace grace

int main(int argc, char** argv) { return grace::run(argc, argv); }
