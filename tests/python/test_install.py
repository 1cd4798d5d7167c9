"""README's ways to install, and its commands, in a fresh clone and an empty environment."""

from __future__ import annotations

import os
import re
import subprocess
import venv
from pathlib import Path

import pytest
from documents import ROOT, blocks, commands

README = ROOT / "README.md"


def run_bare(command: str, folder: Path, programs: Path | None = None) -> str:
    """What shell commands print, with nothing of this environment but where programs are found."""
    path = os.environ["PATH"] if programs is None else f"{programs}:{os.environ['PATH']}"
    bare = {"PATH": path, "HOME": os.environ.get("HOME", "/")}
    done = subprocess.run(["bash", "-euc", command], cwd=folder, env=bare, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout + done.stderr


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    subprocess.run(["git", "clone", "-q", ROOT, tmp_path / "backpass"], check=True)
    return tmp_path / "backpass"


def test_readme_names_the_system_packages_that_make_installs() -> None:
    listed = re.search(r"^APT_BUILD := ((?:.*\\\n)*.*)", (ROOT / "Makefile").read_text(), re.MULTILINE)[1]
    for_development = {"ccache", "libbenchmark-dev", "libgtest-dev"}
    named = commands(README, "apt-get install").splitlines()[0].split("install ")[1].split()
    assert set(named) == set(listed.replace("\\", " ").split()) - for_development


def test_readme_python_says_what_it_needs() -> None:
    """The rest runs with numpy alone, which `make wheel` tries."""
    code = [b.text for b in blocks(README) if b.language == "python"]
    marks = {"torch": r"\btorch\.|ORTModule", "onnx": r"\bartifacts\.|\bgrad\("}
    for extra, use in marks.items():
        needing = [text for text in code if re.search(use, text)]
        assert needing
        assert all(f"needs backpass[{extra}]" in text for text in needing)
    assert any("needs backpass" not in text for text in code)


@pytest.mark.slow
def test_wheel_in_fresh_environments() -> None:
    """Builds the wheel and does what README says with it: tools/check_wheel.py."""
    assert "README.md: all of its Python that needs no torch" in run_bare("make wheel", ROOT)


@pytest.mark.slow
def test_pip_install_from_a_clone(clone: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "environment", with_pip=True)
    programs = tmp_path / "environment" / "bin"
    run_bare(commands(README, "pip install .").splitlines()[1], clone, programs)
    text = run_bare("python -c 'import backpass; print(backpass.__file__)'; pip list", tmp_path, programs)
    assert str(tmp_path / "environment") in text
    assert not re.search(r"^(onnx|torch|onednn)", text, re.MULTILINE)


@pytest.mark.slow
def test_demo_in_a_fresh_clone(clone: Path) -> None:
    first = run_bare("make demo", clone)
    assert re.search(r"\[\d+ of \d+, [\d.]+ s\] Building CXX object", first)  # how far the compilation is
    assert "backpass_tests" not in first
    assert re.search(r"test accuracy (8[89]|9\d)\.\d+ %", first)
    installed = {p.name for p in (clone / ".venv" / "lib").glob("python3*/site-packages/*")}
    assert not {"torch", "transformers", "pytest"} & installed
    again = run_bare("make demo", clone)
    assert "Building CXX" not in again
    assert "Python packages" not in again
