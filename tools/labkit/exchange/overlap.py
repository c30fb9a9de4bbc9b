"""What overlap hides: one rank a core, on and off in turn."""

import json
import pathlib
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from labkit.exchange import page, trace as traces
from labkit.exchange.figures import outcome_of
from labkit.exchange.preparation import kbits
from labkit.exchange.program import Program, Run, replay
from labkit.exchange.progress import run_all
from labkit.exchange.store import Store, write_atomically
from labkit.exchange.workload import count
from labkit.refusal import Refusal
from labkit.units import bits_per_s

ASKED_FILE = "overlap.json"
OPTION = "--overlap"
STATES = {"off": (OPTION, "off", "--parts", "1"), "on": (OPTION, "on", "--parts", "auto")}  # a step in parts is overlap too
RATES = "250mbit,500mbit,1gbit"
BATCH, PREFILL, LAYERS, NODES, DEVICES = 32, 64, 2, 2, 1
ROUNDS = 5
AIM = 0.5


def run_overlap(program: Program, store: Store, routing: pathlib.Path, shape: str, rates: str, rounds: int, dry: bool) -> bool:
    """Measures what is missing. Returns whether nothing is."""
    if not program.has("bench", OPTION):
        raise Refusal(f"{program.path}: grace bench has no {OPTION}")
    served = traces.every_second(traces.first_layers(traces.read(routing), LAYERS), 0)
    asked, runs = [], []
    for rate in rates.split(","):
        for number in range(1, rounds + 1):
            for state, options in STATES.items():
                words = (*replay(shape, LAYERS, BATCH, PREFILL, 1), "--cluster", f"{NODES}x{DEVICES}", "--strategies", "vanilla", "--dispatch", "per_device",
                         "--rounds", "1", *options)
                run = Run(f"{state}.{rate}.round{number}", words, kbits(bits_per_s(rate)), NODES, DEVICES, {"routing": routing})
                runs.append(run)
                asked.append({"rate": run.rate, "state": state, "round": number, "run": run.name, "key": run.key(program)})
    if not dry:
        told = {"rates": rates, "rounds": rounds, "routing": page.path_words(routing), "shape": shape, "version": program.version, "runs": asked,
                "local_share": count(served, BATCH, PREFILL, NODES * DEVICES).local_share}
        write_atomically(store.folder / ASKED_FILE, json.dumps(told, indent=1) + "\n")
    return all(run_all(store, program, runs, lambda run: 8 + 8 * 70e6 / run.rate, dry))


@dataclass(frozen=True)
class Compared:
    """Pairs of a round without overlap and one with it; seconds of the prefill's MoE layers by the clock, and the parts of the one without."""

    off_s: list[float]
    on_s: list[float]
    exchange_s: list[float]
    experts_s: list[float]
    local_share: float  # of the assignments, which need no exchange

    @property
    def independent_s(self) -> float:
        return statistics.median(self.experts_s) * self.local_share

    @property
    def hidden_share(self) -> float:
        """Of what could be hidden: the shorter of the exchange and of the work that does not wait for it."""
        saved = statistics.median(off - on for off, on in zip(self.off_s, self.on_s))
        return saved / min(statistics.median(self.exchange_s), self.independent_s)


def row_of(rate: int, of: Compared) -> list[str]:
    return [page.rate_words(rate), *[page.spread([1e3 * value for value in values]) for values in (of.off_s, of.on_s, of.exchange_s, of.experts_s)],
            f"{1e3 * of.independent_s:.1f}", f"{100 * of.hidden_share:.0f} %"]


def section_text(folder: pathlib.Path) -> str:
    told, store, machine = json.loads((folder / ASKED_FILE).read_text()), Store(folder), ""
    found: dict[tuple[int, int], dict[str, dict]] = {}
    for one in told["runs"]:
        outcome = store.get(one["run"], one["key"])
        if outcome is not None:
            machine = outcome["told"]["machine"]
            found.setdefault((one["rate"], one["round"]), {})[one["state"]] = outcome["told"]
    rates: dict[int, list[dict[str, dict]]] = {}
    for (rate, _), pair in found.items():
        if len(pair) == 2:
            rates.setdefault(rate, []).append(pair)
    compared = {rate: _compared(pairs, told["local_share"]) for rate, pairs in rates.items()}
    met = sum(of.hidden_share >= AIM for of in compared.values())
    columns = ["link", "off [ms]", "on [ms]", "exchange [ms]", "experts [ms]", "independent of it [ms]", "hidden"]
    return f"""```
tools/exchange_benchmarks.py overlap --routing {told['routing']} --shape {told['shape']} --rates {told['rates']} --rounds {told['rounds']}
```

MoE layers of one prefill by the clock on 2x1 in the lab, one rank a core, {BATCH} prompts of {PREFILL} tokens, {LAYERS} layers, default placement;
without and with overlap in turn, {told['rounds']} rounds, median (lowest..highest). Hidden: what overlap saves, over the shorter of the exchange and of the experts'
work on the {100 * told['local_share']:.0f} % of choices that stay on their device.
Machine: {machine}; program: {told['version']}.

At least {100 * AIM:.0f} % hidden at {met} of {len(compared)} rates.

{page.table(columns, [row_of(rate, of) for rate, of in compared.items()])}"""


def _compared(pairs: Sequence[dict[str, dict]], local_share: float) -> Compared:
    off, on = ([outcome_of(pair[state]).prefill for pair in pairs] for state in ("off", "on"))
    walls = ([one.moe_wall_s for one in phases] for phases in (off, on))
    return Compared(*walls, [one.exchange_s for one in off], [one.experts_s for one in off], local_share)
