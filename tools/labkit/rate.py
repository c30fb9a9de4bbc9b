"""The link rate at which all-to-all over expert compute is a wanted ratio.

    all-to-all seconds = 8 B / (s R) + X L        ratio = all-to-all seconds / E

R  link rate, bits per second, of each direction
B  bytes through the busiest link in its busier direction, over all exchanges; headers of the program's included
s  share of the rate that arrives as payload (`lab probe`, `grace calibrate`)
X  number of exchanges, L  what one costs however few the bytes
E  expert seconds: in every step and layer the slowest rank's, added up

so R = 8 B / (s (ratio E - X L)), and no link reaches a ratio at or below X L / E.
"""

import argparse
import json
import pathlib
import re
from dataclasses import dataclass, replace

from labkit.refusal import Refusal
from labkit.units import bits_per_s, rate_text

EXCHANGES_PER_LAYER = 2  # dispatch and combine


@dataclass(frozen=True)
class Workload:
    busiest_bytes: float
    experts_s: float
    exchanges: int = 0


@dataclass(frozen=True)
class Path:
    share: float = 0.95
    latency_s: float = 0.0


def all_to_all_s(work: Workload, path: Path, rate: float) -> float:
    return 8 * work.busiest_bytes / (path.share * rate) + work.exchanges * path.latency_s


def ratio_at(work: Workload, path: Path, rate: float) -> float:
    return all_to_all_s(work, path, rate) / work.experts_s


def rate_for(work: Workload, path: Path, ratio: float) -> float:
    """Bits per second. Refuses a ratio that latency alone exceeds."""
    for_bytes = ratio * work.experts_s - work.exchanges * path.latency_s
    if for_bytes <= 0:
        raise Refusal(f"ratio {ratio:g}: the exchanges' latency alone is {work.exchanges * path.latency_s / work.experts_s:.3g} of the experts' time")
    return 8 * work.busiest_bytes / (path.share * for_bytes)


def of_record(path: str, phase: str) -> Workload:
    """From a run record (`grace run --record`): its prefill, its decode steps or all. Nodes as its cluster NxD says.

    The busiest link is the one that sends most; with two nodes one's sending is the other's receiving, so that is both directions.
    """
    lines = _lines(path)
    head = lines[0]
    shape = re.search(r"(\d+)x(\d+)$", str(head.get("cluster")))
    if not shape or int(shape[1]) * int(shape[2]) != head["ranks"]:
        raise Refusal(f"{path}:1: cluster '{head.get('cluster')}' is no NODESxDEVICES of {head['ranks']} ranks")
    devices, first_decode = int(shape[2]), head["steps"] - head["decode_steps"]
    wanted = {"prefill": range(first_decode), "decode": range(first_decode, head["steps"]), "all": range(head["steps"])}[phase]
    chosen = [line for line in lines[1:] if line["step"] in wanted]
    return Workload(_busiest(chosen, devices), _critical(chosen), EXCHANGES_PER_LAYER * head["layers"] * len(wanted))


def _lines(path: str) -> list[dict]:
    try:
        lines = [json.loads(line) for line in pathlib.Path(path).read_text().splitlines()]
    except (OSError, ValueError) as error:
        raise Refusal(f"{path}: {error}") from error
    needed = {"record", "cluster", "ranks", "steps", "layers", "decode_steps"}
    if not lines or not isinstance(lines[0], dict) or not needed <= set(lines[0]):
        raise Refusal(f"{path}: not a run record")
    return lines


def _busiest(lines: list[dict], devices: int) -> float:
    """In each exchange the most that one node sends, added up."""
    sent: dict[tuple, dict[int, int]] = {}
    for line in lines:
        for exchange in ("dispatch", "combine"):
            of_node = sent.setdefault((line["step"], line["layer"], exchange), {})
            node = line["rank"] // devices
            of_node[node] = of_node.get(node, 0) + line[exchange]["cross_node_payload"] + line[exchange]["cross_node_header"]
    return sum(max(of_node.values()) for of_node in sent.values())


def _critical(lines: list[dict]) -> float:
    slowest: dict[tuple, float] = {}
    for line in lines:
        key = (line["step"], line["layer"])
        slowest[key] = max(slowest.get(key, 0.0), line["experts_s"])
    return sum(slowest.values())


def add_command(commands: argparse._SubParsersAction) -> None:
    command = commands.add_parser("rate", help="the link rate at which all-to-all over expert compute is a ratio, as JSON", description=__doc__,
                                  formatter_class=argparse.RawDescriptionHelpFormatter)
    goal = command.add_mutually_exclusive_group(required=True)
    goal.add_argument("--ratio", type=float, help="all-to-all seconds over expert seconds, such as 2.3, 7.5 or 34")
    goal.add_argument("--rate", help="the other way round: the ratio at this rate")
    command.add_argument("--record", help="run record of plain expert parallelism (grace run --record): bytes, expert seconds, exchanges")
    command.add_argument("--phase", choices=("prefill", "decode", "all"), default="prefill", help="of the record (default prefill)")
    command.add_argument("--busiest-bytes", type=float, help="B; across two evenly loaded nodes half of all cross-node bytes")
    command.add_argument("--experts-seconds", type=float, help="E; in place of the record's when its ranks shared cores")
    command.add_argument("--exchanges", type=int, help="X")
    command.add_argument("--share", type=float, default=Path.share, help="s (default 0.95)")
    command.add_argument("--latency", type=float, default=Path.latency_s, help="L, seconds (default 0)")
    command.set_defaults(action=_rate)


def _workload(args: argparse.Namespace) -> Workload:
    known = of_record(args.record, args.phase) if args.record else Workload(0, 0)
    given = {"busiest_bytes": args.busiest_bytes, "experts_s": args.experts_seconds, "exchanges": args.exchanges}
    work = replace(known, **{name: value for name, value in given.items() if value is not None})
    for name, value in (("--busiest-bytes", work.busiest_bytes), ("--experts-seconds", work.experts_s)):
        if value <= 0:
            raise Refusal(f"rate: {name}: {value:g} must be above 0 (give it, or a --record that has it)")
    if work.exchanges < 0 or args.latency < 0 or not 0 < args.share <= 1:
        raise Refusal("rate: --exchanges and --latency must be at least 0, --share in (0, 1]")
    return work


def _rate(args: argparse.Namespace) -> int:
    work, path = _workload(args), Path(args.share, args.latency)
    if args.ratio is not None and args.ratio <= 0:
        raise Refusal(f"--ratio: {args.ratio:g} must be above 0")
    rate = rate_for(work, path, args.ratio) if args.ratio is not None else bits_per_s(args.rate)
    ratio = ratio_at(work, path, rate)
    print(json.dumps({"rate_bits_per_s": rate, "rate": rate_text(rate), "ratio": ratio, "share_of_moe_layer": ratio / (1 + ratio),
                      "all_to_all_s": all_to_all_s(work, path, rate), "experts_s": work.experts_s, "busiest_bytes": work.busiest_bytes,
                      "exchanges": work.exchanges, "payload_share": path.share, "latency_s": path.latency_s}, indent=1))
    return 0
