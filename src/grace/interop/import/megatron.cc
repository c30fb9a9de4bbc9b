// Megatron-Core's routing traces: docs/formats/megatron.md.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>

#include "grace/files/mapped_file.h"
#include "grace/interop/import/common.h"
#include "grace/interop/import/megatron_line.h"

namespace grace {
namespace {

constexpr std::size_t kSurveyBytes = 64 << 20;  // of each file, to see which layers it has
constexpr int kSurveySteps = 4;
constexpr std::size_t kBlockIds = 1 << 16;  // given to the sink at a time

// The choices of one layer in one pass over the model.
struct LayerChoices {
  std::int64_t line = 0, num_rows = 0, num_valid = 0, width = 0;
  std::vector<std::int32_t> ids;
};
// A pass: its layers, in whatever order they came.
using Micro = std::map<std::int64_t, LayerChoices>;
struct Step {
  std::int64_t step = -1;
  std::vector<Micro> micros;  // a layer's n-th line in a step is of the n-th micro-batch
};

// The lines of one rank, a step at a time.
class RankStream {
 public:
  static Result<RankStream> open(const std::filesystem::path& path) {
    MappedFile file = GRACE_TRY(MappedFile::open(path));
    return RankStream(path.string(), std::move(file));
  }
  const std::string& place() const { return place_; }

  // Fills `step`; false at the end of the file.
  Result<bool> next(Step& step, RecordingSink& sink) {
    step.micros.clear();
    std::map<std::int64_t, std::size_t> times;  // a layer came in this step
    while (held_ || GRACE_TRY(read_line(sink))) {
      held_ = false;
      if (step.micros.empty()) step.step = line_.step;
      if (line_.step != step.step) {
        held_ = true;
        return true;
      }
      const std::size_t micro = times[line_.layer]++;
      if (micro == step.micros.size()) step.micros.emplace_back();
      LayerChoices& layer = step.micros[micro][line_.layer];
      layer = {
          number_, line_.num_rows, line_.num_valid < 0 ? line_.num_rows : line_.num_valid, line_.topk, {}};
      layer.ids.swap(line_.ids);
    }
    return !step.micros.empty();
  }
  std::size_t offset() const { return at_; }
  std::int64_t take_read_bytes() { return std::exchange(read_, 0); }

 private:
  RankStream(std::string place, MappedFile file) : place_(std::move(place)), file_(std::move(file)) {}

  // The next line that is wanted into line_; false at the end.
  Result<bool> read_line(RecordingSink& sink) {
    const std::string_view text(reinterpret_cast<const char*>(file_.bytes().data()), file_.bytes().size());
    while (at_ < text.size()) {
      const std::size_t end = std::min(text.find('\n', at_), text.size());
      const std::string_view line = text.substr(at_, end - at_);
      ++number_;
      const std::size_t begin = std::exchange(at_, std::min(end + 1, text.size()));
      read_ += static_cast<std::int64_t>(at_ - begin);
      if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
      GRACE_TRY(parse_megatron_line(line, fmt::format("{}:{}", place_, number_), line_));
      // Behind the line, so that a page is not read twice.
      if (begin - released_ > kSurveyBytes) {
        file_.give_back(file_.bytes().subspan(released_, begin - released_));
        released_ = begin;
      }
      if (line_.is_dummy) continue;
      if (!line_.block.empty() && line_.block != "decoder") {
        sink.warn(fmt::format("{}: blocks of {} layers are left out: placements are of decoder layers",
                              place_, line_.block));
        continue;
      }
      if (!line_.stage.empty() && line_.stage != "pre_dispatch") {
        sink.warn(fmt::format("{}: lines of stage {} are left out", place_, line_.stage));
        continue;
      }
      return true;
    }
    return false;
  }

  std::string place_;
  MappedFile file_;
  std::size_t at_ = 0, released_ = 0;
  std::int64_t number_ = 0, read_ = 0;
  bool held_ = false;  // line_ is of the next step
  MegatronLine line_;
};

// What a rank has, by its first steps.
struct RankSurvey {
  std::vector<int> layers;
  std::int64_t width = 0;
  std::vector<std::int32_t> first_ids;  // of its first layer, to see ranks of the same tokens
  std::int64_t first_step = -1;
};
Result<RankSurvey> survey(const std::filesystem::path& path, RecordingSink& sink) {
  RankStream stream = GRACE_TRY(RankStream::open(path));
  RankSurvey found;
  std::set<int> layers;
  Step step;
  for (int i = 0; i < kSurveySteps && stream.offset() < kSurveyBytes && GRACE_TRY(stream.next(step, sink));
       ++i) {
    for (const Micro& micro : step.micros)
      for (const auto& [layer, choices] : micro) {
        layers.insert(static_cast<int>(layer));
        found.width = std::max(found.width, choices.width);
      }
    if (i > 0) continue;
    found.first_step = step.step;
    found.first_ids = step.micros[0].begin()->second.ids;
  }
  found.layers.assign(layers.begin(), layers.end());
  return found;
}

// Ranks that see one batch: stages of a pipeline, which have the layers among them.
using Pipeline = std::vector<RankStream>;

struct Grouping {
  std::vector<int> layers;  // of the model
  int width = 0;
  std::vector<std::vector<std::size_t>> pipelines;  // ranks of each
};

// The i-th rank of each stage are one pipeline.
Result<Grouping> group(std::span<const std::filesystem::path> files, std::span<const RankSurvey> ranks,
                       const ImportOptions& options, RecordingSink& sink) {
  std::map<std::vector<int>, std::vector<std::size_t>> stages;
  Grouping grouping;
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    if (ranks[r].layers.empty()) {
      sink.warn(fmt::format("{}: no line of a decoder layer", files[r].string()));
      continue;
    }
    stages[ranks[r].layers].push_back(r);
    grouping.width = std::max(grouping.width, static_cast<int>(ranks[r].width));
  }
  std::set<int> all;
  std::size_t replicas = 0;
  for (const auto& [layers, of_stage] : stages) {
    for (const int layer : layers)
      if (!all.insert(layer).second)
        return invalid_input(
            fmt::format("{}: layer {} is there, and in other ranks with other layers: files of one run?",
                        files[of_stage[0]].string(), layer));
    if (replicas != 0 && of_stage.size() != replicas)
      return invalid_input(fmt::format("{}: {} ranks have its layers, other stages have {} ranks",
                                       files[of_stage[0]].string(), of_stage.size(), replicas));
    replicas = of_stage.size();
  }
  if (replicas == 0) return invalid_input(fmt::format("{}: no line of a decoder layer", files[0].string()));
  if (stages.size() > 1)
    sink.warn(fmt::format(
        "{} pipeline stages of {} ranks each: the n-th rank of each is taken to see the same tokens",
        stages.size(), replicas));
  if (replicas % static_cast<std::size_t>(options.same_tokens) != 0)
    return invalid_input(
        fmt::format("--same-tokens: {} ranks do not divide by {}", replicas, options.same_tokens));
  const std::vector<std::size_t>& first = stages.begin()->second;
  for (std::size_t i = 0; i < replicas; i += static_cast<std::size_t>(options.same_tokens)) {
    std::vector<std::size_t>& members = grouping.pipelines.emplace_back();
    for (const auto& [layers, of_stage] : stages) members.push_back(of_stage[i]);
    for (std::size_t j = 0; j < i && options.same_tokens == 1; ++j)
      if (ranks[first[j]].first_ids == ranks[first[i]].first_ids && !ranks[first[i]].first_ids.empty())
        sink.warn(fmt::format(
            "{} and {} recorded the same tokens: they count twice unless --same-tokens says how many "
            "ranks share theirs",
            files[first[j]].string(), files[first[i]].string()));
  }
  grouping.layers.assign(all.begin(), all.end());
  if (!options.decoder_layers.empty()) grouping.layers = options.decoder_layers;
  return grouping;
}

class PipelineReader {
 public:
  PipelineReader(const Grouping& grouping, const ImportOptions& options, RecordingSink& sink)
      : grouping_(grouping), options_(options), sink_(sink) {}

  Status read(Pipeline& stages) {
    std::vector<Step> steps(stages.size());
    while (true) {
      for (std::size_t s = 0; s < stages.size(); ++s) {
        const bool more = GRACE_TRY(stages[s].next(steps[s], sink_));
        GRACE_TRY(sink_.read_bytes(stages[s].take_read_bytes()));
        if (!more && s == 0 && stages.size() == 1) return {};
        if (!more) steps[s].step = -1;
        if (steps[s].step != steps[0].step)
          return invalid_input(fmt::format("{}: step {}, but {} is at step {}", stages[s].place(),
                                           steps[s].step, stages[0].place(), steps[0].step));
      }
      if (steps[0].step < 0) return {};
      for (std::size_t s = 1; s < stages.size(); ++s) GRACE_TRY(join(steps[0], steps[s], stages[s]));
      warn_of_repeats(steps[0], stages[0].place());
      for (const Micro& micro : steps[0].micros) GRACE_TRY(add(micro, stages[0].place()));
    }
  }

 private:
  // Layers that are computed again for the backward pass are recorded again.
  void warn_of_repeats(const Step& step, const std::string& place) {
    const auto same = [](const Micro& a, const Micro& b) {
      return std::ranges::equal(a, b, [](const auto& x, const auto& y) {
        return x.first == y.first && x.second.ids == y.second.ids;
      });
    };
    for (std::size_t i = 1; i < step.micros.size(); ++i)
      if (same(step.micros[i - 1], step.micros[i]) && step.micros[i].begin()->second.num_rows > 1)
        sink_.warn(
            fmt::format("{}: two micro-batches of a step are the same, and count twice: were activations "
                        "recomputed while it was "
                        "recorded?",
                        place));
  }

  static Status join(Step& to, Step& from, const RankStream& stage) {
    if (to.micros.size() != from.micros.size())
      return invalid_input(fmt::format("{}: step {} has {} micro-batches, the first stage has {}",
                                       stage.place(), from.step, from.micros.size(), to.micros.size()));
    for (std::size_t i = 0; i < to.micros.size(); ++i) to.micros[i].merge(from.micros[i]);
    return {};
  }

  Status add(const Micro& micro, const std::string& place) {
    const LayerChoices& first = micro.begin()->second;
    const auto width = static_cast<std::size_t>(grouping_.width);
    std::vector<const LayerChoices*> layers;
    std::size_t known = 0;
    for (const int layer : grouping_.layers) {
      const auto found = micro.find(layer);
      layers.push_back(found == micro.end() ? nullptr : &found->second);
      if (found == micro.end()) {
        sink_.warn(
            fmt::format("{}: layer {} is absent in some steps (tokens dropped or padded there): not routed",
                        place, layer));
        continue;
      }
      ++known;
      const LayerChoices& here = found->second;
      if (here.num_rows != first.num_rows || here.num_valid != first.num_valid)
        return invalid_input(fmt::format("{}:{}: {} tokens in layer {}, {} in the step's other layers", place,
                                         here.line, here.num_valid, layer, first.num_valid));
      if (here.num_rows > 0 && std::cmp_greater(here.width, width))
        return invalid_input(
            fmt::format("{}:{}: topk is {}, the first steps had {}", place, here.line, here.width, width));
    }
    if (known != micro.size() && options_.decoder_layers.empty())
      return invalid_input(
          fmt::format("{}:{}: a layer that the first steps did not have: say --layers", place, first.line));
    return first.num_valid == 0 ? Status() : add_layers(layers, first.num_valid, place);
  }

  Status add_layers(std::span<const LayerChoices* const> layers, std::int64_t tokens,
                    const std::string& place) {
    std::vector<std::int64_t> lines;
    for (const LayerChoices* layer : layers) lines.push_back(layer == nullptr ? 0 : layer->line);
    const auto width = static_cast<std::size_t>(grouping_.width);
    const std::size_t per_token = layers.size() * width;
    const auto block = static_cast<std::int64_t>(std::max<std::size_t>(1, kBlockIds / per_token));
    GRACE_TRY(sink_.begin_sequence());
    for (std::int64_t begin = 0; begin < tokens; begin += block) {
      const std::int64_t end = std::min(tokens, begin + block);
      ids_.assign(static_cast<std::size_t>(end - begin) * per_token, RecordingSink::kNotRecorded);
      for (std::size_t m = 0; m < layers.size(); ++m) {
        if (layers[m] == nullptr) continue;
        const auto has = static_cast<std::size_t>(layers[m]->width);
        for (std::int64_t t = begin; t < end; ++t)
          std::copy_n(layers[m]->ids.data() + static_cast<std::size_t>(t) * has, has,
                      ids_.data() + static_cast<std::size_t>(t - begin) * per_token + m * width);
      }
      GRACE_TRY(sink_.add_tokens(ids_, options_.phase, {place, begin, lines}));
    }
    return {};
  }

  const Grouping& grouping_;
  const ImportOptions& options_;
  RecordingSink& sink_;
  std::vector<std::int32_t> ids_;
};

bool is_trace(const std::filesystem::path& path) {
  const std::string head = first_bytes(path, 4096);
  const std::size_t begin = head.find_first_not_of(" \t\r\n");
  return begin != std::string::npos && head[begin] == '{' &&
         (head.find("\"top_indices\"") != std::string::npos ||
          head.find("\"pre_dispatch\"") != std::string::npos);
}

// A folder has sidecars beside the traces.
std::vector<std::filesystem::path> traces_of(std::span<const std::filesystem::path> files) {
  std::vector<std::filesystem::path> traces;
  for (const std::filesystem::path& path : files)
    if (path.extension() == ".jsonl" || files.size() == 1) traces.push_back(path);
  return traces;
}

bool recognises(std::span<const std::filesystem::path> files) {
  const std::vector<std::filesystem::path> traces = traces_of(files);
  return !traces.empty() && std::ranges::any_of(traces, is_trace);
}

Status read(std::span<const std::filesystem::path> all, const ImportOptions& options, RecordingSink& sink) {
  const std::vector<std::filesystem::path> files = traces_of(all);
  if (files.empty()) return invalid_input(fmt::format("{}: no .jsonl file", all[0].string()));
  std::vector<RankSurvey> ranks;
  for (const std::filesystem::path& file : files) ranks.push_back(GRACE_TRY(survey(file, sink)));
  const Grouping grouping = GRACE_TRY(group(files, ranks, options, sink));
  GRACE_TRY(sink.begin_tokens(0, grouping.width, grouping.layers));
  PipelineReader reader(grouping, options, sink);
  for (const std::vector<std::size_t>& members : grouping.pipelines) {
    Pipeline stages;
    for (const std::size_t rank : members) stages.push_back(GRACE_TRY(RankStream::open(files[rank])));
    GRACE_TRY(reader.read(stages));
  }
  return {};
}

}  // namespace

Importer megatron_importer() {
  return {"megatron", "routing traces, router_trace_rank*.jsonl or their folder", recognises, read};
}

}  // namespace grace
