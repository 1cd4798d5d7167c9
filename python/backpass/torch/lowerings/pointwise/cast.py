"""Changes of element type."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from backpass.torch.builder import GraphBuilder, Value
from backpass.torch.dispatch import lowers
from backpass.torch.lowerings.common import refuse_complex, result_type

aten = torch.ops.aten


@lowers(aten._to_copy.default, aten.to, aten.type_as.default)
@lowers("prims::convert_element_type", "prims::device_put")
def to_copy(b: GraphBuilder, node: fx.Node, x: Value, *_: Any, **__: Any) -> Value:
    refuse_complex(x)
    return b.cast(x, result_type(node))
