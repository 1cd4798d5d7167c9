"""Attention, RotaryEmbedding, LinearAttention."""

from __future__ import annotations

from typing import Any

import numpy as np
from op_case import FLOATS, REALS, Case, Row, case, data


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


PAST = [(2, 2, 37, 8), (2, 2, 37, 8)]

ROWS = [
    Row(
        "Attention",
        [
            heads(2, 4, 2, 5, 7, 8, v_size=3),
            packed(1, 4, 1, 130, 300, 16, is_causal=1),
            heads(1, 2, 2, 6, 9, 8, data(6, 9, dtype="bool"), softcap=2.0),
            heads(1, 2, 2, 1, 1, 3),
            heads(1, 1, 1, 300, 257, 16, is_causal=1, scale=0.3),
            heads(2, 2, 1, 6, 9, 8, (1, 2, 6, 9), left_window_size=2, right_window_size=1),
            heads(1, 2, 2, 6, 9, 8, (6, 5)),
            heads(2, 2, 1, 4, 9, 8, None, None, None, np.array([9, 3]), is_causal=1),
        ],
        dtypes=FLOATS,
        bench=heads(4, 8, 8, 256, 256, 64),
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
        name="Attention-cache",
    ),
    Row(
        "RotaryEmbedding",
        [
            case((2, 3, 4, 8), (9, 4), (9, 4), data(2, 4, dtype="int64", low=0, high=9)),
            case((2, 4, 24), (2, 4, 4), (2, 4, 4), num_heads=3, interleaved=1),
            case((1, 2, 3, 8), (5, 2), (5, 2), data(1, 3, dtype="int64", low=0, high=5), rotary_embedding_dim=4),
        ],
        dtypes=FLOATS,
    ),
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
    ),
]
