"""Random checkpoints of every architecture are models that run (arguments: program, source folder)."""

import importlib.util
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

PROGRAM, SOURCE = sys.argv[1], pathlib.Path(sys.argv[2])
TOOL = SOURCE / "tools/random_checkpoint.py"

COMMON = {
    "hidden_size": 32, "num_hidden_layers": 3, "vocab_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "hidden_act": "silu",
    "num_experts_per_tok": 2, "max_position_embeddings": 64, "tie_word_embeddings": False, "torch_dtype": "float32",
}
LATENT = {
    "num_key_value_heads": 4, "kv_lora_rank": 16, "q_lora_rank": None, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 8,
    "n_routed_experts": 8, "moe_intermediate_size": 16, "intermediate_size": 48, "n_shared_experts": 2, "first_k_dense_replace": 1,
}
CONFIGS = {
    "olmoe": {"architectures": ["OlmoeForCausalLM"], "num_experts": 8, "intermediate_size": 16},
    "qwen3_moe": {
        "architectures": ["Qwen3MoeForCausalLM"], "num_experts": 8, "moe_intermediate_size": 16, "intermediate_size": 48, "head_dim": 16,
        "mlp_only_layers": [1], "attention_bias": True,
    },
    "qwen2_moe": {
        "architectures": ["Qwen2MoeForCausalLM"], "num_experts": 8, "moe_intermediate_size": 16, "intermediate_size": 48,
        "shared_expert_intermediate_size": 24, "decoder_sparse_step": 2,
    },
    "mixtral": {"architectures": ["MixtralForCausalLM"], "num_local_experts": 4, "intermediate_size": 16, "tie_word_embeddings": True},
    "deepseek_v2": {"architectures": ["DeepseekV2ForCausalLM"], **LATENT},
    "deepseek_v3": {
        "architectures": ["DeepseekV3ForCausalLM"], **LATENT, "q_lora_rank": 12, "n_group": 2, "topk_group": 1, "scoring_func": "sigmoid",
        "topk_method": "noaux_tc",
    },
}


def run(*command) -> subprocess.CompletedProcess:
    return subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=300)


class ARandomCheckpoint(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def made(self, model_type: str, name: str, *options) -> pathlib.Path:
        config = self.folder / f"{model_type}.json"
        config.write_text(json.dumps({"model_type": model_type, **COMMON, **CONFIGS[model_type]}))
        done = run(sys.executable, TOOL, "--shape", config, "--out", self.folder / name, *options)
        self.assertEqual((done.returncode, done.stderr), (0, ""), model_type)
        return self.folder / name

    def test_of_every_architecture_is_a_model_that_runs(self):
        ids = self.folder / "ids.json"
        ids.write_text(json.dumps([[1, 2, 3, 4], [5]]))
        for model_type in CONFIGS:
            with self.subTest(model_type):
                model = self.made(model_type, model_type)
                done = run(PROGRAM, "check", model)
                self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
                done = run(PROGRAM, "run", model, "--token-ids", ids, "--max-new-tokens", 3, "--ignore-eos", "--json")
                self.assertEqual((done.returncode, done.stderr), (0, ""))
                self.assertEqual([len(entry["token_ids"]) for entry in json.loads(done.stdout)["outputs"]], [3, 3])

    def test_is_the_same_for_the_same_seed(self):
        content = [(self.made("olmoe", f"m{i}", "--seed", seed) / "model.safetensors").read_bytes() for i, seed in enumerate((7, 7, 8))]
        self.assertEqual(content[0], content[1])
        self.assertNotEqual(content[0], content[2])

    def test_has_as_many_layers_as_were_asked_for_and_the_dtype(self):
        model = self.made("olmoe", "short", "--layers", 2, "--dtype", "f32")
        config = json.loads((model / "config.json").read_text())
        self.assertEqual((config["num_hidden_layers"], config["torch_dtype"]), (2, "float32"))
        self.assertEqual(run(PROGRAM, "check", model).returncode, 0)

    def test_is_cut_into_shards_that_an_index_names(self):
        spec = importlib.util.spec_from_file_location("random_checkpoint", TOOL)
        tool = importlib.util.module_from_spec(spec)
        sys.modules["random_checkpoint"] = tool
        spec.loader.exec_module(tool)
        tool.SHARD_BYTES, tool.PIECE = 20_000, 100
        whole = self.made("deepseek_v2", "whole")
        sys.argv = [str(TOOL), "--shape", str(self.folder / "deepseek_v2.json"), "--out", str(self.folder / "cut")]
        tool.main()
        cut = self.folder / "cut"
        self.assertGreater(len(list(cut.glob("model-*-of-*.safetensors"))), 2)
        self.assertEqual(run(PROGRAM, "check", cut).returncode, 0)
        ids = self.folder / "ids.json"
        ids.write_text("[[1, 2, 3]]")
        texts = [run(PROGRAM, "run", model, "--token-ids", ids, "--max-new-tokens", 4, "--ignore-eos", "--json").stdout for model in (whole, cut)]
        self.assertEqual(json.loads(texts[0])["outputs"], json.loads(texts[1])["outputs"])

    def test_refuses_what_it_cannot_do_with_one_line(self):
        config = self.folder / "c.json"
        config.write_text(json.dumps({"model_type": "gpt_oss", **COMMON}))
        model = self.made("olmoe", "there")
        for options, saying in (
            (("--shape", "nothing", "--out", self.folder / "x"), "none of olmoe, deepseek-v2-lite, qwen3-30b-a3b"),
            (("--shape", config, "--out", self.folder / "x"), "model_type gpt_oss is not one of"),
            (("--shape", "olmoe", "--out", self.folder / "x", "--layers", 17), "17 is outside [1, 16]"),
            (("--shape", "olmoe", "--out", model), "holds a model already"),
        ):
            done = run(sys.executable, TOOL, *options)
            self.assertEqual(done.returncode, 1)
            self.assertRegex(done.stderr, r"\Arandom_checkpoint: [^\n]*\n\Z")
            self.assertIn(saying, done.stderr)
            self.assertFalse((self.folder / "x").exists())


if __name__ == "__main__":
    try:
        import numpy  # noqa: F401
    except ImportError:
        print("skipped: no numpy")
        sys.exit(77)
    unittest.main(argv=sys.argv[:1], verbosity=2)
