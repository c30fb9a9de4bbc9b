"""Every fault of an MPI job ends the command in time, with one line that names the rank and the cause (arguments: program, source folder).

Four ranks on the model in the box. What has to go wrong inside a rank is done to it from outside: by signals, by a
library loaded before MPI's, or by a stand-in for mpirun that starts one rank differently.
"""

import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

PROGRAM, SOURCE = sys.argv[1], pathlib.Path(sys.argv[2])
DEMO = SOURCE / "models/demo"
DEADLINE_S = 6
SLACK_S = 4  # of starting and looking, on a machine that does other things too

# Changes what rank 2 does at its n-th message: leaves, or sends a byte less or more than it said.
MEDDLER = r"""
#include <mpi.h>
#include <stdlib.h>
#include <string.h>
int MPI_Isend(const void* data, int count, MPI_Datatype type, int peer, int tag, MPI_Comm comm, MPI_Request* request) {
  static int messages = 0;
  static char longer[1 << 21];
  const char* how = getenv("MEDDLE");
  const char* rank = getenv("OMPI_COMM_WORLD_RANK");
  if (how && rank && !strcmp(rank, "2") && tag == 2 && count > 1 && ++messages == 40) {
    if (!strcmp(how, "leave")) _Exit(0);
    if (!strcmp(how, "leave3")) _Exit(3);
    if (!strcmp(how, "segv")) abort();
    if (!strcmp(how, "short")) --count;
    if (!strcmp(how, "long")) {
      memcpy(longer, data, count);
      data = longer;
      ++count;
    }
  }
  return PMPI_Isend(data, count, type, peer, tag, comm, request);
}
"""

# Stands before mpirun on PATH: rank 2 runs other words, or words on another file.
STAND_IN = """#!/bin/sh
words=""
while [ $# -gt 0 ] && [ "$1" != "{program}" ]; do words="$words $1"; shift; done
exec {mpirun} $words {folder}/rank "$@"
"""
RANK = """#!/bin/bash
program="$1"; shift
if [ "$OMPI_COMM_WORLD_RANK" = 2 ]; then
{change}
fi
exec "$program" "$@"
"""


def processes(marker: str) -> list:
    """Ids of processes whose environment holds the marker."""
    found = []
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            if marker.encode() in (folder / "environ").read_bytes() and (folder / "stat").read_text().rsplit(") ", 1)[1][0] != "Z":
                found.append(int(folder.name))
        except OSError:
            continue
    return found


def rank_of(pid: int):
    try:
        variables = pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return None
    for variable in variables:
        if variable.startswith(b"OMPI_COMM_WORLD_RANK="):
            return int(variable.split(b"=")[1])
    return None


def threads_of(pid: int) -> int:
    try:
        return len(os.listdir(f"/proc/{pid}/task"))
    except OSError:
        return 0


def scratch() -> set:
    """Where a job keeps what Open MPI would leave in shared memory and among temporary files."""
    return {str(path) for path in pathlib.Path("/dev/shm").glob("grace-job-*")}


class Faults(unittest.TestCase):
    def setUp(self):
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.folder = pathlib.Path(holder.name)
        self.marker = f"GRACE_FAULTS_TEST={self.folder.name}"
        self.environment = dict(os.environ, GRACE_FAULTS_TEST=self.folder.name)
        self.before = scratch()
        self.addCleanup(self.end_all)

    def end_all(self):
        for pid in processes(self.marker):
            os.kill(pid, signal.SIGKILL)

    def words(self, *more, command=("run", DEMO, "--prompt", "The package", "--ignore-eos", "--max-new-tokens", 2000)):
        return [PROGRAM, *map(str, (*command, "--cluster", "2x2", "--transport", "mpi", "--deadline", DEADLINE_S, *more))]

    def start(self, *more, **environment):
        return subprocess.Popen(self.words(*more), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=dict(self.environment, **environment))

    def ranks(self, count=4) -> dict:
        """Rank -> process id, once all have come to their work."""
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            found = {rank_of(pid): pid for pid in processes(self.marker)}
            found.pop(None, None)
            # The second thread is the one that tells the parent of its rank.
            if len(found) == count and all(threads_of(pid) > 1 for pid in found.values()):
                time.sleep(0.5)
                return found
            time.sleep(0.05)
        self.fail(f"the ranks did not start: {found}")

    def ends(self, job, since: float, code: int, saying: str, within=DEADLINE_S + SLACK_S):
        """The command ends in time with one line and this exit code, and nothing of it is left."""
        try:
            out, error = job.communicate(timeout=within + 20)
        except subprocess.TimeoutExpired:
            self.fail("the command does not end")
        took = time.monotonic() - since
        self.assertRegex(error, rf"\Agrace: [^\n]*{saying}[^\n]*\n\Z")
        self.assertEqual((job.returncode, out), (code, ""), error)
        self.assertLessEqual(took, within, error)
        self.nothing_is_left()

    def nothing_is_left(self):
        self.assertEqual(processes(self.marker), [])
        self.assertEqual(scratch() - self.before, set())

    def meddler(self, how: str) -> dict:
        if shutil.which("mpicc") is None:
            self.skipTest("mpicc is not there to build what meddles with a message")
        source, library = self.folder / "meddler.c", self.folder / "meddler.so"
        source.write_text(MEDDLER)
        subprocess.run(["mpicc", "-shared", "-fPIC", "-o", library, source], check=True)
        return {"LD_PRELOAD": str(library), "MEDDLE": how}

    def stand_in(self, change: str) -> dict:
        program = os.path.realpath(PROGRAM)
        for name, text in (("mpirun", STAND_IN.format(program=program, mpirun=shutil.which("mpirun"), folder=self.folder)), ("rank", RANK.format(change=change))):
            (self.folder / name).write_text(text)
            (self.folder / name).chmod(0o755)
        return {"PATH": f"{self.folder}:{os.environ['PATH']}"}


class ARankThat(Faults):
    def test_is_killed_is_named(self):
        for number, name in ((signal.SIGKILL, "KILL"), (signal.SIGSEGV, "SEGV")):
            with self.subTest(name):
                job = self.start("--json")
                ranks, since = self.ranks(), time.monotonic()
                os.kill(ranks[2], number)
                self.ends(job, since, 1, rf"rank 2: killed by signal {int(number)} \(SIG{name}\)", within=SLACK_S)

    def test_is_stopped_is_named_within_the_deadline(self):
        job = self.start("--json")
        ranks, since = self.ranks(), time.monotonic()
        os.kill(ranks[1], signal.SIGSTOP)
        self.ends(job, since, 1, rf"rank 1: is stopped.*--deadline {DEADLINE_S}", within=DEADLINE_S + 1)

    def test_leaves_early_is_named(self):
        for how, saying in (("leave", "rank 2: left before the others"), ("leave3", "rank 2: left early with exit code 3")):
            with self.subTest(how):
                self.ends(self.start("--json", **self.meddler(how)), time.monotonic(), 1, saying)

    def test_aborts_is_named(self):
        self.ends(self.start("--json", **self.meddler("segv")), time.monotonic(), 1, r"rank 2: killed by signal 6 \(SIGABRT\)")

    def test_sends_another_number_of_bytes_is_named(self):
        for how, saying in (("short", r"rank 2: its message to rank \d in all_\w+ has \d+ bytes where \d+ were announced"), ("long", r"rank 2: its message to rank \d in all_\w+ has (more than the \d+ bytes|\d+ bytes where \d+ were announced)")):
            with self.subTest(how):
                self.ends(self.start("--json", **self.meddler(how)), time.monotonic(), 1, saying)

    def test_never_begins_is_named(self):
        self.ends(self.start("--json", **self.stand_in("exec sleep 1000")), time.monotonic(), 1, "rank 2: did not begin")
        self.ends(self.start("--json", **self.stand_in("exit 5")), time.monotonic(), 1, "rank 2: left early with exit code 5")


class RanksThatDiffer(Faults):
    def test_in_the_plan_are_refused(self):
        trace, plan = self.folder / "t", self.folder / "p.json"
        subprocess.run([PROGRAM, "synthesize", "--shape", "demo", "--tokens", "500", "--out", trace], check=True, stdout=subprocess.DEVNULL)
        subprocess.run([PROGRAM, "plan", "--trace", trace, "--cluster", "2x2", "--strategy", "grace", "--out", plan], check=True, stdout=subprocess.DEVNULL)
        job = self.start("--json", **self.stand_in(f"set -- \"$@\" --plan {plan}"))
        self.ends(job, time.monotonic(), 2, "rank 2: its plan is not rank 0's")

    def test_in_the_model_are_refused(self):
        other = self.folder / "demo"
        shutil.copytree(DEMO, other, ignore=shutil.ignore_patterns("heldout"))
        with (other / "model.safetensors").open("r+b") as file:
            file.seek(-1, os.SEEK_END)
            last = file.read(1)
            file.seek(-1, os.SEEK_END)
            file.write(bytes([last[0] ^ 1]))
        job = self.start("--json", **self.stand_in(f"command=$1; shift 2; set -- $command {other} \"$@\""))
        self.ends(job, time.monotonic(), 2, "rank 2: its model is not rank 0's")

    def test_in_options_are_refused(self):
        job = self.start("--json", **self.stand_in("set -- \"$@\" --seed 7"))
        self.ends(job, time.monotonic(), 2, "rank 2: its options are not rank 0's")

    def test_in_the_program_are_refused(self):
        other, content = self.folder / "grace-other", pathlib.Path(PROGRAM).read_bytes()
        version = re.search(rb"grace program \d+\.\d+\.\d+", content)[0]
        other.write_bytes(content.replace(version, version[:-1] + b"9"))
        other.chmod(0o755)
        self.ends(self.start("--json", **self.stand_in(f"program={other}")), time.monotonic(), 2, r"rank 2: its program is not rank 0's: grace program [\d.]+9, not")

    def test_in_the_input_are_refused(self):
        one, other = self.folder / "1.json", self.folder / "2.json"
        one.write_text("[[1, 2]]")
        other.write_text("[[1, 3]]")
        environment = self.stand_in(f"set -- \"${{@/{one.name}/{other.name}}}\"")
        words = self.words("--json", command=("run", DEMO, "--token-ids", one, "--max-new-tokens", 3))
        job = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=dict(self.environment, **environment))
        self.ends(job, time.monotonic(), 2, "rank 2: its input is not rank 0's")

    def test_in_paths_and_threads_are_not_refused(self):
        record = self.folder / "r.jsonl"
        environment = self.stand_in(f"set -- \"$@\" --threads 2 --record {record}")
        words = self.words("--json", command=("run", DEMO, "--prompt", "The", "--max-new-tokens", 3))
        done = subprocess.run(words, capture_output=True, text=True, env=dict(self.environment, **environment), timeout=60)
        self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_in_a_file_that_is_not_there_are_refused(self):
        job = self.start("--json", **self.stand_in("set -- \"$@\" --plan /nowhere/p.json"))
        self.ends(job, time.monotonic(), 1, "rank 2: /nowhere/p.json: ")


class TheCommand(Faults):
    def test_ends_all_when_it_is_told_to(self):
        for number, name in ((signal.SIGINT, "INT"), (signal.SIGTERM, "TERM")):
            with self.subTest(name):
                job = self.start("--json")
                self.ranks()
                since = time.monotonic()
                job.send_signal(number)
                self.ends(job, since, 128 + number, rf"SIG{name}", within=SLACK_S)

    def test_that_is_killed_takes_its_ranks_along(self):
        job = self.start("--json")
        self.ranks()
        job.kill()
        job.communicate()
        deadline = time.monotonic() + DEADLINE_S
        while processes(self.marker) and time.monotonic() < deadline:
            time.sleep(0.05)
        self.assertEqual(processes(self.marker), [])
        for folder in scratch() - self.before:  # the next job's to remove, after a minute
            shutil.rmtree(folder)

    def test_survives_its_mpirun(self):
        job = self.start("--json")
        self.ranks()
        mpirun = [int(child) for child in pathlib.Path(f"/proc/{job.pid}/task/{job.pid}/children").read_text().split()]
        since = time.monotonic()
        os.kill(mpirun[0], signal.SIGKILL)
        self.ends(job, since, 1, r"mpirun: killed by signal 9", within=SLACK_S)

    def test_says_that_the_disk_is_full(self):
        text = self.folder / "t.txt"
        text.write_text("The package manager installs what is missing. " * 20)
        words = self.words("--json", command=("profile", DEMO, "--text", text, "--out", "/dev/full"))
        job = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=self.environment)
        self.ends(job, time.monotonic(), 1, "rank 0: /dev/full: No space left on device")
        self.assertTrue(pathlib.Path("/dev/full").is_char_device())

    def test_writes_nothing_half(self):
        record = self.folder / "out" / "r.jsonl"
        record.parent.mkdir()
        job = self.start("--json", "--record", record)
        ranks, since = self.ranks(), time.monotonic()
        os.kill(ranks[0], signal.SIGKILL)
        self.ends(job, since, 1, "rank 0: killed by signal 9", within=SLACK_S)
        self.assertEqual(list(record.parent.iterdir()), [])

    def test_gives_slow_ranks_their_time(self):
        """Ranks without a core for longer than half the deadline, and a parent that was suspended beyond it."""
        # Enough tokens that a quick machine is still at it when the rank is stopped.
        job = subprocess.Popen(self.words("--json", command=("run", DEMO, "--prompt", "The", "--ignore-eos", "--max-new-tokens", 400)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=self.environment)
        ranks = self.ranks()
        os.kill(ranks[3], signal.SIGSTOP)
        time.sleep(1)
        os.kill(job.pid, signal.SIGSTOP)
        time.sleep(DEADLINE_S)
        os.kill(ranks[3], signal.SIGCONT)
        os.kill(job.pid, signal.SIGCONT)
        out, error = job.communicate(timeout=60)
        self.assertEqual((job.returncode, error), (0, ""))
        self.assertEqual(len(json.loads(out)["outputs"]), 1)
        self.nothing_is_left()

    def test_says_that_its_own_output_has_no_place(self):
        words = self.words("--json", command=("run", DEMO, "--prompt", "The", "--max-new-tokens", 3))
        with open("/dev/full", "w") as full:
            done = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True, env=self.environment, timeout=60)
        self.assertEqual((done.returncode, done.stderr), (1, "grace: standard output: No space left on device\n"))
        self.nothing_is_left()

    def test_says_that_mpirun_is_not_there(self):
        done = subprocess.run(self.words(), capture_output=True, text=True, env=dict(self.environment, PATH="/nowhere"))
        self.assertEqual((done.returncode, done.stdout, done.stderr), (2, "", "grace: --transport mpi: cannot start mpirun: No such file or directory\n"))
        self.nothing_is_left()

    def test_refuses_a_deadline_that_is_none(self):
        done = subprocess.run(self.words("--deadline", 0.5), capture_output=True, text=True, env=self.environment)
        self.assertEqual(done.returncode, 2)
        self.assertIn("--deadline", done.stderr)

    def test_runs_inside_an_mpirun_of_the_users(self):
        words = self.words("--json", command=("run", DEMO, "--prompt", "The", "--max-new-tokens", 3))
        environment = dict(self.environment, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
        done = subprocess.run(["mpirun", "--oversubscribe", "--bind-to", "none", "-n", "4", *words], capture_output=True, text=True, env=environment, timeout=60)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertEqual(len(json.loads(done.stdout)["outputs"]), 1)

    def test_runs_with_a_hostfile(self):
        hosts = self.folder / "hosts"
        hosts.write_text("localhost slots=4\n")
        done = subprocess.run(self.words("--json", "--hosts", hosts, command=("run", DEMO, "--prompt", "The", "--max-new-tokens", 3)), capture_output=True, text=True, env=self.environment, timeout=60)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertEqual(len(json.loads(done.stdout)["outputs"]), 1)


if __name__ == "__main__":
    if shutil.which("mpirun") is None or not (DEMO / "model.safetensors").exists():
        print("skipped: mpirun or models/demo is not there")
        sys.exit(77)
    unittest.main(argv=sys.argv[:1])
