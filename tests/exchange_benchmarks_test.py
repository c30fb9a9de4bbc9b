"""The exchange's benchmarks: what is kept, what is counted, what is written, and one small table in the lab (arguments: program, source folder).

What needs the lab is skipped, with the reason, where `tools/lab check` says no.
"""

import contextlib
import dataclasses
import io
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

PROGRAM, SOURCE = sys.argv[1], pathlib.Path(sys.argv[2])
sys.path.insert(0, str(SOURCE / "tools"))

from labkit.exchange import curve, figures, link, overlap, page, program, progress, report, settings, simulator, store, table, trace, workload  # noqa: E402
from labkit.refusal import Refusal  # noqa: E402


def why_no_lab() -> str:
    done = subprocess.run([sys.executable, SOURCE / "tools/lab", "check"], capture_output=True, text=True, timeout=120)
    return "" if done.returncode == 0 else done.stderr.strip()


NO_LAB = why_no_lab()


def exchange(*arguments: object, **options) -> subprocess.CompletedProcess:
    words = [sys.executable, SOURCE / "tools/exchange_benchmarks.py", *map(str, arguments)]
    return subprocess.run(words, capture_output=True, text=True, timeout=300, **options)


def made_up_trace(tokens_of_sequence: list[int], layers: int = 3, experts: int = 8, k: int = 2) -> trace.Trace:
    """Token t of layer l chooses experts t + l, t + l + 1, ... mod E."""
    offsets = [sum(tokens_of_sequence[:count]) for count in range(len(tokens_of_sequence) + 1)]
    ids = bytes((token + layer + choice) % experts for token in range(offsets[-1]) for layer in range(layers) for choice in range(k))
    known = {"format_version": "1", "model": "made-up", "num_experts": str(experts), "experts_per_token": str(k),
             "decoder_layers": json.dumps(list(range(1, 1 + layers))), "phase": "prefill", "source": "a test"}
    return trace.Trace(known, "U8", ids, offsets)


class ATraceToCut(unittest.TestCase):
    def test_comes_back_as_it_was_written(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "t.trace")
            whole = made_up_trace([2, 0, 3])
            path.write_bytes(trace.file_bytes(whole))
            self.assertEqual(trace.read(path), whole)
            subprocess.run([PROGRAM, "check", path], capture_output=True, timeout=60, check=True)

    def test_keeps_the_first_layers_of_every_token(self):
        cut = trace.first_layers(made_up_trace([2, 3]), 2)
        self.assertEqual((cut.decoder_layers, len(cut.topk_ids)), ([1, 2], 5 * 2 * 2))
        self.assertEqual([cut.choices(token, 1) for token in range(3)], [(1, 2), (2, 3), (3, 4)])
        with self.assertRaisesRegex(Refusal, "outside"):
            trace.first_layers(made_up_trace([2]), 4)

    def test_is_halved_by_the_number_of_a_sequence_without_empty_ones(self):
        whole = made_up_trace([2, 1, 0, 3, 4])
        even, odd = (trace.every_second(whole, parity) for parity in (0, 1))
        self.assertEqual((even.offsets, odd.offsets), ([0, 2, 6], [0, 1, 4]))
        self.assertEqual([even.choices(token, 0)[0] for token in range(6)], [0, 1, 6, 7, 0, 1])
        with self.assertRaisesRegex(Refusal, "two sequences"):
            trace.every_second(made_up_trace([2, 0]), 1)

    def test_that_is_none_is_refused(self):
        with tempfile.TemporaryDirectory() as folder:
            for name, content in {"empty": b"", "words": b"no trace at all", "cut": trace.file_bytes(made_up_trace([5]))[:-1]}.items():
                path = pathlib.Path(folder, name)
                path.write_bytes(content)
                with self.assertRaises(Refusal, msg=name):
                    trace.read(path)


class ACount(unittest.TestCase):
    def test_is_that_of_a_hand_made_batch(self):
        # Four experts, one a device, two a token. Prompts of one token on devices 0..3; token t chooses t and t + 1.
        self.assertEqual(workload.count(made_up_trace([1, 1, 1, 1], layers=1, experts=4), 4, 1, 4), workload.Counted(8, 4))
        # Prompts of two tokens begin anew: both tokens of a prompt are the same row.
        self.assertEqual(workload.count(made_up_trace([1, 1, 1, 1], layers=1, experts=4), 4, 2, 4), workload.Counted(16, 8))

    def test_agrees_with_the_bytes_that_the_program_counts(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "t.trace")
            whole = made_up_trace([7] * 8, layers=2)
            path.write_bytes(trace.file_bytes(whole))
            shape = curve.shape_file(store.Store(pathlib.Path(folder)), whole)
            known = program.Program(PROGRAM)
            words = (*program.replay(str(shape), 2, 4, 5, 1), "--cluster", "2x1", "--strategies", "vanilla", "--rounds", "1")
            run = program.Run("any", words, 0, files={"routing": path})
            told = program.alone(known, run)["told"]
        counted = workload.count(trace.every_second(whole, 0), 4, 5, 2)
        payload = 2 * (counted.pairs - counted.local) * curve.HIDDEN * 4
        prefill = figures.outcome_of(told).prefill
        self.assertGreater(prefill.cross_bytes, payload)
        self.assertLess(prefill.cross_bytes, 1.05 * payload)
        self.assertGreaterEqual(prefill.busiest_bytes, prefill.cross_bytes / 2)


def told_by_bench(strategy: str, **given: float) -> dict:
    """As `grace bench --json` tells one strategy, in its units."""
    of_phase = {"exchange": 70, "experts": 10, "moe_critical_path": 90, "moe_layers": 95, "cross_node_bytes": 4, "intra_node_bytes": 2, "busiest_node_bytes": 3}
    known = {"prefill": 300, "decode": 100, "idle": 5, "load_deviation": 10, "tokens_per_s": 50}
    known |= {f"{phase}_{name}": value for phase in ("prefill", "decode") for name, value in of_phase.items()} | given
    units = {"tokens_per_s": "1/s", "load_deviation": "%"}
    entry = {name: {"unit": "MB" if name.endswith("bytes") else units.get(name, "ms"), "median": value} for name, value in known.items()}
    return {"machine": "a machine", "strategies": [{"strategy": strategy, "dispatch": "flat", "outputs_hash": "abc"} | entry]}


class AStore(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.store = store.Store(self.folder / "state")
        self.program_file = self.folder / "program"
        self.program_file.write_text("#!/bin/sh\n")
        self.program_file.chmod(0o755)

    def test_gives_back_what_it_was_given_and_nothing_half(self):
        self.assertIsNone(self.store.get("row.round1", "0"))
        self.store.put("row.round1", "0", {"told": 1})
        self.assertEqual(self.store.get("row.round1", "0"), {"told": 1})
        self.assertEqual([path.name for path in self.store.folder.iterdir()], ["row.round1.0.json"])
        self.store.path("row.round1", "1").write_text("{")
        with self.assertRaisesRegex(Refusal, "remove it"):
            self.store.get("row.round1", "1")

    def test_knows_a_run_by_all_that_it_depends_on(self):
        plan = self.folder / "a.plan"
        plan.write_text("plan")
        run = program.Run("row.round1", ("bench", "--plan", "{plan}"), 10**8, files={"plan": plan})
        known = program.Program(self.program_file)
        keys = {run.key(known)}
        for other in ({"name": "row.round2"}, {"words": ("bench",)}, {"rate": 10**9}, {"devices": 1}):
            keys.add(dataclasses.replace(run, **other).key(known))
        plan.write_text("another plan")
        keys.add(run.key(known))
        self.program_file.write_text("#!/bin/bash\n")
        keys.add(run.key(program.Program(self.program_file)))
        self.assertEqual(len(keys), 7)
        moved = self.folder / "b.plan"
        moved.write_text("another plan")
        self.assertEqual(dataclasses.replace(run, files={"plan": moved}).key(known), run.key(known), "where a file lies does not matter")

    def test_lets_a_list_of_runs_take_up_where_it_stopped(self):
        known = program.Program(self.program_file)
        runs = [program.Run(f"{row}.round{number}", (row,), 10**8) for number in (1, 2) for row in ("a", "b")]
        measured = []

        def in_lab(_, run):
            if len(measured) == 3:
                raise KeyboardInterrupt
            measured.append(run.name)
            return {"seconds": 2.0, "told": run.name}

        with mock.patch.object(program, "in_lab", in_lab), contextlib.redirect_stderr(io.StringIO()) as said:
            with self.assertRaises(KeyboardInterrupt):
                progress.run_all(self.store, known, runs, lambda _: 1.0, dry=False)
            self.assertEqual(measured, ["a.round1", "b.round1", "a.round2"])
            measured.clear()
            outcomes = progress.run_all(self.store, known, runs, lambda _: 1.0, dry=False)
        self.assertEqual(measured, ["b.round2"])
        self.assertEqual([outcome["told"] for outcome in outcomes], [run.name for run in runs])
        self.assertIn("[1/4] a.round1: 2 s; 0 s gone, about 4 s left", said.getvalue())

    def test_takes_the_word_of_a_bench_whose_texts_differ(self):
        for script, told in {"echo '{}'; exit 1": {}, "echo '{}'": {}, "echo no >&2; exit 1": None, "echo '{}'; exit 2": None}.items():
            self.program_file.write_text(f"#!/bin/sh\n{script}\n")
            run = program.Run("text of c2r", ("bench",), 0)
            if told is None:
                with self.assertRaises(Refusal, msg=script):
                    program.alone(program.Program(self.program_file), run)
            else:
                self.assertEqual(program.alone(program.Program(self.program_file), run)["told"], told, script)

    def test_is_left_alone_by_a_dry_run(self):
        with contextlib.redirect_stdout(io.StringIO()) as said, mock.patch.object(program, "in_lab", side_effect=AssertionError):
            progress.run_all(self.store, program.Program(self.program_file), [program.Run("a.round1", ("a",), 10**8)], lambda _: 70.0, dry=True)
        self.assertEqual(said.getvalue(), "missing: a.round1, about 1 min 10 s\n1 of 1 runs are missing, about 1 min 10 s\n")

    def test_goes_on_after_a_run_that_fails_but_not_when_all_do(self):
        known, runs = program.Program(self.program_file), [program.Run(f"{row}.round1", (row,), 10**8) for row in "abcd"]

        def in_lab(_, run):
            if run.name in failing:
                raise Refusal("no memory")
            return {"seconds": 2.0}

        with mock.patch.object(program, "in_lab", in_lab), contextlib.redirect_stderr(io.StringIO()) as said:
            failing = {"a.round1"}
            outcomes = progress.run_all(self.store, known, runs, lambda _: 1.0, dry=False)
            self.assertEqual([outcome is None for outcome in outcomes], [True, False, False, False])
            self.assertIn("a.round1: FAILED: no memory", said.getvalue())
            failing = {run.name for run in runs}
            with self.assertRaisesRegex(Refusal, "the first 3 runs all failed"):
                progress.run_all(store.Store(self.folder / "other"), known, runs, lambda _: 1.0, dry=False)


class ATable(unittest.TestCase):
    def rows(self) -> dict[str, list[figures.Outcome]]:
        return {"vanilla": [figures.outcome_of(told_by_bench("vanilla", prefill_exchange=value)) for value in (74, 75, 80)],
                "joint@grace": [figures.outcome_of(told_by_bench("joint", prefill_moe_critical_path=30, decode_moe_critical_path=15))], "c2r": []}

    def test_says_medians_spreads_and_what_is_missing(self):
        lines = [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in table.times_table(self.rows()).splitlines()]
        self.assertEqual(lines[2][:5], ["vanilla", "flat", "3", "75.0 (74.0..80.0)", "70.0"])
        self.assertEqual(lines[3][5:10], ["30.0", "15.0", "45.0", "-75.0 %", "4.00"])
        self.assertEqual(set(lines[4][1:]), {"-"})
        self.assertEqual({len(line) for line in lines}, {11})

    def test_says_what_was_set_and_what_came_of_it(self):
        said = table.findings(self.rows())
        self.assertIn("prefill 7.50 (7.40..8.00), decode 7.00", said)
        self.assertIn("4.00 times as fast end to end (prefill 3.00 times), MoE layers -75.0 %", said)
        self.assertIn("From the shortest MoE layers to the longest: joint@grace, vanilla.", said)

    def test_compares_texts_of_different_runs(self):
        with tempfile.TemporaryDirectory() as folder:
            state = pathlib.Path(folder)
            other, third = (dataclasses.replace(self.rows()["vanilla"][0], outputs=text) for text in ("other", "third"))
            rows = self.rows() | {"eplb@grace": [other], "grace": [third]}
            told = {"rows": [{"name": name, "text": [f"text of {name}", "k"]} for name in rows]}
            store.Store(state / table.SHARED).put("text of grace", "k", {"told": {"strategies": [{}, {"differing_prompts": 3, "near_ties": 2}]}})
            self.assertEqual(table.texts_in(state / "table-a", told, rows),
                             {"vanilla": "yes", "joint@grace": "yes", "c2r": "-", "eplb@grace": "no", "grace": "3 differ, 2 of them near-ties"})
            self.assertEqual(table.difference_words({"differing_prompts": 2, "near_ties": 2}), "2 near-ties")

    def test_is_of_every_strategy_that_is_known_and_of_four_when_quick(self):
        setting = settings.setting_of("olmoe", 7.5, "128/64/16", quick=False)
        names = [row.name for row in settings.rows_of(setting, 64, ["vanilla", "occult", "grace", "eplb", "joint"])]
        self.assertEqual(names, ["vanilla", "padded", "allgather", "occult", "eplb@grace", "grace", "joint@grace", "joint@17", "joint@32"])
        quick = settings.setting_of("olmoe", 7.5, "128/64/16", quick=True)
        self.assertEqual((quick.batch, quick.name), (32, "olmoe-7.5-32-64-16-quick"))
        self.assertEqual([row.name for row in settings.rows_of(quick, 64, ["occult", "grace", "joint"])], ["vanilla", "occult", "grace", "joint@grace"])
        for workload_text in ("128/64", "0/64/16", "a/b/c"):
            with self.assertRaises(Refusal):
                settings.setting_of("olmoe", 7.5, workload_text, quick=False)

    def test_is_written_in_place_of_its_section(self):
        text = page.with_section(page.with_section("", "a", "one"), "b", "two")
        self.assertEqual(page.with_section(text, "a", "three"), text.replace("one", "three"))
        self.assertEqual(page.spread([3.0, 1.0, 2.0]), "2.0 (1.0..3.0)")

    def test_names_what_it_cannot_read(self):
        with self.assertRaisesRegex(Refusal, "its JSON has no .idle"):
            told = told_by_bench("vanilla")
            del told["strategies"][0]["idle"]
            figures.outcome_of(told)


class ACurve(unittest.TestCase):
    def test_is_judged_by_pairs(self):
        one = curve.Compared(10**9, 8, {curve.ONE: [10.0, 20.0, 30.0], curve.TWO: [9.0, 30.0, 24.0], curve.AUTO: [10.0, 30.0, 26.4]})
        self.assertEqual((one.two_over_one, one.better), (0.9, curve.TWO))
        self.assertAlmostEqual(one.auto_over_better, 1.1)
        self.assertIn("within 15 % of the better one at 1 of 1 points; farthest +10.0 %", curve.sentences([one]))
        self.assertIn("At 1 gbit/s two stages win at 8 tokens.", curve.sentences([one]))

    def test_goes_from_one_token_to_the_most(self):
        self.assertEqual(curve.token_counts(8192, 4), [1, 4, 16, 64, 256, 1024, 4096, 8192])
        self.assertEqual(curve.token_counts(4, 2), [1, 2, 4])
        self.assertEqual([curve.steps_at(tokens) for tokens in (1, 64, 1024, 8192)], [64, 16, 1, 1])


class ASimulation(unittest.TestCase):
    def test_is_held_against_what_was_measured(self):
        def outcome(prefill_ms: float, decode_ms: float) -> figures.Outcome:
            return figures.outcome_of(told_by_bench("any", prefill_moe_critical_path=prefill_ms, decode_moe_critical_path=decode_ms))

        measured = {"slow": [outcome(90, 10), outcome(95, 10)], "quick": [outcome(40, 10)], "alike": [outcome(41, 9), outcome(38, 9)]}
        predicted = {"slow": simulator.Predicted(0.08, 0.01, 0.07, 0.01), "quick": simulator.Predicted(0.07, 0.03, 0.05, 0.02),
                     "alike": simulator.Predicted(0.039, 0.009, 0.04, 0.01)}
        self.assertEqual(simulator.order(measured, predicted), (1, 2), "quick and alike overlap; quick is predicted slower than slow")
        text = simulator.compare_text(measured, predicted)
        self.assertIn("Within 20 %: 2 of 3 strategies. In the right order: 1 of the 2 pairs", text)
        self.assertIn("| slow | 102.5 (100.0..105.0) | 90.0 | 0.88 |", text)


    def test_takes_what_the_runs_sent(self):
        self.assertEqual([simulator.wire_of(also) for also in ("", "--threads 1", "--wire bf16", "--wire")], ["f32", "f32", "bf16", "f32"])


class AnOverlap(unittest.TestCase):
    def test_hides_a_share_of_the_shorter_of_exchange_and_independent_work(self):
        of = overlap.Compared([1.0, 1.1, 1.2], [0.8, 0.9, 1.1], [0.5, 0.5, 0.5], [0.4, 0.4, 0.4], 0.5)
        self.assertAlmostEqual(of.independent_s, 0.2)
        self.assertAlmostEqual(of.hidden_share, 1.0)
        self.assertAlmostEqual(dataclasses.replace(of, exchange_s=[0.1]).hidden_share, 2.0)
        self.assertEqual(overlap.row_of(10**9, of)[-2:], ["200.0", "100 %"])


class AReport(unittest.TestCase):
    def state_of(self, module, told: dict, runs: list[tuple[dict, dict]], listed: str) -> tuple[pathlib.Path, pathlib.Path]:
        """A state folder and its part of one benchmark: `runs` are what was asked for and what the program said."""
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        place = pathlib.Path(folder.name) / module.__name__.rsplit(".", 1)[-1]
        asked = []
        for number, (run, said) in enumerate(runs):
            store.Store(place).put(f"run{number}", "k", {"told": said})
            asked.append(run | {"run": f"run{number}", "key": "k"})
        store.write_atomically(place / module.ASKED_FILE, json.dumps({"version": "grace", "routing": "out/t.trace", "rounds": 2} | told | {listed: asked}))
        return place.parent, place

    def test_of_a_curve_names_the_winners(self):
        runs = [({"rate": 10**9, "tokens": 8, "dispatch": dispatch, "round": number}, told_by_bench("vanilla", prefill_exchange=640 * factor, decode_exchange=0))
                for number in (1, 2) for dispatch, factor in (("per_device", 2), ("two_stage", 1), ("auto", 1.1))]
        runs.append(({"rate": 10**9, "tokens": 64, "dispatch": "per_device", "round": 1}, told_by_bench("vanilla")))  # its other half is missing
        state, place = self.state_of(curve, {"rates": "1gbit", "most": 64, "step": 8}, runs, "points")
        text = curve.section_text(place)
        self.assertIn("| 1 gbit/s | 8 | 20000 | 10000 | 11000 | 0.50 | two_stage | 1.10 |", text)
        self.assertNotIn("| 64 |", text)
        self.assertEqual([name for name, _ in report.sections(state)], ["exchange-curve"])

    def test_of_links_gives_shares_of_the_rate(self):
        runs = [({"rate": 10**9, "dispatch": dispatch}, told_by_bench("vanilla", prefill_exchange=100, prefill_busiest_node_bytes=size))
                for dispatch, size in (("flat", 12), ("two_stage", 10), ("flat", 11))]
        _, place = self.state_of(link, {"rates": "1gbit"}, runs, "runs")
        self.assertIn("| 1 gbit/s | 92.0 (88.0..96.0) | 80.0 |", link.section_text(place))
        self.assertIn("flat: 92.0 % at least, aim 85 %; two_stage: 80.0 % at least", link.section_text(place))

    def test_of_overlap_pairs_rounds(self):
        runs = [({"rate": 10**9, "state": state, "round": number}, told_by_bench("vanilla", prefill_moe_layers=wall, prefill_exchange=50, prefill_experts=40))
                for number, state, wall in ((1, "off", 100), (1, "on", 85), (2, "off", 102), (2, "on", 87), (3, "off", 500))]
        _, place = self.state_of(overlap, {"rates": "1gbit", "shape": "olmoe", "local_share": 0.5}, runs, "runs")
        text = overlap.section_text(place)
        self.assertIn("At least 50 % hidden at 1 of 1 rates.", text)
        self.assertIn("| 1 gbit/s | 101.0 (100.0..102.0) | 86.0 (85.0..87.0) | 50.0 | 40.0 | 20.0 | 75 % |", text)

    def test_depends_on_the_state_folder_alone(self):
        with tempfile.TemporaryDirectory() as folder:
            state, path = pathlib.Path(folder, "state"), pathlib.Path(folder, "page.md")
            setting = settings.setting_of("olmoe", 7.5, "128/64/16", quick=False)
            kept = store.Store(state / f"table-{setting.name}")
            kept.put("vanilla.round1", "k1", {"told": told_by_bench("vanilla")})
            told = {"setting": dataclasses.asdict(setting), "rate_bits_per_s": 10**8, "first_rate_bits_per_s": 9 * 10**7, "ratio_at_first_rate": 7.0,
                    "busiest_bytes": 1e6, "experts_s": 0.1, "rounds": 3, "version": "grace", "routing": "t.trace", "also": "", "cluster": "c", "served": "s",
                    "plans": {},
                    "rows": [{"name": "vanilla", "text": ["text of vanilla", "k"], "runs": [[f"vanilla.round{number}", f"k{number}"] for number in (1, 2, 3)]}]}
            store.write_atomically(kept.folder / table.SETTING_FILE, json.dumps(told))
            self.assertEqual(report.write_all(state, path), ["exchange-olmoe-7.5-128-64-16"])
            text = path.read_text()
            self.assertIn("table --shape olmoe --routing t.trace --ratio 7.5 --workload 128/64/16\n", text)
            self.assertIn("2 runs missing", text)
            self.assertIn("Machine: a machine", text)
            report.write_all(state, path)
            self.assertEqual(path.read_text(), text)


@unittest.skipIf(NO_LAB, NO_LAB)
class AnExchangeBenchmark(unittest.TestCase):
    def test_measures_a_small_table_and_then_has_nothing_left_to_do(self):
        with tempfile.TemporaryDirectory() as folder:
            place = pathlib.Path(folder)
            whole = made_up_trace([9] * 8, layers=1)
            (place / "t.trace").write_bytes(trace.file_bytes(whole))
            shape = curve.shape_file(store.Store(place), whole)
            asked = ("table", "--shape", shape, "--routing", place / "t.trace", "--ratio", 34, "--workload", "128/16/2", "--layers", 1, "--quick",
                     "--state", place / "state", "--program", PROGRAM, "--write", place / "page.md")
            done = exchange(*asked)
            self.assertEqual(done.returncode, 0, done.stderr)
            text = (place / "page.md").read_text()
            for row in settings.QUICK:
                self.assertRegex(text, rf"\| {row} \| \w+ \| 1 \| [1-9]")
            again = exchange(*asked)
            self.assertEqual((again.returncode, again.stderr), (0, ""))
            self.assertEqual((place / "page.md").read_text(), text)
            self.assertIn("0 of 4 runs are missing", exchange(*asked, "--dry-run").stdout)


def main() -> int:
    result = unittest.main(argv=sys.argv[:1], exit=False, verbosity=2).result
    if not result.wasSuccessful():
        return 1
    if NO_LAB:
        print(f"skipped: {NO_LAB}")
        return 77
    return 0


if __name__ == "__main__":
    sys.exit(main())
