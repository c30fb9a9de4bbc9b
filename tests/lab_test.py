"""The lab of emulated nodes: its arithmetic, its refusals, and one MPI job across two nodes (arguments: program, source folder).

What needs root, network namespaces, tc or mpirun is skipped, with the reason, where `tools/lab check` says no.
"""

import contextlib
import io
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from unittest import mock

PROGRAM, SOURCE = sys.argv[1], pathlib.Path(sys.argv[2])
LAB, DEMO = SOURCE / "tools/lab", SOURCE / "models/demo"
sys.path.insert(0, str(SOURCE / "tools"))

from labkit import commands, network, rate, sealed, units  # noqa: E402
from labkit.refusal import Refusal  # noqa: E402

# TCP, IP and Ethernet headers and acknowledgements, and Open MPI's own headers and start.
MOST_OVERHEAD = 1.05
MOST_START_BYTES = 400_000
RATE = "200mbit"


def lab(*arguments: object, **options) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, LAB, *map(str, arguments)], capture_output=True, text=True, timeout=120, **options)


def why_no_lab() -> str:
    done = lab("check")
    return "" if done.returncode == 0 else done.stderr.strip()


NO_LAB = why_no_lab()


def record(*layers: dict, **head) -> str:
    known = {"record": "run", "cluster": "2x2", "ranks": 4, "steps": 2, "layers": 1, "decode_steps": 1} | head
    return "".join(json.dumps(line) + "\n" for line in (known, *layers))


def layer(step: int, rank: int, payload: int, experts_s: float) -> dict:
    sent = {"cross_node_payload": payload, "cross_node_header": 1, "intra_node_payload": 10**9, "intra_node_header": 10**9}
    return {"record": "layer", "step": step, "rank": rank, "layer": 0, "dispatch": sent, "combine": sent, "experts_s": experts_s}


class ARate(unittest.TestCase):
    def test_reads_as_tc_spells_it(self):
        for text, expected in {"200mbit": 200e6, "2.5gbit": 2.5e9, "100kbit": 1e5, "1000000": 1e6, "1Gbit": 1e9}.items():
            self.assertEqual(units.bits_per_s(text), expected)
        for text in ("", "fast", "1tbit", "-1mbit", "99kbit", "101gbit", "1e9"):
            with self.assertRaises(Refusal, msg=text):
                units.bits_per_s(text)

    def test_gives_the_ratio_back(self):
        for ratio in (2.3, 7.5, 34):
            for latency in (0, 50e-6):
                work, path = rate.Workload(3e6, 0.02, 8), rate.Path(0.9, latency)
                self.assertAlmostEqual(rate.ratio_at(work, path, rate.rate_for(work, path, ratio)), ratio)

    def test_is_the_worked_example(self):
        # 1 MB through the busiest link, 0.1 s of experts, ratio 8: 0.8 s for 8 Mbit at half the rate.
        self.assertAlmostEqual(rate.rate_for(rate.Workload(1e6, 0.1), rate.Path(share=0.5), 8), 20e6)

    def test_refuses_a_ratio_that_latency_alone_exceeds(self):
        with self.assertRaisesRegex(Refusal, "latency alone is 10 "):
            rate.rate_for(rate.Workload(1e6, 0.1, exchanges=1000), rate.Path(latency_s=1e-3), 7.5)

    def test_is_printed_with_what_it_comes_from(self):
        done = lab("rate", "--busiest-bytes", 1e6, "--experts-seconds", 0.1, "--share", 0.5, "--ratio", 8)
        told = json.loads(done.stdout)
        self.assertEqual((told["rate"], round(told["ratio"], 9), round(told["all_to_all_s"], 9)), ("20000kbit", 8, 0.8))
        back = json.loads(lab("rate", "--busiest-bytes", 1e6, "--experts-seconds", 0.1, "--share", 0.5, "--rate", told["rate"]).stdout)
        self.assertAlmostEqual(back["ratio"], 8)


class ARecord(unittest.TestCase):
    def workload(self, text: str, phase: str) -> rate.Workload:
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "run.jsonl")
            path.write_text(text)
            return rate.of_record(str(path), phase)

    def test_counts_the_node_that_sends_most_and_the_slowest_rank(self):
        text = record(layer(0, 0, 100, 1.0), layer(0, 1, 200, 2.0), layer(0, 2, 5, 7.0), layer(0, 3, 6, 4.0),
                      layer(1, 0, 1, 0.5), layer(1, 1, 1, 0.25), layer(1, 2, 50, 0.125), layer(1, 3, 50, 0.125))
        self.assertEqual(self.workload(text, "prefill"), rate.Workload(2 * 302, 7.0, 2))
        self.assertEqual(self.workload(text, "decode"), rate.Workload(2 * 102, 0.5, 2))
        self.assertEqual(self.workload(text, "all"), rate.Workload(2 * 302 + 2 * 102, 7.5, 4))

    def test_of_the_program_is_understood(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "run.jsonl")
            subprocess.run([PROGRAM, "run", DEMO, "--cluster", "2x2", "--prompt", "The package", "--max-new-tokens", "3", "--record", path],
                           capture_output=True, timeout=120, check=True)
            layers = json.loads(path.read_text().splitlines()[0])["layers"]
            prefill, decode, both = (rate.of_record(str(path), phase) for phase in ("prefill", "decode", "all"))
        self.assertEqual((prefill.exchanges, decode.exchanges), (2 * layers, 2 * 2 * layers))
        self.assertEqual(prefill.busiest_bytes + decode.busiest_bytes, both.busiest_bytes)
        self.assertGreater(min(prefill.busiest_bytes, prefill.experts_s), 0)

    def test_of_another_shape_is_refused(self):
        for text in ("", "{}\n", "[1]\n", "no json\n", record(cluster="mine"), record(cluster="2x3")):
            with self.assertRaises(Refusal, msg=text):
                self.workload(text, "prefill")


class ALink(unittest.TestCase):
    def test_has_a_bucket_of_a_frame_and_a_fifth_of_a_millisecond(self):
        self.assertEqual(network.Link(10**8).burst, 9014 + 2500)
        self.assertEqual(network.Link(10**10).burst, 9014 + 250000)

    def test_leaves_half_the_bucket_to_late_timers_where_a_frame_lets_it(self):
        for rate_of_link, largest in ((10**8, 9014), (10**9, (9014 + 25000) // 2), (10**10, 65536)):
            self.assertEqual(network.Link(rate_of_link).largest_packet, largest)


class ARefusal(unittest.TestCase):
    def refuses(self, *arguments: str, saying: str, **options):
        done = lab(*arguments, **options)
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        self.assertRegex(done.stderr, r"\Alab: [^\n]*\n\Z")
        self.assertIn(saying, done.stderr)

    def test_without_root_says_so(self):
        said = io.StringIO()
        with mock.patch.object(os, "geteuid", return_value=1000), contextlib.redirect_stderr(said):
            self.assertEqual(commands.main(["run", "--rate", RATE, "--", "true"]), 2)
        self.assertRegex(said.getvalue(), r"\Alab: needs root[^\n]*\n\Z")

    @unittest.skipIf(os.geteuid() != 0, "needs root")
    def test_without_a_tool_names_its_package(self):
        with tempfile.TemporaryDirectory() as folder:
            tools = pathlib.Path(folder)
            for missing, package in {"ip": "iproute2", "tc": "iproute2", "mpirun": "openmpi-bin"}.items():
                for tool in set(commands.TOOLS) - {missing}:
                    (tools / tool).unlink(missing_ok=True)
                    (tools / tool).symlink_to("/bin/true")
                (tools / missing).unlink(missing_ok=True)
                self.refuses("run", "--rate", RATE, "--", "true", saying=f"{missing} is not here: install {package}", env={"PATH": folder})

    def test_of_wrong_arguments_names_them(self):
        self.refuses("run", "--rate", "quick", "--", "true", saying="'quick' is no rate")
        self.refuses("run", "--rate", RATE, saying="no command")
        self.refuses("run", "--rate", RATE, "--nodes", "65", "--", "true", saying="--nodes: 65 is outside [1, 64]")
        self.refuses("run", "--rate", RATE, "--mtu", "9", "--", "true", saying="--mtu: 9 is outside")
        self.refuses("rate", "--ratio", "7.5", saying="--busiest-bytes")
        self.refuses("links", saying="not inside a lab's job")


@unittest.skipIf(NO_LAB, NO_LAB)
class ALab(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        lab("clean")
        self.addCleanup(self.assert_nothing_left)
        self.marker = f"GRACE_LAB_TEST={self.folder}"  # in the environment of all that this test starts

    def assert_nothing_left(self):
        left = [place.name for place in pathlib.Path("/proc").glob("[0-9]*") if self.marker in environment_of(place)]
        self.assertEqual(left, [])
        listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout.split()
        self.assertFalse({network.SWITCH, network.node_name(0)} & set(listed))
        self.assertEqual(lab("clean").stdout, "nothing was left\n")

    def environment(self) -> dict[str, str]:
        return os.environ | {"GRACE_LAB_TEST": str(self.folder)}

    def run_lab(self, *words: object, nodes=2, devices=1) -> tuple[subprocess.CompletedProcess, dict]:
        report = self.folder / "lab.json"
        done = lab("run", "--nodes", nodes, "--devices", devices, "--rate", RATE, "--json", report, "--", *words, env=self.environment())
        return done, json.loads(report.read_text())

    def start(self, *words: str) -> subprocess.Popen:
        """A lab whose job has begun."""
        begun = self.folder / f"begun{time.monotonic_ns()}"
        script = f"touch {begun}; {' '.join(words)}"
        started = subprocess.Popen([sys.executable, LAB, "run", "--rate", RATE, "--", "sh", "-c", script], env=self.environment(),
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.wait_until(begun.exists)
        return started

    def wait_until(self, true):
        deadline = time.monotonic() + 30
        while not true():
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.02)

    def test_serves_the_same_text_across_hosts_of_different_names(self):
        asked = ("run", DEMO, "--cluster", "2x2", "--prompt", "The package", "--max-new-tokens", "8")
        alone = subprocess.run([PROGRAM, *map(str, asked)], capture_output=True, text=True, timeout=120, check=True)
        done, told = self.run_lab(PROGRAM, *asked, "--transport", "mpi", "--hosts", "{hosts}", devices=2)
        self.assertEqual((done.returncode, done.stdout), (0, alone.stdout), done.stderr)
        self.assertEqual(told["processes_left"], [])
        self.assertGreater(told["links"][1]["sent_bytes"], 0)

    def test_carries_the_bytes_that_the_program_counts(self):
        for devices in (1, 2):
            done, told = self.run_lab(PROGRAM, "bench", DEMO, "--cluster", f"2x{devices}", "--transport", "mpi", "--hosts", "{hosts}", "--strategies", "vanilla",
                                      "--batch", 16, "--prefill", 64, "--decode", 2, "--rounds", 1, "--json", devices=devices)
            self.assertEqual(done.returncode, 0, done.stderr)
            counted = 1e6 * json.loads(done.stdout)["strategies"][0]["cross_node_bytes"]["median"]
            carried = sum(link["sent_bytes"] for link in told["links"])
            print(f"2x{devices}: counted {counted:.0f}, on the links {carried}, {100 * (carried / counted - 1):.2f} % more")
            self.assertGreater(carried, counted)
            self.assertLess(carried, MOST_OVERHEAD * counted + MOST_START_BYTES)
            self.assertEqual(sum(link["dropped"] for link in told["links"]), 0)
            # No shortcut around the links: the busier one has carried its bytes no faster than its rate.
            self.assertGreater(told["seconds"], 8 * max(link["sent_bytes"] for link in told["links"]) / told["rate_bits_per_s"])

    def test_passes_on_what_the_job_says_and_how_it_ends(self):
        done, told = self.run_lab("sh", "-c", "hostname; exit 7")
        self.assertEqual((done.returncode, done.stdout, told["exit"]), (7, "node0\n", 7))
        done, _ = self.run_lab("mpirun", "-n", "3", "--hostfile", "{hosts}", "hostname", nodes=3)
        self.assertEqual((done.returncode, sorted(done.stdout.split())), (0, ["node0", "node1", "node2"]), done.stderr)

    def test_tells_of_processes_that_a_job_leaves_and_ends_them(self):
        done, told = self.run_lab("sh", "-c", "sleep 1000 >/dev/null 2>&1 &")
        self.assertEqual((done.returncode, told["processes_left"]), (0, ["sleep"]))
        self.assertIn("left 1 process(es) behind", done.stderr)

    def test_is_taken_down_when_told_to_end(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            started = self.start("exec sleep 1000")
            started.send_signal(number)
            self.assertEqual(started.wait(timeout=30), 128 + number)
            started.communicate()
            self.assert_nothing_left()

    def test_is_taken_down_when_killed(self):
        started = self.start("mpirun -n 2 --hostfile {hosts} sleep 1000")
        self.wait_until(lambda: sum(self.marker in environment_of(place) for place in pathlib.Path("/proc").glob("[0-9]*")) >= 6)
        started.kill()
        started.communicate()
        self.wait_until(lambda: not any(self.marker in environment_of(place) for place in pathlib.Path("/proc").glob("[0-9]*")))
        self.assertIn(sealed.folder_of(started.pid).name, lab("clean").stdout)
        self.assertFalse(sealed.folder_of(started.pid).exists())

    def test_stands_beside_another(self):
        first, second = (self.start("mpirun -n 4 --hostfile {hosts} hostname") for _ in range(2))
        for started in (first, second):
            out, errors = started.communicate(timeout=60)
            self.assertEqual((started.returncode, sorted(out.split())), (0, ["node0", "node0", "node1", "node1"]), errors)

    def test_cuts_a_node_off_and_joins_it_again(self):
        reach = "python3 -c 'import socket; s = socket.socket(); s.settimeout(0.5); print(s.connect_ex((\"node1\", 9)) == 111, flush=True)'"
        done, told = self.run_lab("sh", "-c", f"{reach}; {LAB} cut node1; {reach}; {LAB} join node1; {reach}; {LAB} links; {LAB} cut alpha")
        words = done.stdout.split(maxsplit=3)
        self.assertEqual((words[:3], done.returncode), (["True", "False", "True"], 2))
        self.assertEqual([link["node"] for link in json.loads(words[3])], ["node0", "node1"])
        self.assertEqual(done.stderr, "lab: 'alpha' is no node such as node1\n")

    def test_lets_a_job_end_in_time_when_a_node_is_cut_off(self):
        asked = f"{PROGRAM} bench {DEMO} --cluster 2x2 --transport mpi --hosts {{hosts}} --strategies vanilla --rounds 1000 --deadline 4"
        done, told = self.run_lab("sh", "-c", f"{asked} & sleep 2; {LAB} cut node1; date +%s.%N; wait $!; status=$?; date +%s.%N; exit $status", devices=2)
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertRegex(done.stderr, r"\Agrace: rank \d: [^\n]*\n\Z")
        cut, ended = map(float, done.stdout.split())
        self.assertLess(ended - cut, 4)
        self.assertEqual(told["processes_left"], [])

    def test_probes_its_links(self):
        done = lab("probe", "--rate", "100mbit", "--seconds", 0.5, env=self.environment())
        told = json.loads(done.stdout)
        print(f"TCP reaches {told['share_one_way']:.3f} of 100mbit")
        self.assertLess(told["share_one_way"], 1.05)  # a link that does not hold its rate is none


def environment_of(place: pathlib.Path) -> set[str]:
    try:
        return set((place / "environ").read_bytes().decode(errors="replace").split("\0"))
    except OSError:
        return set()


def main() -> int:
    result = unittest.main(argv=sys.argv[:1], exit=False, verbosity=2).result
    if not result.wasSuccessful():
        return 1
    if NO_LAB:
        print(f"skipped: {NO_LAB}")
        return 77
    return 0


if __name__ == "__main__":
    sys.exit(main())
