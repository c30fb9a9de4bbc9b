"""The same text for every rank count, transport, dispatch, plan and way to overlap, on the shipped model (arguments: program, source folder).

GRACE_TEST_ALL=1 runs the whole matrix; otherwise a subset in which every value of every axis occurs, and every transport with every plan.
"""

import itertools
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile

CLUSTERS = {1: "1x1", 2: "1x2", 3: "1x3", 4: "2x2", 8: "2x4"}
TRANSPORTS = ("in_process", "mpi")
DISPATCHES = ("flat", "per_device", "two_stage", "padded", "allgather", "auto")
WAYS = ("", "--overlap on --parts 2", "--overlap off --parts 1", "--overlap on --parts 3 --progress thread")  # in turn
PLANS = ("vanilla", "grace", "joint-slow", "permuted", "doubled")
NUM_PROMPTS = 33
NUM_ALONE = 2  # the first prompts once more without the others: at 3 and 4 ranks some have no token, and the text must not change either
NEW_TOKENS = 64


def run(program: str, *arguments: str) -> str:
    done = subprocess.run([program, *arguments], capture_output=True, text=True, timeout=900)
    if done.returncode != 0:
        raise RuntimeError(f"grace {' '.join(arguments)}: exit {done.returncode}: {done.stderr.strip()}")
    return done.stdout


def moved(plan: dict, permutation: list[int]) -> dict:
    """The plan with its experts renamed: a placement nobody would choose."""
    plan = json.loads(json.dumps(plan))
    for layer in plan["layers"]:
        for device in layer["devices"]:
            device["primaries"] = sorted(permutation[e] for e in device["primaries"])
            device["replicas"] = []
    plan["strategy"] = "permuted"
    return plan


def doubled(plan: dict) -> dict:
    """Every expert a second time, on the next device."""
    plan = json.loads(json.dumps(plan))
    for layer in plan["layers"]:
        devices = layer["devices"]
        for index, device in enumerate(devices):
            device["replicas"] = devices[index - 1]["primaries"]
    plan["strategy"] = "doubled"
    return plan


def make_plans(program: str, trace: pathlib.Path, ranks: int, folder: pathlib.Path) -> dict[str, pathlib.Path]:
    plans = {}
    for strategy in ("vanilla", "grace", "joint-slow"):
        plans[strategy] = folder / f"{strategy}-{ranks}.json"
        run(program, "plan", "--trace", str(trace), "--cluster", CLUSTERS[ranks], "--strategy", strategy, "--effort", "0.1", "--out", str(plans[strategy]))
    joint = json.loads(plans["joint-slow"].read_text())
    joint["routing"] = "cover"  # whatever policy the search found best here
    plans["joint-slow"].write_text(json.dumps(joint))
    copies = sum(len(device["replicas"]) for layer in joint["layers"] for device in layer["devices"])
    assert ranks < 4 or copies > 0, "joint-slow has no copies to choose among"
    vanilla = json.loads(plans["vanilla"].read_text())
    permutation = list(range(vanilla["num_experts"]))
    random.Random(7).shuffle(permutation)
    variants = {"permuted": moved(vanilla, permutation)}
    if ranks > 1:
        variants["doubled"] = doubled(vanilla)
    for name, plan in variants.items():
        plans[name] = folder / f"{name}-{ranks}.json"
        plans[name].write_text(json.dumps(plan))
    return plans


def token_ids(program: str, model: pathlib.Path, prompts: pathlib.Path, ranks: int, transport: str, dispatch: str, way: str, plan: pathlib.Path) -> list:
    output = run(program, "run", str(model), "--prompts", str(prompts), "--cluster", CLUSTERS[ranks], "--transport", transport,
                 "--dispatch", dispatch, "--plan", str(plan), "--max-new-tokens", str(NEW_TOKENS), "--ignore-eos", "--json", *way.split())
    return [entry["token_ids"] for entry in json.loads(output)["outputs"]]


def cells(everything: bool) -> list[tuple[int, str, str, str]]:
    product = [c for c in itertools.product(CLUSTERS, TRANSPORTS, DISPATCHES, PLANS) if not (c[0] == 1 and c[3] == "doubled") and c[:2] != (8, "mpi")]
    if everything:
        return product
    spanning = [(1, "in_process", "per_device", "vanilla"), (1, "mpi", "flat", "grace"), (2, "in_process", "per_device", "doubled"),
                (3, "in_process", "flat", "permuted"), (3, "mpi", "two_stage", "doubled"), (4, "in_process", "padded", "vanilla"),
                (4, "in_process", "two_stage", "grace"), (4, "mpi", "allgather", "vanilla"), (4, "mpi", "per_device", "permuted"),
                (2, "mpi", "per_device", "grace"),
                (4, "mpi", "two_stage", "joint-slow"), (3, "mpi", "flat", "joint-slow"), (4, "mpi", "auto", "grace"), (8, "in_process", "two_stage", "joint-slow")]
    return spanning


def main() -> int:
    program, source = sys.argv[1], pathlib.Path(sys.argv[2])
    model = source / "models/demo"
    if not (model / "model.safetensors").exists():
        print("skipped: models/demo is not there")
        return 77
    everything = os.environ.get("GRACE_TEST_ALL") == "1"
    prompts = [json.loads(line)["text"] for line in (model / "heldout/prompts.jsonl").read_text().splitlines()][:NUM_PROMPTS]
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        prompt_file, alone_file, trace = folder / "prompts.jsonl", folder / "alone.jsonl", folder / "trace.safetensors"
        for file, texts in ((prompt_file, prompts), (alone_file, prompts[:NUM_ALONE])):
            file.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        run(program, "profile", str(model), "--text", str(sorted((model / "heldout/profile").glob("*.txt"))[0]), "--out", str(trace))
        plans = {ranks: make_plans(program, trace, ranks, folder) for ranks in CLUSTERS}
        expected = None
        for number, (ranks, transport, dispatch, plan) in enumerate(cells(everything)):
            way = WAYS[number % len(WAYS)]
            ids = token_ids(program, model, prompt_file, ranks, transport, dispatch, way, plans[ranks][plan])
            alone = token_ids(program, model, alone_file, ranks, transport, dispatch, way, plans[ranks][plan])
            assert len(ids) == len(prompts) and all(len(row) == NEW_TOKENS for row in ids), "outputs are missing"
            expected = expected or ids
            differing = sum(a != b for a, b in zip(expected + expected[:NUM_ALONE], ids + alone, strict=True))
            print(f"{ranks} ranks, {transport}, {dispatch}, {plan}{way and ', '}{way}: {'same text' if not differing else f'{differing} prompts DIFFER'}", flush=True)
            if differing:
                return 1
        text = str(sorted((model / "heldout/judge").glob("*.txt"))[0])
        for wire in ("f32", "bf16"):
            told = json.loads(run(program, "bench", str(model), "--text", text, "--cluster", "2x2", "--batch", "64", "--prefill", "32", "--decode", "32", "--rounds", "1",
                                  "--strategies", "vanilla,grace", "--combine", "reduced", "--wire", wire, "--json"))
            differing, ties = (sum(entry[key] for entry in told["strategies"]) for key in ("differing_prompts", "near_ties"))
            print(f"reduced results, {wire}: {differing} of 64 prompts differ, {ties} of them at near-ties", flush=True)
            assert differing == ties, "a text differs where the best two logits do not"
    return 0


if __name__ == "__main__":
    sys.exit(main())
