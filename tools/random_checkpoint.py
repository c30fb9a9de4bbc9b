"""Writes a model folder of true shape with random weights: for measuring where the trained weights are not at hand.

    python3 tools/random_checkpoint.py --shape olmoe --out out/olmoe-random [--layers 4] [--seed 0] [--dtype bf16]

--shape is olmoe, deepseek-v2-lite, qwen3-30b-a3b, or a config.json of those architectures, Mixtral, Qwen2-MoE or DeepSeek-V3;
it is copied as published, but for the number of layers and the dtype. Matrices are scaled by what they sum over, so that
activations stay near one; norms are ones. The same seed gives the same tensor whatever the number of layers. There is no
tokenizer: `grace run --token-ids` needs none. Tensors are written as they are made, a shard of 4 GB after another.
"""

import argparse
import json
import math
import pathlib
import shutil
import struct
import sys
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

try:
    import numpy as np
except ImportError:
    sys.exit("random_checkpoint: needs numpy")

OLMOE = {
    "architectures": ["OlmoeForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "clip_qkv": None, "eos_token_id": 50279,
    "hidden_act": "silu", "hidden_size": 2048, "initializer_range": 0.02, "intermediate_size": 1024, "max_position_embeddings": 4096,
    "model_type": "olmoe", "norm_topk_prob": False, "num_attention_heads": 16, "num_experts": 64, "num_experts_per_tok": 8,
    "num_hidden_layers": 16, "num_key_value_heads": 16, "output_router_logits": False, "pad_token_id": 1, "rms_norm_eps": 1e-05, "rope_scaling": None,
    "rope_theta": 10000.0, "router_aux_loss_coef": 0.01, "tie_word_embeddings": False, "torch_dtype": "bfloat16", "use_cache": True,
    "vocab_size": 50304,
}
DEEPSEEK_V2_LITE = {
    "architectures": ["DeepseekV2ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "aux_loss_alpha": 0.001,
    "bos_token_id": 100000, "eos_token_id": 100001, "first_k_dense_replace": 1, "hidden_act": "silu", "hidden_size": 2048,
    "initializer_range": 0.02, "intermediate_size": 10944, "kv_lora_rank": 512, "max_position_embeddings": 163840,
    "model_type": "deepseek_v2", "moe_intermediate_size": 1408, "moe_layer_freq": 1, "n_group": 1, "n_routed_experts": 64,
    "n_shared_experts": 2, "norm_topk_prob": False, "num_attention_heads": 16, "num_experts_per_tok": 6, "num_hidden_layers": 27,
    "num_key_value_heads": 16, "pretraining_tp": 1, "q_lora_rank": None, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
    "rms_norm_eps": 1e-06,
    "rope_scaling": {
        "beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 0.707, "mscale_all_dim": 0.707,
        "original_max_position_embeddings": 4096, "type": "yarn",
    },
    "rope_theta": 10000, "routed_scaling_factor": 1.0, "scoring_func": "softmax", "seq_aux": True, "tie_word_embeddings": False,
    "topk_group": 1, "topk_method": "greedy", "torch_dtype": "bfloat16", "use_cache": True, "v_head_dim": 128, "vocab_size": 102400,
}
QWEN3_30B_A3B = {
    "architectures": ["Qwen3MoeForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 151643,
    "decoder_sparse_step": 1, "eos_token_id": 151645, "head_dim": 128, "hidden_act": "silu", "hidden_size": 2048,
    "initializer_range": 0.02, "intermediate_size": 6144, "max_position_embeddings": 40960, "max_window_layers": 48,
    "mlp_only_layers": [], "model_type": "qwen3_moe", "moe_intermediate_size": 768, "norm_topk_prob": True,
    "num_attention_heads": 32, "num_experts": 128, "num_experts_per_tok": 8, "num_hidden_layers": 48, "num_key_value_heads": 4,
    "output_router_logits": False, "rms_norm_eps": 1e-06, "rope_scaling": None, "rope_theta": 1000000.0,
    "router_aux_loss_coef": 0.001, "sliding_window": None, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
    "use_cache": True, "use_sliding_window": False, "vocab_size": 151936,
}
SHAPES = {"olmoe": OLMOE, "deepseek-v2-lite": DEEPSEEK_V2_LITE, "qwen3-30b-a3b": QWEN3_30B_A3B}

# dtype -> its name in a container, bytes, and what config.json calls it.
DTYPES = {"bf16": ("BF16", 2, "bfloat16"), "f32": ("F32", 4, "float32")}
SHARD_BYTES = 4_000_000_000
PIECE = 32 << 20  # values made at a time
ONE_BF16 = 0x3F80


def fail(message: str) -> None:
    sys.exit(f"random_checkpoint: {message}")


@dataclass(frozen=True)
class Tensor:
    name: str
    shape: tuple[int, ...]
    fan_in: int | None  # what a result sums over; None: all ones

    @property
    def size(self) -> int:
        return math.prod(self.shape)


def matrix(name: str, rows: int, columns: int) -> Tensor:
    return Tensor(name + ".weight", (rows, columns), columns)


def ones(name: str, size: int) -> Tensor:
    return Tensor(name + ".weight", (size,), None)


def swiglu(name: str, hidden: int, ffn: int, names: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj")) -> Iterator[Tensor]:
    gate, up, down = names
    yield matrix(f"{name}.{gate}", ffn, hidden)
    yield matrix(f"{name}.{up}", ffn, hidden)
    yield matrix(f"{name}.{down}", hidden, ffn)


def grouped_attention(name: str, config: dict) -> Iterator[Tensor]:
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    kv_heads = config.get("num_key_value_heads") or heads
    dim = config.get("head_dim") or hidden // heads
    rows = {"q_proj": heads * dim, "k_proj": kv_heads * dim, "v_proj": kv_heads * dim}
    biased = config["model_type"] == "qwen2_moe" and config.get("qkv_bias", True)
    for part, size in rows.items():
        yield matrix(f"{name}.{part}", size, hidden)
        if biased or config.get("attention_bias"):
            yield Tensor(f"{name}.{part}.bias", (size,), hidden)
    yield matrix(f"{name}.o_proj", hidden, heads * dim)
    if config.get("attention_bias"):
        yield Tensor(f"{name}.o_proj.bias", (hidden,), hidden)
    if config["model_type"] == "olmoe":
        yield ones(f"{name}.q_norm", rows["q_proj"])
        yield ones(f"{name}.k_norm", rows["k_proj"])
    if config["model_type"] == "qwen3_moe":
        yield ones(f"{name}.q_norm", dim)
        yield ones(f"{name}.k_norm", dim)


def latent_attention(name: str, config: dict) -> Iterator[Tensor]:
    hidden, heads, rank = config["hidden_size"], config["num_attention_heads"], config["kv_lora_rank"]
    plain, rotary, value = config["qk_nope_head_dim"], config["qk_rope_head_dim"], config["v_head_dim"]
    if query := config.get("q_lora_rank"):
        yield matrix(f"{name}.q_a_proj", query, hidden)
        yield ones(f"{name}.q_a_layernorm", query)
        yield matrix(f"{name}.q_b_proj", heads * (plain + rotary), query)
    else:
        yield matrix(f"{name}.q_proj", heads * (plain + rotary), hidden)
    yield matrix(f"{name}.kv_a_proj_with_mqa", rank + rotary, hidden)
    yield ones(f"{name}.kv_a_layernorm", rank)
    yield matrix(f"{name}.kv_b_proj", heads * (plain + value), rank)
    yield matrix(f"{name}.o_proj", hidden, heads * value)


def is_moe(config: dict, layer: int) -> bool:
    if layer in (config.get("mlp_only_layers") or []):
        return False
    if (step := config.get("decoder_sparse_step")) and (layer + 1) % step != 0:
        return False
    return layer >= config.get("first_k_dense_replace", 0) and layer % config.get("moe_layer_freq", 1) == 0


def experts_of(config: dict) -> tuple[int, int]:
    """How many there are, and the size of one."""
    count = next(config[key] for key in ("num_experts", "num_local_experts", "n_routed_experts") if config.get(key))
    return count, config.get("moe_intermediate_size") or config["intermediate_size"]


def moe_block(name: str, config: dict) -> Iterator[Tensor]:
    hidden = config["hidden_size"]
    count, ffn = experts_of(config)
    if config["model_type"] == "mixtral":
        block = name.removesuffix("mlp") + "block_sparse_moe"
        yield matrix(f"{block}.gate", count, hidden)
        for expert in range(count):
            yield from swiglu(f"{block}.experts.{expert}", hidden, ffn, ("w1", "w3", "w2"))
        return
    yield matrix(f"{name}.gate", count, hidden)
    if config["model_type"] == "deepseek_v3":
        yield Tensor(f"{name}.gate.e_score_correction_bias", (count,), hidden)
    for expert in range(count):
        yield from swiglu(f"{name}.experts.{expert}", hidden, ffn)
    if shared := config.get("n_shared_experts"):
        yield from swiglu(f"{name}.shared_experts", hidden, shared * ffn)
    if shared := config.get("shared_expert_intermediate_size"):
        yield from swiglu(f"{name}.shared_expert", hidden, shared)
        yield matrix(f"{name}.shared_expert_gate", 1, hidden)


def tensors_of(config: dict) -> Iterator[Tensor]:
    hidden, vocab = config["hidden_size"], config["vocab_size"]
    yield Tensor("model.embed_tokens.weight", (vocab, hidden), 1)
    for layer in range(config["num_hidden_layers"]):
        name = f"model.layers.{layer}"
        yield ones(f"{name}.input_layernorm", hidden)
        yield ones(f"{name}.post_attention_layernorm", hidden)
        yield from (latent_attention if config.get("kv_lora_rank") else grouped_attention)(f"{name}.self_attn", config)
        if is_moe(config, layer):
            yield from moe_block(f"{name}.mlp", config)
        else:
            yield from swiglu(f"{name}.mlp", hidden, config["intermediate_size"])
    yield ones("model.norm", hidden)
    if not config.get("tie_word_embeddings"):
        yield matrix("lm_head", vocab, hidden)


def pieces_of(tensor: Tensor, seed: int, dtype: str) -> Iterator[np.ndarray]:
    """Its values: magnitudes spread over [2^e, 2^(e + 1)), whose root mean square is about 1.5 of its begin."""
    bits = np.random.SFC64(np.random.SeedSequence([seed, zlib.crc32(tensor.name.encode())]))
    random = np.random.Generator(bits)
    if tensor.fan_in is not None:
        exponent = round(-math.log2(1.5 * math.sqrt(tensor.fan_in)))
    for begin in range(0, tensor.size, PIECE):
        count = min(PIECE, tensor.size - begin)
        if tensor.fan_in is None:
            values = np.full(count, ONE_BF16, "<u2")
        else:
            values = np.frombuffer(random.bytes(2 * count), "<u2") & np.uint16(0x807F)
            values |= np.uint16(127 + exponent << 7)
        yield values if dtype == "bf16" else values.astype("<u4") << 16


def shards_of(tensors: list[Tensor], width: int) -> list[list[Tensor]]:
    shards, size = [[]], 0
    for tensor in tensors:
        if size > 0 and size + tensor.size * width > SHARD_BYTES:
            shards.append([])
            size = 0
        shards[-1].append(tensor)
        size += tensor.size * width
    return shards


def write_shard(path: pathlib.Path, tensors: list[Tensor], seed: int, dtype: str) -> None:
    name, width, _ = DTYPES[dtype]
    header, offset = {"__metadata__": {"format": "pt"}}, 0
    for tensor in tensors:
        header[tensor.name] = {"dtype": name, "shape": list(tensor.shape), "data_offsets": [offset, offset + tensor.size * width]}
        offset += tensor.size * width
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for tensor in tensors:
            for values in pieces_of(tensor, seed, dtype):
                file.write(memoryview(values))


def read_config(shape: str) -> dict:
    if shape.lower() in SHAPES:
        return dict(SHAPES[shape.lower()])
    path = pathlib.Path(shape)
    path = path / "config.json" if path.is_dir() else path
    if not path.is_file():
        fail(f"{shape} is none of {', '.join(SHAPES)}, and no config.json")
    try:
        config = json.loads(path.read_text())
    except ValueError as error:
        fail(f"{path}: {error}")
    known = ("olmoe", "deepseek_v2", "deepseek_v3", "qwen2_moe", "qwen3_moe", "mixtral")
    if config.get("model_type") not in known:
        fail(f"{path}: model_type {config.get('model_type')} is not one of {', '.join(known)}")
    return config


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", required=True, help=f"{', '.join(SHAPES)}, or a config.json")
    parser.add_argument("--out", required=True, type=pathlib.Path, help="a folder that holds no model yet")
    parser.add_argument("--layers", type=int, help="decoder layers, the first ones (default: all)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--dtype", choices=DTYPES, default="bf16")
    args = parser.parse_args()

    config = read_config(args.shape)
    if args.layers is not None:
        if not 1 <= args.layers <= config["num_hidden_layers"]:
            fail(f"--layers: {args.layers} is outside [1, {config['num_hidden_layers']}]")
        config["num_hidden_layers"] = args.layers
    _, width, spelled = DTYPES[args.dtype]
    config["torch_dtype"] = spelled
    if (args.out / "config.json").exists():
        fail(f"{args.out}: holds a model already")
    try:
        tensors = list(tensors_of(config))
    except KeyError as error:
        fail(f"{args.shape}: {error.args[0]} is missing")
    total = sum(tensor.size for tensor in tensors) * width
    args.out.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(args.out).free
    if total > free:
        fail(f"{args.out}: takes {total / 1e9:.1f} GB, and {free / 1e9:.1f} GB are free")

    shards = shards_of(tensors, width)
    weight_map = {}
    for i, shard in enumerate(shards):
        name = "model.safetensors" if len(shards) == 1 else f"model-{i + 1:05d}-of-{len(shards):05d}.safetensors"
        write_shard(args.out / name, shard, args.seed, args.dtype)
        weight_map |= {tensor.name: name for tensor in shard}
    if len(shards) > 1:
        index = {"metadata": {"total_size": total}, "weight_map": weight_map}
        (args.out / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")
    # Last, so that a folder that was not finished is no model.
    (args.out / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    print(f"{args.out}: {len(tensors)} tensors, {total / 1e9:.2f} GB in {len(shards)} file{'s' if len(shards) > 1 else ''}")


if __name__ == "__main__":
    main()
