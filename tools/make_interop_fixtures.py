#!/usr/bin/env python3
"""Makes tests/fixtures/interop: small recordings, written by the libraries (and, where they can be run, by the engines'
own code) that write them in the field. Needs torch and numpy; see --help for the engines."""

import argparse
import collections
import io
import pathlib
import pickle
import zipfile

import numpy
import torch

ROOT = pathlib.Path(__file__).resolve().parent.parent / "tests" / "fixtures" / "interop"


def rezip(content: bytes, change) -> bytes:
    """A torch file whose members went through `change(name, bytes)`."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as new:
        for name in old.namelist():
            new.writestr(zipfile.ZipInfo(name), change(name, old.read(name)))
    return out.getvalue()


def on_cuda(content: bytes) -> bytes:
    """The same file as a process with a GPU saves it: storages tagged cuda:0."""
    tagged = (b"X\x03\x00\x00\x00cpu", b"X\x06\x00\x00\x00cuda:0")
    return rezip(content, lambda name, data: data.replace(*tagged) if name.endswith("data.pkl") else data)


def saved(value) -> bytes:
    out = io.BytesIO()
    torch.save(value, out)
    return out.getvalue()


def make_torch(folder: pathlib.Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    counted = torch.arange(24, dtype=torch.int32).reshape(2, 3, 4)
    tree = {
        "i32": counted,
        "i64": counted.long(),
        "i16": counted.short(),
        "u8": counted.byte(),
        "bf16": torch.tensor([0.5, -1.0], dtype=torch.bfloat16),
        "f32": torch.tensor(2.5),
        "turned": counted.permute(2, 0, 1),
        "part": counted[:, 1, 2:],
        "repeated": torch.tensor([7]).expand(3),
        "empty": torch.zeros(0, 5),
        "rank": 3,
        "none": None,
        "ratio": 0.25,
        "names": ["a", ("b", True)],
        "ordered": collections.OrderedDict(x=1),
    }
    (folder / "tree.pt").write_bytes(saved(tree))
    (folder / "tree_cuda.pt").write_bytes(on_cuda(saved(tree)))
    out = io.BytesIO()
    torch.save(tree["i32"], out, _use_new_zipfile_serialization=False)
    (folder / "before_1_6.pt").write_bytes(out.getvalue())


def make_pickles(folder: pathlib.Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    value = {
        "counters": [collections.Counter({numpy.int64(3): numpy.int64(40), numpy.int64(1): 2})],
        "default": collections.defaultdict(int, {"a": 1}),
        "array": numpy.arange(6, dtype=numpy.int32).reshape(2, 3),
        "scalar": numpy.float32(0.5),
        "big": 2**62 + 5,
        "negative": -(2**40),
        "text": "gr\u00e4ce\n'x'",
        "bytes": b"\x00\xff",
        "set": {5},
        "truth": [True, False, None],
        "long": list(range(3000)),
    }
    for protocol in range(6):
        (folder / f"protocol_{protocol}.pkl").write_bytes(pickle.dumps(value, protocol))


def make_numpy(folder: pathlib.Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    counted = numpy.arange(24, dtype=numpy.int64).reshape(2, 3, 4)
    arrays = dict(plain=counted, fortran=numpy.asfortranarray(counted), floats=numpy.array([0.5, -1], numpy.float32))
    numpy.savez(folder / "stored.npz", **arrays)
    numpy.savez_compressed(folder / "deflated.npz", **arrays)


MAKERS = {"torch": make_torch, "pickle": make_pickles, "numpy": make_numpy}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="*", default=sorted(MAKERS), help=", ".join(sorted(MAKERS)))
    for name in parser.parse_args().what:
        MAKERS[name](ROOT / name)


if __name__ == "__main__":
    main()
