"""Convolutions by Winograd's method: against float64, and direct sums; the same bits for any number of threads."""

from __future__ import annotations

import backpass
import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper
from thread_bits_convolutions import UNITS, tile_bounds

Arrays = dict[str, np.ndarray]

# batch, channels in, channels out, height, width, padding before, padding after: tiles that end at the border and tiles
# that reach over it, one and several blocks of tiles, channels that leave a rest of a vector, both sizes of tiles
CASES = [
    (16, 32, 64, 26, 26, (0, 0), (0, 0)),
    (8, 64, 64, 16, 16, (1, 1), (1, 1)),
    (7, 65, 39, 9, 29, (1, 1), (1, 1)),
    (40, 64, 65, 6, 6, (2, 1), (0, 2)),
    (64, 48, 80, 4, 4, (1, 1), (1, 1)),
    (128, 128, 128, 2, 2, (1, 1), (1, 1)),
    (90, 40, 56, 3, 10, (1, 0), (1, 0)),
]


def model(feeds: Arrays, pads: list[int]) -> bytes:
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["y"], pads=pads),
        helper.make_node("ConvGrad", ["dy", "x", "w"], ["dx", "dw", "db"], domain="com.microsoft", pads=pads),
    ]
    inputs = [helper.make_tensor_value_info(k, TensorProto.FLOAT, v.shape) for k, v in feeds.items()]
    outputs = [onnx.ValueInfoProto(name=n) for n in ("y", "dx", "dw", "db")]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    graph = helper.make_graph(nodes, "g", inputs, outputs)
    return helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()


def results(data: bytes, feeds: Arrays, threads: int = 1, without: tuple[str, ...] = ()) -> list[np.ndarray]:
    options = backpass.SessionOptions()
    options.num_threads = threads
    options.disabled_passes = list(without)
    return backpass.InferenceSession(data, options).run(None, feeds)


def example(case: tuple, seed: int = 0) -> tuple[Arrays, list[int], list[np.ndarray], list[np.ndarray]]:
    """Feeds, padding, what float64 makes of them, and the same sums over magnitudes, which bound rounding."""
    n, c, k, height, width, before, after = case
    rng = np.random.default_rng(seed)
    x, w, b = (rng.standard_normal(s).astype(np.float32) for s in ((n, c, height, width), (k, c, 3, 3), (k,)))
    out = [height + before[0] + after[0] - 2, width + before[1] + after[1] - 2]
    dy = rng.standard_normal((n, k, *out)).astype(np.float32)

    def in_doubles(change: object) -> list[np.ndarray]:
        tx, tw, tb, tdy = (torch.from_numpy(change(v).astype(np.float64)) for v in (x, w, b, dy))
        leaves = [t.requires_grad_() for t in (tx, tw, tb)]
        padded = torch.nn.functional.pad(leaves[0], (before[1], after[1], before[0], after[0]))
        y = torch.nn.functional.conv2d(padded, leaves[1], leaves[2])
        return [y.detach().numpy(), *(g.numpy() for g in torch.autograd.grad(y, leaves, tdy))]

    return {"x": x, "w": w, "b": b, "dy": dy}, [*before, *after], in_doubles(np.asarray), in_doubles(np.abs)


def are_close(got: list[np.ndarray], wanted: list[np.ndarray], magnitudes: list[np.ndarray]) -> bool:
    bounds = tile_bounds([UNITS * m for m in magnitudes])
    return all(np.all(np.abs(a - b) <= bound) for a, b, bound in zip(got, wanted, bounds, strict=True))


@pytest.mark.parametrize("case", CASES)
def test_close_to_doubles_and_independent_of_threads(case: tuple) -> None:
    feeds, pads, wanted, magnitudes = example(case)
    data = model(feeds, pads)
    got = results(data, feeds)
    direct = results(data, feeds, without=("winograd_convolutions",))
    assert not np.array_equal(got[0], direct[0]), "Winograd's method was not used"
    assert are_close(got, wanted, magnitudes)
    for ours, plain, want in zip(got, direct, wanted, strict=True):
        error, plain_error = (np.sqrt(np.mean((v - want) ** 2)) for v in (ours, plain))
        assert error <= 8 * plain_error
    for threads in (2, 3):
        assert all(np.array_equal(a, b) for a, b in zip(got, results(data, feeds, threads), strict=True))


def test_random_shapes() -> None:
    """Whatever the sizes, with or without the pass."""
    rng = np.random.default_rng(5)
    for seed in range(25):
        before, after = (tuple(int(v) for v in rng.integers(0, 3, 2)) for _ in range(2))
        n, c, k = int(rng.integers(1, 60)), int(rng.integers(10, 60)), int(rng.integers(10, 60))
        height, width = (int(v) for v in rng.integers(3, 14, 2))
        feeds, pads, wanted, magnitudes = example((n, c, k, height, width, before, after), seed)
        got = results(model(feeds, pads), feeds, 2)
        assert are_close(got, wanted, magnitudes), (seed, n, c, k, height, width, pads)


def test_not_a_number_stays_near() -> None:
    """A NaN reaches every result that depends on it, and none outside of the tiles that hold it."""
    feeds, pads, _, _ = example(CASES[1])
    feeds["x"][3, 5, 2, 2] = np.nan
    y = results(model(feeds, pads), feeds)[0]
    assert np.isnan(y[3, :, 1:4, 1:4]).all()
    assert np.isfinite(y[:3]).all()
    assert np.isfinite(y[4:]).all()
    assert np.isfinite(y[3, :, 8:, 8:]).all()
