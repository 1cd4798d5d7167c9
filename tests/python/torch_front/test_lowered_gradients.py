"""aten's gradient operators, as AOT graphs hold them: torch's values, computed by the engine alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import backpass
import pytest
import torch
from backpass.torch import export_graph
from torch.fx.experimental.proxy_tensor import make_fx

aten = torch.ops.aten
IGNORED = -100


def x(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, dtype=dtype)


def labels(*shape: int, ignored: int = 1, classes: int = 5) -> torch.Tensor:
    drawn = torch.randint(0, classes, shape)
    drawn.reshape(-1)[:ignored] = IGNORED
    return drawn


def statistics(images: torch.Tensor, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    flat = images.double().reshape(rows, -1)
    inverse = (flat.var(1, unbiased=False) + 1e-5).rsqrt()
    return flat.mean(1).to(images.dtype), inverse.to(images.dtype)


def normalised(images: torch.Tensor, groups: int, mask: Sequence[bool], weight: bool = True) -> tuple[Any, ...]:
    n, c = images.shape[:2]
    shape = (n, groups)
    mean, inverse = (s.reshape(shape) for s in statistics(images, n * groups))
    scale = x(c, dtype=images.dtype) if weight else None
    return torch.randn_like(images), images, mean, inverse, scale, n, c, images[0, 0].numel(), groups, list(mask)


def batches(images: torch.Tensor, train: bool, mask: Sequence[bool]) -> tuple[Any, ...]:
    c = images.shape[1]
    mean, inverse = statistics(images.transpose(0, 1).contiguous(), c)
    running = (x(c), torch.rand(c) + 0.5)
    return torch.randn_like(images), images, x(c), *running, mean, inverse, train, 1e-5, list(mask)


def pooled(function: Any, images: torch.Tensor, *settings: Any) -> tuple[Any, ...]:
    return torch.randn_like(function(images, *settings)), images, *settings


def rows() -> dict[str, tuple[Any, tuple[Any, ...]]]:
    average, average3 = torch.nn.functional.avg_pool2d, torch.nn.functional.avg_pool3d
    narrow = (x(2, 3, 7, 6), x(2, 5, 4, 2).clamp(-1.2, 1.2))
    mask = torch.tensor([[True, False, True], [False, True, True]])
    return {
        "gelu": (aten.gelu_backward, (x(3, 4), x(3, 4))),
        "gelu by tanh": (lambda *a: aten.gelu_backward(*a, approximate="tanh"), (x(3, 4), x(3, 4))),
        "silu": (aten.silu_backward, (x(3, 4), x(3, 4))),
        "threshold": (aten.threshold_backward, (x(3, 4), x(3, 4), 0)),
        "another threshold": (aten.threshold_backward, (x(3, 4), x(3, 4), 0.3)),
        "dropout": (aten.native_dropout_backward, (x(4, 5), torch.rand(4, 5) > 0.3, 1 / 0.7)),
        "nothing dropped or all": (aten.native_dropout_backward, (x(4, 5), torch.zeros(4, 5) > 0, 0.0)),
        "softmax of a number": (aten._softmax_backward_data, (x(), torch.ones(()), 0, torch.float32)),
        "log softmax": (aten._log_softmax_backward_data, (x(3, 4), x(3, 4).log_softmax(-1), -1, torch.float32)),
        "embedding": (aten.embedding_dense_backward, (x(2, 3, 4), torch.randint(0, 6, (2, 3)), 6, -1, False)),
        "embedding, padded": (aten.embedding_dense_backward, (x(9, 4), torch.randint(0, 4, (9,)), 4, 2, False)),
        "embedding, scaled": (aten.embedding_dense_backward, (x(9, 4), torch.randint(0, 4, (9,)), 4, 1, True)),
        "embedding, nothing looked up": (aten.embedding_dense_backward, (x(0, 4), labels(0), 4, -1, False)),
        "nll mean": (aten.nll_loss_backward, (x(), x(6, 5), labels(6), None, 1, IGNORED, torch.tensor(5.0))),
        "nll, all ignored": (
            aten.nll_loss_backward,
            (x(), x(6, 5), labels(6, ignored=6), None, 1, IGNORED, torch.tensor(0.0)),
        ),
        "nll without weight": (
            aten.nll_loss_backward,
            (x(), x(6, 5), labels(6), torch.zeros(5), 1, IGNORED, torch.tensor(0.0)),
        ),
        "nll, a class ignored": (
            aten.nll_loss_backward,
            (x(), x(6, 5), torch.full((6,), 2), None, 1, 2, torch.tensor(0.0)),
        ),
        "nll of one": (aten.nll_loss_backward, (x(), x(5), torch.tensor(3), None, 1, IGNORED, torch.tensor(1.0))),
        "nll none, weighted": (
            aten.nll_loss_backward,
            (x(6), x(6, 5), labels(6), torch.rand(5), 0, IGNORED, torch.tensor(0.0)),
        ),
        "nll of images": (
            aten.nll_loss2d_backward,
            (x(), x(2, 5, 3, 4), labels(2, 3, 4), torch.ones(5), 2, IGNORED, torch.tensor(23.0)),
        ),
        "batch norm": (aten.native_batch_norm_backward, batches(x(3, 4, 5), True, (True, True, True))),
        "batch norm, fixed": (aten.native_batch_norm_backward, batches(x(3, 4, 5), False, (True, True, True))),
        "batch norm, some": (aten.native_batch_norm_backward, batches(x(3, 4), False, (False, True, False))),
        "group norm": (aten.native_group_norm_backward, normalised(x(2, 6, 3, 2), 3, (True, True, True))),
        "group norm, some": (aten.native_group_norm_backward, normalised(x(2, 4, 3), 2, (False, True, True))),
        "group norm, plain": (
            aten.native_group_norm_backward,
            normalised(x(2, 4, 3), 4, (True, False, False), weight=False),
        ),
        "average": (aten.avg_pool2d_backward, pooled(average, x(2, 3, 7, 8), [3, 2], [2], [1, 0], True, False, None)),
        "average with pads": (aten.avg_pool2d_backward, pooled(average, x(3, 7, 8), [3], [], [1], False, True, None)),
        "average by a divisor": (aten.avg_pool2d_backward, pooled(average, x(1, 7, 8), [3], [], [0], False, True, 5)),
        "average of volumes": (
            aten.avg_pool3d_backward,
            pooled(average3, x(2, 5, 6, 4), [2], [1], [0], True, True, None),
        ),
        "adaptive average": (aten._adaptive_avg_pool2d_backward, (x(2, 3, 3, 2), x(2, 3, 7, 5))),
        "global average": (aten._adaptive_avg_pool3d_backward, (x(2, 3, 1, 1, 1), x(2, 3, 4, 5, 2))),
        "maximum": (aten.max_pool2d_with_indices_backward, maximum(x(2, 3, 6, 7))),
        "adaptive maximum": (aten.adaptive_max_pool2d_backward, adaptive_maximum(x(3, 6, 7))),
        "grid": (aten.grid_sampler_2d_backward, (x(2, 3, 5, 4), *narrow, 0, 0, False, [True, True])),
        "grid alone": (aten.grid_sampler_2d_backward, (x(2, 3, 5, 4), *narrow, 0, 1, True, [False, True])),
        "edges": (aten.replication_pad2d_backward, (x(2, 3, 7, 9), x(2, 3, 4, 4), [2, 3, 0, 3])),
        "edges cut": (aten.replication_pad1d_backward, (x(2, 3, 3), x(2, 3, 5), [-1, -1])),
        "edges of nothing": (aten.replication_pad1d_backward, (x(2, 3, 3), x(2, 3, 2), [-2, 3])),
        "masked": (aten.masked_scatter_backward, (x(2, 3), mask, [5])),
        "masked, broadcast": (aten.masked_scatter_backward, (x(4, 2, 3), mask, [4, 5])),
        "select": (aten.select_backward, (x(3, 5), [3, 4, 5], 1, -2)),
        "slice": (aten.slice_backward, (x(3, 2, 5), [3, 4, 5], 1, 0, 4, 2)),
        "half: nll": (aten.nll_loss_backward, half(x(), x(6, 5), labels(6), None, 1, IGNORED, torch.tensor(5.0))),
        "half: group norm": (
            aten.native_group_norm_backward,
            normalised(x(2, 4, 3, dtype=torch.bfloat16), 2, (True, True, True)),
        ),
        "half: embedding": (
            aten.embedding_dense_backward,
            half(x(9, 4), torch.randint(0, 4, (9,)), 4, 1, False),
        ),
    }


def half(*arguments: Any) -> tuple[Any, ...]:
    floats = [isinstance(a, torch.Tensor) and a.is_floating_point() for a in arguments]
    return tuple(a.bfloat16() if f else a for a, f in zip(arguments, floats, strict=True))


def maximum(images: torch.Tensor) -> tuple[Any, ...]:
    settings = ([3, 2], [2, 2], [1, 0], [1, 1], True)
    y, places = aten.max_pool2d_with_indices(images, *settings)
    return torch.randn_like(y), images, *settings, places


def adaptive_maximum(images: torch.Tensor) -> tuple[Any, ...]:
    y, places = aten.adaptive_max_pool2d(images, [4, 3])
    return torch.randn_like(y), images, places


def listed(results: Any) -> list[torch.Tensor]:
    every = results if isinstance(results, tuple | list) else [results]
    return [r for r in every if r is not None]


@pytest.mark.parametrize("name", rows())
def test_gradient_is_torchs(name: str) -> None:
    function, arguments = rows()[name]
    tensors = [a for a in arguments if isinstance(a, torch.Tensor)]

    def called(*given: torch.Tensor) -> list[torch.Tensor]:
        left = iter(given)
        return listed(function(*(next(left) if isinstance(a, torch.Tensor) else a for a in arguments)))

    exported = export_graph(make_fx(called, tracing_mode="fake")(*tensors))
    assert not exported.fallbacks
    feeds = {spec.name: t for spec, t in zip(exported.inputs, tensors, strict=True)}
    session = backpass.InferenceSession(exported.proto)
    got = session.run_tensors(None, {i.name: feeds[i.name] for i in session.get_inputs()})
    for ours, eager in zip(map(torch.from_dlpack, got), called(*tensors), strict=True):
        close = {"rtol": 2e-2, "atol": 2e-2} if eager.dtype == torch.bfloat16 else {"rtol": 1e-4, "atol": 1e-5}
        torch.testing.assert_close(ours, eager, equal_nan=True, check_stride=False, **close)
