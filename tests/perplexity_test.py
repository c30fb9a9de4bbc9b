"""Perplexity of the shipped model on its held-out text equals the reference's to 0.1 % (arguments: program, source folder)."""

import json
import pathlib
import subprocess
import sys

WIDEST = 1e-3  # relative


def main() -> int:
    program, source = sys.argv[1], pathlib.Path(sys.argv[2])
    model = source / "models/demo"
    if not (model / "reference.json").exists():
        print("skipped: models/demo/reference.json is not there")
        return 77
    reference = json.loads((model / "reference.json").read_text())
    failed = False
    for kind, expected in reference["files"].items():
        done = subprocess.run([program, "eval", str(model), "--text", str(model / expected["file"]), "--context", str(reference["context"]), "--json"],
                              capture_output=True, text=True, timeout=600, check=True)
        scored = json.loads(done.stdout)
        apart = abs(scored["perplexity"] / expected["perplexity"] - 1)
        print(f"{kind}: {scored['perplexity']:.4f}, reference {expected['perplexity']:.4f}, {apart:.1e} apart")
        failed |= apart > WIDEST or scored["tokens"] != expected["scored_tokens"]
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
