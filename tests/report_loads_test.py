"""`grace report` from a load profile: what loads say is on the page, and what they do not is said (arguments: program, source folder)."""

import json
import sys
import unittest

from cli_test import CommandLine

LOADS = [[900, 40, 30, 300, 8, 7, 6, 5], [1, 2, 3, 4, 5, 6, 7, 800]]


class AReportOfLoads(CommandLine):
    def setUp(self):
        super().setUp()
        self.loads = self.written("loads.json", {
            "format_version": 1, "kind": "load_profile", "model": "toy", "source": "counts", "num_experts": 8, "experts_per_token": 2,
            "numbering": "moe_ordinal", "decoder_layers": [3, 4], "loads": LOADS})
        self.page = self.path("page.html")

    def told(self, *arguments):
        return json.loads(self.succeeds("report", "--trace", self.loads, "--html", self.page, "--json", *arguments))

    def test_compares_and_draws_what_it_recommends(self):
        told = self.told("--cluster", "1x2", "--slots", "5,6")
        compared = json.loads(self.succeeds("compare", "--trace", self.loads, "--cluster", "1x2", "--slots", "5,6", "--json"))
        self.assertEqual(told["recommendation"], compared["recommendation"])
        self.assertEqual([(row["name"], row["slots"], row["load_max_over_mean"]) for row in told["strategies"]],
                         [(row["name"], row["slots"], row["load_max_over_mean"]) for row in compared["strategies"]])
        chosen = next(row for row in told["strategies"] if (row["name"], row["slots"]) == (told["recommendation"]["name"], told["recommendation"]["slots"]))
        drawn = told["plan"]["layers"]
        self.assertAlmostEqual(sum(layer["load_max_over_mean"] for layer in drawn) / 2, chosen["load_max_over_mean"])
        self.assertEqual(told["plan"]["expert_load"], LOADS)
        for layer, loads, holders in zip(drawn, LOADS, told["plan"]["experts_of_device"], strict=True):
            copies = [sum(expert in device for device in holders) for expert in range(8)]
            shared = [sum(loads[expert] / copies[expert] for expert in device) for device in holders]
            self.assertEqual(len(layer["load"]), 2)
            for mine, theirs in zip(shared, layer["load"], strict=True):
                self.assertAlmostEqual(mine, theirs)

    def test_says_what_it_cannot_know(self):
        self.told("--cluster", "1x2")
        page = self.page.read_text()
        for said in ("What loads do not say", "left out, not zero", "Load of each device", "Load of each expert", "Who holds what", "Strategies", str(self.loads)):
            self.assertIn(said, page)
        for unknown in ("Traffic between devices", "Affinity", "Drift", "Certificates"):
            self.assertNotIn(f">{unknown}<", page)

    def test_is_the_same_twice(self):
        self.told("--plan", self.planned())
        first = self.page.read_bytes()
        self.told("--plan", self.planned())
        self.assertEqual(self.page.read_bytes(), first)

    def planned(self):
        plan = self.path("plan.json")
        self.succeeds("plan", "--trace", self.loads, "--cluster", "1x2", "--strategy", "eplb", "--slots", 6, "--out", plan)
        return plan

    def test_draws_a_plan_that_is_given(self):
        told = self.told("--plan", self.planned())
        self.assertNotIn("strategies", told)
        self.assertEqual(told["plan"]["strategy"], "eplb")
        self.assertEqual([len(device) for device in told["plan"]["experts_of_device"][0]], [6, 6])
        words = self.succeeds("report", "--trace", self.loads, "--plan", self.planned(), "--html", self.page)
        self.assertIn("times under the default placement", words)

    def test_refuses_what_needs_tokens(self):
        there = ("report", "--trace", self.loads, "--html", self.page)
        self.refuses(*there, "--cluster", "1x2", "--trace", self.loads, saying="a load profile is shown alone")
        self.refuses(*there, "--cluster", "1x2", "--slots", "grace", saying="grace's own need the tokens")
        self.refuses(*there, "--cluster", "1x2", "--run", "r.json", saying="--run")
        self.refuses(*there, saying="--cluster compares strategies")
        self.assertFalse(self.page.exists())


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
