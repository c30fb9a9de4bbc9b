"""What makes the shipped model worth showing, on held-out text (arguments: program, source folder).

The busiest quarter of the experts takes >= 40 % of the assignments in at least half the layers for one kind of text; grace's groups, planned
on the profiling text, keep >= 1.6 times the affinity of random groups of the same sizes on the judging text.
"""

import array
import collections
import itertools
import json
import pathlib
import struct
import subprocess
import sys
import tempfile

WINDOW = 256
SHARE, RATIO = 0.40, 1.6


def run(program: str, *arguments: str) -> str:
    return subprocess.run([program, *arguments], capture_output=True, text=True, timeout=600, check=True).stdout


def layers_of(trace: pathlib.Path) -> list[list[tuple[int, ...]]]:
    """[M][T]: the experts of each token."""
    data = trace.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    entry = json.loads(data[8:8 + size])["topk_ids"]
    assert entry["dtype"] == "U8"
    tokens, layers, top = entry["shape"]
    first, last = entry["data_offsets"]
    ids = array.array("B", data[8 + size + first:8 + size + last])
    return [[tuple(ids[(t * layers + layer) * top:(t * layers + layer + 1) * top]) for t in range(tokens)] for layer in range(layers)]


def record(program: str, model: pathlib.Path, part: str, folder: pathlib.Path) -> tuple[pathlib.Path, dict[str, slice]]:
    """A trace of all texts of a part, and which of its tokens are whose."""
    sequences, tokens_of_kind, first = [], {}, 0
    for text in sorted((model / "heldout" / part).glob("*.txt")):
        ids = json.loads(run(program, "tokenize", str(model), "--text", str(text)))["token_ids"]
        sequences += [ids[i:i + WINDOW] for i in range(0, len(ids), WINDOW)]
        tokens_of_kind[text.stem] = slice(first, first + len(ids))
        first += len(ids)
    ids_file, trace = folder / f"{part}.json", folder / f"{part}.safetensors"
    ids_file.write_text(json.dumps(sequences))
    run(program, "profile", str(model), "--token-ids", str(ids_file), "--out", str(trace))
    return trace, tokens_of_kind


def busiest_quarter(tokens: list[tuple[int, ...]], experts: int) -> float:
    load = collections.Counter(itertools.chain(*tokens))
    return sum(count for _, count in load.most_common(experts // 4)) / sum(load.values())


def kept_over_random(tokens: list[tuple[int, ...]], devices: list[dict], experts: int) -> float:
    group = {expert: d for d, device in enumerate(devices) for expert in device["primaries"]}
    kept = together = 0
    for chosen in tokens:
        sizes = collections.Counter(group[expert] for expert in chosen)
        kept += sum(n * (n - 1) for n in sizes.values())
        together += len(chosen) * (len(chosen) - 1)
    sizes = [len(device["primaries"]) for device in devices]
    return kept / together / (sum(n * (n - 1) for n in sizes) / (experts * (experts - 1)))


def main() -> int:
    program, model = sys.argv[1], pathlib.Path(sys.argv[2]) / "models/demo"
    if not (model / "model.safetensors").exists():
        print("skipped: models/demo is not there")
        return 77
    experts = json.loads((model / "config.json").read_text())["num_experts"]
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        profiled, _ = record(program, model, "profile", folder)
        judging, tokens_of_kind = record(program, model, "judge", folder)
        judged = layers_of(judging)
        most_skewed = 0.0
        for kind, tokens in tokens_of_kind.items():
            shares = [busiest_quarter(layer[tokens], experts) for layer in judged]
            most_skewed = max(most_skewed, sum(share >= SHARE for share in shares) / len(shares))
            print(f"{kind}: the busiest quarter takes {min(shares):.0%} to {max(shares):.0%} over layers")
        plan = folder / "plan.json"
        run(program, "plan", "--trace", str(profiled), "--cluster", "2x2", "--strategy", "grace", "--out", str(plan))
        plan_layers = json.loads(plan.read_text())["layers"]
        ratios = [kept_over_random(tokens, layer["devices"], experts) for tokens, layer in zip(judged, plan_layers, strict=True)]
        ratio = sum(ratios) / len(ratios)
        print(f"grace's groups keep {ratio:.2f} times the affinity of random groups ({min(ratios):.2f} to {max(ratios):.2f} over layers)")
    return 0 if most_skewed >= 0.5 and ratio >= RATIO else 1


if __name__ == "__main__":
    sys.exit(main())
