"""What was measured, each run in a file of its own: a benchmark that was stopped takes up where it was.

A file is named after its run and a key, which is a hash of everything that the outcome depends on: the program's bytes, its options, the bytes
of the files that they name, the link. Change any of them and the old file is no longer found, so that rows of different programs are not mixed.
"""

import functools
import hashlib
import json
import os
import pathlib
import re

from labkit.refusal import Refusal

KEY_DIGITS = 12


def key_of(*parts: object) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:KEY_DIGITS]


def hash_of_file(path: str | os.PathLike) -> str:
    try:
        state = os.stat(path)
        return _hash_of_state(os.fspath(path), state.st_mtime_ns, state.st_size)
    except OSError as error:
        raise Refusal(f"{path}: {error.strerror}") from error


@functools.cache
def _hash_of_state(path: str, _time: int, _size: int) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_atomically(path: pathlib.Path, content: str | bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.write_bytes(content.encode() if isinstance(content, str) else content)
    os.replace(beside, path)


class Store:
    """A folder of JSON files NAME.KEY.json. A file is whole or not there."""

    def __init__(self, folder: pathlib.Path):
        self.folder = folder

    def path(self, name: str, key: str) -> pathlib.Path:
        return self.folder / f"{re.sub(r'[^A-Za-z0-9@._-]', '_', name)}.{key}.json"

    def get(self, name: str, key: str) -> dict | None:
        path = self.path(name, key)
        try:
            return json.loads(path.read_text())
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise Refusal(f"{path}: {error}: remove it to measure anew") from error

    def put(self, name: str, key: str, value: dict) -> None:
        write_atomically(self.path(name, key), json.dumps(value, indent=1) + "\n")
