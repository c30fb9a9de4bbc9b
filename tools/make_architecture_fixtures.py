"""Builds the small random checkpoints of tests/fixtures/architectures, with what transformers computes from them.

    python tools/make_architecture_fixtures.py [--out tests/fixtures/architectures] [NAME ...]

Each folder is a model as people have it. Its expected.safetensors holds, for prompts 0, 1, ...:
  token_ids_I   i32 [T]
  logits_I      f32 [T, V]  in f32, alone; a padded batch and one token at a time give the same
  greedy_I      i32 [64]    what follows, the best token each time
and for the last of them, with weights and arithmetic in bf16:
  bf16_experts  i32 [T, M, K]  which experts each token chose in each MoE layer
  bf16_logits   bf16 [T, V]
  forced_logits f32 [T, V]  in f32, with the experts of bf16_experts
Weights are bf16 numbers and stored as such. Seeds are tried in order until no token is near a tie, in the routers or in the
greedy choice, so that rounding cannot turn one.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import pathlib
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    DeepseekV2Config,
    DeepseekV3Config,
    MixtralConfig,
    OlmoeConfig,
    PreTrainedConfig,
    Qwen2MoeConfig,
    Qwen3MoeConfig,
)
from transformers.models.deepseek_v2.modeling_deepseek_v2 import DeepseekV2MLP

ROUTER_MARGIN = 1e-5
GREEDY_MARGIN = 1e-3
GREEDY_TOKENS = 64
LENGTHS = (19, 6, 33)
MAX_SEEDS = 400
SIZES = dict(vocab_size=96, num_hidden_layers=3, pad_token_id=None, bos_token_id=None, eos_token_id=None)


@dataclass(frozen=True)
class Fixture:
    name: str
    config: Callable[[], PreTrainedConfig]
    fused: bool = False  # experts stacked, and config.json as transformers 5 writes it; else both as published
    long: int = 0  # length of one more prompt
    mtp: bool = False  # one more layer behind the last, which is to be skipped
    # What the models' own code obeys and transformers does not: more keys of config.json, and the model made to obey them.
    more: dict[str, Any] = field(default_factory=dict)
    obey: Callable[[Any], None] | None = None


def qwen3(**changes: Any) -> PreTrainedConfig:
    return Qwen3MoeConfig(**SIZES | dict(
        hidden_size=48, intermediate_size=40, moe_intermediate_size=20, num_attention_heads=4, num_key_value_heads=2, head_dim=16, num_experts=8,
        num_experts_per_tok=3, norm_topk_prob=True, max_position_embeddings=256, rope_parameters={"rope_type": "default", "rope_theta": 1e6}) | changes)


def qwen2(**changes: Any) -> PreTrainedConfig:
    return Qwen2MoeConfig(**SIZES | dict(
        hidden_size=48, intermediate_size=44, moe_intermediate_size=18, shared_expert_intermediate_size=28, num_attention_heads=4, num_key_value_heads=2,
        num_experts=8, num_experts_per_tok=3, norm_topk_prob=False, mlp_only_layers=[1], max_position_embeddings=256,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6}) | changes)


def mixtral(**changes: Any) -> PreTrainedConfig:
    return MixtralConfig(**SIZES | dict(
        hidden_size=40, intermediate_size=28, num_attention_heads=4, num_key_value_heads=2, head_dim=None, num_local_experts=6, num_experts_per_tok=2,
        max_position_embeddings=256, rope_parameters={"rope_type": "default", "rope_theta": 1e6}) | changes)


def olmoe(**changes: Any) -> PreTrainedConfig:
    return OlmoeConfig(**SIZES | dict(
        hidden_size=48, intermediate_size=20, num_attention_heads=4, num_key_value_heads=4, num_experts=8, num_experts_per_tok=3, norm_topk_prob=False,
        clip_qkv=1.5, max_position_embeddings=256, rope_parameters={"rope_type": "default", "rope_theta": 1e4}) | changes)


LATENT = dict(
    hidden_size=48, intermediate_size=44, moe_intermediate_size=20, num_attention_heads=4, num_key_value_heads=4, n_routed_experts=8, num_experts_per_tok=3,
    kv_lora_rank=16, qk_nope_head_dim=12, qk_rope_head_dim=8, v_head_dim=10, first_k_dense_replace=1)


def yarn(**changes: Any) -> dict[str, Any]:
    return dict(rope_type="yarn", type="yarn", rope_theta=1e4, factor=8.0, beta_fast=32, beta_slow=1, mscale=0.7, mscale_all_dim=1.0,
                original_max_position_embeddings=24) | changes


def deepseek_v2(**changes: Any) -> PreTrainedConfig:
    return DeepseekV2Config(**SIZES | LATENT | dict(
        q_lora_rank=None, n_shared_experts=2, routed_scaling_factor=1.0, topk_method="greedy", n_group=1, topk_group=1, norm_topk_prob=False,
        max_position_embeddings=192, rope_parameters=yarn()) | changes)


def deepseek_v3(**changes: Any) -> PreTrainedConfig:
    return DeepseekV3Config(**SIZES | LATENT | dict(
        q_lora_rank=20, n_shared_experts=1, routed_scaling_factor=2.5, n_group=4, topk_group=2, norm_topk_prob=True, max_position_embeddings=192,
        num_mtp_layers=1, rope_parameters=yarn(mscale=1.0, mscale_all_dim=1.0, original_max_position_embeddings=32)) | changes)


def obey_deepseek(model: Any) -> None:
    """As DeepSeek's own modelling code: every second layer is dense, chosen weights sum to 1 and are then not scaled, an absent mscale is 1 and an
    absent mscale_all_dim 0."""
    config, rope = model.config, model.config.rope_parameters
    model.model.layers[1].mlp = DeepseekV2MLP(config)
    for router in routers(model):
        router.register_forward_hook(lambda _, __, out: (out[0], out[1] / out[1].sum(-1, keepdim=True), out[2]))
        router.norm_topk_prob, router.routed_scaling_factor = True, 1.0  # for what is forced

    def mscale(of: float) -> float:
        return 0.1 * of * math.log(rope["factor"]) + 1

    model.model.rotary_emb.attention_scaling = mscale(rope.get("mscale", 1)) / mscale(rope.get("mscale_all_dim", 0))


FIXTURES = (
    Fixture("olmoe", olmoe),
    Fixture("qwen3", lambda: qwen3(tie_word_embeddings=True)),
    Fixture("qwen3_fused", lambda: qwen3(norm_topk_prob=False, mlp_only_layers=[1], attention_bias=True, moe_intermediate_size=16,
                                         rope_parameters=dict(rope_type="yarn", rope_theta=1e4, factor=4.0, original_max_position_embeddings=16)),
            fused=True, long=60),
    Fixture("qwen2", qwen2),
    Fixture("mixtral", lambda: mixtral(sliding_window=9)),
    Fixture("mixtral_fused", lambda: mixtral(head_dim=12, intermediate_size=20), fused=True),
    Fixture("deepseek_v2", deepseek_v2, long=150),
    Fixture("deepseek_v2_grouped", lambda: deepseek_v2(q_lora_rank=20, n_shared_experts=1, routed_scaling_factor=4.0, topk_method="group_limited_greedy",
                                                       n_group=4, topk_group=2, rope_parameters={"rope_type": "default", "rope_theta": 1e4}), fused=True),
    Fixture("deepseek_v2_original", lambda: deepseek_v2(first_k_dense_replace=0, routed_scaling_factor=3.0, n_shared_experts=1, moe_intermediate_size=16,
                                                        rope_parameters={k: v for k, v in yarn().items() if k != "mscale"}),
            more=dict(norm_topk_prob=True, moe_layer_freq=2, scoring_func="softmax"), obey=obey_deepseek),
    Fixture("deepseek_v3", deepseek_v3, long=90, mtp=True),
)


def architecture_of(config: PreTrainedConfig) -> str:
    return {"olmoe": "Olmoe", "qwen3_moe": "Qwen3Moe", "qwen2_moe": "Qwen2Moe", "mixtral": "Mixtral", "deepseek_v2": "DeepseekV2",
            "deepseek_v3": "DeepseekV3"}[config.model_type] + "ForCausalLM"


def random_weights(fixture: Fixture, config: PreTrainedConfig, seed: int) -> dict[str, Tensor]:
    """By transformers' own names; norms near one, everything else wide enough that routing and logits differ from token to token."""
    generator = torch.Generator().manual_seed(seed)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
        if fixture.obey:
            fixture.obey(model)
    weights: dict[str, Tensor] = {}
    for name, tensor in sorted(model.state_dict().items()):
        if config.tie_word_embeddings and name == "lm_head.weight":
            continue
        mean, std = 0.0, 0.25
        if "norm" in name:
            mean, std = 1.0, 0.1
        elif "e_score_correction_bias" in name:
            std = 0.1
        elif ".bias" in name:
            std = 0.2
        value = mean + std * torch.randn(tensor.shape, generator=generator)
        weights[name] = value if "e_score_correction_bias" in name else value.bfloat16()
    return weights


def published(weights: dict[str, Tensor], config: PreTrainedConfig) -> dict[str, Tensor]:
    """One tensor for each expert's matrix, under the names that the models are published with."""
    by_name: dict[str, Tensor] = {}
    mix = config.model_type == "mixtral"
    names = ("w1", "w3", "w2") if mix else ("gate_proj", "up_proj", "down_proj")
    for name, tensor in weights.items():
        base = name.replace(".mlp.", ".block_sparse_moe.") if mix else name
        if name.endswith("experts.gate_up_proj"):
            for expert, (gate, up) in enumerate(t.chunk(2) for t in tensor):
                prefix = f"{base.removesuffix('gate_up_proj')}{expert}."
                by_name |= {f"{prefix}{names[0]}.weight": gate.contiguous(), f"{prefix}{names[1]}.weight": up.contiguous()}
        elif name.endswith("experts.down_proj"):
            for expert, down in enumerate(tensor):
                by_name[f"{base.removesuffix('down_proj')}{expert}.{names[2]}.weight"] = down.contiguous()
        else:
            by_name[base] = tensor
    return by_name


def spelled_as_published(config: dict[str, Any]) -> dict[str, Any]:
    config = dict(config)
    rope = config.pop("rope_parameters")
    config["rope_theta"] = rope.pop("rope_theta")
    kind = rope.pop("rope_type")
    config["rope_scaling"] = None if kind == "default" else rope | {"type": kind}
    config["torch_dtype"] = config.pop("dtype")
    if config["model_type"] in ("olmoe", "qwen3_moe", "qwen2_moe") and "num_local_experts" in config:
        config["num_experts"] = config.pop("num_local_experts")
    if config["model_type"].startswith("deepseek"):
        config.pop("head_dim", None)
    if config["model_type"] == "deepseek_v3":
        config |= {"scoring_func": "sigmoid", "topk_method": "noaux_tc"}
    if config["model_type"] == "mixtral" and config.get("head_dim") is None:
        config.pop("head_dim", None)
    return config


def write_model(fixture: Fixture, folder: pathlib.Path, seed: int) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    config = fixture.config()
    config.architectures = [architecture_of(config)]
    config.dtype = torch.bfloat16
    config.save_pretrained(folder)
    weights = random_weights(fixture, config, seed)
    if fixture.mtp:
        weights |= {name.replace("layers.2.", "layers.3."): tensor.clone() for name, tensor in weights.items() if "layers.2.self_attn.o_proj" in name}
        weights["model.layers.3.eh_proj.weight"] = torch.zeros(4, 8, dtype=torch.bfloat16)
    if not fixture.fused:
        weights = published(weights, config)
        path = folder / "config.json"
        path.write_text(json.dumps(spelled_as_published(json.loads(path.read_text())) | fixture.more, indent=2, sort_keys=True) + "\n")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def load(fixture: Fixture, folder: pathlib.Path, dtype: torch.dtype) -> Any:
    if fixture.obey:
        return load_obedient(fixture, folder, dtype)
    model, report = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="eager", experts_implementation="eager",
                                                         output_loading_info=True)
    assert not report["missing_keys"], report
    assert all("layers.3." in key for key in report["unexpected_keys"]), report
    return model.eval()


def load_obedient(fixture: Fixture, folder: pathlib.Path, dtype: torch.dtype) -> Any:
    config = fixture.config()
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager", experts_implementation="eager")
    fixture.obey(model)
    weights = load_file(folder / "model.safetensors")
    for name, own in model.state_dict().items():
        if name.endswith("experts.gate_up_proj"):
            prefix = name.removesuffix("gate_up_proj")
            weights[name] = torch.stack([torch.cat([weights[f"{prefix}{e}.{part}_proj.weight"] for part in ("gate", "up")]) for e in range(len(own))])
        elif name.endswith("experts.down_proj"):
            prefix = name.removesuffix("down_proj")
            weights[name] = torch.stack([weights[f"{prefix}{e}.down_proj.weight"] for e in range(len(own))])
        own.copy_(weights[name].float())
    for name, parameter in model.named_parameters():  # as from_pretrained: not the frequencies, not the routers
        if not name.endswith("mlp.gate.weight"):
            parameter.data = parameter.data.to(dtype)
    return model.eval()


def routers(model: Any) -> list[Any]:
    return [module for module in model.modules() if type(module).__name__.lower().endswith("router")]


def scores_of(router: Any, logits: Tensor) -> Tensor:
    return logits.float().sigmoid() if hasattr(router, "e_score_correction_bias") else logits.float().softmax(-1)


@contextlib.contextmanager
def watched(model: Any, margins: list[float] | None = None, chosen: list[Tensor] | None = None, forced: Tensor | None = None) -> Iterator[None]:
    """Collects each router's narrowest choice and what it chose; or has it choose what `forced` [T, M, K] says."""

    def hook(router: Any, _: Any, output: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        logits, weights, ids = output
        if margins is not None:
            margins.append(narrowest_choice(router, logits))
        if chosen is not None:
            chosen.append(ids)
        if forced is None:
            return output
        layer = all_routers.index(router)
        wanted = forced[:, layer].long()
        return logits, weights_for(router, logits, wanted).to(weights.dtype), wanted

    all_routers = routers(model)
    handles = [router.register_forward_hook(hook) for router in all_routers]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def narrowest_choice(router: Any, logits: Tensor) -> float:
    scores = scores_of(router, logits) + getattr(router, "e_score_correction_bias", 0)
    kept, narrowest = scores, 1.0
    limited = hasattr(router, "e_score_correction_bias") or getattr(router, "topk_method", "greedy") == "group_limited_greedy"
    if limited and router.num_group > 1:
        groups = scores.view(len(scores), router.num_group, -1)
        best = groups.topk(2, -1).values.sum(-1) if hasattr(router, "e_score_correction_bias") else groups.max(-1).values
        ordered = best.sort(-1, descending=True)
        narrowest = float((ordered.values[:, router.topk_group - 1] - ordered.values[:, router.topk_group]).min())
        mask = torch.zeros_like(best).scatter_(1, ordered.indices[:, :router.topk_group], 1).bool()
        kept = groups.masked_fill(~mask[..., None], float("-inf")).view_as(scores)
    ordered = kept.sort(-1, descending=True).values
    return min(narrowest, float((ordered[:, router.top_k - 1] - ordered[:, router.top_k]).min()))


def weights_for(router: Any, logits: Tensor, ids: Tensor) -> Tensor:
    weights = scores_of(router, logits).gather(1, ids)
    normalised = getattr(router, "norm_topk_prob", type(router).__name__.startswith("Mixtral"))
    if normalised:
        weights = weights / weights.sum(-1, keepdim=True)
    return weights * getattr(router, "routed_scaling_factor", 1.0)


def logits_of(model: Any, ids: Tensor) -> Tensor:
    with torch.no_grad():
        return model(input_ids=ids[None].long(), attention_mask=torch.ones(1, len(ids)), use_cache=False).logits[0].contiguous()


def relative(a: Tensor, b: Tensor) -> float:
    return float((a.float() - b.float()).abs().max() / b.float().abs().max())


def check_batch(model: Any, prompts: list[Tensor], logits: list[Tensor]) -> None:
    """A batch padded on the left says the same."""
    longest = max(len(p) for p in prompts)
    ids = torch.stack([torch.cat([torch.zeros(longest - len(p)), p]).long() for p in prompts])
    mask = torch.stack([torch.cat([torch.zeros(longest - len(p)), torch.ones(len(p))]).long() for p in prompts])
    with torch.no_grad():
        batch = model(input_ids=ids, attention_mask=mask, position_ids=(mask.cumsum(-1) - 1).clamp(min=0), use_cache=False).logits
    for row, prompt, expected in zip(batch, prompts, logits):
        assert relative(row[longest - len(prompt):], expected) < 2e-5, "a padded batch says something else"


def greedy(model: Any, prompt: Tensor) -> tuple[Tensor, float]:
    """The tokens that follow, one at a time with a cache, and the narrowest choice among them."""
    with torch.no_grad():
        out = model.generate(prompt[None].long(), attention_mask=torch.ones(1, len(prompt)).long(), do_sample=False, max_new_tokens=GREEDY_TOKENS,
                             output_logits=True, return_dict_in_generate=True, pad_token_id=0, eos_token_id=None)
    decoded = torch.cat(out.logits)
    whole = logits_of(model, out.sequences[0])[len(prompt) - 1:-1]
    assert relative(decoded, whole) < 2e-5, "one token at a time says something else"
    best = decoded.topk(2).values
    return out.sequences[0, len(prompt):].to(torch.int32), float((best[:, 0] - best[:, 1]).min())


def add_bf16(fixture: Fixture, folder: pathlib.Path, model: Any, prompt: Tensor, expected: dict[str, Tensor]) -> None:
    chosen: list[Tensor] = []
    rounded = load(fixture, folder, torch.bfloat16)
    with watched(rounded, chosen=chosen):
        expected["bf16_logits"] = logits_of(rounded, prompt)
    expected["bf16_experts"] = torch.stack(chosen, 1).to(torch.int32)
    with watched(model, forced=expected["bf16_experts"]):
        expected["forced_logits"] = logits_of(model, prompt)


def build(fixture: Fixture, folder: pathlib.Path, seed: int) -> bool:
    """Writes the folder; whether it keeps clear of ties."""
    write_model(fixture, folder, seed)
    model, generator = load(fixture, folder, torch.float32), torch.Generator().manual_seed(seed + 1)
    lengths = (*LENGTHS, fixture.long) if fixture.long else LENGTHS
    prompts = [torch.randint(model.config.vocab_size, (length,), generator=generator, dtype=torch.int32) for length in lengths]
    expected: dict[str, Tensor] = {}
    margins: list[float] = []
    with watched(model, margins=margins):
        for i, prompt in enumerate(prompts):
            expected |= {f"token_ids_{i}": prompt, f"logits_{i}": logits_of(model, prompt)}
            if len(prompt) + GREEDY_TOKENS > model.config.max_position_embeddings:
                continue
            expected[f"greedy_{i}"], margin = greedy(model, prompt)
            if margin < GREEDY_MARGIN or min(margins) < ROUTER_MARGIN:
                return False
    if min(margins) < ROUTER_MARGIN:
        return False
    check_batch(model, prompts, [expected[f"logits_{i}"] for i in range(len(prompts))])
    add_bf16(fixture, folder, model, prompts[-1], expected)
    save_file(expected, folder / "expected.safetensors")
    own = relative(expected["bf16_logits"], expected["forced_logits"])
    print(f"{fixture.name}: seed {seed}, router margin {min(margins):.1e}, bf16 within {own:.1e} of the largest logit, "
          f"{sum(file.stat().st_size for file in folder.iterdir())} bytes")
    return True


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path(__file__).parent.parent / "tests/fixtures/architectures")
    parser.add_argument("names", nargs="*", help="those to build; all")
    args = parser.parse_args()
    for fixture in FIXTURES:
        if args.names and fixture.name not in args.names:
            continue
        if not any(build(fixture, args.out / fixture.name, seed) for seed in range(MAX_SEEDS)):
            sys.exit(f"{fixture.name}: no seed below {MAX_SEEDS} keeps clear of ties")
    return 0


if __name__ == "__main__":
    sys.exit(main())
