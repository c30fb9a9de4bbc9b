// grace synthesize: options in, a trace with a planted answer out.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <memory>
#include <optional>

#include "context.h"
#include "grace/files/json_file.h"
#include "grace/model/shape.h"
#include "grace/trace/synthetic.h"
#include "progress.h"

namespace grace::app {
namespace {

struct Flags {
  SyntheticOptions options;
  std::string out, shape = "16x64", phase = "prefill", truth;
  std::optional<std::string> model;
  std::optional<int> top_k, dense_layers;
  int threads = 0;
  bool json = false;
};

// "58x256" -> 58 MoE layers of 256 experts.
Status parse_layers_and_experts(const std::string& shape, SyntheticOptions& options) {
  const char* const end = shape.data() + shape.size();
  const auto layers = std::from_chars(shape.data(), end, options.moe_layers);
  const bool has_cross = layers.ec == std::errc() && layers.ptr != end && *layers.ptr == 'x';
  const auto experts =
      has_cross ? std::from_chars(layers.ptr + 1, end, options.num_experts) : std::from_chars_result{};
  if (has_cross && experts.ec == std::errc() && experts.ptr == end) return {};
  return invalid_input(fmt::format("--shape: '{}' is not LAYERSxEXPERTS, such as 58x256", shape));
}

// "58x256" with defaults for the rest, or a model whose sizes are known; what a flag says goes before both.
// decoder_layers: of the model's MoE layers; empty where there is no model.
Status take_shape(const Flags& flags, SyntheticOptions& options, std::vector<int>& decoder_layers) {
  const bool is_plain = flags.shape.empty() || (flags.shape[0] >= '0' && flags.shape[0] <= '9');
  if (is_plain) {
    GRACE_TRY(parse_layers_and_experts(flags.shape, options));
  } else {
    const ModelShape shape = GRACE_TRY(find_shape(flags.shape));
    options.moe_layers = static_cast<int>(shape.moe_layers.size());
    options.num_experts = shape.num_experts;
    options.experts_per_token = shape.experts_per_token;
    options.model = shape.name;
    if (!flags.dense_layers.has_value()) decoder_layers = shape.moe_layers;
  }
  options.experts_per_token = flags.top_k.value_or(options.experts_per_token);
  options.dense_layers = flags.dense_layers.value_or(options.dense_layers);
  options.model = flags.model.value_or(options.model);
  return {};
}

Result<Phase> parse_phase(const std::string& name) {
  if (name == "prefill") return Phase::kPrefill;
  if (name == "decode") return Phase::kDecode;
  if (name == "mixed") return Phase::kMixed;
  return invalid_input(fmt::format("--phase: '{}' is not prefill, decode or mixed", name));
}

Json truth_of(const SyntheticOptions& options) {
  Json clusters = Json::array();
  for (int layer = 0; layer < options.moe_layers; ++layer)
    clusters.push_back(planted_cluster_of_expert(options, MoeOrdinal(layer)));
  return {{"cluster_of_expert", clusters}, {"topic_of_sequence", planted_topic_of_sequence(options)}};
}

Result<int> synthesize(const Flags& flags) {
  SyntheticOptions options = flags.options;
  std::vector<int> decoder_layers;
  GRACE_TRY(take_shape(flags, options, decoder_layers));
  options.phase = GRACE_TRY(parse_phase(flags.phase));
  ThreadPool pool(GRACE_TRY(threads_for(flags.threads)));
  Progress progress("synthesize");
  Trace trace = GRACE_TRY(
      synthetic_trace(options, pool, [&](std::int64_t done, std::int64_t total) { progress(done, total); }));
  if (!decoder_layers.empty()) trace.decoder_layers = decoder_layers;
  GRACE_TRY(write_trace(flags.out, trace));
  if (!flags.truth.empty()) GRACE_TRY(write_json(flags.truth, truth_of(options)));
  if (flags.json) {
    print_json({{"trace", flags.out},
                {"layers", options.moe_layers},
                {"experts", options.num_experts},
                {"experts_per_token", options.experts_per_token},
                {"tokens", trace.num_tokens()},
                {"sequences", trace.num_sequences()},
                {"phase", flags.phase},
                {"source", trace.source}});
    return 0;
  }
  print(fmt::format("{}: {} tokens in {} sequences, {} layers of {} experts, {} a token; {}\n", flags.out,
                    trace.num_tokens(), trace.num_sequences(), options.moe_layers, options.num_experts,
                    options.experts_per_token, trace.source));
  return 0;
}

void add_options(CLI::App& command, Flags& flags) {
  SyntheticOptions& options = flags.options;
  command.add_option("--out", flags.out, "the trace file")->required();
  command.add_option("--shape", flags.shape,
                     "MoE layers and experts of each (default 16x64), or a model's name or config.json");
  command.add_option("--dense-layers", flags.dense_layers,
                     "decoder layers before the first MoE layer (default 0, or the model's)");
  command.add_option("--top-k", flags.top_k,
                     "experts a token chooses in a layer (default 8, or the model's)");
  command.add_option("--tokens", options.tokens, "tokens in all (default 100000)");
  command.add_option("--sequence-length", options.sequence_length, "tokens of a sequence (default 512)");
  command.add_option("--clusters", options.clusters,
                     "groups of experts, in each layer, that fire together (default 8)");
  command.add_option("--strength", options.strength,
                     "how much they do: the probability, in [0, 1], that a further expert is of the first "
                     "one's cluster (default 0.5)");
  command.add_option("--zipf", options.zipf,
                     "exponent of the experts' loads, in [0, 4]; 0 is uniform (default 0.5)");
  command.add_option("--topics", options.topics,
                     "topics, one drawn by each sequence, that prefer some clusters (default 4)");
  command.add_option("--topic-strength", options.topic_strength, "how much they do, in [0, 1] (default 0.5)");
  command.add_option("--mixing", options.mixing,
                     "largest share of a sequence that is about a second topic, in [0, 1] (default 0.25)");
  command.add_option("--drift", options.drift,
                     "how far the topics' popularity has turned round by the end, in [0, 1] (default 0)");
  command.add_option("--phase", flags.phase, "prefill (default), decode or mixed");
  command.add_option("--prompt-length", options.prompt_length,
                     "longest prompt of phase mixed, in tokens (default 256)");
  command.add_option("--seed", options.seed, "seed of everything random (default 0)");
  command.add_option("--model", flags.model,
                     "the model that the trace names (default synthetic, or the shape's)");
  command.add_option("--truth", flags.truth, "write what was planted as JSON");
  command.add_option("--threads", flags.threads,
                     "threads (default: all cores); the trace is the same for any number");
  command.add_flag("--json", flags.json, "one JSON value");
}

}  // namespace

void add_synthesize(CLI::App& app, Context& context) {
  auto flags = std::make_shared<Flags>();
  CLI::App* command = app.add_subcommand(
      "synthesize", "Makes up a trace from a seed, with clusters, topics and drift planted in it.");
  add_options(*command, *flags);
  command->footer(
      "Example:\n  grace synthesize --out out/big.trace --shape 58x256 --top-k 8 --tokens 100000 --zipf 0.8 "
      "--drift 0.5");
  command->callback([flags, &context] { context.action = [flags] { return synthesize(*flags); }; });
}

}  // namespace grace::app
