"""Attention, RotaryEmbedding, LinearAttention."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from op_case import FLOATS, REALS, Case, Row, case, const, data
from op_oracle import from_torch
from torch.nn import functional


def heads(
    batch: int,
    q_heads: int,
    kv_heads: int,
    queries: int,
    keys: int,
    size: int,
    *rest: Any,
    v_size: int = 0,
    **attrs: Any,
) -> Case:
    return case(
        (batch, q_heads, queries, size),
        (batch, kv_heads, keys, size),
        (batch, kv_heads, keys, v_size or size),
        *rest,
        **attrs,
    )


def packed(
    batch: int, q_heads: int, kv_heads: int, queries: int, keys: int, size: int, *rest: Any, **attrs: Any
) -> Case:
    return case(
        (batch, queries, q_heads * size),
        (batch, keys, kv_heads * size),
        (batch, keys, kv_heads * size),
        *rest,
        q_num_heads=q_heads,
        kv_num_heads=kv_heads,
        **attrs,
    )


SEEN = np.array([[True, False, True, True], [False, False, True, False], [True] * 4])
SMALL = [
    heads(2, 4, 2, 3, 2, 2, v_size=3),
    packed(1, 2, 1, 3, 4, 2, is_causal=1),
    heads(1, 2, 2, 3, 4, 2, np.array([[True] * 4, [False] * 4, [True, False] * 2]), softcap=2.0),
    heads(2, 2, 1, 3, 4, 2, (1, 2, 3, 4), left_window_size=1, right_window_size=1),
    heads(1, 2, 2, 3, 4, 2, (3, 2)),
    heads(2, 2, 1, 3, 4, 2, None, None, None, np.array([4, 2]), is_causal=1),
    packed(2, 4, 2, 2, 3, 2, scale=0.4),
    heads(1, 2, 2, 3, 4, 2, SEEN[:, :2]),
    heads(1, 1, 1, 2, 2, 1),
]
ROTATED = [
    case((2, 3, 4, 8), (9, 4), (9, 4), data(2, 4, dtype="int64", low=0, high=9)),
    case((2, 4, 24), (2, 4, 4), (2, 4, 4), num_heads=3, interleaved=1),
    case((1, 2, 3, 8), (5, 2), (5, 2), data(1, 3, dtype="int64", low=0, high=5), rotary_embedding_dim=4),
]


def in_torch(q: Any, k: Any, v: Any, mask: Any = None, is_causal: int = 0, scale: float | None = None) -> torch.Tensor:
    return functional.scaled_dot_product_attention(
        q,
        k,
        v,
        mask,
        is_causal=bool(is_causal),
        scale=None if scale is None else float(np.float32(scale)),
        enable_gqa=True,
    )


def without_dropout(q: Any, k: Any, v: Any, mask: Any = None, *_: Any, **attrs: Any) -> torch.Tensor:
    """Not in training, whatever the ratio."""
    return in_torch(q, k, v, mask, **attrs)


def places(*rows: tuple[int, int], length: int) -> np.ndarray:
    """Of rows (item, position)."""
    return np.array([item * length + position for item, position in rows], np.int64)


def ragged_in_torch(
    q: Any, k: Any, v: Any, q_places: Any, kv_places: Any, extents: Any, mask: Any = None, *_: Any, **attrs: Any
) -> torch.Tensor:
    """Query by query; not in training, whatever the ratio."""
    batch, q_len, kv_len = (int(x) for x in extents)
    shape = (batch, attrs["q_num_heads"], q_len, kv_len)
    q_places = range(len(q)) if q_places is None else [int(x) for x in q_places]
    kv_places = torch.arange(len(k)) if kv_places is None else kv_places
    found = []
    for row, place in zip(q, q_places, strict=True):
        item, i = divmod(place, q_len)
        keys = [j for j, other in enumerate(kv_places) if int(other) // kv_len == item]
        positions = kv_places[keys] % kv_len
        seen = (positions <= i) | (not attrs.get("is_causal", 0))
        added = torch.zeros(seen.shape, dtype=q.dtype).masked_fill(~seen, -torch.inf)
        if mask is not None:
            own = mask.expand(shape)[item, :, i][:, None, positions]
            added = torch.where(own, added, -torch.inf) if mask.dtype == torch.bool else added + own
        one = row.unflatten(0, (attrs["q_num_heads"], 1, -1))
        k_heads, v_heads = (x[keys].unflatten(1, (attrs["kv_num_heads"], -1)).transpose(0, 1) for x in (k, v))
        found.append(in_torch(one, k_heads, v_heads, added, scale=attrs.get("scale")).flatten())
    return torch.stack(found)


SOME_QUERIES = places((0, 1), (0, 3), (1, 0), (1, 2), length=4)
SOME_KEYS = places((0, 0), (0, 1), (0, 3), (1, 0), (1, 1), length=4)
RAGGED = np.array([2, 4, 4])
FROZEN = [const(0.4, "row"), const(False)]

NOT_TRAINING = [None, None, None, const(0.4, "row"), const(False)]
PAST = [(2, 2, 37, 8), (2, 2, 37, 8)]

ROWS = [
    Row(
        "Attention",
        [
            heads(2, 4, 2, 5, 7, 8, v_size=3),
            packed(1, 4, 1, 130, 300, 16, is_causal=1),
            heads(1, 2, 2, 6, 9, 8, data(6, 9, dtype="bool"), softcap=2.0),
            heads(1, 2, 2, 1, 1, 3),
            heads(1, 1, 1, 300, 257, 16, is_causal=1, scale=0.25),  # the reference takes the root in float32
            heads(2, 2, 1, 6, 9, 8, (1, 2, 6, 9), left_window_size=2, right_window_size=1),
            heads(1, 2, 2, 6, 9, 8, (6, 5)),
            heads(2, 2, 1, 4, 9, 8, None, None, None, np.array([9, 3]), is_causal=1),
        ],
        dtypes=FLOATS,
        grad=[0, 1, 2, 3],
        grad_inputs=SMALL,
        bench=heads(4, 8, 8, 256, 256, 64),
    ),
    Row(
        "Attention",
        [
            heads(2, 4, 2, 3, 5, 4, v_size=3),
            heads(1, 2, 2, 4, 4, 3, is_causal=1),
            heads(2, 2, 1, 3, 4, 2, (2, 1, 3, 4), scale=0.3),
            heads(1, 2, 2, 3, 4, 2, SEEN),
        ],
        dtypes=REALS,
        oracle=from_torch(in_torch),
        grad=[0, 1, 2, 3],
        name="Attention-torch",
    ),
    Row(
        "Attention",
        [
            heads(2, 4, 2, 5, 7, 8, (5, 44), *PAST, is_causal=causal, qk_matmul_output_mode=mode, softcap=cap)
            for causal, mode, cap in [(0, 0, 0.0), (1, 1, 3.0), (0, 2, 0.0), (1, 3, 0.0)]
        ],
        dtypes=REALS,
        outputs=4,
        opset=(25, 24, 23),
        grad=[0, 1, 2, 3, 4, 5],
        grad_inputs=[
            heads(
                1, 4, 2, 2, 3, 2, (2, 5), (1, 2, 2, 2), (1, 2, 2, 2), qk_matmul_output_mode=mode, softcap=cap, **attrs
            )
            for mode, cap, attrs in [(0, 0.0, {}), (1, 3.0, {"is_causal": 1}), (2, 0.0, {}), (3, 2.0, {"is_causal": 1})]
        ],
        name="Attention-cache",
    ),
    Row(
        "FusedAttention",
        [
            heads(2, 4, 2, 3, 5, 4, v_size=3),
            heads(1, 2, 2, 4, 4, 3, None, *NOT_TRAINING, is_causal=1),
            heads(2, 2, 1, 3, 4, 2, (2, 1, 3, 4), *NOT_TRAINING, scale=0.3),
            heads(1, 2, 2, 3, 4, 2, SEEN, *NOT_TRAINING),
        ],
        domain="backpass",
        dtypes=FLOATS,
        oracle=from_torch(without_dropout),
        grad=[0, 1, 2, 3],
        bench=heads(4, 8, 8, 256, 256, 64, None, None, None, None, const(0.1, "row"), const(True)),
    ),
    Row(
        "RaggedAttention",
        [
            case((4, 12), (5, 6), (5, 10), SOME_QUERIES, SOME_KEYS, RAGGED, q_num_heads=4, kv_num_heads=2),
            case(
                (4, 6),
                (5, 6),
                (5, 4),
                SOME_QUERIES[::-1].copy(),
                SOME_KEYS,
                RAGGED,
                (2, 2, 4, 4),
                *FROZEN,
                q_num_heads=2,
                kv_num_heads=2,
                is_causal=1,
                scale=0.3,
            ),
            case((8, 4), (5, 4), (5, 2), None, SOME_KEYS, RAGGED, q_num_heads=2, kv_num_heads=2),
            case((4, 4), (8, 2), (8, 3), SOME_QUERIES, None, RAGGED, (4,), q_num_heads=2, kv_num_heads=1),
            case((1, 3), (1, 3), (1, 1), None, None, np.array([1, 1, 1]), q_num_heads=1, kv_num_heads=1),
        ],
        domain="backpass",
        dtypes=FLOATS,
        oracle=from_torch(ragged_in_torch),
        grad=[0, 1, 2, 6],
        bench=case(
            (614, 512),
            (614, 512),
            (614, 512),
            *[np.flatnonzero(np.arange(1024) % 256 < 154)[:614]] * 2,
            np.array([4, 256, 256]),
            None,
            const(0.1, "row"),
            const(True),
            q_num_heads=8,
            kv_num_heads=8,
        ),
    ),
    Row(
        "RotaryEmbedding",
        ROTATED,
        dtypes=FLOATS,
        grad=[0, 1, 2],
    ),
    # Without derivatives by the caches there is a shorter way.
    Row("RotaryEmbedding", ROTATED, dtypes=REALS, grad=[0], name="RotaryEmbedding-X"),
    Row(
        "LinearAttention",
        [
            case(
                (2, 5, 12),
                (2, 5, 6),
                (2, 5, 4),
                None,
                data(2, 5, 2, low=-1, high=0),
                data(2, 5, 2, low=0, high=1),
                q_num_heads=4,
                kv_num_heads=2,
            ),
            case((1, 3, 6), (1, 3, 6), (1, 3, 8), (1, 2, 3, 4), update_rule="linear", q_num_heads=2, kv_num_heads=2),
            case(
                (1, 3, 6),
                (1, 3, 6),
                (1, 3, 8),
                None,
                data(1, 3, 6, low=-1, high=0),
                update_rule="gated",
                q_num_heads=2,
                kv_num_heads=2,
                scale=0.7,
            ),
            case(
                (1, 3, 3),
                (1, 3, 3),
                (1, 3, 2),
                None,
                None,
                data(1, 3, 1, low=0, high=1),
                update_rule="delta",
                q_num_heads=1,
                kv_num_heads=1,
            ),
        ],
        dtypes=("float32", "float16", "bfloat16"),
        outputs=2,
        grad=[0, 1, 2, 3, 4, 5],
    ),
]
