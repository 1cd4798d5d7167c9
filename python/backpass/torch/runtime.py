"""EngineGraph: one ONNX graph that is called with torch tensors and takes part in torch's autograd.

Both front ends end here. Tensors cross without being copied: parameters are read where torch keeps them, gradients
are fresh tensors that torch keeps as ``.grad``.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch._C._dynamo import eval_frame
from torch.autograd import forward_ad

from backpass import _core

_keeps_graph = torch._C._autograd._get_current_graph_task_keep_graph


@dataclass
class Spent:
    """Calls of a graph and the seconds they took, hand-over included."""

    forwards: int = 0
    forward_seconds: float = 0.0
    backwards: int = 0
    backward_seconds: float = 0.0

    @property
    def seconds(self) -> float:
        return self.forward_seconds + self.backward_seconds


class EngineGraph:
    """A model in the engine, called with the tensors of all its graph inputs, in their order."""

    def __init__(
        self,
        model: bytes,
        input_names: Sequence[str],
        requires_grad: Sequence[str] = (),
        options: _core.SessionOptions | None = None,
        constant_outputs: Sequence[str] = (),
        parameters: Sequence[str] = (),
    ) -> None:
        """`requires_grad` names the inputs whose gradients are wanted; without any, calls leave nothing to autograd.
        `constant_outputs` are those that autograd is not to differentiate. `parameters`, among the inputs, may be read
        by the backward pass to compute again what would have to be kept: as with torch, they must not change before
        it."""
        places = {name: i for i, name in enumerate(input_names)}
        self.input_names = list(input_names)
        self.requires_grad = list(requires_grad)
        self.session = _core.ModuleSession.from_bytes(
            model, self.requires_grad, options or _core.SessionOptions(), list(constant_outputs), list(parameters)
        )
        self.spent = Spent()
        self.watch: Callable[[str, Sequence[torch.Tensor]], None] | None = None
        """Called after each half of a training pass with its name and the inputs."""
        self.looked: Callable[[], None] | None = None
        """Called after each forward pass, which has looked at its data: see ``session.densities()``."""
        self._excess = 0  # bytes that were warned of
        self._read: dict[int, tuple[list[int], list[int]]] = {}  # by graph of the session
        self._is_random = self.session.is_random()
        self._calls_torch = b"PythonOp" in model or b"org.pytorch.aten" in model  # which may draw numbers of its own
        self._wanted = [places[name] for name in self.requires_grad]
        self.flat_outputs = [i for i, yes in enumerate(self.session.differentiable_outputs()) if not yes]

    @property
    def read_inputs(self) -> list[int]:
        """Numbers of the inputs that the backward pass reads; those of a batch with much to leave out may differ."""
        return self.session.read_by_backward()[0]

    def read_by(self, pending: _core.Pending) -> tuple[list[int], list[int]]:
        """Numbers of the inputs and outputs that the backward pass of a forward pass reads."""
        found = self._read.get(pending.graph)
        if found is None:
            found = self._read[pending.graph] = pending.read_by_backward()
        return found

    def __call__(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The outputs; with gradients wanted and enabled they are part of autograd's graph."""
        if forward_ad._current_level >= 0 and any(map(_is_dual, inputs)):
            raise NotImplementedError(
                "forward-mode derivatives through Backpass are not available: run the module by itself where you need "
                "them, or use a backward pass"
            )
        if self._wanted and torch.is_grad_enabled():
            transformed = torch._C._are_functorch_transforms_active()  # refused there, with the reason
            apply: Any = _Run.apply if transformed else _apply
            return list(apply(self, *inputs))
        return self.infer(inputs)

    def infer(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The outputs, keeping nothing for a backward pass."""
        outputs, _, _ = self._forward(inputs, keep=False)
        return outputs

    def _forward(
        self, inputs: Sequence[torch.Tensor], keep: bool
    ) -> tuple[list[torch.Tensor], Any, torch.Tensor | None]:
        """The outputs and, with `keep`, what is pending and the state of torch's generator if the pass may use that."""
        begin = time.perf_counter()
        seed = _draw_seed() if self._is_random else None
        numbers = torch.get_rng_state() if keep and self._calls_torch else None
        given = [dense(t) if t.is_neg() else t for t in inputs]
        outputs, pending = self.session.forward(given, keep, seed)
        self.spent.forwards += 1
        self.spent.forward_seconds += time.perf_counter() - begin
        if self.looked is not None:
            self.looked()
        if self.watch is not None and keep:
            self.watch("post_forward", given)
        return outputs, pending, numbers

    def _backward(self, run: Any, seeds: Sequence[torch.Tensor | None]) -> list[torch.Tensor | None]:
        begin = time.perf_counter()
        given = [None if seed is None else dense(seed) for seed in seeds]
        repeats = self.session.repeats(run.pending, given)
        _check_unchanged(run, range(len(run.inputs)) if repeats else run.read, repeats)
        if repeats:
            with nullcontext() if run.numbers is None else _drawing_again(run.numbers):
                found = self.session.backward(run.pending, given, _keeps_graph())
            self._warn_of_memory()
        else:
            found = self.session.backward(run.pending, given, _keeps_graph())
        gradients: list[torch.Tensor | None] = [None] * len(self.input_names)
        for place, gradient in zip(self._wanted, found, strict=True):
            gradients[place] = gradient
        self.spent.backwards += 1
        self.spent.backward_seconds += time.perf_counter() - begin
        if self.watch is not None:
            self.watch("post_backward", run.inputs)
        return gradients

    def _warn_of_memory(self) -> None:
        excess = self.session.memory_excess()
        if excess > self._excess:
            warnings.warn(
                f"max_memory: gradients arrived for other outputs than before, and those take {excess} bytes, more "
                "than allowed and as little as they can",
                stacklevel=2,
            )
        self._excess = excess


def _refusing(gradient: torch.Tensor) -> torch.Tensor:
    """The gradient as a part of torch's graph that says so when it is differentiated, instead of being a constant."""
    text = "second derivatives through Backpass are not available: run the module by itself where you need them"
    refused: torch.Tensor = torch._C._functions.DelayedError(text, 1)(gradient.requires_grad_())
    return refused


def _is_dual(tensor: torch.Tensor) -> bool:
    """Whether a tangent of forward-mode differentiation goes with a tensor."""
    return forward_ad.unpack_dual(tensor).tangent is not None  # type: ignore[no-untyped-call]


def _draw_seed() -> int:
    """A number from torch's generator: with its state, the numbers the engine draws come again as well."""
    return int(torch.empty((), dtype=torch.int64).random_())


@contextmanager
def _drawing_again(numbers: torch.Tensor) -> Iterator[None]:
    """torch's generator as it was then; as it is now again afterwards."""
    now = torch.get_rng_state()
    torch.set_rng_state(numbers)
    try:
        yield
    finally:
        torch.set_rng_state(now)


_WHY_ALL = ". Gradients arrived for other outputs than before, or once more, so the forward pass has to be repeated"


def _check_unchanged(run: Any, read: Sequence[int], repeats: bool) -> None:
    """Refuses what torch refuses of tensors it saved. A pass that is repeated reads everything again, also what the
    backward pass alone would not."""
    for i in read:
        tensor, version = run.inputs[i], run.versions[i]
        if tensor._version != version:
            raise RuntimeError(
                "one of the variables needed for gradient computation has been modified by an inplace operation: a "
                f"tensor of shape {list(tensor.shape)} is at version {tensor._version}; expected version {version} "
                f"instead{_WHY_ALL if repeats else ''}"
            )


def dense(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor as its memory says, without strides, signs and conjugations that torch applies when it reads."""
    return tensor.resolve_conj().resolve_neg().contiguous()


class _Run(torch.autograd.Function):
    """A forward pass of an EngineGraph and, later, its backward pass."""

    @staticmethod
    def forward(ctx: Any, graph: EngineGraph, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        outputs, ctx.pending, ctx.numbers = graph._forward(inputs, keep=True)
        ctx.graph = graph
        ctx.inputs = inputs
        ctx.versions = [t._version for t in inputs]
        ctx.read, read_outputs = graph.read_by(ctx.pending)
        ctx.set_materialize_grads(False)
        if graph.flat_outputs:
            ctx.mark_non_differentiable(*(outputs[i] for i in graph.flat_outputs))
        if read_outputs:  # torch refuses the backward pass when one of these was changed in place meanwhile
            ctx.save_for_backward(*(outputs[i] for i in read_outputs))
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *seeds: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        if ctx.pending is None:
            raise RuntimeError(
                "Trying to backward through the graph a second time: what the engine kept was freed by the first "
                "backward pass. Give that one retain_graph=True"
            )
        ctx.saved_tensors  # noqa: B018  # checks what this pass saved, whatever later ones do
        if all(seed is None for seed in seeds):
            return (None,) * (1 + len(ctx.graph.input_names))
        if not torch.is_grad_enabled():
            gradients = ctx.graph._backward(ctx, seeds)
        else:  # create_graph=True
            with torch.no_grad():
                gradients = ctx.graph._backward(ctx, seeds)
            gradients = [None if g is None else _refusing(g) for g in gradients]
        if not _keeps_graph():
            ctx.pending = ctx.inputs = None
        return (None, *gradients)


# A backward pass inside of what torch.compile compiles is run as it is, with all that it calls.
_skip = eval_frame._FrameAction.SKIP
eval_frame.set_code_exec_strategy(_Run.backward.__code__, eval_frame._FrameExecStrategy(_skip, _skip))

# Function.apply without its care for torch.func, which takes longer than all of ours does
_apply = super(torch.autograd.Function, _Run).apply
