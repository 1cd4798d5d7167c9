"""torch's own table of operators and sample inputs, run through a compile backend and held against eager.

An operator passes when every drawn sample agrees in values, shape, element type and gradients. It counts as native when
none of its graphs called back into torch.

    python tests/python/torch_front/opinfo.py --samples 3 --ops softmax,nn.functional.gelu
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import copy
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.utils._pytree as pytree

RANDOM_SEED = 7
# What these hold is memory nobody wrote: shape and element type are all there is to compare.
UNDEFINED_VALUES = {"empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"}


@dataclass
class Outcome:
    """What became of one operator."""

    name: str
    status: str = "passed"  # passed, failed, skipped
    samples: int = 0
    graphs: int = 0
    fallbacks: collections.Counter[str] = field(default_factory=collections.Counter)
    message: str = ""

    @property
    def native(self) -> bool:
        return self.status == "passed" and not self.fallbacks and self.graphs > 0


@dataclass
class Backend:
    """A backend for torch.compile, and a way to ask what its graphs were and where they fell back."""

    compile: Callable[..., Any]
    reset: Callable[[], None]
    report: Callable[[], tuple[int, collections.Counter[str]]]


def float32_operators() -> list[Any]:
    """The operators of torch's table that take float32 on the CPU."""
    from torch.testing._internal.common_methods_invocations import op_db

    return [op for op in op_db if op.supports_dtype(torch.float32, "cpu")]


def full_name(op: Any) -> str:
    return op.name + (f".{op.variant_test_name}" if op.variant_test_name else "")


def drawn(op: Any, count: int) -> list[Any]:
    """`count` samples spread over all that torch gives; all of them when `count` is 0."""
    gradient = op.supports_autograd and torch.float32 in op.supported_backward_dtypes("cpu")
    torch.manual_seed(RANDOM_SEED)
    samples = list(op.sample_inputs("cpu", torch.float32, requires_grad=gradient))
    if not count or len(samples) <= count:
        return samples
    return [samples[i * (len(samples) - 1) // max(count - 1, 1)] for i in range(count)]


def fresh(value: Any) -> Any:
    """A copy of the arguments that shares nothing with them: gradients and in-place changes stay apart."""

    def one(t: Any) -> Any:
        if not isinstance(t, torch.Tensor):
            return copy.copy(t) if isinstance(t, list) else t
        return t.detach().clone().requires_grad_(t.requires_grad)

    return pytree.tree_map(one, value)


def tensors(value: Any) -> list[torch.Tensor]:
    return [t for t in pytree.tree_leaves(value) if isinstance(t, torch.Tensor)]


def outputs_and_gradients(fn: Callable[..., Any], arguments: Any) -> tuple[Any, list[torch.Tensor | None]]:
    """Results, and the gradients of a fixed weighted sum of them with respect to every argument that wants one."""
    args, kwargs = arguments
    torch.manual_seed(RANDOM_SEED)
    out = fn(*args, **kwargs)
    leaves = [t for t in tensors(arguments) if t.requires_grad]
    ends = [t for t in tensors(out) if t.requires_grad]
    if not ends or not leaves:
        return out, []
    generator = torch.Generator().manual_seed(RANDOM_SEED)
    seeds = [torch.randn(t.shape, generator=generator, dtype=t.dtype) for t in ends]
    return out, list(torch.autograd.grad(ends, leaves, seeds, allow_unused=True))


def compare(name: str, wanted: Any, got: Any) -> None:
    """Raises AssertionError on the first difference."""
    wanted_leaves, wanted_spec = pytree.tree_flatten(wanted)
    got_leaves, got_spec = pytree.tree_flatten(got)
    assert wanted_spec == got_spec, f"structure {got_spec}, expected {wanted_spec}"
    for a, b in zip(got_leaves, wanted_leaves, strict=True):
        if not isinstance(b, torch.Tensor):
            assert a == b or (a != a and b != b), f"{a!r}, expected {b!r}"
            continue
        assert (a.shape, a.dtype) == (b.shape, b.dtype), f"{a.dtype}{list(a.shape)}, eager {b.dtype}{list(b.shape)}"
        if name not in UNDEFINED_VALUES:
            torch.testing.assert_close(a, b, equal_nan=True, check_stride=False, rtol=1e-4, atol=1e-4)


def compare_gradients(wanted: Sequence[torch.Tensor | None], got: Sequence[torch.Tensor | None]) -> None:
    """Like `compare`; a gradient that is not there counts as zero, which is what it means."""
    assert len(wanted) == len(got), f"{len(got)} gradients, eager {len(wanted)}"
    for a, b in zip(got, wanted, strict=True):
        known = a if a is not None else b
        if known is None:
            continue
        zero = torch.zeros_like(known)
        torch.testing.assert_close(
            zero if a is None else a, zero if b is None else b, equal_nan=True, check_stride=False, rtol=1e-3, atol=1e-3
        )


def compiled(op: Any, backend: Any, **options: Any) -> Callable[..., Any]:
    torch._dynamo.reset()

    def call(*args: Any, **kwargs: Any) -> Any:
        return op(*args, **kwargs)

    return torch.compile(call, backend=backend, **options)


def run_sample(op: Any, sample: Any, backend: Backend) -> str | None:
    """None when it agrees, the reason for skipping when torch cannot do it by itself; raises where it differs."""
    arguments = ((sample.input, *sample.args), sample.kwargs)
    try:
        wanted, wanted_gradients = outputs_and_gradients(op, fresh(arguments))
    except Exception as e:
        return f"eager: {type(e).__name__}"
    try:
        got, gradients = outputs_and_gradients(compiled(op, backend.compile), fresh(arguments))
        compare(op.name, wanted, got)
        compare_gradients(wanted_gradients, gradients)
    except Exception as error:
        if reason := fails_without_us(op, arguments, wanted, wanted_gradients):
            return reason
        raise error
    return None


def fails_without_us(op: Any, arguments: Any, wanted: Any, wanted_gradients: Any) -> str | None:
    """torch's own aot_eager backend is asked the same: what it cannot do says nothing about ours."""
    try:
        got, gradients = outputs_and_gradients(compiled(op, "aot_eager"), fresh(arguments))
        compare(op.name, wanted, got)
        compare_gradients(wanted_gradients, gradients)
    except Exception as e:
        return f"aot_eager: {type(e).__name__}"
    return None


def run_operator(op: Any, backend: Backend, count: int) -> Outcome:
    """All drawn samples of one operator."""
    outcome = Outcome(full_name(op))
    backend.reset()
    for sample in drawn(op, count):
        try:
            reason = run_sample(op, sample, backend)
        except Exception as e:
            outcome.status = "failed"
            outcome.message = f"{type(e).__name__}: {e}"
            break
        if reason is None:
            outcome.samples += 1
        else:
            outcome.message = reason
    outcome.graphs, outcome.fallbacks = backend.report()
    if outcome.status == "passed" and not outcome.samples:
        outcome.status = "skipped"
    return outcome


def run(operators: Sequence[Any], backend: Backend, count: int) -> Iterator[Outcome]:
    for op in operators:
        with warnings.catch_warnings(), contextlib.redirect_stderr(None):
            warnings.simplefilter("ignore")
            yield run_operator(op, backend, count)


def summary(outcomes: Sequence[Outcome]) -> str:
    """Both counts, and what the fallbacks were."""
    by = collections.Counter(o.status for o in outcomes)
    native = sum(o.native for o in outcomes)
    back = sum(bool(o.fallbacks) for o in outcomes if o.status == "passed")
    unseen = sum(not o.graphs for o in outcomes if o.status == "passed")
    return (
        f"OpInfo: passed {by['passed']} failed {by['failed']} skipped {by['skipped']} total {len(outcomes)}; "
        f"native {native}, with fallback {back}, without any graph {unseen}"
    )


def backpass_backend(mode: str) -> Backend:
    """Ours, with its own record of fallbacks."""
    from backpass.dynamo import make_aot_ort

    compile, record = make_aot_ort(mode=mode)

    def report() -> tuple[int, collections.Counter[str]]:
        back = collections.Counter(name for graph in record.graphs for name in graph.fallbacks)
        back.update(f"whole graph: {graph.reason.splitlines()[0]}" for graph in record.graphs if graph.reason)
        return len(record.graphs), back

    return Backend(compile, record.clear, report)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=3, help="per operator, spread over all; 0: all of them")
    parser.add_argument("--mode", default="aot", choices=["aot", "forward", "auto"])
    parser.add_argument("--ops", default="", help="names, separated by commas; default: every operator")
    parser.add_argument("--part", default="0/1", help="i/n: every n-th operator from the i-th on")
    parser.add_argument("--verbose", action="store_true")
    arguments = parser.parse_args()
    operators = float32_operators()
    if arguments.ops:
        names = arguments.ops.split(",")
        operators = [op for op in operators if op.name in names or full_name(op) in names]
    first, step = map(int, arguments.part.split("/"))
    outcomes = []
    reasons: collections.Counter[str] = collections.Counter()
    for outcome in run(operators[first::step], backpass_backend(arguments.mode), arguments.samples):
        outcomes.append(outcome)
        reasons.update(set(outcome.fallbacks))
        if outcome.status == "failed" or arguments.verbose or (outcome.status == "skipped"):
            text = " ".join(outcome.message.split())[:400]
            print(f"{outcome.status} {outcome.name}: {text} {dict(outcome.fallbacks)}", flush=True)
    for reason, count in reasons.most_common():
        print(f"{count:4d} {reason[:300]}")
    print(summary(outcomes))


if __name__ == "__main__":
    main()
