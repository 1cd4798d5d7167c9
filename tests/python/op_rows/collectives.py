"""What processes do together, in a world of one: every collective is an identity. Several: test_collectives.py."""

from __future__ import annotations

from typing import Any

import numpy as np
from op_case import FLOATS, Row, case, data

MS = "com.microsoft"
SETS = [case((2, 3, 5)), case((7,)), case((0, 2)), case((3, 4), (5,), (4099,))]


def same(*tensors: Any, **_: Any) -> list[Any]:
    return list(tensors)


def rows(op: str, sets: list[Any], **options: Any) -> list[Row]:
    """As many outputs as inputs: a row for each number of them."""
    by_count: dict[int, list[Any]] = {}
    for one in sets:
        by_count.setdefault(len(one.inputs), []).append(one)
    return [
        Row(op, cases, domain=MS, oracle=same, outputs=count, name=f"{MS}.{op}{'' if count == 1 else f'-{count}'}",
            **options)
        for count, cases in by_count.items()
    ]  # fmt: skip


EVENT = np.array(-1, np.int64)
ROWS = [
    *rows("NcclAllReduce", SETS, dtypes=FLOATS, attrs=[{"group_type": 0}, {"group_type": 4}]),
    *rows("NcclAllGather", SETS, dtypes=FLOATS),
    *rows("NcclReduceScatter", SETS, dtypes=FLOATS),
    *rows("AdasumAllReduce", SETS, dtypes=FLOATS, attrs={"reduce_algo": 1}),
    *rows("AllReduce", SETS, dtypes=FLOATS),
    *rows("AllGather", SETS, dtypes=(*FLOATS, "int64"), attrs={"axis": 0, "group_size": 1}),
    *rows("AllToAll", SETS, dtypes=(*FLOATS, "int64"), attrs={"group_size": 1}),
    Row("MegatronF", [(2, 3), (0,), ()], dtypes=FLOATS, domain=MS, oracle=lambda x: x),
    Row("MegatronG", [(2, 3), (0,), ()], dtypes=FLOATS, domain=MS, oracle=lambda x, **_: x, attrs={"group_type": 4}),
    Row("RecordEvent", [case(EVENT, (2, 3)), case(EVENT, data(2))], domain=MS, oracle=lambda e, x: x),
    Row("WaitEvent", [case(EVENT, (2, 3)), case(EVENT, data(2))], domain=MS, oracle=lambda e, x: x),
]
