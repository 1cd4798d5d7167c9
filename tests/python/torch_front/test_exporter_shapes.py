"""Moving, making and reducing: views, joins, slices, counted tensors, sums."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from exporter_check import check, check_table, check_values

torch.manual_seed(1)


def x(*shape: int) -> torch.Tensor:
    return torch.randn(shape)


def whole(*shape: int) -> torch.Tensor:
    return torch.randint(-5, 6, shape)


MOVES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "view": (
        lambda a: (a.view(-1), a.view(3, 8), a.view(2, -1, 2), a.flatten(1), a.unflatten(1, (2, 2))),
        (x(2, 4, 3),),
    ),
    "view as another": (lambda a, b: (a.view_as(b), a.reshape_as(b), a.view_as(b).sum(0)), (x(2, 6), x(3, 4))),
    "view of nothing": (lambda a: (a.view(0, 6), a.reshape(3, 0)), (x(0, 3, 2),)),
    "permute": (lambda a: (a.permute(2, 0, 1), a.permute(0, 2, -2), a.transpose(0, -1), a.mT), (x(2, 4, 3),)),
    "t": (lambda a, b: (a.t(), b.t(), a.T), (x(2, 3), x(4))),
    "unsqueeze": (lambda a: (a.unsqueeze(0), a.unsqueeze(-1), a[None, :, None]), (x(2, 3),)),
    "squeeze": (lambda a: (a.squeeze(), a.squeeze(0), a.squeeze(1), a.squeeze((0, -1))), (x(1, 3, 1),)),
    "expand": (lambda a: (a.expand(4, 3), a.expand(2, -1, 3), torch.broadcast_to(a, (5, 1, 3))), (x(1, 3),)),
    "cat": (
        lambda a, b, c: (torch.cat([a, b], 1), torch.cat([a, c]), torch.cat([a, a], -1)),
        (x(2, 3), x(2, 1), whole(1, 3)),
    ),
    "cat with an empty list-like tensor": (lambda a, b: torch.cat([a, b]), (x(2, 3), torch.zeros(0))),
    "stack": (lambda a, b: (torch.stack([a, b]), torch.stack([a, b], -1)), (x(2, 3), x(2, 3))),
    "split": (lambda a: (*a.split(2, 1), *a.split([1, 4], -1), *a.chunk(3, 1), *a.chunk(1)), (x(2, 5),)),
    "unbind": (lambda a: (*a.unbind(1), *a.unbind(), *a[:, :1].unbind(1)), (x(2, 3),)),
    "slice": (lambda a: (a[1:], a[:, :-1], a[:, 1:4:2], a[-2:, -3:-1], a[5:], a[:, 100:], a[..., 0]), (x(3, 5, 2),)),
    "select": (lambda a: (a[0], a[:, -1], a[1, 2], a.select(-1, 1), a.narrow(1, 1, 3)), (x(3, 5, 2),)),
    "repeat": (lambda a: (a.repeat(2, 3), a.repeat(2, 1, 1), a.repeat_interleave(2, 1), a.tile(2)), (x(2, 3),)),
    "flip and roll": (
        lambda a: (a.flip(0), a.flip(0, -1), a.roll(1, 0), a.roll((2, -1), (0, 1)), a.roll(5)),
        (x(3, 4),),
    ),
    "copy": (lambda a, b: a.clone().copy_(b), (x(3, 4), whole(4))),
    "clone": (lambda a: (a.clone(), a.contiguous(), a.movedim(0, -1), a.swapaxes(0, 1)), (x(3, 4),)),
    "diagonal": (lambda a: (a.diagonal(), torch.tril(a), torch.triu(a, 1), torch.tril(a, -1)), (x(4, 4),)),
    "writing into slices": (lambda a, b: _changed(a, b), (x(3, 5), x(3, 2))),
    "pad": (
        lambda a: (F.pad(a, (1, 2)), F.pad(a, (1, 0, 2, 1), value=3.5), F.pad(a, (-1, 2)), F.pad(a, (0, 0))),
        (x(2, 3, 4),),
    ),
    "pad by what is there": (
        lambda a: (F.pad(a, (1, 2), "reflect"), F.pad(a, (2, 1), "replicate"), F.pad(a, (2, 1), "circular")),
        (x(2, 3, 4),),
    ),
    "meshgrid": (lambda a, b: torch.meshgrid(a, b, indexing="ij"), (x(3), x(2))),
    "pixel_shuffle": (lambda a: (F.pixel_shuffle(a, 2), F.pixel_unshuffle(a, 2)), (x(2, 4, 2, 6),)),
    "unfold": (lambda a: (a.unfold(1, 3, 2), F.unfold(a.view(1, 2, 3, 3), 2)), (x(2, 9),)),
}


def _changed(a: torch.Tensor, b: torch.Tensor) -> Any:
    one, two, three = a.clone(), a.clone(), a.clone()
    one[:, 1:3] = b
    two[0] = 2.0
    three[:, ::3] = b
    return one, two, three


def test_moves() -> None:
    check_table(MOVES)


REDUCTIONS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "sum": (lambda a: (a.sum(), a.sum(1), a.sum((0, -1), keepdim=True), a.sum(-1, dtype=torch.float64)), (x(2, 3, 4),)),
    "sum of ints and bools": (lambda a: (a.sum(), a.int().sum(1), (a > 0).sum(0), (a > 0).sum()), (whole(3, 4),)),
    "sum of a number": (lambda a: (a.sum(), a.mean(), a.amax(), a.sum(0)), (x(),)),
    "sum of nothing": (lambda a: (a.sum(), a.sum(0), a.prod(1)), (x(0, 3),)),
    "mean": (lambda a: (a.mean(), a.mean(1), a.mean((0, 2), keepdim=True)), (x(2, 3, 4),)),
    "mean to double": (lambda a: a.mean(dtype=torch.float64), (whole(2, 3),)),
    "prod": (lambda a: (a.prod(), a.prod(1), a.prod(0, keepdim=True)), (x(2, 3),)),
    "prod with a zero": (lambda a: (a.prod(), a.prod(1)), (torch.tensor([[1.0, 0.0, 2.0], [3.0, 4.0, 5.0]]),)),
    "max and min": (lambda a: (a.max(), a.min(), a.max(1), a.min(0, keepdim=True), a.amax((0, 1))), (x(3, 4),)),
    "max with ties": (lambda a: (a.max(1)[0], a.amax(1)), (torch.tensor([[1.0, 3.0, 3.0], [2.0, 2.0, 2.0]]),)),
    "max of ints and bools": (lambda a: (a.max(), a.amin(1), (a > 0).amax(0), a.max(1)), (whole(3, 4),)),
    "argmax": (lambda a: (a.argmax(), a.argmax(1), a.argmin(0, keepdim=True), a.argmax(keepdim=True)), (x(3, 4),)),
    "any and all": (lambda a: (a.any(), a.all(), (a > 0).any(1), (a > -4).all(0, keepdim=True)), (whole(3, 4),)),
    "any along no axes": (lambda a: (torch.any(a, dim=()), torch.all(a, dim=())), (whole(3, 4),)),
    "sum in small types": (
        lambda a: (
            a.sum(dtype=torch.uint8),
            a.sum(1, dtype=torch.int8),
            a.prod(dtype=torch.int16),
            a.sum(dtype=torch.bool),
        ),
        (whole(3, 4),),
    ),
    "std of what does not vary": (
        lambda a: (a.std(), a.std(1), a.std(0, correction=0), *torch.std_mean(a, 1, keepdim=True)),
        (torch.ones(3, 4),),
    ),
    "norms of zeros": (
        lambda a: (a.norm(3), a.norm(p=0.5, dim=1), a.norm(p=1.5, dim=0, keepdim=True)),
        (torch.tensor([[0.0, 0.0], [0.0, 2.0], [1.0, -3.0]]),),
    ),
    "any of nothing": (lambda a: (a.any(1), a.all(1), a.any()), (torch.zeros(3, 0, dtype=torch.bool),)),
    "var": (
        lambda a: (a.var(), a.var(1), a.std((0, 1), correction=0), *torch.var_mean(a, 0, keepdim=True)),
        (x(3, 4),),
    ),
    "logsumexp": (lambda a: (a.logsumexp(1), a.logsumexp((0, 1), keepdim=True)), (x(3, 4),)),
    "norm": (lambda a: (a.norm(), a.norm(1, 1), torch.linalg.vector_norm(a, float("inf"), 0)), (x(3, 4),)),
    "norm 3": (lambda a: torch.linalg.vector_norm(a, 3, 0), (x(3, 4),)),
    "norm of zeros": (lambda a: (a.norm(), a.norm(dim=1)), (torch.zeros(2, 3),)),
    "cumsum": (lambda a: (a.cumsum(0), a.cumsum(-1, dtype=torch.float64), (a > 0).cumsum(1)), (x(3, 4),)),
    "running extremes of equals": (
        lambda a: (*a.cummax(1), *a.cummin(0)),
        (torch.tensor([[1.0, 2, 2, 1], [3, 3, 1, 1]]),),
    ),
    "cumprod": (lambda a: a.cumprod(1), (x(3, 4),)),
    "count_nonzero": (lambda a: (a.count_nonzero(), a.count_nonzero(1)), (whole(3, 4),)),
}


def test_reductions() -> None:
    check_table(REDUCTIONS)


def _made(a: torch.Tensor) -> Any:
    n, m = a.shape
    return (
        torch.zeros(n, m),
        torch.ones(m, dtype=torch.int32),
        torch.full((n, 2), 1.5),
        torch.full((m,), 3),
        torch.full((), True),
        torch.zeros_like(a),
        torch.ones_like(a, dtype=torch.bool),
        torch.full_like(a, 2),
        a.new_zeros(m),
        a.new_ones(2, n),
        torch.arange(m),
        torch.arange(1, 10, 3),
        torch.arange(0.0, 1.0, 0.1),
        torch.arange(n, dtype=torch.float32),
        torch.arange(2 * n, 0, -1),
        torch.eye(n),
        torch.eye(3, 4, dtype=torch.int64),
        torch.tensor([1.0, 2.0]) * a[0, 0],
        torch.linspace(0, 1, 5),
        F.one_hot(torch.arange(5) % 3, 3),
        torch.scalar_tensor(n + m),
        torch.empty(2).fill_(7),
    )


def test_made_tensors() -> None:
    check(_made, (x(2, 3),))
    check(_made, (x(2, 3),), [(x(4, 1),), (x(1, 6),)])


def _symbolic(a: torch.Tensor, b: torch.Tensor) -> Any:
    n, t, d = a.shape
    heads = a.view(n, t, 2, d // 2).transpose(1, 2)
    joined = heads.reshape(n, 2 * t, d // 2)
    mask = torch.arange(t)[None, :] <= torch.arange(t)[:, None]
    halves = a.chunk(2, -1)
    return (
        joined,
        heads.flatten(0, 1).unflatten(0, (n, 2)),
        a.masked_fill(mask[:, :1], 0),
        torch.cat([a, b[:, None, :].expand(n, t, d)], 1)[:, t - 1 : t + 2],
        a[:, -1],
        a[:, : t // 2],
        F.pad(a, (0, 0, t // 2, 1)),
        a.roll(1, 1),
        a.mean((0, 1)) * t / n,
        (a * t**0.5).var(1),
        halves[0] * halves[1],
        a.new_zeros(n * t + 1, max(t, 4)),
        a.sum(1).repeat(t, 1),
        mask.sum() % 3,
        t,
    )


def test_symbolic_sizes() -> None:
    check(_symbolic, (x(2, 3, 4), x(2, 4)), [(x(5, 7, 4), x(5, 4)), (x(1, 2, 4), x(1, 4))])


def test_variance_of_many_small_floats() -> None:
    for dtype in (torch.float16, torch.bfloat16):
        check_values(lambda a: (a.var(), a.std(), *torch.var_mean(a, 1)), ((x(300, 300) * 10).to(dtype),))


def test_older_forms_of_variance_are_lowered() -> None:
    def function(a: torch.Tensor) -> Any:
        rows = (a.var(1), a.std(-1, False), a.var(0, unbiased=False, keepdim=True), a.var(False), a.std(True))
        return *rows, *torch.var_mean(a, 1, True), *torch.std_mean(a, dim=0, unbiased=False, keepdim=True)

    assert not check(function, (x(3, 4),)).fallbacks
