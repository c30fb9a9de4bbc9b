"""Times grace_moe.eplb against the original it stands in for: needs the package grace_moe, torch, and a copy of DeepSeek's eplb.py.

    python3 tools/eplb_benchmark.py path/to/eplb.py [--rounds 9]

58 layers of 256 experts to 288 slots in 8 groups on 4 nodes of 8 GPUs, weights without ties. Both must place the same experts in the
same slots before anything is timed; then they take turns, and the medians and their ratio are printed.
"""

import argparse
import importlib.util
import statistics
import time

import numpy as np
import torch
from grace_moe import eplb as ours


def load(path: str):
    spec = importlib.util.spec_from_file_location("original_eplb", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def primes(least: int, below: int) -> np.ndarray:
    """No two of them, each divided by some number of copies, are equal; nor do 32 of them pass what float32 counts."""
    sieve = np.ones(below, dtype=bool)
    sieve[:2] = False
    for i in range(2, int(below**0.5) + 1):
        if sieve[i]:
            sieve[i * i::i] = False
    return np.flatnonzero(sieve)[np.flatnonzero(sieve) >= least]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("eplb", help="path of the original eplb.py")
    parser.add_argument("--rounds", type=int, default=9)
    args = parser.parse_args()
    theirs = load(args.eplb)
    rng = np.random.default_rng(0)
    weight = torch.from_numpy(np.stack([rng.choice(primes(1000, 500_000), 256, replace=False) for _ in range(58)]))
    call = (weight, 288, 8, 4, 32)
    wanted, found = theirs.rebalance_experts(*call), ours.rebalance_experts(*call)
    if not torch.equal(wanted[0], found[0]) or not torch.equal(wanted[2], found[2]):
        raise SystemExit("the two place experts otherwise; nothing is timed")
    seconds = {"original": [], "grace_moe": []}
    for _ in range(args.rounds):
        for name, module in (("original", theirs), ("grace_moe", ours)):
            begin = time.perf_counter()
            module.rebalance_experts(*call)
            seconds[name].append(time.perf_counter() - begin)
    for name, times in seconds.items():
        print(f"{name}: {1e3 * statistics.median(times):.2f} ms ({1e3 * min(times):.2f}..{1e3 * max(times):.2f})")
    print(f"original / grace_moe: {statistics.median(seconds['original']) / statistics.median(seconds['grace_moe']):.0f}")


if __name__ == "__main__":
    main()
