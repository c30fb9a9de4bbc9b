"""Every `sh` block of the walk-through pages runs, in order, in a folder of its own (arguments: program, source folder)."""

import pathlib
import re
import shlex
import subprocess
import sys
import tempfile

PAGES = ["from-sglang.md", "from-vllm.md", "from-tensorrt-llm.md", "reproduce-the-paper.md"]


def commands_of(page: pathlib.Path) -> list:
    """The lines of all `sh` blocks; a backslash at the end of a line goes on with the next."""
    blocks = re.findall(r"```sh\n(.*?)```", page.read_text(), re.S)
    return [line for block in blocks for line in block.replace("\\\n", " ").splitlines() if line.strip() and not line.startswith("#")]


def main() -> int:
    program, source = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve()
    problems, ran = [], 0
    for name in PAGES:
        with tempfile.TemporaryDirectory() as folder:
            scratch = pathlib.Path(folder)
            (scratch / "out").mkdir()
            for shared in ("tests", "models"):
                (scratch / shared).symlink_to(source / shared)
            for line in commands_of(source / "docs" / name):
                words = shlex.split(line, comments=True)
                if words[0] != "grace":
                    problems.append(f"{name}: {line}: not a command of grace")
                    continue
                done = subprocess.run([program, *words[1:]], cwd=scratch, capture_output=True, text=True, timeout=300, check=False)
                ran += 1
                if done.returncode != 0:
                    problems.append(f"{name}: {line}: exit {done.returncode}: {done.stderr.strip()}")
    print("\n".join(problems) or f"{ran} commands ran")
    return 1 if problems or ran == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
