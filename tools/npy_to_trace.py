"""Turns recorded routing (`*.topk_ids.npy`, uint8 or wider [tokens, moe_layers, k]) into a trace file (docs/formats/trace.md).

Example:
  python3 tools/npy_to_trace.py intent.topk_ids.npy law.topk_ids.npy \
      --sequences intent.sequences.json law.sequences.json --num-experts 64 \
      --model deepseek-v2-lite --first-decoder-layer 1 --phase prefill --out t.safetensors

Several files are joined in the order given. A sequences file is JSON: `sequence_lengths`, a list of token counts, or `sequences`,
a list of objects with `tokens`. Without --sequences each ids file is one sequence.
"""

import argparse
import json
import pathlib
import struct
import sys

import numpy as np

NAMES = {"uint8": "U8", "uint16": "U16", "float16": "F16", "int32": "I32", "int64": "I64"}
MAX_EXPERTS = 65534  # the largest 16-bit id stands for "not routed"
MAX_EXPERTS_OF_U8 = 255


def fail(message: str) -> None:
    sys.exit(f"npy_to_trace: {message}")


def write_safetensors(path: pathlib.Path, tensors: dict, metadata: dict) -> None:
    """Tensors in name order, the header padded so that data starts at a multiple of 8."""
    header, offset = {"__metadata__": metadata}, 0
    for name in sorted(tensors):
        array = tensors[name]
        header[name] = {"dtype": NAMES[array.dtype.name], "shape": list(array.shape), "data_offsets": [offset, offset + array.nbytes]}
        offset += array.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name in sorted(tensors):
            file.write(np.ascontiguousarray(tensors[name]).tobytes())


def read_lengths(path: pathlib.Path) -> list:
    content = json.loads(path.read_text())
    if "sequence_lengths" in content:
        return [int(length) for length in content["sequence_lengths"]]
    if "sequences" in content:
        return [int(sequence["tokens"]) for sequence in content["sequences"]]
    fail(f"{path}: neither sequence_lengths nor sequences")


def read_ids(path: pathlib.Path, num_experts: int) -> np.ndarray:
    ids = np.load(path, allow_pickle=False)
    if ids.ndim != 3 or ids.dtype.kind not in "iu":
        fail(f"{path}: {ids.dtype} of {ids.ndim} dimensions, must be whole numbers [tokens, moe_layers, k]")
    wrong = np.argwhere((ids < 0) | (ids >= num_experts))
    if len(wrong):
        token, layer, k = wrong[0]
        fail(f"{path}: token {token}, layer {layer}: expert {ids[token, layer, k]} is outside [0, {num_experts})")
    ascending = np.sort(ids, axis=2)
    twice = np.argwhere(ascending[:, :, 1:] == ascending[:, :, :-1])
    if len(twice):
        token, layer, k = twice[0]
        fail(f"{path}: token {token}, layer {layer}: expert {ascending[token, layer, k]} is chosen twice")
    return ids


def lengths_of(arguments: argparse.Namespace, parts: list) -> list:
    if not arguments.sequences:
        return [len(part) for part in parts]
    if len(arguments.sequences) != len(parts):
        fail(f"{len(arguments.sequences)} sequences files for {len(parts)} ids files")
    lengths = []
    for path, part in zip(arguments.sequences, parts):
        here = read_lengths(path)
        if sum(here) != len(part) or min(here, default=0) < 0:
            fail(f"{path}: sequences of {sum(here)} tokens in all, the ids have {len(part)}")
        lengths += here
    return lengths


def read_weights(arguments: argparse.Namespace, ids: np.ndarray) -> np.ndarray:
    if len(arguments.weights) != len(arguments.ids):
        fail(f"{len(arguments.weights)} weights files for {len(arguments.ids)} ids files")
    weights = [np.load(path, allow_pickle=False) for path in arguments.weights]
    shapes = {part.shape[1:] for part in weights}
    if shapes != {ids.shape[1:]} or sum(map(len, weights)) != len(ids):
        fail(f"weights are {[part.shape for part in weights]}, the ids {list(ids.shape)} in all")
    return (np.concatenate(weights).astype(np.float64) * arguments.weight_scale).astype(np.float16)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ids", nargs="+", type=pathlib.Path, metavar="IDS.npy")
    parser.add_argument("--sequences", nargs="+", type=pathlib.Path, metavar="S.json", help="one for each ids file, in the same order")
    parser.add_argument("--weights", nargs="+", type=pathlib.Path, metavar="W.npy", help="gate weights, one for each ids file")
    parser.add_argument("--weight-scale", type=float, default=1e-4, help="what a stored weight is multiplied by (default 1e-4)")
    parser.add_argument("--num-experts", type=int, required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--first-decoder-layer", type=int, default=0, help="the decoder layer of MoE ordinal 0 (default 0)")
    parser.add_argument("--phase", choices=["prefill", "decode"], required=True)
    parser.add_argument("--source", help="where the routing comes from (default: the names of the ids files)")
    parser.add_argument("--out", type=pathlib.Path, required=True)
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    if not 1 <= arguments.num_experts <= MAX_EXPERTS:
        fail(f"--num-experts {arguments.num_experts} is outside [1, {MAX_EXPERTS}]")
    if arguments.first_decoder_layer < 0:
        fail(f"--first-decoder-layer {arguments.first_decoder_layer} is negative")
    parts = [read_ids(path, arguments.num_experts) for path in arguments.ids]
    if len({part.shape[1:] for part in parts}) != 1:
        fail(f"the ids have different layers or k: {[part.shape for part in parts]}")
    lengths = lengths_of(arguments, parts)
    ids = np.concatenate(parts).astype(np.uint8 if arguments.num_experts <= MAX_EXPERTS_OF_U8 else np.uint16)
    tensors = {"topk_ids": ids, "sequence_offsets": np.cumsum([0, *lengths], dtype=np.int64)}
    if arguments.weights:
        tensors["topk_weights"] = read_weights(arguments, ids)
    first, layers = arguments.first_decoder_layer, ids.shape[1]
    metadata = {
        "format_version": "1",
        "model": arguments.model,
        "source": arguments.source or " ".join(path.name for path in arguments.ids),
        "num_experts": str(arguments.num_experts),
        "experts_per_token": str(ids.shape[2]),
        "decoder_layers": json.dumps(list(range(first, first + layers))),
        "phase": arguments.phase,
    }
    write_safetensors(arguments.out, tensors, metadata)
    print(f"{arguments.out}: {ids.shape[0]} tokens in {len(lengths)} sequences, {layers} MoE layers, "
          f"{ids.shape[2]} of {arguments.num_experts} experts")


if __name__ == "__main__":
    main()
