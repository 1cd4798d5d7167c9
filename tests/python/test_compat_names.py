"""Every name of onnxruntime-training 1.19.2, and what docs/compatibility.md says of each.

``BACKPASS_UPDATE_TESTS=1`` writes the table of that page, for you to read.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from backpass import compat
from documents import ROOT
from ort_training.names_1_19_2 import NAMES

PAGE = ROOT / "docs" / "compatibility.md"
VARIABLES = [line for line in PAGE.read_text().splitlines() if line.startswith("| `ORTMODULE_")]
BEGIN, END = "<!-- names: generated -->\n", "<!-- end -->\n"

# Imports each name in one process; what it says when that fails, by module and name ("" is the module itself).
PROGRAM = """
    import json, sys, warnings
    import backpass.compat
    backpass.compat.install(runtime=True)
    warnings.simplefilter("ignore")
    told = {}
    for module, names in json.load(sys.stdin).items():
        for name in ["", *names.split()]:
            try:
                exec(f"from {module} import {name}" if name else f"import {module}", {})
                told[f"{module} {name}"] = ""
            except ImportError as error:
                told[f"{module} {name}"] = str(error) or "ImportError"
    print("TOLD", json.dumps(told))
"""
NEEDS = "needs the package deepspeed"


@pytest.fixture(scope="module")
def told() -> dict[str, dict[str, str]]:
    command = [sys.executable, "-c", textwrap.dedent(PROGRAM)]
    done = subprocess.run(command, input=json.dumps(NAMES), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    flat: dict[str, str] = json.loads(done.stdout.split("TOLD", 1)[1])
    return {m: {name: flat[f"{m} {name}"] for name in ["", *names.split()]} for m, names in NAMES.items()}


@pytest.mark.parametrize("module", NAMES)
def test_names_work_or_say_what_to_use_instead(module: str, told: dict[str, dict[str, str]]) -> None:
    unsaid = {n: text for n, text in told[module].items() if text and "is not in Backpass: " not in text}
    assert all(NEEDS in text for text in unsaid.values()), unsaid


def test_nothing_is_said_to_be_absent_that_is_there(told: dict[str, dict[str, str]]) -> None:
    present = {f"{m}.{n}".rstrip(".") for m, names in told.items() for n, text in names.items() if not text}
    assert not present & (set(compat.ABSENT) | set(compat.ABSENT_AT_RUNTIME))


def test_sentences_are_short_and_say_what_to_do() -> None:
    for name, text in (compat.ABSENT | compat.ABSENT_AT_RUNTIME).items():
        assert 10 < len(text) < 110, name
        assert not text.endswith("."), name


def sentence(text: str) -> str:
    return text.partition("is not in Backpass: ")[2] or text


def cell(names: list[str]) -> str:
    return " ".join(f"`{name}`" for name in names)


def table(told: dict[str, dict[str, str]]) -> str:
    """A row for each module, and one for each thing to do without some of its names."""
    lines = ["| module | works | what to use instead |", "|---|---|---|"]
    for module, names in sorted(told.items()):
        if names[""]:
            lines.append(f"| `{module}` | | {sentence(names[''])} |")
            continue
        works = [name for name, text in names.items() if name and not text]
        lines.append(f"| `{module}` | {cell(works) or 'yes'} | |")
        for why in dict.fromkeys(text.partition("Backpass: ")[2] for name, text in names.items() if text):
            missing = [name for name, text in names.items() if text.endswith(f"Backpass: {why}")]
            lines.append(f"| | | {cell(missing)}: {why} |")
    return "\n".join(lines) + "\n"


def test_the_page_tells_what_is_true(told: dict[str, dict[str, str]]) -> None:
    text = PAGE.read_text()
    before, _, rest = text.partition(BEGIN)
    shown, _, after = rest.partition(END)
    wanted = table(told)
    if os.environ.get("BACKPASS_UPDATE_TESTS"):
        Path(PAGE).write_text(f"{before}{BEGIN}{wanted}{END}{after}")
    else:
        assert shown == wanted, "run this test with BACKPASS_UPDATE_TESTS=1"


@pytest.mark.parametrize("variable", VARIABLES)
def test_variables_work_or_are_reported(variable: str) -> None:
    from dataclasses import fields

    from backpass.ortmodule.options import _ELSEWHERE, _FORMER, WITHOUT_EFFECT, RuntimeOptions

    name, effect = (cell.strip(" `") for cell in variable.split("|")[1:3])
    working = {f.metadata.get("variable") for f in fields(RuntimeOptions)} | set(_FORMER) | _ELSEWHERE
    assert (name in working) != (name in WITHOUT_EFFECT)
    assert (effect == "works") == (name in working)
    if name in WITHOUT_EFFECT:
        assert WITHOUT_EFFECT[name] in variable
