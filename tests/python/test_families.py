"""Operators have families, and a family has one name: its folder of src/ops, its file of op_rows, its lowerings."""

from __future__ import annotations

import functools
import importlib
import re
from collections.abc import Iterator

import backpass
import pytest
from documents import ROOT

OPS = ROOT / "src" / "ops"
ROWS = ROOT / "tests" / "python" / "op_rows"
LOWERINGS = ROOT / "python" / "backpass" / "torch" / "lowerings"
FAMILIES = {p.name for p in OPS.iterdir() if p.is_dir()}
FILES = sorted(p.stem for p in ROWS.glob("*.py") if p.stem != "__init__")

LOWERINGS_OF_NO_FAMILY = {"common": "what the lowerings of several families share"}
FAMILIES_WITHOUT_ROWS = {
    "custom": "functions of users and requests for gradients: test_custom_operators.py, test_gradient_nodes.py"
}

# A definition: `const Register kAbs({.name = "Abs"`, `const RegisterPointwise abs{definition("com.microsoft", "Abs"`,
# `OpDef def = reduction<Fold::sum>("Abs"`; an operator that import rewrites has an adapter only.
DEFINITION = re.compile(
    r'(?:const Register\w* \w+\s*[({][^;"]*(?:"[a-z]+[.][a-z.]+"[^;"]*)?|OpDef \w+ = [^;"]*|[.]name = )"(\w+)"'
)
WINDOW = re.compile(r'^BACKPASS_WINDOW\(\w+, "(\w+)"', re.MULTILINE)


def defined(text: str) -> Iterator[str]:
    yield from DEFINITION.findall(text)
    yield from (f"{title}Window" for title in WINDOW.findall(text))


@functools.cache
def families() -> dict[str, set[str]]:
    """Operator -> the folders of src/ops that register one of that name (in any domain)."""
    found: dict[str, set[str]] = {}
    for file in OPS.glob("*/*.cpp"):
        for op in defined(file.read_text()):
            found.setdefault(op, set()).add(file.parent.name)
    return found


def misplaced(file: str, ops: list[str]) -> list[str]:
    """What is wrong with rows of these operators in a file of op_rows."""
    wrong = [(op, sorted(families().get(op, ()))) for op in ops if file not in families().get(op, ())]
    return [f"op_rows/{file}.py: {op} is registered in src/ops/{' and '.join(where) or '?'}/" for op, where in wrong]


def test_every_operator_is_registered_in_a_family() -> None:
    known = families()
    assert not [op["name"] for op in backpass.ops() if op["name"] not in known]


def test_files_of_rows_are_families() -> None:
    assert FAMILIES - set(FILES) == set(FAMILIES_WITHOUT_ROWS)
    assert set(FILES) <= FAMILIES


@pytest.mark.parametrize("file", FILES)
def test_rows_lie_where_their_operators_are_registered(file: str) -> None:
    wrong = misplaced(file, [row.op for row in importlib.import_module(f"op_rows.{file}").ROWS])
    assert not wrong, "\n".join(wrong)


def test_a_misplaced_row_is_found() -> None:
    assert misplaced("indexing", ["Gather", "CumSum"]) == [
        "op_rows/indexing.py: CumSum is registered in src/ops/reductions/"
    ]


def test_lowerings_are_named_by_families() -> None:
    names = {p.stem for p in LOWERINGS.iterdir() if p.name[0] not in "_."}
    assert names - FAMILIES == set(LOWERINGS_OF_NO_FAMILY)
