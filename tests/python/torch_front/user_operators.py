"""Random modules whose operators are users' own: custom operators and autograd functions that keep what they see in all
ways there are, between operators of the engine that use memory again.

What an operator keeps must be as it was when it is looked at: its gradients show that, and its `held` list.
"""

from __future__ import annotations

import itertools
import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.autograd import Function

Tensors = tuple[torch.Tensor, ...]
Formula = Callable[..., Tensors]

held: dict[int, list[torch.Tensor]] = defaultdict(list)
"""What operators that keep things beside their context saw, by the number of their place in the module."""
_numbers = itertools.count()


class Kind:
    """What an operator computes: its forward, and its backward from inputs, outputs and gradients."""

    def __init__(
        self, forward: Formula, backward: Callable[[Tensors, Tensors, Tensors], Tensors], outputs: int
    ) -> None:
        self.forward, self.backward, self.outputs = forward, backward, outputs


def _scaled_back(inputs: Tensors, _: Tensors, g: Tensors) -> Tensors:
    a, s = inputs
    return g[0] * (1 - a.tanh() ** 2) * s + g[0], g[0] * a.tanh()


KINDS = {
    "scaled": Kind(lambda a, s: (a.tanh() * s + a,), _scaled_back, 1),
    "grown": Kind(lambda a, s: (torch.exp(0.3 * a) + 0 * s,), lambda i, o, g: (0.3 * g[0] * o[0], 0 * g[0]), 1),
    "added": Kind(lambda a, s: (a + s,), lambda i, o, g: (g[0], g[0]), 1),
    "parted": Kind(lambda a, s: (a * s, a - s), lambda i, o, g: (g[0] * i[1] + g[1], g[0] * i[0] - g[1]), 2),
    "handed": Kind(lambda a, s: (a.clone(), s * 2), lambda i, o, g: (g[0], g[1] * 2), 2),
}


# ---- ways of keeping: keep(ctx, tensors, name), and how to get them back
def _by_attribute(ctx: Any, tensors: Tensors, name: str) -> Callable[[Any], Tensors]:
    setattr(ctx, name, tensors)
    return lambda ctx: getattr(ctx, name)


def _by_view(ctx: Any, tensors: Tensors, name: str) -> Callable[[Any], Tensors]:
    setattr(ctx, name, tuple(t.transpose(0, 1)[1:] for t in tensors))
    setattr(ctx, name + "_first", tuple(t[:, :1] for t in tensors))
    joined = lambda ctx: zip(getattr(ctx, name + "_first"), getattr(ctx, name), strict=True)  # noqa: E731
    return lambda ctx: tuple(torch.cat([first, rest.transpose(0, 1)], 1) for first, rest in joined(ctx))


def _by_closure(ctx: Any, tensors: Tensors, name: str) -> Callable[[Any], Tensors]:
    setattr(ctx, name, lambda: tensors)
    return lambda ctx: getattr(ctx, name)()


def _in_a_global(ctx: Any, tensors: Tensors, name: str) -> Callable[[Any], Tensors]:
    number = -1 - next(_numbers)
    held[number] = list(tensors)
    return lambda ctx: tuple(held[number])


def _saved(ctx: Any, tensors: Tensors, name: str) -> Callable[[Any], Tensors]:
    return lambda ctx: ctx.saved_tensors[:2] if name == "inputs" else ctx.saved_tensors[2:]


KEEPING = {
    "saved": _saved,
    "attribute": _by_attribute,
    "view": _by_view,
    "closure": _by_closure,
    "global": _in_a_global,
}
TRACEABLE = ("saved", "attribute", "view", "closure")  # what torch.compile follows, whatever the backend


class Operator:
    """One way to write an operator: what it computes, how it keeps inputs and outputs, what else it remembers."""

    def __init__(self, kind: str, keeping: str, remembers: bool) -> None:
        self.kind, self.keeping, self.remembers = KINDS[kind], KEEPING[keeping], remembers

    def forward(self, a: torch.Tensor, s: torch.Tensor, place: int) -> Tensors:
        found = self.kind.forward(a, s)
        if self.remembers:
            held[place] += [a, s, *found]
        return found

    def set_up(self, ctx: Any, inputs: Tensors, outputs: Tensors, place: int) -> None:
        if self.keeping is _saved:
            ctx.save_for_backward(*inputs, *outputs)
        ctx.place = place
        ctx.back = (self.keeping(ctx, inputs, "inputs"), self.keeping(ctx, outputs, "outputs"))

    def backward(self, ctx: Any, gradients: Sequence[torch.Tensor]) -> Tensors:
        found = self.kind.backward(ctx.back[0](ctx), ctx.back[1](ctx), tuple(gradients))
        if self.remembers:
            held[ctx.place] += [*gradients, *found]
        return found


def _function(operator: Operator, late: bool) -> Callable[..., Any]:
    def forward(ctx: Any, a: torch.Tensor, s: torch.Tensor, place: int) -> Any:
        found = operator.forward(a, s, place)
        operator.set_up(ctx, (a, s), found, place)
        return found[0] if len(found) == 1 else found

    def plain(a: torch.Tensor, s: torch.Tensor, place: int) -> Any:
        found = operator.forward(a, s, place)
        return found[0] if len(found) == 1 else found

    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        operator.set_up(ctx, inputs[:2], output if isinstance(output, tuple) else (output,), inputs[2])

    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return (*operator.backward(ctx, gradients), None)

    members: dict[str, Any] = {"backward": staticmethod(backward)}
    members |= {"forward": staticmethod(plain), "setup_context": staticmethod(setup_context)} if late else {}
    members.setdefault("forward", staticmethod(forward))
    return type("Written", (Function,), members).apply


def _custom_operator(operator: Operator) -> Callable[..., Any]:
    name = f"backpass_tests::written_{next(_numbers)}"
    single = operator.kind.outputs == 1

    def run(a: torch.Tensor, s: torch.Tensor, place: int) -> Any:
        found = operator.forward(a, s, place)
        return found[0] if single else found

    run.__annotations__ = {"a": torch.Tensor, "s": torch.Tensor, "place": int}
    run.__annotations__["return"] = torch.Tensor if single else tuple[torch.Tensor, torch.Tensor]
    made = torch.library.custom_op(name, run, mutates_args=())
    made.register_fake(lambda a, s, place: a.clone() if single else (a.clone(), s.clone()))

    def set_up(ctx: Any, inputs: Any, output: Any) -> None:
        operator.set_up(ctx, inputs[:2], (output,) if single else output, inputs[2])

    made.register_autograd(lambda ctx, *g: (*operator.backward(ctx, g), None), setup_context=set_up)
    return made


STYLES: dict[str, Callable[[Operator], Callable[..., Any]]] = {
    "custom_op": _custom_operator,
    "function": lambda operator: _function(operator, late=False),
    "function_set_up": lambda operator: _function(operator, late=True),
}
_written: dict[tuple[str, str, str, bool], Callable[..., Any]] = {}


def written(style: str, kind: str, keeping: str, remembers: bool) -> Callable[..., Any]:
    """The operator written that way, made once: a process that has met it goes on knowing it."""
    key = (style, kind, keeping, remembers)
    if key not in _written:
        _written[key] = STYLES[style](Operator(kind, keeping, remembers))
    return _written[key]


# ---- modules
@dataclass
class Step:
    call: Callable[..., Any]
    first: int
    second: int
    place: int = -1  # of an operator of a user
    outputs: int = 1


class Fuzzed(nn.Module):
    """A dozen steps over tensors of one shape, drawn from a seed; gives some of them."""

    def __init__(self, seed: int, traceable: bool = False, width: int = 4) -> None:
        super().__init__()
        draw = random.Random(seed)
        generator = torch.Generator().manual_seed(seed)
        self.weights = nn.ParameterList(torch.randn(width, width, generator=generator) * 0.4 for _ in range(3))
        self.shifts = nn.ParameterList(torch.randn(3, width, generator=generator) for _ in range(2))
        self.steps: list[Step] = []
        count = 3
        for place in range(draw.randint(4, 12)):
            if draw.random() < 0.5:
                style = "custom_op" if traceable else draw.choice(list(STYLES))
                keeping = draw.choice(TRACEABLE if traceable else list(KEEPING))
                kind = draw.choice(list(KINDS))
                call = written(style, kind, keeping, not traceable and draw.random() < 0.5)
                step = Step(call, draw.randrange(count), draw.randrange(count), place, KINDS[kind].outputs)
            else:
                call = draw.choice([self._mixed, self._bent, self._sum, self._turned])
                step = Step(call, draw.randrange(count), draw.randrange(count))
            self.steps.append(step)
            count += step.outputs
        self.results = sorted({count - 1, *(draw.randrange(3, count) for _ in range(draw.randint(0, 2)))})
        self.used = self._find_used(count)

    def _find_used(self, count: int) -> set[int]:
        """Places of the operators that a result depends on: others need not be run."""
        needed, used, end = set(self.results), set(), count
        for step in reversed(self.steps):
            end -= step.outputs
            if needed.isdisjoint(range(end, end + step.outputs)):
                continue
            needed |= {step.first, step.second}
            used |= {step.place} - {-1}
        return used

    def _mixed(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a @ self.weights[0] + b

    def _bent(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.tanh(a * 1.1) * torch.sigmoid(b @ self.weights[1])

    def _sum(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return (a + b) / (1 + a.mean(0, keepdim=True) ** 2)

    def _turned(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.softmax(a @ b.T, -1) @ self.weights[2][:3]

    def forward(self, x: torch.Tensor) -> Tensors:
        values = [x, *self.shifts]
        for step in self.steps:
            a, b = values[step.first], values[step.second]
            found = step.call(a, b) if step.place < 0 else step.call(a, b, step.place)
            values += list(found) if isinstance(found, tuple) else [found]
        return tuple(values[i] for i in self.results)


def trained(module: Callable[..., Tensors], parameters: Sequence[nn.Parameter], steps: int = 3) -> Iterator[Any]:
    """What a user sees after each step without zero_grad: results, gradients so far, what operators remember."""
    generator = torch.Generator().manual_seed(5)
    for _ in range(steps):
        held.clear()
        x = torch.randn(3, 4, generator=generator, requires_grad=True)
        results = module(x)
        loss = sum((r * torch.linspace(0.5, 1.5, r.numel()).reshape(r.shape)).sum() for r in results)
        loss.backward()  # type: ignore[union-attr]
        gradients = [None if p.grad is None else p.grad.clone() for p in (*parameters, x)]
        for p in parameters:
            if p.grad is not None:
                p.grad.mul_(0.5)
        remembered = {n: [t.detach().clone() for t in tensors] for n, tensors in held.items() if n >= 0}
        yield loss.item(), gradients, remembered
