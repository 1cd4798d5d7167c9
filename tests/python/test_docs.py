"""What the documents say is true: Python in them runs, code they quote stands in the file they name, links lead
somewhere, commands exist."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import backpass.compat
import onnx
import pytest
from documents import FENCE, PAGES, ROOT, Block, blocks, name

ALL_BLOCKS = [block for page in PAGES for block in blocks(page)]
RUNNABLE = [page for page in PAGES if any(b.language == "python" and not b.path for b in blocks(page))]


@pytest.fixture
def demo_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to run in that holds the model the documents talk about."""
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    import demo

    onnx.save(demo.make_model(), tmp_path / "model.onnx")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def names_restored() -> Iterator[None]:
    """What a page that calls ``backpass.compat.install`` does to imports ends with it: onnxruntime is a judge here."""
    judged = ("onnxruntime", "torch_ort")
    before = {known: module for known, module in sys.modules.items() if known.split(".")[0] in judged}
    yield
    backpass.compat.uninstall()
    for known in [known for known in sys.modules if known.split(".")[0] in judged]:
        del sys.modules[known]
    sys.modules.update(before)


@pytest.mark.usefixtures("names_restored")
@pytest.mark.parametrize("page", RUNNABLE, ids=name)
def test_python_runs(page: Path, demo_model: Path) -> None:
    """The examples of a page, one after the other, as a reader would type them."""
    space: dict[str, Any] = {}
    for block in blocks(page):
        if block.language == "python" and not block.path:
            code = "\n" * block.line + block.text  # so that a traceback names the line of the page
            exec(compile(code, str(page), "exec"), space)


@pytest.mark.parametrize("block", [b for b in ALL_BLOCKS if b.path], ids=lambda b: f"{name(b.page)}:{b.line}")
def test_quotations_are_true(block: Block) -> None:
    assert block.text in (ROOT / block.path).read_text()


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#\s]+)", re.sub(FENCE, "", page.read_text()))
    local = [t for t in targets if not t.startswith(("http://", "https://", "mailto:"))]
    assert not [t for t in local if not (page.parent / t).exists()]


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_named_files_exist(page: Path) -> None:
    """`src/...` and the like in code spans; a name without its ending stands for header and source."""
    spans = re.findall(r"`((?:src|tests|examples|benchmarks|tools|docs|include|python)/[\w/.]+)`", page.read_text())
    assert not [s for s in spans if not list(ROOT.glob(s.rstrip("/") + "*"))]


def test_files_named_by_the_walk_exist() -> None:
    folders = "|".join(p.name for p in (ROOT / "src").iterdir() if p.is_dir())
    spans = re.findall(rf"`((?:{folders})/[\w/.]*)`", walk().read_text())
    assert spans
    assert not [s for s in spans if not list((ROOT / "src").glob(s.rstrip("/") + "*"))]


def test_every_folder_of_the_engine_is_on_the_walk() -> None:
    folders = [p.name for p in (ROOT / "src").iterdir() if p.is_dir()]
    assert not [f for f in folders if f"{f}/" not in walk().read_text()]


def walk() -> Path:
    return ROOT / "src" / "README.md"


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_make_targets_exist(page: Path) -> None:
    known = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"\bmake ((?!it\b|a\b)[a-z-]+)`", page.read_text()))
    assert named <= known, named - known


def test_the_glossary_names_what_exists() -> None:
    """Its last column is what to search the sources for."""
    page = (ROOT / "docs/glossary.md").read_text()
    rows = [line.split("|") for line in page.splitlines() if line.startswith("| ")]
    names = {span.split("::")[-1] for cells in rows for span in re.findall(r"`([^`]+)`", cells[4])}
    assert len(names) > 40
    folders = [ROOT / folder for folder in ("src", "include", "python", "tests/python")]
    files = [p for folder in folders for p in folder.rglob("*") if p.suffix in (".hpp", ".cpp", ".py")]
    words = {word for p in files for word in re.findall(r"\w+", p.read_text())}
    assert not sorted(names - words)
