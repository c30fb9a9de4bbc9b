"""DeepSeek's tokenizer, made by our tool from a vocabulary, against published vectors and the reference (arguments: program, source folder)."""

import json
import pathlib
import subprocess
import sys
import tempfile

PROGRAM, SOURCE = sys.argv[1], pathlib.Path(sys.argv[2])
DATA = SOURCE / "../shared/data"
VOCABULARY = DATA / "tokenizers/deepseek-llm/ggml-vocab-deepseek-llm.gguf"


def fnv1a(ids: list) -> str:
    value = 14695981039346656037
    for token in ids:
        for byte in token.to_bytes(4, "little"):
            value = ((value ^ byte) * 1099511628211) & (2**64 - 1)
    return f"{value:016x}"


def main() -> int:
    if not VOCABULARY.exists():
        print("skipped: no shared data beside the source")
        return 77
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        tokenizer, text = folder / "tokenizer.json", folder / "text"
        subprocess.run([sys.executable, SOURCE / "tools/make_deepseek_tokenizer.py", VOCABULARY, tokenizer], check=True)

        def ids_of(content: bytes) -> list:
            text.write_bytes(content)
            done = subprocess.run([PROGRAM, "tokenize", tokenizer, "--text", text], capture_output=True, check=True)
            return json.loads(done.stdout)["token_ids"]

        inputs = VOCABULARY.with_name(VOCABULARY.name + ".inp").read_bytes().split(b"\n__ggml_vocab_test__\n")
        outputs = VOCABULARY.with_name(VOCABULARY.name + ".out").read_text().splitlines()
        assert len(inputs) > 40
        for content, line in zip(inputs, outputs):
            if content:
                assert ids_of(content) == [int(token) for token in line.split()], content
        reference = next(entry for entry in json.loads((SOURCE / "tests/fixtures/tokenizer/real.json").read_text()) if entry["name"] == "deepseek")
        for case in reference["cases"]:
            if case["text"]:
                assert ids_of(case["text"].encode()) == case["ids"], case["text"]
        for file, expected in reference["files"].items():
            ids = ids_of((DATA / "text" / file).read_bytes())
            assert (len(ids), fnv1a(ids)) == (expected["count"], expected["fnv1a"]), file
    print(f"{len(outputs)} vectors, {len(reference['cases'])} texts and {len(reference['files'])} files agree")
    return 0


if __name__ == "__main__":
    sys.exit(main())
