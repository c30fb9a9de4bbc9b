#!/usr/bin/env python3
"""Writes the tokenizer.json that belongs to DeepSeek-LLM's and DeepSeek-V2's vocabulary, from a GGUF file that holds it.

    python3 tools/make_deepseek_tokenizer.py VOCAB.gguf OUT.json

Tokens and merges are the file's; what a GGUF does not say (how text is cut into words) is as DeepSeek published it:
line ends, letters with a case, punctuation, white space at an end, Han and Hangul, then single digits.
"""
import json
import struct
import sys
from pathlib import Path

# The letters that have a case, as published; ranges are spelled by number where normalising a source would change them.
LETTERS = (r"A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-"
           "\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4"
           "\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f"
           "\u2145-\u2149\u214e\u2183\u2184Ⰰ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ"
           "\U00010400-\U0001044f\U000104b0-\U000104d3\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2"
           "\U000118a0-\U000118df\U0001e900-\U0001e943")
SPLITS = ["[\r\n]", rf"\s?[{LETTERS}]+", "\\s?[!-/:-~！-／：-～‘-‟\u3000-。]+", r"\s+$", "[一-龥\u0800-一가-\ud7ff]+"]

FORMATS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
STRING, ARRAY = 8, 9


class Gguf:
    """Keys and values of a GGUF file, version 2 or 3."""

    def __init__(self, data: bytes):
        self.data, self.at = data, 0
        magic, version = self.take("<I"), self.take("<I")
        if magic != 0x46554747 or version not in (2, 3):
            raise SystemExit("not a GGUF file of version 2 or 3")
        self.take("<Q")  # tensors
        self.values = {}
        for _ in range(self.take("<Q")):
            key = self.string()
            self.values[key] = self.value(self.take("<I"))

    def take(self, form: str):
        (value,) = struct.unpack_from(form, self.data, self.at)
        self.at += struct.calcsize(form)
        return value

    def string(self) -> str:
        size = self.take("<Q")
        self.at += size
        return self.data[self.at - size:self.at].decode("utf-8")

    def value(self, kind: int):
        if kind == STRING:
            return self.string()
        if kind == ARRAY:
            inner = self.take("<I")
            return [self.value(inner) for _ in range(self.take("<Q"))]
        return self.take(FORMATS[kind])


def tokenizer_of(values: dict) -> dict:
    tokens, kinds = values["tokenizer.ggml.tokens"], values["tokenizer.ggml.token_type"]
    normal = 1
    added = [{"id": i, "content": token, "single_word": False, "lstrip": False, "rstrip": False, "normalized": kind == 4, "special": kind == 3}
             for i, (token, kind) in enumerate(zip(tokens, kinds)) if kind != normal and token != f"[PAD{i}]"]  # those fill the file up
    split = [{"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False} for pattern in SPLITS]
    bytes_only = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    begin = tokens[values["tokenizer.ggml.bos_token_id"]]
    return {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": {"type": "Sequence", "normalizers": []},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*split, {"type": "Digits", "individual_digits": True}, bytes_only]},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": begin, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {begin: {"id": begin, "ids": [tokens.index(begin)], "tokens": [begin]}}},
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
                  "fuse_unk": False, "byte_fallback": False, "vocab": {token: i for i, (token, kind) in enumerate(zip(tokens, kinds)) if kind == normal},
                  "merges": values["tokenizer.ggml.merges"]},
    }


def main():
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    values = Gguf(Path(sys.argv[1]).read_bytes()).values
    if values.get("tokenizer.ggml.pre") != "deepseek-llm":
        raise SystemExit(f"{sys.argv[1]}: the pre-tokeniser is {values.get('tokenizer.ggml.pre')}, not deepseek-llm")
    Path(sys.argv[2]).write_text(json.dumps(tokenizer_of(values), ensure_ascii=False, separators=(",", ":")) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
