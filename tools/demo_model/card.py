"""The model card: README.md and the loss curve, written from measured results."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from demo_model.corpus import SOURCES
from demo_model.trainer import Progress, Recipe

NAMES = {"en": "English", "de": "German", "ja": "Japanese", "py": "Python", "c": "C", "math": "mathematics"}


@dataclass(frozen=True)
class Results:
    """Everything the card says; per-kind values are keyed as in NAMES, loads are [layers, experts]."""

    recipe: Recipe
    progress: Progress
    log: list[dict[str, float]]
    training_tokens: dict[str, int]
    perplexity: dict[str, float]
    baselines: dict[str, dict[str, float]]
    loads: dict[str, np.ndarray]
    samples: dict[str, tuple[str, str]]
    versions: dict[str, str]


def write(results: Results, out: Path) -> None:
    (out / "loss.svg").write_text(_curve(results.log))
    sections = (_what(results), _data(results), _training(results), _quality(results), _experts(results),
                _samples(results), _limits(results), _retrain())
    (out / "README.md").write_text("\n\n".join(sections) + "\n", encoding="utf-8")


def _table(head: list[str], rows: list[list[str]]) -> str:
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (head, ["---"] * len(head), *rows))


def _what(results: Results) -> str:
    shape = results.recipe.shape
    size = sum(math.prod(tensor) for tensor in shape.parameters().values())
    return f"""# The demo model

A small mixture-of-experts language model with OLMoE's architecture (`OlmoeForCausalLM`), trained from scratch so that
everything in this repository can be tried on real routing without a download. It is a toy: it knows the style of six
kinds of text, not facts.

{shape.layers} layers, {shape.experts} experts per layer of which each token uses {shape.top_k}, hidden size {shape.hidden}, expert size {shape.expert_ffn},
{shape.heads} heads, tied embeddings, vocabulary of {shape.vocab_size:,} (byte-level BPE): {size / 1e6:.1f} M parameters, {size * 2 / 1e6:.0f} MB in bf16.

- `config.json`, `generation_config.json`, `tokenizer.json`, `tokenizer_config.json`, `model.safetensors`: the model, as Hugging Face has it
- `heldout/profile/<kind>.txt`: text to record routing on; `heldout/judge/<kind>.txt`: text to judge on; `heldout/prompts.jsonl`: prompts.
  No document of these is in the training text or in two of the parts.
- `reference.json`: perplexities of transformers in f32 on `heldout/judge`, for tests of other implementations"""


def _data(results: Results) -> str:
    rows = []
    for source in SOURCES:
        origin = f"Debian package `{source.package}` {results.versions[source.package]}" if source.package \
            else "the Python standard library"
        rows.append([NAMES[source.kind], origin, source.holder, source.licence])
    return f"""## Data

{_table(["kind", "source", "copyright", "licence"], rows)}

The excerpts in `heldout/` stay under their sources' licences: the full texts are those of the SPDX identifiers.
What was changed: mark-up, page headers and footers removed; untranslated English lines removed from German and
Japanese; licence headers at the top of C files removed; proofs removed from the mathematics (Metamath's `set.mm`)."""


def _training(results: Results) -> str:
    recipe, progress = results.recipe, results.progress
    tokens = progress.sequences * recipe.context
    available = sum(results.training_tokens.values())
    amounts = ", ".join(f"{kind} {count / 1e6:.1f} M" for kind, count in results.training_tokens.items())
    stops = np.unique(np.linspace(0, len(results.log) - 1, 9).astype(int))
    rows = [[f"{results.log[i]['step']:,}", f"{results.log[i]['tokens'] / 1e6:.2f} M", f"{results.log[i]['loss']:.2f}"]
            for i in stops]
    decay_steps = progress.step - progress.decay_start if progress.decay_start else 0
    decay = f", then {decay_steps:,} steps of linear decay to zero" if decay_steps else ""
    return f"""## Training

{tokens / 1e6:.1f} M tokens ({available / 1e6:.1f} M available: {amounts}) in {progress.seconds / 60:.0f} minutes on two CPU cores,
{tokens / progress.seconds:,.0f} tokens/s. Sequences of {recipe.context} tokens of one kind each, kinds in turn, {recipe.sequences_per_step} sequences a step.
Adam ({recipe.learning_rate:g} after {recipe.warmup_steps} steps of warm-up{decay}), gradient norm clipped to {recipe.clip:g},
initial standard deviation {recipe.init_std:g}, load-balancing loss {_balance_in_words(progress)} per layer, products in bf16, weights in f32.

![training loss](loss.svg)

{_table(["step", "tokens", "training loss"], rows)}"""


def _balance_in_words(progress: Progress) -> str:
    """`0.001`, or `0.001, from step 2,473 on 0.0002`."""
    (_, first), *later = progress.balance
    return f"{first:g}" + "".join(f", from step {step:,} on {coefficient:g}" for step, coefficient in later)


def _quality(results: Results) -> str:
    rows, above = [], []
    for kind, value in results.perplexity.items():
        base = results.baselines[kind]
        rows.append([NAMES[kind], f"{value:.1f}", f"{base['bigram']:.1f}", f"{base['unigram']:.0f}"])
        if value > base["bigram"]:
            above.append(NAMES[kind])
    verdict = "It beats the bigram model on every kind."
    if above:
        verdict = f"It does not beat the bigram model on {', '.join(above)}."
    return f"""## Held-out perplexity

{_table(["kind", "this model", "bigram", "unigram"], rows)}

On `heldout/judge`, per token, windows of 256. The n-gram models are made from all training tokens of that same kind
(bigram: interpolated Kneser-Ney), so they know the kind beforehand; the model does not. {verdict}"""


def _experts(results: Results) -> str:
    shares = {kind: load / load.sum(1, keepdims=True) for kind, load in results.loads.items()}
    mixed = np.mean(list(shares.values()), axis=0)
    total = sum(results.loads.values())
    by_layer = []
    for layer, share in enumerate(mixed):
        kinds = {kind: _busiest_quarter(values[layer]) for kind, values in shares.items()}
        top = max(kinds, key=kinds.__getitem__)
        by_layer.append([str(layer), f"{_peak(share):.2f}", f"{_busiest_quarter(share):.0%}",
                         str(int((total[layer] == 0).sum())), f"{NAMES[top]} {kinds[top]:.0%}"])
    by_kind = []
    for kind, values in shares.items():
        quarters = [_busiest_quarter(share) for share in values]
        by_kind.append([NAMES[kind], f"{np.mean([_peak(share) for share in values]):.2f}", f"{np.mean(quarters):.0%}",
                        f"{sum(quarter >= 0.4 for quarter in quarters)} of {len(quarters)}",
                        f"{(values == 0).sum(1).mean():.1f}"])
    return f"""## Expert loads

Assignments on `heldout/judge`; max/mean is the busiest expert's load over the average, the busiest quarter is the share
of the {len(mixed[0]) // 4} busiest experts (a uniform load has 25 %), dead experts got no token at all.

All kinds mixed in equal parts, layer by layer:

{_table(["layer", "max/mean", "busiest quarter", "dead", "most skewed kind's busiest quarter"], by_layer)}

One kind alone, mean of the layers:

{_table(["kind", "max/mean", "busiest quarter", "layers where it is >= 40 %", "experts unused by the kind"], by_kind)}"""


def _busiest_quarter(share: np.ndarray) -> float:
    return float(np.sort(share)[-(len(share) // 4):].sum())


def _peak(share: np.ndarray) -> float:
    return float(share.max() / share.mean())


def _samples(results: Results) -> str:
    blocks = [f"{NAMES[kind]}:\n\n```text\n{prompt[-160:]} ⟶ {continuation}\n```"
              for kind, (prompt, continuation) in results.samples.items()]
    return "## Samples\n\nThe end of a held-out prompt, an arrow, and the greedy continuation.\n\n" + "\n\n".join(blocks)


def _limits(results: Results) -> str:
    context, positions = results.recipe.context, results.recipe.shape.max_positions
    return f"""## Limits

- Trained on {context} positions: `max_position_embeddings` is {positions:,}, but text beyond position {context} is predicted poorly.
- English, German and Japanese are technical documentation, much of it the same manuals in three languages.
- Documents of one source resemble each other and some share paragraphs (the LibreOffice help above all), so held-out text is
  easier than text from elsewhere, for the n-gram models too.
- Continuations lose their thread after a sentence or two, and greedy ones fall into loops.
- Made for tests and demonstrations of serving, not for use as a language model."""


def _retrain() -> str:
    return """## Training it again

On a Debian machine, with `tools/requirements.txt` installed in a virtual environment:

```sh
tools/train_demo_model.py all --time-budget 2
```

`--help` has the stages. Training resumes exactly from its checkpoint; another Debian release or Python version
changes the text and therefore the held-out split."""


def _curve(log: list[dict[str, float]]) -> str:
    width, height, margin = 640, 240, 40
    tokens = np.array([entry["tokens"] for entry in log])
    loss = np.array([entry["loss"] for entry in log])
    low, high = math.floor(loss.min()), math.ceil(loss.max())
    x = margin + tokens / tokens.max() * (width - 2 * margin)
    y = height - margin - (loss - low) / (high - low) * (height - 2 * margin)
    points = " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(x, y))
    ticks = "".join(
        f'<text x="{margin - 8}" y="{height - margin - (v - low) / (high - low) * (height - 2 * margin) + 4:.1f}" '
        f'text-anchor="end">{v}</text>' for v in range(low, high + 1))
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">
<rect width="{width}" height="{height}" fill="white"/>
<path d="M{margin},{margin}V{height - margin}H{width - margin}" fill="none" stroke="gray"/>
{ticks}
<text x="{width - margin}" y="{height - margin + 18}" text-anchor="end">{tokens.max() / 1e6:.1f} M tokens</text>
<text x="{margin}" y="{height - margin + 18}">training loss (nats per token)</text>
<polyline points="{points}" fill="none" stroke="steelblue" stroke-width="1.5"/>
</svg>
"""
