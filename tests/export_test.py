"""`grace export` and what becomes of its files: every rule that the engines state, checked without our own readers; load profiles
and placements at the command line (arguments: program, source folder)."""

import ast
import io
import json
import lzma
import pathlib
import re
import struct
import sys
import unittest
import zipfile

from cli_test import CommandLine, grace

LAYERS, EXPERTS, DEVICES = 3, 16, 4
PLACEMENTS = pathlib.Path(sys.argv[2]).parent / "shared/data/placements"


def read_npy(data: bytes):
    """(shape, values) of a little-endian array of whole numbers in C order."""
    assert data[:8] == b"\x93NUMPY\x01\x00"
    (length,) = struct.unpack("<H", data[8:10])
    header = ast.literal_eval(data[10:10 + length].decode())
    assert (10 + length) % 64 == 0 and not header["fortran_order"]
    code = {"<i8": "q", "|u1": "B"}[header["descr"]]
    raw = data[10 + length:]
    return header["shape"], struct.unpack(f"<{len(raw) // struct.calcsize(code)}{code}", raw)


def npy(shape, values, descr="|u1") -> bytes:
    header = repr({"descr": descr, "fortran_order": False, "shape": tuple(shape)}).encode()
    header += b" " * (-(len(header) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + bytes(values)


def rows_of_yaml(text: str):
    """The three keys as YAML has them, by a pattern a line."""
    numbers, rows = {}, {}
    for line in text.splitlines():
        if match := re.fullmatch(r"(\w+): (\d+)", line):
            numbers[match[1]] = int(match[2])
        elif match := re.fullmatch(r"  (\d+): \[([\d, ]+)\]", line):
            rows[int(match[1])] = [int(one) for one in match[2].split(", ")]
        else:
            assert line == "initial_global_assignments:", line
    return numbers, rows


class Exporting(CommandLine):
    def setUp(self):
        super().setUp()
        self.trace = self.path("t.trace")
        self.succeeds("synthesize", "--out", self.trace, "--shape", f"{LAYERS}x{EXPERTS}", "--top-k", 4, "--tokens", 2000,
                      "--sequence-length", 100, "--dense-layers", 1)
        self.plan = self.path("plan.json")
        self.succeeds("plan", "--trace", self.trace, "--cluster", "2x2", "--strategy", "grace", "--r", 0.5, "--out", self.plan)

    def exported(self, to: str, name: str, *arguments):
        out = self.path(name)
        told = json.loads(self.succeeds("export", "--plan", self.plan, "--to", to, "--out", out, "--verify", "--json", *arguments))
        return out, told

    def check_row(self, row, told, distinct=True):
        slots = told["slots_per_device"]
        self.assertEqual(len(row), slots * DEVICES)
        self.assertEqual(set(row), set(range(EXPERTS)), "every expert has a slot, and no other")
        for device in range(DEVICES):
            here = row[device * slots:(device + 1) * slots]
            if distinct:
                self.assertEqual(len(set(here)), slots, "no expert twice on a device")

    def check_plan_is_kept(self, rows, told):
        slots = told["slots_per_device"]
        for layer, row in zip(json.loads(self.plan.read_text())["layers"], rows, strict=True):
            for number, device in enumerate(layer["devices"]):
                self.assertLessEqual(set(device["primaries"] + device["replicas"]), set(row[number * slots:(number + 1) * slots]))


class AnExport(Exporting):
    def test_for_sglang_has_one_key_and_every_decoder_layer(self):
        out, told = self.exported("sglang", "x.json", "--decoder-layers", 6)
        file = json.loads(out.read_text())
        self.assertEqual(list(file), ["physical_to_logical_map"])
        rows = file["physical_to_logical_map"]
        self.assertEqual(len(rows), 6)
        for row in rows:
            self.check_row(row, told, distinct=False)
        for dense in (0, 4, 5):
            self.assertEqual(rows[dense], [i % EXPERTS for i in range(len(rows[0]))])
        self.check_plan_is_kept(rows[1:4], told)
        flags = " ".join(told["start_with"])
        self.assertIn(f"--init-expert-location {out}", flags)
        self.assertIn(f"--ep-num-redundant-experts {len(rows[0]) - EXPERTS}", flags)

    def test_for_vllm_is_one_record_by_moe_ordinal(self):
        out, told = self.exported("vllm", "x.jsonl")
        (line,) = out.read_text().splitlines()
        record = json.loads(line)
        self.assertEqual((record["record_type"], record["version"]), ("eplb_initial_mapping", 1))
        rows = record["initial_global_assignments"]
        self.assertEqual(list(rows), [str(layer) for layer in range(LAYERS)])
        for row in rows.values():
            self.check_row(row, told)
            self.assertEqual(len(row), record["num_slots"])
        self.assertEqual(record["num_redundant_experts"], record["num_slots"] - EXPERTS)
        self.check_plan_is_kept(list(rows.values()), told)
        self.assertIn("41141", " ".join(told["notes"]))

    def test_for_tensorrt_llm_has_three_keys_and_absolute_layers(self):
        out, told = self.exported("tensorrt-llm", "x.yaml", "--decoder-layers", 4, "--mtp-layers", 1)
        numbers, rows = rows_of_yaml(out.read_text())
        self.assertEqual(numbers, {"num_slots": told["slots_per_device"] * DEVICES, "layer_updates_per_iter": 0})
        self.assertEqual(list(rows), [1, 2, 3, 4])
        for row in rows.values():
            self.check_row(row, told, distinct=False)
        self.check_plan_is_kept(list(rows.values())[:3], told)

    def test_for_ascend_has_distinct_experts_on_each_device(self):
        out, told = self.exported("ascend", "x.json")
        file = json.loads(out.read_text())
        self.assertEqual(list(file), ["moe_layer_count", "layer_list"])
        self.assertEqual(file["moe_layer_count"], LAYERS)
        rows = []
        for number, layer in enumerate(file["layer_list"]):
            self.assertEqual((layer["layer_id"], layer["device_count"]), (number, DEVICES))
            self.assertEqual([device["device_id"] for device in layer["device_list"]], list(range(DEVICES)))
            rows.append([expert for device in layer["device_list"] for expert in device["device_expert"]])
            self.check_row(rows[-1], told)
        self.check_plan_is_kept(rows, told)

    def test_for_eplb_is_the_triple_of_the_original(self):
        out, told = self.exported("eplb", "x.npz")
        with zipfile.ZipFile(io.BytesIO(out.read_bytes())) as archive:
            self.assertIsNone(archive.testzip())
            arrays = {name: read_npy(archive.read(name)) for name in archive.namelist()}
        self.assertEqual(set(arrays), {"physical_to_logical_map.npy", "logical_to_physical_map.npy", "expert_count.npy"})
        (layers, slots), flat = arrays["physical_to_logical_map.npy"]
        rows = [list(flat[i * slots:(i + 1) * slots]) for i in range(layers)]
        for row in rows:
            self.check_row(row, told)
        self.check_plan_is_kept(rows, told)
        counts = arrays["expert_count.npy"][1]
        (_, _, most), copies = arrays["logical_to_physical_map.npy"]
        for layer, row in enumerate(rows):
            for expert in range(EXPERTS):
                at = layer * EXPERTS + expert
                where = [slot for slot, one in enumerate(row) if one == expert]
                self.assertEqual(counts[at], len(where))
                self.assertEqual(list(copies[at * most:(at + 1) * most]), where + [-1] * (most - len(where)))

    def test_says_what_padding_costs_and_judges_both(self):
        _, told = self.exported("sglang", "x.json", "--trace", self.trace, "--slots-per-device", 9)
        plan, file, engine = told["figures"]
        self.assertEqual(told["slots_per_device"], 9)
        self.assertEqual(file["slots_per_device_max"], 9)
        copies = LAYERS * (EXPERTS + plan["copies_per_layer"])
        self.assertAlmostEqual(told["padding"]["memory_factor"], 9 * DEVICES * LAYERS / copies)
        self.assertEqual(told["padding"]["copies_added"], round(9 * DEVICES * LAYERS - copies))
        self.assertLessEqual(file["remote_nodes_per_token"], plan["remote_nodes_per_token"])
        self.assertGreaterEqual(engine["load_max_over_mean"], 1)

    def test_keeps_slots_of_the_placement_before(self):
        first, _ = self.exported("vllm", "a.jsonl")
        shuffled = json.loads(first.read_text())
        slots = shuffled["num_slots"] // DEVICES
        for row in shuffled["initial_global_assignments"].values():
            row[:slots] = reversed(row[:slots])
        before = self.written("b.jsonl", shuffled)
        second, _ = self.exported("vllm", "c.jsonl", "--before", before)
        self.assertEqual(json.loads(second.read_text()), shuffled)

    def test_refuses_what_no_engine_could_use(self):
        there = ("--plan", self.plan, "--out", self.path("x.json"))
        self.refuses("export", *there, "--to", "tgi", saying="'tgi' is not one of sglang, vllm, vllm-ranks, tensorrt-llm, ascend, eplb\n")
        self.refuses("export", *there, "--to", "placement-array", saying="only read, not written; one of sglang,")
        self.refuses("export", "--plan", self.plan, "--out", self.path("x.txt"), "--to", "sglang", saying="must end in .json")
        self.refuses("export", *there, "--to", "sglang", "--slots-per-device", 2, saying="2 slots on every device, the plan's fullest holds")
        self.refuses("export", *there, "--to", "sglang", "--decoder-layers", 2, saying="the plan's last MoE layer is decoder layer 3")
        self.refuses("export", *there, "--to", "vllm-ranks", saying="slots of 16 experts; it holds one copy of each")
        self.refuses("export", *there, "--to", "ascend", "--slots-per-device", 17, saying="repeat an expert of their device")
        lossy = self.path("c2r.json")
        self.succeeds("plan", "--trace", self.trace, "--cluster", "2x2", "--strategy", "c2r", "--out", lossy)
        self.refuses("export", "--plan", lossy, "--out", self.path("x.json"), "--to", "sglang", saying="held to partners")


class APlacementOfAnotherEngine(Exporting):
    def test_becomes_a_plan_again(self):
        for to, name, layers in (("sglang", "x.json", "1-3"), ("vllm", "x.jsonl", "1-3"), ("tensorrt-llm", "x.yaml", "1-3"),
                                 ("ascend", "y.json", "1-3"), ("eplb", "x.npz", "1-3")):
            out, told = self.exported(to, name)
            self.assertIn(f"placement for {to}", self.succeeds("check", out))
            back = self.path("back.json")
            said = json.loads(self.succeeds("import", out, "--cluster", "2x2", "--layers", layers, "--out", back, "--json"))
            self.assertEqual((said["kind"], said["format"], said["devices"]), ("plan", to, DEVICES))
            self.assertIn("OK (plan)", self.succeeds("check", back))
            again, _ = self.exported(to, name)
            self.assertEqual(again.read_bytes(), out.read_bytes())
            plan = json.loads(back.read_text())
            self.assertEqual(plan["decoder_layers"], [1, 2, 3])
            self.assertEqual(sum(len(d["primaries"]) + len(d["replicas"]) for d in plan["layers"][0]["devices"]),
                             told["slots_per_device"] * DEVICES)
            self.succeeds("simulate", "--trace", self.trace, "--plan", back, "--cluster", "2x2", "--shape", self.shape())

    def shape(self):
        config = json.loads((pathlib.Path(sys.argv[2]) / "tests/fixtures/olmoe/bf16_published/config.json").read_text())
        config.update(num_hidden_layers=4, num_experts=EXPERTS, num_experts_per_tok=4)
        return self.written("config.json", config)

    def test_that_tensorrt_llm_made_itself_is_read(self):
        made = pathlib.Path(sys.argv[2]) / "tests/fixtures/interop/tensorrt-llm/moe_load_balancer.yaml"  # by its doPlacement
        out = self.path("theirs.json")
        said = json.loads(self.succeeds("import", made, "--cluster", "1x2", "--out", out, "--json"))
        self.assertEqual((said["format"], said["second_copies_left_out"]), ("tensorrt-llm", 2))  # of 0 in layer 3, of 7 in layer 4
        plan = json.loads(out.read_text())
        self.assertEqual(plan["decoder_layers"], [3, 4])
        held = [[set(device["primaries"] + device["replicas"]) for device in layer["devices"]] for layer in plan["layers"]]
        self.assertEqual(held, [[{0, 1, 6, 7}, {0, 2, 3, 4, 5}], [{7, 2, 1, 0}, {7, 6, 5, 4, 3}]])

    def test_that_is_broken_is_refused_in_a_line(self):
        for name, saying in (("sglang_expert_negative.json", "not an expert"), ("ascend_expert_twice_on_device.json", "twice on one device"),
                             ("tensorrt_llm_layer_twice.yaml", "occurs twice"), ("vllm_redundant_wrong.jsonl", "num_redundant_experts is 2"),
                             ("eplb_count_wrong.npz", "does not count")):
            path = pathlib.Path(sys.argv[2]) / "fuzz/corpus/placement" / name
            self.refuses("import", path, "--cluster", "1x2", "--out", self.path("p.json"), saying=saying)
            self.assertEqual(grace("check", path).returncode, 2)
        good = pathlib.Path(sys.argv[2]) / "fuzz/corpus/placement/good_sglang.json"
        self.refuses("import", good, "--out", self.path("p.json"), saying="becomes a plan for a --cluster")

    @unittest.skipUnless(PLACEMENTS.is_dir(), "the production placements are not there")
    def test_of_deepseek_v3_in_production_is_read_and_judged_beside_ours(self):
        trace = self.path("v3.trace")
        self.succeeds("synthesize", "--out", trace, "--shape", "58x256", "--dense-layers", 3, "--top-k", 8, "--tokens", 2048, "--zipf", 0.8)
        names = sorted(PLACEMENTS.glob("*.npy.xz"))
        self.assertEqual(len(names), 3)
        for packed in names:
            array = self.written("placement.npy", lzma.decompress(packed.read_bytes()))
            cluster = "4x8" if "32_dies" in packed.name else "2x8"
            plan, ours = self.path("theirs.json"), self.path("ours.json")
            said = json.loads(self.succeeds("import", array, "--cluster", cluster, "--layers", "3-60", "--out", plan, "--json"))
            self.assertEqual((said["layers"], said["experts"], said["second_copies_left_out"]), (58, 256, 0))
            _, theirs = self.judged(plan, trace)
            slots = max(len(d["primaries"]) + len(d["replicas"]) for layer in json.loads(plan.read_text())["layers"] for d in layer["devices"])
            self.succeeds("plan", "--trace", trace, "--cluster", cluster, "--strategy", "eplb", "--slots", slots, "--out", ours)
            _, eplb = self.judged(ours, trace)
            # Theirs was made for loads of its own; ours for these.
            self.assertLess(eplb["shared_load_max_over_mean"], theirs["shared_load_max_over_mean"])

    def judged(self, plan, trace):
        self.plan, kept = plan, self.plan
        _, told = self.exported("sglang", "judged.json", "--trace", trace)
        self.plan = kept
        return told, told["figures"][0]


class ALoadProfile(CommandLine):
    def profile(self, **changes):
        loads = [[1000, 3, 200, 70, 5, 6, 90, 8], [1, 2, 3, 4, 5, 6, 7, 9], [0] * 8]
        profile = {"format_version": 1, "kind": "load_profile", "model": "toy", "source": "counts", "num_experts": 8, "experts_per_token": 2,
                   "numbering": "moe_ordinal", "decoder_layers": [1, 2, 3], "loads": loads}
        profile.update(changes)
        return self.written("loads.json", profile)

    def test_is_enough_to_balance_by(self):
        out = self.path("p.json")
        told = json.loads(self.succeeds("plan", "--trace", self.profile(), "--cluster", "2x2", "--strategy", "eplb", "--slots", 3, "--out", out, "--json"))
        self.assertIs(told["in_sample"], True)
        self.assertNotIn("affinity_kept", told)
        self.assertEqual(told["layers"][2]["load_max_over_mean"], 1)
        self.assertIn("OK (plan)", self.succeeds("check", out))
        words = self.succeeds("plan", "--trace", self.profile(), "--cluster", "2x2", "--strategy", "eplb", "--slots", 3, "--out", out)
        self.assertRegex(words, r"eplb: EPLB's rule would have put \d+ copies beside a copy of the same expert")
        self.assertIn("In-sample", words)

    def test_is_not_enough_for_what_goes_by_coactivation(self):
        there = ("--trace", self.profile(), "--cluster", "2x2")
        for strategy in ("grace", "occult", "joint-slow", "eplb-cover"):
            self.refuses("plan", *there, "--strategy", strategy, "--out", self.path("p.json"), saying="from loads alone: vanilla, eplb, eplb-flat")
        self.refuses("compare", *there, "--strategies", "eplb,grace", saying="which experts a token chooses together")
        self.refuses("compare", *there, "--slots", "grace", saying="name a number")
        self.refuses("compare", *there, "--trace", self.profile(), saying="compared alone")
        self.refuses("simulate", *there, "--exact", saying="need tokens")

    def test_is_compared_and_simulated_without_what_cannot_be_known(self):
        told = json.loads(self.succeeds("compare", "--trace", self.profile(), "--cluster", "2x2", "--slots", "3,4", "--json"))
        self.assertEqual([row["name"] for row in told["strategies"]], ["vanilla", "eplb", "eplb", "eplb-flat", "eplb-flat"])
        for row in told["strategies"]:
            self.assertIs(row["heldout"], False)
            self.assertFalse({"devices_per_token", "remote_nodes_per_token", "judge_slow", "bytes_cross_node", "layer_time"} & set(row))
            self.assertGreaterEqual(row["load_max_over_mean"], 1)
        self.assertEqual(told["recommendation"]["measure"], "load_max_over_mean")
        told = json.loads(self.succeeds("simulate", "--trace", self.profile(), "--cluster", "2x2", "--json"))
        self.assertEqual(told["layers"][0]["load"], [1003, 270, 11, 98])

    def test_that_is_broken_is_refused_in_a_line(self):
        self.assertIn("OK (load profile)", self.succeeds("check", self.profile()))
        broken = self.profile(loads=[[1, -1, 0, 0, 0, 0, 0, 0]] * 3)
        self.refuses("plan", "--trace", broken, "--cluster", "2x2", "--strategy", "eplb", "--out", self.path("p.json"),
                     saying="loads[0][1] is -1, not a whole number")
        self.assertEqual(grace("check", broken).returncode, 2)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
