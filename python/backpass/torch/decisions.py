"""Decisions on data that a captured graph has taken, as one value of the graph: whether they hold.

A capture takes one way through the module's code. Where numbers in tensors choose the way (``if x.sum() > 0``), torch
writes the choice down as an assertion on sizes and numbers read out of tensors, ``_assert_scalar(condition)``. Here the
conditions become part of the graph: where the value is false, the module would have computed something else.

Conditions are followed back to the tensors, node by node: torch itself takes a number for known once it was decided on.
"""

from __future__ import annotations

import contextlib
import math
import operator
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import sympy
import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental import symbolic_shapes

from backpass._core import Unsupported
from backpass.torch.builder import GraphBuilder, NoLoweringError, Value
from backpass.torch.surroundings import replaced
from backpass.torch.symbols import Symbolic

_STRICT = {sympy.LessThan: sympy.StrictLessThan, sympy.GreaterThan: sympy.StrictGreaterThan}
_READING = {torch.ops.aten.item.default, torch.ops.aten._local_scalar_dense.default}
ASSERTION = torch.ops.aten._assert_scalar.default

_OF_ALIKE: dict[Any, str] = {
    operator.eq: "Equal",
    operator.ge: "GreaterOrEqual",
    operator.gt: "Greater",
    operator.le: "LessOrEqual",
    operator.lt: "Less",
    operator.add: "Add",
    operator.sub: "Sub",
    operator.mul: "Mul",
    operator.pow: "Pow",
    torch.sym_max: "Max",
    torch.sym_min: "Min",
}
_LOGIC: dict[Any, str] = {operator.and_: "And", operator.or_: "Or", torch.sym_not: "Not", operator.not_: "Not"}
_ROUNDED: dict[Any, str | None] = {math.floor: "Floor", math.ceil: "Ceil", torch.sym_int: None, math.trunc: None}


def taken(module: fx.GraphModule) -> list[sympy.Basic]:
    """Decisions that the capture of this graph took."""
    mode = _mode(module)
    if mode is None or mode.shape_env is None:
        return []
    found = (a.expr for several in mode.shape_env.deferred_runtime_asserts.values() for a in several)
    return list(dict.fromkeys(found))


def _mode(module: fx.GraphModule) -> FakeTensorMode | None:
    values = (n.meta.get("val") for n in module.graph.nodes)
    return next((v.fake_mode for v in values if isinstance(v, FakeTensor)), None)


def forget_numbers(module: fx.GraphModule) -> None:
    """When the graph is traced again, real numbers need not be computed; nor could they: those of buffers are what the
    first time left."""
    mode = _mode(module)
    if mode is not None:
        mode.propagate_real_tensors = False


@contextlib.contextmanager
def bounds_asserted() -> Iterator[None]:
    """torch does not assert what merely bounds one number, as it asserts the range that it knows of the number; but of
    a float it knows none. Written in another way, it does."""
    plain = symbolic_shapes.RuntimeAssert

    def made(expr: Any, *args: Any, **kwargs: Any) -> Any:
        if expr.func in _STRICT and any(a.is_Symbol for a in expr.args):
            expr = sympy.Or(_STRICT[expr.func](*expr.args), sympy.Eq(*expr.args))
        return plain(expr, *args, **kwargs)

    with replaced(symbolic_shapes, "RuntimeAssert", made):
        yield


def not_asserted(module: fx.GraphModule, decided: Sequence[sympy.Basic]) -> list[str]:
    """Those of the decisions that the graph does not assert: torch leaves out what it cannot write. Where it traced
    the graph again, numbers have other names."""
    asserted = [str(n.args[1]) for n in module.graph.nodes if n.target is ASSERTION]
    texts = [text.partition(" for expression ")[2].rpartition(" on node ")[0] for text in asserted]
    left = Counter(map(_nameless, texts))
    wanted = [str(expr) for expr in decided]
    left.subtract(map(_nameless, wanted))
    return [text for text in wanted if left[_nameless(text)] < 0]


def _nameless(text: str) -> str:
    return re.sub(r"\b(u|zuf)\d+\b", r"\1", text)


def only_asserted(graph: fx.Graph) -> set[fx.Node]:
    """Arithmetic of numbers on which nothing but assertions depends."""
    found: set[fx.Node] = set()
    for node in reversed(graph.nodes):
        is_arithmetic = node.op == "call_function" and not isinstance(node.target, torch._ops.OpOverload)
        if is_arithmetic and node.users and all(u.target is ASSERTION or u in found for u in node.users):
            found.add(node)
    return found


class Decisions:
    """Collects conditions. Inside, every number is a 0-D value: int64, float64 or bool, as Python's numbers are."""

    def __init__(self, builder: GraphBuilder, env: dict[fx.Node, Any]) -> None:
        self._b = builder
        self._env = env
        self._numbers: dict[fx.Node, Value] = {}
        self._made: dict[tuple[Any, ...], Value] = {}
        self._conditions: dict[Value, None] = {}

    def add(self, assertion: fx.Node) -> None:
        """The condition of this ``_assert_scalar``; its operands are in the environment already."""
        self._b.scope(assertion.name)
        condition = self._number(assertion.args[0])
        self._conditions[condition] = None

    def together(self) -> Value | None:
        """Whether all conditions hold; None without any."""
        found: Value | None = None
        for condition in self._conditions:
            found = condition if found is None else self._op("And", found, condition)
        return found

    def _op(self, op: str, *inputs: Value) -> Value:
        key = (op, *inputs)
        if key not in self._made:
            self._made[key] = self._b.op(op, *inputs, shape=())
        return self._made[key]

    def _number(self, argument: Any) -> Value:
        if isinstance(argument, fx.Node):
            if argument not in self._numbers:
                self._numbers[argument] = self._computed(argument)
            return self._numbers[argument]
        kinds = {bool: torch.bool, int: torch.int64, float: torch.float64}
        return self._b.constant(argument, kinds[type(argument)])

    def _computed(self, node: fx.Node) -> Value:
        target: Any = node.target
        if target in _READING:
            return self._read(self._env[node.all_input_nodes[0]])
        if target is torch.ops.aten.sym_size.int:
            return self._extent(self._env[node.all_input_nodes[0]], node.args[1])
        known = self._env.get(node)
        if node.op == "placeholder" and isinstance(known, Symbolic):
            return self._b.symbols.number(known)
        for table, emit in _EMITTED:
            if target in table:
                return emit(self, table[target], [self._number(a) for a in node.args])
        raise Unsupported(
            f"[{node.name}] decision on data: got one that depends on {getattr(target, '__name__', target)}, expected "
            "comparisons and arithmetic of numbers"
        )

    def _read(self, tensor: Value) -> Value:
        """``tensor.item()``"""
        assert tensor.dtype is not None
        wide = torch.float64 if tensor.dtype.is_floating_point else torch.int64
        number = self._op("Reshape", tensor, self._b.constant([]))
        return self._cast(number, torch.bool if tensor.dtype is torch.bool else wide)

    def _extent(self, tensor: Value, axis: Any) -> Value:
        extent = self._b.op("Shape", tensor, start=axis, end=axis + 1 or None, shape=(1,))
        return self._op("Reshape", extent, self._b.constant([]))

    def _cast(self, value: Value, dtype: torch.dtype) -> Value:
        try:
            return self._b.cast(value, dtype)
        except NoLoweringError as error:
            raise Unsupported(f"decision on data: {error}") from error

    def _alike(self, values: Sequence[Value], least: torch.dtype = torch.int64) -> list[Value]:
        """The numbers in the widest of their types."""
        wide = torch.float64 if any(v.dtype is torch.float64 for v in values) else least
        return [self._cast(v, wide) for v in values]

    def _of_alike(self, op: str, values: Sequence[Value]) -> Value:
        return self._op(op, *self._alike(values))

    def _logic(self, op: str, values: Sequence[Value]) -> Value:
        return self._op(op, *(self._cast(v, torch.bool) for v in values))

    def _rounded(self, op: str | None, values: Sequence[Value]) -> Value:
        (value,) = values
        if op is not None and value.dtype is torch.float64:
            value = self._op(op, value)
        return self._cast(value, torch.int64)

    def _special(self, name: str, values: Sequence[Value]) -> Value:
        if name == "unequal":
            return self._logic("Not", [self._of_alike("Equal", values)])
        if name == "where":
            return self._op("Where", values[0], *self._alike(values[1:]))
        if name == "float":
            return self._cast(values[0], torch.float64)
        x, *rest = self._alike(values, torch.float64 if name == "divide" else torch.int64)
        if name in ("negative", "absolute"):
            return self._op({"negative": "Neg", "absolute": "Abs"}[name], x)
        if name == "divide":
            return self._op("Div", x, *rest)
        if x.dtype is torch.float64:
            raise Unsupported("decision on data: got // or % of floats, expected it of integers")
        remainder = self._op("Mod", x, *rest)
        if name == "remainder":
            return remainder
        return self._op("Div", self._op("Sub", x, remainder), *rest)


_SPECIAL: dict[Any, str] = {
    operator.ne: "unequal",
    torch.sym_ite: "where",
    torch.sym_float: "float",
    operator.neg: "negative",
    operator.abs: "absolute",
    operator.truediv: "divide",
    operator.mod: "remainder",
    operator.floordiv: "quotient",
}
_EMITTED: tuple[tuple[dict[Any, Any], Callable[[Decisions, Any, Sequence[Value]], Value]], ...] = (
    (_OF_ALIKE, Decisions._of_alike),
    (_LOGIC, Decisions._logic),
    (_ROUNDED, Decisions._rounded),
    (_SPECIAL, Decisions._special),
)
