"""Every Row of op_rows/ for its element types and opsets; op_case.py says what a row declares."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import backend_cases
import backpass
import judges
import numpy as np
import onnx
import op_case
import op_oracle
import pytest
from op_case import Instance, Row

DRAWN = "drawn by chance"
SECOND_DTYPE_SETS = 3  # input sets of the element types after the first, outside `slow`


def row_parameters() -> Iterator[Any]:
    for row in op_case.all_rows():
        for opset in row.opsets:
            for position, dtype in enumerate(row.dtypes if opset == row.opsets[0] else row.dtypes[:1]):
                name = f"{row.label}-{opset}-{dtype}"
                short = position > 0 and len(row.cases) > SECOND_DTYPE_SETS
                yield pytest.param(row, dtype, opset, SECOND_DTYPE_SETS if short else None, id=name)
                if short:
                    yield pytest.param(row, dtype, opset, None, id=f"{name}-all", marks=pytest.mark.slow)


@pytest.mark.parametrize(("row", "dtype", "opset", "limit"), list(row_parameters()))
def test_row(row: Row, dtype: str, opset: int, limit: int | None) -> None:
    problems = []
    for item in op_case.instances(row, dtype, opset, limit):
        try:
            problem = check(item)
        except backpass.Error as e:
            problem = f"{type(e).__name__}: {e}"
        if problem:
            problems.append(f"{item}: {problem}")
    assert not problems, "\n".join(problems)


def check(item: Instance) -> str:
    """Forward value, then the same with every extent symbolic, then what shape inference said. What is wrong, or ""."""
    static = backpass.InferenceSession(item.model().SerializeToString())
    outputs = static.run(None, item.feeds)
    problem = check_values(item, outputs) or check_inferred(static, outputs, exact=item.row.sized)
    if problem:
        return problem
    dynamic = backpass.InferenceSession(item.model(dynamic=True).SerializeToString())
    again = dynamic.run(None, item.feeds)
    same = item.row.oracle != "random"
    problem = backend_cases.compare_all(again, outputs, 0.0, 0.0, values=same)
    problem = problem or check_inferred(dynamic, again, bindings(item))
    return f"with symbolic extents: {problem}" if problem else ""


def check_values(item: Instance, outputs: list[Any]) -> str:
    if item.row.oracle == "random":
        return judges.pass_over("the oracle", DRAWN)
    wanted = op_oracle.expected(item)
    if len(outputs) != len(wanted):
        return f"{len(outputs)} outputs, the oracle gives {len(wanted)}"
    for i, (got, want) in enumerate(zip(outputs, wanted, strict=True)):
        problem = check_value(item, got, want)
        if problem:
            return f"output {i}: {problem}"
    return ""


def check_value(item: Instance, got: Any, want: Any) -> str:
    if isinstance(want, list):
        if not isinstance(got, list) or len(got) != len(want):
            return f"got {got!r}, expected a sequence of {len(want)}"
        return next(filter(None, (check_value(item, g, w) for g, w in zip(got, want, strict=True))), "")
    want = np.asarray(want)
    if op_case.is_half(got) and want.dtype == np.float32:
        want = want.astype(got.dtype)
    dtype = got.dtype.name if isinstance(got, np.ndarray) else ""
    if dtype in op_case.FLOATS and item.dtype in ("float16", "bfloat16"):
        dtype = item.dtype  # e.g. a float32 result computed from 16-bit intermediate values
    rtol, atol = item.row.tolerance(dtype)
    return backend_cases.compare(got, want, rtol, atol)


def bindings(item: Instance) -> dict[str, int]:
    return {f"{k}_{i}": n for k, v in item.feeds.items() if not isinstance(v, list) for i, n in enumerate(v.shape)}


def check_inferred(session: Any, outputs: list[Any], symbols: dict[str, int] | None = None, exact: bool = False) -> str:
    """Extents inferred as numbers or as symbols of inputs must be those of the result; `exact`: all are numbers."""
    for info, value in zip(session.get_outputs(), outputs, strict=True):
        if isinstance(value, list) or value is None:
            continue
        if info.shape is None or len(info.shape) != value.ndim:
            if exact or info.shape is not None:
                return f"inferred shape {info.shape}, actual {list(value.shape)}"
            continue
        for declared, actual in zip(info.shape, value.shape, strict=True):
            known = (symbols or {}).get(declared, declared if isinstance(declared, int) else None)
            if (known is None and exact) or (known is not None and known != actual):
                return f"inferred shape {info.shape}, actual {list(value.shape)}"
    return ""


def test_every_operator_has_a_row_or_a_backend_case() -> None:
    rows = {(row.domain, row.op) for row in op_case.all_rows()}
    cases = {pair for name in backend_cases.cases() for pair in backend_cases.operators_of(name)}
    untested = [op["name"] for op in backpass.ops() if op["domain"] == "" and ("", op["name"]) not in rows | cases]
    assert not untested, "add a row to tests/python/op_rows"


def test_rows_name_operators_that_exist() -> None:
    known = {(op["domain"], op["name"]) for op in backpass.ops()}
    # Operators that import rewrites away are known to the schema only.
    missing = {(r.domain, r.op) for r in op_case.all_rows()} - known
    assert not [pair for pair in missing if not onnx.defs.has(pair[1], pair[0])]


def test_row_labels_are_unique() -> None:
    seen: set[str] = set()
    twice = [r.label for r in op_case.all_rows() if r.label in seen or seen.add(r.label)]
    assert not twice, "give rows of the same operator a name="
