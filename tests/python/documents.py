"""The documents of the repository, and the pieces of code in them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    p
    for pattern in ("*.md", "src/*.md", "docs/**/*.md", "examples/**/*.md", "tests/python/op_rows/*.md")
    for p in ROOT.glob(pattern)
)
FENCE = re.compile(r"^```(\w+)?[ \t]*(\S*)\n(.*?)^```", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """```language path: with a path, a quotation from that file."""

    page: Path
    line: int
    language: str
    path: str
    text: str


def blocks(page: Path) -> list[Block]:
    text = page.read_text()
    return [
        Block(page, text.count("\n", 0, m.start()) + 1, m[1] or "", m[2], m[3]) for m in FENCE.finditer(text)
    ]  # fmt: skip


def commands(page: Path, containing: str) -> str:
    """The block of shell commands in which this text stands."""
    (found,) = [b.text for b in blocks(page) if b.language == "sh" and containing in b.text]
    return found


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))
