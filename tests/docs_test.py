"""Every path and every `grace` option that the documents name exists (arguments: program, source folder)."""

import pathlib
import re
import subprocess
import sys

PATH = re.compile(r"`((?:src|apps|tests|tools|docs|models|fuzz|bench|cmake)/[\w./-]+)`")
OPTION = re.compile(r"(--[a-z][a-z-]+)")
COMMAND = re.compile(r"^(?:\./run )?grace (\w+)(.*)$", re.M)


def help_of(program: str, command: str) -> str:
    return subprocess.run([program, command, "--help"], capture_output=True, text=True, timeout=60).stdout


def main() -> int:
    program, source = sys.argv[1], pathlib.Path(sys.argv[2])
    problems, checked, helps = [], 0, {}
    for document in [*source.glob("*.md"), *source.glob("docs/**/*.md")]:
        text, name = document.read_text(), document.relative_to(source)
        for path in PATH.findall(text):
            checked += 1
            if not (source / path).exists():
                problems.append(f"{name}: `{path}` does not exist")
        for block in re.findall(r"```\w*\n(.*?)```", text, re.S):
            for command, rest in COMMAND.findall(block):
                helps.setdefault(command, help_of(program, command))
                for option in OPTION.findall(rest.split("#")[0]):
                    checked += 1
                    if option not in helps[command]:
                        problems.append(f"{name}: `grace {command}` has no option {option}")
    print("\n".join(problems) or f"{checked} paths and options are there")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
