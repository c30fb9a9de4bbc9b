"""`grace import` against recordings of known content, against what is malformed, and stopped half way (arguments: program,
source folder)."""

import json
import pathlib
import pickle
import signal
import struct
import subprocess
import sys
import tempfile
import time
import zipfile

PROGRAM, SOURCE = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
FIXTURES = SOURCE / "tests" / "fixtures" / "interop"
PROBLEMS = []


def check(condition: bool, what: str) -> None:
    if not condition:
        PROBLEMS.append(what)


def run(*arguments, **options) -> subprocess.CompletedProcess:
    words = [str(PROGRAM), "import", *map(str, arguments)]
    return subprocess.run(words, capture_output=True, text=True, timeout=300, check=False, **options)


def read_safetensors(path: pathlib.Path):
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8:8 + length])
    metadata, tensors = header.pop("__metadata__"), {}
    letters = {"U8": "B", "U16": "H", "I64": "q"}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        raw = data[8 + length:][begin:end]
        code = letters[entry["dtype"]]
        tensors[name] = (entry["dtype"], entry["shape"], struct.unpack(f"<{len(raw) // struct.calcsize(code)}{code}", raw))
    return metadata, tensors


def check_trace(path: pathlib.Path, expected: dict, name: str) -> None:
    metadata, tensors = read_safetensors(path)
    dtype, shape, ids = tensors["topk_ids"]
    not_routed = {"U8": 255, "U16": 65535}[dtype]
    flat = [not_routed if e < 0 else e for token in expected["trace"] for layer in token for e in layer]
    rows = expected["trace"]
    check(shape == [len(rows), len(rows[0]), len(rows[0][0])], f"{name}: shape {shape}")
    check(list(ids) == flat, f"{name}: other ids")
    check(json.loads(metadata["decoder_layers"]) == expected["layers"], f"{name}: layers {metadata['decoder_layers']}")
    check(int(metadata["num_experts"]) == expected["experts"], f"{name}: {metadata['num_experts']} experts")
    check(list(tensors["sequence_offsets"][2]) == expected["sequences"], f"{name}: sequences {tensors['sequence_offsets'][2]}")
    if "prompts" in expected:
        check(list(tensors["prompt_lengths"][2]) == expected["prompts"], f"{name}: prompts {tensors['prompt_lengths'][2]}")


def check_fixtures(scratch: pathlib.Path) -> int:
    count = 0
    for path in sorted(FIXTURES.glob("*/*.expected.json")):
        expected, name = json.loads(path.read_text()), str(path.relative_to(FIXTURES))
        out = scratch / "out"
        files = [path.parent / file for file in expected["files"]]
        done = run(*files, *expected["args"], "--out", out, "--json")
        check(done.returncode == 0, f"{name}: {done.stderr}")
        if done.returncode != 0:
            continue
        said = json.loads(done.stdout)
        for warning in expected["warnings"]:
            check(any(warning in line for line in said["warnings"]), f"{name}: no warning of {warning}: {said['warnings']}")
        if "trace" in expected:
            check(said["kind"] == "trace", f"{name}: {said['kind']}")
            check_trace(out, expected, name)
        else:
            profile = json.loads(out.read_text())
            check(profile["loads"] == expected["loads"], f"{name}: loads {profile['loads']}")
            check(profile["decoder_layers"] == expected["layers"], f"{name}: layers {profile['decoder_layers']}")
            check(profile["num_experts"] == expected["experts"], f"{name}: {profile['num_experts']} experts")
        again = run(*files, *expected["args"], "--out", scratch / "again", "--from", said["format"])
        check(again.returncode == 0 and (scratch / "again").read_bytes() == out.read_bytes(), f"{name}: another result by --from")
        check("Next: grace compare" in again.stdout, f"{name}: no next step")
        out.unlink()
        count += 1
    return count


class Call:
    """What a hostile pickle would run."""

    def __reduce__(self):
        return print, ("called",)


def torch_file(path: pathlib.Path, value_pickle: bytes, storages=()) -> pathlib.Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("archive/data.pkl", value_pickle)
        archive.writestr("archive/byteorder", "little")
        for key, data in storages:
            archive.writestr(f"archive/data/{key}", data)
    return path


def tensor_pickle(key: str, storage: str, elements: int, shape, stride) -> bytes:
    """A bare tensor, as torch.save pickles it, spelt by hand: protocol 2, no memo."""
    def integer(value: int) -> bytes:
        return b"\x8a\x08" + struct.pack("<q", value)

    def text(value: str) -> bytes:
        return b"X" + struct.pack("<I", len(value)) + value.encode()

    def numbers(values) -> bytes:
        return b"(" + b"".join(map(integer, values)) + b"t"

    identity = b"(" + text("storage") + f"ctorch\n{storage}\n".encode() + text(key) + text("cpu") + integer(elements) + b"tQ"
    return (b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n(" + identity + integer(0) + numbers(shape) + numbers(stride) +
            b"\x89ccollections\nOrderedDict\n)RtR.")


def recorder_pickle(key: str, storage: str, elements: int, shape, stride) -> bytes:
    """{"rank": 0, "logical_count": the tensor}, as SGLang's recorder saves it."""
    tensor = tensor_pickle(key, storage, elements, shape, stride)[2:-1]
    return b"\x80\x02}(X\x04\x00\x00\x00rankK\x00X\x0d\x00\x00\x00logical_count" + tensor + b"u."


def check_counters(scratch: pathlib.Path) -> None:
    """What SGLang's counters show, whoever reads them: one full row, ranks that count the same, dense rows."""
    def loads(rows, *arguments):
        flat = [count for row in rows for count in row]
        shape, stride = [1, len(rows), len(rows[0])], [len(flat), len(rows[0]), 1]
        path = torch_file(scratch / "expert_distribution_recorder_1.pt", recorder_pickle("0", "IntStorage", len(flat), shape, stride),
                          [("0", struct.pack(f"<{len(flat)}i", *flat))])
        done = run(path, *arguments, "--out", scratch / "counters.json", "--json")
        if done.returncode != 0:
            return done.stderr, None
        return json.loads(done.stdout)["warnings"], json.loads((scratch / "counters.json").read_text())

    warnings, profile = loads([[8, 8, 8, 8], [0, 0, 0, 0], [0, 0, 0, 0]])
    check(any("all assignments are in layer 0" in line for line in warnings), f"one full row: {warnings}")
    check(profile["decoder_layers"] == [0], f"one full row: {profile}")
    warnings, profile = loads([[8, 8, 8, 8], [0, 0, 0, 0], [0, 0, 0, 0]], "--layers", "0-2")
    check(any("layer 1 has no assignment" in line for line in warnings), f"known MoE layers: {warnings}")
    check(profile["decoder_layers"] == [0, 1, 2], f"known MoE layers: {profile}")
    warnings, profile = loads([[0, 0, 0, 0], [8, 4, 2, 2], [4, 4, 4, 4]], "--same-tokens", "2", "--top-k", "2")
    check(profile["loads"] == [[4, 2, 1, 1], [2, 2, 2, 2]], f"same tokens: {profile}")
    check(profile["experts_per_token"] == 2, f"same tokens: {profile}")
    said, _ = loads([[1, 0], [1, 0]], "--same-tokens", "2")
    check("do not divide by 2" in said, f"same tokens: {said}")
    said, _ = loads([[1, -5], [1, 0]])
    check("-5" in said, f"negative: {said}")


def malformed(scratch: pathlib.Path):
    """Files, further arguments, and what the one line must say."""
    def file(name: str, content) -> pathlib.Path:
        path = scratch / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    line = '{"step":0,"layer":3,"num_tokens":1,"topk":2,"top_indices":[[0,3]]}'
    yield [torch_file(scratch / "call.pt", pickle.dumps({"records": Call()}, 2))], ["--from", "sglang"], "print"
    yield [file("call.pkl", pickle.dumps([Call()], 4))], [], "builtins.print"
    yield [file("system.pkl", b"cos\nsystem\n(S'true'\ntR.")], [], "os.system"
    data = struct.pack("<4q", 1, 2, 3, 4)
    yield [torch_file(scratch / "lies.pt", tensor_pickle("0", "LongStorage", 400, [2, 2], [2, 1]), [("0", data)])], ["--from", "ascend"], "says 400"
    yield [torch_file(scratch / "over.pt", tensor_pickle("0", "LongStorage", 4, [2, 3], [3, 1]), [("0", data)])], ["--from", "ascend"], "reaches over"
    yield [torch_file(scratch / "huge.pt", tensor_pickle("0", "LongStorage", 4, [2**62, 2**62], [0, 0]), [("0", data)])], ["--from", "ascend"], "reaches over"
    yield [torch_file(scratch / "repeats.pt", tensor_pickle("0", "LongStorage", 4, [2**20, 2**20], [0, 0]), [("0", data)])], ["--from", "ascend"], "repeats 4"
    negative = struct.pack("<4q", 1, -2, 3, 4)
    yield [torch_file(scratch / "negative.pt", tensor_pickle("0", "LongStorage", 4, [2, 2], [2, 1]), [("0", negative)])], ["--from", "ascend"], "-2"
    nan = struct.pack("<4f", 1, float("nan"), 3, 4)
    yield [torch_file(scratch / "nan.pt", tensor_pickle("0", "FloatStorage", 4, [2, 2], [2, 1]), [("0", nan)])], ["--from", "ascend"], "nan"
    yield [file("twice.jsonl", line[:-1] + ',"step":1}')], [], "key step occurs twice"
    yield [file("ragged.jsonl", line.replace("[[0,3]]", "[[0,3],[1]]"))], [], "unequal length"
    yield [file("cut.jsonl", line[:-4])], [], "cut.jsonl:1"
    yield [file("float.jsonl", line.replace("3]]", "3.5]]"))], [], "whole numbers"
    yield [file("ragged.json", '{"prompt_routed_experts":[[[0,1],[2,3]],[[0,1]]]}')], [], "1 layers, others have 2"
    yield [file("text.json", '{"prompt_routed_experts":[[["a"]]]}')], [], "not an expert's id"
    yield [file("base64.json", '{"choices":[{"routed_experts":"!!!!"}]}')], [], "no base64"
    yield [file("cut.gguf", (FIXTURES / "llama-imatrix" / "imatrix.gguf").read_bytes()[:300])], [], "cut.gguf"
    yield [file("huge.gguf", b"GGUF" + struct.pack("<IQQ", 3, 2**60, 2**60))], [], "do not fit"
    yield [file("huge.npy", b"\x93NUMPY\x01\x00" + struct.pack("<H", 62) +
                b"{'descr':'<i8','fortran_order':False,'shape':(9999999999,99)}".ljust(62))], [], "does not take"
    yield [file("nan.npy", b"\x93NUMPY\x01\x00" + struct.pack("<H", 62) +
                b"{'descr':'<f4','fortran_order':False,'shape':(1,2)}".ljust(62) + struct.pack("<2f", 1, float("inf")))], [], "inf"
    yield [file("x.csv", "layer_id,expert_id,count\n0,0,-1\n")], [], "x.csv:2"
    yield [file("history.json", '{"load_history":[{"logical_expert_load":[[1,2],[3]]}]}')], [], "others have 2 experts"
    folder = scratch / "statistic"
    folder.mkdir()
    (folder / "meta_info.json").write_text('{"num_experts": 5, "num_experts_per_token": 2}')
    (folder / "rank0.safetensors").write_bytes((FIXTURES / "tensorrt-llm" / "expert_statistic" / "rank0.safetensors").read_bytes())
    yield [folder], [], "must be [5]"
    yield [FIXTURES / "sglang" / "generate.json"], [], "--top-k"
    yield [FIXTURES / "ascend" / "moe_load.pt"], [], "expert map"
    yield [FIXTURES / "counts" / "counts.csv"], ["--layers", "1-x"], "--layers"
    yield [FIXTURES / "counts" / "counts.csv"], ["--layers", "1"], "1 layers, but"
    yield [FIXTURES / "counts" / "counts.csv"], ["--phase", "both"], "--phase"
    yield [FIXTURES / "counts" / "counts.csv"], ["--same-tokens", "7"], "do not divide by 7"


def check_malformed(scratch: pathlib.Path) -> int:
    count = 0
    for files, arguments, says in malformed(scratch):
        done = run(*files, *arguments, "--out", scratch / "out")
        name = f"{files[0].name} {' '.join(arguments)}"
        check(done.returncode == 2, f"{name}: exit {done.returncode}: {done.stdout}{done.stderr}")
        check(done.stderr.count("\n") == 1 and done.stdout == "", f"{name}: not one line: {done.stderr!r}")
        check(says in done.stderr, f"{name}: does not say {says!r}: {done.stderr}")
        left = [path for path in scratch.iterdir() if path.name.startswith("out")]
        check(not left, f"{name}: leaves {left}")
        count += 1
    return count


def check_interrupt(scratch: pathlib.Path) -> None:
    """Ctrl-C in the middle: no half file, and the exit code of a signal."""
    source, folder = scratch / "long.jsonl", scratch / "target"
    folder.mkdir()
    rows = ",".join("[%d,%d,%d,%d]" % (i % 60, i % 60 + 1, i % 60 + 2, i % 60 + 3) for i in range(4096))
    with source.open("w") as out:
        for step in range(1500):
            out.write('{"step":%d,"layer":0,"num_tokens":4096,"topk":4,"top_indices":[%s]}\n' % (step, rows))
    process = subprocess.Popen([PROGRAM, "import", source, "--num-experts", "64", "--out", folder / "t.trace"],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while process.poll() is None and not any(folder.iterdir()):
        time.sleep(0.001)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    left = list(folder.iterdir())
    if process.returncode == 0:  # it was quicker
        check([path.name for path in left] == ["t.trace"], f"interrupt: {left}")
        return
    check(process.returncode == 130, f"interrupt: exit {process.returncode}: {said}")
    check(not left, f"interrupt: leaves {left}")
    check("nothing was written" in said, f"interrupt: {said}")


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        scratch = pathlib.Path(folder)
        fixtures = check_fixtures(scratch)
        check(fixtures >= 18, f"only {fixtures} fixtures")
        bad = scratch / "bad"
        bad.mkdir()
        refused = check_malformed(bad)
        check_counters(scratch)
        check_interrupt(scratch)
    print("\n".join(PROBLEMS) or f"{fixtures} recordings read, {refused} malformed ones refused")
    return 1 if PROBLEMS else 0


if __name__ == "__main__":
    sys.exit(main())
