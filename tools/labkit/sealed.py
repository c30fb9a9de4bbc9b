"""A sealed place for one lab: mounts and processes of its own, which the kernel takes away with the lab's last process.

Nothing is created in the machine's own network or mount namespace, so there is nothing to collide with and nothing to clean up:
when the lab ends in whatever way, SIGKILL included, its process 1 goes, with it every other process inside, and with those the
namespaces and links. What stays after a SIGKILL is one empty directory in /run, which the next lab removes.
"""

import ctypes
import fcntl
import os
import pathlib
import signal
import subprocess
import sys
from collections.abc import Callable

from labkit.refusal import Refusal

RUN = pathlib.Path("/run")
PREFIX = "grace-lab-"
NETNS = RUN / "netns"  # where `ip netns` keeps its names
CLONE_NEWNS, CLONE_NEWPID, PR_SET_PDEATHSIG = 0x20000, 0x20000000, 1
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def command(*words: object, text: str = "") -> str:
    """Runs a command and returns what it printed; refuses with its own words when it fails."""
    done = subprocess.run([str(word) for word in words], input=text, capture_output=True, text=True)
    if done.returncode != 0:
        why = (done.stderr.strip() or done.stdout.strip() or f"exit {done.returncode}").splitlines()[0]
        raise Refusal(f"{' '.join(str(word) for word in words)}: {why}")
    return done.stdout


def folder_of(pid: int) -> pathlib.Path:
    return RUN / f"{PREFIX}{pid}"


def remove_leftovers() -> list[str]:
    """Removes the empty directories of labs that are no more; returns their names.

    A lab holds a lock on its directory. Without it nothing is removed: that would take away what the living lab mounted there.
    """
    removed = []
    for folder in sorted(RUN.glob(PREFIX + "*")):
        try:
            held = _hold(folder)
        except OSError:  # a living lab's, or just removed by another
            continue
        try:
            folder.rmdir()
            removed.append(folder.name)
        except OSError:
            pass
        finally:
            os.close(held)
    return removed


def _hold(folder: pathlib.Path) -> int:
    held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(held)
        raise
    return held


def in_sealed_place(body: Callable[[pathlib.Path], int]) -> int:
    """Runs body(folder) as process 1 of a sealed place; returns its exit status. folder: in memory, gone with the place.

    SIGINT, SIGTERM and SIGHUP are passed on to the body.
    """
    remove_leftovers()
    folder = folder_of(os.getpid())
    folder.mkdir(exist_ok=True)
    NETNS.mkdir(exist_ok=True)
    try:
        held = _hold(folder)
    except OSError as error:
        raise Refusal(f"{folder}: {error.strerror}") from error
    try:
        _call("unshare", CLONE_NEWPID)  # of the next child, which is process 1 there
        child = os.fork()
        if child == 0:
            _become_first(folder, body)
        return _wait_for(child)
    finally:
        folder.rmdir()
        os.close(held)


def _call(name: str, *arguments: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*arguments) != 0:
        raise Refusal(f"{name}: {os.strerror(ctypes.get_errno())}: this root may not make namespaces (a container without the rights?)")


def _become_first(folder: pathlib.Path, body: Callable[[pathlib.Path], int]) -> None:
    status = 2
    try:
        _call("prctl", PR_SET_PDEATHSIG, signal.SIGKILL)
        os.setsid()  # a terminal would send SIGINT here too, beside the parent
        for number in SIGNALS:
            signal.signal(number, lambda *_: os._exit(128))
        _call("unshare", CLONE_NEWNS)
        command("mount", "--make-rprivate", "/")
        command("mount", "-t", "proc", "proc", "/proc")
        for place in (folder, NETNS):
            command("mount", "-t", "tmpfs", "tmpfs", place)
        status = body(folder)
    except Refusal as refusal:
        print(f"lab: {refusal}", file=sys.stderr)
    except BaseException as error:  # a fork must not return into its parent's code
        print(f"lab: {type(error).__name__}: {error}", file=sys.stderr)
        status = 70
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _wait_for(child: int) -> int:
    for number in SIGNALS:
        signal.signal(number, lambda sent, _: os.kill(child, sent))
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code
