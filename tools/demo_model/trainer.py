"""Data-parallel training on CPU processes that share parameters, gradients and optimiser state in memory.

Every rank takes its own sequences; then each rank averages the gradients and updates the parameters of its own slice.
A run is warm-up and a constant learning rate without end; `decay` branches off a checkpoint and leaves it untouched.
"""

from __future__ import annotations

import math
import os
import signal
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
import torch.multiprocessing as mp
from torch import Tensor

from demo_model.model import Model, Shape

BETA1, BETA2, EPSILON = 0.9, 0.95, 1e-8
BARRIER_TIMEOUT_S = 300


@dataclass(frozen=True)
class Recipe:
    """What shapes the result; `decay_steps` 0 is the constant phase."""

    shape: Shape = Shape()
    seed: int = 0
    context: int = 512
    sequences_per_step: int = 4
    learning_rate: float = 3e-3
    warmup_steps: int = 200
    decay_steps: int = 0
    init_std: float = 0.05
    balance_coefficient: float = 0.001
    clip: float = 1.0
    processes: int = 2

    def with_decay(self, steps: int) -> Recipe:
        return replace(self, decay_steps=steps)


class Memory:
    """Flat f32 buffers in shared memory: parameters, both moments, one gradient per rank."""

    def __init__(self, recipe: Recipe) -> None:
        self.shapes = recipe.shape.parameters()
        size = sum(math.prod(shape) for shape in self.shapes.values())
        self.parameters, self.first, self.second = (torch.zeros(size).share_memory_() for _ in range(3))
        self.gradients = [torch.zeros(size).share_memory_() for _ in range(recipe.processes)]
        self.squares = torch.zeros(recipe.processes).share_memory_()
        self.losses = torch.zeros(recipe.processes, 2).share_memory_()
        self.stop = torch.zeros(1, dtype=torch.int64).share_memory_()
        self.barrier = mp.get_context("spawn").Barrier(recipe.processes, timeout=BARRIER_TIMEOUT_S)

    def views(self, flat: Tensor) -> dict[str, Tensor]:
        sizes = [math.prod(shape) for shape in self.shapes.values()]
        return {name: part.view(shape) for (name, shape), part in zip(self.shapes.items(), flat.split(sizes))}

    def initialise(self, recipe: Recipe) -> None:
        generator = torch.Generator().manual_seed(recipe.seed)
        for view in self.views(self.parameters).values():
            view.fill_(1.0) if view.dim() == 1 else view.normal_(0.0, recipe.init_std, generator=generator)


class Batches:
    """Sequences of one kind each, kinds in turn; the n-th sequence depends on n and the seed alone."""

    def __init__(self, tokens: dict[str, np.ndarray], context: int, seed: int) -> None:
        self._tokens = list(tokens.values())
        self._context = context
        self._seed = seed
        self._orders: dict[tuple[int, int], np.ndarray] = {}

    def sequence(self, index: int) -> np.ndarray:
        """[context + 1] tokens. Each pass over a kind takes its windows in a new order."""
        turn, kind = divmod(index, len(self._tokens))
        tokens = self._tokens[kind]
        windows = (len(tokens) - 1) // self._context
        epoch, place = divmod(turn, windows)
        start = self._order(kind, epoch, windows)[place] * self._context
        return tokens[start:start + self._context + 1]

    def _order(self, kind: int, epoch: int, windows: int) -> np.ndarray:
        key = (kind, epoch)
        if key not in self._orders:
            self._orders[key] = np.random.default_rng((self._seed, kind, epoch)).permutation(windows)
        return self._orders[key]


@dataclass
class Progress:
    """Where a run stands; everything that resuming needs beside the buffers."""

    step: int = 0
    sequences: int = 0
    seconds: float = 0.0
    decay_start: int = 0
    balance: list[tuple[int, float]] = field(default_factory=list)  # from which step on, which coefficient

    def note_balance(self, coefficient: float) -> None:
        if not self.balance or self.balance[-1][1] != coefficient:
            self.balance.append((self.step, coefficient))


def learning_rate(recipe: Recipe, progress: Progress) -> float:
    if recipe.decay_steps:
        left = 1.0 - (progress.step - progress.decay_start) / recipe.decay_steps
        return recipe.learning_rate * max(left, 0.0)
    return recipe.learning_rate * min(1.0, (progress.step + 1) / recipe.warmup_steps)


def save_checkpoint(path: Path, memory: Memory, progress: Progress, log: list[dict[str, float]]) -> None:
    """Replaces `path` at once, so that a kill leaves the old or the new file."""
    state = {"progress": vars(progress), "log": log, "parameters": memory.parameters,
             "first": memory.first, "second": memory.second}
    torch.save(state, path.with_suffix(".tmp"))
    os.replace(path.with_suffix(".tmp"), path)


def load_checkpoint(path: Path, memory: Memory) -> tuple[Progress, list[dict[str, float]]]:
    state = torch.load(path, weights_only=True)
    for name in ("parameters", "first", "second"):
        getattr(memory, name).copy_(state[name])
    return Progress(**state["progress"]), state["log"]


def train(recipe: Recipe, tokens: dict[str, np.ndarray], resume: Path, checkpoint: Path, seconds: float) -> None:
    """Runs until `seconds` have passed, the decay is done, or SIGTERM or SIGINT comes; ends with a checkpoint.

    Starts from `resume` if it exists, else from scratch.
    """
    if recipe.sequences_per_step % recipe.processes:
        raise SystemExit(f"{recipe.sequences_per_step} sequences a step are not a multiple of "
                         f"{recipe.processes} processes")
    memory = Memory(recipe)
    if resume.exists():
        progress, log = load_checkpoint(resume, memory)
    else:
        memory.initialise(recipe)
        progress, log = Progress(), []
    progress.note_balance(recipe.balance_coefficient)
    if recipe.decay_steps and not progress.decay_start:
        progress.decay_start = progress.step
    context = mp.get_context("spawn")
    others = [context.Process(target=_follow, args=(rank, recipe, tokens, memory, progress), daemon=True)
              for rank in range(1, recipe.processes)]
    for process in others:
        process.start()
    _lead(recipe, tokens, memory, progress, log, checkpoint, seconds)
    for process in others:
        process.join()


class _Rank:
    def __init__(self, rank: int, recipe: Recipe, tokens: dict[str, np.ndarray], memory: Memory) -> None:
        torch.set_num_threads(1)
        self.rank, self.recipe, self.memory = rank, recipe, memory
        self.batches = Batches(tokens, recipe.context, recipe.seed)
        self.gradient = memory.gradients[rank]
        leaves = {name: view.requires_grad_() for name, view in memory.views(memory.parameters.detach()).items()}
        for leaf, gradient in zip(leaves.values(), memory.views(self.gradient).values()):
            leaf.grad = gradient
        self.model = Model(recipe.shape, leaves, torch.bfloat16)
        shard = -(-len(memory.parameters) // recipe.processes)
        self.mine = slice(rank * shard, (rank + 1) * shard)

    def gradients(self, progress: Progress) -> None:
        """Fills this rank's gradient from its share of the step's sequences."""
        share = self.recipe.sequences_per_step // self.recipe.processes
        first = progress.sequences + self.rank * share
        rows = np.stack([self.batches.sequence(first + i) for i in range(share)]).astype(np.int64)
        self.gradient.zero_()
        loss, balance = self.model.loss(torch.from_numpy(rows))
        (loss + self.recipe.balance_coefficient * balance).backward()
        self.memory.losses[self.rank] = torch.stack([loss.detach(), balance.detach()])

    def update(self, progress: Progress) -> bool:
        """One Adam step on this rank's slice, after all ranks have their gradients. Returns whether it was the last.

        The leader may ask for the stop only before the first barrier, so all ranks read the same answer.
        """
        memory, mine, count = self.memory, self.mine, self.recipe.processes
        memory.barrier.wait()
        mean = torch.stack([gradient[mine] for gradient in memory.gradients]).mean(0)
        memory.squares[self.rank] = mean.square().sum()
        memory.barrier.wait()
        norm = memory.squares.sum().sqrt().item()
        mean.mul_(min(1.0, self.recipe.clip / (norm + 1e-6)))
        first, second, parameters = memory.first[mine], memory.second[mine], memory.parameters[mine]
        first.lerp_(mean, 1 - BETA1)
        second.mul_(BETA2).addcmul_(mean, mean, value=1 - BETA2)
        step = progress.step + 1
        scale = learning_rate(self.recipe, progress) / (1 - BETA1**step)
        parameters.addcdiv_(first, (second / (1 - BETA2**step)).sqrt_().add_(EPSILON), value=-scale)
        progress.step += 1
        progress.sequences += self.recipe.sequences_per_step
        last = bool(memory.stop.item())
        memory.barrier.wait()
        return last


def _follow(rank: int, recipe: Recipe, tokens: dict[str, np.ndarray], memory: Memory, progress: Progress) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    worker = _Rank(rank, recipe, tokens, memory)
    memory.barrier.wait()
    last = False
    while not last:
        worker.gradients(progress)
        last = worker.update(progress)


def _lead(recipe: Recipe, tokens: dict[str, np.ndarray], memory: Memory, progress: Progress,
          log: list[dict[str, float]], checkpoint: Path, seconds: float) -> None:
    asked: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda signum, _: asked.append(signum))
    worker = _Rank(0, recipe, tokens, memory)
    memory.barrier.wait()
    begin = saved = shown = time.monotonic()
    spent_before, shown_sequences = progress.seconds, progress.sequences
    recent: list[Tensor] = []
    last = False
    while not last:
        worker.gradients(progress)
        now = time.monotonic()
        decayed = recipe.decay_steps and progress.step + 1 - progress.decay_start >= recipe.decay_steps
        if asked or decayed or now - begin >= seconds:
            memory.stop[0] = 1
        last = worker.update(progress)
        progress.seconds = spent_before + now - begin
        recent.append(memory.losses.mean(0))
        if now - shown >= 10 or last:
            loss, balance = torch.stack(recent).mean(0).tolist()
            new_tokens = (progress.sequences - shown_sequences) * recipe.context
            log.append({"step": progress.step, "tokens": progress.sequences * recipe.context, "loss": loss})
            seconds_left = begin + seconds - now
            if recipe.decay_steps:
                steps_left = recipe.decay_steps - (progress.step - progress.decay_start)
                seconds_left = min(seconds_left, steps_left * (now - shown) / len(recent))
            _show(progress, loss, balance, new_tokens / max(now - shown, 1e-9), seconds_left)
            shown, shown_sequences, recent = now, progress.sequences, []
        if now - saved >= 120 or last:
            save_checkpoint(checkpoint, memory, progress, log)
            saved = now


def _show(progress: Progress, loss: float, balance: float, tokens_per_s: float, seconds_left: float) -> None:
    print(f"step {progress.step:6d}  loss {loss:.3f}  balance {balance:.2f}  {tokens_per_s:,.0f} tokens/s  "
          f"{seconds_left / 60:.1f} min left", flush=True)
