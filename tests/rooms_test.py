"""Checks that every include between rooms stands in rooms.txt, and that the picture has no circle."""

import pathlib
import re
import sys

INCLUDE = re.compile(r'^\s*#\s*include\s+"grace/([a-z_]+)/')
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


def main() -> int:
    root = pathlib.Path(sys.argv[1])
    rooms = read_rooms(root / "rooms.txt")
    problems = circles(rooms) + forbidden_includes(root, rooms)
    print("\n".join(problems) or "rooms are in order")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
