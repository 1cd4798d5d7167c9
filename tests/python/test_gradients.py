"""The gradient of every Row of op_rows/ that names differentiable inputs; gradient_check.py holds the judges."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import backpass
import gradient_check
import numpy as np
import op_case
import pytest
from gradient_check import Subject
from gradient_exceptions import NOT_JUDGED, REASONS, TESTED_ELSEWHERE
from op_case import Row
from unpacked import Unpacked

EVERYDAY_CASES = 4  # input sets per row outside `slow`
ROWS = [row for row in op_case.all_rows() if row.grad]


def supports(row: Row, dtype: str) -> bool:
    """By the row, or (as rows often name float32 only) by the operator."""
    op = gradient_check.declared().get((row.domain, row.op))
    types = op["types"].split(", ") if op else []
    return dtype in row.dtypes or dtype in types


def judged_in(row: Row) -> str:
    return "float64" if supports(row, "float64") else "float32"


def parameters() -> Iterator[Any]:
    for row in ROWS:
        yield pytest.param(row, EVERYDAY_CASES, id=row.label)
        if len(row.grad_cases) > EVERYDAY_CASES:
            yield pytest.param(row, None, id=f"{row.label}-all", marks=pytest.mark.slow)


def each(row: Row, dtype: str, limit: int | None, check: Any) -> None:
    """Runs `check` on the cases and reports all that is wrong."""
    problems, count = [], 0
    for s in gradient_check.chosen(row, dtype, limit):
        count += 1
        try:
            problem = check(s)
        except backpass.Error as e:
            problem = f"{type(e).__name__}: {e}"
        if problem:
            problems.append(f"{s.item}: {problem}")
    assert not problems, "\n".join(problems)
    assert count, f"no case of {row.label} can be differentiated: give it grad_inputs"


@pytest.mark.parametrize(("row", "limit"), list(parameters()))
def test_values(row: Row, limit: int | None) -> None:
    def check(s: Subject) -> str:
        gradients = s.gradients()
        return (
            gradient_check.well_formed(s)
            or gradient_check.against_differences(s, gradients)
            or gradient_check.against_torch(s, gradients)
            or gradient_check.with_symbols(s, gradients)
            or gradient_check.fused(s, gradients)
        )

    each(row, judged_in(row), limit, check)


@pytest.mark.parametrize(("row", "limit"), list(parameters()))
def test_float32(row: Row, limit: int | None) -> None:
    """The fused form and onnxruntime agree with the standard one."""

    def check(s: Subject) -> str:
        gradients = s.gradients()
        return gradient_check.fused(s, gradients) or gradient_check.against_onnxruntime(s, gradients)

    each(row, "float32", limit and limit // 2, check)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.label)
def test_second_derivative(row: Row) -> None:
    subjects = list(gradient_check.chosen(row, judged_in(row), EVERYDAY_CASES))
    smallest = min((s for s in subjects if size(s) > 1), key=size, default=subjects[0])
    problem = gradient_check.second_derivative(smallest)
    assert not problem, f"{smallest.item}: {problem}"


def size(s: Subject) -> int:
    return int(sum(s.feeds[name].size for name in s.wrt))


def further_floats(row: Row) -> list[int]:
    """Positions of float inputs that the row does not name as differentiable."""
    specs = (enumerate(op_case.instance(row, row.dtypes[0], c, row.opsets[0]).values) for c in row.grad_cases[:8])
    floats = {i for values in specs for i, v in values if isinstance(v, np.ndarray) and v.dtype.name in op_case.FLOATS}
    return sorted(floats - set(row.grad or ()))


FURTHER = [(row, i) for row in op_case.all_rows() if row.label not in NOT_JUDGED for i in further_floats(row)]


@pytest.mark.parametrize(("row", "i"), FURTHER, ids=lambda value: getattr(value, "label", value))
def test_inputs_without_a_rule_have_no_slope(row: Row, i: int) -> None:
    """A gradient of zero, or any other, is right; or it is refused by name."""
    row = dataclasses.replace(row, grad=[i])
    for s in gradient_check.chosen(row, judged_in(row), 2):
        try:
            gradients = s.gradients()
        except backpass.Unsupported:
            continue
        problem = gradient_check.against_differences(s, gradients)
        assert not problem, f"{s.item}: {problem}"


HALVES = [(row, dtype) for row in ROWS for dtype in ("float16", "bfloat16") if dtype in row.dtypes]


@pytest.mark.parametrize(("row", "dtype"), HALVES, ids=lambda value: getattr(value, "label", value))
def test_halves(row: Row, dtype: str) -> None:
    """16-bit gradients are those of float32 at the same, already rounded, inputs."""

    def check(s: Subject) -> str:
        got = s.gradients()
        wide = widened(s)
        want = [w.astype(g.dtype) for w, g in zip(wide.gradients(), got, strict=True)]
        tolerance = {"float16": 2e-2, "bfloat16": 8e-2}[dtype]
        return gradient_check.all_close(s.wrt, got, want, tolerance, dtype) or gradient_check.fused(s, got)

    each(row, dtype, 2, check)


def widened(s: Subject) -> Subject:
    item = dataclasses.replace(s.item, dtype="float32", values=[op_case.widen(v) for v in s.item.values])
    if isinstance(item, Unpacked):
        item.forward = [op_case.widen(v) for v in item.forward]
    return Subject(item, s.wrt, {k: op_case.widen(v) for k, v in s.seeds.items()}, [])


def test_every_operator_is_differentiable_or_says_why_not() -> None:
    ops = [op for op in backpass.ops() if op["domain"] == ""]
    classes = {op["name"]: gradient_check.gradient_class(op) for op in ops}
    missing = sorted(name for name, kind in classes.items() if kind == "missing")
    assert not missing, "write a rule, set is_flat, or give the reason in gradient_exceptions.py"
    assert set(REASONS) == {name for name, kind in classes.items() if kind == "exception"}, "stale reasons"
    tested = {row.op for row in ROWS if row.domain == ""} | set(TESTED_ELSEWHERE)
    untested = sorted(name for name, kind in classes.items() if kind == "differentiable" and name not in tested)
    assert not untested, "give their rows grad=[...]"


def test_finite_differences_notice_a_wrong_gradient() -> None:
    row = next(r for r in ROWS if r.label == "Mul")
    s = next(gradient_check.chosen(row, "float64", 1))
    right = s.gradients()
    assert not gradient_check.against_differences(s, right)
    wrong = [right[0] * (1 + 1e-5), right[1]]
    assert gradient_check.against_differences(s, wrong)
    assert gradient_check.close(np.ones(3), np.array([1, 1, 1.1]), 1e-6, "ones")
