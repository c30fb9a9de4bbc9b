"""Trace files, as far as a benchmark must cut them: the sequences to plan from and those that are served."""

import array
import json
import os
import pathlib
import struct
import sys
from dataclasses import dataclass

from labkit.refusal import Refusal

SIZES = {"U8": 1, "U16": 2}  # of an expert id


@dataclass(frozen=True)
class Trace:
    metadata: dict[str, str]
    dtype: str  # of topk_ids
    topk_ids: bytes  # [T, M, K]
    offsets: list[int]  # [S + 1]

    @property
    def experts(self) -> int:
        return int(self.metadata["num_experts"])

    @property
    def experts_per_token(self) -> int:
        return int(self.metadata["experts_per_token"])

    @property
    def decoder_layers(self) -> list[int]:
        return json.loads(self.metadata["decoder_layers"])

    def choices(self, token: int, layer: int) -> tuple[int, ...]:
        """The experts of a token in the layer-th MoE layer."""
        size, k = SIZES[self.dtype], self.experts_per_token
        at = (token * len(self.decoder_layers) + layer) * k * size
        return struct.unpack(f"<{k}{'B' if size == 1 else 'H'}", self.topk_ids[at:at + k * size])


def read(path: str | os.PathLike) -> Trace:
    try:
        raw = pathlib.Path(path).read_bytes()
        (length,) = struct.unpack_from("<Q", raw)
        head = json.loads(raw[8:8 + length])
        parts = {name: raw[8 + length + head[name]["data_offsets"][0]:8 + length + head[name]["data_offsets"][1]] for name in ("topk_ids", "sequence_offsets")}
        offsets = array.array("q", parts["sequence_offsets"])
        trace = Trace(head["__metadata__"], head["topk_ids"]["dtype"], parts["topk_ids"], list(offsets))
        row = len(trace.decoder_layers) * trace.experts_per_token * SIZES[trace.dtype]
    except (OSError, ValueError, KeyError, struct.error) as error:
        raise Refusal(f"{path}: not a trace: {error}") from error
    if sys.byteorder != "little" or row == 0 or len(trace.topk_ids) != row * trace.offsets[-1]:
        raise Refusal(f"{path}: not a trace of {trace.offsets[-1]} tokens")
    return trace


def first_layers(trace: Trace, layers: int) -> Trace:
    known = trace.decoder_layers
    if not 1 <= layers <= len(known):
        raise Refusal(f"--layers: {layers} is outside [1, {len(known)}]")
    width = trace.experts_per_token * SIZES[trace.dtype]
    row, kept = len(known) * width, layers * width
    ids = b"".join(trace.topk_ids[at:at + kept] for at in range(0, len(trace.topk_ids), row))
    return Trace(trace.metadata | {"decoder_layers": json.dumps(known[:layers])}, trace.dtype, ids, trace.offsets)


def every_second(trace: Trace, parity: int) -> Trace:
    """The sequences whose number is even (0) or odd (1), without the empty ones: served and learned from, as `grace bench` halves a trace."""
    row = len(trace.decoder_layers) * trace.experts_per_token * SIZES[trace.dtype]
    chosen = [(begin, end) for begin, end in list(zip(trace.offsets, trace.offsets[1:]))[parity::2] if end > begin]
    if not chosen:
        raise Refusal("the trace needs two sequences with tokens, one to serve and one to plan from")
    offsets = [0]
    for begin, end in chosen:
        offsets.append(offsets[-1] + end - begin)
    return Trace(trace.metadata, trace.dtype, b"".join(trace.topk_ids[begin * row:end * row] for begin, end in chosen), offsets)


def file_bytes(trace: Trace) -> bytes:
    shape = [trace.offsets[-1], len(trace.decoder_layers), trace.experts_per_token]
    parts = {"sequence_offsets": ("I64", [len(trace.offsets)], array.array("q", trace.offsets).tobytes()), "topk_ids": (trace.dtype, shape, trace.topk_ids)}
    head: dict[str, object] = {"__metadata__": trace.metadata}
    at = 0
    for name, (dtype, shape, raw) in parts.items():
        head[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(raw)]}
        at += len(raw)
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + b"".join(raw for _, _, raw in parts.values())
