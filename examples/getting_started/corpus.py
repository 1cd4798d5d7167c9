"""Text to train with, as numbers: words become places in a vocabulary, the text columns of such numbers.

The text is the Free On-line Dictionary of Computing, an encyclopaedia of a million words, as Debian ships it in the
package dict-foldoc. Where that is not, it is what the functions of Python's own library and of torch say about
themselves.
"""

from __future__ import annotations

import ast
import gzip
import re
import sysconfig
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

FOLDOC = Path("usr/share/dictd/foldoc.dict.dz")
UNKNOWN, END = "<unk>", "<eos>"
WORD = re.compile(r"[a-z0-9]+(?:[-_./+#][a-z0-9]+)*|'[a-z]+|[.,:;!?()]")
HELD_OUT = 20  # one article of so many is not trained with
MOST_WORDS = 2_000_000


def tokenize(text: str) -> list[str]:
    """Words in lower case, numbers and punctuation; markup, quotes and dashes are dropped."""
    return WORD.findall(text.lower())


class Vocabulary:
    """The most frequent words, by number; all others are one, <unk>."""

    def __init__(self, words: Counter[str], size: int) -> None:
        ranked = sorted(words, key=lambda word: (-words[word], word))
        self.words = [UNKNOWN, END, *ranked[: size - 2]]
        self._numbers = {word: number for number, word in enumerate(self.words)}

    def __len__(self) -> int:
        return len(self.words)

    def numbers(self, words: list[str]) -> list[int]:
        return [self._numbers.get(word, 0) for word in words]


@dataclass(frozen=True)
class Corpus:
    """The text of one source: numbers to train with, and of articles that were held out."""

    source: str
    vocabulary: Vocabulary
    train: torch.Tensor
    valid: torch.Tensor

    def describe(self) -> str:
        unknown = (self.train == 0).double().mean().item()
        return (
            f"{self.source}: {len(self.train):,} words to train with, {len(self.valid):,} held out; "
            f"vocabulary of {len(self.vocabulary):,}, {unknown:.1%} unknown"
        )


def load(vocabulary: int, text: Path | None = None, folder: Path = Path(), words: int = MOST_WORDS) -> Corpus:
    """The given text, or the dictionary below `folder` or where Debian installs it, or what Python's library has: no
    more of that than `words`, since to look for them takes seconds."""
    source, articles = _articles(text, folder, words)
    paragraphs = [[[*tokenize(p), END] for p in re.split(r"\n\s*\n", article) if tokenize(p)] for article in articles]
    known = Vocabulary(Counter(w for article in paragraphs for p in article for w in p if w != END), vocabulary)
    parts: tuple[list[int], list[int]] = ([], [])
    for place, article in enumerate(paragraphs):
        parts[place % HELD_OUT == 0].extend(number for p in article for number in known.numbers(p))
    return Corpus(source, known, *(torch.tensor(part) for part in parts))


def _articles(text: Path | None, folder: Path, words: int) -> tuple[str, list[str]]:
    if text is not None:
        return text.name, _split(_read(text))
    for place in (folder / FOLDOC, "/" / FOLDOC):
        if place.exists():
            return "FOLDOC", _split(_read(place))
    print("no dict-foldoc (see README.md): taking what Python's library and torch say about themselves", flush=True)
    return "documentation of Python's library and torch", list(_docstrings(words))


def _read(path: Path) -> str:
    return (gzip.open if path.suffix in (".gz", ".dz") else open)(path, "rb").read().decode(errors="replace")


def _split(text: str) -> list[str]:
    """Articles: what begins with a line that is not indented, behind an empty one."""
    return re.split(r"\n\n(?=\S)", text)


def _docstrings(most: int) -> Iterator[str]:
    words = 0
    for place in (Path(sysconfig.get_path("stdlib")), Path(torch.__file__).parent):
        for path in sorted(p for p in place.rglob("*.py") if "-packages" not in str(p.relative_to(place))):
            found = "\n\n".join(_documented(path))
            words += len(found.split())
            if found:
                yield found
            if words > most:
                return


def _documented(path: Path) -> Iterator[str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what old files escape
        try:
            tree = ast.parse(path.read_bytes())
        except (SyntaxError, ValueError):  # written to be refused
            return
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and (text := ast.get_docstring(node)):
            yield text


def batchify(numbers: torch.Tensor, columns: int) -> torch.Tensor:
    """The text in `columns` parts beside each other, [length, columns]; what is left over is dropped."""
    length = len(numbers) // columns
    return numbers[: length * columns].view(columns, length).t().contiguous()


def batches(columns: torch.Tensor, bptt: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Pieces of `bptt` words of every column, and the words that follow them; a shorter last piece is left out."""
    for start in range(0, len(columns) - bptt, bptt):
        yield columns[start : start + bptt], columns[start + 1 : start + 1 + bptt].reshape(-1)
