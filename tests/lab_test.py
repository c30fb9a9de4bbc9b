"""The lab of emulated nodes: its arithmetic, its refusals, and one MPI job across two nodes (arguments: program, source folder).

What needs root, network namespaces, tc or mpirun is skipped, with the reason, where `tools/lab check` says no.
"""

import contextlib
import dataclasses
import io
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from unittest import mock

PROGRAM, SOURCE = sys.argv[1], pathlib.Path(sys.argv[2])
LAB, DEMO = SOURCE / "tools/lab", SOURCE / "models/demo"
sys.path.insert(0, str(SOURCE / "tools"))

from labkit import commands, network, rate, sealed, units  # noqa: E402
from labkit.exchange import curve, figures, page, program, progress, settings, store, table, trace, workload  # noqa: E402
from labkit.refusal import Refusal  # noqa: E402

# TCP, IP and Ethernet headers and acknowledgements, and Open MPI's own headers and start.
MOST_OVERHEAD = 1.05
MOST_START_BYTES = 400_000
RATE = "200mbit"


def lab(*arguments: object, **options) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, LAB, *map(str, arguments)], capture_output=True, text=True, timeout=120, **options)


def why_no_lab() -> str:
    done = lab("check")
    return "" if done.returncode == 0 else done.stderr.strip()


NO_LAB = why_no_lab()


def record(*layers: dict, **head) -> str:
    known = {"record": "run", "cluster": "2x2", "ranks": 4, "steps": 2, "layers": 1, "decode_steps": 1} | head
    return "".join(json.dumps(line) + "\n" for line in (known, *layers))


def layer(step: int, rank: int, payload: int, experts_s: float) -> dict:
    sent = {"cross_node_payload": payload, "cross_node_header": 1, "intra_node_payload": 10**9, "intra_node_header": 10**9}
    return {"record": "layer", "step": step, "rank": rank, "layer": 0, "dispatch": sent, "combine": sent, "experts_s": experts_s}


class ARate(unittest.TestCase):
    def test_reads_as_tc_spells_it(self):
        for text, expected in {"200mbit": 200e6, "2.5gbit": 2.5e9, "100kbit": 1e5, "1000000": 1e6, "1Gbit": 1e9}.items():
            self.assertEqual(units.bits_per_s(text), expected)
        for text in ("", "fast", "1tbit", "-1mbit", "99kbit", "101gbit", "1e9"):
            with self.assertRaises(Refusal, msg=text):
                units.bits_per_s(text)

    def test_gives_the_ratio_back(self):
        for ratio in (2.3, 7.5, 34):
            for latency in (0, 50e-6):
                work, path = rate.Workload(3e6, 0.02, 8), rate.Path(0.9, latency)
                self.assertAlmostEqual(rate.ratio_at(work, path, rate.rate_for(work, path, ratio)), ratio)

    def test_is_the_worked_example(self):
        # 1 MB through the busiest link, 0.1 s of experts, ratio 8: 0.8 s for 8 Mbit at half the rate.
        self.assertAlmostEqual(rate.rate_for(rate.Workload(1e6, 0.1), rate.Path(share=0.5), 8), 20e6)

    def test_refuses_a_ratio_that_latency_alone_exceeds(self):
        with self.assertRaisesRegex(Refusal, "latency alone is 10 "):
            rate.rate_for(rate.Workload(1e6, 0.1, exchanges=1000), rate.Path(latency_s=1e-3), 7.5)

    def test_is_printed_with_what_it_comes_from(self):
        done = lab("rate", "--busiest-bytes", 1e6, "--experts-seconds", 0.1, "--share", 0.5, "--ratio", 8)
        told = json.loads(done.stdout)
        self.assertEqual((told["rate"], round(told["ratio"], 9), round(told["all_to_all_s"], 9)), ("20000kbit", 8, 0.8))
        back = json.loads(lab("rate", "--busiest-bytes", 1e6, "--experts-seconds", 0.1, "--share", 0.5, "--rate", told["rate"]).stdout)
        self.assertAlmostEqual(back["ratio"], 8)


class ARecord(unittest.TestCase):
    def workload(self, text: str, phase: str) -> rate.Workload:
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "run.jsonl")
            path.write_text(text)
            return rate.of_record(str(path), phase)

    def test_counts_the_node_that_sends_most_and_the_slowest_rank(self):
        text = record(layer(0, 0, 100, 1.0), layer(0, 1, 200, 2.0), layer(0, 2, 5, 7.0), layer(0, 3, 6, 4.0),
                      layer(1, 0, 1, 0.5), layer(1, 1, 1, 0.25), layer(1, 2, 50, 0.125), layer(1, 3, 50, 0.125))
        self.assertEqual(self.workload(text, "prefill"), rate.Workload(2 * 302, 7.0, 2))
        self.assertEqual(self.workload(text, "decode"), rate.Workload(2 * 102, 0.5, 2))
        self.assertEqual(self.workload(text, "all"), rate.Workload(2 * 302 + 2 * 102, 7.5, 4))

    def test_of_the_program_is_understood(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "run.jsonl")
            subprocess.run([PROGRAM, "run", DEMO, "--cluster", "2x2", "--prompt", "The package", "--max-new-tokens", "3", "--record", path],
                           capture_output=True, timeout=120, check=True)
            layers = json.loads(path.read_text().splitlines()[0])["layers"]
            prefill, decode, both = (rate.of_record(str(path), phase) for phase in ("prefill", "decode", "all"))
        self.assertEqual((prefill.exchanges, decode.exchanges), (2 * layers, 2 * 2 * layers))
        self.assertEqual(prefill.busiest_bytes + decode.busiest_bytes, both.busiest_bytes)
        self.assertGreater(min(prefill.busiest_bytes, prefill.experts_s), 0)

    def test_of_another_shape_is_refused(self):
        for text in ("", "{}\n", "[1]\n", "no json\n", record(cluster="mine"), record(cluster="2x3")):
            with self.assertRaises(Refusal, msg=text):
                self.workload(text, "prefill")


class ALink(unittest.TestCase):
    def test_has_a_bucket_of_a_frame_and_a_fifth_of_a_millisecond(self):
        self.assertEqual(network.Link(10**8).burst, 9014 + 2500)
        self.assertEqual(network.Link(10**10).burst, 9014 + 250000)

    def test_leaves_half_the_bucket_to_late_timers_where_a_frame_lets_it(self):
        for rate_of_link, largest in ((10**8, 9014), (10**9, (9014 + 25000) // 2), (10**10, 65536)):
            self.assertEqual(network.Link(rate_of_link).largest_packet, largest)


class ARefusal(unittest.TestCase):
    def refuses(self, *arguments: str, saying: str, **options):
        done = lab(*arguments, **options)
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        self.assertRegex(done.stderr, r"\Alab: [^\n]*\n\Z")
        self.assertIn(saying, done.stderr)

    def test_without_root_says_so(self):
        said = io.StringIO()
        with mock.patch.object(os, "geteuid", return_value=1000), contextlib.redirect_stderr(said):
            self.assertEqual(commands.main(["run", "--rate", RATE, "--", "true"]), 2)
        self.assertRegex(said.getvalue(), r"\Alab: needs root[^\n]*\n\Z")

    @unittest.skipIf(os.geteuid() != 0, "needs root")
    def test_without_a_tool_names_its_package(self):
        with tempfile.TemporaryDirectory() as folder:
            tools = pathlib.Path(folder)
            for missing, package in {"ip": "iproute2", "tc": "iproute2", "mpirun": "openmpi-bin"}.items():
                for tool in set(commands.TOOLS) - {missing}:
                    (tools / tool).unlink(missing_ok=True)
                    (tools / tool).symlink_to("/bin/true")
                (tools / missing).unlink(missing_ok=True)
                self.refuses("run", "--rate", RATE, "--", "true", saying=f"{missing} is not here: install {package}", env={"PATH": folder})

    def test_of_wrong_arguments_names_them(self):
        self.refuses("run", "--rate", "quick", "--", "true", saying="'quick' is no rate")
        self.refuses("run", "--rate", RATE, saying="no command")
        self.refuses("run", "--rate", RATE, "--nodes", "65", "--", "true", saying="--nodes: 65 is outside [1, 64]")
        self.refuses("run", "--rate", RATE, "--mtu", "9", "--", "true", saying="--mtu: 9 is outside")
        self.refuses("rate", "--ratio", "7.5", saying="--busiest-bytes")
        self.refuses("links", saying="not inside a lab's job")


def exchange(*arguments: object, **options) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, SOURCE / "tools/exchange_benchmarks.py", *map(str, arguments)], capture_output=True, text=True, timeout=300, **options)


def made_up_trace(tokens_of_sequence: list[int], layers: int = 3, experts: int = 8, k: int = 2) -> trace.Trace:
    """Token t of layer l chooses experts t + l, t + l + 1, ... mod E."""
    offsets = [sum(tokens_of_sequence[:count]) for count in range(len(tokens_of_sequence) + 1)]
    ids = bytes((token + layer + choice) % experts for token in range(offsets[-1]) for layer in range(layers) for choice in range(k))
    known = {"format_version": "1", "model": "made-up", "num_experts": str(experts), "experts_per_token": str(k), "decoder_layers": json.dumps(list(range(1, 1 + layers))),
             "phase": "prefill", "source": "a test"}
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
        # Four experts, one a device of 2x2, two a token. Prompts of one token on devices 0..3; token t chooses t and t + 1.
        counted = workload.count(made_up_trace([1, 1, 1, 1], layers=1, experts=4), 4, 1, 2, 2, once_a_node=False)
        self.assertEqual((counted.out_of_node, counted.local, counted.pairs), ([[1, 1]], 4, 8))
        # Prompts of two tokens begin anew: both tokens of a prompt are the same row.
        self.assertEqual(workload.count(made_up_trace([1, 1, 1, 1], layers=1, experts=4), 4, 2, 2, 2, once_a_node=False).pairs, 16)

    def test_takes_a_node_once_where_it_is_sent_to_once(self):
        one = made_up_trace([1], layers=1, experts=4, k=4)
        self.assertEqual(workload.count(one, 1, 1, 2, 2, once_a_node=False).out_of_node, [[2, 0]])
        self.assertEqual(workload.count(one, 1, 1, 2, 2, once_a_node=True).out_of_node, [[1, 0]])
        self.assertEqual(workload.count(one, 1, 1, 2, 2, once_a_node=True).busier_share, 1)

    def test_agrees_with_the_bytes_that_the_program_counts(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "t.trace")
            whole = trace.first_layers(made_up_trace([7] * 8, layers=2), 2)
            path.write_bytes(trace.file_bytes(whole))
            shape = curve.shape_file(store.Store(pathlib.Path(folder)), whole)
            told = json.loads(subprocess.run([PROGRAM, "bench", "--shape", shape, "--routing", path, "--cluster", "2x2", "--strategies", "vanilla", "--rounds", "1", "--batch", "4",
                                              "--prefill", "5", "--decode", "1", "--combine", "reduced", "--json"], capture_output=True, text=True, timeout=60, check=True).stdout)
        counted = workload.count(trace.every_second(whole, 0), 4, 5, 2, 2, once_a_node=False)
        payload = 2 * sum(map(sum, counted.out_of_node)) * curve.HIDDEN * 4
        sent = figures.outcome_of(told).prefill.cross_bytes
        self.assertGreater(sent, payload)
        self.assertLess(sent, 1.05 * payload)


def told_by_bench(strategy: str, **given: float) -> dict:
    """As `grace bench --json` tells one strategy, in its units."""
    known = {"prefill": 300, "decode": 100, "idle": 5, "load_deviation": 10, "tokens_per_s": 50} | \
        {f"{phase}_{name}": value for phase in ("prefill", "decode") for name, value in (("exchange", 70), ("experts", 10), ("moe", 90), ("cross_node_bytes", 4), ("intra_node_bytes", 2))} | given
    units = {"tokens_per_s": "1/s", "load_deviation": "%"}
    entry = {name: {"unit": "MB" if name.endswith("bytes") else units.get(name, "ms"), "median": value} for name, value in known.items()}
    return {"machine": "a machine", "strategies": [{"strategy": strategy, "dispatch": "flat", "outputs_sha": "abc"} | entry]}


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
            self.assertEqual([outcome is None for outcome in progress.run_all(self.store, known, runs, lambda _: 1.0, dry=False)], [True, False, False, False])
            self.assertIn("a.round1: FAILED: no memory", said.getvalue())
            failing = {run.name for run in runs}
            with self.assertRaisesRegex(Refusal, "the first 3 runs all failed"):
                progress.run_all(store.Store(self.folder / "other"), known, runs, lambda _: 1.0, dry=False)


class ATable(unittest.TestCase):
    def rows(self) -> dict[str, list[figures.Outcome]]:
        return {"vanilla": [figures.outcome_of(told_by_bench("vanilla", prefill_exchange=value)) for value in (74, 75, 80)],
                "joint@grace": [figures.outcome_of(told_by_bench("joint", prefill_moe=30, decode_moe=15))], "c2r": []}

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
        self.assertIn("Shortest MoE layers: joint@grace.", said)

    def test_compares_texts_of_different_runs(self):
        rows = self.rows()
        self.assertEqual([line.split(" | ")[-1].strip(" |") for line in table.traffic_table(rows).splitlines()[2:]], ["yes", "yes", "-"])
        rows["joint@grace"] = [dataclasses.replace(rows["joint@grace"][0], outputs="other")]
        self.assertEqual(table.traffic_table(rows).splitlines()[3].split(" | ")[-1].strip(" |"), "no")

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


@unittest.skipIf(NO_LAB, NO_LAB)
class ALab(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        lab("clean")
        self.addCleanup(self.assert_nothing_left)
        self.marker = f"GRACE_LAB_TEST={self.folder}"  # in the environment of all that this test starts

    def assert_nothing_left(self):
        left = [place.name for place in pathlib.Path("/proc").glob("[0-9]*") if self.marker in environment_of(place)]
        self.assertEqual(left, [])
        listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout.split()
        self.assertFalse({network.SWITCH, network.node_name(0)} & set(listed))
        self.assertEqual(lab("clean").stdout, "nothing was left\n")

    def environment(self) -> dict[str, str]:
        return os.environ | {"GRACE_LAB_TEST": str(self.folder)}

    def run_lab(self, *words: object, nodes=2, devices=1) -> tuple[subprocess.CompletedProcess, dict]:
        report = self.folder / "lab.json"
        done = lab("run", "--nodes", nodes, "--devices", devices, "--rate", RATE, "--json", report, "--", *words, env=self.environment())
        return done, json.loads(report.read_text())

    def start(self, *words: str) -> subprocess.Popen:
        """A lab whose job has begun."""
        begun = self.folder / f"begun{time.monotonic_ns()}"
        script = f"touch {begun}; {' '.join(words)}"
        started = subprocess.Popen([sys.executable, LAB, "run", "--rate", RATE, "--", "sh", "-c", script], env=self.environment(),
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.wait_until(begun.exists)
        return started

    def wait_until(self, true):
        deadline = time.monotonic() + 30
        while not true():
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.02)

    def test_serves_the_same_text_across_hosts_of_different_names(self):
        asked = ("run", DEMO, "--cluster", "2x2", "--prompt", "The package", "--max-new-tokens", "8")
        alone = subprocess.run([PROGRAM, *map(str, asked)], capture_output=True, text=True, timeout=120, check=True)
        done, told = self.run_lab(PROGRAM, *asked, "--transport", "mpi", "--hosts", "{hosts}", devices=2)
        self.assertEqual((done.returncode, done.stdout), (0, alone.stdout), done.stderr)
        self.assertEqual(told["processes_left"], [])
        self.assertGreater(told["links"][1]["sent_bytes"], 0)

    def test_carries_the_bytes_that_the_program_counts(self):
        for devices in (1, 2):
            done, told = self.run_lab(PROGRAM, "bench", DEMO, "--cluster", f"2x{devices}", "--transport", "mpi", "--hosts", "{hosts}", "--strategies", "vanilla",
                                      "--batch", 16, "--prefill", 64, "--decode", 2, "--rounds", 1, "--json", devices=devices)
            self.assertEqual(done.returncode, 0, done.stderr)
            counted = 1e6 * json.loads(done.stdout)["strategies"][0]["cross_node_bytes"]["median"]
            carried = sum(link["sent_bytes"] for link in told["links"])
            print(f"2x{devices}: counted {counted:.0f}, on the links {carried}, {100 * (carried / counted - 1):.2f} % more")
            self.assertGreater(carried, counted)
            self.assertLess(carried, MOST_OVERHEAD * counted + MOST_START_BYTES)
            self.assertEqual(sum(link["dropped"] for link in told["links"]), 0)
            # No shortcut around the links: the busier one has carried its bytes no faster than its rate.
            self.assertGreater(told["seconds"], 8 * max(link["sent_bytes"] for link in told["links"]) / told["rate_bits_per_s"])

    def test_passes_on_what_the_job_says_and_how_it_ends(self):
        done, told = self.run_lab("sh", "-c", "hostname; exit 7")
        self.assertEqual((done.returncode, done.stdout, told["exit"]), (7, "node0\n", 7))
        done, _ = self.run_lab("mpirun", "-n", "3", "--hostfile", "{hosts}", "hostname", nodes=3)
        self.assertEqual((done.returncode, sorted(done.stdout.split())), (0, ["node0", "node1", "node2"]), done.stderr)

    def test_tells_of_processes_that_a_job_leaves_and_ends_them(self):
        done, told = self.run_lab("sh", "-c", "sleep 1000 >/dev/null 2>&1 &")
        self.assertEqual((done.returncode, told["processes_left"]), (0, ["sleep"]))
        self.assertIn("left 1 process(es) behind", done.stderr)

    def test_is_taken_down_when_told_to_end(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            started = self.start("exec sleep 1000")
            started.send_signal(number)
            self.assertEqual(started.wait(timeout=30), 128 + number)
            started.communicate()
            self.assert_nothing_left()

    def test_is_taken_down_when_killed(self):
        started = self.start("mpirun -n 2 --hostfile {hosts} sleep 1000")
        self.wait_until(lambda: sum(self.marker in environment_of(place) for place in pathlib.Path("/proc").glob("[0-9]*")) >= 6)
        started.kill()
        started.communicate()
        self.wait_until(lambda: not any(self.marker in environment_of(place) for place in pathlib.Path("/proc").glob("[0-9]*")))
        self.assertIn(sealed.folder_of(started.pid).name, lab("clean").stdout)
        self.assertFalse(sealed.folder_of(started.pid).exists())

    def test_stands_beside_another(self):
        first, second = (self.start("mpirun -n 4 --hostfile {hosts} hostname") for _ in range(2))
        for started in (first, second):
            out, errors = started.communicate(timeout=60)
            self.assertEqual((started.returncode, sorted(out.split())), (0, ["node0", "node0", "node1", "node1"]), errors)

    def test_cuts_a_node_off_and_joins_it_again(self):
        reach = "python3 -c 'import socket; s = socket.socket(); s.settimeout(0.5); print(s.connect_ex((\"node1\", 9)) == 111, flush=True)'"
        done, told = self.run_lab("sh", "-c", f"{reach}; {LAB} cut node1; {reach}; {LAB} join node1; {reach}; {LAB} links; {LAB} cut alpha")
        words = done.stdout.split(maxsplit=3)
        self.assertEqual((words[:3], done.returncode), (["True", "False", "True"], 2))
        self.assertEqual([link["node"] for link in json.loads(words[3])], ["node0", "node1"])
        self.assertEqual(done.stderr, "lab: 'alpha' is no node such as node1\n")

    def test_lets_a_job_end_in_time_when_a_node_is_cut_off(self):
        asked = f"{PROGRAM} bench {DEMO} --cluster 2x2 --transport mpi --hosts {{hosts}} --strategies vanilla --rounds 1000 --deadline 4"
        done, told = self.run_lab("sh", "-c", f"{asked} & sleep 2; {LAB} cut node1; date +%s.%N; wait $!; status=$?; date +%s.%N; exit $status", devices=2)
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertRegex(done.stderr, r"\Agrace: rank \d: [^\n]*\n\Z")
        cut, ended = map(float, done.stdout.split())
        self.assertLess(ended - cut, 4)
        self.assertEqual(told["processes_left"], [])

    def test_probes_its_links(self):
        done = lab("probe", "--rate", "100mbit", "--seconds", 0.5, env=self.environment())
        told = json.loads(done.stdout)
        print(f"TCP reaches {told['share_one_way']:.3f} of 100mbit")
        self.assertLess(told["share_one_way"], 1.05)  # a link that does not hold its rate is none


def environment_of(place: pathlib.Path) -> set[str]:
    try:
        return set((place / "environ").read_bytes().decode(errors="replace").split("\0"))
    except OSError:
        return set()


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
