"""The command line's promises: exit codes, one-line errors, the shape of its JSON (arguments: program, source folder)."""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

PROGRAM, SOURCE = sys.argv[1], pathlib.Path(sys.argv[2])
FIXTURE = SOURCE / "tests/fixtures/olmoe/bf16_published"
DEMO = SOURCE / "models/demo"
COMMANDS = ("demo", "tokenize", "eval", "profile", "synthesize", "plan", "compare", "reproduce", "simulate", "calibrate", "run", "bench", "import", "export", "report", "check")
IDS = [[1, 2, 3, 4, 5, 6, 7], [8], [9, 10, 11, 12], [3, 3, 1]]


def grace(*arguments) -> subprocess.CompletedProcess:
    return subprocess.run([PROGRAM, *map(str, arguments)], capture_output=True, text=True, timeout=600)


class CommandLine(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def path(self, name: str) -> pathlib.Path:
        return pathlib.Path(self.folder.name) / name

    def written(self, name: str, content) -> pathlib.Path:
        path = self.path(name)
        path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
        return path

    def succeeds(self, *arguments) -> str:
        done = grace(*arguments)
        self.assertEqual((done.returncode, done.stderr), (0, ""), arguments)
        return done.stdout

    def refuses(self, *arguments, saying: str):
        self.fails(*arguments, saying=saying, code=2)

    def fails(self, *arguments, saying: str, code: int = 1):
        done = grace(*arguments)
        self.assertEqual((done.returncode, done.stdout), (code, ""), (arguments, done.stderr))
        self.assertRegex(done.stderr, r"\Agrace: [^\n]*\n\Z")
        self.assertIn(saying, done.stderr)


class TheProgram(CommandLine):
    def test_tells_its_version(self):
        self.assertRegex(self.succeeds("--version"), r"\Agrace \d+\.\d+\.\d+\n\Z")

    def test_helps_with_an_example_for_every_command(self):
        for command in COMMANDS:
            text = self.succeeds(command, "--help")
            self.assertRegex(text, "Examples?:")
            self.assertIn(f"grace {command}", text)

    def test_refuses_what_it_does_not_know(self):
        self.refuses(saying="subcommand")
        self.refuses("dance", saying="dance")
        self.refuses("check", saying="FILE")
        self.refuses("run", FIXTURE, "--prompt", "x", "--bogus", saying="--bogus")


class Running(CommandLine):
    def setUp(self):
        super().setUp()
        if not (FIXTURE / "model.safetensors").exists():
            self.skipTest("the fixture is not there")
        self.ids = self.written("ids.json", IDS)

    def run_ids(self, *arguments) -> list:
        text = self.succeeds("run", FIXTURE, "--token-ids", self.ids, "--max-new-tokens", 3, "--ignore-eos", "--json", *arguments)
        outputs = json.loads(text)["outputs"]
        self.assertEqual([set(entry) for entry in outputs], [{"token_ids", "text"}] * len(IDS))
        self.assertTrue(all(entry["text"] is None and len(entry["token_ids"]) == 3 for entry in outputs))
        return [entry["token_ids"] for entry in outputs]

    def test_gives_the_same_ids_for_every_cluster_and_dispatch(self):
        alone = self.run_ids()
        for cluster in ("1x2", "1x3", "2x2"):
            for dispatch in ("flat", "per_device"):
                self.assertEqual(self.run_ids("--cluster", cluster, "--dispatch", dispatch), alone)

    def test_profiles_plans_runs_reports_and_checks(self):
        trace, plan, record, page = map(self.path, ("t.safetensors", "p.json", "r.jsonl", "page.html"))
        for phase in ("decode", "both", "prefill"):
            made = json.loads(self.succeeds("profile", FIXTURE, "--token-ids", self.ids, "--phase", phase, "--out", trace, "--json"))
            self.assertEqual(made["phase"], phase)
        self.assertEqual((made["tokens"], made["sequences"]), (15, 4))
        again = self.path("again.safetensors")
        self.succeeds("profile", FIXTURE, "--token-ids", self.ids, "--out", again, "--cluster", "1x3")
        self.assertEqual(trace.read_bytes(), again.read_bytes())
        planned = json.loads(self.succeeds("plan", "--trace", trace, "--cluster", "2x2", "--strategy", "grace", "--out", plan, "--json"))
        self.assertLessEqual({"affinity_kept", "affinity_kept_by_random_groups", "copies", "layers"}, set(planned))
        self.assertEqual(self.run_ids("--cluster", "2x2", "--plan", plan, "--record", record), self.run_ids())
        self.succeeds("report", "--trace", trace, "--plan", plan, "--run", record, "--html", page, "--json")
        self.assertNotRegex(page.read_text(), "https?:")
        self.assertEqual(self.succeeds("check", plan, trace, FIXTURE, "--model", FIXTURE).count("OK"), 3)

    def test_refuses_a_plan_for_another_cluster(self):
        trace, plan = self.path("t.safetensors"), self.path("p.json")
        self.succeeds("profile", FIXTURE, "--token-ids", self.ids, "--out", trace)
        self.succeeds("plan", "--trace", trace, "--cluster", "1x2", "--strategy", "vanilla", "--out", plan)
        self.refuses("run", FIXTURE, "--token-ids", self.ids, "--plan", plan, "--cluster", "2x2", saying="p.json")

    def test_says_what_a_lossy_plan_costs(self):
        trace, plan = self.path("t.safetensors"), self.path("c2r.json")
        self.succeeds("profile", FIXTURE, "--token-ids", self.ids, "--out", trace)
        self.assertIn("Lossy", self.succeeds("plan", "--trace", trace, "--cluster", "1x2", "--strategy", "c2r", "--out", plan))
        everyone = json.loads((FIXTURE / "config.json").read_text())["num_experts"] - 1
        common = ("eval", FIXTURE, "--token-ids", self.ids, "--context", 4, "--cluster", "1x2", "--plan", plan)
        text = self.succeeds("plan", "--trace", trace, "--cluster", "1x2", "--strategy", "c2r", "--partners", 1, "--out", plan, "--json")
        self.assertTrue(json.loads(text)["lossy"])
        held = json.loads(self.succeeds(*common, "--json"))
        self.assertTrue(held["lossy"])
        self.assertAlmostEqual(held["perplexity"] / held["free_perplexity"] - 1, held["perplexity_loss"])
        self.assertIn("lossy", self.succeeds(*common))
        self.assertIn("lossy", self.succeeds("check", plan))
        self.succeeds("plan", "--trace", trace, "--cluster", "1x2", "--strategy", "c2r", "--partners", everyone, "--out", plan)
        free = json.loads(self.succeeds(*common, "--json"))
        self.assertEqual(free["perplexity"], free["free_perplexity"], "all are partners: the same bits")
        self.refuses("plan", "--trace", trace, "--cluster", "1x2", "--strategy", "c2r", "--partners", everyone + 1, "--out", plan, saying="partners")

    def test_refuses_what_does_not_fit_into_memory_before_it_reads(self):
        cluster = self.written("small.json", {"format_version": 1, "nodes": [{"devices": [{}, {"memory_bytes": 1000}]}], "between_devices": {"bytes_per_s": 1e9, "latency_s": 0},
                                              "between_nodes": {"bytes_per_s": 1e9, "latency_s": 0}, "flops_per_s": 1e9, "memory_bytes_per_s": 1e9})
        self.refuses("run", FIXTURE, "--token-ids", self.ids, "--cluster", cluster, saying="rank 1: needs")
        self.refuses("eval", FIXTURE, "--token-ids", self.ids, "--cluster", cluster, saying="device 1 has 1.0 KiB for experts")
        trace, plan = self.path("t.safetensors"), self.path("p.json")
        self.succeeds("profile", FIXTURE, "--token-ids", self.ids, "--out", trace)
        self.succeeds("plan", "--trace", trace, "--cluster", "1x2", "--strategy", "vanilla", "--out", plan)
        self.assertRegex(self.succeeds("check", plan, "--model", FIXTURE), r"rank 1 holds [0-9.]+ [KM]iB \(experts [0-9.]+, dense [0-9.]+\)")

    def test_simulates_a_trace_with_and_without_a_plan(self):
        trace, plan, timeline, page = map(self.path, ("t.safetensors", "p.json", "timeline.json", "page.html"))
        self.succeeds("profile", FIXTURE, "--token-ids", self.ids, "--phase", "both", "--out", trace)
        self.succeeds("plan", "--trace", trace, "--cluster", "2x2", "--strategy", "grace", "--out", plan)
        common = ("simulate", "--trace", trace, "--cluster", "2x2", "--shape", FIXTURE / "config.json")
        planned = json.loads(self.succeeds(*common, "--plan", plan, "--timeline", timeline, "--json"))
        self.assertEqual(planned["strategy"], "grace")
        self.assertEqual(planned["whole"]["tokens"], 15)
        self.assertEqual(len(planned["devices"]), 4)
        self.assertTrue(0 < planned["whole"]["all_to_all_of_whole"] < planned["whole"]["all_to_all_of_moe_layers"] < 1)
        self.assertTrue(json.loads(timeline.read_text())["traceEvents"])
        flat = json.loads(self.succeeds(*common, "--dispatch", "flat", "--batch", 2, "--exact", "--timeline", page, "--json"))
        self.assertEqual((flat["strategy"], flat["dispatch"], flat["batch_sequences"]), ("vanilla", "flat", 2))
        self.assertIn("all-to-all of the whole", page.read_text())
        sent, back = (flat["exact_bytes"][stage] for stage in ("dispatch", "combine"))
        self.assertGreater(sent["cross_node_payload"], 0)
        self.assertEqual(sent["cross_node_payload"], back["cross_node_payload"])
        self.assertEqual(flat["bytes_cross_node"], sent["cross_node_payload"], "two ways, two bytes a value in place of four")
        self.refuses("simulate", "--trace", trace, "--cluster", "2x2", saying="--shape")
        for dispatch in ("flat", "padded", "allgather"):
            exact = json.loads(self.succeeds(*common, "--dispatch", dispatch, "--combine", "exact", "--wire", "f32", "--exact",
                                             "--batch", 3, "--prefill", 5, "--decode", 2, "--json"))
            self.assertEqual((exact["prefill"]["tokens"], exact["decode"]["tokens"]), (15, 3))
            sent, back = (exact["exact_bytes"][stage] for stage in ("dispatch", "combine"))
            self.assertEqual(exact["bytes_cross_node"], sent["cross_node_payload"] + back["cross_node_payload"])
        self.refuses(*common, "--prefill", 5, saying="--batch")
        self.refuses(*common, "--decode", 5, saying="--prefill")
        self.refuses("simulate", "--trace", trace, "--cluster", "1x2", "--plan", plan, "--shape", FIXTURE, saying="p.json")

    def test_scores_and_writes_logits(self):
        scored = json.loads(self.succeeds("eval", FIXTURE, "--token-ids", self.ids, "--context", 4, "--json"))
        self.assertEqual(set(scored), {"perplexity", "tokens", "context"})
        self.assertEqual((scored["tokens"], scored["context"]), (11, 4))
        alone, spread = self.path("a.safetensors"), self.path("b.safetensors")
        self.succeeds("eval", FIXTURE, "--token-ids", self.ids, "--logits", alone)
        self.succeeds("eval", FIXTURE, "--token-ids", self.ids, "--logits", spread, "--cluster", "1x3")
        self.assertEqual(alone.read_bytes(), spread.read_bytes())
        size = int.from_bytes(alone.read_bytes()[:8], "little")
        header = json.loads(alone.read_bytes()[8:8 + size])
        vocabulary = json.loads((FIXTURE / "config.json").read_text())["vocab_size"]
        self.assertEqual(header["logits_3"]["shape"], [3, vocabulary])
        self.assertEqual(header["logits_3"]["dtype"], "F32")

    def test_benches_and_replaces_only_its_own_section(self):
        page = self.written("b.md", b"# Page\n\nkeep\n\n<!-- section a -->\nwhat stood here before\n<!-- end a -->\n\ntail\n")
        common = ("bench", FIXTURE, "--strategies", "vanilla", "--batch", 4, "--prefill", 3, "--decode", 2, "--rounds", 2, "--cluster", "1x2")
        measured = json.loads(self.succeeds(*common, "--section", "a", "--write", page, "--json"))
        self.assertTrue(measured["same_text"])
        self.assertEqual(measured["strategies"][0]["strategy"], "vanilla")
        text = page.read_text()
        self.assertTrue(text.startswith("# Page\n\nkeep\n\n<!-- section a -->\n") and text.endswith("<!-- end a -->\n\ntail\n"))
        self.assertNotIn("what stood here before", text)
        self.refuses("bench", FIXTURE, "--strategies", "vanilla,grace", "--prefill", 3, "--decode", 2, saying="--plan")
        self.refuses(*common, "--slots", "3,4", saying="--slots")

    def test_benches_prefill_and_decode_apart_and_round_by_round(self):
        page = self.path("bench.html")
        common = ("bench", FIXTURE, "--strategies", "vanilla,allgather", "--batch", 4, "--prefill", 3, "--decode", 2, "--rounds", 2, "--cluster", "2x1")
        measured = json.loads(self.succeeds(*common, "--aligned", "--html", page, "--json"))
        self.assertTrue(measured["aligned"])
        self.assertIn("aligned", measured["options"])
        self.assertEqual(measured["near_tie_bound"], 0, "exact results have no near-ties")
        figures = ("moe_critical_path", "exchange", "experts", "all_to_all", "moe_layers", "idle", "cross_node_bytes", "busiest_node_bytes", "intra_node_bytes", "load_deviation")
        for one in measured["strategies"]:
            self.assertEqual((one["differing_prompts"], one["near_ties"], one["same_text"]), (0, 0, True))
            self.assertEqual(len(one["rounds"]), 2)
            for figure in (*figures, *(f"prefill_{name}" for name in figures), *(f"decode_{name}" for name in figures), "prefill", "decode", "end_to_end"):
                values, told = [each[figure] for each in one["rounds"]], one[figure]
                self.assertEqual((told["lowest"], told["highest"]), (min(values), max(values)))
                self.assertAlmostEqual(told["median"], sum(values) / 2)
                self.assertAlmostEqual(told["spread"], max(values) - min(values))
            for each in one["rounds"]:
                for name in ("moe_critical_path", "exchange", "experts", "cross_node_bytes", "busiest_node_bytes"):
                    self.assertAlmostEqual(each[name], each[f"prefill_{name}"] + each[f"decode_{name}"])
                self.assertGreater(each["moe_critical_path"], each["exchange"] + each["experts"])
                self.assertAlmostEqual(each["end_to_end"], each["prefill"] + each["decode"])
                self.assertTrue(each["cross_node_bytes"] / 2 <= each["busiest_node_bytes"] <= each["cross_node_bytes"])
        hashes = {one["outputs_hash"] for one in measured["strategies"]}
        self.assertEqual(len(hashes), 1)
        self.assertNotIn("end_to_end_critical_path", measured["strategies"][0], "attention is not in the critical path")
        text = page.read_text()
        self.assertNotRegex(text, "https?:")
        for needed in ("Prefill and decode apart", "One layer, vanilla", "One layer, allgather", "exchange, critical path"):
            self.assertIn(needed, text)
        table = self.succeeds(*common)
        for needed in ("decode: exchange, critical path", "same text", "yes"):
            self.assertIn(needed, table)
        self.fails(*common, "--html", self.path("no/such/folder.html"), saying="folder.html")

    def events_of(self, path) -> dict:
        """Spans by (process, track); whatever is said of them all is checked here."""
        events = json.loads(path.read_text())["traceEvents"]
        process = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
        track = {(event["pid"], event["tid"]): event["args"]["name"] for event in events if event["name"] == "thread_name"}
        spans = {(process[pid], name): [] for (pid, _), name in track.items()}
        for event in events:
            if event["ph"] == "X":
                self.assertEqual(set(event["args"]), {"layer", "step"})
                self.assertGreaterEqual(event["ts"], 0)
                spans[process[event["pid"]], track[event["pid"], event["tid"]]].append(event)
        for of_track in spans.values():
            of_track.sort(key=lambda event: event["ts"])
            for one, after in zip(of_track, of_track[1:]):
                self.assertLessEqual(one["ts"] + one["dur"], after["ts"] + 0.002, "spans of a track lie apart")
        return spans

    def test_writes_timelines(self):
        timeline = self.path("t.json")
        self.run_ids("--cluster", "1x2", "--timeline", timeline)
        spans = self.events_of(timeline)
        self.assertLessEqual({("vanilla, rank 0", "work"), ("vanilla, rank 1", "work")}, set(spans))
        self.assertEqual({event["args"]["step"] for of_track in spans.values() for event in of_track}, {0, 1, 2})
        for name in ("gate", "experts"):
            self.assertIn(name, {event["name"] for event in spans["vanilla, rank 0", "work"]})
        self.assertEqual({event["name"] for event in spans["vanilla, rank 1", "messages"]}, {"dispatch", "combine"})
        common = ("bench", FIXTURE, "--batch", 4, "--prefill", 3, "--decode", 2, "--rounds", 2, "--cluster", "1x2")
        self.succeeds(*common, "--strategies", "vanilla,padded", "--timeline", timeline)
        processes = {process for process, _ in self.events_of(timeline)}
        self.assertEqual(processes, {f"{strategy}, rank {rank}" for strategy in ("vanilla", "padded") for rank in (0, 1)})
        self.fails("run", FIXTURE, "--token-ids", self.ids, "--max-new-tokens", 3, "--timeline", self.path("no/such/t.json"), saying="t.json")

    def test_writes_a_timeline_of_an_mpi_job(self):
        if shutil.which("mpirun") is None:
            self.skipTest("mpirun is not here")
        timeline, record = self.path("t.json"), self.path("r.jsonl")
        self.run_ids("--cluster", "1x2", "--transport", "mpi", "--timeline", timeline, "--record", record)
        self.assertEqual({process for process, _ in self.events_of(timeline)}, {"vanilla, rank 0", "vanilla, rank 1"})
        self.assertTrue(json.loads(record.read_text().splitlines()[0])["one_clock"], "ranks of one machine share its clock")

    def test_benches_the_exchanges_of_other_engines(self):
        common = ("bench", FIXTURE, "--batch", 4, "--prefill", 3, "--decode", 2, "--rounds", 1, "--cluster", "2x2", "--strategies", "vanilla,padded,allgather", "--json")
        measured = json.loads(self.succeeds(*common))["strategies"]
        self.assertEqual([one["dispatch"] for one in measured], ["flat", "padded", "allgather"])
        self.assertTrue(all(one["same_text"] and one["differing_prompts"] == 0 for one in measured))
        flat, padded, _ = (one["cross_node_bytes"]["median"] for one in measured)
        self.assertGreaterEqual(padded, flat)
        every = json.loads(self.succeeds(*common, "--dispatch", "two_stage", "--combine", "reduced"))
        self.assertTrue(all(one["dispatch"] == "two_stage" for one in every["strategies"]))
        self.assertIn("reduced results", every["options"])
        self.refuses(*common, "--combine", "reduced", "--exact", saying="contradicts")
        self.refuses(*common, "--combine", "quickly", saying="neither exact nor reduced")

    def test_serves_a_traces_routing_without_a_model(self):
        trace, other = self.path("t.trace"), self.path("other.trace")
        self.succeeds("profile", FIXTURE, "--token-ids", self.ids, "--out", trace)
        common = ("bench", "--shape", FIXTURE / "config.json", "--batch", 4, "--prefill", 3, "--decode", 2, "--rounds", 1, "--cluster", "2x2")
        measured = json.loads(self.succeeds(*common, "--routing", trace, "--layers", 1, "--strategies", "vanilla,grace,joint-slow", "--json"))
        self.assertTrue(measured["same_text"])
        self.assertIn("random weights", measured["options"])
        for one in measured["strategies"]:
            self.assertAlmostEqual(one["end_to_end_critical_path"]["median"], one["moe_critical_path"]["median"])
        plans, grace = self.path("plans"), ("--routing", trace, "--layers", 1, "--strategies", "grace", "--json")
        plans.mkdir()
        for _ in ("made and kept", "taken from there"):
            again = json.loads(self.succeeds(*common, *grace, "--plans", plans))["strategies"][0]
            self.assertEqual(again["outputs_hash"], measured["strategies"][1]["outputs_hash"])
            self.assertEqual(again["cross_node_bytes"]["median"], measured["strategies"][1]["cross_node_bytes"]["median"])
            self.assertEqual([path.name for path in plans.iterdir()], ["grace.json"])
        self.succeeds(*common, *grace, "--plan", plans / "grace.json")
        self.refuses(*common[:-1], "1x2", *grace, "--plans", plans, saying="grace.json")
        self.refuses(*common, saying="--shape NAME and --routing TRACE go together")
        self.refuses(*common, "--routing", trace, "--layers", 99, saying="99 is outside [1, ")
        self.refuses("bench", "--batch", 4, saying="needs a model folder")
        self.succeeds("synthesize", "--shape", "2x8", "--top-k", 2, "--tokens", 64, "--out", other)
        self.refuses(*common, "--routing", other, saying="routing of 8 experts")

    def test_benches_strategies_that_need_sizes_and_a_budget(self):
        if not (DEMO / "model.safetensors").exists():
            self.skipTest("models/demo is not there")
        text = self.written("t.txt", ("The package manager installs what is missing. " * 40).encode())
        common = ("bench", DEMO, "--text", text, "--batch", 4, "--prefill", 16, "--decode", 2, "--rounds", 1, "--cluster", "2x2")
        measured = json.loads(self.succeeds(*common, "--strategies", "vanilla,grace,joint", "--slots", "grace", "--json"))
        self.assertEqual([one["strategy"] for one in measured["strategies"]], ["vanilla", "grace", "joint"])
        self.assertTrue(measured["same_text"])
        self.assertIn("slots grace", measured["options"])
        self.refuses(*common, "--strategies", "joint", "--slots", 3, saying="cannot hold 64 experts once")

    def test_refuses_the_impossible(self):
        run = ("run", FIXTURE, "--token-ids", self.ids)
        self.refuses(*run, "--cluster", "0x2", saying="0x2")
        self.refuses(*run, "--transport", "pigeon", saying="pigeon")
        self.refuses(*run, "--dispatch", "nowhere", saying="nowhere")
        for command in (run, ("eval", FIXTURE, "--token-ids", self.ids), ("bench", FIXTURE), ("profile", FIXTURE, "--token-ids", self.ids, "--out", self.path("t"))):
            self.refuses(*command, "--cluster", "2x2", "--transport", "mpi", "--dispatch", "three_stage", saying="two_stage")
        self.refuses(*run, "--dtype", "fp4", saying="fp4")
        self.refuses(*run, "--threads", 0, saying="0 is outside [1, 1024]")
        self.refuses(*run, "--threads", 1024, "--pin", saying="this machine's ranks have 1024 threads or more")
        self.refuses(*run, "--max-new-tokens", 0, saying="0 is less than 1")
        self.refuses(*run, "--top-p", 2, saying="2 is outside (0, 1]")
        self.refuses(*run, "--prompt", "x", saying="--token-ids")
        self.refuses("run", self.path("none"), "--token-ids", self.ids, saying="none")
        self.refuses("run", FIXTURE, "--token-ids", self.written("big.json", [[1, 10**9]]), saying="1000000000 is outside [0, ")
        self.refuses("run", FIXTURE, "--token-ids", self.written("flat.json", [1, 2]), saying="entry 0")
        self.refuses("run", FIXTURE, "--token-ids", self.written("broken.json", b"[[1,"), saying="broken.json")
        self.refuses("eval", FIXTURE, "--token-ids", self.ids, "--context", 0, saying="--context")
        self.refuses("profile", FIXTURE, "--token-ids", self.ids, "--phase", "noon", "--out", self.path("t"), saying="noon")
        self.refuses("demo", "--model", self.path("none"), saying="demo model")


class Recording(CommandLine):
    """Records made by hand: 2x1, one prefill and one decode step, one layer."""

    SECONDS = ("gate_s", "dispatch_s", "experts_s", "combine_s", "wait_s", "gate_cpu_s", "experts_cpu_s", "pack_cpu_s",
               "dispatch_begin_s", "dispatch_end_s", "combine_begin_s", "combine_end_s")
    # (step, rank): as SECONDS; whole numbers, so that sums are exact.
    TIMES = {
        (0, 0): (1, 3, 10, 2, 3, 1, 8, 2, 100, 103, 120, 122),
        (0, 1): (2, 5, 12, 3, 5, 2, 12, 1, 101, 105, 118, 123),
        (1, 0): (1, 2, 4, 1, 1, 1, 4, 1, 130, 131, 140, 142),
        (1, 1): (1, 1, 1, 4, 4, 1, 1, 3, 129, 132, 136, 141),
    }
    # (step, rank): payload across nodes of dispatch and of combine.
    SENT = {(0, 0): (70, 10), (0, 1): (50, 30), (1, 0): (7, 1), (1, 1): (9, 2)}

    def setUp(self):
        super().setUp()
        self.trace, self.plan = self.path("t.trace"), self.path("p.json")
        self.succeeds("synthesize", "--shape", "1x8", "--top-k", 2, "--tokens", 64, "--out", self.trace)
        self.succeeds("plan", "--trace", self.trace, "--cluster", "2x1", "--strategy", "vanilla", "--out", self.plan)

    def lines(self) -> list:
        head = {"record": "run", "model": "hand", "cluster": "2x1", "transport": "mpi", "dispatch": "flat", "combine": "exact", "strategy": "vanilla",
                "prompts": 2, "prompt_tokens": 6, "new_tokens": 4, "prefill_s": 30.0, "decode_s": 15.0, "decode_steps": 1, "aligned": True,
                "one_clock": False, "ranks": 2, "devices_per_node": [1, 1], "steps": 2, "layers": 1}
        made = [head]
        for (step, rank), times in self.TIMES.items():
            there, back = ({"intra_node_payload": 0, "cross_node_payload": sent, "intra_node_header": 0, "cross_node_header": 4} for sent in self.SENT[step, rank])
            made.append({"record": "layer", "step": step, "rank": rank, "layer": 0, "tokens": 3, "assignments": 6 if rank == 0 else 2,
                         "dispatch": there, "combine": back, **dict(zip(self.SECONDS, map(float, times)))})
        return made

    def report(self, lines: list) -> tuple:
        record = self.written("r.jsonl", "\n".join(map(json.dumps, lines)).encode())
        return ("report", "--trace", self.trace, "--plan", self.plan, "--run", record, "--html", self.path("page.html"), "--json")

    def test_adds_up_the_critical_path_of_a_record_made_by_hand(self):
        told = json.loads(self.succeeds(*self.report(self.lines())))["run"]
        # The last to begin a dispatch began at 101, the last to end it ended at 105; combine 120 to 123.
        self.assertEqual(told["prefill"]["exchange_s"], 4 + 3)
        self.assertEqual(told["prefill"]["experts_s"], 12)
        self.assertEqual(told["prefill"]["critical_s"], 2 + 12 + 2 + 7)
        self.assertEqual(told["decode"]["exchange_s"], 2 + 2)
        self.assertEqual(told["decode"]["critical_s"], 1 + 4 + 3 + 4)
        self.assertEqual(told["whole"]["critical_s"], 23 + 12)
        # By the clock: in each step the slowest rank's sum.
        self.assertEqual(told["prefill"]["all_to_all_s"], 8)
        self.assertEqual(told["prefill"]["moe_s"], 2 + 12 + 5 + 3)
        self.assertEqual(told["prefill"]["idle_s"], 5 - 3)
        self.assertEqual(told["decode"]["moe_s"], 8)
        self.assertEqual(told["whole"]["idle_s"], 2 + 3)
        # Dispatch: 74 against 54 bytes; combine: 14 against 34; then 11 against 13, 5 against 6.
        self.assertEqual(told["prefill"]["cross_node_bytes"], 70 + 10 + 50 + 30 + 4 * 4)
        self.assertEqual(told["prefill"]["busiest_node_bytes"], 74 + 34)
        self.assertEqual(told["whole"]["busiest_node_bytes"], 74 + 34 + 13 + 6)
        self.assertEqual(told["whole"]["load_deviation"], 0.5)
        page = self.path("page.html").read_text()
        self.assertIn("messages, dispatch: 4\u2009000 ms", page, "rank 1's")
        self.assertIn("clocks are set by one barrier", page)

    def test_refuses_a_record_that_cannot_be(self):
        def changed(number: int, **fields) -> tuple:
            lines = self.lines()
            lines[number].update(fields)
            return self.report(lines)

        self.refuses(*self.report(self.lines()[:-1]), saying="step 1, rank 1, layer 0 is missing")
        self.refuses(*self.report([*self.lines(), self.lines()[2]]), saying="r.jsonl:6: step 0, rank 1, layer 0 is there twice")
        self.refuses(*self.report([]), saying="empty run record")
        self.refuses(*changed(2, dispatch_end_s=100.5), saying="r.jsonl:3: dispatch_end_s 100.5 is before dispatch_begin_s 101")
        self.refuses(*changed(2, experts_cpu_s=-1), saying="r.jsonl:3: experts_cpu_s -1 is negative")
        self.refuses(*changed(2, pack_cpu_s="x"), saying="r.jsonl:3")
        self.refuses(*changed(2, combine=3), saying="r.jsonl:3: combine is not an object")
        self.refuses(*changed(0, devices_per_node=[1]), saying="adds up to 1, not to 2 ranks")
        self.refuses(*changed(0, devices_per_node=[1, 0.5]), saying="0.5 is outside [1, 2]")
        self.refuses(*changed(0, one_clock=1), saying="one_clock")
        self.refuses(*changed(0, decode_steps=3), saying="decode_steps")
        lacking = self.lines()
        del lacking[4]["gate_cpu_s"]
        self.refuses(*self.report(lacking), saying="r.jsonl:5")


class Synthesizing(CommandLine):
    SMALL = ("--shape", "3x16", "--top-k", 4, "--tokens", 1000, "--sequence-length", 100)

    def made(self, name: str, *arguments) -> bytes:
        self.succeeds("synthesize", "--out", self.path(name), *self.SMALL, *arguments)
        return self.path(name).read_bytes()

    def test_makes_the_same_sound_trace_for_the_same_seed(self):
        trace, truth = self.path("a"), self.path("truth.json")
        told = json.loads(self.succeeds("synthesize", "--out", trace, *self.SMALL, "--truth", truth, "--json"))
        self.assertEqual((told["layers"], told["experts"], told["experts_per_token"]), (3, 16, 4))
        self.assertEqual((told["tokens"], told["sequences"], told["phase"]), (1000, 10, "prefill"))
        planted = json.loads(truth.read_text())
        self.assertEqual([len(layer) for layer in planted["cluster_of_expert"]], [16] * 3)
        self.assertEqual(len(planted["topic_of_sequence"]), 10)
        self.assertEqual(trace.read_bytes(), self.made("b.safetensors", "--threads", 3))
        self.assertNotEqual(trace.read_bytes(), self.made("c.safetensors", "--seed", 1))
        self.made("d.safetensors", "--phase", "mixed", "--zipf", 1.2, "--drift", 1, "--clusters", 4, "--prompt-length", 20)
        self.assertEqual(self.succeeds("check", self.path("b.safetensors"), self.path("d.safetensors")).count("OK"), 2)

    def test_takes_the_shape_of_a_model(self):
        told = json.loads(self.succeeds("synthesize", "--out", self.path("q"), "--shape", "qwen3-30b-a3b", "--tokens", 100, "--json"))
        self.assertEqual((told["layers"], told["experts"], told["experts_per_token"]), (48, 128, 8))
        deep = ("--shape", "deepseek-v3", "--top-k", 4, "--tokens", 100)
        told = json.loads(self.succeeds("synthesize", "--out", self.path("d"), *deep, "--json"))
        self.assertEqual((told["layers"], told["experts"], told["experts_per_token"]), (58, 256, 4))
        header = self.path("d").read_bytes()[:8000].decode("utf-8", "replace")
        self.assertIn("[3,4,5,", header.replace(" ", ""))
        self.refuses("synthesize", "--out", self.path("n"), "--shape", "nobody", saying="nobody")

    def test_refuses_what_it_cannot_make(self):
        make = ("synthesize", "--out", self.path("t.safetensors"))
        self.refuses(*make, "--shape", "3by16", saying="'3by16' is not LAYERSxEXPERTS")
        self.refuses(*make, "--shape", "3x", saying="'3x'")
        for option, value, saying in (
            ("--dense-layers", -1, "-1 is outside [0, 10000]"),
            ("--tokens", -1, "-1 is outside [0, "),
            ("--sequence-length", 0, "0 is outside [1, "),
            ("--clusters", 0, "0 is outside [1, 16]"),
            ("--zipf", 5, "5 is outside [0, 4]"),
            ("--drift", 2, "2 is outside [0, 1]"),
            ("--phase", "noon", "noon"),
            ("--threads", 2000, "2000 is outside [1, 1024]"),
        ):
            self.refuses(*make, "--shape", "3x16", option, value, saying=saying)
        self.refuses(*make, "--shape", "3x16", "--top-k", 17, saying="17 is outside [1, 16]")
        self.refuses("synthesize", *self.SMALL, saying="--out")


class Reproducing(CommandLine):
    """Small made-up traces in the shape of a model whose sizes are known."""

    def traces(self, count: int) -> list:
        arguments = []
        for seed in range(count):
            path = self.path(f"t{seed}.trace")
            self.succeeds("synthesize", "--out", path, "--shape", "demo", "--tokens", 2000, "--sequence-length", 50, "--seed", seed)
            arguments += ["--trace", path]
        return arguments

    def tables(self, *arguments) -> dict:
        made = json.loads(self.succeeds("reproduce", "--splits", 2, "--batch", 256, "--json", *arguments))
        self.assertEqual(made["seed"], 0)
        return {table["name"]: table for table in made["tables"]}

    def test_puts_claims_beside_what_it_measures(self):
        names = ("configurations", "size-bound", "busiest", "copy-what", "copies")
        tables = self.tables(*self.traces(1), "--table", ",".join(names))
        self.assertEqual(tuple(tables), names)
        for table in tables.values():
            self.assertLessEqual({"name", "trace", "rows", "claims", "notes"}, set(table))
            for row in table["rows"]:
                self.assertLessEqual({"name", "layer_time", "load_max_over_mean", "spread"}, set(row))
                self.assertGreater(row["layer_time"], 0)
            for claim in table["claims"]:
                self.assertEqual(set(claim), {"what", "published", "here", "spread", "direction"})
                self.assertIn(claim["direction"], ("same", "opposite", "no clear change", "not here", "-"))
        self.assertEqual(len(tables["configurations"]["rows"]), 13)
        bounds = {row["name"].split(" (")[0]: row for row in tables["size-bound"]["rows"]}
        self.assertEqual(len(bounds), 13)
        self.assertEqual(bounds["0.00"]["remote_nodes_per_token"], bounds["free"]["remote_nodes_per_token"])
        for row in tables["busiest"]["rows"]:
            self.assertTrue(0.25 <= row["busiest_device"] <= row["busiest_half"] <= 1, row)
        copied = tables["copy-what"]["rows"]
        self.assertEqual({row["copies_per_layer"] for row in copied[1:]}, {copied[1]["copies_per_layer"]})
        copies = tables["copies"]["rows"]
        self.assertEqual((copies[0]["copies_per_layer"], copies[-1]["copies_per_layer"]), (0, 3 * 64))
        self.assertEqual(copies[-1]["remote_nodes_per_token"], 0)

    def test_lets_traces_serve_each_other(self):
        matrix = self.tables(*self.traces(3), "--table", "transfer")["transfer"]
        self.assertEqual([one["name"] for one in matrix["rows"]], ["grace", "joint"])
        self.assertEqual([len(row["served"]) for row in matrix["rows"][0]["matrix"]], [3] * 4)
        self.assertIn("4.52", matrix["claims"][0]["published"])

    def test_is_the_same_at_any_number_of_threads(self):
        made = [self.succeeds("reproduce", *self.traces(1), "--table", "busiest,copies", "--splits", 1, "--threads", n) for n in (1, 3)]
        self.assertEqual(*made)

    def test_writes_a_section_and_a_page(self):
        section, page = self.path("b.md"), self.path("p.html")
        self.succeeds("reproduce", *self.traces(1), "--table", "busiest", "--splits", 1, "--section", "claims", "--write", section, "--html", page)
        self.assertIn("<!-- section claims -->", section.read_text())
        self.assertIn("busiest half", page.read_text())

    def test_refuses_what_it_cannot_reproduce(self):
        trace = self.traces(1)
        self.refuses("reproduce", *trace, "--table", "dance", saying="'dance' is not one of configurations")
        self.refuses("reproduce", *trace, "--table", "transfer", saying="1 traces")
        self.refuses("reproduce", *trace, "--cluster", "9q9", saying="9q9")
        self.refuses("reproduce", *trace, "--splits", 0, saying="0 is outside [1, 1000]")
        self.refuses("reproduce", *trace, "--batch", 0, saying="0 is less than 1")
        self.refuses("reproduce", *trace, "--effort", 0, saying="0 is outside (0, 1000]")
        self.refuses("reproduce", *trace, "--threads", 2000, saying="2000 is outside [1, 1024]")
        self.refuses("reproduce", *trace, "--section", "x", saying="--write")
        self.refuses("reproduce", *trace, "--shape", "mixtral-8x7b", saying="experts")
        single = self.path("single.trace")
        self.succeeds("synthesize", "--out", single, "--shape", "demo", "--tokens", 50, "--sequence-length", 50)
        self.refuses("reproduce", "--trace", single, saying="at least 2")


class Calibrating(CommandLine):
    """Quick and rough: what is measured is not judged here, only that it is there and can be used."""

    def measured(self, *arguments) -> dict:
        cluster = self.path("c.json")
        told = json.loads(self.succeeds("calibrate", "--out", cluster, "--seconds", 0.2, "--json", *arguments))
        self.assertGreaterEqual(told["rounds"], 3)
        self.assertEqual(len(told["speeds"]), told["ranks"])
        for figure in (told["flops_per_s"], told["memory_bytes_per_s"]):
            self.assertGreater(figure["value"], 0)
        self.assertEqual(self.succeeds("check", cluster).count("OK"), 1)
        file = json.loads(cluster.read_text())
        self.assertEqual(sum(kind["count"] for node in file["nodes"] for kind in node["devices"]), told["ranks"])
        for link in (file["between_devices"], file["between_nodes"]):
            self.assertGreater(link["bytes_per_s"], 0)
            self.assertGreater(link["latency_s"], 0)
        return told

    def test_measures_threads_as_one_node_and_as_two(self):
        told = self.measured("--ranks", 2)
        self.assertEqual((told["shape"], told["transport"], told["hosts"]), ("1x2", "in_process", 1))
        self.assertIsNone(told["between_nodes"])
        self.assertFalse(told["nodes_are_one_machine"])
        told = self.measured("--cluster", "2x1")
        self.assertEqual((told["shape"], told["ranks"]), ("2x1", 2))
        self.assertIsNone(told["between_devices"])
        self.assertTrue(told["nodes_are_one_machine"])
        self.assertIn("not a network", " ".join(told["notes"]))

    def test_measures_what_the_model_will_be_calculated_with(self):
        for dtype in ("bf16", "int8"):
            self.assertEqual(self.measured("--ranks", 2, "--dtype", dtype, "--kernels", "portable")["dtype"], dtype)

    def test_measures_nodes_that_differ(self):
        link = {"bytes_per_s": 1, "latency_s": 0}
        nodes = [{"devices": [{"count": 2, "slots": 5}]}, {"devices": [{}]}]
        uneven = self.written("uneven.json", {"format_version": 1, "nodes": nodes, "between_devices": link, "between_nodes": link,
                                              "flops_per_s": 1, "memory_bytes_per_s": 1})
        told = self.measured("--cluster", uneven)
        self.assertEqual((told["shape"], told["ranks"]), ("nodes of 2, 1", 3))
        kinds = {exchange["between"] for exchange in told["exchanges"]}
        self.assertEqual(kinds, {"between devices", "between nodes", "between two devices", "between two nodes"})
        self.assertEqual(json.loads(self.path("c.json").read_text())["nodes"][0]["devices"][0]["slots"], 5)

    def test_measures_an_mpi_job(self):
        if shutil.which("mpirun") is None:
            self.skipTest("mpirun is not here")
        told = self.measured("--ranks", 2, "--transport", "mpi")
        self.assertEqual((told["shape"], told["transport"], told["hosts"]), ("1x2", "mpi", 1))
        inside = self.path("inside.json")
        environment = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
        job = ("mpirun", "-n", 2, "--oversubscribe", "--bind-to", "none", "--mca", "mpi_yield_when_idle", 1)
        command = (*job, PROGRAM, "calibrate", "--out", inside, "--cluster", "2x1", "--seconds", 0.1)
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=600, env=environment)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertEqual(len(json.loads(inside.read_text())["nodes"]), 2)

    def test_refuses_what_it_cannot_measure(self):
        measure = ("calibrate", "--out", self.path("c.json"))
        self.refuses(*measure, "--ranks", 1, saying="1 is outside [2, 1024]")
        self.refuses(*measure, "--ranks", 3, "--cluster", "2x2", saying="the cluster 2x2 has 4 devices")
        self.refuses(*measure, "--cluster", "1x1", saying="1 device has no link")
        self.refuses(*measure, "--threads", 0, saying="0 is outside [1, 1024]")
        self.refuses(*measure, "--seconds", 0, saying="0 is outside (0, 3600]")
        self.refuses(*measure, "--dtype", "fp4", saying="fp4")
        self.refuses(*measure, "--transport", "pigeon", saying="pigeon")
        self.refuses("calibrate", saying="--out")


class Checking(CommandLine):
    def finds(self, path, saying: str):
        done = grace("check", path)
        self.assertEqual((done.returncode, done.stderr), (2, ""))
        self.assertRegex(done.stdout, r"\A[^\n]+\n\Z")
        self.assertIn(saying, done.stdout)
        listed = grace("check", path, "--json")
        self.assertEqual(listed.returncode, 2)
        self.assertEqual(len(json.loads(listed.stdout)[0]["problems"]), 1)

    def test_names_what_is_wrong_in_one_line(self):
        self.finds(self.path("none.json"), saying="no such file")
        self.finds(self.written("short.safetensors", b"\x10\0\0"), saying="short.safetensors")
        self.finds(self.written("lies.safetensors", b"\xff\xff\0\0\0\0\0\0{}"), saying="lies.safetensors")
        self.finds(self.written("empty", b""), saying="empty")
        self.finds(self.written("list.json", []), saying="not an object")
        self.finds(self.written("other.json", {"a": 1}), saying="neither a plan")
        self.finds(self.written("plan.json", {"layers": []}), saying="plan.json")
        self.finds(self.written("cluster.json", {"nodes": 3}), saying="cluster.json")


class Tokenizing(CommandLine):
    def setUp(self):
        super().setUp()
        if not (DEMO / "tokenizer.json").exists():
            self.skipTest("models/demo is not there")

    def test_turns_text_into_ids_and_back(self):
        text = "def f(x):\n\treturn x  # \u65e5\u672c \U0001f600\n"
        ids = self.written("ids.json", self.succeeds("tokenize", DEMO, "--text", self.written("t.txt", text.encode())).encode())
        self.assertEqual(set(json.loads(ids.read_text())), {"token_ids"})
        self.assertEqual(json.loads(self.succeeds("tokenize", DEMO / "tokenizer.json", "--decode", ids)), {"text": text})

    def test_refuses_bytes_that_are_not_utf8_and_foreign_ids(self):
        self.refuses("tokenize", DEMO, "--text", self.written("bad.txt", b"ab\xffc"), saying="byte 2")
        self.refuses("tokenize", DEMO, "--decode", self.written("ids.json", [1, -1]), saying="-1 is outside [0, ")
        self.refuses("tokenize", DEMO, saying="--text")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
