"""Every architecture from the command line: checked, profiled, planned for and run on four ranks (arguments: program, source folder).

The small random checkpoints of tests/fixtures/architectures have no tokenizer, so that token ids go in and come out. The text is the one that the
library computed for the fixture.
"""

import json
import pathlib
import struct
import subprocess
import sys
import tempfile


def run(program: str, *arguments: str, expect: int = 0) -> str:
    done = subprocess.run([program, *arguments], capture_output=True, text=True, timeout=300)
    if done.returncode != expect:
        raise RuntimeError(f"grace {' '.join(arguments)}: exit {done.returncode}: {done.stderr.strip()}")
    return done.stdout if expect == 0 else done.stderr


def integers(path: pathlib.Path) -> dict[str, list[int]]:
    """The tensors of whole numbers in a safetensors file."""
    data = path.read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    tensors = {}
    for name, entry in json.loads(data[8 : 8 + length]).items():
        if name != "__metadata__" and entry["dtype"] == "I32":
            begin, end = entry["data_offsets"]
            tensors[name] = list(struct.unpack(f"<{(end - begin) // 4}i", data[8 + length + begin : 8 + length + end]))
    return tensors


def check_text(program: str, model: pathlib.Path, scratch: pathlib.Path) -> None:
    expected = integers(model / "expected.safetensors")
    which = [i for i in range(3) if f"greedy_{i}" in expected]
    prompts = scratch / "prompts.json"
    prompts.write_text(json.dumps([expected[f"token_ids_{i}"] for i in which]))
    trace, plan = scratch / "model.trace", scratch / "plan.json"
    run(program, "check", str(model))
    run(program, "profile", str(model), "--token-ids", str(prompts), "--out", str(trace))
    run(program, "plan", "--trace", str(trace), "--cluster", "2x2", "--strategy", "joint-fast", "--effort", "0.1", "--out", str(plan))
    assert "plan" in run(program, "check", str(plan), "--model", str(model))
    for transport in ("in_process", "mpi"):
        out = run(program, "run", str(model), "--token-ids", str(prompts), "--plan", str(plan), "--cluster", "2x2", "--transport", transport,
                  "--max-new-tokens", "64", "--ignore-eos", "--json")
        said = [output["token_ids"] for output in json.loads(out)["outputs"]]
        assert [ids[-64:] for ids in said] == [expected[f"greedy_{i}"] for i in which], f"{model.name}, {transport}: another text"


def check_uncovered_layers(program: str, model: pathlib.Path, scratch: pathlib.Path) -> None:
    """What a plan lacks is placed as by vanilla, and said."""
    prompts, plan_path = scratch / "one.json", scratch / "partial.json"
    prompts.write_text("[[1, 2, 3]]")
    run(program, "profile", str(model), "--token-ids", str(prompts), "--out", str(scratch / "one.trace"))
    run(program, "plan", "--trace", str(scratch / "one.trace"), "--cluster", "1x2", "--strategy", "vanilla", "--out", str(plan_path))
    plan = json.loads(plan_path.read_text())
    lost = plan["layers"].pop()
    plan["decoder_layers"].pop()
    plan_path.write_text(json.dumps(plan))
    done = subprocess.run([program, "run", str(model), "--token-ids", str(prompts), "--plan", str(plan_path), "--cluster", "1x2", "--max-new-tokens", "4",
                           "--json"], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("it lacks decoder layers 2: placed as by vanilla") == 1, (done.stderr, lost)


def check_quantised(program: str, model: pathlib.Path, scratch: pathlib.Path) -> None:
    folder = scratch / "quantised"
    folder.mkdir()
    config = json.loads((model / "config.json").read_text()) | {"quantization_config": {"quant_method": "fp8"}}
    (folder / "config.json").write_text(json.dumps(config))
    said = run(program, "run", str(folder), "--token-ids", str(scratch / "prompts.json"), expect=2)
    assert 'quantization_config says "fp8": quantised weights are not supported, only BF16, F16 and F32 are' in said, said
    assert said.count("\n") == 1, said


def main() -> int:
    program, source = sys.argv[1], pathlib.Path(sys.argv[2])
    fixtures = sorted(path for path in (source / "tests/fixtures/architectures").iterdir() if path.is_dir())
    assert len(fixtures) >= 10
    with tempfile.TemporaryDirectory() as scratch:
        for model in fixtures:
            check_text(program, model, pathlib.Path(scratch))
        deepseek = source / "tests/fixtures/architectures/deepseek_v3"
        check_uncovered_layers(program, deepseek, pathlib.Path(scratch))
        check_quantised(program, deepseek, pathlib.Path(scratch))
    return 0


if __name__ == "__main__":
    sys.exit(main())
