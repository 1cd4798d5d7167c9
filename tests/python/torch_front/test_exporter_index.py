"""Reading and writing by index."""

from __future__ import annotations

from typing import Any

import backpass
import pytest
import torch
from backpass.torch import export_module
from exporter_check import Function, check, check_table, check_values, ops_of
from torch import nn

torch.manual_seed(3)


def x(*shape: int) -> torch.Tensor:
    return torch.randn(shape)


def places(below: int, *shape: int) -> torch.Tensor:
    return torch.randint(0, below, shape)


def flags(*shape: int) -> torch.Tensor:
    return torch.rand(shape) > 0.4


READS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "embedding": (nn.Embedding(9, 4), (places(9, 2, 5),)),
    "embedding, scaled by frequency": (nn.Embedding(9, 4, scale_grad_by_freq=True), (torch.tensor([2, 1, 2]),)),
    "embedding with padding": (nn.Embedding(9, 4, padding_idx=2), (torch.tensor([[2, 1, 2], [3, 2, 8]]),)),
    "embedding, negative padding": (nn.Embedding(9, 4, padding_idx=-1), (torch.tensor([[8, 1, 2], [3, 2, 8]]),)),
    "gather": (lambda a, i: (a.gather(1, i), a.gather(0, i % 3)), (x(3, 5), places(5, 3, 4))),
    "gather, fewer rows": (lambda a, i: a.gather(1, i), (x(3, 5), places(5, 2, 7))),
    "gather one": (lambda a: a.gather(0, torch.tensor(2)), (torch.randn(5),)),
    "index_select": (lambda a, i: (a.index_select(1, i), a.index_select(0, i % 3)), (x(3, 5), places(5, 4))),
    "one index": (lambda a, i: (a[i % 3], a[:, i], a[..., i % 2]), (x(3, 5, 2), places(5, 4))),
    "index matrix": (lambda a, i: (a[i % 3], a[:, i]), (x(3, 5, 2), places(5, 2, 3))),
    "negative index": (lambda a, i: (a[i], a[i, i]), (x(3, 5), torch.tensor([-1, 0, -2]))),
    "two indices": (
        lambda a, i, j: (a[i, j], a[:, i, j % 2], a[i, :, j % 2]),
        (x(3, 5, 2), places(3, 4), places(5, 4)),
    ),
    "indices that broadcast": (lambda a, i, j: a[i, j], (x(3, 5, 2), places(3, 4, 1), places(5, 3))),
    "index and number": (lambda a, i: (a[torch.arange(3), i], a[1, i]), (x(3, 5), places(5, 3))),
    "mask": (lambda a, m: (a[m], a[m] * 2), (x(3, 5), flags(3, 5))),
    "mask of rows": (lambda a, m: a[m], (x(4, 5), flags(4))),
    "mask of columns": (lambda a, m: a[:, m], (x(4, 5), flags(5))),
    "mask of pairs": (lambda a, m: (a[m], a.masked_select(m[..., None])), (x(4, 5, 2), flags(4, 5))),
    "nonzero": (lambda m: (m.nonzero(), *torch.where(m)), (flags(3, 4),)),
    "take": (lambda a, i: (a.take(i), a.take_along_dim(i % 5, 1)), (x(3, 5), places(15, 3, 4))),
    "topk": (lambda a: (*a.topk(2), *a.topk(3, 0, largest=False)), (x(4, 5),)),
    "sort": (lambda a: (*a.sort(), *a.sort(0, descending=True), a.argsort()), (x(4, 5),)),
}


def test_reads() -> None:
    check_table(READS)


def _put(a: torch.Tensor, i: torch.Tensor, j: torch.Tensor, v: torch.Tensor) -> Any:
    made = [a.clone() for _ in range(7)]
    made[0][i, j] = v
    made[1][:, j] = v[:4, None]
    made[2][i] = 2.0
    made[3].index_put_((i, j), v, accumulate=True)
    made[4][a > 0] = -1.0
    made[5][a > 0] *= 3
    made[6][torch.tensor([True, False, True, True])] = v[:5]
    return made


WRITES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "index_put": (_put, (x(4, 5), torch.tensor([0, 2, 3, 0, 2]), torch.tensor([1, 4, 0, 2, 3]), x(5))),
    "slice_scatter": (
        lambda a, s: (
            torch.slice_scatter(a, s, 1, 1, 3),
            torch.slice_scatter(a, s, 1, 0, 4, 2),
            a.slice_scatter(s, 1, -2),
        ),
        (x(3, 5), x(3, 2)),
    ),
    "select_scatter": (lambda a, s: (a.select_scatter(s, 0, 1), a.select_scatter(s, 0, -1)), (x(3, 5), x(5))),
    "scatter": (
        lambda a, i, s: (a.scatter(1, i, s), a.scatter(1, i, 2.5), a.scatter(1, i[:, :1], s.detach())),
        (x(3, 5), torch.tensor([[0, 2], [4, 1], [3, 2]]), x(3, 2)),
    ),
    "scatter_add": (lambda a, i, s: a.scatter_add(0, i, s), (x(3, 5), places(3, 4, 5), x(4, 5))),
    "scatter_reduce": (
        lambda a, i, s: (a.scatter_reduce(1, i, s, "sum"), a.scatter_reduce(1, i, s, "amax")),
        (x(3, 5), places(5, 3, 4), x(3, 4)),
    ),
    "index_add": (lambda a, i, s: a.index_add(1, i, s, alpha=2), (x(3, 5), places(5, 4), x(3, 4))),
    "index_copy": (lambda a, i, s: a.index_copy(0, i, s), (x(3, 5), torch.tensor([2, 0]), x(2, 5))),
    "index_fill": (lambda a, i: a.index_fill(1, i, -1), (x(3, 5), torch.tensor([4, 0]))),
    "index_fill the same twice": (lambda a, i, v: a.index_fill(0, i, v), (x(3, 5), torch.tensor([2, 0, 2]), x())),
    "masked_scatter by where": (lambda a, m: torch.where(m, a * 2, a.flip(0)), (x(3, 5), flags(3, 5))),
}


def test_writes() -> None:
    check_table(WRITES)


def test_padding_rows_of_embeddings_get_no_gradient() -> None:
    module = nn.Embedding(6, 3, padding_idx=1)
    exported = check(module, (torch.tensor([[1, 2], [1, 5]]),))
    assert ops_of(exported)["StopGradient"] == 1


def test_masks_of_any_size() -> None:
    def function(a: torch.Tensor, m: torch.Tensor, i: torch.Tensor) -> Any:
        rows = a[m]
        return rows.sum(0), rows @ rows.t(), a[torch.arange(a.shape[0]), i], (a * m[:, None]).sum()

    check(function, (x(4, 3), flags(4), places(3, 4)), [(x(7, 3), flags(7), places(3, 7))])


def _detached(a: torch.Tensor) -> torch.Tensor:
    return (a * 2).t().detach().as_strided((3, 2), (4, 1)) * a[:, :2]


STRIDED: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "in order": (lambda a: (a * 2).as_strided((2, 3), (1, 2)), (x(3, 4),)),
    "transposed": (lambda a: (a * 2).t().as_strided((2, 3), (1, 4)), (x(3, 4),)),
    "computed from transposed": (lambda a: (a.t() * 2).as_strided((3, 2), (4, 1)), (x(3, 4),)),
    "rows": (lambda a: ((a * 2)[1:].as_strided((2, 3), (1, 2)), a[1:].as_strided((2, 2), (1, 2), 5)), (x(3, 4),)),
    "columns": (lambda a: (a * 2)[:, :2].as_strided((3, 1), (4, 1), 1), (x(3, 4),)),
    "expanded": (lambda a: (a * 2)[:, :1].expand(3, 5).as_strided((3, 2), (4, 0)), (x(3, 4),)),
    "detached": (_detached, (x(3, 4),)),
    "copy": (lambda a: torch.as_strided_copy((a * 2).t(), (2, 3), (1, 2)), (x(3, 4),)),
    "in place": (lambda a: (a * 2).t().as_strided_((2, 3), (1, 2)) * 2, (x(3, 4),)),
}


def test_strides_are_those_of_torchs_memory() -> None:
    assert not check_table(STRIDED).fallbacks
    written = check_values(
        lambda a, s: torch.as_strided_scatter((a * 2).t(), s, (2, 3), (1, 2)), (x(3, 4), torch.ones(2, 3))
    )
    assert not written.fallbacks


def _chunks(a: torch.Tensor) -> torch.Tensor:
    """Overlapping pieces, as sliding-window attention takes them."""
    h = (a * 2).transpose(0, 1).transpose(1, 2).reshape(a.shape[1] * a.shape[2], a.shape[0], a.shape[3])
    h = h.view(h.shape[0], h.shape[1] // 4, 4, h.shape[2])
    size, stride = list(h.size()), list(h.stride())
    size[1], stride[1] = size[1] * 2 - 1, stride[1] // 2
    return h.as_strided(size, stride)


def test_strides_of_any_size() -> None:
    assert not check(_chunks, (x(8, 2, 3, 5),), [(x(12, 3, 2, 5),)]).fallbacks


def _resized(a: torch.Tensor) -> torch.Tensor:
    return (a.t() * 2).resize_(2, 3) * 1


@pytest.mark.parametrize(
    "function",
    [
        lambda a: (a * 2)[1:].as_strided((2, 2), (1, 2), 2),
        lambda a: (a * 2)[:, :2].as_strided((3, 4), (4, 1)),
        lambda a: (a * 2)[:, ::2].detach().as_strided((3, 2), (2, 1)),
        lambda a: torch.as_strided_scatter(a[:, :2], a[:2, :2] * 1, (2, 2), (4, 1)),
        _resized,
    ],
)
def test_memory_beside_a_tensor_is_refused(function: Any) -> None:
    with pytest.raises(backpass.Unsupported, match=r"strides: got .*, expected"):
        export_module(Function(function), (x(3, 4),))
