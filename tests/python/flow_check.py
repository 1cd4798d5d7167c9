"""Models with bodies and sequences whose gradient is compared with torch running the same step by step, with
onnxruntime, and differentiated a second time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import backpass
import numpy as np
import onnx
import onnxruntime
import torch
from onnx import parser


def parse(text: str) -> onnx.ModelProto:
    return parser.parse_model('<ir_version: 8, opset_import: ["": 18]>\n' + text)


@dataclass
class Flow:
    """A model (float64), what it is fed, and the same as a function of torch tensors."""

    text: str
    feeds: Mapping[str, Any]
    torch: Callable[..., Any]
    constant: tuple[str, ...] = ()  # inputs that are not differentiated
    in_onnxruntime: bool = True
    twice: bool = True  # differentiable a second time

    @property
    def wrt(self) -> list[str]:
        return [k for k, v in self.feeds.items() if k not in self.constant and np.asarray(v).dtype == np.float64]


def session(model: onnx.ModelProto) -> backpass.InferenceSession:
    return backpass.InferenceSession(model.SerializeToString())


def evaluate(model: onnx.ModelProto, values: Mapping[str, Any], run: Any = None) -> list[np.ndarray]:
    known = {i.name for i in model.graph.input}
    feeds = {k: np.asarray(v) for k, v in values.items() if k in known}
    return (run or session(model)).run(None, feeds)


def seeds_of(flow: Flow) -> dict[str, np.ndarray]:
    model = parse(flow.text)
    outputs = evaluate(model, flow.feeds)
    draw = np.random.default_rng(7)
    return {f"{o.name}_grad": draw.standard_normal(v.shape) for o, v in zip(model.graph.output, outputs, strict=True)}


def by_torch(flow: Flow, seeds: Sequence[np.ndarray]) -> list[np.ndarray]:
    leaves = {k: torch.tensor(flow.feeds[k], requires_grad=True) for k in flow.wrt}
    given = {k: leaves.get(k, torch.tensor(v) if np.ndim(v) else v) for k, v in flow.feeds.items()}
    outputs = flow.torch(**given)
    total = sum((y * torch.tensor(s)).sum() for y, s in zip(outputs, seeds, strict=True))
    found = torch.autograd.grad(total, list(leaves.values()), allow_unused=True)
    return [np.zeros(x.shape) if g is None else g.numpy() for g, x in zip(found, leaves.values(), strict=True)]


def close(got: Sequence[np.ndarray], want: Sequence[np.ndarray]) -> None:
    for a, b in zip(got, want, strict=True):
        assert a.shape == b.shape
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-11)


def check_first_derivative(flow: Flow) -> None:
    seeds = seeds_of(flow)
    model = backpass.grad(parse(flow.text), flow.wrt, seeds=True)
    onnx.checker.check_model(model)
    values = {**flow.feeds, **seeds}
    gradients = evaluate(model, values)[-len(flow.wrt) :]
    close(gradients, by_torch(flow, list(seeds.values())))
    fused = backpass.grad(parse(flow.text), flow.wrt, seeds=True, standard_only=False)
    close(evaluate(fused, values)[-len(flow.wrt) :], gradients)
    if flow.in_onnxruntime:
        judge = onnxruntime.InferenceSession(model.SerializeToString())
        close(evaluate(model, values, judge)[-len(flow.wrt) :], gradients)


def check_second_derivative(flow: Flow) -> None:
    first = backpass.grad(parse(flow.text), flow.wrt, seeds=True)
    names = [o.name for o in first.graph.output][-len(flow.wrt) :]
    second = backpass.grad(first, flow.wrt, outputs=names)
    values = {**flow.feeds, **seeds_of(flow)}
    got = evaluate(second, values)[-len(flow.wrt) :]
    run = session(first)
    step = 1e-5

    def total(changed: Mapping[str, Any]) -> float:
        return float(sum(g.sum() for g in evaluate(first, changed, run)[-len(flow.wrt) :]))

    for key, gradient in zip(flow.wrt, got, strict=True):
        assert gradient.shape == flow.feeds[key].shape
        for at in np.ndindex(gradient.shape):
            shift = np.zeros(gradient.shape)
            shift[at] = step
            ahead, back = ({**values, key: values[key] + s * shift} for s in (1, -1))
            difference = (total(ahead) - total(back)) / (2 * step)
            assert abs(gradient[at] - difference) <= 1e-6 * max(1.0, abs(difference)), (key, at)
