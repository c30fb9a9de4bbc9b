"""Two stages against one, over tokens per rank and link rates: where each wins, and how near the automatic choice is to the better one."""

import json
import pathlib
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from labkit.exchange import page, trace as traces
from labkit.exchange.figures import outcome_of
from labkit.exchange.preparation import calibrated, kbits
from labkit.exchange.program import ALIGNED, Program, Run, replay
from labkit.exchange.progress import duration, run_all
from labkit.exchange.store import Store, write_atomically
from labkit.refusal import Refusal
from labkit.units import bits_per_s

ASKED_FILE = "curve.json"
ONE, TWO, AUTO = "per_device", "two_stage", "auto"
RATES = "200mbit,1gbit,4gbit"
MOST_TOKENS, STEP = 8192, 4
ROUNDS = 5
HIDDEN, FFN = 2048, 16  # experts so small that the exchange is what there is to measure
DEVICES = 4  # 2x2
STEPS_OF_ONE_TOKEN, TOKENS_OF_ONE_STEP = 64, 1024  # few tokens: more steps, so that a run is longer than its noise
AIM = 0.15


def shape_file(store: Store, trace: traces.Trace) -> pathlib.Path:
    """A config.json of true vectors and tiny experts."""
    config = {"hidden_size": HIDDEN, "num_hidden_layers": max(trace.decoder_layers) + 1, "vocab_size": 256, "num_attention_heads": 16,
              "num_experts": trace.experts, "num_experts_per_tok": trace.experts_per_token, "moe_intermediate_size": FFN, "intermediate_size": FFN}
    path = store.folder / f"exchange-{trace.experts}-{trace.experts_per_token}" / "config.json"
    write_atomically(path, json.dumps(config) + "\n")
    return path


def token_counts(most: int, step: int) -> list[int]:
    counts = []
    tokens = 1
    while tokens < most:
        counts.append(tokens)
        tokens *= step
    return [*counts, most]


def steps_at(tokens: int) -> int:
    return max(1, min(STEPS_OF_ONE_TOKEN, TOKENS_OF_ONE_STEP // tokens))


@dataclass(frozen=True)
class Point:
    rate: int
    tokens: int  # of a rank, in each step
    dispatch: str
    round: int

    @property
    def name(self) -> str:
        return f"{self.dispatch}.{self.tokens}.{self.rate // 1000}kbit.round{self.round}"


def dispatches(program: Program) -> list[str]:
    return [ONE, TWO, AUTO] if program.says("bench", AUTO) else [ONE, TWO]


def run_of(point: Point, program: Program, files: dict[str, pathlib.Path]) -> Run:
    words = (*replay("{shape}", 1, DEVICES * point.tokens, 1, steps_at(point.tokens)), "--cluster", "{cluster}", "--strategies", "vanilla",
             "--dispatch", point.dispatch, "--rounds", "3" if point.tokens <= TOKENS_OF_ONE_STEP else "1", ALIGNED)
    return Run(point.name, words, point.rate, files=files)


def run_curve(program: Program, store: Store, routing: pathlib.Path, rates: str, most: int, step: int, rounds: int, dry: bool) -> bool:
    """Measures what is missing: at each point the dispatches in turn, round after round. Returns whether nothing is."""
    if not 1 <= most <= 16384 or step < 2 or rounds < 1:
        raise Refusal("curve: --most is in [1, 16384], --step at least 2, --rounds at least 1")
    shape = shape_file(store, traces.read(routing))
    points = [Point(kbits(bits_per_s(rate)), tokens, dispatch, number) for rate in rates.split(",") for tokens in token_counts(most, step)
              for number in range(1, rounds + 1) for dispatch in dispatches(program)]
    clusters = {rate: calibrated(program, store, rate, dry) for rate in {point.rate for point in points}}
    if None in clusters.values():
        print(f"curve: calibrations and up to {len(points)} runs are missing, about {duration(sum(map(_guess_s, points)))}")
        return False
    runs = [run_of(point, program, {"shape": shape, "routing": routing, "cluster": clusters[point.rate]}) for point in points]
    told = {"rounds": rounds, "routing": page.path_words(routing), "rates": rates, "most": most, "step": step, "version": program.version,
            "points": [point.__dict__ | {"run": run.name, "key": run.key(program)} for point, run in zip(points, runs)]}
    if not dry:
        write_atomically(store.folder / ASKED_FILE, json.dumps(told, indent=1) + "\n")
    by_name = {point.name: point for point in points}
    return all(run_all(store, program, runs, lambda run: _guess_s(by_name[run.name]), dry))


def _guess_s(point: Point) -> float:
    vectors = 1.0 if point.dispatch == TWO else 1.9
    seconds = 2 * 8 * DEVICES / 2 * point.tokens * vectors * HIDDEN * 4 / point.rate
    return 3.5 + seconds * steps_at(point.tokens) * (3 if point.tokens <= TOKENS_OF_ONE_STEP else 1)


# --- As text ----------------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Compared:
    rate: int
    tokens: int
    seconds: dict[str, list[float]]  # by dispatch, a value for each round: dispatch and combine of one layer

    @property
    def two_over_one(self) -> float:
        """Paired: median over the rounds."""
        return _paired(self.seconds[TWO], self.seconds[ONE])

    @property
    def better(self) -> str:
        return TWO if self.two_over_one < 1 else ONE

    @property
    def auto_over_better(self) -> float | None:
        return _paired(self.seconds[AUTO], self.seconds[self.better]) if self.seconds.get(AUTO) else None


def _paired(these: Sequence[float], those: Sequence[float]) -> float:
    return statistics.median(one / other for one, other in zip(these, those))


def compared_in(folder: pathlib.Path) -> tuple[dict, list[Compared], str]:
    told, store, machine = json.loads((folder / ASKED_FILE).read_text()), Store(folder), ""
    seconds: dict[tuple[int, int], dict[str, dict[int, float]]] = {}
    for point in told["points"]:
        outcome = store.get(point["run"], point["key"])
        if outcome is None:
            continue
        seconds.setdefault((point["rate"], point["tokens"]), {}).setdefault(point["dispatch"], {})[point["round"]] = \
            outcome_of(outcome["told"]).exchange_s / steps_at(point["tokens"])
        machine = outcome["told"]["machine"]
    compared = []
    for (rate, tokens), of in seconds.items():
        whole = sorted(set.intersection(*(set(rounds) for rounds in of.values())))  # a round that all dispatches have
        if {ONE, TWO} <= set(of) and whole:
            compared.append(Compared(rate, tokens, {dispatch: [rounds[number] for number in whole] for dispatch, rounds in of.items()}))
    return told, compared, machine


def sentences(compared: Sequence[Compared]) -> str:
    lines = []
    for rate in dict.fromkeys(one.rate for one in compared):
        wins = [str(one.tokens) for one in compared if one.rate == rate and one.better == TWO]
        lines.append(f"At {page.rate_words(rate)} two stages win at {', '.join(wins) or 'no number of'} tokens.")
    autos = {f"{one.tokens} tokens and {page.rate_words(one.rate)}": one.auto_over_better for one in compared if one.auto_over_better is not None}
    if autos:
        worst = max(autos, key=autos.get)
        within = sum(value <= 1 + AIM for value in autos.values())
        lines.append(f"The automatic choice is within {100 * AIM:.0f} % of the better one at {within} of {len(autos)} points; "
                     f"farthest {100 * (autos[worst] - 1):+.1f} %, at {worst}.")
    return " ".join(lines)


def section_text(folder: pathlib.Path) -> str:
    told, compared, machine = compared_in(folder)
    rows = [[page.rate_words(one.rate), str(one.tokens),
             *[page.spread([1e6 * value for value in one.seconds.get(dispatch, [])], 0) for dispatch in (ONE, TWO, AUTO)],
             f"{one.two_over_one:.2f}", one.better, f"{one.auto_over_better:.2f}" if one.auto_over_better else "-"] for one in compared]
    columns = ["link", "tokens a rank", f"{ONE} [us]", f"{TWO} [us]", f"{AUTO} [us]", "two over one", "better", "auto over better"]
    return f"""```
tools/exchange_benchmarks.py curve --routing {told['routing']} --rates {told['rates']} --most {told['most']} --step {told['step']} --rounds {told['rounds']}
```

Dispatch and combine of one layer on 2x2 in the lab, vectors of {HIDDEN} values, the routing of {told['routing']}, default placement, reduced results;
{told['rounds']} rounds in turn, median (lowest..highest); ratios are medians of the rounds' own.
Machine: {machine}; program: {told['version']}.

{sentences(compared)}

{page.table(columns, rows)}"""
