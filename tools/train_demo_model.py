#!/usr/bin/env python3
"""Trains the demo model of models/demo: a small OLMoE mixture of experts over six kinds of text, on CPU cores."""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import Tensor

from demo_model import card, corpus
from demo_model.corpus import KINDS
from demo_model.model import Model, Shape
from demo_model.trainer import Memory, Recipe, load_checkpoint, train

EXAMPLES = """examples:
  tools/train_demo_model.py prepare                    fetch text, split it, train the tokenizer
  tools/train_demo_model.py train --time-budget 1.5    train or go on training, for an hour and a half
  tools/train_demo_model.py export                     let the learning rate decay, write and judge models/demo
  tools/train_demo_model.py all --time-budget 2        all three
`export` branches off the last checkpoint, so that `train` can go on afterwards."""

REFERENCE_CONTEXT = 256
SAMPLE_TOKENS = 40
# Big freed blocks stay with the process and its kernels stay cached: a third of the time otherwise goes there.
ALLOCATOR = {
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
    "MALLOC_MMAP_THRESHOLD_": "2000000000",
    "MALLOC_TRIM_THRESHOLD_": "8000000000",
    "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "10000",
}


def main() -> None:
    args = parse_arguments()
    if any(os.environ.get(name) != value for name, value in ALLOCATOR.items()):
        os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | ALLOCATOR)
    args.work_dir.mkdir(parents=True, exist_ok=True)
    args.out.mkdir(parents=True, exist_ok=True)
    recipe = Recipe(processes=args.processes, seed=args.seed, balance_coefficient=args.balance)
    if args.stage in ("prepare", "all"):
        prepare(args.work_dir, args.out)
    if args.stage in ("train", "all"):
        verify_forward(recipe, args.work_dir)
        checkpoint = args.work_dir / "stable.pt"
        train(recipe, load_tokens(args.work_dir), checkpoint, checkpoint, args.time_budget * 3600)
    if args.stage in ("export", "all"):
        steps = args.decay_steps
        checkpoint = decay(recipe, args.work_dir, steps) if steps else args.work_dir / "stable.pt"
        export(recipe, checkpoint, args.work_dir, args.out)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, epilog=EXAMPLES,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stage", choices=("prepare", "train", "export", "all"))
    parser.add_argument("--work-dir", type=Path, default=Path("build/demo-model"),
                        help="packages, token ids and checkpoints (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=Path("models/demo"),
                        help="the model folder (default: %(default)s)")
    parser.add_argument("--time-budget", type=float, default=2.0, metavar="HOURS",
                        help="length of this `train` (default: %(default)s); SIGTERM ends it early, with a checkpoint")
    parser.add_argument("--decay-steps", type=int, default=800,
                        help="steps of decay before the export; 0 for none (default: %(default)s)")
    parser.add_argument("--balance", type=float, default=Recipe.balance_coefficient, metavar="COEFFICIENT",
                        help="of the load-balancing loss; lower gives experts of clearer kinds and less even loads (default: %(default)s)")
    parser.add_argument("--processes", type=int, default=2, help="one per core (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def prepare(work_dir: Path, out: Path) -> None:
    """Writes the tokenizer and the held-out text to `out`, the training tokens to `work_dir`."""
    corpus.fetch(work_dir)
    splits = {kind: corpus.split_documents(texts) for kind, texts in corpus.read_documents(work_dir).items()}
    corpus.train_tokenizer(splits, out)
    tokenizer = Tokenizer.from_file(str(out / "tokenizer.json"))
    prompts = {kind: corpus.cut_prompts(tokenizer, split.prompts) for kind, split in splits.items()}
    corpus.write_heldout(splits, prompts, out / "heldout")
    for kind, split in splits.items():
        tokens = corpus.encode_training_text(tokenizer, split.train)
        np.save(work_dir / f"{kind}.npy", tokens)
        print(f"{kind}: {len(split.train):,} documents, {len(tokens):,} tokens")


def load_tokens(work_dir: Path) -> dict[str, np.ndarray]:
    return {kind: np.load(work_dir / f"{kind}.npy") for kind in KINDS}


def decay(recipe: Recipe, work_dir: Path, steps: int) -> Path:
    """Branches off the last checkpoint with a learning rate that falls to zero. Returns the branch's checkpoint."""
    decayed = work_dir / "decayed.pt"
    train(recipe.with_decay(steps), load_tokens(work_dir), work_dir / "stable.pt", decayed, math.inf)
    return decayed


def export(recipe: Recipe, checkpoint: Path, work_dir: Path, out: Path) -> None:
    """Writes the weights of `checkpoint`, reference perplexities and the model card."""
    memory = Memory(recipe)
    progress, log = load_checkpoint(checkpoint, memory)
    write_model(recipe.shape, memory.views(memory.parameters), out)
    difference = difference_from_transformers(out)
    print(f"logits differ from transformers' by at most {difference:.1e}")

    torch.set_num_threads(1)
    reference = reference_perplexities(out)
    (out / "reference.json").write_text(json.dumps(reference, indent=2) + "\n")
    results = card.Results(
        recipe=recipe,
        progress=progress,
        log=log,
        training_tokens={kind: len(tokens) for kind, tokens in load_tokens(work_dir).items()},
        perplexity={kind: entry["perplexity"] for kind, entry in reference["files"].items()},
        baselines=baselines(work_dir, out),
        loads=expert_loads(out),
        samples=greedy_samples(out),
        versions={package: corpus.package_version(work_dir, package) for package in corpus.packages()},
    )
    card.write(results, out)
    print((out / "README.md").read_text())


def write_model(shape: Shape, parameters: dict[str, Tensor], out: Path) -> None:
    """Writes config.json, generation_config.json and model.safetensors in bf16 under the published names."""
    tensors: dict[str, Tensor] = {}
    for name, value in parameters.items():
        value = value.detach().to(torch.bfloat16)
        base = name.removesuffix("gate_up_proj").removesuffix("down_proj")
        if name.endswith("experts.gate_up_proj"):
            for expert, (gate, up) in enumerate(value.unflatten(1, (2, -1))):
                tensors[f"{base}{expert}.gate_proj.weight"] = gate.clone()
                tensors[f"{base}{expert}.up_proj.weight"] = up.clone()
        elif name.endswith("experts.down_proj"):
            for expert, down in enumerate(value):
                tensors[f"{base}{expert}.down_proj.weight"] = down.clone()
        else:
            tensors[name] = value.clone()
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    (out / "model.safetensors").chmod(0o644)
    (out / "config.json").write_text(json.dumps(shape.hf_config(), indent=2) + "\n")
    generation = {"eos_token_id": 0, "pad_token_id": 0, "do_sample": False}
    (out / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n")


def read_model(folder: Path) -> Model:
    """The shipped weights in f32 in our own forward pass."""
    shape = Shape()
    file = load_file(folder / "model.safetensors")
    parameters: dict[str, Tensor] = {}
    for name in shape.parameters():
        base = name.removesuffix("gate_up_proj").removesuffix("down_proj")
        if name.endswith("experts.gate_up_proj"):
            pairs = [[file[f"{base}{e}.{side}_proj.weight"] for side in ("gate", "up")] for e in range(shape.experts)]
            parameters[name] = torch.stack([torch.cat(pair) for pair in pairs]).float()
        elif name.endswith("experts.down_proj"):
            parameters[name] = torch.stack([file[f"{base}{e}.down_proj.weight"] for e in range(shape.experts)]).float()
        else:
            parameters[name] = file[name].float()
    return Model(shape, parameters, torch.float32)


def load_transformers(folder: Path) -> Any:
    from transformers import OlmoeForCausalLM

    return OlmoeForCausalLM.from_pretrained(folder, dtype=torch.float32, experts_implementation="eager").eval()


def verify_forward(recipe: Recipe, work_dir: Path) -> None:
    """Stops unless our forward pass equals transformers' on the initial weights."""
    memory = Memory(recipe)
    memory.initialise(recipe)
    folder = work_dir / "initial"
    folder.mkdir(exist_ok=True)
    write_model(recipe.shape, memory.views(memory.parameters), folder)
    difference_from_transformers(folder)


@torch.no_grad()
def difference_from_transformers(folder: Path) -> float:
    """The largest difference of a logit, relative to the largest logit, on random tokens; raises above 1e-4."""
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, Shape().vocab_size, (2, 128), generator=generator)
    expected = load_transformers(folder)(tokens, attention_mask=torch.ones_like(tokens)).logits
    difference = ((read_model(folder).logits(tokens) - expected).abs().max() / expected.abs().max()).item()
    if difference > 1e-4:
        raise SystemExit(f"{folder}: logits differ from transformers' by {difference:.1e}, more than 1e-4")
    return difference


def judge_tokens(out: Path) -> dict[str, Tensor]:
    tokenizer = Tokenizer.from_file(str(out / "tokenizer.json"))
    folder = out / "heldout" / "judge"
    return {kind: torch.tensor(tokenizer.encode((folder / f"{kind}.txt").read_text(encoding="utf-8")).ids)
            for kind in KINDS}


def sum_of_losses(model: Any, inputs: Tensor, targets: Tensor) -> float:
    """Negative log-likelihood of `targets`; `inputs` are cut into windows, the last of which may be short."""
    whole = len(inputs) // REFERENCE_CONTEXT * REFERENCE_CONTEXT
    total = 0.0
    for part in (inputs[:whole].view(-1, REFERENCE_CONTEXT), inputs[whole:].view(1, -1)):
        if part.numel():
            logits = model(part, attention_mask=torch.ones_like(part)).logits.flatten(0, 1).double()
            goal = targets[:whole] if part.shape[1] == REFERENCE_CONTEXT else targets[whole:]
            total += torch.nn.functional.cross_entropy(logits, goal, reduction="sum").item()
    return total


@torch.no_grad()
def reference_perplexities(out: Path) -> dict[str, Any]:
    """transformers' f32 perplexity over consecutive windows, every token but a file's first scored once."""
    model = load_transformers(out)
    files = {}
    for kind, tokens in judge_tokens(out).items():
        inputs, targets = tokens[:-1], tokens[1:]
        total = 0.0
        for window, target in zip(inputs.split(REFERENCE_CONTEXT * 16), targets.split(REFERENCE_CONTEXT * 16)):
            total += sum_of_losses(model, window, target)
        files[kind] = {"file": f"heldout/judge/{kind}.txt", "tokens": len(tokens),
                       "scored_tokens": len(tokens) - 1, "perplexity": math.exp(total / (len(tokens) - 1))}
        print(f"{kind}: perplexity {files[kind]['perplexity']:.2f}", flush=True)
    return {"context": REFERENCE_CONTEXT, "implementation": "transformers OlmoeForCausalLM, eager experts",
            "dtype": "float32", "files": files}


def baselines(work_dir: Path, out: Path) -> dict[str, dict[str, float]]:
    """Perplexities on the judging text of n-gram models made from all training tokens of the same kind."""
    judge = judge_tokens(out)
    return {kind: ngram_perplexities(tokens.astype(np.int64), judge[kind].numpy())
            for kind, tokens in load_tokens(work_dir).items()}


def ngram_perplexities(train_tokens: np.ndarray, judged: np.ndarray) -> dict[str, float]:
    """Unigram with one added count, and bigram with interpolated Kneser-Ney smoothing, both over judged[1:]."""
    size = Shape().vocab_size
    unigram = (np.bincount(train_tokens, minlength=size) + 1) / (len(train_tokens) + size)
    pairs, counts = np.unique(train_tokens[:-1] * size + train_tokens[1:], return_counts=True)
    discount = (counts == 1).sum() / ((counts == 1).sum() + 2 * (counts == 2).sum())
    followers = np.bincount(pairs // size, minlength=size)
    predecessors = np.bincount(pairs % size, minlength=size) + 1
    continuation = predecessors / predecessors.sum()
    context = np.bincount(pairs // size, weights=counts, minlength=size)

    before, after = judged[:-1], judged[1:]
    wanted = before * size + after
    place = np.minimum(np.searchsorted(pairs, wanted), len(pairs) - 1)
    count = np.where(pairs[place] == wanted, counts[place], 0)
    seen = np.maximum(context[before], 1)
    backoff = np.where(context[before] > 0, discount * followers[before] / seen, 1.0)
    bigram = np.maximum(count - discount, 0) / seen + backoff * continuation[after]
    return {"unigram": float(np.exp(-np.log(unigram[after]).mean())), "bigram": float(np.exp(-np.log(bigram).mean()))}


@torch.no_grad()
def expert_loads(out: Path) -> dict[str, np.ndarray]:
    """Assignments [layers, experts] per kind over the judging text."""
    model = read_model(out)
    loads = {}
    for kind, tokens in judge_tokens(out).items():
        windows = tokens[:len(tokens) // REFERENCE_CONTEXT * REFERENCE_CONTEXT].view(-1, REFERENCE_CONTEXT)
        counts = np.zeros((model.shape.layers, model.shape.experts), dtype=np.int64)
        for batch in windows.split(8):
            _, _, routed = model.hidden(batch)
            counts += np.stack([np.bincount(expert.reshape(-1), minlength=model.shape.experts) for expert in routed])
        loads[kind] = counts
    return loads


@torch.no_grad()
def greedy_samples(out: Path) -> dict[str, tuple[str, str]]:
    """One prompt of each kind and its greedy continuation, by transformers."""
    tokenizer = Tokenizer.from_file(str(out / "tokenizer.json"))
    model = load_transformers(out)
    lines = (out / "heldout" / "prompts.jsonl").read_text(encoding="utf-8").splitlines()
    samples: dict[str, tuple[str, str]] = {}
    for prompt in map(json.loads, lines):
        ids = tokenizer.encode(prompt["text"]).ids
        if len(ids) < 20 or prompt["kind"] in samples:
            continue
        inputs = torch.tensor([ids])
        output = model.generate(inputs, attention_mask=torch.ones_like(inputs), max_new_tokens=SAMPLE_TOKENS)
        samples[prompt["kind"]] = (prompt["text"], tokenizer.decode(output[0, len(ids):].tolist()))
    return samples


if __name__ == "__main__":
    main()
