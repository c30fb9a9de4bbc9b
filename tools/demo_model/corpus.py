"""Text of six kinds out of Debian packages and the Python standard library, split by document, and its tokenizer."""

from __future__ import annotations

import hashlib
import html.parser
import json
import re
import subprocess
import sysconfig
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Callable, Iterator

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

KINDS = ("en", "de", "ja", "py", "c", "math")
BYTES_PER_KIND = 8_000_000
HELDOUT_BYTES = 50_000
PROMPTS_PER_KIND = 16
# Only documents of this size can be held out: shorter ones are stubs, longer ones would be the whole file.
HELDOUT_DOCUMENT_CHARS = range(800, 12_000)

VOCAB_SIZE = 4096
END_OF_TEXT = "<|endoftext|>"
SAMPLE_BYTES_PER_KIND = 1_500_000


@dataclass(frozen=True)
class Source:
    """One origin of text; `package` None means the Python standard library."""

    kind: str
    package: str | None
    licence: str
    holder: str
    read: Callable[[Path], Iterator[str]]


@dataclass(frozen=True)
class Split:
    """Documents of one kind; no document is in two parts."""

    train: list[str]
    profile: list[str]
    judge: list[str]
    prompts: list[str]


class _Prose(html.parser.HTMLParser):
    """Collects visible text, one line per block element."""

    BLOCKS = frozenset("p h1 h2 h3 h4 h5 h6 li dt dd td th tr pre div title br table ul ol dl".split())
    HIDDEN = frozenset(("script", "style", "head", "nav", "footer", "header"))

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.lines: list[str] = [""]
        self._hidden = 0
        self._pre = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._hidden += tag in self.HIDDEN
        self._pre += tag == "pre"
        if tag in self.BLOCKS:
            self.lines.append("")

    def handle_endtag(self, tag: str) -> None:
        self._hidden -= tag in self.HIDDEN
        self._pre -= tag == "pre"
        if tag in self.BLOCKS:
            self.lines.append("")

    def handle_data(self, data: str) -> None:
        if not self._hidden:
            self.lines[-1] += data if self._pre else re.sub(r"\s+", " ", data)

    def text(self) -> str:
        lines = (line.strip("\n ") for line in self.lines)
        return "\n".join(line for line in lines if line)


def _html_pages(pattern: str, first_line: int = 0) -> Callable[[Path], Iterator[str]]:
    """Reads each page that matches; `first_line` lines of navigation are dropped from its top."""

    def read(root: Path) -> Iterator[str]:
        for path in sorted(root.glob(pattern)):
            prose = _Prose()
            prose.feed(path.read_text(encoding="utf-8", errors="strict"))
            yield "\n".join(prose.text().split("\n")[first_line:])

    return read


def _glibc_sources(root: Path) -> Iterator[str]:
    """C files under the LGPL 2.1 or later, without the licence header that would be most of a small file."""
    header = re.compile(r"/\*.*?\*/\s*", re.S)
    (archive,) = root.glob("usr/src/glibc/glibc-*.tar.xz")
    with tarfile.open(archive) as tar:
        for member in tar:
            if not member.isfile() or not member.name.endswith((".c", ".h")) or "/localedata/" in member.name:
                continue
            text = tar.extractfile(member).read().decode("utf-8", errors="ignore")
            first = header.match(text)
            if first and "GNU Lesser General Public" in first.group() and member.size < 100_000:
                yield text[first.end():]


def _python_library(_: Path) -> Iterator[str]:
    root = Path(sysconfig.get_paths()["stdlib"])
    skipped = {"site-packages", "dist-packages", "test", "tests", "idle_test", "encodings", "lib2to3", "pydoc_data"}
    for path in sorted(root.rglob("*.py")):
        if skipped.isdisjoint(path.relative_to(root).parts):
            yield path.read_text(encoding="utf-8", errors="ignore")
    for path in sorted((root / "test").glob("test_[a-m]*.py")):
        yield path.read_text(encoding="utf-8", errors="ignore")


def _metamath(root: Path) -> Iterator[str]:
    """set.mm with its proofs taken out, in pieces of a few statements."""
    text = (root / "usr/share/metamath/databases/set.mm").read_text(encoding="utf-8")
    text = re.sub(r"\s*\$=.*?\$\.", " $.", text, flags=re.S)
    piece: list[str] = []
    size = 0
    for paragraph in text.split("\n\n"):
        piece.append(paragraph.strip("\n"))
        size += len(paragraph)
        if size > 4_000:
            yield "\n\n".join(piece)
            piece, size = [], 0


SOURCES = (
    *(
        Source(kind, f"libreoffice-help-{folder.lower()}", "MPL-2.0", "LibreOffice contributors",
               _html_pages(f"usr/share/libreoffice/help/{folder}/text/**/*.html", first_line=2))
        for kind, folder in (("en", "en-US"), ("de", "de"), ("ja", "ja"))
    ),
    *(
        Source(kind, f"debian-reference-{kind}", "GPL-2+", "Osamu Aoki and translators",
               _html_pages(f"usr/share/debian-reference/ch*.{kind}.html"))
        for kind in ("en", "de", "ja")
    ),
    *(
        Source(kind, "debian-handbook", "GPL-2+ or CC-BY-SA-3.0", "Raphaël Hertzog, Roland Mas and translators",
               _html_pages(f"usr/share/doc/debian-handbook/html/{folder}/*.html", first_line=4))
        for kind, folder in (("en", "en-US"), ("de", "de-DE"), ("ja", "ja-JP"))
    ),
    Source("en", "developers-reference", "GPL-2+", "the Debian developers",
           _html_pages("usr/share/developers-reference/[a-z]*[a-z].html")),
    Source("de", "developers-reference-de", "GPL-2+", "the Debian developers",
           _html_pages("usr/share/developers-reference/de/[a-z]*[a-z].html")),
    Source("ja", "developers-reference-ja", "GPL-2+", "the Debian developers",
           _html_pages("usr/share/developers-reference/ja/[a-z]*[a-z].html")),
    Source("py", None, "PSF-2.0", "Python Software Foundation", _python_library),
    Source("c", "glibc-source", "LGPL-2.1+", "Free Software Foundation", _glibc_sources),
    Source("math", "metamath-databases", "CC0-1.0", "Metamath contributors", _metamath),
)


def packages() -> list[str]:
    return sorted({source.package for source in SOURCES if source.package})


def fetch(work_dir: Path) -> None:
    """Downloads and unpacks the Debian packages that are not yet in `work_dir`."""
    for package in packages():
        folder = work_dir / "packages" / package
        if folder.exists():
            continue
        (work_dir / "packages").mkdir(parents=True, exist_ok=True)
        subprocess.run(["apt-get", "download", "-q", package], cwd=work_dir / "packages", check=True)
        (archive,) = (work_dir / "packages").glob(f"{package}_*.deb")
        subprocess.run(["dpkg-deb", "-x", archive, folder], check=True)


def package_version(work_dir: Path, package: str) -> str:
    (archive,) = (work_dir / "packages").glob(f"{package}_*.deb")
    return archive.name.split("_")[1].replace("%3a", ":")


def read_documents(work_dir: Path) -> dict[str, list[str]]:
    """Distinct documents of each kind in an order that depends only on their text, up to BYTES_PER_KIND."""
    documents: dict[str, dict[str, None]] = {kind: {} for kind in KINDS}
    for source in SOURCES:
        for text in source.read(work_dir / "packages" / (source.package or "")):
            documents[source.kind][text.strip("\n")] = None
    english = {line for text in documents["en"] for line in text.split("\n") if len(line) > 16}
    for kind in ("de", "ja"):
        documents[kind] = dict.fromkeys(_without_lines(text, english) for text in documents[kind])
    return {kind: _capped(sorted(texts, key=_digest)) for kind, texts in documents.items()}


def split_documents(documents: list[str]) -> Split:
    """Deals documents to profile, judge and prompts, and the rest to training."""
    rest = iter(documents)
    skipped: list[str] = []

    def take(enough: Callable[[list[str]], bool]) -> list[str]:
        taken: list[str] = []
        while not enough(taken):
            text = next(rest)
            (taken if len(text) in HELDOUT_DOCUMENT_CHARS else skipped).append(text)
        return taken

    def full(taken: list[str]) -> bool:
        return _num_bytes(taken) >= HELDOUT_BYTES

    profile, judge = take(full), take(full)
    prompts = take(lambda taken: len(taken) == PROMPTS_PER_KIND)
    return Split(train=skipped + list(rest), profile=profile, judge=judge, prompts=prompts)


def write_heldout(splits: dict[str, Split], prompts: dict[str, list[str]], folder: Path) -> None:
    """Writes `{profile,judge}/<kind>.txt` and `prompts.jsonl` (fields kind, text)."""
    for part in ("profile", "judge"):
        (folder / part).mkdir(parents=True, exist_ok=True)
        for kind, split in splits.items():
            (folder / part / f"{kind}.txt").write_text("\n".join(getattr(split, part)) + "\n", encoding="utf-8")
    with (folder / "prompts.jsonl").open("w", encoding="utf-8") as out:
        for kind, texts in prompts.items():
            for text in texts:
                out.write(json.dumps({"kind": kind, "text": text}, ensure_ascii=False) + "\n")


def train_tokenizer(splits: dict[str, Split], model_dir: Path) -> None:
    """Writes `tokenizer.json` and `tokenizer_config.json`, trained on an equal number of bytes of each kind."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator((_sample(splits[kind].train) for kind in KINDS), trainer)
    tokenizer.save(str(model_dir / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": END_OF_TEXT,
        "unk_token": None,
        "bos_token": None,
        "pad_token": END_OF_TEXT,
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 2048,
    }
    (model_dir / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")


def encode_training_text(tokenizer: Tokenizer, documents: list[str]) -> np.ndarray:
    """Token ids of all documents, each closed by the end-of-text token."""
    end = tokenizer.token_to_id(END_OF_TEXT)
    encodings = tokenizer.encode_batch(documents)
    return np.concatenate([np.array(encoding.ids + [end], dtype=np.uint16) for encoding in encodings])


def cut_prompts(tokenizer: Tokenizer, documents: list[str]) -> list[str]:
    """The first 10 to 200 tokens of each document, lengths spread geometrically."""
    lengths = np.geomspace(10, 200, len(documents)).astype(int)
    return [_head(tokenizer, text, length) for text, length in zip(documents, lengths)]


def _without_lines(text: str, untranslated: set[str]) -> str:
    return "\n".join(line for line in text.split("\n") if line not in untranslated)


def _capped(documents: list[str]) -> list[str]:
    total = 0
    for count, text in enumerate(documents):
        total += len(text.encode())
        if total > BYTES_PER_KIND:
            return documents[:count]
    return documents


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _num_bytes(texts: list[str]) -> int:
    return sum(len(text.encode()) for text in texts)


def _head(tokenizer: Tokenizer, text: str, num_tokens: int) -> str:
    ids = tokenizer.encode(text).ids[:num_tokens]
    return tokenizer.decode(ids).rstrip("\ufffd")


def _sample(documents: list[str]) -> str:
    """Whole documents up to SAMPLE_BYTES_PER_KIND bytes, so that no script gets more merges for being denser."""
    taken, total = [], 0
    for text in documents:
        total += len(text.encode())
        if total > SAMPLE_BYTES_PER_KIND:
            break
        taken.append(text)
    return "\n".join(taken)
