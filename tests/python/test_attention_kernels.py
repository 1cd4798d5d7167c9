"""The gradient of Attention against torch in float64: blocks of queries and keys, masks, shared heads, odd sizes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from backpass import _core
from onnx import TensorProto, helper


def session(shapes: list[tuple[int, ...]], mask: np.ndarray | None, kind: int, threads: int, **attributes: Any) -> Any:
    """Attention of q, k and v, differentiated by all of them."""
    inputs = [helper.make_tensor_value_info(n, kind, s) for n, s in zip("qkv", shapes, strict=True)]
    names = ["q", "k", "v"]
    if mask is not None:
        mask_kind = TensorProto.BOOL if mask.dtype == np.bool_ else kind
        inputs.append(helper.make_tensor_value_info("m", mask_kind, mask.shape))
        names.append("m")
    y = helper.make_tensor_value_info("y", kind, (*shapes[0][:-1], shapes[2][-1]))
    graph = helper.make_graph([helper.make_node("Attention", names, ["y"], **attributes)], "g", inputs, [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)])
    options = _core.SessionOptions()
    options.num_threads = threads
    return _core.ModuleSession.from_bytes(model.SerializeToString(), ["q", "k", "v"], options)


def results(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: np.ndarray | None, dy: torch.Tensor, **more: Any
) -> list[np.ndarray]:
    """What attention gives, and the gradients of q, k and v."""
    threads = more.pop("threads", 1)
    kind = TensorProto.FLOAT if q.dtype == torch.float32 else TensorProto.DOUBLE
    s = session([tuple(x.shape) for x in (q, k, v)], mask, kind, threads, **more)
    inputs = [q, k, v] + ([] if mask is None else [torch.from_numpy(mask)])
    outputs, run = s.forward(inputs, True)
    return [torch.from_dlpack(x).numpy() for x in [*outputs, *s.backward(run, [dy])]]


def gradients(*tensors: Any, **more: Any) -> list[np.ndarray]:
    return results(*tensors, **more)[1:]


def expected(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: np.ndarray | None, dy: torch.Tensor, **more: Any
) -> list[np.ndarray]:
    leaves = [x.double().requires_grad_() for x in (q, k, v)]
    group = q.shape[1] // k.shape[1]
    keys, values = (x.repeat_interleave(group, 1) for x in leaves[1:])
    scores = leaves[0] @ keys.transpose(-1, -2) * more.get("scale", q.shape[-1] ** -0.5)
    cap = more.get("softcap", 0.0)
    if cap > 0:
        scores = torch.tanh(scores / cap) * cap
    seen = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool)
    if more.get("is_causal"):
        seen = torch.tril(seen)
    if mask is not None and mask.dtype == np.bool_:
        seen = seen & torch.from_numpy(mask)
    elif mask is not None:
        scores = scores + torch.from_numpy(mask).double()
    p = torch.softmax(scores.masked_fill(~seen, -np.inf), -1)
    p = torch.where(torch.isnan(p), torch.zeros_like(p), p)  # a query that sees no key
    return [d.numpy() for d in torch.autograd.grad(p @ values, leaves, dy.double())]


def numbers(*shape: int, seed: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def case(
    heads: int, kv_heads: int, q_len: int, kv_len: int, head: int, v_head: int, dtype: torch.dtype
) -> tuple[torch.Tensor, ...]:
    return (
        numbers(2, heads, q_len, head, seed=0, dtype=dtype),
        numbers(2, kv_heads, kv_len, head, seed=1, dtype=dtype),
        numbers(2, kv_heads, kv_len, v_head, seed=2, dtype=dtype),
        numbers(2, heads, q_len, v_head, seed=3, dtype=dtype),
    )


def check(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, dy: torch.Tensor, mask: Any = None, **more: Any) -> None:
    tolerance = 2e-5 if q.dtype == torch.float32 else 1e-12
    for got, want in zip(gradients(q, k, v, mask, dy, **more), expected(q, k, v, mask, dy, **more), strict=True):
        assert np.isfinite(got).all()
        np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance * max(1.0, np.abs(want).max()))


SHAPES = [
    (1, 1, 1, 1, 1, 1),
    (2, 1, 7, 9, 8, 8),
    (4, 2, 65, 65, 16, 16),
    (2, 2, 64, 128, 32, 32),
    (2, 2, 130, 130, 64, 64),
    (3, 3, 100, 300, 24, 40),
    (1, 1, 3, 600, 33, 17),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float", "double"])
@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_sizes(shape: tuple[int, ...], causal: int, dtype: torch.dtype) -> None:
    check(*case(*shape, dtype), is_causal=causal)


@pytest.mark.parametrize("mask_shape", [(2, 1, 1, 70), (2, 1, 66, 70), (66, 70), (2, 2, 66, 70)], ids=str)
@pytest.mark.parametrize("kind", ["added", "chosen", "minus_infinity"])
def test_masks(mask_shape: tuple[int, ...], kind: str) -> None:
    rng = np.random.default_rng(0)
    mask = rng.standard_normal(mask_shape).astype(np.float32)
    if kind == "chosen":
        mask = mask > 0
        mask[..., 0, :] = False  # somebody sees nothing
    elif kind == "minus_infinity":
        mask[mask < 0] = -np.inf
    check(*case(2, 2, 66, 70, 16, 16, torch.float32), mask=mask)


@pytest.mark.parametrize("threads", [1, 2])
def test_keys_that_a_mask_hides_from_all_queries_are_not_read(threads: int) -> None:
    q, k, v, dy = case(2, 2, 150, 300, 16, 16, torch.float32)
    mask = np.tril(np.ones((150, 300), np.bool_))
    mask[:64] = False  # a whole block of queries sees nothing
    mask[70, :] = False
    want = expected(q, k, v, mask, dy)
    k[:, :, 150:] = np.nan
    v[:, :, 150:] = np.nan
    for got, whole in zip(gradients(q, k, v, mask, dy, threads=threads), want, strict=True):
        np.testing.assert_allclose(got, whole, rtol=2e-5, atol=2e-5 * np.abs(whole).max())


@pytest.mark.parametrize("shape", [(130, 130), (200, 77), (5, 300)], ids=str)
def test_a_triangle_is_as_good_as_causal(shape: tuple[int, int]) -> None:
    q, k, v, dy = case(2, 1, *shape, 24, 24, torch.float32)
    mask = np.tril(np.ones(shape, np.bool_))
    for a, b in zip(gradients(q, k, v, mask, dy), gradients(q, k, v, None, dy, is_causal=1), strict=True):
        np.testing.assert_array_equal(a, b)


LOWEST = [np.finfo(np.float32).min, -1e30, -np.inf]


@pytest.mark.parametrize("lowest", LOWEST)
@pytest.mark.parametrize("shape", [(130, 130), (200, 77), (5, 300), (1, 1)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float", "double"])
def test_so_is_a_triangle_of_numbers(shape: tuple[int, int], lowest: float, dtype: torch.dtype) -> None:
    q, k, v, dy = case(2, 1, *shape, 24, 24, dtype)
    mask = np.where(np.tril(np.ones(shape, np.bool_)), 0, lowest).astype(q.numpy().dtype)
    for a, b in zip(results(q, k, v, mask, dy), results(q, k, v, None, dy, is_causal=1), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("causal", [0, 1])
def test_where_all_keys_have_the_lowest_number_they_count_alike(causal: int) -> None:
    q, k, v, dy = case(2, 2, 150, 300, 16, 16, torch.float32)
    mask = np.where(np.tril(np.ones((150, 300), np.bool_)), 0, np.finfo(np.float32).min).astype(np.float32)
    mask[7] = np.finfo(np.float32).min  # in the first block of queries; those behind it leave keys out
    check(q, k, v, dy, mask, is_causal=causal)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("where", [1, 2], ids=["key", "value"])
def test_nothing_times_what_is_no_number_is_none(bad: float, where: int) -> None:
    tensors = case(1, 1, 150, 150, 8, 24, torch.float32)
    mask = np.where(np.tril(np.ones((150, 150), np.bool_)), 0, np.finfo(np.float32).min).astype(np.float32)
    tensors[where][1, 0, 140, 3] = bad  # which no query of the first block sees
    q, k, v, dy = tensors
    y, dq = results(q, k, v, mask, dy)[:2]
    scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5 + torch.from_numpy(mask)
    want = torch.isnan(torch.softmax(scores, -1) @ v).numpy()
    assert want[1].any()
    np.testing.assert_array_equal(np.isnan(y), want)
    assert np.isnan(dq[1]).any()
    assert np.isfinite(dq[0]).all()


@pytest.mark.parametrize("threads", [1, 2])
def test_a_mask_of_numbers_that_are_none(threads: int) -> None:
    q, k, v, dy = case(2, 2, 150, 300, 16, 16, torch.float32)
    mask = np.where(np.tril(np.ones((150, 300), np.bool_)), 0, np.finfo(np.float32).min).astype(np.float32)
    mask[100, 280] = np.nan
    y = results(q, k, v, mask, dy, threads=threads)[0]
    bad = np.zeros(150, bool)
    bad[100] = True
    np.testing.assert_array_equal(np.isnan(y).all(-1), np.broadcast_to(bad, (2, 2, 150)))


def test_softcap() -> None:
    check(*case(2, 1, 70, 90, 16, 16, torch.float32), softcap=1.5)
    check(*case(2, 1, 70, 70, 16, 16, torch.float64), softcap=0.5, is_causal=1, scale=0.75)


def test_threads_do_not_matter() -> None:
    q, k, v, dy = case(4, 2, 130, 130, 32, 32, torch.float32)
    one = gradients(q, k, v, None, dy, is_causal=1)
    for threads in (2, 3):
        for a, b in zip(one, gradients(q, k, v, None, dy, is_causal=1, threads=threads), strict=True):
            assert a.tobytes() == b.tobytes()


def test_a_bad_query_spoils_only_what_it_touches() -> None:
    q, k, v, dy = case(2, 2, 130, 130, 16, 16, torch.float32)
    dy[1, 0, 5, 3] = np.nan
    dq, dk, dv = gradients(q, k, v, None, dy, is_causal=1)
    bad = np.zeros((2, 2, 130), bool)
    bad[1, 0, 5] = True
    np.testing.assert_array_equal(np.isnan(dq).any(-1), bad)
    bad[1, 0, :6] = True  # the keys it sees, at least
    assert np.isnan(dk).any(-1)[bad].all()
    assert np.isnan(dv).any(-1)[bad].all()
    assert np.isfinite(dk[0]).all()
    assert np.isfinite(dv[:, 1]).all()
