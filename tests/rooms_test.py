"""Checks that every include between rooms stands in rooms.txt, that the picture has no circle, and that no GRACE_TRY stands in braces."""

import pathlib
import re
import sys

INCLUDE = re.compile(r'^\s*#\s*include\s+"grace/([a-z_]+)/')
NOT_CODE = re.compile(r"""R"(\w*)\((?:.|\n)*?\)\1"|"(?:\\.|[^"\\\n])*"|//[^\n]*|'(?:\\.[^'\n]*|[^'\\\n])'""")
OPENS_BLOCK = re.compile(r"(\)|\b(?:else|do|try|const|noexcept|override|mutable)|[;{}:]|->\s*[\w:<>, *&]+)$")
FOREIGN = {"mpi.h": "comm/mpi", "cuda_runtime.h": "kernels/cuda", "nccl.h": "comm/nccl"}


def read_rooms(path: pathlib.Path) -> dict[str, set[str]]:
    rooms = {}
    for line in path.read_text().splitlines():
        line = line.split("#")[0].strip()
        if line:
            room, uses = line.split(":")
            rooms[room.strip()] = set(uses.split())
    return rooms


def circles(rooms: dict[str, set[str]]) -> list[str]:
    done: set[str] = set()
    found: list[str] = []

    def visit(room: str, path: tuple[str, ...]) -> None:
        if room in path:
            found.append("circle: " + " -> ".join(path[path.index(room):] + (room,)))
        elif room not in done:
            for used in sorted(rooms.get(room, ())):
                visit(used, path + (room,))
            done.add(room)

    for room in sorted(rooms):
        visit(room, ())
    return found


def forbidden_includes(root: pathlib.Path, rooms: dict[str, set[str]]) -> list[str]:
    found = []
    for folder, room_of in ((root / "src/grace", lambda p: p.relative_to(root / "src/grace").parts[0]), (root / "apps", lambda p: "apps"),
                            (root / "python", lambda p: "python")):
        for path in sorted(p for p in folder.rglob("*") if p.suffix in (".h", ".cc")):
            room = room_of(path)
            for number, line in enumerate(path.read_text().splitlines(), 1):
                place = f"{path.relative_to(root)}:{number}"
                match = INCLUDE.match(line)
                if match and match[1] != room and match[1] not in rooms.get(room, set()):
                    found.append(f"{place}: {room} may not use {match[1]} (rooms.txt)")
                for header, home in FOREIGN.items():
                    if f"<{header}>" in line and home not in str(path):
                        found.append(f"{place}: <{header}> belongs in {home} alone")
    return found


def braced_tries(text: str) -> list[int]:
    """The lines of each GRACE_TRY inside a braced initialiser: its return leaks what was built before it (g++ 12)."""
    text = NOT_CODE.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)
    found: list[int] = []
    open_at: list[int] = []
    for match in re.finditer(r"GRACE_TRY\b|[(){}]", text):
        if match[0] in "({":
            open_at.append(match.start())
        elif match[0] in ")}":
            open_at = open_at[:-1]
        else:
            brace = next((at for at in reversed(open_at) if text[at] == "{"), None)
            if brace is not None and not OPENS_BLOCK.search(text[:brace][-80:].rstrip()):
                found.append(text.count("\n", 0, match.start()) + 1)
    return found


def leaks(root: pathlib.Path) -> list[str]:
    paths = sorted(p for folder in ("src", "apps", "python") for p in (root / folder).rglob("*") if p.suffix in (".h", ".cc"))
    return [f"{path.relative_to(root)}:{line}: GRACE_TRY in braces leaks what stands before it; make a local of it"
            for path in paths for line in braced_tries(path.read_text())]


def main() -> int:
    root = pathlib.Path(sys.argv[1])
    rooms = read_rooms(root / "rooms.txt")
    problems = circles(rooms) + forbidden_includes(root, rooms) + leaks(root)
    print("\n".join(problems) or "rooms are in order")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
