#!/usr/bin/env python3
"""Makes tests/fixtures/interop: small recordings, written by the libraries (and, where they can be run, by the engines'
own code) that write them in the field. Needs torch and numpy; see --help for the engines."""

import argparse
import base64
import collections
import importlib.util
import io
import json
import pathlib
import pickle
import shutil
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


def expect(folder: pathlib.Path, name: str, files, args=(), warnings=(), **result) -> None:
    """One import and what must come of it; `trace`: [T][M][K] with -1 for what is not routed."""
    expected = {"files": list(files), "args": list(args), "warnings": list(warnings), **result}
    text = json.dumps(expected, separators=(",", ":"))
    (folder / f"{name}.expected.json").write_text(text + "\n")


def draw(rng, tokens: int, layers: int, experts: int, k: int) -> numpy.ndarray:
    """Choices [tokens, layers, k], distinct and ascending for each token."""
    return numpy.array([[sorted(rng.choice(experts, k, replace=False)) for _ in range(layers)] for _ in range(tokens)])


def loads_of(choices: numpy.ndarray, experts: int) -> list:
    return [numpy.bincount(choices[:, layer].ravel(), minlength=experts).tolist() for layer in range(choices.shape[1])]


def make_sglang(folder: pathlib.Path, sources: pathlib.Path) -> None:
    """Three decoder layers, the first dense; 6 experts in 8 slots; two ranks."""
    import interop_engines as engines

    rng = numpy.random.default_rng(1)
    slots = [[0, 1, 2, 3, 4, 5, 0, 1], [5, 4, 3, 2, 1, 0, 5, 4], [0, 1, 2, 3, 4, 5, 2, 3]]
    owner = numpy.array(slots)
    passes = [(1, [3, 2], 5), (2, None, 2), (1, [4], 4)]  # forward mode, lengths, tokens
    names = {}
    for mode in ("stat", "per_pass", "per_token"):
        tokens = []
        for rank in (0, 1):
            for old in folder.glob("expert_distribution_recorder_*.pt"):
                old.unlink()
            recorder = engines.sglang_recorder(sources, mode, folder, slots, 6, rank)
            for number, (forward_mode, lengths, count) in enumerate(passes):
                physical = numpy.empty((count, 2, 3), dtype=int)
                for token in range(count):
                    for m in range(2):
                        while True:  # two slots of one expert are never chosen together
                            physical[token, m] = rng.choice(8, 3, replace=False)
                            if len(set(owner[m + 1][physical[token, m]])) == 3:
                                break
                layers = {m + 1: physical[:, m].tolist() for m in range(2)}
                engines.sglang_pass(recorder, number, forward_mode, lengths, layers)
                logical = numpy.stack([owner[m + 1][physical[:, m]] for m in range(2)], axis=1)
                tokens.append(logical)
            if mode == "stat" and rank == 1:
                tokens = tokens[: len(passes)]
                continue
            recorder.dump_record()
            written = next(folder.glob("expert_distribution_recorder_*.pt"))
            names[mode, rank] = f"{mode}_rank{rank}.pt"
            content = written.read_bytes()
            written.unlink()
            (folder / names[mode, rank]).write_bytes(on_cuda(content) if mode == "stat" else content)
        logical = numpy.concatenate(tokens)
        if mode == "per_token":
            expect(folder, mode, [names[mode, 0], names[mode, 1]], layers=[1, 2], experts=6, trace=logical.tolist(),
                   sequences=[0, 3, 5, 7, 11, 14, 16, 18, 22], warnings=["taken as dense", "decode passes"])
        else:
            files = [names[mode, rank] for rank in (0, 1) if (mode, rank) in names]
            expect(folder, mode, files, layers=[1, 2], experts=6, loads=loads_of(logical, 6), warnings=["taken as dense"])
    # An answer of the API, by hand: [prompt + generated - 1, decoder layers, K], dense layers as zeros.
    choices = draw(rng, 4, 2, 6, 3)
    flat = numpy.concatenate([numpy.zeros((4, 1, 3), dtype=int), choices], axis=1).astype("<i4")
    answer = {"text": "x", "meta_info": {"prompt_tokens": 3, "completion_tokens": 2,
                                         "routed_experts": base64.b64encode(flat.tobytes()).decode()}}
    (folder / "generate.json").write_text(json.dumps(answer))
    expect(folder, "generate", ["generate.json"], ["--top-k", "3", "--num-experts", "6"], ["taken as dense"], layers=[1, 2],
           experts=6, trace=choices.tolist(), sequences=[0, 4])


def make_megatron(folder: pathlib.Path, sources: pathlib.Path) -> None:
    """Layers 1 and 3 of the decoder and a block for multi-token prediction; two data-parallel ranks, two steps."""
    import interop_engines as engines

    rng = numpy.random.default_rng(2)
    traces = folder / "router_traces"
    shutil.rmtree(traces, ignore_errors=True)
    tokens = []
    for rank in (0, 1):
        tracer = engines.megatron_tracer(sources, traces, rank)
        for step in range(2):
            for _micro in range(2):
                choices = draw(rng, 3, 2, 8, 2)
                engines.megatron_layer(tracer, "decoder", None, 1, choices[:, 0].tolist(), 8)
                engines.megatron_layer(tracer, "decoder", None, 3, choices[:, 1].tolist(), 8)
                engines.megatron_layer(tracer, "mtp", 0, 0, choices[:, 1].tolist(), 8)
                tokens.append(choices)
            tracer.advance_step(step_id=10 + step)
        tracer.flush()
    expect(folder, "router_traces", ["router_traces"], ["--num-experts", "8"], ["blocks of mtp"], layers=[1, 3], experts=8,
           trace=numpy.concatenate(tokens).tolist(), sequences=list(range(0, 25, 3)))


def make_tensorrt_llm(folder: pathlib.Path, sources: pathlib.Path) -> None:
    """Two ranks, iterations 100 and 101, layers 3 and 4; then the same tokens one by one, by hand."""
    import interop_engines as engines
    from safetensors.torch import save_file

    rng = numpy.random.default_rng(3)
    counted, single = folder / "expert_statistic", folder / "raw"
    for made in (counted, single):
        shutil.rmtree(made, ignore_errors=True)
        made.mkdir()
    tokens, sequences = [], [0]
    for rank in (0, 1):
        statistic = engines.trtllm_statistic(sources, counted, rank, "100-102")
        raw = {}
        for iteration in (99, 100, 101):
            statistic.set_iter(iteration)
            choices = draw(rng, 2 + rank, 2, 4, 2)
            for m, layer in enumerate((3, 4)):
                statistic.set_layer(layer)
                statistic.maybe_add_info(4, torch.tensor(choices[:, m]))
                if iteration >= 100:
                    raw[f"{iteration}_{layer}"] = torch.tensor(choices[:, m], dtype=torch.int32).contiguous()
            if iteration >= 100:
                tokens.append(choices)
                sequences.append(sequences[-1] + len(choices))
        statistic.set_iter(102)
        save_file(raw, single / f"rank{rank}_raw.safetensors")
    shutil.copy(counted / "meta_info.json", single / "meta_info.json")
    logical = numpy.concatenate(tokens)
    expect(folder, "expert_statistic", ["expert_statistic"], layers=[3, 4], experts=4, loads=loads_of(logical, 4))
    expect(folder, "raw", ["raw"], layers=[3, 4], experts=4, trace=logical.tolist(), sequences=sequences)


def make_vllm(folder: pathlib.Path, _sources) -> None:
    """Answers with and without a prompt, in lists and as base64, with a cached position; and load statistics."""
    rng = numpy.random.default_rng(4)
    tokens, answers = [], []
    prompt, first, second = draw(rng, 3, 2, 6, 2), draw(rng, 2, 2, 6, 2), draw(rng, 1, 2, 6, 2)
    cached = prompt.copy()
    cached[0] = -1
    answers.append({"id": "a", "prompt_routed_experts": cached.tolist(),
                    "choices": [{"index": 0, "routed_experts": first.tolist()},
                                {"index": 1, "routed_experts": second.tolist()}]})
    tokens += [cached[1:], first, second]
    whole = draw(rng, 4, 2, 6, 2)
    out = io.BytesIO()
    numpy.save(out, whole.astype(numpy.int16))
    answers.append({"id": "b", "usage": {"prompt_tokens": 3, "completion_tokens": 2}, "prompt_routed_experts": None,
                    "choices": [{"index": 0, "routed_experts": base64.b64encode(out.getvalue()).decode()}]})
    tokens.append(whole)
    (folder / "answers.jsonl").write_text("".join(json.dumps(answer) + "\n" for answer in answers))
    (folder / "answer.json").write_text(json.dumps(answers[0], indent=1))
    (folder / "list.json").write_text(json.dumps(answers, indent=1))
    args = ["--num-experts", "6", "--dense-layers", "1"]
    for name, file in (("answers", "answers.jsonl"), ("list", "list.json")):
        expect(folder, name, [file], args, ["1 tokens chose nothing"], layers=[1, 2], experts=6,
               trace=numpy.concatenate(tokens).tolist(), sequences=[0, 4, 5, 9], prompts=[2, 0, 3])
    expect(folder, "answer", ["answer.json"], args, layers=[1, 2], experts=6, trace=numpy.concatenate(tokens[:3]).tolist(),
           sequences=[0, 4, 5], prompts=[2, 0])
    records = [{"record_type": "eplb_load_stats", "version": 1, "step": step, "num_ranks": 2, "num_layers": 1,
                "expert_load": [[10, 1, 5, 2]], "p2l_map": [[0, 1, 2, 0]], "tokens": [[9, 9]]} for step in (1, 2)]
    (folder / "load_stats.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    expect(folder, "load_stats", ["load_stats.jsonl"], layers=[0], experts=3, loads=[[24, 2, 10]])
    if importlib.util.find_spec("vllm"):
        make_served_by_vllm(folder)


def make_served_by_vllm(folder: pathlib.Path) -> None:
    """Answers of vLLM's own serving classes: three decoder layers, the first dense; cached positions, two answers to a prompt, two
    prompts in one request, and a prompt of which the first row was not asked for."""
    import interop_engines as engines

    server = engines.VllmServer(3, [1, 2], 6, 2)
    rng = numpy.random.default_rng(6)
    tokens, prompts, answers = [], [], []

    def served(prompt: int, generated: int, front=None, start: int = 0, left_out: int = 0):
        """Rows and how many tokens were generated; front: the prompt's choices, where they were run before."""
        choices = draw(rng, prompt + generated - 1, 2, 6, 2)
        if front is not None:
            choices[:prompt] = front
        tokens.append(choices[left_out:])
        prompts.append(prompt - left_out)
        return choices[:prompt], (server.rows(choices, prompt, start), generated)

    _, first = served(5, 3, left_out=2)
    answers.append(server.completion([server.output(5, 2, [first])]))
    _, one = served(2, 2)
    _, other = served(4, 1)
    answers.append(server.completion([server.output(2, 0, [one]), server.output(4, 0, [other])], return_token_ids=True))
    front, one = served(3, 2)
    _, other = served(3, 4, front=front, left_out=3)
    answers.append(server.chat(server.output(3, 0, [one, other])))
    _, late = served(4, 2, start=1, left_out=1)
    answers.append(server.generate(server.output(4, 0, [late])))
    for answer in answers:
        answer["created"] = 1
    (folder / "served.jsonl").write_text("".join(json.dumps(answer) + "\n" for answer in answers))
    offsets = numpy.cumsum([0, *map(len, tokens)]).tolist()
    expect(folder, "served", ["served.jsonl"], ["--num-experts", "6"], ["taken as dense", "2 tokens chose nothing"], layers=[1, 2],
           experts=6, trace=numpy.concatenate(tokens).tolist(), sequences=offsets, prompts=prompts)


def make_llama_imatrix(folder: pathlib.Path, sources: pathlib.Path) -> None:
    """Two layers of eight experts, two of them for each of 96 tokens."""
    import interop_engines as engines

    made = folder / "imatrix.gguf"
    text = (ROOT.parent.parent.parent / "README.md").read_text()[:2000]
    loads = engines.llama_imatrix(sources / "llama-imatrix", ROOT.parent.parent.parent / "models/demo/tokenizer.json", text, made, 32, 3)
    for scratch in (".model.gguf", ".txt"):
        made.with_suffix(scratch).unlink()
    expect(folder, "imatrix", [made.name], layers=[0, 1], experts=8, loads=loads)


def make_ascend(folder: pathlib.Path, _sources) -> None:
    torch.save(torch.tensor([[3, 1, 2, 4], [4, 4, 1, 1]]), folder / "load.pt")
    expect(folder, "load", ["load.pt"], ["--dense-layers", "1"], layers=[1, 2], experts=4, loads=[[3, 1, 2, 4], [4, 4, 1, 1]])
    torch.save(torch.tensor([[[3, 1, 2], [4, 4, 1]]], dtype=torch.float32), folder / "moe_load.pt")
    device = [{"device_id": 0, "device_expert": [0, 1, 2]}, {"device_id": 1, "device_expert": [3, 0, 2]}]
    layer = {"layer_id": 0, "device_count": 2, "device_list": device}
    (folder / "expert_map.json").write_text(json.dumps({"moe_layer_count": 1, "layer_list": [layer]}))
    expect(folder, "moe_load", ["moe_load.pt", "expert_map.json"], ["--dense-layers", "0"], layers=[0], experts=4,
           loads=[[7, 1, 3, 4]])


def make_eplb(folder: pathlib.Path, _sources) -> None:
    from safetensors.numpy import save_file

    weight = numpy.array([[[1, 2, 3, 4], [4, 3, 2, 1]], [[1, 1, 1, 1], [0, 0, 2, 2]]])
    total = weight.sum(axis=0).tolist()
    numpy.save(folder / "weight.npy", weight)
    numpy.savez_compressed(folder / "weight.npz", weight=weight.astype(numpy.float32), other=numpy.zeros(3))
    save_file({"load": weight.astype(numpy.int32)}, folder / "load.safetensors")
    args = ["--dense-layers", "0"]
    for name, file in (("npy", "weight.npy"), ("npz", "weight.npz"), ("safetensors", "load.safetensors")):
        expect(folder, name, [file], args, layers=[0, 1], experts=4, loads=total)
    choices = draw(numpy.random.default_rng(5), 5, 2, 6, 2)
    numpy.save(folder / "choices.npy", numpy.asfortranarray(choices.astype(numpy.uint8)))
    expect(folder, "choices", ["choices.npy"], [*args, "--top-k", "2"], ["largest id + 1"], layers=[0, 1],
           experts=int(choices.max()) + 1, trace=choices.tolist(), sequences=[0, 5])
    history = [{"logical_expert_load": step.tolist()} for step in weight]
    (folder / "expert-load.json").write_text(json.dumps({"load_history": history}))
    expect(folder, "history", ["expert-load.json"], args, layers=[0, 1], experts=4, loads=total)


def make_counts(folder: pathlib.Path, _sources) -> None:
    (folder / "counts.csv").write_text("layer_id,expert_id,count\n3,0,5\n3,2,7\n4,1,12\n")
    expect(folder, "csv", ["counts.csv"], ["--num-experts", "4"], layers=[3, 4], experts=4, loads=[[5, 0, 7, 0], [0, 12, 0, 0]])
    counters = [collections.Counter({numpy.int64(e): numpy.int64(3 + e * layer) for e in range(4)}) for layer in range(3)]
    (folder / "github.pkl").write_bytes(pickle.dumps(counters, 4))
    expect(folder, "olmoe", ["github.pkl"], ["--num-experts", "4"], ["layers 0, 7 and 15"], layers=[0, 7, 15], experts=4,
           loads=[[int(c[e]) for e in range(4)] for c in counters])


MAKERS = {"torch": make_torch, "pickle": make_pickles, "numpy": make_numpy}
OF_FORMATS = {"sglang": make_sglang, "megatron": make_megatron, "tensorrt-llm": make_tensorrt_llm, "vllm": make_vllm,
              "llama-imatrix": make_llama_imatrix, "ascend": make_ascend, "eplb": make_eplb, "counts": make_counts}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="*", help="all, or some of " + ", ".join([*MAKERS, *OF_FORMATS]))
    parser.add_argument("--sources", type=pathlib.Path, help="the engines' recorders (tools/interop_engines.py)")
    options = parser.parse_args()
    for name in options.what or [*MAKERS, *OF_FORMATS]:
        folder = ROOT / name
        folder.mkdir(parents=True, exist_ok=True)
        if name in MAKERS:
            MAKERS[name](folder)
        else:
            OF_FORMATS[name](folder, options.sources)


if __name__ == "__main__":
    main()
