"""The folders of src/ are layers: every #include against the table in src/README.md."""

from __future__ import annotations

import re
import shutil
from graphlib import TopologicalSorter
from pathlib import Path

import pytest
from documents import ROOT

SRC = ROOT / "src"
ROW = re.compile(r"^\| `(\w+)/` \| ((?:`\w+`(?:, )?)*) ?\|", re.MULTILINE)
INCLUDE = re.compile(r'^\s*#\s*include\s+["<]([^">]+)[">]')


def layers(src: Path) -> dict[str, list[str]]:
    """Folder -> folders it may include, from the table under "Layers"."""
    section = (src / "README.md").read_text().partition("\n## Layers\n")[2]
    return {folder: re.findall(r"`(\w+)`", others) for folder, others in ROW.findall(section)}


def violations(src: Path) -> list[str]:
    """`file:line: rule` of every #include that the table does not allow."""
    table = layers(src)
    found = []
    for file in sorted(p for p in src.rglob("*") if p.suffix in (".cpp", ".hpp", ".inc")):
        folder = file.relative_to(src).parts[0]
        allowed = [folder, *table.get(folder, [])]
        for number, line in enumerate(file.read_text().splitlines(), 1):
            included = INCLUDE.match(line)
            target = included[1].partition("/")[0] if included else ""
            if target in table and target not in allowed:
                rule = f"{folder}/ may include only {', '.join(allowed)} (src/README.md, Layers)"
                found.append(f'{file.relative_to(src.parent)}:{number}: includes "{included[1]}", but {rule}')
    return found


def test_includes_follow_the_table() -> None:
    assert not violations(SRC), "\n".join(violations(SRC))


def test_every_folder_has_a_row() -> None:
    assert set(layers(SRC)) == {p.name for p in SRC.iterdir() if p.is_dir()}


def test_headers_are_named_with_their_folder() -> None:
    """Else nobody sees which layer they belong to."""
    headers = {p.name for p in SRC.rglob("*.hpp")}
    bare = [
        f"{file.relative_to(ROOT)}: {included[1]}"
        for file in SRC.rglob("*.[ch]pp")
        for line in file.read_text().splitlines()
        if (included := INCLUDE.match(line)) and (included[1] in headers or included[1].startswith("."))
    ]
    assert not bare


def test_rows_name_only_rows_above_them() -> None:
    table = layers(SRC)
    order = list(table)
    assert not [(f, o) for f, others in table.items() for o in others if o not in order[: order.index(f)]]
    TopologicalSorter(table).prepare()  # raises CycleError


@pytest.mark.parametrize(
    ("file", "header", "rule"),
    [
        ("kernels/gemm.cpp", "graph/graph.hpp", "kernels/ may include only kernels, support"),
        ("graph/infer.cpp", "runtime/binding.hpp", "graph/ may include only graph, support"),
        ("onnx_io/reader.cpp", "model/import.hpp", "onnx_io/ may include only onnx_io, support"),
    ],
)
def test_a_violation_is_named(tmp_path: Path, file: str, header: str, rule: str) -> None:
    shutil.copytree(SRC, tmp_path / "src")
    planted = tmp_path / "src" / file
    planted.write_text(f'#include "{header}"\n{planted.read_text()}')
    (message,) = violations(tmp_path / "src")
    assert message == f'src/{file}:1: includes "{header}", but {rule} (src/README.md, Layers)'
