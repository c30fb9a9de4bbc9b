"""The lab's command line."""

import argparse
import json
import os
import pathlib
import shutil
import sys

from labkit import job, network, probe, rate, sealed
from labkit.refusal import Refusal
from labkit.units import bits_per_s

EXAMPLES = """examples:
  tools/lab run --nodes 2 --devices 2 --rate 200mbit -- ./run grace run models/demo --cluster 2x2 --transport mpi --hosts {hosts} --prompt "The package"
  tools/lab probe --rate 1gbit
  tools/lab rate --record run.jsonl --ratio 7.5

{hosts} in the command becomes the hostfile of the nodes. Needs root, ip, tc and Open MPI. docs/lab.md tells what the lab can and cannot show."""
TOOLS = {"ip": "iproute2", "tc": "iproute2", "unshare": "util-linux", "mount": "mount", "hostname": "hostname", "mpirun": "openmpi-bin"}
REAL_TIME_TOOLS = ("chrt", "taskset")


def main(arguments: list[str]) -> int:
    args = _parser().parse_args(arguments)
    try:
        return args.action(args)
    except Refusal as refusal:
        print(f"lab: {refusal}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="lab", description="Emulated machines on this one, joined by links of a chosen rate.", epilog=EXAMPLES,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    _add_run(commands)
    _add_probe(commands)
    rate.add_command(commands)
    links = commands.add_parser("links", help="inside a lab's job: each link's bytes both ways so far, as JSON")
    links.set_defaults(action=_links)
    for name, text in {"cut": "inside a lab's job: cut a node off from the others", "join": "inside a lab's job: join a node that was cut off"}.items():
        command = commands.add_parser(name, help=text)
        command.add_argument("node", help="such as node1")
        command.set_defaults(action=_set_link)
    clean = commands.add_parser("clean", help="remove what a killed lab left: an empty directory each")
    clean.set_defaults(action=_clean)
    check = commands.add_parser("check", help="say in one line why a lab cannot run here; 0 when it can")
    check.set_defaults(action=_check)
    return parser


def _add_link(command: argparse.ArgumentParser) -> None:
    command.add_argument("--rate", required=True, help="of every link, in each direction: 200mbit, 2.5gbit")
    command.add_argument("--mtu", type=int, default=9000, help="bytes of a packet (default 9000; 1500 caps TCP at 95.6 %% of the rate)")


def _add_run(commands: argparse._SubParsersAction) -> None:
    command = commands.add_parser("run", help="run a command in the first node, with Open MPI reaching the others")
    command.add_argument("--nodes", type=int, default=2)
    command.add_argument("--devices", type=int, default=2, help="ranks of a node (default 2)")
    _add_link(command)
    command.add_argument("--pin", action="store_true", help="each rank on one core, with real-time priority and in turn with those that share it")
    command.add_argument("--json", metavar="FILE", help="write what was laid, how the job ended and each link's bytes both ways")
    command.add_argument("words", nargs=argparse.REMAINDER, metavar="-- COMMAND", help="{hosts} in it becomes the hostfile")
    command.set_defaults(action=_run)


def _add_probe(commands: argparse._SubParsersAction) -> None:
    command = commands.add_parser("probe", help="what plain TCP reaches through a link, as JSON")
    _add_link(command)
    command.add_argument("--seconds", type=float, default=2.0)
    command.set_defaults(action=_probe)
    end = commands.add_parser("probe-end", help=argparse.SUPPRESS)
    end.add_argument("arguments", nargs="+")
    end.set_defaults(action=_probe_end)


def _demand(*tools: str) -> None:
    if os.geteuid() != 0:
        raise Refusal("needs root: it makes network namespaces and shapes their links")
    for tool in tools:
        if shutil.which(tool) is None:
            raise Refusal(f"{tool} is not here: install {TOOLS.get(tool, 'util-linux')}")


def demand_lab() -> None:
    """Refuses where ranks cannot be measured: no root, or a tool is missing."""
    _demand(*TOOLS, *REAL_TIME_TOOLS)


def _link_of(args: argparse.Namespace) -> network.Link:
    if not 1280 <= args.mtu <= 65000:
        raise Refusal(f"--mtu: {args.mtu} is outside [1280, 65000]")
    return network.Link(bits_per_s(args.rate), args.mtu)


def _run(args: argparse.Namespace) -> int:
    words = args.words[1:] if args.words[:1] == ["--"] else args.words
    if not words:
        raise Refusal("run: no command after --")
    for name, value, highest in (("--nodes", args.nodes, network.MOST_NODES), ("--devices", args.devices, 64)):
        if not 1 <= value <= highest:
            raise Refusal(f"{name}: {value} is outside [1, {highest}]")
    link = _link_of(args)
    _demand(*TOOLS, *(REAL_TIME_TOOLS if args.pin else ()))
    wanted = job.Job(args.nodes, args.devices, words, args.pin)
    return sealed.in_sealed_place(lambda folder: job.run(wanted, link, folder, args.json))


def _probe(args: argparse.Namespace) -> int:
    link = _link_of(args)
    _demand(*(set(TOOLS) - {"mpirun"}), *REAL_TIME_TOOLS)

    def body(_: pathlib.Path) -> int:
        print(json.dumps(probe.measure(link, args.seconds), indent=1))
        return 0

    return sealed.in_sealed_place(body)


def _probe_end(args: argparse.Namespace) -> int:
    role, *rest = args.arguments
    told = probe.receive(int(rest[0]), float(rest[1])) if role == "receive" else probe.send(rest[0], int(rest[1]))
    print(json.dumps(told))
    return 0


def _nodes_here(command: str) -> int:
    nodes = os.environ.get(job.NODES_VARIABLE)
    if nodes is None:
        raise Refusal(f"{command}: not inside a lab's job")
    return int(nodes)


def _links(args: argparse.Namespace) -> int:
    print(json.dumps(network.link_counters(_nodes_here(args.command)), indent=1))
    return 0


def _set_link(args: argparse.Namespace) -> int:
    _nodes_here(args.command)
    network.set_link(args.node, up=args.command == "join")
    return 0


def _clean(_: argparse.Namespace) -> int:
    _demand()
    print("\n".join(sealed.remove_leftovers()) or "nothing was left")
    return 0


def _check(_: argparse.Namespace) -> int:
    """Lays two nodes and takes them down."""
    _demand(*TOOLS)

    def body(_: pathlib.Path) -> int:
        network.build(2, network.Link(10**9))
        sealed.command(*network.entering(network.node_name(0), ["true"]))
        return 0

    return sealed.in_sealed_place(body)
