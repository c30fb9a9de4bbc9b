"""Every section that a state folder can give: what is written depends on that folder alone."""

import pathlib
from collections.abc import Callable, Iterator

from labkit.exchange import curve, link, overlap, page, simulator, table


def tables_in(state: pathlib.Path) -> list[pathlib.Path]:
    return sorted(path.parent for path in state.glob(f"table-*/{table.SETTING_FILE}"))


def section_name(folder: pathlib.Path) -> str:
    return f"exchange-{folder.name.removeprefix('table-')}"


def sections(state: pathlib.Path) -> Iterator[tuple[str, Callable[[], str]]]:
    for folder in tables_in(state):
        yield section_name(folder), lambda folder=folder: table.section_text(folder)
    for module in (curve, link, overlap):
        name = module.__name__.rsplit(".", 1)[-1]
        if (state / name / module.ASKED_FILE).exists():
            yield f"exchange-{name}", lambda module=module, name=name: module.section_text(state / name)
    simulated = [folder for folder in tables_in(state) if (folder / simulator.SIMULATED_FILE).exists()]
    if simulated:
        yield "exchange-simulator", lambda: simulator.section_text(simulated)


def write_all(state: pathlib.Path, path: pathlib.Path) -> list[str]:
    """Returns the names of the sections."""
    names = []
    for name, text in sections(state):
        page.write_section(path, name, text())
        names.append(name)
    return names
