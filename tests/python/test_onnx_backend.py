"""ONNX's backend suite (onnx.backend.test) on Backpass, one test per case. See backend_cases.py."""

from __future__ import annotations

import fnmatch
from collections import Counter

import backend_cases
import pytest


@pytest.mark.parametrize("name", backend_cases.cases())
def test_case(name: str) -> None:
    result = backend_cases.outcome(name)
    listed = backend_cases.refusal_for(name)
    if result.status == "passed":
        assert listed is None or listed.is_random, (
            f"passes now: remove `{listed.pattern}` from {backend_cases.TABLE.name}"
        )
    elif result.status == "refused":
        assert listed is not None, f"refused, and not listed in {backend_cases.TABLE.name}: {result.message}"
        assert not listed.is_random, f"refused: {result.message}"
    else:
        pytest.fail(f"{result.status}: {result.message}")


def test_every_listed_pattern_matches_a_case() -> None:
    names = list(backend_cases.cases())
    unused = [r.pattern for r in backend_cases.refusals() if not fnmatch.filter(names, r.pattern)]
    assert not unused


def test_summary() -> None:
    """The promise made in the README: at least 1,700 of the node cases pass, none gives a wrong value."""
    counts = Counter(
        (case.kind, "random" if is_random(name) else backend_cases.outcome(name).status)
        for name, case in backend_cases.cases().items()
    )
    print(dict(counts))
    wrong = [n for n in backend_cases.cases() if backend_cases.outcome(n).status == "wrong"]
    assert not wrong
    assert counts["node", "passed"] >= 1700
    for kind in ("simple", "pytorch-converted", "pytorch-operator"):
        refused = [n for n in backend_cases.names(kind) if backend_cases.outcome(n).status != "passed"]
        assert all(n.startswith(("test_strnorm", "test_gradient")) for n in refused), refused


def is_random(name: str) -> bool:
    listed = backend_cases.refusal_for(name)
    return listed is not None and listed.is_random
