"""Gradients that exist by a kernel of their own only: finite differences in double, with known and symbolic extents."""

from __future__ import annotations

import itertools
from typing import Any

import backpass
import gradient_check
import numpy as np
import pytest
from gradient_exceptions import WITHOUT_STANDARD_FORM
from op_case import Case, Instance, Row, case

RNG = np.random.default_rng(5)
ROIS = np.array([[1, 1, 6, 7], [0, 0, 11, 9], [3.5, 2.25, 3.75, 8], [-2, -2, 30, 20]])
BATCH = np.array([0, 1, 1, 0])


def normal(*shape: int) -> np.ndarray:
    return np.asarray(RNG.standard_normal(shape))


GRIDS = [
    (normal(2, 3, 5, 6), RNG.uniform(-1.6, 1.6, (2, 4, 7, 2))),
    (normal(1, 2, 3, 4, 5), RNG.uniform(-1.3, 1.3, (1, 2, 3, 2, 3))),
    (normal(1, 1, 4, 4), np.zeros((1, 0, 3, 2))),
]
CASES: list[tuple[str, list[int], Case]] = [
    *(
        ("GridSample", [0] if m == "nearest" else [0, 1], case(x, grid, mode=m, padding_mode=p, align_corners=a))
        for (x, grid), m, p, a in itertools.product(
            GRIDS, ("linear", "nearest", "cubic"), ("zeros", "border", "reflection"), (0, 1)
        )
    ),
    *(
        ("RoiAlign", [0], case(normal(2, 3, 10, 12), ROIS, BATCH, **attrs))
        for attrs in (
            {"output_height": 3, "output_width": 4, "sampling_ratio": 2},
            {"output_height": 2, "output_width": 2, "spatial_scale": 0.5},
            {"output_height": 2, "output_width": 2, "mode": "max"},
            {"coordinate_transformation_mode": "output_half_pixel"},
        )
    ),
    (
        "MaxRoiPool",
        [0],
        case(
            normal(2, 3, 10, 12), np.array([[0.0, 1, 1, 6, 8], [1, 0, 0, 11, 9], [1, 5, 5, 5, 5]]), pooled_shape=[3, 2]
        ),
    ),
]


@pytest.mark.parametrize(("op", "wrt", "one"), CASES, ids=lambda v: v if isinstance(v, str) else None)
def test_finite_differences(op: str, wrt: list[int], one: Case) -> None:
    item = Instance(Row(op, [one]), "float64", one, 22, list(one.inputs))
    names = [f"x{i}" for i in wrt]
    session = backpass.InferenceSession(item.model().SerializeToString())

    def forward(feeds: dict[str, Any]) -> list[np.ndarray]:
        return session.run(None, feeds)

    seed = normal(*forward(item.feeds)[0].shape)
    found = []
    for dynamic in (False, True):
        model = backpass.grad(item.model(dynamic=dynamic), names, seeds=True, standard_only=False)
        result = backpass.InferenceSession(model.SerializeToString()).run(None, {**item.feeds, "y0_grad": seed})
        found.append(result[-len(names) :])
    problem = gradient_check.finite_differences(forward, item.feeds, names, [seed], found[0])
    assert not problem
    assert all(np.array_equal(a, b) for a, b in zip(*found, strict=True))


def test_exactly_the_listed_operators_have_no_standard_form() -> None:
    assert {op for op, _, _ in CASES} == set(WITHOUT_STANDARD_FORM)
    item = Instance(Row("GridSample", [CASES[0][2]]), "float64", CASES[0][2], 22, list(CASES[0][2].inputs))
    with pytest.raises(backpass.Unsupported, match="GridSample"):
        backpass.grad(item.model(), ["x0"])
