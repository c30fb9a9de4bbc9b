"""`grace compare` and the budgets of `grace plan`, from outside (arguments: program, source folder)."""

import json
import math
import sys
import unittest

from cli_test import FIXTURE, CommandLine, grace

PER_STRATEGY = {"name", "slots_per_device_max", "copies_per_layer", "remote_nodes_per_token", "devices_per_token", "load_max_over_mean", "judge_slow",
                "judge_fast", "layer_time", "idle", "load_std", "bytes_cross_node", "bytes_intra_node", "plan_seconds", "heldout"}
NEED_SIZES = {"layer_time", "idle", "bytes_cross_node", "bytes_intra_node"}
QUICK = ("--effort", 0.05, "--splits", 2, "--batch", 512)
LAYERS, EXPERTS, TOP_K = 3, 16, 4


class Comparing(CommandLine):
    def trace(self, name: str, *arguments, tokens=3000, length=100):
        path = self.path(name)
        shape = ("--shape", f"{LAYERS}x{EXPERTS}", "--top-k", TOP_K, "--tokens", tokens, "--sequence-length", length)
        self.succeeds("synthesize", "--out", path, *shape, *arguments)
        return path

    def config(self, **changes):
        """A config.json of a model with the traces' experts."""
        config = json.loads((FIXTURE / "config.json").read_text())
        config.update(num_hidden_layers=LAYERS, num_experts=EXPERTS, num_experts_per_tok=TOP_K)
        config.update(changes)
        return self.written("config.json", config)

    def compared(self, trace, *arguments, cluster="2x2"):
        return json.loads(self.succeeds("compare", "--trace", trace, "--cluster", cluster, *QUICK, "--json", *arguments))


class TheJson(Comparing):
    def test_has_every_figure_for_every_strategy(self):
        told = self.compared(self.trace("t"), "--shape", self.config())
        self.assertLessEqual({"strategies", "recommendation", "lower_bounds", "seed", "options"}, set(told))
        names = [row["name"] for row in told["strategies"]]
        self.assertEqual(len(names), len(set(names)))
        self.assertLessEqual({"vanilla", "occult", "eplb", "eplb-flat", "eplb-cover", "grace", "joint", "joint-slow", "joint-fast", "joint-feedback"}, set(names))
        for row in told["strategies"]:
            self.assertLessEqual(PER_STRATEGY, set(row), row["name"])
            self.assertIs(row["heldout"], True)
            figures = PER_STRATEGY - {"name", "heldout"}
            for figure in figures:
                self.assertTrue(math.isfinite(row[figure]) and row[figure] >= 0, (row["name"], figure))
                self.assertGreaterEqual(row["spread"][figure], 0)
            self.assertGreaterEqual(row["load_max_over_mean"], 1)
            self.assertLessEqual(row["slots_per_device_max"], EXPERTS)
            slow = 16 * row["remote_nodes_per_token"] + 0.5 * row["forwards_per_token"] + 6 * row["load_max_over_mean"]
            self.assertAlmostEqual(row["judge_slow"], slow, places=9)
        vanilla = told["strategies"][names.index("vanilla")]
        self.assertEqual((vanilla["copies_per_layer"], vanilla["slots_per_device_max"], vanilla["slots"]), (0, EXPERTS / 4, None))
        for bound in told["lower_bounds"]:
            self.assertLessEqual(bound["routing_bound"], bound["routed"] + 1e-9)
            self.assertLessEqual(bound["placement_bound"], bound["routed"] + 1e-9)
            self.assertLessEqual(bound["least_max_over_mean"], bound["load_max_over_mean"] + 1e-9)
        self.assertIn("joint-slow", [bound["name"] for bound in told["lower_bounds"]])
        chosen = told["recommendation"]
        self.assertIn(chosen["name"], names)
        self.assertIn(chosen["best"], names)
        self.assertEqual(chosen["measure"], "layer_time")
        self.assertIn(told["options"]["slots"], ([], ["default"]))
        self.assertEqual((told["seed"], told["options"]["splits"], told["options"]["batch"]), (0, 2, 512))

    def test_leaves_seconds_out_where_sizes_are_not_known(self):
        told = self.compared(self.trace("t"))
        self.assertNotIn("joint", [row["name"] for row in told["strategies"]])
        for row in told["strategies"]:
            self.assertEqual({figure for figure in PER_STRATEGY if row[figure] is None}, NEED_SIZES)
        self.assertEqual(told["recommendation"]["measure"], "judge_slow")

    def test_is_the_same_for_the_same_seed_at_any_number_of_threads(self):
        trace = self.trace("t")

        def without_clocks(*arguments):
            told = self.compared(trace, "--slots", "4,grace", *arguments)
            for row in told["strategies"]:
                del row["plan_seconds"], row["spread"]["plan_seconds"]
            return told

        once = without_clocks("--threads", 1)
        self.assertEqual(once, without_clocks("--threads", 1))
        self.assertEqual(once, without_clocks("--threads", 3))
        other = without_clocks("--seed", 7)
        self.assertNotEqual(once["strategies"], other["strategies"])

    def test_has_a_row_for_every_budget(self):
        told = self.compared(self.trace("t"), "--slots", "4,5,grace", "--strategies", "vanilla,grace,joint-slow,joint-slow-feedback")
        rows = {(row["name"], row["slots"]): row for row in told["strategies"]}
        self.assertEqual(set(rows), {("vanilla", None), ("grace", None)} | {(n, s) for n in ("joint-slow", "joint-slow-feedback") for s in ("4", "5", "grace")})
        self.assertEqual(rows["joint-slow", "4"]["copies_per_layer"], 0)
        self.assertLessEqual(rows["joint-slow", "5"]["slots_per_device_max"], 5)
        self.assertLessEqual(rows["joint-slow", "grace"]["slots_per_device_max"], rows["grace", None]["slots_per_device_max"])
        self.assertEqual(told["options"]["slots"], ["4", "5", "grace"])


class SeveralTraces(Comparing):
    def test_give_a_matrix_of_plan_on_row_and_serve_on_column(self):
        wiki, code = self.trace("wiki.trace"), self.trace("code.trace", "--seed", 1)
        told = json.loads(self.succeeds("compare", "--trace", wiki, "--trace", code, "--cluster", "2x2", *QUICK, "--json"))
        self.assertEqual([one["name"] for one in told["transfer"]], ["grace", "joint-slow"])
        for one in told["transfer"]:
            self.assertEqual([row["planned_on"] for row in one["matrix"]], ["wiki", "code", "all"])
            for i, row in enumerate(one["matrix"]):
                self.assertEqual([cell["trace"] for cell in row["served"]], ["wiki", "code"])
                for j, cell in enumerate(row["served"]):
                    self.assertGreater(cell["value"], 0)
                    if i == j:
                        self.assertEqual(cell["over_own"], 0)
        self.assertLessEqual({"seed", "options"}, set(told))
        text = self.succeeds("compare", "--trace", wiki, "--trace", code, "--cluster", "2x2", *QUICK)
        self.assertIn("all together", text)

    def test_must_be_of_one_model(self):
        other = self.path("other")
        self.succeeds("synthesize", "--out", other, "--shape", "2x8", "--top-k", 2, "--tokens", 1000)
        self.refuses("compare", "--trace", self.trace("t"), "--trace", other, "--cluster", "2x2", *QUICK, saying="trace")


class OddInput(Comparing):
    def test_is_refused_in_one_line(self):
        trace = self.trace("t")
        ask = ("compare", "--trace", trace, "--cluster", "2x2", *QUICK)
        self.refuses(*ask, "--strategies", "vanilla,magic", saying="'magic'")
        self.refuses(*ask, "--strategies", "joint", saying="--shape")
        self.refuses(*ask, "--strategies", ",", saying="none")
        self.refuses(*ask, "--slots", 0, saying="`0`")
        self.refuses(*ask, "--slots", "5,,6", saying="``")
        self.refuses(*ask, "--slots", 3, saying="12 on 4 devices cannot hold 16 experts once; 4 on every device would")
        self.refuses(*ask, "--shape", "nobody", saying="nobody")
        self.refuses(*ask, "--shape", "olmoe", saying="has 64 experts")
        self.refuses(*ask, "--shape", self.config(num_hidden_layers=2), saying="MoE layers")
        self.refuses(*ask, "--seed", "x", saying="--seed")
        self.refuses("compare", "--trace", trace, "--cluster", "0x2", saying="0x2")
        self.refuses("compare", "--cluster", "2x2", saying="--trace")
        for option, value in (("--splits", 0), ("--batch", 0), ("--effort", 0), ("--effort", "nan"), ("--threads", -1)):
            self.refuses("compare", "--trace", trace, "--cluster", "2x2", option, value, saying=option[2:])

    def test_of_too_few_tokens_is_refused_in_one_line(self):
        ask = ("--cluster", "2x2", *QUICK)
        self.refuses("compare", "--trace", self.trace("one", tokens=100), *ask, saying="1 sequences")
        self.refuses("compare", "--trace", self.trace("none", tokens=0), *ask, saying="0 sequences")

    def test_that_is_small_or_lopsided_gives_figures(self):
        few = self.trace("few", tokens=2, length=1)
        skewed = self.trace("skewed", "--zipf", 4)
        for trace, cluster in ((few, "2x2"), (skewed, "2x4"), (skewed, "1x1"), (skewed, "1x24"), (skewed, "3x2")):
            told = self.compared(trace, cluster=cluster)
            for row in told["strategies"]:
                self.assertTrue(all(math.isfinite(value) for value in row.values() if isinstance(value, float)), (cluster, row))

    def test_of_unequal_nodes_and_slots_gives_figures(self):
        link = {"bytes_per_s": 1e9, "latency_s": 1e-5}
        nodes = [{"devices": [{"count": 2, "slots": 6}, {"slots": 9}]}, {"devices": [{"slots": 5, "speed": 0.5}]}]
        cluster = self.written("c.json", {"format_version": 1, "nodes": nodes, "between_devices": link, "between_nodes": link,
                                          "flops_per_s": 1e12, "memory_bytes_per_s": 1e11})
        told = self.compared(self.trace("t"), "--shape", self.config(), cluster=cluster)
        self.assertTrue(all(row["slots_per_device_max"] <= 9 for row in told["strategies"]))
        nodes[0]["devices"] = [{"slots": 4}]
        small = self.written("small.json", {**json.loads(cluster.read_text()), "nodes": nodes})
        self.refuses("compare", "--trace", self.path("t"), "--cluster", small, *QUICK, saying="cannot hold 16 experts once")


class PlanningWithABudget(Comparing):
    def planned(self, trace, *arguments) -> dict:
        ask = ("plan", "--trace", trace, "--cluster", "2x2", "--out", self.path("p.json"), "--effort", 0.05, "--json", *arguments)
        told = json.loads(self.succeeds(*ask))
        self.assertEqual(self.succeeds("check", self.path("p.json")).count("OK"), 1)
        return told

    def test_keeps_it_and_says_what_it_expects(self):
        trace = self.trace("t")
        told = self.planned(trace, "--strategy", "joint-slow", "--slots", 6)
        self.assertEqual((told["routing"], told["slots_on_fullest_device"]), ("cover", [6] * LAYERS))
        self.assertLessEqual({"objective_insample", "objective_choose"}, set(told["figures"]))
        self.assertEqual(told["provenance"]["aim"], "judge-slow")
        none = self.planned(trace, "--strategy", "joint-slow", "--slots", 4)
        self.assertEqual(none["copies"], 0)
        self.assertLessEqual(told["figures"]["objective_choose"], none["figures"]["objective_choose"])
        of_grace = self.planned(trace, "--strategy", "grace", "--r", 0.15)["slots_on_fullest_device"]
        taken = self.planned(trace, "--strategy", "joint-slow", "--slots", "grace")["slots_on_fullest_device"]
        self.assertTrue(all(ours <= theirs for ours, theirs in zip(taken, of_grace, strict=True)), (taken, of_grace))
        text = self.succeeds("plan", "--trace", trace, "--cluster", "2x2", "--strategy", "joint-fast", "--effort", 0.05, "--out", self.path("q.json"))
        self.assertIn("objective choose", text)

    def test_needs_sizes_where_it_minimises_seconds(self):
        trace = self.trace("t")
        ask = ("plan", "--trace", trace, "--cluster", "2x2", "--out", self.path("p.json"))
        for word in ("--shape", "joint-slow"):
            self.refuses(*ask, "--strategy", "joint", saying=word)
        self.refuses(*ask, "--strategy", "joint", "--shape", "olmoe", saying="has 64 experts")
        told = self.planned(trace, "--strategy", "joint", "--shape", self.config(), "--batch", 64)
        self.assertEqual((told["provenance"]["aim"], told["provenance"]["batch"]), ("layer-time", "64"))
        for option, value, saying in (("--slots", 0, "`0`"), ("--slots", "4,5", "2 budgets"), ("--slots", 3, "cannot hold 16 experts once"),
                                      ("--effort", 0, "effort"), ("--batch", 0, "batch"), ("--shape", "nobody", "nobody")):
            self.refuses(*ask, "--strategy", "joint-slow", option, value, saying=saying)

    def test_spreads_bytes_over_the_layers(self):
        trace, config = self.trace("t"), self.config()
        expert = 3 * 36 * 20 * 2  # the config's sizes, in bf16
        told = self.planned(trace, "--strategy", "joint-slow", "--shape", config, "--memory", 14.5 * expert)
        self.assertLessEqual(sum(told["slots_on_fullest_device"]), 14)
        self.assertGreater(told["copies"], 0)
        ask = ("plan", "--trace", trace, "--cluster", "2x2", "--out", self.path("p.json"), "--shape", config, "--strategy", "joint-slow")
        self.refuses(*ask, "--memory", 11.5 * expert, saying="12")
        self.refuses(*ask, "--memory", 14 * expert, "--slots", 5, saying="slots and memory: one budget")

    def test_reports_the_traffic_of_every_dispatch(self):
        trace, plan, page = self.trace("t"), self.path("p.json"), self.path("page.html")
        self.planned(trace, "--strategy", "joint-slow")
        for dispatch in ("flat", "per_device", "two_stage"):
            self.succeeds("report", "--trace", trace, "--plan", plan, "--dispatch", dispatch, "--html", page)
            self.assertIn("Traffic between devices", page.read_text())
            self.assertIn('"panels":["vanilla","joint-slow"]', page.read_text())
        self.refuses("report", "--trace", trace, "--plan", plan, "--dispatch", "nowhere", "--html", page, saying="nowhere")
        self.refuses("report", "--trace", trace, "--html", page, saying="--cluster")
        self.refuses("report", "--trace", trace, "--plan", plan, "--cluster", "3x1", "--html", page, saying="p.json")

    def test_reports_which_placement_with_its_reasons(self):
        trace, page = self.trace("t"), self.path("page.html")
        ask = ("report", "--trace", trace, "--cluster", "2x2", "--strategies", "vanilla,grace,joint-slow", "--splits", 2, "--effort", 0.1, "--html", page)
        told = json.loads(self.succeeds(*ask, "--json"))
        first = page.read_bytes()
        self.assertEqual(json.loads(self.succeeds(*ask, "--threads", 1, "--json"))["drift"], told["drift"])
        self.assertEqual([one["name"] for one in told["strategies"]], ["vanilla", "grace", "joint-slow"])
        self.assertIn(told["recommendation"]["name"], first.decode())
        several = json.loads(self.succeeds(*ask, "--trace", self.trace("u"), "--json"))
        self.assertEqual([one["trace"] for one in several["drift"][0]["matrix"][0]["served"]], ["t", "u"])


class TheHelp(unittest.TestCase):
    def test_names_what_a_user_may_type(self):
        text = grace("compare", "--help").stdout
        for word in ("Example", "--slots", "--strategies", "--shape", "--html", "--json"):
            self.assertIn(word, text)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
