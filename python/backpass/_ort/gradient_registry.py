"""``register_gradient`` of the original: gradients that are lists of nodes.

::

    @register_gradient("my.domain", "Cube")
    def cube_gradient():
        return [
            ("Constant", [], ["three"], {"value": {"value": 3, "dtype": "IElemType(0)", "is_tensor": True}}),
            ("Mul", ["I(0)", "I(0)"], ["square"]),
            ("Mul", ["three", "square"], ["slope"]),
            ("Mul", ["slope", "GO(0)"], ["GI(0)"]),
        ]

``I(i)`` is an input, ``O(i)`` an output, ``GO(i)`` the gradient that arrives at it, ``GI(i)`` the one of an input.
Operators of torch keep the gradient that torch has for them, whatever is registered for their ``ATen`` nodes.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import numpy as np

from backpass import custom
from backpass._core import InvalidInput

__all__ = ["CustomGradientRegistry", "register_gradient"]

F = TypeVar("F", bound=Callable[[], Sequence[Any]])
_TOKEN = re.compile(r"(GO|GI|I|O)\((\d+)\)")
_ELEMENT_TYPE = re.compile(r"([IO])ElemType\((\d+)\)")
_TYPES = {"int": np.int64, "float": np.float32, "bool": np.bool_, "double": np.float64}
_ATEN = ("org.pytorch.aten", "ATen")


def register_gradient(domain: str, name: str, *attributes: str) -> Callable[[F], F]:
    """Decorator: the function returns the nodes of the gradient of ``domain.name``.

    ``attributes`` are values by which nodes of one operator are told apart: for ``ATen`` operator and overload.
    """

    def register(function: F) -> F:
        CustomGradientRegistry.register(domain, name, attributes, function)
        return function

    return register


class CustomGradientRegistry:
    """What was registered."""

    _GRADIENTS: dict[str, list[Any]] = {}  # noqa: RUF012  # scripts look into it
    _STOP_GRADIENT_EDGES: dict[str, set[int]] = {}  # noqa: RUF012

    @classmethod
    def register(cls, domain: str, name: str, attributes: Sequence[str], fn: Callable[[], Sequence[Any]]) -> None:
        key = "::".join([domain, name, *attributes])
        cls._GRADIENTS[key] = list(fn())
        cls._announce(domain, name, key)

    @classmethod
    def register_custom_stop_gradient_edges(
        cls, edges: Iterable[int], domain: str, name: str, *attributes: str
    ) -> None:
        """No gradient goes to these inputs."""
        key = "::".join([domain, name, *attributes])
        cls._STOP_GRADIENT_EDGES[key] = set(edges)
        cls._announce(domain, name, key)

    @classmethod
    def register_all(cls) -> None:
        """Nothing is left to do: what is registered counts at once."""

    @classmethod
    def _announce(cls, domain: str, name: str, key: str) -> None:
        if (domain, name) == _ATEN:
            warnings.warn(f"the gradient of {key} is not used: torch differentiates its operators itself", stacklevel=4)
            return

        def rule(graph: custom.GradientGraph) -> list[custom.Value | None]:
            return _written(graph, cls._GRADIENTS.get(key, ()), cls._STOP_GRADIENT_EDGES.get(key, set()))

        custom.register_gradient(domain, name, replace=True)(rule)


def _written(graph: custom.GradientGraph, nodes: Sequence[Any], stops: set[int]) -> list[custom.Value | None]:
    """The nodes added to a graph; the gradients of its inputs."""
    values: dict[str, custom.Value | None] = {"": None}

    def value(name: str) -> custom.Value | None:
        if name in values:
            return values[name]
        token = _TOKEN.fullmatch(name)
        if token is None or token[1] == "GI":
            raise InvalidInput(f"{graph.label} gradient: got input {name!r}, expected GO(i), I(i), O(i) or an output")
        find = {"GO": graph.dy, "I": graph.x, "O": graph.y}[token[1]]
        return find(int(token[2]))

    for op, inputs, outputs, *rest in nodes:
        op_type, domain = (op, "") if isinstance(op, str) else op
        given = {name: _attribute(graph, spec) for name, spec in (rest[0] if rest else {}).items()}
        made = graph.ops(op_type, *map(value, inputs), outputs=len(outputs), domain=domain, **given)
        values |= dict(zip(outputs, made, strict=True))
    count = len(graph.inputs)
    return [None if i in stops else values.get(f"GI({i})") for i in range(count)]


def _attribute(graph: custom.GradientGraph, spec: dict[str, Any]) -> Any:
    """``{"value": ..., "dtype": ..., "is_tensor": ...}`` as the engine takes attributes."""
    value, dtype = spec["value"], spec["dtype"]
    if not spec.get("is_tensor", False):
        return value
    like = _ELEMENT_TYPE.fullmatch(dtype)
    if like is not None:
        return np.array(value, (graph.x if like[1] == "I" else graph.y)(int(like[2])).dtype)
    return np.array(value, _TYPES.get(dtype) or np.dtype(dtype))
