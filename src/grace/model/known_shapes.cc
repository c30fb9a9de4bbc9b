// The shapes built in, as their published config.json gives them, and how a name finds one.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cctype>
#include <filesystem>

#include "grace/files/mapped_file.h"
#include "grace/model/shape.h"

namespace grace {
namespace {

std::vector<int> layers_from(int first, int num_layers, int step = 1) {
  std::vector<int> layers;
  for (int layer = first; layer < num_layers; layer += step) layers.push_back(layer);
  return layers;
}

ModelShape grouped(ModelShape shape) {
  shape.value_head_dim = shape.head_dim;
  if (shape.moe_layers.empty()) shape.moe_layers = layers_from(0, shape.num_layers);
  return shape;
}

ModelShape latent(ModelShape shape, int first_moe_layer) {
  shape.attention = AttentionKind::kLatent;
  shape.num_kv_heads = shape.num_heads;
  shape.head_dim = 128 + 64;
  shape.value_head_dim = 128;
  shape.kv_rank = 512;
  shape.rotary_dim = 64;
  shape.moe_layers = layers_from(first_moe_layer, shape.num_layers);
  return shape;
}

ModelShape demo() {
  return grouped({.hidden = 128,
                  .num_layers = 6,
                  .vocab = 4096,
                  .tied_head = true,
                  .num_heads = 4,
                  .num_kv_heads = 4,
                  .head_dim = 32,
                  .num_experts = 64,
                  .experts_per_token = 8,
                  .expert_ffn = 64});
}

ModelShape olmoe() {
  return grouped({.hidden = 2048,
                  .num_layers = 16,
                  .vocab = 50304,
                  .num_heads = 16,
                  .num_kv_heads = 16,
                  .head_dim = 128,
                  .num_experts = 64,
                  .experts_per_token = 8,
                  .expert_ffn = 1024});
}

ModelShape deepseek_v2_lite() {
  return latent({.hidden = 2048,
                 .num_layers = 27,
                 .vocab = 102400,
                 .num_heads = 16,
                 .num_experts = 64,
                 .experts_per_token = 6,
                 .expert_ffn = 1408,
                 .shared_expert_ffn = 2816,
                 .dense_ffn = 10944},
                1);
}

ModelShape deepseek_v3() {
  return latent({.hidden = 7168,
                 .num_layers = 61,
                 .vocab = 129280,
                 .num_heads = 128,
                 .query_rank = 1536,
                 .num_experts = 256,
                 .experts_per_token = 8,
                 .expert_ffn = 2048,
                 .shared_expert_ffn = 2048,
                 .dense_ffn = 18432},
                3);
}

ModelShape qwen3_30b_a3b() {
  return grouped({.hidden = 2048,
                  .num_layers = 48,
                  .vocab = 151936,
                  .num_heads = 32,
                  .num_kv_heads = 4,
                  .head_dim = 128,
                  .num_experts = 128,
                  .experts_per_token = 8,
                  .expert_ffn = 768});
}

ModelShape mixtral_8x7b() {
  return grouped({.hidden = 4096,
                  .num_layers = 32,
                  .vocab = 32000,
                  .num_heads = 32,
                  .num_kv_heads = 8,
                  .head_dim = 128,
                  .num_experts = 8,
                  .experts_per_token = 2,
                  .expert_ffn = 14336});
}

ModelShape gpt_oss_20b() {
  ModelShape shape = grouped({.hidden = 2880,
                              .num_layers = 24,
                              .vocab = 201088,
                              .num_heads = 64,
                              .num_kv_heads = 8,
                              .head_dim = 64,
                              .num_experts = 32,
                              .experts_per_token = 4,
                              .expert_ffn = 2880});
  shape.window = 128;
  shape.windowed_layers = layers_from(0, shape.num_layers, 2);
  return shape;
}

struct Known {
  std::string_view name;
  ModelShape (*make)();
  std::string_view also = {};  // another model of the same sizes
  bool whole_name = false;     // a suffix makes it another model
};
constexpr Known kKnown[] = {{"olmoe", olmoe},
                            {"deepseek-v2-lite", deepseek_v2_lite, "deepseek-coder-v2-lite"},
                            {"qwen3-30b-a3b", qwen3_30b_a3b, "qwen3-coder-30b-a3b"},
                            {"deepseek-v3", deepseek_v3},
                            {"gpt-oss-20b", gpt_oss_20b},
                            {"mixtral-8x7b", mixtral_8x7b},
                            {"demo", demo, {}, true}};

// Lower case, letters and digits only, without the owner before a slash.
std::string plain(std::string_view name) {
  const std::size_t slash = name.find_last_of('/');
  std::string out;
  for (const char c : slash == std::string_view::npos ? name : name.substr(slash + 1))
    if (std::isalnum(static_cast<unsigned char>(c)) != 0)
      out += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return out;
}

// A folder's own name, else the file's.
std::string name_of(const std::filesystem::path& config) {
  std::error_code error;
  const std::filesystem::path whole = std::filesystem::canonical(config, error);
  if (error) return config.string();
  return whole.filename() == "config.json" ? whole.parent_path().filename().string() : whole.stem().string();
}

}  // namespace

std::vector<std::string_view> known_shapes() {
  std::vector<std::string_view> names;
  for (const Known& known : kKnown) names.push_back(known.name);
  return names;
}

std::optional<ModelShape> known_shape(std::string_view name) {
  const std::string asked = plain(name);
  for (const Known& known : kKnown) {
    const std::string key = plain(known.name);
    const bool is_other = !known.also.empty() && asked.starts_with(plain(known.also));
    if (!is_other && (known.whole_name ? asked != key : !asked.starts_with(key))) continue;
    ModelShape shape = known.make();
    shape.name = known.name;
    return shape;
  }
  return std::nullopt;
}

Result<ModelShape> find_shape(std::string_view name_or_path) {
  const std::filesystem::path path(name_or_path);
  std::error_code error;
  // A path that is there is what was meant, but for the bare names of the list.
  const bool bare = name_or_path.find('/') == std::string_view::npos;
  std::optional<ModelShape> known = known_shape(name_or_path);
  if (known && (bare || !std::filesystem::exists(path, error))) return *std::move(known);
  if (name_or_path.empty() || !std::filesystem::exists(path, error))
    return invalid_input(fmt::format("shape \"{}\" is none of {}, and no config.json or folder with one",
                                     name_or_path, fmt::join(known_shapes(), ", ")));
  const std::filesystem::path config =
      std::filesystem::is_directory(path, error) ? path / "config.json" : path;
  const std::string text = GRACE_TRY(read_text(config));
  ModelShape shape = GRACE_TRY(parse_shape(text, config.string()));
  shape.name = name_of(config);
  return shape;
}

}  // namespace grace
