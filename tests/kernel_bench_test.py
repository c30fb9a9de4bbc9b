"""`grace bench --kernels` proves and measures every kernel of a small shape (arguments: program, source folder)."""

import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

PROGRAM, SOURCE = sys.argv[1], pathlib.Path(sys.argv[2])
GROUPED = {
    "hidden_size": 96, "num_hidden_layers": 2, "vocab_size": 200, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 40,
    "num_experts": 8, "num_experts_per_tok": 2, "intermediate_size": 40,
}
LATENT = {
    "hidden_size": 96, "num_hidden_layers": 2, "vocab_size": 200, "num_attention_heads": 4, "kv_lora_rank": 48, "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 16, "v_head_dim": 32, "n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 40,
    "intermediate_size": 72, "n_shared_experts": 1, "first_k_dense_replace": 1,
}


def bench(*arguments) -> subprocess.CompletedProcess:
    return subprocess.run([PROGRAM, "bench", *map(str, arguments)], capture_output=True, text=True, timeout=600)


class BenchOfKernels(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def shape(self, config: dict) -> pathlib.Path:
        path = self.folder / "config.json"
        path.write_text(json.dumps(config))
        return path

    def report(self, config: dict, *options) -> dict:
        done = bench("--kernels", "--shape", self.shape(config), "--tokens", "1,5,64", "--rounds", 1, "--json", *options)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return json.loads(done.stdout)

    def test_measures_every_group_in_all_numbers(self):
        for dtype in ("f32", "bf16", "int8"):
            report = self.report(GROUPED, "--dtype", dtype, "--threads", 2)
            self.assertEqual((report["dtype"], report["threads"]), (dtype, 2))
            self.assertEqual(len(report["groups"]), 5)
            for group in report["groups"]:
                for kernel in group["kernels"]:
                    self.assertLessEqual(kernel["error"], kernel["error_bound"])
                    self.assertEqual(len(kernel["rounds"]), 1)
                    for figure in ("seconds", "of_peak", "of_memory", "of_roofline"):
                        self.assertGreater(kernel[figure], 0, kernel["name"])

    def test_knows_latent_attention_shared_experts_and_dense_layers(self):
        names = [kernel["name"] for group in self.report(LATENT)["groups"] for kernel in group["kernels"]]
        for part in ("kv down 96 -> 64", "kv up 48 -> 256", "shared experts 96 -> 40 -> 96", "dense layer 96 -> 72 -> 96", "decode, 128"):
            self.assertTrue(any(part in name for name in names), part)

    def test_takes_the_instructions_that_are_asked_for(self):
        done = bench("--kernels", "portable", "--shape", self.shape(GROUPED), "--tokens", 2, "--rounds", 1, "--json")
        self.assertEqual((done.returncode, json.loads(done.stdout)["instructions"]), (0, "portable"))

    def test_names_the_processor_and_draws_a_page(self):
        page = self.folder / "page.html"
        done = bench("--kernels", "--shape", self.shape(GROUPED), "--tokens", 2, "--rounds", 1, "--html", page)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        for word in ("Processor: ", "of roofline", "Ceilings", "DRAM"):
            self.assertIn(word, done.stdout)
        self.assertIn("<svg", page.read_text())

    def test_refuses_with_one_line(self):
        shape = self.shape(GROUPED)
        for options, saying in (
            (("--kernels", "sse9"), "sse9 are not one of auto, amx"),
            (("--kernels", "--dtype", "fp4"), "fp4 is not one of f32, bf16, int8"),
            (("--kernels", "--shape", shape, "--tokens", "1,x"), "--tokens: 'x' is no number"),
            (("--kernels", "--shape", shape, "--tokens", "0"), "--tokens: '0' is no number"),
            (("--kernels", "--shape", shape, "--threads", "0"), "--threads"),
            (("--kernels", "--shape", "nothing"), "nothing"),
        ):
            done = bench(*options)
            self.assertEqual((done.returncode, done.stdout), (2, ""), options)
            self.assertRegex(done.stderr, r"\Agrace: [^\n]*\n\Z")
            self.assertIn(saying, done.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
