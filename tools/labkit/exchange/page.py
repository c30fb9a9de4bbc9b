"""Sections of docs/benchmarks.md, marked as the program marks its own, and their tables."""

import pathlib
import statistics
from collections.abc import Sequence

from labkit.exchange.store import write_atomically

TITLE = "# Benchmarks\n\nEach section is written by the command that it names.\n"


def with_section(page: str, name: str, body: str) -> str:
    """The page with the section of that name replaced, or added at its end."""
    begin, end = f"<!-- section {name} -->", f"<!-- end {name} -->"
    section = f"{begin}\n{body}\n{end}"
    start = page.find(begin)
    stop = page.find(end, start) if start >= 0 else -1
    if stop >= 0:
        return page[:start] + section + page[stop + len(end):]
    return f"{page or TITLE}\n{section}\n"


def write_section(path: pathlib.Path, name: str, text: str) -> None:
    page = path.read_text() if path.exists() else ""
    write_atomically(path, with_section(page, name, f"## {name}\n\n{text}"))


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [columns, ["---", *["---:"] * (len(columns) - 1)], *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def spread(values: Sequence[float], digits: int = 1) -> str:
    """Median (lowest..highest)."""
    if not values:
        return "-"
    middle = f"{statistics.median(values):.{digits}f}"
    if len(values) == 1 or min(values) == max(values):
        return middle
    return f"{middle} ({min(values):.{digits}f}..{max(values):.{digits}f})"


def path_words(path: pathlib.Path) -> str:
    """As it was given; where that is this machine's own affair, the name alone."""
    return path.name if path.is_absolute() else str(path)


def rate_words(rate: float) -> str:
    return f"{rate / 1e9:.3g} gbit/s" if rate >= 1e9 else f"{rate / 1e6:.3g} mbit/s"
