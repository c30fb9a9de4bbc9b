#!/usr/bin/env python3
"""How fast `grace import` reads a large recording, and in how much memory: makes one of about the given size (shape of
DeepSeek-V3: 58 MoE layers of 256 experts, 8 a token), reads it, checks what came out, and prints one line.

  tools/interop_benchmarks.py sglang --gigabytes 10 --folder /tmp/bench      needs numpy and torch
  tools/interop_benchmarks.py megatron --gigabytes 10 --folder /tmp/bench    needs numpy
"""

import argparse
import collections
import io
import json
import os
import pathlib
import pickle
import subprocess
import sys
import time
import zipfile

DENSE, MOE, EXPERTS, K, SLOTS = 3, 58, 256, 8, 288
TOKENS = 2048  # of a pass
POOL = 4       # passes that are drawn; the file repeats them


def draw(rng):
    """Choices [layers, tokens, K], distinct for each token."""
    import numpy

    return numpy.argpartition(rng.random((MOE, TOKENS, EXPERTS), dtype=numpy.float32), K, axis=2)[:, :, :K].astype("<i4")


class Tensor:
    def __init__(self, key: str, shape):
        self.key, self.shape = key, shape


def record_pickle(value) -> bytes:
    """As torch.save pickles it, for tensors whose bytes are written elsewhere."""
    import numpy
    import torch

    class Storage:
        def __init__(self, tensor):
            self.tensor = tensor

    class Pickler(pickle.Pickler):
        def reducer_override(self, obj):
            if not isinstance(obj, Tensor):
                return NotImplemented
            stride = tuple(int(numpy.prod(obj.shape[i + 1:])) for i in range(len(obj.shape)))
            arguments = (Storage(obj), 0, tuple(obj.shape), stride, False, collections.OrderedDict())
            return torch._utils._rebuild_tensor_v2, arguments

        def persistent_id(self, obj):
            if not isinstance(obj, Storage):
                return None
            return "storage", torch.IntStorage, obj.tensor.key, "cpu", int(numpy.prod(obj.tensor.shape))

    out = io.BytesIO()
    Pickler(out, 2).dump(value)
    return out.getvalue()


def make_sglang(path: pathlib.Path, size: int) -> int:
    """A per-token recording of one rank; returns its tokens."""
    import numpy

    rng = numpy.random.default_rng(0)
    layers = DENSE + MOE
    pool = []
    for _ in range(POOL):
        ids = numpy.full((layers, TOKENS, K), -1, dtype="<i4")
        ids[DENSE:] = draw(rng)
        pool.append(ids.tobytes())
    counts = numpy.zeros((layers, SLOTS), dtype="<i4").tobytes()
    owner = numpy.tile(numpy.concatenate([numpy.arange(EXPERTS), numpy.arange(SLOTS - EXPERTS)]), (layers, 1)).astype("<i4")
    records = max(1, size // len(pool[0]))
    value = {"records": [], "last_physical_to_logical_map": Tensor("map", owner.shape)}
    for i in range(records):
        value["records"].append({
            "forward_pass_id": i, "rank": 0, "gatherer_key": "primary", "input_ids": list(range(TOKENS)),
            "positions": list(range(TOKENS)), "extend_seq_lens": [TOKENS // 2, TOKENS // 2], "forward_mode": 1,
            "topk_ids_of_layer": Tensor(f"t{i}", (layers, TOKENS, K)), "misc_objects": [],
            "global_physical_count": Tensor(f"c{i}", (layers, SLOTS))})
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("recording/data.pkl", record_pickle(value))
        archive.writestr("recording/byteorder", "little")
        archive.writestr("recording/data/map", owner.tobytes())
        for i in range(records):
            archive.writestr(f"recording/data/t{i}", pool[i % POOL])
            archive.writestr(f"recording/data/c{i}", counts)
    return records * TOKENS


def make_megatron(path: pathlib.Path, size: int) -> int:
    import numpy

    rng = numpy.random.default_rng(0)
    pool = [[json.dumps(layer.tolist()) for layer in numpy.sort(draw(rng), axis=2)] for _ in range(POOL)]
    tokens, step = 0, 0
    with path.open("w") as out:
        while out.tell() < size:
            for m, rows in enumerate(pool[step % POOL]):
                out.write(f'{{"step": {step}, "stage": "pre_dispatch", "block": "decoder", "layer": {DENSE + m}, "rank": 0, '
                          f'"num_tokens": {TOKENS}, "topk": {K}, "top_indices": {rows}}}\n')
            tokens += TOKENS
            step += 1
    return tokens


def timed(words, **options):
    """Seconds, output and peak resident MiB of a command. Its own: what makes the recording is another process."""
    start = time.monotonic()
    process = subprocess.Popen(words, **options)
    said = process.stdout.read() if process.stdout else ""
    _, status, usage = os.wait4(process.pid, 0)
    assert status == 0, words
    return time.monotonic() - start, said, usage.ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["sglang", "megatron"])
    parser.add_argument("--gigabytes", type=float, default=10)
    parser.add_argument("--folder", type=pathlib.Path, required=True, help="where the recording goes, and is taken away from")
    parser.add_argument("--grace", default="build/release/apps/grace/grace")
    parser.add_argument("--make", action="store_true", help="only make the recording; prints its tokens")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    path = options.folder / ("recording.pt" if options.what == "sglang" else "router_trace_rank0.jsonl")
    out = options.folder / "out.trace"
    if options.make:
        print((make_sglang if options.what == "sglang" else make_megatron)(path, int(options.gigabytes * 1e9)))
        return
    try:
        tokens = int(subprocess.check_output([sys.executable, __file__, *sys.argv[1:], "--make"]))
        size = path.stat().st_size
        with open(os.devnull, "wb") as nothing:
            before, _, _ = timed(["cat", path], stdout=nothing)
            seconds, text, peak = timed(
                [options.grace, "import", path, "--num-experts", str(EXPERTS), "--out", out, "--json"],
                stdout=subprocess.PIPE, text=True)
            after, _, _ = timed(["cat", path], stdout=nothing)
        said = json.loads(text)
        assert said["tokens"] == tokens and said["assignments"] == tokens * MOE * K, said
        read = size / 1e6 / ((before + after) / 2)
        print(f"{options.what}: {size / 1e9:.2f} GB, {tokens} tokens: {size / 1e6 / seconds:.0f} MB/s, peak {peak:.0f} MiB resident; "
              f"cat reads {read:.0f} MB/s, {read * seconds / size * 1e6:.0f} times as fast; the trace has {out.stat().st_size / 1e9:.2f} GB")
    finally:
        for made in (path, out):
            made.unlink(missing_ok=True)


if __name__ == "__main__":
    main()
