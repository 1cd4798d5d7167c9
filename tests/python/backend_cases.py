"""ONNX's own backend suite: its cases, how one is run, and what came of it. Shared by the tests and tools/op_table.py.

The onnx package generates its node cases in memory and ships the others as files; nothing is downloaded (which is why
the models of kind `real` are left out). Each case runs at most once per process.
"""

from __future__ import annotations

import fnmatch
import functools
import glob
import os
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

KINDS = ("node", "simple", "pytorch-converted", "pytorch-operator")
TABLE = Path(__file__).with_name("backend_unsupported.txt")


@dataclass(frozen=True)
class Outcome:
    """`status`: "passed", "random" and "close" (see Listed), "refused" (backpass.Unsupported), "wrong" (a value, type
    or shape differs), "error"."""

    status: str
    message: str = ""


@dataclass(frozen=True)
class Listed:
    """One line of backend_unsupported.txt: what is expected of the cases instead of passing. A reason that opens with
    `random:` means that expected values are one draw of numpy's generator, so only types and shapes are compared;
    `accuracy:` that expected values carry rounding errors of their own, so they are compared at twice the tolerance."""

    pattern: str
    reason: str

    @property
    def status(self) -> str:
        return {"random": "random", "accuracy": "close"}.get(self.reason.split(":")[0], "refused")


@functools.cache
def listed() -> tuple[Listed, ...]:
    lines = [line for line in TABLE.read_text().splitlines() if line.strip() and not line.startswith("#")]
    return tuple(Listed(*line.split("\t", 1)) for line in lines)


@functools.cache
def expectation(name: str) -> str:
    """The status the case should have."""
    return next((line.status for line in listed() if fnmatch.fnmatchcase(name, line.pattern)), "passed")


@functools.cache
def cases() -> dict[str, Any]:
    """Case name -> onnx TestCase, in the order of KINDS."""
    from onnx.backend.test.loader import load_model_tests

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the generators overflow and divide by zero on purpose
        found = {kind: sorted(load_model_tests(kind=kind), key=lambda c: c.name) for kind in KINDS}
    return {case.name: case for kind in KINDS for case in found[kind]}


def names(kind: str) -> list[str]:
    return [name for name, case in cases().items() if case.kind == kind]


@functools.cache
def model_of(name: str) -> onnx.ModelProto:
    case = cases()[name]
    return case.model if case.model is not None else onnx.load(os.path.join(case.model_dir, "model.onnx"))


@functools.cache
def operators_of(name: str) -> frozenset[tuple[str, str]]:
    """(domain, operator) pairs the case is about: those of its graph, or of the function it is the expansion of."""
    base = name.split("_expanded", 1)[0]
    graph = model_of(base if base in cases() else name).graph
    return frozenset((node.domain, node.op_type) for node in graph.node)


@functools.cache
def outcome(name: str) -> Outcome:
    """Runs the case on every data set and compares every output."""
    import backpass
    import backpass.backend

    case, model = cases()[name], model_of(name)
    try:
        prepared = backpass.backend.prepare(model)
        runs = [(prepared.run(inputs), expected) for inputs, expected in _data_sets(case, model)]
    except backpass.Unsupported as e:
        return Outcome("refused", str(e))
    except Exception as e:
        return Outcome("error", f"{type(e).__name__}: {e}")

    def problem(factor: float, values: bool = True) -> str:
        found = (compare_all(got, want, factor * case.rtol, factor * case.atol, values) for got, want in runs)
        return next(filter(None, found), "")

    wrong = problem(1)
    if not wrong:
        return Outcome("passed")
    if expectation(name) == "close" and not problem(2):
        return Outcome("close")
    if expectation(name) == "random" and not problem(1, values=False):
        return Outcome("random")
    return Outcome("wrong", wrong)


def compare_all(got: Any, expected: Any, rtol: float, atol: float, values: bool = True) -> str:
    """What differs, as text; empty when nothing does."""
    if len(got) != len(expected):
        return f"{len(got)} outputs, expected {len(expected)}"
    for i, (g, e) in enumerate(zip(got, expected, strict=True)):
        problem = compare(g, e, rtol, atol, values)
        if problem:
            return f"output {i}: {problem}"
    return ""


def compare(got: Any, expected: Any, rtol: float, atol: float, values: bool = True) -> str:
    if expected is None or got is None:
        return "" if expected is None and got is None else f"got {got!r}, expected {expected!r}"
    if isinstance(expected, (list, tuple)) or isinstance(got, (list, tuple)):
        if not (isinstance(expected, (list, tuple)) and isinstance(got, (list, tuple))):
            return f"got a {type(got).__name__}, expected a {type(expected).__name__}"
        return compare_all(got, expected, rtol, atol, values)
    expected = _array(expected)
    if not isinstance(got, (np.ndarray, np.generic)):
        return f"got a {type(got).__name__}, expected an array"
    got = np.asarray(got)
    if got.dtype != expected.dtype:
        return f"got type {got.dtype}, expected {expected.dtype}"
    if got.shape != expected.shape:
        return f"got shape {list(got.shape)}, expected {list(expected.shape)}"
    return _compare_values(got, expected, rtol, atol) if values else ""


def _compare_values(got: np.ndarray, expected: np.ndarray, rtol: float, atol: float) -> str:
    if got.dtype == object or got.dtype.kind in "biu":
        same = np.asarray(got == expected)
    else:
        if got.dtype.name == "bfloat16" and rtol > 0:
            rtol = max(rtol, 2.0**-6)  # as onnx's own runner: the expected values are rounded at other places
        if got.dtype.kind == "V" or got.dtype.itemsize < 4:  # 16-bit and smaller formats: no arithmetic of their own
            got, expected = got.astype(np.float32), expected.astype(np.float32)
        with np.errstate(all="ignore"):
            same = np.isclose(got, expected, rtol=rtol, atol=atol, equal_nan=True)
    if same.all():
        return ""
    first = tuple(int(i) for i in np.argwhere(~same)[0]) if same.ndim else ()
    found = f"{got[first]!r}, expected {expected[first]!r}"
    return f"{int((~same).sum())} of {same.size} differ, first at {list(first)}: {found}"


def _array(value: Any) -> np.ndarray:
    array = numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else np.asarray(value)
    return array.astype(object) if array.dtype.kind in "US" else array


def _data_sets(case: Any, model: onnx.ModelProto) -> list[tuple[list[Any], list[Any]]]:
    if case.data_sets is not None:
        return [(list(inputs), list(outputs)) for inputs, outputs in case.data_sets]
    sets = []
    for folder in sorted(glob.glob(os.path.join(case.model_dir, "test_data_set_*"))):
        sets.append((_load(folder, "input", model.graph.input), _load(folder, "output", model.graph.output)))
    return sets


def _load(folder: str, prefix: str, infos: Any) -> list[Any]:
    return [
        _load_value(os.path.join(folder, f"{prefix}_{i}.pb"), infos[i].type)
        for i in range(len(glob.glob(os.path.join(folder, f"{prefix}_*.pb"))))
    ]


def _load_value(path: str, kind: onnx.TypeProto) -> Any:
    with open(path, "rb") as f:
        data = f.read()
    if kind.HasField("sequence_type"):
        return numpy_helper.to_list(onnx.SequenceProto.FromString(data))
    if kind.HasField("optional_type"):
        return numpy_helper.to_optional(onnx.OptionalProto.FromString(data))
    return numpy_helper.to_array(onnx.TensorProto.FromString(data))
