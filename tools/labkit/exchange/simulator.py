"""The simulator, fed with what the lab calibrated, against what the lab measured."""

import itertools
import json
import pathlib
from collections.abc import Sequence
from dataclasses import dataclass

from labkit.exchange import page, table
from labkit.exchange.figures import Outcome
from labkit.exchange.preparation import plan_file
from labkit.exchange.program import Program
from labkit.exchange.settings import Setting
from labkit.exchange.store import hash_of_file, write_atomically

SIMULATED_FILE = "simulated.json"
AIM = 0.20


@dataclass(frozen=True)
class Predicted:
    """Seconds over all passes and layers."""

    prefill_s: float
    decode_s: float
    exchange_s: float
    experts_s: float

    @property
    def moe_s(self) -> float:
        return self.prefill_s + self.decode_s


def simulate_all(program: Program, folder: pathlib.Path) -> None:
    """Simulates each measured row of a table's folder, by its plan and the cluster as it was calibrated, and keeps that beside."""
    told, rows, _ = table.outcomes_in(folder)
    setting = Setting(**told["setting"])
    simulated = {}
    for name, outcomes in rows.items():
        if not outcomes:
            continue
        plan = ("--plan", plan_file(folder / told["plans"][name], outcomes[0].strategy)) if name in told["plans"] else ()
        files = ("--trace", folder / told["served"], "--cluster", folder / told["cluster"], *plan)
        simulated[name] = _simulate(program, setting, files, (outcomes[0].dispatch, wire_of(told["also"])))
    kept = {"program": hash_of_file(program.path), "version": program.version, "rows": simulated}
    write_atomically(folder / SIMULATED_FILE, json.dumps(kept, indent=1) + "\n")


def wire_of(also: str) -> str:
    """What the runs sent, as `grace simulate --wire` takes it."""
    words = also.split()
    return words[words.index("--wire") + 1] if "--wire" in words[:-1] else "f32"


def _simulate(program: Program, setting: Setting, files: tuple, exchange: tuple[str, str]) -> dict:
    dispatch, wire = exchange
    told = program.json("simulate", *files, "--dispatch", dispatch, "--combine", "reduced", "--shape", setting.shape, "--batch", setting.batch,
                        "--prefill", setting.prefill, "--decode", setting.decode, "--wire", wire, "--weights", "f32")
    moe = {phase: told[phase]["moe"] for phase in ("prefill", "decode")}
    return {"prefill_s": moe["prefill"]["layer_time"], "decode_s": moe["decode"]["layer_time"], "exchange_s": sum(of["all_to_all"] for of in moe.values()),
            "experts_s": sum(of["compute"] for of in moe.values())}


# --- As text ----------------------------------------------------------------------------------------------------------------------------


def order(measured: dict[str, list[Outcome]], predicted: dict[str, Predicted]) -> tuple[int, int]:
    """Of the pairs of strategies whose rounds do not overlap: how many are predicted in the right order, and how many there are."""
    right = pairs = 0
    for one, other in itertools.combinations(predicted, 2):
        these, those = ([outcome.moe_s for outcome in measured[name]] for name in (one, other))
        if max(these) < min(those) or max(those) < min(these):
            pairs += 1
            right += (max(these) < min(those)) == (predicted[one].moe_s < predicted[other].moe_s)
    return right, pairs


def compare_text(measured: dict[str, list[Outcome]], predicted: dict[str, Predicted]) -> str:
    columns = ["strategy", "MoE layers, measured [ms]", "predicted [ms]", "predicted over measured", "prefill", "decode", "all-to-all", "experts"]
    rows, near = [], 0
    for name, of in predicted.items():
        parts = [(of.moe_s, lambda o: o.moe_s), (of.prefill_s, lambda o: o.prefill.moe_s), (of.decode_s, lambda o: o.decode.moe_s),
                 (of.exchange_s, lambda o: o.exchange_s), (of.experts_s, lambda o: o.prefill.experts_s + o.decode.experts_s)]
        ratios = [value / table.median(measured[name], get) for value, get in parts]
        near += abs(ratios[0] - 1) <= AIM
        rows.append([name, page.spread([1e3 * outcome.moe_s for outcome in measured[name]]), f"{1e3 * of.moe_s:.1f}", *[f"{ratio:.2f}" for ratio in ratios]])
    right, pairs = order(measured, predicted)
    verdict = f"Within {100 * AIM:.0f} %: {near} of {len(predicted)} strategies. In the right order: {right} of the {pairs} pairs whose rounds do not overlap."
    return f"{verdict}\n\n{page.table(columns, rows)}"


def section_text(folders: Sequence[pathlib.Path]) -> str:
    parts, machines = [], []
    for folder in folders:
        told, measured, machine = table.outcomes_in(folder)
        kept = json.loads((folder / SIMULATED_FILE).read_text())
        predicted = {name: Predicted(**values) for name, values in kept["rows"].items() if measured.get(name)}
        setting = Setting(**told["setting"])
        machines.append(machine)
        parts.append(f"### {setting.name}\n\nLinks of {page.rate_words(told['rate_bits_per_s'])}. {compare_text(measured, predicted)}")
    return f"""```
tools/exchange_benchmarks.py simulator
```

Each row of the tables simulated by the same plan, over the same tokens, on the cluster file that `grace calibrate` wrote in the lab at that rate.
The last four columns are predicted over measured too.
Machine: {', '.join(dict.fromkeys(machines))}.

""" + "\n".join(parts)
