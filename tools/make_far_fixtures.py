"""Builds tests/fixtures/far: what DeepSeek's own modelling code says at positions far beyond those a model was first trained for.

    python tools/make_far_fixtures.py --original FOLDER [--out tests/fixtures/far]

FOLDER holds modeling_deepseek.py and configuration_deepseek.py as published with the models; their layers are run as they are, one after the other,
on small random checkpoints whose YaRN stretches 64 positions forty times. Each folder is a model as people have it. Its expected.safetensors holds
  token_ids  i32 [T]
  positions  i32 [P]     those whose logits are kept
  logits     f32 [P, V]  in f32, all T tokens at once
and rotations.safetensors, for the parameters that the large models are published with,
  positions      i32 [P]
  cosine_NAME    f32 [P, pairs], and sine_NAME
Seeds are tried in order until no token is near a tie in a router.
"""

from __future__ import annotations

import argparse
import importlib
import json
import pathlib
import sys
import types
from typing import Any

import make_architecture_fixtures as small
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor

TOKENS = 1000
POSITIONS = (0, 1, 31, 63, 64, 65, 127, 255, 256, 511, 700, 998, 999)
FAR_POSITIONS = (0, 1, 2047, 4095, 4096, 4097, 10000, 32767, 65536, 100003, 131071, 163839)
PUBLISHED = dict(scaling_factor=40, original_max_position_embeddings=4096, beta_fast=32, beta_slow=1)
ROTATIONS = {"deepseek_v2": dict(mscale=0.707, mscale_all_dim=0.707), "deepseek_v3": dict(mscale=1.0, mscale_all_dim=1.0), "one_mscale": dict(mscale=0.707)}

TINY = dict(vocab_size=48, num_hidden_layers=2, hidden_size=32, intermediate_size=24, moe_intermediate_size=12, qk_rope_head_dim=16, qk_nope_head_dim=8,
            v_head_dim=8, max_position_embeddings=2560)
YARN = dict(factor=40.0, original_max_position_embeddings=64)
FIXTURES = (
    small.Fixture("deepseek_v2", lambda: small.deepseek_v2(**TINY, rope_parameters=small.yarn(**YARN, mscale=0.707, mscale_all_dim=0.707))),
    # What transformers reads otherwise: it takes mscale only beside mscale_all_dim.
    small.Fixture("deepseek_v2_one_mscale", lambda: small.deepseek_v2(
        **TINY, rope_parameters={k: v for k, v in small.yarn(**YARN).items() if k != "mscale_all_dim"})),
    small.Fixture("deepseek_v3", lambda: small.deepseek_v3(**TINY, rope_parameters=small.yarn(**YARN, mscale=1.0, mscale_all_dim=1.0))),
)


def import_original(folder: pathlib.Path) -> Any:
    """The published code is older than transformers 5: names that it imports and these layers do not use are stood in for."""
    package = types.ModuleType("original")
    package.__path__ = [str(folder)]
    sys.modules["original"] = package
    wanted = {"transformers.models.llama.modeling_llama": ["LlamaAttention", "LlamaFlashAttention2"],
              "transformers.pytorch_utils": ["ALL_LAYERNORM_LAYERS", "is_torch_greater_or_equal_than_1_13"],
              "transformers.utils": ["add_start_docstrings", "add_start_docstrings_to_model_forward", "is_flash_attn_2_available",
                                     "is_flash_attn_greater_or_equal_2_10", "replace_return_docstrings"],
              "transformers.utils.import_utils": ["is_torch_fx_available"], "transformers.modeling_attn_mask_utils": ["_prepare_4d_causal_attention_mask"]}
    stand_ins = {"ALL_LAYERNORM_LAYERS": [], "is_torch_greater_or_equal_than_1_13": True}
    for module_name, names in wanted.items():
        try:
            module = importlib.import_module(module_name)
        except ImportError:
            module = sys.modules[module_name] = types.ModuleType(module_name)
        for name in names:
            if name.startswith("is_") and name.endswith(("available", "2_10")):
                setattr(module, name, lambda *_: False)
            elif not hasattr(module, name):
                decorator = lambda *_, **__: (lambda function: function)  # noqa: E731
                setattr(module, name, stand_ins.get(name, decorator if "docstrings" in name else object))
    try:
        importlib.import_module("einops")
    except ImportError:
        sys.modules["einops"] = types.ModuleType("einops")
        setattr(sys.modules["einops"], "repeat", None)
    return importlib.import_module("original.modeling_deepseek")


class Original:
    """The decoder layers of the published code, over the folder's own config and tensors."""

    def __init__(self, code: Any, folder: pathlib.Path) -> None:
        said = json.loads((folder / "config.json").read_text())
        fields = {k: v for k, v in said.items() if k not in ("architectures", "model_type", "torch_dtype", "transformers_version")}
        config = code.DeepseekV2Config(**fields)
        config.rope_scaling, config.rope_theta = said["rope_scaling"], said["rope_theta"]
        config._attn_implementation = "eager"
        weights = {name: tensor.float() for name, tensor in load_file(folder / "model.safetensors").items()}
        self.layers = []
        for i in range(config.num_hidden_layers):
            layer = code.DeepseekV2DecoderLayer(config, i).eval().float()
            prefix = f"model.layers.{i}."
            own = {name.removeprefix(prefix): tensor for name, tensor in weights.items() if name.startswith(prefix)}
            layer.load_state_dict(own, strict=True)
            self.layers.append(layer)
        self.norm = code.DeepseekV2RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.norm.load_state_dict({"weight": weights["model.norm.weight"]})
        self.embedding, self.head = weights["model.embed_tokens.weight"], weights["lm_head.weight"]
        self.margins: list[float] = []
        for layer in self.layers:
            if hasattr(layer.mlp, "gate"):
                layer.mlp.gate.register_forward_pre_hook(self.note_margin)

    def note_margin(self, gate: Any, inputs: tuple[Tensor]) -> None:
        router = types.SimpleNamespace(top_k=gate.top_k, topk_method=gate.topk_method, num_group=gate.n_group, topk_group=gate.topk_group)
        if gate.scoring_func == "sigmoid":
            router.e_score_correction_bias = gate.e_score_correction_bias
        self.margins.append(small.narrowest_choice(router, inputs[0].view(-1, inputs[0].shape[-1]) @ gate.weight.T))

    @torch.no_grad()
    def logits(self, ids: Tensor) -> Tensor:
        hidden, count = self.embedding[ids.long()][None], len(ids)
        mask = torch.full((count, count), torch.finfo(torch.float32).min).triu(1)[None, None]
        for layer in self.layers:
            hidden = layer(hidden, attention_mask=mask, position_ids=torch.arange(count)[None])[0]
        return self.norm(hidden)[0] @ self.head.T


def build(code: Any, fixture: small.Fixture, folder: pathlib.Path, seed: int) -> bool:
    small.write_model(fixture, folder, seed)
    model = Original(code, folder)
    ids = torch.randint(TINY["vocab_size"], (TOKENS,), generator=torch.Generator().manual_seed(seed + 1), dtype=torch.int32)
    logits = model.logits(ids)
    if min(model.margins) < small.ROUTER_MARGIN:
        return False
    save_file({"token_ids": ids, "positions": torch.tensor(POSITIONS, dtype=torch.int32), "logits": logits[list(POSITIONS)].contiguous()},
              folder / "expected.safetensors")
    theirs = small.logits_of(small.load(fixture, folder, torch.float32), ids)
    print(f"{fixture.name}: seed {seed}, router margin {min(model.margins):.1e}, transformers {transformers.__version__} is "
          f"{small.relative(theirs, logits):.1e} of the largest logit away")
    return True


def rotations(code: Any) -> dict[str, Tensor]:
    positions = torch.tensor(FAR_POSITIONS, dtype=torch.int32)
    tensors = {"positions": positions}
    for name, mscale in ROTATIONS.items():
        table = code.DeepseekV2YarnRotaryEmbedding(64, max_position_embeddings=max(FAR_POSITIONS) + 1, base=10000.0, **PUBLISHED, **mscale)
        for kind, all_of in (("cosine", table.cos_cached), ("sine", table.sin_cached)):
            tensors[f"{kind}_{name}"] = all_of[positions.long(), :32].contiguous()
    return tensors


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--original", type=pathlib.Path, required=True)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path(__file__).parent.parent / "tests/fixtures/far")
    args = parser.parse_args()
    code = import_original(args.original)
    for fixture in FIXTURES:
        if not any(build(code, fixture, args.out / fixture.name, seed) for seed in range(small.MAX_SEEDS)):
            sys.exit(f"{fixture.name}: no seed below {small.MAX_SEEDS} keeps clear of ties")
    save_file(rotations(code), args.out / "rotations.safetensors")
    return 0


if __name__ == "__main__":
    sys.exit(main())
