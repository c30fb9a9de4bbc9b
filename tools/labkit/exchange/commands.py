"""The command line of the exchange's benchmarks."""

import argparse
import pathlib
import sys
from collections.abc import Callable

from labkit.commands import demand_lab
from labkit.exchange import curve, link, overlap, page, report, simulator, table
from labkit.exchange.preparation import Bench
from labkit.exchange.program import Program
from labkit.exchange.settings import PUBLISHED, Setting, setting_of
from labkit.exchange.store import Store
from labkit.refusal import Refusal

ROOT = pathlib.Path(__file__).resolve().parents[3]
EXAMPLES = """examples:
  tools/exchange_benchmarks.py all --routing deepseek-v2-lite=out/deepseek-v2-lite.trace --routing olmoe=out/demo.trace --write docs/benchmarks.md
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
    for add in (_add_all, _add_table, _add_curve, _add_link, _add_overlap, _add_simulator, _add_report):
        add(commands)
    return parser


Action = Callable[[argparse.Namespace], int]


def _add_command(commands: argparse._SubParsersAction, name: str, action: Action, text: str, measures: bool = True) -> argparse.ArgumentParser:
    command = commands.add_parser(name, help=text, description=text)
    command.add_argument("--state", type=pathlib.Path, default=ROOT / "out/exchange", metavar="DIR", help="where every run is kept (default out/exchange)")
    command.add_argument("--write", type=pathlib.Path, metavar="FILE", help="the page whose sections are replaced, such as docs/benchmarks.md")
    if measures:
        command.add_argument("--program", type=pathlib.Path, default=ROOT / "build/release/apps/grace/grace", help="default build/release/apps/grace/grace")
        command.add_argument("--dry-run", action="store_true", help="only list what is missing, and about how long it takes")
    command.set_defaults(action=action)
    return command


def _add_routing(command: argparse.ArgumentParser) -> None:
    command.add_argument("--routing", required=True, type=pathlib.Path, metavar="TRACE",
                         help="what the gates choose: every second sequence is served, the others are planned from")


def _add_table_options(command: argparse.ArgumentParser) -> None:
    command.add_argument("--layers", type=int, default=2, help="MoE layers (default 2)")
    command.add_argument("--rounds", type=int, help="of each strategy (default 3; 1 when quick)")
    command.add_argument("--quick", action="store_true", help="vanilla, occult, grace and joint, a quarter of the batch")
    command.add_argument("--also", default="", metavar="WORDS", help="options for every grace bench")


def _add_all(commands: argparse._SubParsersAction) -> None:
    command = _add_command(commands, "all", _all, "every table, then curve, link, overlap and simulator; when quick the tables alone")
    command.add_argument("--routing", required=True, action="append", metavar="SHAPE=TRACE", help="a shape and what its gates choose; once for each shape")
    _add_table_options(command)


def _all(args: argparse.Namespace) -> int:
    routings = {}
    for word in args.routing:
        shape, equals, path = word.partition("=")
        if not equals:
            raise Refusal(f"--routing: '{word}' is no SHAPE=TRACE")
        routings[shape] = pathlib.Path(path)
    program = _program(args)
    complete = True
    for shape, path in routings.items():
        for ratio, workload in PUBLISHED:
            complete &= _run_table(args, program, setting_of(shape, ratio, workload, args.quick, args.layers), path)
            _report(args)
    if args.quick:
        return 0 if complete or args.dry_run else 1
    shape, path = next(iter(routings.items()))
    complete &= curve.run_curve(program, Store(args.state / "curve"), path, curve.RATES, curve.MOST_TOKENS, curve.STEP, curve.ROUNDS, args.dry_run)
    complete &= link.run_links(program, Store(args.state / "link"), path, link.RATES, link.ROUNDS, args.dry_run)
    try:
        complete &= overlap.run_overlap(program, Store(args.state / "overlap"), path, shape, overlap.RATES, overlap.ROUNDS, args.dry_run)
    except Refusal as refusal:  # the rest is worth having
        print(f"exchange_benchmarks: {refusal}", file=sys.stderr)
        complete = False
    if not args.dry_run:
        _simulate(args, program)
    _report(args)
    return 0 if complete or args.dry_run else 1


def _program(args: argparse.Namespace) -> Program:
    if not args.dry_run:
        demand_lab()
    return Program(args.program)


def _add_table(commands: argparse._SubParsersAction) -> None:
    command = _add_command(commands, "table", _table, "all strategies at one ratio of all-to-all to expert compute")
    command.add_argument("--shape", required=True, metavar="NAME", help="deepseek-v2-lite, olmoe, another that grace knows, or a config.json")
    _add_routing(command)
    command.add_argument("--ratio", required=True, type=float, help="of vanilla in prefill: 2.3, 7.5 or 34")
    command.add_argument("--workload", default="128/64/16", metavar="BATCH/PREFILL/DECODE", help="default 128/64/16")
    _add_table_options(command)


def _table_folder(args: argparse.Namespace, setting: Setting) -> pathlib.Path:
    return args.state / f"table-{setting.name}"


def _run_table(args: argparse.Namespace, program: Program, setting: Setting, routing: pathlib.Path) -> bool:
    bench = Bench(program, Store(_table_folder(args, setting)), Store(args.state / table.SHARED), routing, tuple(args.also.split()))
    return table.run_table(bench, setting, table.rounds_of(setting, args.rounds), args.dry_run)


def _table(args: argparse.Namespace) -> int:
    setting = setting_of(args.shape, args.ratio, args.workload, args.quick, args.layers)
    complete = _run_table(args, _program(args), setting, args.routing)
    folder = _table_folder(args, setting)
    return _tell(args, complete, report.section_name(folder), lambda: table.section_text(folder))


def _tell(args: argparse.Namespace, complete: bool, section: str, text: Callable[[], str]) -> int:
    """Writes or prints the section, unless nothing was to be measured."""
    if args.dry_run:
        return 0
    if args.write:
        page.write_section(args.write, section, text())
    else:
        print(text())
    return 0 if complete else 1


def _add_curve(commands: argparse._SubParsersAction) -> None:
    command = _add_command(commands, "curve", _curve, "two stages against one over tokens per rank and link rates, and the automatic choice")
    _add_routing(command)
    command.add_argument("--rates", default=curve.RATES, help=f"default {curve.RATES}")
    command.add_argument("--most", type=int, default=curve.MOST_TOKENS, help=f"tokens of a rank (default {curve.MOST_TOKENS})")
    command.add_argument("--step", type=int, default=curve.STEP, help=f"from 1, times this (default {curve.STEP})")
    command.add_argument("--rounds", type=int, default=curve.ROUNDS, help=f"at each point (default {curve.ROUNDS})")


def _curve(args: argparse.Namespace) -> int:
    folder = args.state / "curve"
    complete = curve.run_curve(_program(args), Store(folder), args.routing, args.rates, args.most, args.step, args.rounds, args.dry_run)
    return _tell(args, complete, "exchange-curve", lambda: curve.section_text(folder))


def _add_link(commands: argparse._SubParsersAction) -> None:
    command = _add_command(commands, "link", _link, "payload as a share of the link's rate, plain all-to-all and two stages")
    _add_routing(command)
    command.add_argument("--rates", default=link.RATES, help=f"default {link.RATES}")
    command.add_argument("--rounds", type=int, default=link.ROUNDS, help=f"default {link.ROUNDS}")


def _link(args: argparse.Namespace) -> int:
    folder = args.state / "link"
    complete = link.run_links(_program(args), Store(folder), args.routing, args.rates, args.rounds, args.dry_run)
    return _tell(args, complete, "exchange-link", lambda: link.section_text(folder))


def _add_overlap(commands: argparse._SubParsersAction) -> None:
    command = _add_command(commands, "overlap", _overlap, "what overlap hides, one rank a core, on and off in turn")
    _add_routing(command)
    command.add_argument("--shape", default="deepseek-v2-lite", metavar="NAME", help="default deepseek-v2-lite")
    command.add_argument("--rates", default=overlap.RATES, help=f"default {overlap.RATES}")
    command.add_argument("--rounds", type=int, default=overlap.ROUNDS, help=f"default {overlap.ROUNDS}")


def _overlap(args: argparse.Namespace) -> int:
    folder = args.state / "overlap"
    complete = overlap.run_overlap(_program(args), Store(folder), args.routing, args.shape, args.rates, args.rounds, args.dry_run)
    return _tell(args, complete, "exchange-overlap", lambda: overlap.section_text(folder))


def _add_simulator(commands: argparse._SubParsersAction) -> None:
    _add_command(commands, "simulator", _simulator, "the simulator, fed with what the lab calibrated, against every table that was measured")


def _simulate(args: argparse.Namespace, program: Program) -> list[pathlib.Path]:
    folders = report.tables_in(args.state)
    for folder in folders:
        simulator.simulate_all(program, folder)
    return folders


def _simulator(args: argparse.Namespace) -> int:
    if args.dry_run:
        print("\n".join(str(folder) for folder in report.tables_in(args.state)) or "no tables")
        return 0
    folders = _simulate(args, Program(args.program))
    if not folders:
        raise Refusal(f"{args.state}: no tables were measured")
    return _tell(args, True, "exchange-simulator", lambda: simulator.section_text(folders))


def _add_report(commands: argparse._SubParsersAction) -> None:
    _add_command(commands, "report", _report, "writes every section that the state folder can give, and measures nothing", measures=False)


def _report(args: argparse.Namespace) -> int:
    if getattr(args, "dry_run", False):
        return 0
    if args.write:
        names = report.write_all(args.state, args.write)
        print(f"{args.write}: {', '.join(names) or 'nothing'} written")
    elif args.command == "report":
        print("\n\n".join(text() for _, text in report.sections(args.state)))
    return 0
