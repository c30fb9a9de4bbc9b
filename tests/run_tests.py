"""Runs ctest over a build folder and closes with one line that counts: `N passed, N failed, N skipped`."""

import argparse
import os
import re
import subprocess
import sys

RESULT = re.compile(r"^\s*\d+/\d+ Test\s+#\d+: (\S+) \.*\s*(?:\*\*\*)?(Passed|Failed|Skipped|Timeout|Not Run|Exception\S*)", re.M)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("build", help="build folder")
    parser.add_argument("--all", action="store_true", help="the whole same-text matrix, not a spanning subset")
    args = parser.parse_args()
    env = dict(os.environ, GRACE_TEST_ALL="1" if args.all else "0")
    command = ["ctest", "--test-dir", args.build, "--output-on-failure", "--no-tests=error", "--parallel", str(os.cpu_count() or 1)]
    run = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True)
    output = []
    assert run.stdout
    for line in run.stdout:
        print(line, end="", flush=True)
        output.append(line)
    code = run.wait()
    states = [state for _, state in RESULT.findall("".join(output))]
    passed, skipped = states.count("Passed"), states.count("Skipped")
    print(f"{passed} passed, {len(states) - passed - skipped} failed, {skipped} skipped")
    return 0 if code == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
