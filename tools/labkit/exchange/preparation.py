"""What a table needs before its rows: the link's rate, the cluster as measured through it, and a plan of each strategy."""

import json
import pathlib
from dataclasses import dataclass

from labkit import rate as link_rate
from labkit.exchange import trace as traces
from labkit.exchange.figures import outcome_of
from labkit.exchange.program import ALIGNED, Program, Run, done_before, in_lab, measure, replay
from labkit.exchange.settings import Row, Setting, rows_of
from labkit.exchange.store import Store, hash_of_file, key_of, write_atomically
from labkit.units import HIGHEST, LOWEST

PROBE_RATE = 10**9
EXCHANGES_PER_LAYER = 2
LEAST_CORRECTION, MOST_CORRECTION = 0.5, 2.0  # beyond, the first guess was not one


class Missing(Exception):
    """Something that must be measured first, where nothing may be."""


@dataclass(frozen=True)
class Bench:
    """What every step needs."""

    program: Program
    store: Store  # of the setting
    shared: Store  # of all settings: what does not depend on the ratio
    routing: pathlib.Path
    also: tuple[str, ...] = ()  # options for every run

    def measured(self, store: Store, run: Run, dry: bool) -> dict:
        if dry and done_before(store, self.program, run) is None:
            raise Missing(run.name)
        return measure(store, self.program, run)


@dataclass(frozen=True)
class Prepared:
    rate: int  # bits per second
    first_rate: int
    ratio_at_first_rate: float | None  # where it was measured
    busiest_bytes: float
    experts_s: float
    cluster: pathlib.Path
    served: pathlib.Path
    rows: list[Row]
    plans: dict[str, pathlib.Path]  # by row: the folder of its plan, which its first run makes


def _replay(setting: Setting) -> tuple[str, ...]:
    return replay(setting.shape, setting.layers, setting.batch, setting.prefill, setting.decode)


def vanilla_run(bench: Bench, setting: Setting, name: str, rate: int, rounds: int) -> Run:
    words = (*_replay(setting), "--cluster", f"{setting.nodes}x{setting.devices}", "--strategies", "vanilla", "--rounds", str(rounds), ALIGNED, *bench.also)
    return Run(name, words, rate, setting.nodes, setting.devices, {"routing": bench.routing})


def row_words(bench: Bench, setting: Setting, row: Row) -> list[str]:
    words = [*_replay(setting), "--cluster", "{cluster}", "--rounds", "1", *bench.also]
    if row.planned:
        words += ["--plans", "{plans}", *(("--slots", row.slots) if row.slots else ())]
    return words


def _run(bench: Bench, setting: Setting, prepared: Prepared, row: Row, job: tuple[str, tuple[str, ...], int]) -> Run:
    name, words, rate = job
    files = {"routing": bench.routing, "cluster": prepared.cluster}
    return Run(name, words, rate, setting.nodes, setting.devices, files, {"plans": prepared.plans[row.name]} if row.planned else {})


def row_run(bench: Bench, setting: Setting, prepared: Prepared, row: Row, number: int) -> Run:
    words = (*row_words(bench, setting, row), "--strategies", row.strategy, ALIGNED)
    return _run(bench, setting, prepared, row, (f"{row.name}.round{number}", words, prepared.rate))


def text_run(bench: Bench, setting: Setting, prepared: Prepared, row: Row) -> Run:
    """The row's text against plain expert parallelism's, in one process: only there near-ties are told from differences."""
    words = (*row_words(bench, setting, row), "--strategies", f"vanilla,{row.strategy}")
    return _run(bench, setting, prepared, row, (f"text of {row.name}", words, 0))


def kbits(rate: float) -> int:
    """As `tc` is told it."""
    return round(min(max(rate, LOWEST), HIGHEST) / 1000) * 1000


def prepare(bench: Bench, setting: Setting, dry: bool = False) -> Prepared:
    """Measures what is not in the store. Raises Missing where `dry` and something is not."""
    asked = vanilla_run(bench, setting, f"probe {setting.work_name}", PROBE_RATE, 1 if setting.quick else 3)
    probe = outcome_of(bench.measured(bench.shared, asked, dry)["told"]).prefill
    served = _served(bench, setting)
    work = link_rate.Workload(probe.busiest_bytes, probe.experts_s, EXCHANGES_PER_LAYER * setting.layers)
    first = kbits(link_rate.rate_for(work, link_rate.Path(), setting.ratio))
    rate, at_first = first, None
    if not setting.quick:
        # The share of the rate that arrives is not known beforehand: what is measured at the first rate says how far it is off.
        at_first = outcome_of(bench.measured(bench.store, vanilla_run(bench, setting, "vanilla at the first rate", first, 1), dry)["told"]).prefill.ratio
        rate = kbits(first * min(max(at_first / setting.ratio, LEAST_CORRECTION), MOST_CORRECTION))
    cluster = _cluster(bench, setting, rate, dry)
    rows = rows_of(setting, traces.read(served).experts, bench.program.strategies())
    plans = {row.name: _plans_folder(bench, setting, row, cluster) for row in rows if row.planned}
    return Prepared(rate, first, at_first, probe.busiest_bytes, probe.experts_s, cluster, served, rows, plans)


def _served(bench: Bench, setting: Setting) -> pathlib.Path:
    """A trace of the sequences that are served, for the simulator."""
    path = bench.store.folder / f"served.{key_of(hash_of_file(bench.routing), setting.layers)}.trace"
    if not path.exists():
        write_atomically(path, traces.file_bytes(traces.every_second(traces.first_layers(traces.read(bench.routing), setting.layers), 0)))
    return path


def _cluster(bench: Bench, setting: Setting, rate: int, dry: bool) -> pathlib.Path:
    """The cluster as measured at this rate; when quick, measured at the probe's rate, and the link scaled to this one."""
    if not setting.quick:
        path = calibrated(bench.program, bench.store, rate, dry)
        if path is None:
            raise Missing("calibrate")
        return path
    measured = calibrated(bench.program, bench.shared, PROBE_RATE, dry, seconds=1)
    if measured is None:
        raise Missing("calibrate")
    cluster = json.loads(measured.read_text())
    cluster["between_nodes"]["bytes_per_s"] *= rate / PROBE_RATE
    path = bench.store.folder / f"scaled-{rate // 1000}kbit.{measured.name}"
    write_atomically(path, json.dumps(cluster, indent=1) + "\n")
    return path


def calibrated(program: Program, store: Store, rate: int, dry: bool, seconds: int = 8) -> pathlib.Path | None:
    """The cluster file that `grace calibrate` measures on 2x2 in the lab; None where it is missing and `dry`."""
    path = store.folder / f"cluster-{rate // 1000}kbit.{key_of(rate, seconds, program.hash)}.json"
    if path.exists() or dry:
        return path if path.exists() else None
    made = path.with_name(f".{path.name}.new")
    made.parent.mkdir(parents=True, exist_ok=True)
    outcome = in_lab(program, Run("calibrate", ("calibrate", "--out", str(made), "--seconds", str(seconds), "--json"), rate))
    write_atomically(path.with_name(f"calibration.{path.name}"), json.dumps(outcome, indent=1) + "\n")
    made.rename(path)
    return path


def _plans_folder(bench: Bench, setting: Setting, row: Row, cluster: pathlib.Path) -> pathlib.Path:
    key = key_of(row_words(bench, setting, row), row.strategy, bench.program.hash, hash_of_file(cluster), hash_of_file(bench.routing))
    path = bench.store.folder / f"{row.name}.{key}.plans"
    path.mkdir(parents=True, exist_ok=True)
    return path


def plan_file(folder: pathlib.Path, strategy: str) -> pathlib.Path:
    """Where `grace bench --plans` keeps it."""
    return folder / f"{strategy}.json"
