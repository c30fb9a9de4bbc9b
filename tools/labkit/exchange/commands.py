"""The command line of the exchange's benchmarks."""

import argparse
import os
import pathlib
import sys
from collections.abc import Callable

from labkit.commands import demand_lab
from labkit.exchange import curve, link, page, table
from labkit.exchange.preparation import Bench
from labkit.exchange.program import Program
from labkit.exchange.settings import setting_of
from labkit.exchange.store import Store
from labkit.refusal import Refusal

ROOT = pathlib.Path(__file__).resolve().parents[3]
EXAMPLES = """examples:
  tools/exchange_benchmarks.py table --shape deepseek-v2-lite --routing out/deepseek-v2-lite.trace --ratio 7.5 --write docs/benchmarks.md
  tools/exchange_benchmarks.py table --shape olmoe --routing out/demo.trace --ratio 34 --dry-run

Every run is kept in --state at once: started again, a command takes up where it stopped. docs/lab.md tells more."""


def main(arguments: list[str]) -> int:
    args = _parser().parse_args(arguments)
    try:
        return args.action(args)
    except Refusal as refusal:
        print(f"exchange_benchmarks: {refusal}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("exchange_benchmarks: stopped; what was measured is kept", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="exchange_benchmarks.py", description="The exchange measured in the lab, strategy by strategy.", epilog=EXAMPLES,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    _add_table(commands)
    _add_curve(commands)
    _add_link(commands)
    return parser


def _add_common(command: argparse.ArgumentParser) -> None:
    command.add_argument("--state", type=pathlib.Path, default=ROOT / "out/exchange", metavar="DIR", help="where every run is kept (default out/exchange)")
    command.add_argument("--program", type=pathlib.Path, default=ROOT / "build/release/apps/grace/grace", help="default build/release/apps/grace/grace")
    command.add_argument("--write", type=pathlib.Path, metavar="FILE", help="the page whose section is replaced, such as docs/benchmarks.md")
    command.add_argument("--dry-run", action="store_true", help="only list what is missing, and about how long it takes")
    command.add_argument("--also", default="", metavar="WORDS", help="options for every grace bench")


def _add_table(commands: argparse._SubParsersAction) -> None:
    command = commands.add_parser("table", help="all strategies at one ratio of all-to-all to expert compute")
    command.add_argument("--shape", required=True, metavar="NAME", help="deepseek-v2-lite, olmoe, another that grace knows, or a config.json")
    command.add_argument("--routing", required=True, type=pathlib.Path, metavar="TRACE", help="what the gates choose: every second sequence is served, the others are planned from")
    command.add_argument("--ratio", required=True, type=float, help="of vanilla in prefill: 2.3, 7.5 or 34")
    command.add_argument("--workload", default="128/64/16", metavar="BATCH/PREFILL/DECODE", help="default 128/64/16")
    command.add_argument("--layers", type=int, default=2, help="MoE layers (default 2)")
    command.add_argument("--rounds", type=int, help="of each strategy (default 3; 1 when quick)")
    command.add_argument("--quick", action="store_true", help="vanilla, occult, grace and joint, a quarter of the batch")
    _add_common(command)
    command.set_defaults(action=_table)


def _table(args: argparse.Namespace) -> int:
    setting = setting_of(args.shape, args.ratio, args.workload, args.quick, args.layers)
    folder = args.state / f"table-{setting.name}"
    bench = Bench(_program(args), Store(folder), args.routing, tuple(args.also.split()))
    complete = table.run_table(bench, setting, table.rounds_of(setting, args.rounds), args.dry_run)
    return _tell(args, complete, f"exchange-{setting.name}", lambda: table.section_text(folder))


def _program(args: argparse.Namespace) -> Program:
    if not args.dry_run:
        demand_lab()
    return Program(args.program)


def _tell(args: argparse.Namespace, complete: bool, section: str, text: Callable[[], str]) -> int:
    """Writes or prints the section, unless nothing was to be measured."""
    if args.dry_run:
        return 0
    if args.write:
        page.write_section(args.write, section, text())
    else:
        print(text())
    return 0 if complete else 1


def _add_routing(command: argparse.ArgumentParser) -> None:
    command.add_argument("--routing", required=True, type=pathlib.Path, metavar="TRACE", help="what the gates choose")


def _add_curve(commands: argparse._SubParsersAction) -> None:
    command = commands.add_parser("curve", help="two stages against one over tokens per rank and link rates, and the automatic choice")
    _add_routing(command)
    command.add_argument("--rates", default=curve.RATES, help=f"default {curve.RATES}")
    command.add_argument("--most", type=int, default=curve.MOST_TOKENS, help=f"tokens of a rank (default {curve.MOST_TOKENS})")
    command.add_argument("--step", type=int, default=curve.STEP, help=f"from 1, times this (default {curve.STEP})")
    command.add_argument("--rounds", type=int, default=curve.ROUNDS, help=f"at each point (default {curve.ROUNDS})")
    _add_common(command)
    command.set_defaults(action=_curve)


def _curve(args: argparse.Namespace) -> int:
    folder = args.state / "curve"
    complete = curve.run_curve(_program(args), Store(folder), args.routing, args.rates, args.most, args.step, args.rounds, args.dry_run)
    return _tell(args, complete, "exchange-curve", lambda: curve.section_text(folder))


def _add_link(commands: argparse._SubParsersAction) -> None:
    command = commands.add_parser("link", help="payload as a share of the link's rate, plain all-to-all and two stages")
    _add_routing(command)
    command.add_argument("--rates", default=link.RATES, help=f"default {link.RATES}")
    command.add_argument("--rounds", type=int, default=link.ROUNDS, help=f"default {link.ROUNDS}")
    _add_common(command)
    command.set_defaults(action=_link)


def _link(args: argparse.Namespace) -> int:
    folder = args.state / "link"
    complete = link.run_links(_program(args), Store(folder), args.routing, args.rates, args.rounds, args.dry_run)
    return _tell(args, complete, "exchange-link", lambda: link.section_text(folder))
