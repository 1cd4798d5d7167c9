"""Random convolutions for thread_bits.py, with what torch makes of them in float64."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from onnx import helper
from thread_bits import Arrays, Rng, Trial, graph_model, with_gradients

# Multiplications of one trial at most: some milliseconds.
MOST_WORK = 2**24
CHANNELS = [1, 2, 3, 4, 5, 7, 8, 8, 12, 15, 16, 16, 17, 20, 24, 30, 32, 32, 40, 48, 64, 64, 96, 128, 256]
SIZES = {1: [1, 3, 8, 17, 33, 64, 100, 257], 2: [1, 2, 3, 5, 7, 8, 13, 14, 16, 28, 33, 56], 3: [1, 2, 3, 5, 7, 8]}
# Rounding of a sum grows with the sum of its terms' magnitudes; direct sums stay well below this many units of it.
UNITS = 8 * 2.0**-24
# Winograd's tiles give several results from shared terms: these round by the largest magnitudes in reach, images twice
# as much.
TILE_REACH = 7


@dataclass(frozen=True)
class Sizes:
    """X and W as shapes (of Conv; ConvTranspose exchanges the channels of W), and the attributes of the operator."""

    x: tuple[int, ...]
    w: tuple[int, ...]
    strides: tuple[int, ...]
    pads: tuple[int, ...]  # at both ends
    dilations: tuple[int, ...]
    group: int = 1

    @property
    def attributes(self) -> dict[str, Any]:
        pads = [*self.pads, *self.pads]
        return {"strides": self.strides, "pads": pads, "dilations": self.dilations, "group": self.group}

    @property
    def work(self) -> int:
        """Of the convolution, and an upper bound of that of the transposed one."""
        return int(np.prod(self.w) * self.x[0] * np.prod(self.x[2:]))

    @property
    def may_use_tiles(self) -> bool:
        return self.w[2:] == (3, 3) and self.strides == self.dilations == (1, 1) and self.group == 1

    def fits(self) -> bool:
        reach = [(k - 1) * d + 1 for k, d in zip(self.w[2:], self.dilations, strict=True)]
        return all(i + 2 * p >= r for i, p, r in zip(self.x[2:], self.pads, reach, strict=True))

    def fits_transposed(self) -> bool:
        reach = [(k - 1) * d + 1 for k, d in zip(self.w[2:], self.dilations, strict=True)]
        axes = zip(self.x[2:], self.strides, self.pads, reach, strict=True)
        return all((i - 1) * t + r > 2 * p for i, t, p, r in axes)


def _channels(rng: Rng) -> tuple[int, int, int]:
    """Groups, channels in and out."""
    kind = rng.choice(["dense", "depthwise", "multiplied", "grouped"], p=[0.6, 0.15, 0.05, 0.2])
    c, m = (int(v) for v in rng.choice(CHANNELS, 2))
    if kind == "dense":
        return 1, c, m
    if kind == "depthwise":
        return c, c, c
    if kind == "multiplied":
        return c, c, c * int(rng.integers(2, 4))
    groups = int(rng.choice([2, 3, 4, 8, 16, 32]))
    c, m = (int(v) for v in rng.choice([1, 2, 3, 4, 7, 8, 16, 24], 2))
    return groups, c * groups, m * groups


def random_sizes(rng: Rng) -> Sizes:
    while True:
        rank = int(rng.choice([1, 2, 3], p=[0.2, 0.65, 0.15]))
        groups, c, m = _channels(rng)
        batch = int(rng.choice([1, 1, 2, 3, 4, 5, 8, 13, 16, 32]))
        square = rng.random() < 0.7

        def per_axis(choices: Any, p: Any = None, rank: int = rank, square: bool = square) -> tuple[int, ...]:
            values = tuple(int(v) for v in rng.choice(choices, rank, p=p))
            return values[:1] * rank if square else values

        image = per_axis(SIZES[rank])
        kernel = per_axis([1, 2, 3, 4, 5, 7], [0.3, 0.1, 0.35, 0.05, 0.1, 0.1])
        found = Sizes(
            (batch, c, *image),
            (m, c // groups, *kernel),
            per_axis([1, 2, 3], [0.6, 0.3, 0.1]),
            per_axis([0, 1, 2, 3], [0.35, 0.45, 0.1, 0.1]),
            per_axis([1, 2, 3], [0.8, 0.15, 0.05]),
            groups,
        )
        if found.work <= MOST_WORK and found.fits():
            return found


# ---- The reference: the same sums in float64, and the sums of their terms' magnitudes.
Function = Callable[..., torch.Tensor]


def torch_convolution(s: Sizes, transposed: bool) -> Function:
    name = f"conv{'_transpose' if transposed else ''}{len(s.x) - 2}d"
    settings = {"stride": s.strides, "padding": s.pads, "dilation": s.dilations, "groups": s.group}
    return lambda x, w, b=None: getattr(torch.nn.functional, name)(x, w, b, **settings)


def references(function: Function, feeds: Arrays, seed: np.ndarray | None) -> tuple[list[Any], list[Any]]:
    """The output and the gradients for every feed (none without a seed), and how far off they may be."""
    results = []
    for transform in (lambda a: a, np.abs):
        leaves = [torch.from_numpy(transform(a).astype(np.float64)).requires_grad_() for a in feeds.values()]
        y = function(*leaves)
        parts = [y.detach()]
        if seed is not None:
            parts += torch.autograd.grad(y, leaves, torch.from_numpy(transform(seed).astype(np.float64)))
        results.append([p.numpy() for p in parts])
    return results[0], [UNITS * magnitude + 1e-30 for magnitude in results[1]]


def image_bound(bound: Any) -> Any:
    return 2 * torch.nn.functional.max_pool2d(torch.from_numpy(bound), TILE_REACH, 1, TILE_REACH // 2).numpy()


def tile_bounds(bounds: list[Any]) -> list[Any]:
    """Of y, the gradients of x and w, and others: by the largest bound that shares a tile with an element."""
    y, x = (image_bound(b) for b in bounds[:2])
    return [y, x, bounds[2].max((2, 3), keepdims=True), *bounds[3:]]


def normal(rng: Rng, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


# ---- The trials.
def differentiated(rng: Rng, s: Sizes, transposed: bool = False, bias: bool = True, standard: bool = False) -> Trial:
    """Conv or ConvTranspose with the gradients of x, w and b; with standard operators alone these are convolutions
    again, with other sizes."""
    w = (s.x[1], s.w[0] // s.group, *s.w[2:]) if transposed else s.w
    feeds = {"x": normal(rng, *s.x), "w": normal(rng, *w)}
    if bias:
        feeds["b"] = normal(rng, s.w[0])
    op = "ConvTranspose" if transposed else "Conv"
    model = graph_model([helper.make_node(op, list(feeds), ["y"], name="node", **s.attributes)], feeds, ["y"])
    model, fed = with_gradients(model, feeds, list(feeds), rng, standard)
    wanted, bounds = references(torch_convolution(s, transposed), feeds, fed["y_grad"])
    if s.may_use_tiles and not transposed:
        bounds = tile_bounds(bounds)
    names = ["y", *(f"{n}_grad" for n in feeds)]
    label = f"{op} and {'standard ' if standard else ''}gradients, {s}, bias {bias}"
    return Trial(label, model, fed, dict(zip(names, wanted, strict=True)), dict(zip(names, bounds, strict=True)))


ACTIVATIONS: dict[str, Function] = {
    "Relu": torch.relu,
    "Sigmoid": torch.sigmoid,
    "Tanh": torch.tanh,
    "HardSwish": torch.nn.functional.hardswish,
    "LeakyRelu": lambda y: torch.nn.functional.leaky_relu(y, 0.01),
    "Identity": lambda y: y,
}


def inferred(rng: Rng, s: Sizes) -> Trial:
    """Constant weights, a residual and an activation: fused, and in blocked layout where channels fill blocks."""
    constants = {"w": normal(rng, *s.w), "b": normal(rng, s.w[0])}
    activation = str(rng.choice(list(ACTIVATIONS)))
    out = [
        (i + 2 * p - (k - 1) * d - 1) // t + 1
        for i, p, k, d, t in zip(s.x[2:], s.pads, s.w[2:], s.dilations, s.strides, strict=True)
    ]
    feeds = {"x": normal(rng, *s.x), "r": normal(rng, s.x[0], s.w[0], *out)}
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], name="node", **s.attributes),
        helper.make_node("Add", ["c", "r"], ["s"]),
        helper.make_node(activation, ["s"], ["y"]),
    ]
    convolve = torch_convolution(s, transposed=False)
    function = lambda x, r, w, b: convolve(x, w, b) + r  # noqa: E731
    (total,), (bound,) = references(function, feeds | constants, None)
    if s.may_use_tiles:
        bound = image_bound(bound)
    wanted = ACTIVATIONS[activation](torch.from_numpy(total)).numpy()
    model = graph_model(nodes, feeds, ["y"], constants)
    # No activation is steeper than 1.5 (HardSwish); their own rounding is that of results up to 1.
    return Trial(f"{activation}(Conv + residual), {s}", model, feeds, {"y": wanted}, {"y": 1.5 * bound + 4 * UNITS})


def network(rng: Rng, s: Sizes) -> Trial:
    """A small classifier, trained: what the passes make of layers that follow each other. Bits alone."""
    second, classes = (int(v) for v in rng.choice([8, 10, 16, 20], 2))
    axes = len(s.x) - 2
    feeds = {"x": normal(rng, *s.x), "w": normal(rng, *s.w), "b": normal(rng, s.w[0])}
    feeds |= {"scale": normal(rng, s.w[0]), "shift": normal(rng, s.w[0])}
    feeds |= {"v": normal(rng, second, s.w[0], *[1] * axes), "p": normal(rng, classes, second)}
    trained = list(feeds)
    feeds |= {"mean": normal(rng, s.w[0]), "var": normal(rng, s.w[0]) ** 2, "t": rng.integers(0, classes, s.x[0])}
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], name="first", **s.attributes),
        helper.make_node(
            "BatchNormalization", ["c", "scale", "shift", "mean", "var"], ["n", "m1", "v1"], training_mode=1
        ),
        helper.make_node("Relu", ["n"], ["a"]),
        helper.make_node("Conv", ["a", "v"], ["d"], name="second"),
        helper.make_node("GlobalAveragePool", ["d"], ["g"]),
        helper.make_node("Flatten", ["g"], ["f"]),
        helper.make_node("Gemm", ["f", "p"], ["logits"], transB=1),
        helper.make_node("SoftmaxCrossEntropyLoss", ["logits", "t"], ["loss"]),
    ]
    model, fed = with_gradients(graph_model(nodes, feeds, ["loss"]), feeds, trained, rng)
    return Trial(f"a network, {s}, then {second} channels and {classes} classes", model, fed)


def convolution(rng: Rng) -> Trial:
    s = random_sizes(rng)
    kind, standard, bias = rng.random(), rng.random() < 0.3, rng.random() < 0.5
    if kind < 0.75:
        return differentiated(rng, s, kind > 0.55 and s.fits_transposed(), bias, standard)
    return inferred(rng, s) if kind < 0.9 else network(rng, s)
