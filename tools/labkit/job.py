"""A command in the first node, with all that makes Open MPI reach the others."""

import json
import os
import pathlib
import shlex
import signal
import subprocess
import sys
import time
from dataclasses import dataclass

from labkit import network
from labkit.sealed import SIGNALS, command

STOP_S = 10.0  # how long a job that was told to end may take
SETTLE_S = 2.0  # how long a job's daemons may outlive it
HOSTS = "{hosts}"  # in a command, the hostfile
NODES_VARIABLE = "GRACE_LAB_NODES"  # tells `lab links` inside the job

AGENT = """#!/bin/sh
# HOST WORDS...: in place of ssh
host=$1
shift
exec {entering} "$host" sh -c "$*"
"""
PINNED = """#!/bin/sh
# WORDS...: a rank with a core of its own, or in turn with those that share it
exec chrt --rr 1 taskset -c $((${OMPI_COMM_WORLD_RANK:-0} % $(nproc))) "$@"
"""


@dataclass(frozen=True)
class Job:
    nodes: int
    devices: int
    words: list[str]
    pin: bool = False


def run(job: Job, link: network.Link, folder: pathlib.Path, report: str | None) -> int:
    """Lays the network, runs the job, writes the report (a path) when asked. Returns the job's exit status.

    REQUIRES: called by process 1 of a sealed place.
    """
    network.build(job.nodes, link)
    hosts = _write_hosts(job, folder)
    words = [word.replace(HOSTS, str(hosts)) for word in job.words]
    started = time.monotonic()
    status = _wait(network.entering(network.node_name(0), words), _environment(job, folder))
    seconds = time.monotonic() - started
    left = _left_behind()
    if report:
        told = {"nodes": job.nodes, "devices": job.devices, "rate_bits_per_s": link.rate, "mtu": link.mtu, "burst_bytes": link.burst,
                "exit": status, "seconds": seconds, "processes_left": left, "links": network.link_counters(job.nodes)}
        pathlib.Path(report).write_text(json.dumps(told, indent=1) + "\n")
    if left:
        print(f"lab: the job left {len(left)} process(es) behind, now ended: {', '.join(left)}", file=sys.stderr)
    return status


def _write_hosts(job: Job, folder: pathlib.Path) -> pathlib.Path:
    names = [network.node_name(node) for node in range(job.nodes)]
    known = "".join(f"{network.address(node)} {name}\n" for node, name in enumerate(names))
    (folder / "hosts").write_text("127.0.0.1 localhost\n" + known)
    command("mount", "--bind", folder / "hosts", "/etc/hosts")  # seen in this place alone
    hostfile = folder / "hostfile"
    hostfile.write_text("".join(f"{name} slots={job.devices}\n" for name in names))
    return hostfile


def _write_script(path: pathlib.Path, text: str) -> pathlib.Path:
    path.write_text(text)
    path.chmod(0o755)
    return path


def _environment(job: Job, folder: pathlib.Path) -> dict[str, str]:
    entering = network.entering("HOST", [])
    entering = " ".join('"$host"' if word == "HOST" else shlex.quote(word) for word in entering[:-1])
    (folder / "tmp").mkdir()
    parameters = {
        "plm_rsh_agent": str(_write_script(folder / "agent", AGENT.format(entering=entering))),
        "plm_rsh_no_tree_spawn": "1",
        "pml": "ob1",
        "btl": "self,vader,tcp",  # vader is shared memory, which Open MPI takes between ranks of one host name alone
        # Whole messages put by their receiver's leave wait behind the data of the other direction: two ranks a node then use one
        # direction at a time, and half the link. Fragments sent without asking fill both (50-66 % and 97 % of the rate).
        "btl_tcp_flags": "send,inplace",
        "btl_tcp_if_include": network.SUBNET,
        "oob_tcp_if_include": network.SUBNET,
        "orte_tmpdir_base": str(folder / "tmp"),
        "rmaps_base_oversubscribe": "1",
        "hwloc_base_binding_policy": "none",  # each node's daemon would bind its first rank to the same core
        "mpi_yield_when_idle": "1",
    }
    if job.pin:
        parameters["orte_fork_agent"] = str(_write_script(folder / "pinned", PINNED))
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    ours = {f"OMPI_MCA_{name}": value for name, value in parameters.items()}
    return root | ours | os.environ | {NODES_VARIABLE: str(job.nodes)}  # who sets a parameter outside has the last word


def _wait(words: list[str], environment: dict[str, str]) -> int:
    """Runs the words to their end, passing signals on, and reaps whoever else ends, as process 1 must."""
    child = subprocess.Popen(words, env=environment, start_new_session=True)
    deadline = float("inf")

    def pass_on(number: int, _: object) -> None:
        nonlocal deadline
        deadline = min(deadline, time.monotonic() + STOP_S)
        os.kill(child.pid, number)

    for number in SIGNALS:
        signal.signal(number, pass_on)
    while time.monotonic() < deadline:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == child.pid:
            child.returncode = 0  # reaped here, so that Popen does not try
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code
        if pid == 0:
            time.sleep(0.005)
    return 128 + signal.SIGTERM


def _left_behind() -> list[str]:
    """Names of the processes that are still here when their job has been gone for a while."""
    deadline = time.monotonic() + SETTLE_S
    while True:
        _reap()
        names = _others()
        if not names or time.monotonic() > deadline:
            return names
        time.sleep(0.02)


def _reap() -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0] != 0:
            pass
    except ChildProcessError:
        pass


def _others() -> list[str]:
    names = []
    for place in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            if place.name != "1":
                names.append((place / "comm").read_text().strip())
        except OSError:
            pass  # just gone
    return sorted(names)
