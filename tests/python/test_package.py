"""The package as a whole: its version and its type stub."""

import subprocess
import sys
from pathlib import Path

import backpass

ROOT = Path(__file__).parents[2]


def test_version_comes_from_one_place():
    assert backpass.__version__ == (ROOT / "VERSION").read_text().strip()


def test_stub_of_native_module_is_current(tmp_path):
    stub = tmp_path / "_core.pyi"
    subprocess.run([sys.executable, "-m", "nanobind.stubgen", "-q", "-m", "backpass._core", "-o", stub], check=True)
    assert stub.read_text() == (ROOT / "python/backpass/_core.pyi").read_text(), "run `make stubs`"
