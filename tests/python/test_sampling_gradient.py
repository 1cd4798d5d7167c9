"""Gradients of what reads a tensor between its elements, for every combination of attributes (the rows show a few):
finite differences in double, the fused kernel, symbolic extents, a second derivative; and places on the edges."""

from __future__ import annotations

import itertools
from typing import Any

import backpass
import gradient_check
import numpy as np
import pytest
from gradient_check import Subject
from op_case import Case, Instance, Row, case

RNG = np.random.default_rng(5)


def normal(*shape: int) -> np.ndarray:
    return np.asarray(RNG.standard_normal(shape))


def image_and_grid(shape: tuple[int, ...], grid: tuple[int, ...], reach: float) -> tuple[np.ndarray, np.ndarray]:
    """Coordinates keep clear of elements and of what lies half way between them, where slopes change."""
    lengths = np.array(shape[:1:-1])
    points = RNG.uniform(-reach, reach, (1000, grid[-1]))
    places = np.concatenate([(points + 1) / 2 * (lengths - 1), ((points + 1) * lengths - 1) / 2], 1)
    clear = (np.abs(2 * places - np.round(2 * places)) > 1e-3).all(1)
    return normal(*shape), points[clear][: np.prod(grid[:-1])].reshape(grid)


GRIDS = [
    image_and_grid((2, 2, 4, 5), (2, 2, 3, 2), 1.6),
    image_and_grid((1, 2, 3, 4, 3), (1, 2, 2, 1, 3), 1.3),
    image_and_grid((2, 1, 5), (2, 4, 1), 2.5),
]
CASES: list[tuple[str, list[int], Case]] = [
    ("GridSample", [0] if m == "nearest" else [0, 1], case(x, grid, mode=m, padding_mode=p, align_corners=a))
    for (x, grid), m, p, a in itertools.product(
        GRIDS, ("linear", "nearest", "cubic"), ("zeros", "border", "reflection"), (0, 1)
    )
]


def subject(op: str, wrt: list[int], one: Case, seed: int = 7) -> Subject:
    item = Instance(Row(op, [one]), "float64", one, 22, list(one.inputs))
    found = Subject(item, [f"x{i}" for i in wrt], {}, [])
    found.forward = found.session.run(None, item.feeds)
    found.seeds["y0_grad"] = np.random.default_rng(seed).standard_normal(found.forward[0].shape)
    return found


@pytest.mark.parametrize(
    ("op", "wrt", "one"),
    CASES,
    ids=lambda v: v if isinstance(v, str) else "-".join(map(str, v.attrs.values())) if isinstance(v, Case) else "",
)
def test_gradients(op: str, wrt: list[int], one: Case) -> None:
    s = subject(op, wrt, one)
    gradients = s.gradients()
    problem = (
        gradient_check.well_formed(s)
        or gradient_check.against_differences(s, gradients)
        or gradient_check.with_symbols(s, gradients)
        or gradient_check.fused(s, gradients)
        or gradient_check.second_derivative(s)
    )
    assert not problem


def both_forms(op: str, wrt: list[int], one: Case) -> list[np.ndarray]:
    s = subject(op, wrt, one)
    gradients = s.gradients()
    assert not gradient_check.fused(s, gradients)
    return gradients


@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["linear", "nearest", "cubic"])
def test_a_grid_that_is_no_number_or_far_away_reads_the_same_in_both_forms(mode: str, padding: str) -> None:
    grid = np.array([[[[np.nan, 0.1], [0.2, np.nan], [1e30, -1e30], [37.3, -41.2], [-1.0, 1.0]]]])
    for align, x in itertools.product((0, 1), (normal(1, 2, 3, 4), normal(1, 1, 1, 2))):
        one = case(x, grid, mode=mode, padding_mode=padding, align_corners=align)
        assert all(np.isfinite(g).all() for g in both_forms("GridSample", [0, 1], one))


def test_ties_of_pooled_rectangles_go_to_the_first() -> None:
    x = np.ones((1, 1, 4, 4))
    rois = np.array([[0.0, 0, 0, 3, 3]])
    (got,) = both_forms("MaxRoiPool", [0], case(x, rois, pooled_shape=[1, 2]))
    assert np.flatnonzero(got).tolist() == [0, 2]
    (got,) = both_forms("RoiAlign", [0], case(x, rois[:, 1:], np.array([0]), mode="max", sampling_ratio=1))
    assert np.count_nonzero(got) == 1


def test_deformed_positions_on_and_over_the_edges() -> None:
    x, w = normal(1, 1, 3, 3), normal(1, 1, 1, 1)
    offset = np.zeros((1, 2, 3, 3))
    offset[0, 0] = [[-1, -1.5, -0.25], [np.nan, 1, 2.5], [0.75, 1, np.inf]]
    s = subject("DeformConv", [0, 1, 2], case(x, w, offset))
    dx, dw, doffset = s.gradients()
    assert all(np.isfinite(g).all() for g in (dx, dw, doffset))
    assert not doffset[0, 0][[0, 1, 1, 2], [1, 0, 2, 2]].any()  # beyond the edge nothing is read
    inside = np.nan_to_num(s.seeds["y0_grad"])
    np.testing.assert_allclose(dw.ravel(), (inside * s.forward[0] / w.ravel()[0]).sum(), rtol=1e-12)


def test_deform_conv_of_halves_computes_positions_in_float32() -> None:
    """Coordinates near 200 have no fractions in bfloat16."""
    one = case(normal(1, 1, 1, 300), np.ones((1, 1, 1, 1)), np.full((1, 2, 1, 300), 0.25))
    wide = subject("DeformConv", [2], one).gradients()[0]
    item = Instance(Row("DeformConv", [one]), "bfloat16", one, 22, [narrow(v) for v in one.inputs])
    model = backpass.grad(item.model(), ["x2"], seeds=True)
    seed = narrow(subject("DeformConv", [2], one).seeds["y0_grad"])
    got = backpass.InferenceSession(model.SerializeToString()).run(None, {**item.feeds, "y0_grad": seed})[-1]
    np.testing.assert_allclose(np.asarray(got, np.float64), wide, atol=0.1)


def narrow(value: Any) -> np.ndarray:
    return np.asarray(value).astype("bfloat16")
