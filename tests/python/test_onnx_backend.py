"""ONNX's backend suite (onnx.backend.test) on Backpass, one test per case. See backend_cases.py."""

from __future__ import annotations

import fnmatch
from collections import Counter

import backend_cases
import pytest


@pytest.mark.parametrize("name", backend_cases.cases())
def test_case(name: str) -> None:
    found, wanted = backend_cases.outcome(name), backend_cases.expectation(name)
    if found.status == "passed" and wanted == "random":
        return  # chance
    assert found.status == wanted, f"{found.message}; expected by {backend_cases.TABLE.name}: {wanted}"


def test_every_listed_pattern_matches_a_case() -> None:
    names = list(backend_cases.cases())
    assert not [line.pattern for line in backend_cases.listed() if not fnmatch.filter(names, line.pattern)]


def test_summary() -> None:
    """The promise made in the README: at least 1,700 of the node cases pass, none gives a wrong value."""
    counts = Counter((case.kind, backend_cases.outcome(name).status) for name, case in backend_cases.cases().items())
    print(dict(counts))
    assert not [name for name in backend_cases.cases() if backend_cases.outcome(name).status in ("wrong", "error")]
    assert counts["node", "passed"] >= 1700
    for kind in ("simple", "pytorch-converted", "pytorch-operator"):
        refused = [n for n in backend_cases.names(kind) if backend_cases.outcome(n).status != "passed"]
        assert all(n.startswith("test_gradient") for n in refused), refused
