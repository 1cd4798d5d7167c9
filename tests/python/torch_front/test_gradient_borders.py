"""Gradients exactly where a function has a corner: PyTorch's, by both front ends."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from backpass import ORTModule
from backpass.dynamo import backpass
from backpass.torch import to_onnx
from torch import nn

FUNCTIONS = {
    "relu6": F.relu6,
    "nn.ReLU6": nn.ReLU6(),
    "hardtanh": F.hardtanh,
    "hardtanh, other bounds": lambda x: F.hardtanh(x, -3.0, 0.5),
    "hardtanh, bounds that 16 bits do not hold": lambda x: F.hardtanh(x, 0.3, 0.7),
    "hardtanh from zero": lambda x: F.hardtanh(x, 0.0, 1.0),
    "clamp": lambda x: x.clamp(-1, 6),
    "hardsigmoid": F.hardsigmoid,
    "hardswish": F.hardswish,
    "threshold": lambda x: F.threshold(x, 0.5, -1.0),
}
WAYS = {"ORTModule": ORTModule, "compile": lambda module: torch.compile(module, backend=backpass)}
BORDERS = [-3.0, -1.0, -0.0, 0.0, 0.3, 0.5, 0.7, 1.0, 3.0, 6.0]
OTHERS = [-torch.inf, -4.0, -0.5, 0.25, 2.0, 6.5, torch.inf]


class Applied(nn.Module):
    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        return [function(x) for function in FUNCTIONS.values()]


def gradients(module: Any, x: torch.Tensor) -> dict[str, torch.Tensor]:
    """Of each function by itself, at factors that are not one."""
    weight = torch.arange(1, len(x) + 1, dtype=x.dtype)
    found = {}
    for i, name in enumerate(FUNCTIONS):
        leaf = x.clone().requires_grad_()
        found[name] = torch.autograd.grad((module(leaf)[i] * weight).sum(), leaf)[0]
    return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("way", WAYS)
def test_gradients_at_corners(way: str, dtype: torch.dtype) -> None:
    """torch's own gradients at NaN depend on where in a vector it lies; that results are NaN does not."""
    x = torch.tensor([*BORDERS, *OTHERS], dtype=dtype)
    module = WAYS[way](Applied())
    tolerance = {"rtol": 1e-2, "atol": 0} if dtype == torch.bfloat16 else {"rtol": 1e-6, "atol": 1e-6}
    same = functools.partial(torch.testing.assert_close, equal_nan=True, **tolerance)
    expected = gradients(Applied(), x)
    for name, found in gradients(module, x).items():
        torch.testing.assert_close(
            found, expected[name], equal_nan=True, **tolerance, msg=lambda m, n=name: f"{n}: {m}"
        )
    unknown = torch.cat([x, torch.full((1,), torch.nan, dtype=dtype)])
    for name, *results in zip(FUNCTIONS, module(unknown), Applied()(unknown), strict=True):
        same(*results, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize("module", [nn.ReLU6(), nn.Hardtanh()], ids=str)
def test_files_for_others_have_one_operator(module: nn.Module) -> None:
    """Where nobody asks for gradients, ONNX's own operator is what other programs know best."""
    assert [node.op_type for node in to_onnx(module, (torch.ones(3),)).graph.node] == ["Clip"]
