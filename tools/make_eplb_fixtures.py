"""Random cases of EPLB's rebalance_experts with the original's answers, as tests/fixtures/eplb/cases.txt (arguments: path of an eplb.py, count, seed, output).

Each case is a line of whole numbers: layers, experts, replicas, groups, nodes, gpus, the weights, X, then the three arrays the original returns.
"""

import importlib.util
import random
import sys

import torch

# Newer torch sorts otherwise than stably, and then copies of one expert, which weigh the same, come in any order.
torch.Tensor.sort = lambda self, dim=-1, descending=False: torch.sort(self, dim=dim, descending=descending, stable=True)


def load(path):
    spec = importlib.util.spec_from_file_location("eplb", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def is_tie_free(weight, counts, groups):
    """No two experts' loads a copy are ever equal, nor two groups' loads: the original's order hangs on nothing else."""
    for row, copies in zip(weight, counts.tolist()):
        shares = [float(torch.tensor(float(load_)) / n) for load_, most in zip(row, copies) for n in range(1, most + 1)]
        size = len(row) // groups
        sums = [sum(row[g * size:(g + 1) * size]) for g in range(groups)]
        if len(set(shares)) < len(shares) or len(set(sums)) < len(sums) or max(sums) >= 2**24:
            return False
    return True


def draw(rng):
    nodes = rng.choice([1, 1, 2, 3, 4])
    gpus = nodes * rng.choice([1, 2, 3, 4])
    groups = nodes * rng.choice([1, 2, 3]) if rng.random() < 0.7 else rng.choice([1, 3, 5])
    experts = groups * rng.choice([1, 2, 3, 4, 6])
    least = -(-experts // gpus)
    replicas = gpus * (least + rng.choice([0, 0, 1, 1, 2, 3]))
    layers = rng.choice([1, 1, 2, 3])
    # Skewed, so that the original puts some experts twice on a GPU.
    weight = [[int(2 ** rng.uniform(0, 20)) for _ in range(experts)] for _ in range(layers)]
    return layers, experts, replicas, groups, nodes, gpus, weight


def main():
    eplb, count, seed, out = load(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    rng = random.Random(seed)
    lines, doubled = [], 0
    while len(lines) < count:
        layers, experts, replicas, groups, nodes, gpus, weight = draw(rng)
        slots, copies, counts = eplb.rebalance_experts(torch.tensor(weight), replicas, groups, nodes, gpus)
        if not is_tie_free(weight, counts, groups):
            continue
        by_gpu = slots.view(layers, gpus, -1).tolist()
        doubled += any(len(set(here)) < len(here) for row in by_gpu for here in row)
        numbers = [layers, experts, replicas, groups, nodes, gpus, *(w for row in weight for w in row), copies.shape[-1],
                   *slots.flatten().tolist(), *copies.flatten().tolist(), *counts.flatten().tolist()]
        lines.append(" ".join(map(str, numbers)))
    with open(out, "w") as file:
        file.write("\n".join(lines) + "\n")
    print(f"{count} cases, {doubled} of them with an expert twice on a GPU")


if __name__ == "__main__":
    main()
