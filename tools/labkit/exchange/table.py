"""The table of all strategies at one setting, row by row and round by round."""

import dataclasses
import json
import pathlib
import statistics
from collections.abc import Sequence

from labkit import rate as link_rate
from labkit.exchange import page
from labkit.exchange.figures import Outcome, outcome_of
from labkit.exchange.preparation import Bench, Missing, Prepared, prepare, row_run, text_run
from labkit.exchange.program import Run
from labkit.exchange.progress import duration, run_all
from labkit.exchange.settings import LAYERS, SIZES, Row, Setting, rows_of
from labkit.exchange.store import Store, write_atomically

SETTING_FILE = "setting.json"
SHARED = "probes"  # beside the settings' folders: what does not depend on the ratio
BASELINE = "vanilla"
JOINT = "joint@grace"
LOSSY = {"c2r"}  # the choices of its gate are not the model's
FULL_ROUNDS, QUICK_ROUNDS = 3, 1
# For a first guess of how long a run takes; the second round of a strategy goes by the first.
START_S, CALIBRATION_S = 8.0, 60.0
FLOPS_PER_S, WEIGHT_BYTES_PER_S = 80e9, 20e9
SHARE_OF_VANILLA = {"vanilla": 1.0, "padded": 1.6, "allgather": 1.2, "occult": 0.7, "c2r": 0.6, "eplb": 0.6, "grace": 0.4, "joint": 0.3}
EXPERTS_OF_A_GUESS = 64


def rounds_of(setting: Setting, asked: int | None) -> int:
    return asked or (QUICK_ROUNDS if setting.quick else FULL_ROUNDS)


def guess_s(setting: Setting, strategy: str) -> float:
    hidden, ffn, choices = SIZES.get(setting.shape, (2048, 1408, 8))
    flops = 6.0 * hidden * ffn * choices * setting.batch * setting.prefill * setting.layers
    a_rank = flops / setting.num_devices / FLOPS_PER_S
    decode = 4.0 * 3 * hidden * ffn * EXPERTS_OF_A_GUESS * setting.layers * setting.decode / WEIGHT_BYTES_PER_S
    return START_S + 2 * a_rank + setting.ratio * a_rank * SHARE_OF_VANILLA.get(strategy, 1.0) * (1 + setting.decode / setting.prefill) + decode


def _guess_of_preparation_s(setting: Setting) -> float:
    probe = guess_s(dataclasses.replace(setting, ratio=setting.ratio / 20), BASELINE)  # its link is that much faster
    return probe if setting.quick else 3 * probe + guess_s(setting, BASELINE) + CALIBRATION_S


def wanted(bench: Bench, setting: Setting, prepared: Prepared, rounds: int) -> list[tuple[Row, Run]]:
    """The rounds one after the other, so that what the machine does meanwhile meets all strategies alike."""
    return [(row, row_run(bench, setting, prepared, row, number)) for number in range(1, rounds + 1) for row in prepared.rows]


def run_table(bench: Bench, setting: Setting, rounds: int, dry: bool) -> bool:
    """Measures what is missing. Returns whether nothing is."""
    try:
        prepared = prepare(bench, setting, dry)
    except Missing as missing:
        rows = rows_of(setting, EXPERTS_OF_A_GUESS, bench.program.strategies())
        seconds = _guess_of_preparation_s(setting) + rounds * sum(guess_s(setting, row.strategy) for row in rows)
        print(f"{setting.name}: {missing} and all rows are missing, about {duration(seconds)}")
        return False
    pairs = wanted(bench, setting, prepared, rounds)
    runs = [run for _, run in pairs]
    strategy = {run.name: row.strategy for row, run in pairs}
    told = {"setting": dataclasses.asdict(setting), "rate_bits_per_s": prepared.rate, "first_rate_bits_per_s": prepared.first_rate,
            "ratio_at_first_rate": prepared.ratio_at_first_rate, "busiest_bytes": prepared.busiest_bytes, "experts_s": prepared.experts_s,
            "rounds": rounds, "version": bench.program.version, "routing": page.path_words(bench.routing), "also": " ".join(bench.also),
            "cluster": prepared.cluster.name, "served": prepared.served.name, "plans": {name: path.name for name, path in prepared.plans.items()},
            "rows": [{"name": row.name, "text": _place(bench, text_run(bench, setting, prepared, row)),
                      "runs": [_place(bench, run) for of, run in pairs if of == row]} for row in prepared.rows]}
    if not dry:
        write_atomically(bench.store.folder / SETTING_FILE, json.dumps(told, indent=1) + "\n")
        print(f"{setting.name}: link {page.rate_words(prepared.rate)}", flush=True)
    outcomes = run_all(bench.store, bench.program, runs, lambda run: guess_s(setting, strategy[run.name]), dry)
    if not dry:
        _compare_texts(bench, setting, prepared, outcomes)
    return all(outcome is not None for outcome in outcomes)


def _place(bench: Bench, run: Run) -> list[str]:
    """Where a store has it."""
    return [run.name, run.key(bench.program)]


def _compare_texts(bench: Bench, setting: Setting, prepared: Prepared, outcomes: Sequence[dict | None]) -> None:
    """Where a text is not vanilla's, how many prompts differ and how many of them at near-ties."""
    texts = {row.name: outcome_of(outcome["told"]).outputs for row, outcome in zip(prepared.rows, outcomes) if outcome is not None}
    runs = [text_run(bench, setting, prepared, row) for row in prepared.rows if texts.get(row.name, "") not in ("", texts.get(BASELINE, ""))]
    run_all(bench.shared, bench.program, runs, lambda run: 3 * START_S, dry=False)


# --- What the folder holds, as text -------------------------------------------------------------------------------------------------------


def texts_in(folder: pathlib.Path, told: dict, rows: dict[str, list[Outcome]]) -> dict[str, str]:
    """Of each row: whether its text is vanilla's."""
    base, shared, texts = {outcome.outputs for outcome in rows.get(BASELINE, [])}, Store(folder.parent / SHARED), {}
    for row in told["rows"]:
        compared = shared.get(*row["text"])
        if not base or not rows[row["name"]]:
            texts[row["name"]] = "-"
        elif {outcome.outputs for outcome in rows[row["name"]]} == base:
            texts[row["name"]] = "yes"
        elif compared is None:
            texts[row["name"]] = "no"
        else:
            texts[row["name"]] = difference_words(compared["told"]["strategies"][1])
        if row["name"] in LOSSY and rows[row["name"]]:
            texts[row["name"]] = f"lossy: {texts[row['name']]}"
    return texts


def difference_words(entry: dict) -> str:
    differing, near = entry["differing_prompts"], entry["near_ties"]
    return f"{near} near-ties" if differing == near else f"{differing} differ, {near} of them near-ties"


def outcomes_in(folder: pathlib.Path) -> tuple[dict, dict[str, list[Outcome]], str]:
    """What was asked for, each row's rounds that are there, and the machine."""
    told = json.loads((folder / SETTING_FILE).read_text())
    store, machine, rows = Store(folder), "", {}
    for row in told["rows"]:
        found = [outcome for outcome in (store.get(name, key) for name, key in row["runs"]) if outcome is not None]
        rows[row["name"]] = [outcome_of(outcome["told"]) for outcome in found]
        machine = next((outcome["told"]["machine"] for outcome in found), machine)
    return told, rows, machine


def median(outcomes: Sequence[Outcome], get) -> float:
    return statistics.median(get(outcome) for outcome in outcomes)


def times_table(rows: dict[str, list[Outcome]]) -> str:
    base = rows.get(BASELINE)
    columns = ["strategy", "exchange", "rounds", "all-to-all, prefill [ms]", "all-to-all, decode [ms]", "MoE layers, prefill [ms]", "MoE layers, decode [ms]",
               "MoE layers, all [ms]", "against vanilla", "times as fast", "wall [ms]"]
    lines = []
    for name, outcomes in rows.items():
        if not outcomes:
            lines.append([name, *["-"] * (len(columns) - 1)])
            continue
        ms = [page.spread([1e3 * get(outcome) for outcome in outcomes]) for get in
              (lambda o: o.prefill.exchange_s, lambda o: o.decode.exchange_s, lambda o: o.prefill.moe_s, lambda o: o.decode.moe_s, lambda o: o.moe_s)]
        share = median(outcomes, lambda o: o.moe_s) / median(base, lambda o: o.moe_s) if base else None
        against = [f"{100 * (share - 1):+.1f} %", f"{1 / share:.2f}"] if share else ["-", "-"]
        lines.append([name, outcomes[0].dispatch, str(len(outcomes)), *ms, *against,
                      page.spread([1e3 * outcome.wall_s for outcome in outcomes])])
    return page.table(columns, lines)


def traffic_table(rows: dict[str, list[Outcome]], texts: dict[str, str]) -> str:
    columns = ["strategy", "across nodes, prefill [MB]", "decode [MB]", "inside nodes, prefill [MB]", "decode [MB]", "experts [ms]", "idle [ms]", "load deviation",
               "tokens/s", "same text"]
    lines = []
    for name, outcomes in rows.items():
        if not outcomes:
            lines.append([name, *["-"] * (len(columns) - 1)])
            continue
        megabytes = [f"{median(outcomes, get) / 1e6:.2f}" for get in (lambda o: o.prefill.cross_bytes, lambda o: o.decode.cross_bytes,
                                                                       lambda o: o.prefill.intra_bytes, lambda o: o.decode.intra_bytes)]
        milliseconds = [page.spread([1e3 * value for value in values]) for values in
                        ([o.prefill.experts_s + o.decode.experts_s for o in outcomes], [o.idle_s for o in outcomes])]
        deviation = f"{100 * median(outcomes, lambda o: o.load_deviation):.1f} %"
        lines.append([name, *megabytes, *milliseconds, deviation, page.spread([o.tokens_per_s for o in outcomes]), texts[name]])
    return page.table(columns, lines)


def findings(rows: dict[str, list[Outcome]]) -> str:
    """What was set and what came of it."""
    base, joint = rows.get(BASELINE), rows.get(JOINT)
    lines = []
    if base:
        prefill, decode = ([getattr(outcome, phase).ratio for outcome in base] for phase in ("prefill", "decode"))
        lines.append(f"All-to-all over expert compute of vanilla, as measured in these rounds: prefill {page.spread(prefill, 2)}, "
                     f"decode {page.spread(decode, 2)}.")
    if base and joint:
        whole, layer = (median(base, get) / median(joint, get) for get in (lambda o: o.moe_s, lambda o: o.prefill.moe_s))
        lines.append(f"{JOINT} against vanilla: {whole:.2f} times as fast end to end (prefill {layer:.2f} times), MoE layers {100 * (1 / whole - 1):+.1f} %.")
    there = {name: median(outcomes, lambda o: o.moe_s) for name, outcomes in rows.items() if outcomes}
    if len(there) > 1:
        lines.append(f"From the shortest MoE layers to the longest: {', '.join(sorted(there, key=there.get))}.")
    return " ".join(lines)


def _plural(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _work_words(told: dict, setting: Setting, missing: int) -> str:
    cluster = f"{setting.nodes}x{setting.devices}"
    left = f"; {_plural(missing, 'run')} missing" if missing else ""
    return (f"{_plural(setting.layers, 'MoE layer')} of {setting.shape_name} under the routing of {told['routing']}, {cluster} in the lab;\n"
            f"{_plural(setting.batch, 'prompt')} of {setting.prefill} tokens, {setting.decode} new; reduced results; {_plural(told['rounds'], 'round')}, interleaved; "
            f"median (lowest..highest){left}.")


def _link_words(told: dict, setting: Setting) -> str:
    text = (f"Links of {page.rate_words(told['rate_bits_per_s'])}: at a ratio of {setting.ratio:g}, from {told['busiest_bytes'] / 1e6:.1f} MB that the busiest node "
            f"sends in prefill and {1e3 * told['experts_s']:.0f} ms of experts; ")
    if told["ratio_at_first_rate"] is None:
        return f"{text}{100 * link_rate.Path().share:.0f} % of the rate is taken for payload."
    return f"{text}the first guess was {page.rate_words(told['first_rate_bits_per_s'])} and gave {told['ratio_at_first_rate']:.2f}."


def _command_words(told: dict, setting: Setting) -> str:
    asked_batch = 4 * setting.batch if setting.quick else setting.batch
    words = f"--shape {setting.shape_name} --routing {told['routing']} --ratio {setting.ratio:g} --workload {asked_batch}/{setting.prefill}/{setting.decode}"
    words += f" --layers {setting.layers}" if setting.layers != LAYERS else ""
    words += f" --rounds {told['rounds']}" if told["rounds"] != rounds_of(setting, None) else ""
    words += f" --also '{told['also']}'" if told["also"] else ""
    return words + (" --quick" if setting.quick else "")


def section_text(folder: pathlib.Path) -> str:
    told, rows, machine = outcomes_in(folder)
    setting = Setting(**told["setting"])
    missing = sum(told["rounds"] - len(outcomes) for outcomes in rows.values())
    return f"""```
tools/exchange_benchmarks.py table {_command_words(told, setting)}
```

{_work_words(told, setting, missing)}
Machine: {machine}; program: {told['version']}.

{_link_words(told, setting)}
{findings(rows)}

Times are those of the critical path: the slowest rank's processor time and the exchanges; ranks share cores, so wall time is more.

{times_table(rows)}
{traffic_table(rows, texts_in(folder, told, rows))}"""
