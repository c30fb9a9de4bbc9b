#!/usr/bin/env python3
"""Writes tests/fixtures/tokenizer/ from the reference implementation, Hugging Face's `tokenizers`.

    python3 tools/make_tokenizer_fixtures.py [DATA]

tiny.json   a small tokenizer of our own
cases.json  what the reference makes of it, and of variants of it: each a set of fields that replace those of tiny.json
demo.json   the same for models/demo/tokenizer.json
real.json   the same for DATA/tokenizers/{olmoe,qwen3} and for what tools/make_deepseek_tokenizer.py makes of deepseek-llm, and count and
            hash (FNV-1a over little-endian i32) of the ids of whole files of DATA/text; left alone without DATA
"""
import copy
import json
import random
import sys
from pathlib import Path

import make_deepseek_tokenizer as deepseek
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "tests/fixtures/tokenizer"

TEXTS = [
    "",
    " ",
    "Hello, world! It's the naïve façade's 3rd café; WE'LL see what they've done.",
    "Привет, мир! Съешь ещё этих мягких французских булок.",
    "Καλημέρα κόσμε, η γρήγορη αλεπού.",
    "مرحبا بالعالم، كيف حالك؟ ١٢٣٤",
    "שלום עולם, מה שלומך?",
    "नमस्ते दुनिया, आप कैसे हैं? १२३",
    "สวัสดีชาวโลก ๑๒๓",
    "你好,世界!今天天气不错。",
    "こんにちは世界、カタカナとひらがな。",
    "안녕하세요 세계, \u1112\u1161\u11ab\u1100\u1173\u11af",
    "👩‍👩‍👧‍👦 😶‍🌫️ 🦙🦙 ✅ 👍🏽 🇩🇪",
    "e\u0301 a\u0323\u0307 a\u0307\u0323 \u212b \u1e9b\u0323 \ufb01 \u0344 q\u0307\u0323",
    "a\u00a0b\u2003c\u3000d\te\r\nf\u2028g\u0085h\u180ei\u200bj\ufeffk",
    "x        y\n\n\n  z   \n \t\n   ",
    " " * 37 + "end" + " " * 24,
    "1 12 123 1234 12345 3.14 ²³ Ⅷ ½ ٣٤ १२",
    "one<|end|>two <|end|> three<|bos|>",
    "a <mask> b<mask>c  \u3000<mask>\n<mask>",
    "a <R> b<R>c<R>  \n d <both>  <both> e<both>",
    "word words sword word. (word) _word word\u0301 word\u200d ⓐword word",
    "cafe\u0301 caf\u00e9 cafe 'S 'ſ I'M we'Re",
    "camelCase snake_case HTTPServer v2.0.1 foo::bar(baz[0]) => {x; y};",
    "\x00\x01\x7f\x1b[0m \ufffd \U0010ffff \ue000",
    "ㅤ\U00031350\U0002ebf0 \U00011f04 \U0001e4f0 \U00010d40",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa the the the thethethe",
    "İSTANBUL ΣΊΣΥΦΟΣ ẞ ǅ",
    # What the reference's older tables do not know: marks that it leaves in place, compositions it does not make.
    "a\u0898\u0334 e\u1abf\u0323\u0301 \u07fd\u0345 \U00011935\U00011930 \U00011938 \u32ff \ua7f2 \U0001e030 \ud168\u11a7",
    "\u1c89 \ua7cb \ua7dc \U00010d50 \U00016ea0",  # letters whose lower case is new
    "\u09c7\u09be \u0b47\u0b56 \u1100\u1161\u11a8 \uac00\u11a8 \u0dd9\u0dcf\u0dca x\u0f73\u0f71 \u0344\u0958",
]


def random_texts(seed, count):
    """Code points from many blocks, with white space and ASCII often."""
    rng = random.Random(seed)
    blocks = [(0x20, 0x7E), (0x20, 0x7E), (0x9, 0xD), (0x20, 0x20), (0xA0, 0x24F), (0x300, 0x36F), (0x370, 0x52F), (0x590, 0x6FF),
              (0x900, 0x97F), (0xE00, 0xE7F), (0x1100, 0x11FF), (0x1E00, 0x1FFF), (0x2000, 0x206F), (0x2070, 0x218F),
              (0x3000, 0x30FF), (0x4E00, 0x9FFF), (0xAC00, 0xD7A3), (0xF900, 0xFAFF), (0xFF00, 0xFFEF), (0x1F300, 0x1FAFF)]
    texts = []
    for _ in range(count):
        blocks_here = rng.sample(blocks, 4) + [(0x20, 0x20)]
        texts.append("".join(chr(rng.randint(*rng.choice(blocks_here))) for _ in range(rng.randint(1, 40))))
    return texts


def fnv1a(ids):
    value = 14695981039346656037
    for token in ids:
        for byte in token.to_bytes(4, "little"):
            value = ((value ^ byte) * 1099511628211) & (2**64 - 1)
    return f"{value:016x}"


def cases_of(tokenizer, texts, special=False):
    """[text, ids] each; with `special`, also the ids with the template, and the text decoded without special tokens."""
    cases = []
    for text in texts:
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        case = {"text": text, "ids": ids}
        decoded = tokenizer.decode(ids, skip_special_tokens=False)
        if decoded != text:
            case["decoded"] = decoded
        if special:
            case["ids_with_special"] = tokenizer.encode(text, add_special_tokens=True).ids
            case["decoded_without_special"] = tokenizer.decode(ids, skip_special_tokens=True)
        cases.append(case)
    return cases


def decodes_of(tokenizer, seed, count):
    """Random ids: many of them byte tokens, so that most do not form UTF-8."""
    rng = random.Random(seed)
    size = tokenizer.get_vocab_size()
    lists = [[rng.randrange(min(size, 300) if rng.random() < 0.8 else size) for _ in range(rng.randint(1, 12))] for _ in range(count)]
    return [{"ids": ids, "decoded": tokenizer.decode(ids, skip_special_tokens=False)} for ids in lists]


def tiny_tokenizer():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=600, min_frequency=2, show_progress=False,
                                  initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), special_tokens=["<|bos|>", "<|end|>"])
    tokenizer.train_from_iterator(TEXTS * 2, trainer)
    tokenizer.add_tokens([
        AddedToken("<mask>", lstrip=True, special=True, normalized=False),
        AddedToken("<R>", rstrip=True, normalized=False),
        AddedToken("<both>", lstrip=True, rstrip=True, normalized=False),
        AddedToken("word", single_word=True, normalized=False),
        AddedToken("cafe\u0301", normalized=True),
        AddedToken("            ", normalized=True),
        AddedToken("<|en", normalized=False),
    ])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<|bos|> $A <|end|>",
        special_tokens=[("<|bos|>", tokenizer.token_to_id("<|bos|>")), ("<|end|>", tokenizer.token_to_id("<|end|>"))])
    return tokenizer


def split(pattern, behavior="Isolated", invert=False, literal=False):
    return {"type": "Split", "pattern": {"String" if literal else "Regex": pattern}, "behavior": behavior, "invert": invert}


def byte_level(add_prefix_space=False, use_regex=False):
    return {"type": "ByteLevel", "add_prefix_space": add_prefix_space, "trim_offsets": True, "use_regex": use_regex}


def pre(*parts):
    return {"pre_tokenizer": {"type": "Sequence", "pretokenizers": list(parts)}}


QWEN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
O200K = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
         r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
         r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
DEEPSEEK = [split("[\r\n]"), split("\\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-Ֆ]+"),
            split("\\s?[!-/:-~！-／：-～‘-‟　-。]+"), split("\\s+$"), split("[一-龥ࠀ-一가-퟿]+"),
            {"type": "Digits", "individual_digits": True}, byte_level()]


def variants(tiny):
    yield "as it is", {}
    yield "prefix space", {"pre_tokenizer": byte_level(add_prefix_space=True, use_regex=True)}
    yield "whole text", {"pre_tokenizer": byte_level()}
    yield "qwen", pre(split(QWEN), byte_level())
    yield "o200k", pre(split(O200K), byte_level())
    yield "deepseek", pre(*DEEPSEEK)
    for behavior in ["Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"]:
        for invert in [False, True]:
            yield f"{behavior} invert={invert}", pre(split(r"\s|\p{P}", behavior, invert), byte_level())
    yield "literal", pre(split(".", "MergedWithNext", literal=True), byte_level())
    yield "after byte level", pre(byte_level(), split("Ġ", "MergedWithPrevious", literal=True))
    yield "anchors", pre(split(r"^.|\S$|(?<=a)b|\d++(?=\s)", "Isolated"), byte_level())
    yield "empty matches", pre(split(r"\p{Lu}*", "Isolated"), byte_level())
    yield "negations", pre(split(r"[\S\p{L}]\P{L}|[^\P{N}]+|\D\s\S", "Isolated"), byte_level())
    yield "digits", pre({"type": "Digits", "individual_digits": False}, byte_level())
    yield "individual digits", pre({"type": "Digits", "individual_digits": True}, byte_level(use_regex=True))
    yield "ignore merges", {"model": {**tiny["model"], "ignore_merges": True, "merges": tiny["model"]["merges"][:20]}}
    yield "merges as strings", {"model": {**tiny["model"], "merges": ["#version: 0.2"] + [" ".join(m) for m in tiny["model"]["merges"]]}}
    for form in ["NFD", "NFKC", "NFKD", "Lowercase"]:
        yield form, {"normalizer": {"type": form}}
    yield "no normaliser", {"normalizer": None}
    yield "normaliser sequence", {"normalizer": {"type": "Sequence", "normalizers": [
        {"type": "Prepend", "prepend": "_ "}, {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
        {"type": "Replace", "pattern": {"Regex": r"\p{N}+"}, "content": "#"}, {"type": "NFKC"}]}}
    yield "processor sequence", {"post_processor": {"type": "Sequence", "processors": [byte_level(), tiny["post_processor"]]}}
    vocab = {token: i for i, token in enumerate(["<unk>", "a", "b", "e", "h", "t", "th", "the", "o", "n", "on"])}
    merges = [["t", "h"], ["th", "e"], ["o", "n"]]
    for unk in [None, "<unk>"]:
        for fuse in [False, True]:
            yield f"unknown {unk} fuse={fuse}", {
                "normalizer": None, "pre_tokenizer": None, "post_processor": None, "decoder": None, "added_tokens": [],
                "model": {"type": "BPE", "unk_token": unk, "fuse_unk": fuse, "byte_fallback": False, "vocab": vocab, "merges": merges}}


def write(name, value):
    (OUT / name).write_text(json.dumps(value, separators=(",", ":"), ensure_ascii=True).replace('{"text"', '\n{"text"').replace('{"name"', '\n{"name"') + "\n")


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    tiny_tok = tiny_tokenizer()
    tiny = json.loads(tiny_tok.to_str())
    (OUT / "tiny.json").write_text(json.dumps(tiny, ensure_ascii=False, separators=(",", ":")) + "\n")
    out = []
    for number, (name, patch) in enumerate(variants(tiny)):
        reference = Tokenizer.from_str(json.dumps({**copy.deepcopy(tiny), **patch}))
        texts = TEXTS + random_texts(number, 8)
        entry = {"name": name, "patch": patch, "cases": cases_of(reference, texts, special=name in ("as it is", "processor sequence"))}
        if name == "as it is":
            entry["decodes"] = decodes_of(reference, 1, 60)
        out.append(entry)
    write("cases.json", out)
    demo = Tokenizer.from_file(str(ROOT / "models/demo/tokenizer.json"))
    write("demo.json", {"name": "demo", "cases": cases_of(demo, TEXTS + random_texts(77, 30)), "decodes": decodes_of(demo, 2, 60)})
    if len(sys.argv) < 2:
        return
    data = Path(sys.argv[1])
    real = []
    gguf = data / "tokenizers/deepseek-llm/ggml-vocab-deepseek-llm.gguf"
    for name in ["olmoe", "qwen3", "deepseek"]:
        if name == "deepseek":
            reference = Tokenizer.from_str(json.dumps(deepseek.tokenizer_of(deepseek.Gguf(gguf.read_bytes()).values)))
        else:
            reference = Tokenizer.from_file(str(data / "tokenizers" / name / "tokenizer.json"))
        files = {}
        for path in sorted((data / "text").iterdir()):
            ids = reference.encode(path.read_bytes().decode("utf-8"), add_special_tokens=False).ids
            files[path.name] = {"count": len(ids), "fnv1a": fnv1a(ids)}
        real.append({"name": name, "cases": cases_of(reference, TEXTS + random_texts(78, 60)), "decodes": decodes_of(reference, 3, 60), "files": files})
    write("real.json", real)


if __name__ == "__main__":
    main()
