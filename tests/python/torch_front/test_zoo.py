"""Model families through both front ends: loss, gradients and the buffers that training changes, against eager."""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Callable, Iterator

import pytest
import torch
import zoo
from backpass.dynamo import backpass, record
from backpass.torch import callbacks
from ortmodule_check import wrap
from torch import nn

EVERYDAY = {"bert_seqcls", "gpt2", "llama", "mixtral", "resnet", "lstm_tagger"}
# Of the largest gradient: what is left of float32 after some hundred operators.
TOLERANCE = 1e-4
# Operators that the engine leaves to torch.
HANDED_OVER = {
    "fnet": {"fft_fftn", "real"},
    **{family: {"histc", "linalg_solve_triangular", "transformers::grouped_mm_fallback"} for family in zoo.EXPERTS},
}


def families(everyday: set[str]) -> list[object]:
    return [name if name in everyday else pytest.param(name, marks=pytest.mark.slow) for name in zoo.FAMILIES]


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Frameworks talk a lot; graphs compiled for one family are not for the next."""
    logging.disable(logging.WARNING)
    # Without allow_rnn, torch.compile leaves modules with nn.LSTM and its like alone.
    with warnings.catch_warnings(), torch._dynamo.config.patch(allow_rnn=True):
        warnings.simplefilter("ignore")
        callbacks.reset_usage()
        record().clear()
        yield
    logging.disable(logging.NOTSET)
    torch._dynamo.reset()


def step(module: Callable[..., torch.Tensor], inputs: tuple[torch.Tensor, ...]) -> float:
    loss = module(*inputs)
    loss.backward()
    return float(loss)


def check(trained: nn.Module, eager: nn.Module, losses: tuple[float, float]) -> None:
    assert losses[0] == pytest.approx(losses[1], rel=TOLERANCE)
    expected = {name: p.grad for name, p in eager.named_parameters() if p.grad is not None}
    largest = max(float(g.abs().max()) for g in expected.values())
    for name, parameter in trained.named_parameters():
        got = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        wanted = expected.get(name, torch.zeros_like(parameter))
        assert float((got - wanted).abs().max()) <= TOLERANCE * largest, name
    buffers = dict(eager.named_buffers())
    for name, buffer in trained.named_buffers():
        torch.testing.assert_close(buffer, buffers[name], rtol=1e-4, atol=1e-5, msg=name)


def compiled(module: nn.Module) -> Callable[..., torch.Tensor]:
    return torch.compile(module, backend=backpass)


def check_what_torch_ran(family: str) -> None:
    """Only the operators named above; no graph as a whole, for then torch would be compared with torch."""
    operators = {usage.target for usage in callbacks.usage() if usage.op.startswith("ATen")}
    assert operators <= HANDED_OVER.get(family, set())
    assert not [graph.reason for graph in record().graphs if graph.reason]


@pytest.mark.parametrize("front", [wrap, compiled])
@pytest.mark.parametrize("family", families(EVERYDAY))
def test_a_step_equals_eager(family, front):
    module, inputs = zoo.make(family)
    eager = copy.deepcopy(module)
    check(module, eager, (step(front(module), inputs), step(eager, inputs)))
    check_what_torch_ran(family)
    if front is compiled:
        assert record().execution_count  # the engine did run


def cut(inputs: tuple[torch.Tensor, ...], family: str) -> tuple[torch.Tensor, ...]:
    """Another batch: one sample more. Text becomes shorter too, unless an axis of it is not the length."""
    longer = tuple(torch.cat([t, t[:1]]) for t in inputs)
    if family in TEXT_FAMILIES:
        return tuple(t[:, 1:].contiguous() for t in longer)
    return longer


TEXT_FAMILIES = {
    name
    for name in zoo.FAMILIES
    if name not in {"vit", "deit", "swin", "convnext", "resnet", "segformer", "whisper", "clip", "unet", "mobilenet"}
    and name not in {"bert_seqcls", "transformer", "t5", "bart"}
}


@pytest.mark.parametrize("family", families({"gpt2"}))
def test_other_batches_and_lengths(family):
    """The second and the fourth call have other extents than the first; the third has those of the first again."""
    module, inputs = zoo.make(family)
    eager = copy.deepcopy(module)
    trained = wrap(module)
    for batch in (inputs, cut(inputs, family), inputs, cut(cut(inputs, family), family)):
        module.zero_grad()
        eager.zero_grad()
        check(module, eager, (step(trained, batch), step(eager, batch)))


@pytest.mark.parametrize("front", [wrap, compiled])
@pytest.mark.parametrize("family", families(set()))
def test_ten_steps_of_adamw(family, front):
    module, inputs = zoo.make(family)
    eager = copy.deepcopy(module)
    curves = []
    for trained, parameters in ((front(module), module.parameters()), (eager, eager.parameters())):
        optimizer = torch.optim.AdamW(parameters, lr=1e-3)
        curve = []
        for _ in range(10):
            optimizer.zero_grad()
            curve.append(step(trained, inputs))
            optimizer.step()
        curves.append(curve)
    assert curves[0] == pytest.approx(curves[1], rel=1e-3)
    assert curves[1][-1] < curves[1][0]
