#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>

#include "grace/runtime/generate.h"

namespace grace {
namespace {

Status check_request(const ModelConfig& config, std::span<const std::int32_t> token_ids, int context,
                     int batch_windows) {
  if (token_ids.size() < 2)
    return invalid_input("the text has " + std::to_string(token_ids.size()) +
                         " tokens, and scoring needs at least 2");
  if (context < 1 || context > config.max_positions) {
    return invalid_input("context " + std::to_string(context) + " is outside [1, " +
                         std::to_string(config.max_positions) + "]");
  }
  if (batch_windows < 1)
    return invalid_input("batch of " + std::to_string(batch_windows) + " windows is below 1");
  for (std::size_t i = 0; i < token_ids.size(); ++i) {
    if (token_ids[i] >= 0 && token_ids[i] < config.vocab_size) continue;
    return invalid_input("token " + std::to_string(i) + ": id " + std::to_string(token_ids[i]) +
                         " is outside [0, " + std::to_string(config.vocab_size) + ")");
  }
  return {};
}

// -log softmax(logits)[target].
double surprise(std::span<const float> logits, std::int32_t target) {
  const double largest = static_cast<double>(*std::ranges::max_element(logits));
  double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit) - largest);
  return largest + std::log(sum) - static_cast<double>(logits[static_cast<std::size_t>(target)]);
}

// The text cut into windows, dealt to ranks in turn.
struct Windows {
  std::span<const std::int32_t> token_ids;
  std::size_t context;

  std::size_t inputs() const { return token_ids.size() - 1; }
  std::size_t count() const { return (inputs() + context - 1) / context; }
  std::size_t begin(std::size_t window) const { return window * context; }
  std::size_t end(std::size_t window) const { return std::min(inputs(), (window + 1) * context); }
};

// One step over windows [first, last) of this rank's; slot i holds its i-th window. Appends a surprise for
// each token.
Status score_windows(Engine& engine, const Windows& windows, std::span<const std::size_t> mine,
                     std::size_t first, std::size_t last, std::vector<double>& surprises) {
  StepInput input;
  for (std::size_t i = first; i < last; ++i) {
    const auto ids =
        windows.token_ids.subspan(windows.begin(mine[i]), windows.end(mine[i]) - windows.begin(mine[i]));
    input.sequences.push_back(static_cast<int>(i));
    input.num_new.push_back(static_cast<int>(ids.size()));
    input.token_ids.insert(input.token_ids.end(), ids.begin(), ids.end());
  }
  std::vector<float> logits;
  Status status = engine.step(input, true, logits);
  if (!status.ok()) return status;
  const auto vocab = static_cast<std::size_t>(engine.config().vocab_size);
  std::size_t row = 0;
  for (std::size_t i = first; i < last; ++i) {
    for (std::size_t t = windows.begin(mine[i]); t < windows.end(mine[i]); ++t, ++row) {
      surprises.push_back(
          surprise(std::span<const float>(logits).subspan(row * vocab, vocab), windows.token_ids[t + 1]));
    }
    engine.release(static_cast<int>(i));
  }
  return {};
}

// Collective. The surprises of all ranks, added in the order of the text.
Result<double> sum_in_order(Transport& transport, const Windows& windows, std::span<const double> mine) {
  const auto all = GRACE_TRY(transport.all_gather(std::as_bytes(mine)));
  std::vector<std::size_t> next(all.size(), 0);
  double sum = 0;
  for (std::size_t window = 0; window < windows.count(); ++window) {
    const std::size_t rank = window % all.size();
    for (std::size_t t = windows.begin(window); t < windows.end(window); ++t) {
      if (all[rank].size() - next[rank] < sizeof(double))
        return peer_lost("rank " + std::to_string(rank) + " sends no score for token " +
                         std::to_string(t + 1));
      double value = 0;
      std::memcpy(&value, all[rank].data() + next[rank], sizeof value);
      next[rank] += sizeof value;
      sum += value;
    }
  }
  return sum;
}

}  // namespace

Result<ScoreResult> score(Engine& engine, Transport& transport, std::span<const std::int32_t> token_ids,
                          int context, int batch_windows,
                          const std::function<void(std::int64_t, std::int64_t)>& progress) {
  Status valid = check_request(engine.config(), token_ids, context, batch_windows);
  if (!valid.ok()) return std::move(valid).error();
  const Windows windows{token_ids, static_cast<std::size_t>(context)};
  const auto ranks = static_cast<std::size_t>(transport.size());
  const auto batch = static_cast<std::size_t>(batch_windows);
  std::vector<std::size_t> mine;
  for (auto window = static_cast<std::size_t>(transport.rank()); window < windows.count(); window += ranks)
    mine.push_back(window);
  engine.reset(static_cast<int>(mine.size()));
  std::vector<double> surprises;
  // Rank 0 has as many windows as any, so that its steps are everyone's.
  const std::size_t most = (windows.count() + ranks - 1) / ranks;
  for (std::size_t first = 0; first < most; first += batch) {
    Status status = score_windows(engine, windows, mine, std::min(first, mine.size()),
                                  std::min(first + batch, mine.size()), surprises);
    if (!status.ok()) return std::move(status).error();
    if (progress && transport.rank() == 0) {
      progress(static_cast<std::int64_t>(std::min((first + batch) * ranks, windows.count())),
               static_cast<std::int64_t>(windows.count()));
    }
  }
  const double sum = GRACE_TRY(sum_in_order(transport, windows, surprises));
  ScoreResult result;
  result.tokens = static_cast<std::int64_t>(windows.inputs());
  result.perplexity = std::exp(sum / static_cast<double>(result.tokens));
  return result;
}

}  // namespace grace
