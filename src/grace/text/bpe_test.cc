#include "grace/text/bpe.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <random>

#include "grace/files/json_file.h"
#include "grace/text/byte_level.h"

namespace grace {
namespace {

// A vocabulary over `letters` and merges as training makes them: each merge joins two tokens that exist
// already into a new one.
Json random_model(std::mt19937_64& rng, const std::string& letters, std::size_t num_merges) {
  Json model{{"type", "BPE"}, {"vocab", Json::object()}, {"merges", Json::array()}};
  std::vector<std::string> tokens;
  const auto add = [&](const std::string& token) {
    model["vocab"][token] = tokens.size();
    tokens.push_back(token);
  };
  for (const char letter : letters) add(std::string(1, letter));
  while (model["merges"].size() < num_merges) {
    const std::string left = tokens[rng() % tokens.size()];
    const std::string right = tokens[rng() % tokens.size()];
    if (model["vocab"].contains(left + right) || left.size() + right.size() > 12) continue;
    add(left + right);
    model["merges"].push_back({left, right});
  }
  return model;
}

// The slow twin: again and again the merge of lowest rank, and of its places the leftmost.
std::vector<std::int32_t> encode_by_scanning(const Json& model, const std::string& word) {
  std::map<std::pair<std::string, std::string>, std::size_t> rank_of;
  for (std::size_t i = 0; i < model["merges"].size(); ++i) rank_of[model["merges"][i]] = i;
  std::vector<std::string> symbols;
  for (const char letter : word) symbols.emplace_back(1, letter);
  while (true) {
    std::size_t best_rank = SIZE_MAX;
    std::size_t best = 0;
    for (std::size_t i = 0; i + 1 < symbols.size(); ++i) {
      const auto found = rank_of.find({symbols[i], symbols[i + 1]});
      if (found == rank_of.end() || found->second >= best_rank) continue;
      best_rank = found->second;
      best = i;
    }
    if (best_rank == SIZE_MAX) break;
    symbols[best] += symbols[best + 1];
    symbols.erase(symbols.begin() + static_cast<std::ptrdiff_t>(best) + 1);
  }
  std::vector<std::int32_t> ids;
  for (const std::string& symbol : symbols) ids.push_back(model["vocab"][symbol]);
  return ids;
}

class ABpe : public testing::TestWithParam<std::uint64_t> {};

TEST_P(ABpe, MergesAsItsSlowTwin) {
  SCOPED_TRACE("seed " + std::to_string(GetParam()));
  std::mt19937_64 rng(GetParam());
  const std::string letters = std::string("abcdef").substr(0, 2 + rng() % 5);
  const Json model = random_model(rng, letters, 1 + rng() % 40);
  const Bpe bpe = Bpe::parse(model, "model").value();
  Bpe::Scratch scratch;
  for (int round = 0; round < 40; ++round) {
    std::string word;
    for (std::size_t i = rng() % 60; i > 0; --i) word += letters[rng() % letters.size()];
    std::vector<std::int32_t> ids;
    bpe.encode(word, scratch, ids);
    ASSERT_EQ(ids, encode_by_scanning(model, word)) << word;
  }
}

// Words of any length and again and again, so that each way to encode one is met.
TEST_P(ABpe, EncodesBytesAsTheirSpelling) {
  SCOPED_TRACE("seed " + std::to_string(GetParam()));
  std::mt19937_64 rng(GetParam());
  const std::string letters = "abcd";
  Json model = random_model(rng, letters, 1 + rng() % 60);
  model["ignore_merges"] = rng() % 4 == 0;
  if (rng() % 2 == 0) model["vocab"]["\u0120"] = model["vocab"].size();  // the space
  const Bpe bpe = Bpe::parse(model, "model").value();
  Bpe::Scratch cached;
  cached.cache.start(1 << 16);
  Bpe::Scratch plain;
  std::vector<std::string> words;
  for (int i = 0; i < 30; ++i) {
    std::string word;
    for (std::size_t n = 1 + rng() % (i % 3 == 0 ? 120 : 12); n > 0; --n)
      word += rng() % 30 == 0 ? " \xC3"[rng() % 2] : letters[rng() % letters.size()];
    words.push_back(word);
  }
  for (int round = 0; round < 100; ++round) {
    const std::string& word = words[rng() % words.size()];
    std::string spelled;
    append_byte_level(spelled, word);
    std::vector<std::int32_t> expected;
    bpe.encode(spelled, plain, expected);
    for (Bpe::Scratch* scratch : {&cached, &plain}) {
      std::vector<std::int32_t> ids;
      bpe.encode_bytes(word, *scratch, ids);
      ASSERT_EQ(ids, expected) << spelled;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, ABpe, testing::Range<std::uint64_t>(0, 100));

TEST(ABpe, TakesAWholeWordWhereItIgnoresMerges) {
  Json model =
      Json::parse(R"({"vocab":{"a":0,"b":1,"ab":2,"aba":3},"merges":[["a","b"]],"ignore_merges":true})");
  Bpe::Scratch scratch;
  std::vector<std::int32_t> ids;
  Bpe::parse(model, "model").value().encode("aba", scratch, ids);
  EXPECT_EQ(ids, (std::vector<std::int32_t>{3}));
  model["ignore_merges"] = false;
  ids.clear();
  Bpe::parse(model, "model").value().encode("aba", scratch, ids);
  EXPECT_EQ(ids, (std::vector<std::int32_t>{2, 0}));
}

TEST(ABpe, LeavesOutWhatNoTokenStandsFor) {
  const Bpe bpe = Bpe::parse(Json::parse(R"({"vocab":{"a":0},"merges":[]})"), "model").value();
  Bpe::Scratch scratch;
  std::vector<std::int32_t> ids;
  bpe.encode("xa\u3042yaz", scratch, ids);
  EXPECT_EQ(ids, (std::vector<std::int32_t>{0, 0}));
}

}  // namespace
}  // namespace grace
