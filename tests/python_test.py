"""The Python package over the module in the build folder (arguments: program, source folder, folder of the package)."""

import json
import pathlib
import subprocess
import sys
import tempfile
import threading
import unittest

program, source, package = sys.argv[1], pathlib.Path(sys.argv[2]), sys.argv[3]
try:
    import numpy as np
except ImportError:
    print("skipped: numpy is not there")
    sys.exit(77)
sys.path.insert(0, package)
import grace_moe  # noqa: E402
from grace_moe import eplb  # noqa: E402

EXPERTS, LAYERS, TOP = 16, 3, 2


def planted_trace(seed: int = 0, tokens: int = 4000) -> grace_moe.Trace:
    """Tokens whose two experts share one of four clusters, e mod 4, mostly; sequences of 100."""
    rng = np.random.default_rng(seed)
    ids = np.empty((tokens, LAYERS, TOP), dtype=np.int32)
    for layer in range(LAYERS):
        cluster = rng.integers(0, 4, tokens)
        pairs = np.argsort(rng.random((tokens, 4)), axis=1)[:, :TOP]
        ids[:, layer] = cluster[:, None] + 4 * pairs
    return grace_moe.Trace(ids, EXPERTS, sequence_offsets=range(0, tokens + 1, 100), decoder_layers=[1, 2, 3], model="toy")


class Traces(unittest.TestCase):
    def test_keep_what_was_put_in_and_read_back_what_was_written(self):
        ids = np.array([[[0, 1]], [[2, -1]], [[3, 0]]])
        trace = grace_moe.Trace(ids, 4, sequence_offsets=[0, 1, 3], decoder_layers=[5], model="m", phase="mixed", prompt_lengths=[1, 1],
                                topk_weights=np.full(ids.shape, 0.5))
        with tempfile.TemporaryDirectory() as folder:
            trace.write(f"{folder}/t.trace")
            again = grace_moe.Trace.read(f"{folder}/t.trace")
        np.testing.assert_array_equal(again.topk_ids, ids)
        np.testing.assert_array_equal(again.topk_weights, trace.topk_weights)
        np.testing.assert_array_equal(again.sequence_offsets, [0, 1, 3])
        self.assertEqual((again.decoder_layers, again.model, again.phase, again.prompt_lengths), ([5], "m", "mixed", [1, 1]))
        np.testing.assert_array_equal(again.loads().loads, [[2, 1, 1, 1]])
        self.assertIn("3 tokens, 1 MoE layers of 4 experts", repr(again))

    def test_refuse_what_is_none_in_one_line(self):
        for ids, experts, words in (([[[0, 4]]], 4, "expert 4 is outside"), ([[[1, 1]]], 4, "twice"), ([[[0.5, 1]]], 4, "whole numbers"),
                                    ([[0, 1]], 4, "2 dimensions"), ([[[0, 70000]]], 4, "70000")):
            with self.assertRaises(ValueError) as caught:
                grace_moe.Trace(ids, experts)
            self.assertIn(words, str(caught.exception))
            self.assertNotIn("\n", str(caught.exception))
        with self.assertRaises(OSError):
            grace_moe.Trace.read("/no/such/file")


class Plans(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.trace = planted_trace()

    def test_find_the_planted_clusters_and_are_the_program_s(self):
        plan = grace_moe.plan(self.trace, "1x4", "grace", r=0)
        groups = plan.primaries
        self.assertEqual(groups.shape, (LAYERS, EXPERTS))
        for layer in groups:
            for cluster in range(4):
                self.assertEqual(len({int(device) for device in layer[cluster::4]}), 1)
        with tempfile.TemporaryDirectory() as folder:
            self.trace.write(f"{folder}/t.trace")
            subprocess.run([program, "plan", "--trace", f"{folder}/t.trace", "--cluster", "1x4", "--strategy", "grace", "--r", "0", "--out",
                            f"{folder}/p.json"], check=True, stdout=subprocess.DEVNULL)
            theirs = grace_moe.Plan.read(f"{folder}/p.json")
            plan.write(f"{folder}/q.json")
            self.assertEqual(grace_moe.Plan.read(f"{folder}/q.json").strategy, "grace")
        np.testing.assert_array_equal(theirs.copies, plan.copies)

    def test_are_the_same_for_any_number_of_threads(self):
        one = grace_moe.plan(self.trace, "2x2", "joint-slow", slots=5, effort=0.1, threads=1)
        two = grace_moe.plan(self.trace, "2x2", "joint-slow", slots=5, effort=0.1, threads=2)
        np.testing.assert_array_equal(one.copies, two.copies)
        self.assertLessEqual(int(one.copies.sum(axis=2).max()), 5)

    def test_move_fewer_vectors_than_plain_expert_parallelism(self):
        plain = grace_moe.vanilla_plan(EXPERTS, [1, 2, 3], "2x2")
        planned = grace_moe.evaluate(grace_moe.plan(self.trace, "2x2", r=0), self.trace)
        before = grace_moe.evaluate(plain, self.trace)
        self.assertEqual(before["load_max_over_mean"].shape, (LAYERS,))
        self.assertLess(planned["devices_per_token"].mean(), 0.7 * before["devices_per_token"].mean())
        self.assertNotIn("layer_seconds", planned)

    def test_simulate_and_compare_as_the_program_does(self):
        config = {"architectures": ["OlmoeForCausalLM"], "hidden_size": 64, "intermediate_size": 32, "num_hidden_layers": 4,
                  "num_attention_heads": 4, "num_experts": EXPERTS, "num_experts_per_tok": TOP, "vocab_size": 100, "model_type": "olmoe"}
        with tempfile.TemporaryDirectory() as folder:
            pathlib.Path(folder, "config.json").write_text(json.dumps(config))
            self.trace.write(f"{folder}/t.trace")
            args = ["--trace", f"{folder}/t.trace", "--cluster", "2x2", "--json"]
            shape = ["--shape", f"{folder}/config.json"]
            wanted = json.loads(subprocess.run([program, "compare", *args, *shape, "--strategies", "vanilla,grace", "--splits", "2"], check=True,
                                               capture_output=True, text=True).stdout)
            found = grace_moe.compare(self.trace, "2x2", ["vanilla", "grace"], splits=2, shape=f"{folder}/config.json")
            plan = grace_moe.plan(self.trace, "2x2", shape=f"{folder}/config.json")
            times = grace_moe.simulate(plan, self.trace, "2x2", shape=f"{folder}/config.json")
        self.assertEqual(found.recommendation, wanted["recommendation"]["text"])
        self.assertEqual([row.name for row in found.rows], ["vanilla", "grace"])
        self.assertGreater(times["whole"]["total"], 0)
        self.assertEqual(times["load_of_device"].sum(), self.trace.num_tokens * LAYERS * TOP)
        self.assertAlmostEqual(times["layer_seconds"].sum(), times["whole"]["all_to_all"] + times["whole"]["experts"], places=9)

    def test_are_made_of_loads_where_those_are_enough(self):
        loads = self.trace.loads()
        plan = grace_moe.plan(loads, "2x2", "eplb", slots=5)
        figures = grace_moe.evaluate(plan, loads)
        self.assertEqual(figures["load_of_device"].shape, (LAYERS, 4))
        self.assertGreaterEqual(figures["load_max_over_mean"].min(), 1)
        self.assertIn("eplb", grace_moe.load_strategies)
        with self.assertRaises(ValueError) as caught:
            grace_moe.plan(loads, "2x2", "grace")
        self.assertIn("grace", str(caught.exception))
        found = grace_moe.compare(loads, "2x2", slots="5,6")
        self.assertEqual({row.name for row in found.rows}, set(grace_moe.load_strategies))
        self.assertEqual(found.measure, "load_max_over_mean")
        self.assertIn(found.best, found.rows)

    def test_let_other_threads_run(self):
        ticks, done = [0], threading.Event()

        def tick():
            while not done.wait(0.0005):
                ticks[0] += 1

        interval = sys.getswitchinterval()
        sys.setswitchinterval(1000)  # nobody is made to give way: the other runs only where this one lets go
        try:
            other = threading.Thread(target=tick)
            other.start()
            before = ticks[0]
            grace_moe.plan(self.trace, "2x2", "joint-slow", slots=6, effort=0.5, threads=1)
            during = ticks[0] - before
            done.set()
            other.join()
        finally:
            sys.setswitchinterval(interval)
        self.assertGreater(during, 0)

    def test_refuse_what_is_impossible(self):
        for call, words in ((lambda: grace_moe.plan(self.trace, "2x2", "grase"), "grase"), (lambda: grace_moe.Cluster("no"), "no"),
                            (lambda: grace_moe.plan(self.trace, "2x2", "eplb", slots=3), "12 on 4 devices"),
                            (lambda: grace_moe.plan(self.trace, "2x2", "joint", shape="nothing"), "nothing"),
                            (lambda: grace_moe.compare(self.trace, "2x2", ["vanilla"], slots="x"), "x"),
                            (lambda: grace_moe.plan(self.trace, "2x2", r=1.5), "r: 1.5 is outside"),
                            (lambda: grace_moe.plan(self.trace, "2x2", "grace", partners=3), "partners: 3"),
                            (lambda: grace_moe.plan(self.trace, "2x2", "eplb", slots=5, memory_bytes=1e9), "one budget"),
                            (lambda: grace_moe.plan(self.trace, "2x2", "eplb", slots="5,6"), "2 budgets"),
                            (lambda: grace_moe.plan(self.trace, "2x2", threads=2000), "threads: 2000"),
                            (lambda: grace_moe.export_placement(grace_moe.plan(self.trace, "2x2", "c2r"), "sglang", "x.json"), "partners"),
                            (lambda: grace_moe.export_placement(grace_moe.plan(self.trace, "2x2"), "ascend", "x.txt"), ".json")):
            with self.assertRaises(ValueError) as caught:
                call()
            self.assertIn(words, str(caught.exception))


class Placements(unittest.TestCase):
    def test_come_back_from_every_engine_s_file(self):
        plan = grace_moe.plan(planted_trace(), "2x2", "eplb", slots=5)
        slots = plan.slots()
        self.assertEqual(slots.shape, (LAYERS, 20))
        with tempfile.TemporaryDirectory() as folder:
            for name in grace_moe.exporters:
                file = f"{folder}/{name}." + ("npz" if name == "eplb" else "json")
                try:
                    export = grace_moe.export_placement(plan, name, file)
                except ValueError:
                    self.assertEqual(name, "vllm-ranks")  # holds no copies
                    continue
                self.assertEqual(export.slots_per_device, 5)
                again = grace_moe.read_placement(file, format=name, devices_per_node=[2, 2], num_experts=EXPERTS,
                                                 decoder_layers=[] if name in ("sglang", "tensorrt-llm") else [1, 2, 3])
                np.testing.assert_array_equal(again.copies[-LAYERS:], plan.copies, err_msg=name)
        np.testing.assert_array_equal(grace_moe.Plan(slots, EXPERTS, [2, 2], decoder_layers=[1, 2, 3]).copies, plan.copies)

    def test_are_imported_from_plain_arrays_of_counts(self):
        with tempfile.TemporaryDirectory() as folder:
            np.save(f"{folder}/counts.npy", np.arange(2 * 8).reshape(2, 8))
            summary = grace_moe.import_recording(f"{folder}/counts.npy", f"{folder}/loads.json", format="eplb")
            self.assertFalse(summary.has_tokens)
            loads = grace_moe.LoadProfile.read(f"{folder}/loads.json")
            np.testing.assert_array_equal(loads.loads, np.arange(16).reshape(2, 8))


class TheDropIn(unittest.TestCase):
    def test_gives_the_published_example(self):
        weight = np.array([[90, 132, 40, 61, 104, 165, 39, 4, 73, 56, 183, 86], [20, 107, 104, 64, 19, 197, 187, 157, 172, 86, 16, 27]])
        phy2log, log2phy, count = eplb.rebalance_experts(weight, 16, 4, 2, 8)
        np.testing.assert_array_equal(phy2log, [[5, 6, 5, 7, 8, 4, 3, 4, 10, 9, 10, 2, 0, 1, 11, 1],
                                                [7, 10, 6, 8, 6, 11, 8, 9, 2, 4, 5, 1, 5, 0, 3, 1]])
        self.assertEqual(phy2log.dtype, np.int64)
        np.testing.assert_array_equal(count.sum(axis=1), [16, 16])
        for layer in range(2):
            for expert in range(12):
                copies = log2phy[layer, expert][log2phy[layer, expert] >= 0]
                self.assertEqual(len(copies), count[layer, expert])
                np.testing.assert_array_equal(phy2log[layer, copies], expert)

    def test_keeps_balance_and_more_together_with_coactivation(self):
        rng = np.random.default_rng(3)
        weight = rng.integers(1, 1000, (2, 16))
        together = rng.random((2, 16, 16))
        plain, _, count = eplb.rebalance_experts(weight, 20, 1, 1, 4)
        moved, _, again = eplb.rebalance_experts(weight, 20, 1, 1, 4, together)
        np.testing.assert_array_equal(count, again)
        for layer in range(2):
            share = weight[layer] / count[layer]
            self.assertLessEqual(share[moved[layer]].reshape(4, 5).sum(axis=1).max(), share[plain[layer]].reshape(4, 5).sum(axis=1).max() + 1e-9)

    def test_asserts_what_the_original_asserts(self):
        with self.assertRaises(AssertionError):
            eplb.rebalance_experts(np.ones((1, 8)), 10, 1, 1, 4)
        with self.assertRaises(ValueError):
            eplb.rebalance_experts(np.array([[np.nan, 1.0]]), 2, 1, 1, 1)

    def test_returns_torch_tensors_for_one(self):
        try:
            import torch
        except ImportError:
            self.skipTest("torch is not there")
        maps = eplb.rebalance_experts(torch.tensor([[3, 1, 2, 5]]), 6, 1, 1, 2)
        self.assertTrue(all(isinstance(one, torch.Tensor) and one.dtype == torch.int64 for one in maps))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
