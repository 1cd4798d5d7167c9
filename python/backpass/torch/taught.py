"""Parts of torch that tracing cannot follow, because shapes or branches depend on the contents of tensors: CTC loss,
packed sequences, distributions. While a module is captured they become single nodes that torch runs
(:class:`ByTorch`), or are said in another way, so that the rest of the module is the engine's.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.distributions import Distribution, Gamma
from torch.nn.utils.rnn import PackedSequence

from backpass import Unsupported
from backpass.torch import autocast
from backpass.torch.surroundings import replaced

_BATCH = "_backpass_batch"  # an attribute of traced batch sizes: how many sequences were packed


@dataclass(frozen=True)
class _Part:
    run: Callable[..., Any]  #: what torch computes, given tensors and numbers one by one
    shapes: Callable[..., tuple[torch.Tensor, ...]]  #: tensors without contents, like those that it gives


class ByTorch(torch.autograd.Function):
    """One of the parts below, by name: captured as a whole, run and differentiated by torch."""

    @staticmethod
    def forward(ctx: Any, name: str, *arguments: Any) -> tuple[torch.Tensor, ...]:
        from torch._subclasses.fake_tensor import FakeTensor

        if any(isinstance(a, FakeTensor) for a in arguments):
            return _PARTS[name].shapes(*arguments)
        wanted = ctx.needs_input_grad[1:]
        given = [a.detach().requires_grad_(w) if w else a for a, w in zip(arguments, wanted, strict=True)]
        with torch.set_grad_enabled(any(wanted)):
            ctx.outputs = _PARTS[name].run(*given)
        ctx.leaves = [(i, given[i]) for i, w in enumerate(wanted) if w]
        ctx.count = len(given)
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*(o for o in ctx.outputs if not o.is_floating_point()))
        return tuple(o.detach() if o.is_floating_point() else o for o in ctx.outputs)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[Any, ...]:
        pairs = [(o, g) for o, g in zip(ctx.outputs, gradients, strict=True) if g is not None and o.requires_grad]
        results: list[torch.Tensor | None] = [None] * ctx.count
        if pairs and ctx.leaves:
            ends = [leaf for _, leaf in ctx.leaves]
            outputs, seeds = zip(*pairs, strict=True)
            found = torch.autograd.grad(outputs, ends, seeds, retain_graph=True, allow_unused=True)
            for (i, _), gradient in zip(ctx.leaves, found, strict=True):
                results[i] = gradient
        return (None, *results)


_apply: Any = ByTorch.apply


def _size() -> Any:
    """An extent that depends on data."""
    return torch.library.get_ctx().new_dynamic_size()


# ---- CTC loss
_ctc_loss = torch.ctc_loss


def _run_ctc(scores: Any, targets: Any, lengths: Any, target_lengths: Any, blank: int, finite: bool) -> Any:
    return (_ctc_loss(scores, targets, lengths, target_lengths, blank, 0, finite),)


def _shape_ctc(scores: Any, *_: Any) -> tuple[torch.Tensor, ...]:
    wide = torch.is_autocast_enabled("cpu") and scores.dtype != torch.float64
    return (scores.new_empty(scores.shape[1:-1], dtype=torch.float32 if wide else scores.dtype),)


def _traced_ctc_loss(
    scores: torch.Tensor,
    targets: torch.Tensor,
    lengths: Any,
    target_lengths: Any,
    blank: int = 0,
    reduction: int = 1,
    zero_infinity: bool = False,
) -> torch.Tensor:
    both = [torch.as_tensor(n, dtype=torch.int64) for n in (lengths, target_lengths)]
    losses: torch.Tensor
    (losses,) = _apply("ctc_loss", scores, targets, *both, blank, zero_infinity)
    if reduction == 1:
        return (losses / both[1].clamp(min=1).to(losses.dtype)).mean()
    return losses.sum() if reduction == 2 else losses


# ---- packed sequences
_pack = torch._VF._pack_padded_sequence
_pad = torch._VF._pad_packed_sequence
_check: Any = torch._check
_NETWORKS = ("lstm", "gru", "rnn_tanh", "rnn_relu")
_networks = {name: getattr(torch._VF, name) for name in _NETWORKS}


def _shape_pack(x: Any, lengths: Any, batch_first: bool) -> tuple[torch.Tensor, ...]:
    return x.new_empty((_size(), *x.shape[2:])), lengths.new_empty((_size(),))


def _traced_pack(x: torch.Tensor, lengths: torch.Tensor, batch_first: bool) -> tuple[torch.Tensor, torch.Tensor]:
    data, batch_sizes = _apply("pack", x, lengths, batch_first)
    _check(batch_sizes.shape[0] <= x.shape[1 if batch_first else 0])
    setattr(batch_sizes, _BATCH, x.shape[0 if batch_first else 1])
    return data, batch_sizes


def _batch_of(batch_sizes: torch.Tensor) -> Any:
    found = getattr(batch_sizes, _BATCH, None)
    if found is None:
        raise Unsupported("packed sequence: got one made outside of the module, expected one made by its forward")
    return found


def _shape_pad(data: Any, sizes: Any, batch_first: bool, value: float, total: Any, batch: Any) -> Any:
    leading = (batch, total) if batch_first else (total, batch)
    return data.new_empty((*leading, *data.shape[1:])), sizes.new_empty((batch,))


def _traced_pad(data: torch.Tensor, sizes: torch.Tensor, batch_first: bool, value: float, total: Any) -> Any:
    return _apply("pad", data, sizes, batch_first, value, total, _batch_of(sizes))


def _network(name: str) -> _Part:
    count = 2 if name == "lstm" else 1

    def run(data: Any, sizes: Any, *rest: Any) -> Any:
        states, settings, weights = rest[:count], rest[count : count + 5], list(rest[count + 5 :])
        given = tuple(states) if count == 2 else states[0]
        results = _networks[name](data, sizes, given, weights, *settings)
        return tuple(r.to(t) for r, t in zip(results, types(data, *rest), strict=True))

    def types(data: Any, *rest: Any) -> tuple[torch.dtype, ...]:
        states, settings, weights = rest[:count], rest[count : count + 5], rest[count + 5 :]
        if torch.is_autocast_enabled("cpu"):
            return autocast.result_types(name, data, states, weights, settings, packed=True)
        return data.dtype, *(s.dtype for s in states)

    def shapes(data: Any, sizes: Any, *rest: Any) -> tuple[torch.Tensor, ...]:
        states, bidirectional = rest[:count], rest[count + 4]
        width = states[0].shape[-1] * (2 if bidirectional else 1)
        shapes = [(data.shape[0], width), *(s.shape for s in states)]
        return tuple(data.new_empty(s, dtype=t) for s, t in zip(shapes, types(data, *rest), strict=True))

    return _Part(run, shapes)


def _traced_network(name: str) -> Callable[..., Any]:
    def call(*arguments: Any) -> Any:
        if not isinstance(arguments[3], list | tuple):  # the weights come fourth where there are batch sizes
            return _networks[name](*arguments)
        data, sizes, states, weights, *settings = arguments
        given = states if name == "lstm" else (states,)
        return _apply(name, data, sizes, *given, *settings, *weights)

    return call


def _with_state(forward: Callable[..., Any]) -> Callable[..., Any]:
    """forward of a recurrent module, whose first state would be made from a number among the batch sizes."""

    def call(module: Any, sequence: Any, hx: Any = None) -> Any:
        if hx is None and isinstance(sequence, PackedSequence):
            layers = module.num_layers * (2 if module.bidirectional else 1)
            batch, data = _batch_of(sequence.batch_sizes), sequence.data
            hx = data.new_zeros((layers, batch, getattr(module, "proj_size", 0) or module.hidden_size))
            if isinstance(module, nn.LSTM):
                hx = (hx, data.new_zeros((layers, batch, module.hidden_size)))
        return forward(module, sequence, hx)

    return call


def _without_numbers(check: Callable[..., None]) -> Callable[..., None]:
    """Checks of a recurrent module, but for those that read numbers out of the batch sizes."""

    def call(module: Any, x: Any, hidden: Any, batch_sizes: Any) -> None:
        if batch_sizes is None:
            check(module, x, hidden, batch_sizes)
        else:
            module.check_input(x, batch_sizes)

    return call


# ---- distributions
def _sampled_gamma(gamma: Any, sample_shape: Any = torch.Size()) -> torch.Tensor:  # noqa: B008
    """Gamma.rsample, which raises small samples in memory that detach() shares: their gradients stay."""
    shape = gamma._extended_shape(sample_shape)
    value: torch.Tensor = torch._standard_gamma(gamma.concentration.expand(shape)) / gamma.rate.expand(shape)
    raised = value.detach().clamp(min=torch.finfo(value.dtype).tiny)
    return raised + (value - value.detach())


@contextlib.contextmanager
def _unvalidated() -> Iterator[None]:
    """Distributions do not look into their parameters, as in optimized Python."""
    before = Distribution._validate_args
    Distribution.set_default_validate_args(False)
    try:
        yield
    finally:
        Distribution.set_default_validate_args(before)


_PARTS = {
    "ctc_loss": _Part(_run_ctc, _shape_ctc),
    "pack": _Part(_pack, _shape_pack),
    "pad": _Part(lambda data, sizes, first, value, total, _: _pad(data, sizes, first, value, total), _shape_pad),
    **{name: _network(name) for name in _NETWORKS},
}


@contextlib.contextmanager
def taught() -> Iterator[None]:
    """Within, this thread's calls of these parts can be traced."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(replaced(torch, "ctc_loss", _traced_ctc_loss))
        stack.enter_context(replaced(torch._VF, "_pack_padded_sequence", _traced_pack))
        stack.enter_context(replaced(torch._VF, "_pad_packed_sequence", _traced_pad))
        for name in _NETWORKS:
            stack.enter_context(replaced(torch._VF, name, _traced_network(name)))
        for kind in (nn.LSTM, nn.GRU, nn.RNN):
            stack.enter_context(replaced(kind, "forward", _with_state(kind.forward)))
        for base in (nn.RNNBase, nn.LSTM):
            stack.enter_context(replaced(base, "check_forward_args", _without_numbers(base.check_forward_args)))
        stack.enter_context(replaced(Gamma, "rsample", _sampled_gamma))
        stack.enter_context(_unvalidated())
        yield
