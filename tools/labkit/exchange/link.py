"""How much of the link's rate arrives as payload: plain all-to-all and two stages."""

import json
import pathlib
import statistics

from labkit.exchange import page, trace as traces
from labkit.exchange.curve import shape_file
from labkit.exchange.figures import outcome_of
from labkit.exchange.preparation import kbits
from labkit.exchange.program import ALIGNED, Program, Run, replay
from labkit.exchange.progress import run_all
from labkit.exchange.store import Store, write_atomically
from labkit.units import bits_per_s

ASKED_FILE = "link.json"
RATES = "24mbit,100mbit,200mbit,1gbit"
DISPATCHES = ("flat", "two_stage")
BATCH, PREFILL, NODES, DEVICES = 32, 64, 2, 2
ROUNDS = 3
AIM = 0.85


def run_links(program: Program, store: Store, routing: pathlib.Path, rates: str, rounds: int, dry: bool) -> bool:
    """Measures what is missing. Returns whether nothing is."""
    shape = shape_file(store, traces.read(routing))
    asked, runs = [], []
    for number in range(1, rounds + 1):
        for rate in rates.split(","):
            for dispatch in DISPATCHES:
                words = (*replay("{shape}", 1, BATCH, PREFILL, 1), "--cluster", f"{NODES}x{DEVICES}", "--strategies", "vanilla", "--dispatch", dispatch,
                         "--rounds", "3", ALIGNED)
                run = Run(f"{dispatch}.{rate}.round{number}", words, kbits(bits_per_s(rate)), NODES, DEVICES, {"shape": shape, "routing": routing})
                runs.append(run)
                asked.append({"rate": run.rate, "dispatch": dispatch, "run": run.name, "key": run.key(program)})
    if not dry:
        told = {"rates": rates, "rounds": rounds, "routing": page.path_words(routing), "version": program.version, "runs": asked}
        write_atomically(store.folder / ASKED_FILE, json.dumps(told, indent=1) + "\n")
    return all(run_all(store, program, runs, lambda run: 4 + 3 * 8 * 33e6 / run.rate, dry))


def section_text(folder: pathlib.Path) -> str:
    told, store, machine = json.loads((folder / ASKED_FILE).read_text()), Store(folder), ""
    shares: dict[tuple[int, str], list[float]] = {}
    megabytes: dict[str, float] = {}
    for one in told["runs"]:
        outcome = store.get(one["run"], one["key"])
        if outcome is None:
            continue
        prefill, machine = outcome_of(outcome["told"]).prefill, outcome["told"]["machine"]
        megabytes[one["dispatch"]] = prefill.busiest_bytes / 1e6
        shares.setdefault((one["rate"], one["dispatch"]), []).append(8 * prefill.busiest_bytes / (prefill.exchange_s * one["rate"]))
    rows = [[page.rate_words(rate), *[page.spread([100 * share for share in shares.get((rate, dispatch), [])]) for dispatch in DISPATCHES]]
            for rate in sorted({rate for rate, _ in shares})]
    least = {dispatch: min((statistics.median(of) for (_, which), of in shares.items() if which == dispatch), default=0) for dispatch in DISPATCHES}
    sizes = ", ".join(f"{size:.1f} MB by {dispatch}" for dispatch, size in megabytes.items())
    verdict = "; ".join(f"{dispatch}: {100 * share:.1f} % at least, aim {100 * AIM:.0f} %" for dispatch, share in least.items())
    return f"""```
tools/exchange_benchmarks.py link --routing {told['routing']} --rates {told['rates']} --rounds {told['rounds']}
```

Payload and the program's headers of the busier node, exchange by exchange, as a share of the link's rate times the exchanges' time; 2x2 in the lab,
{BATCH} prompts of {PREFILL} tokens, one layer, default placement, {sizes}; median (lowest..highest) of {told['rounds']} rounds.
Machine: {machine}; program: {told['version']}.

{verdict}.

{page.table(["link", *[f"{dispatch} [%]" for dispatch in DISPATCHES]], rows)}"""
