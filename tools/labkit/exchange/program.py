"""The program that is measured, alone or as a job in the lab."""

import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from labkit.exchange.store import Store, hash_of_file, key_of
from labkit.refusal import Refusal
from labkit.units import rate_text

# Ranks that share cores wait for one another before each exchange, so that its time holds no other's computing.
ALIGNED = "--aligned"
LAB = pathlib.Path(__file__).resolve().parents[2] / "lab"
MPI = ("--transport", "mpi", "--hosts", "{hosts}")


def replay(shape: str, layers: int, batch: int, prefill: int, decode: int) -> tuple[str, ...]:
    """`grace bench` over layers of a shape, gated by the file `routing`."""
    return ("bench", "--shape", shape, "--routing", "{routing}", "--layers", str(layers), "--batch", str(batch), "--prefill", str(prefill),
            "--decode", str(decode), "--combine", "reduced", "--json")


class Program:
    def __init__(self, path: str | os.PathLike):
        self.path = pathlib.Path(path).resolve()
        self.hash = hash_of_file(self.path)
        self._help: dict[str, str] = {}

    @property
    def version(self) -> str:
        return f"{self.text('--version').strip()} ({self.hash[:8]})"

    def text(self, *words: object) -> str:
        return _output([str(self.path), *map(str, words)])

    def json(self, *words: object) -> dict:
        return json.loads(self.text(*words, "--json"))

    def has(self, command: str, option: str) -> bool:
        return re.search(rf"^ +{option}\b", self._help_of(command), re.M) is not None

    def strategies(self) -> list[str]:
        """Those that it plans."""
        listed = re.search(r"--strategy TEXT +one of ([a-z0-9, -]+?) \(", self._help_of("plan"))
        if not listed:
            raise Refusal(f"{self.path}: plan --help names no strategies")
        return listed[1].split(", ")

    def says(self, command: str, word: str) -> bool:
        return re.search(rf"\b{word}\b", self._help_of(command)) is not None

    def _help_of(self, command: str) -> str:
        if command not in self._help:
            self._help[command] = self.text(command, "--help")
        return self._help[command]


def _output(words: Sequence[str], texts_may_differ: bool = False) -> str:
    try:
        done = subprocess.run(words, capture_output=True, text=True)
    except OSError as error:
        raise Refusal(f"{words[0]}: {error.strerror}") from error
    says_differ = texts_may_differ and done.returncode == 1 and done.stdout.startswith("{")  # as grace bench ends where they do
    if done.returncode != 0 and not says_differ:
        lines = (done.stderr.strip() or done.stdout.strip()).splitlines()
        raise Refusal(f"{pathlib.Path(words[0]).name} {words[1]}: {lines[-1] if lines else f'exit {done.returncode}'}")
    return done.stdout


@dataclass(frozen=True)
class Run:
    """One job. name: what it is and which round. files: those among its words, whose content counts and not their place. rate 0: not in the lab."""

    name: str
    words: tuple[str, ...]
    rate: int  # bits per second
    nodes: int = 2
    devices: int = 2
    files: dict[str, pathlib.Path] = field(default_factory=dict)  # {name} in a word becomes its path
    folders: dict[str, pathlib.Path] = field(default_factory=dict)  # the same; what is in them follows from the rest

    def key(self, program: Program) -> str:
        return key_of(self.name, self.words, self.rate, self.nodes, self.devices, program.hash, {name: hash_of_file(path) for name, path in self.files.items()})

    def command(self, program: Program) -> list[str]:
        words = []
        for word in self.words:
            for name, path in (self.files | self.folders).items():
                word = word.replace(f"{{{name}}}", str(path))
            words.append(word)
        return [str(program.path), *words, *(MPI if self.rate else ())]


def done_before(store: Store, program: Program, run: Run) -> dict | None:
    return store.get(run.name, run.key(program))


def measure(store: Store, program: Program, run: Run) -> dict:
    """The run's outcome, from the store where it is there, else run now and kept."""
    known = done_before(store, program, run)
    if known is None:
        known = in_lab(program, run) if run.rate else alone(program, run)
        store.put(run.name, run.key(program), known)
    return known


def in_lab(program: Program, run: Run) -> dict:
    """Runs it: `told` is its JSON, `lab` the links' counters, `seconds` what all of it took."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        report = pathlib.Path(folder, "lab.json")
        lab = [sys.executable, str(LAB), "run", "--nodes", str(run.nodes), "--devices", str(run.devices), "--rate", rate_text(run.rate), "--pin",
               "--json", str(report), "--"]
        try:
            told = json.loads(_output([*lab, *run.command(program)]))
        except ValueError as error:
            raise Refusal(f"{run.name}: no JSON came: {error}") from error
        return {"run": run.name, "words": list(run.words), "rate_bits_per_s": run.rate, "program": program.hash, "seconds": time.monotonic() - began,
                "told": told, "lab": json.loads(report.read_text())}


def alone(program: Program, run: Run) -> dict:
    """Runs it on this machine as it is, its ranks as threads."""
    began = time.monotonic()
    told = json.loads(_output(run.command(program), texts_may_differ=True))
    return {"run": run.name, "words": list(run.words), "program": program.hash, "seconds": time.monotonic() - began, "told": told}
