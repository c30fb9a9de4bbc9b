"""Builds the small random OLMoE checkpoints of tests/fixtures/olmoe, with the logits transformers computes from them.

    python tools/make_olmoe_fixtures.py [--out tests/fixtures/olmoe] [--shipped models/demo]

Each folder is a model as people have it; `expected.safetensors` holds token_ids_0.. (i32 [T]) and logits_0.. (f32 [T, V]).
The folder `shipped` has the expected file alone: the model is the shipped one, the sequences are beginnings of its held-out prompts.
Seeds (or prompts) are tried in order until no token is near a tie, in the routers or in the greedy choice, so that rounding cannot turn one.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import shutil
import sys
from dataclasses import dataclass, field
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import Tensor
from transformers import AutoModelForCausalLM, OlmoeConfig

ROUTER_MARGIN = 1e-4  # of probability, between the last expert chosen and the first one not
SHIPPED_ROUTER_MARGIN = 1e-5  # 64 experts lie closer together
GREEDY_MARGIN = 1e-3
LENGTHS = (17, 5, 11)
SHIPPED_LENGTHS = (12, 4, 8)
MAX_SEEDS = 200


@dataclass(frozen=True)
class Fixture:
    name: str
    shape: dict[str, Any]  # config.json, in transformers' words
    dtype: torch.dtype
    published: bool = True  # the spelling of config.json: as published, or as transformers 5 writes it
    fused: bool = False  # experts stacked in one tensor per layer
    cuts: tuple[str, ...] = ()  # each begins a new shard
    own_head: bool = False  # an lm_head in the file although the config says tied
    generation: dict[str, Any] = field(default_factory=dict)

    def config(self) -> OlmoeConfig:
        return OlmoeConfig(pad_token_id=None, bos_token_id=None, max_position_embeddings=64, **self.shape)


FIXTURES = (
    Fixture("bf16_published", dtype=torch.bfloat16, shape=dict(
        hidden_size=36, intermediate_size=20, num_hidden_layers=2, num_attention_heads=3, num_key_value_heads=3, vocab_size=97,
        num_experts=5, num_experts_per_tok=2, norm_topk_prob=False, eos_token_id=96)),
    Fixture("f16_shards", dtype=torch.float16, published=False, shape=dict(
        hidden_size=32, intermediate_size=12, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2, vocab_size=101,
        num_experts=8, num_experts_per_tok=3, norm_topk_prob=True, clip_qkv=0.8, tie_word_embeddings=True, eos_token_id=[3, 100],
        rope_parameters={"rope_type": "default", "rope_theta": 500.0}),
        cuts=("model.layers.0.mlp.experts.1.gate_proj.weight", "model.layers.0.mlp.experts.1.up_proj.weight"),
        generation={"eos_token_id": [100, 7]}),
    Fixture("f32_own_head", dtype=torch.float32, shape=dict(
        hidden_size=36, intermediate_size=10, num_hidden_layers=1, num_attention_heads=3, num_key_value_heads=1, vocab_size=97,
        num_experts=7, num_experts_per_tok=2, norm_topk_prob=True, tie_word_embeddings=True, eos_token_id=None), own_head=True),
    Fixture("bf16_fused", dtype=torch.bfloat16, published=False, fused=True, shape=dict(
        hidden_size=24, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2, vocab_size=67,
        num_experts=6, num_experts_per_tok=3, norm_topk_prob=False, clip_qkv=0.5, rms_norm_eps=1e-6, eos_token_id=1)),
)


def random_weights(fixture: Fixture, seed: int) -> dict[str, Tensor]:
    """Classical names; norms near one, everything else wide enough that routing and logits differ from token to token."""
    c, generator = fixture.config(), torch.Generator().manual_seed(seed)
    heads, kv = c.hidden_size, c.hidden_size // c.num_attention_heads * c.num_key_value_heads

    def normal(*shape: int, std: float = 0.3, mean: float = 0.0) -> Tensor:
        return (mean + std * torch.randn(shape, generator=generator)).to(fixture.dtype)

    weights = {"model.embed_tokens.weight": normal(c.vocab_size, c.hidden_size), "model.norm.weight": normal(c.hidden_size, std=0.1, mean=1)}
    if fixture.own_head or not c.tie_word_embeddings:
        weights["lm_head.weight"] = normal(c.vocab_size, c.hidden_size)
    for layer in range(c.num_hidden_layers):
        p = f"model.layers.{layer}."
        for name, size in {"input_layernorm": c.hidden_size, "post_attention_layernorm": c.hidden_size, "self_attn.q_norm": heads, "self_attn.k_norm": kv}.items():
            weights[f"{p}{name}.weight"] = normal(size, std=0.1, mean=1)
        for name, (rows, cols) in {"q": (heads, c.hidden_size), "k": (kv, c.hidden_size), "v": (kv, c.hidden_size), "o": (c.hidden_size, heads)}.items():
            weights[f"{p}self_attn.{name}_proj.weight"] = normal(rows, cols)
        weights[p + "mlp.gate.weight"] = normal(c.num_experts, c.hidden_size)
        for expert in range(c.num_experts):
            e = f"{p}mlp.experts.{expert}."
            weights[e + "gate_proj.weight"] = normal(c.intermediate_size, c.hidden_size)
            weights[e + "up_proj.weight"] = normal(c.intermediate_size, c.hidden_size)
            weights[e + "down_proj.weight"] = normal(c.hidden_size, c.intermediate_size)
    return weights


def fuse(weights: dict[str, Tensor], config: OlmoeConfig) -> dict[str, Tensor]:
    """One gate_up_proj [E, 2F, H] (gate rows first) and one down_proj [E, H, F] a layer."""
    fused = {name: tensor for name, tensor in weights.items() if ".experts." not in name}
    for layer in range(config.num_hidden_layers):
        e = f"model.layers.{layer}.mlp.experts."
        part = {name: torch.stack([weights[f"{e}{i}.{name}_proj.weight"] for i in range(config.num_experts)]) for name in ("gate", "up", "down")}
        fused[e + "gate_up_proj"] = torch.cat([part["gate"], part["up"]], dim=1)
        fused[e + "down_proj"] = part["down"]
    return fused


def published_spelling(config: dict[str, Any]) -> dict[str, Any]:
    config = dict(config)
    config["rope_theta"] = config.pop("rope_parameters")["rope_theta"]
    config["rope_scaling"] = None
    config["torch_dtype"] = config.pop("dtype")
    if "num_local_experts" in config:
        config["num_experts"] = config.pop("num_local_experts")
    return config


def write_config(fixture: Fixture, folder: pathlib.Path) -> None:
    config = fixture.config()
    config.architectures = ["OlmoeForCausalLM"]
    config.dtype = fixture.dtype
    config.save_pretrained(folder)
    path = folder / "config.json"
    if fixture.published:
        spelled = published_spelling(json.loads(path.read_text()))
        path.write_text(json.dumps(spelled, indent=2, sort_keys=True) + "\n")
    if fixture.generation:
        (folder / "generation_config.json").write_text(json.dumps(fixture.generation, indent=2) + "\n")


def write_weights(fixture: Fixture, weights: dict[str, Tensor], folder: pathlib.Path) -> None:
    """One file, or shards cut by sorted name with their index."""
    if not fixture.cuts:
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        return
    shards: list[dict[str, Tensor]] = [{}]
    for name in sorted(weights):
        if name in fixture.cuts:
            shards.append({})
        shards[-1][name] = weights[name]
    where: dict[str, str] = {}
    for number, shard in enumerate(shards, 1):
        file = f"model-{number:05}-of-{len(shards):05}.safetensors"
        save_file(shard, folder / file, metadata={"format": "pt"})
        where |= dict.fromkeys(shard, file)
    total = sum(tensor.numel() * tensor.element_size() for tensor in weights.values())
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(where.items()))}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")


def reference(folder: pathlib.Path) -> Any:
    model, report = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", experts_implementation="eager", output_loading_info=True)
    assert not report["missing_keys"] - {"lm_head.weight"} and not report["unexpected_keys"], report
    return model.eval()


def margins(output: Any, top_k: int) -> tuple[float, float]:
    """The narrowest router and greedy choices of a sequence."""
    router = min(float((p[:, top_k - 1] - p[:, top_k]).min()) for p in
                 (logits.softmax(-1).sort(-1, descending=True).values for logits in output.router_logits))
    best = output.logits[0].topk(2).values
    return router, float((best[:, 0] - best[:, 1]).min())


def logits_of(model: Any, token_ids: Tensor) -> Any:
    with torch.no_grad():
        return model(input_ids=token_ids[None].long(), attention_mask=torch.ones(1, len(token_ids)), output_router_logits=True, use_cache=False)


def clipping_bites(model: Any, token_ids: Tensor) -> bool:
    clip, clipped = model.config.clip_qkv, logits_of(model, token_ids).logits
    model.config.clip_qkv = None
    free = logits_of(model, token_ids).logits
    model.config.clip_qkv = clip
    return float((clipped - free).abs().max()) > 0.1


def build(fixture: Fixture, folder: pathlib.Path, seed: int) -> tuple[float, float]:
    """Writes the folder; returns its narrowest margins."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    weights = random_weights(fixture, seed)
    write_config(fixture, folder)
    write_weights(fixture, fuse(weights, fixture.config()) if fixture.fused else weights, folder)
    model, generator = reference(folder), torch.Generator().manual_seed(seed + 1)
    if fixture.own_head:
        assert torch.equal(model.lm_head.weight, weights["lm_head.weight"].float()), "transformers tied the head after all"
    expected: dict[str, Tensor] = {}
    narrowest = (1.0, 1.0)
    for i, length in enumerate(LENGTHS):
        ids = torch.randint(model.config.vocab_size, (length,), generator=generator, dtype=torch.int32)
        ids[-2] = 1  # an ordinary token here, whatever transformers takes for padding
        output = logits_of(model, ids)
        pair = margins(output, model.config.num_experts_per_tok)
        narrowest = (min(narrowest[0], pair[0]), min(narrowest[1], pair[1]))
        assert model.config.clip_qkv is None or clipping_bites(model, ids), "clip_qkv changes nothing"
        expected |= {f"token_ids_{i}": ids, f"logits_{i}": output.logits[0].contiguous()}
    save_file(expected, folder / "expected.safetensors")
    return narrowest


def write_shipped(model_folder: pathlib.Path, folder: pathlib.Path) -> tuple[float, float]:
    """The expected logits of a trained model on the first of its prompts that keep clear of ties, each of another kind."""
    model, tokenizer = reference(model_folder), Tokenizer.from_file(str(model_folder / "tokenizer.json"))
    prompts = [json.loads(line) for line in (model_folder / "heldout/prompts.jsonl").read_text().splitlines()]
    expected: dict[str, Tensor] = {}
    narrowest, used = (1.0, 1.0), set()
    for i, length in enumerate(SHIPPED_LENGTHS):
        for prompt in prompts:
            ids = torch.tensor(tokenizer.encode(prompt["text"]).ids[:length], dtype=torch.int32)
            if prompt["kind"] in used or len(ids) < length:
                continue
            output = logits_of(model, ids)
            router, greedy = margins(output, model.config.num_experts_per_tok)
            if router > SHIPPED_ROUTER_MARGIN and greedy > GREEDY_MARGIN:
                break
        else:
            sys.exit(f"{model_folder}: no prompt of {length} tokens keeps clear of ties")
        used.add(prompt["kind"])
        narrowest = (min(narrowest[0], router), min(narrowest[1], greedy))
        expected |= {f"token_ids_{i}": ids, f"logits_{i}": output.logits[0].contiguous()}
    folder.mkdir(parents=True, exist_ok=True)
    save_file(expected, folder / "expected.safetensors")
    return narrowest


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path(__file__).parent.parent / "tests/fixtures/olmoe")
    parser.add_argument("--shipped", type=pathlib.Path, default=pathlib.Path(__file__).parent.parent / "models/demo")
    args = parser.parse_args()
    out = args.out
    for fixture in FIXTURES:
        for seed in range(MAX_SEEDS):
            router, greedy = build(fixture, out / fixture.name, seed)
            if router > ROUTER_MARGIN and greedy > GREEDY_MARGIN:
                break
        else:
            sys.exit(f"{fixture.name}: no seed below {MAX_SEEDS} keeps clear of ties")
        size = sum(file.stat().st_size for file in (out / fixture.name).iterdir())
        print(f"{fixture.name}: seed {seed}, router margin {router:.1e}, greedy margin {greedy:.1e}, {size} bytes")
    router, greedy = write_shipped(args.shipped, out / "shipped")
    print(f"shipped: router margin {router:.1e}, greedy margin {greedy:.1e}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
