"""Symbolic sizes as ONNX values: every symbol has a source (an axis of a value, or a 0-D value), every expression is
emitted once."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import sympy
import torch

if TYPE_CHECKING:
    from backpass.torch.builder import GraphBuilder, Value

Symbolic = torch.SymInt | torch.SymFloat | torch.SymBool


class Symbols:
    """Emits sizes. Inside, every number is a value of shape [1]: sizes are mostly concatenated."""

    def __init__(self, builder: GraphBuilder) -> None:
        self._b = builder
        # Only ever grow, so that the newest entries can be taken back.
        self._axes: dict[sympy.Symbol, tuple[str, int]] = {}
        self._derived: list[tuple[sympy.Expr, str, int]] = []
        self._made: dict[Any, Value] = {}

    # ---- sources
    def learn(self, name: str, shape: Sequence[int | torch.SymInt], derived: bool = False) -> None:
        """The symbols in this shape can be read off this value; with `derived`, those in expressions as well."""
        for axis, extent in enumerate(shape):
            if isinstance(extent, int):
                continue
            expr = extent.node.expr
            if expr.is_Symbol:
                self._axes.setdefault(expr, (name, axis))
            elif derived and expr.free_symbols:
                self._derived.append((expr, name, axis))

    def learn_number(self, value: Symbolic, name: Value) -> None:
        """This expression is held by a 0-D value."""
        expr = _expression(value)
        if isinstance(expr, sympy.Basic) and not expr.is_number and expr not in self._made:
            self._made[expr] = self._one_element(name, _type_of(value))

    def knows(self, value: Symbolic) -> bool:
        """Whether every symbol of the expression has a source."""
        expr = _expression(value)
        return not isinstance(expr, sympy.Basic) or expr in self._made or all(map(self._found, expr.free_symbols))

    def dim_name(self, extent: torch.SymInt) -> str:
        return str(extent.node.expr).replace(" ", "")

    def mark(self) -> tuple[int, int]:
        return len(self._axes), len(self._made)

    def rollback(self, mark: tuple[int, ...]) -> None:
        for table, length in ((self._axes, mark[0]), (self._made, mark[1])):
            while len(table) > length:
                table.popitem()

    # ---- emission
    def vector(self, values: Sequence[int | torch.SymInt | str]) -> Value:
        """These sizes as one 1-D int64 value."""
        plain = [_plain(v) for v in values]
        if all(isinstance(v, int) for v in plain):
            return self._b.constant(plain, torch.int64)
        key = ("vector", *plain)
        if key not in self._made:
            parts: list[Value] = []
            for fixed, run in itertools.groupby(plain, lambda v: isinstance(v, int)):
                items = list(run)
                parts += [self._b.constant(items, torch.int64)] if fixed else map(self._element, items)
            whole = parts[0] if len(parts) == 1 else self._b.op("Concat", *parts, axis=0, shape=(len(plain),))
            self._made[key] = whole
        return self._made[key]

    def _element(self, item: str | sympy.Basic) -> Value:
        return self._one_element(item, torch.int64) if isinstance(item, str) else self._emit(item)

    def _one_element(self, name: str, dtype: torch.dtype) -> Value:
        return self._b.op("Reshape", name, self._b.constant([1]), dtype=dtype, shape=(1,))

    def number(self, value: Symbolic | int | float | bool) -> Value:
        """One number as a 0-D value: int64, float64 or bool."""
        dtype = _type_of(value)
        expr = _expression(value)
        if not isinstance(expr, sympy.Basic) or expr.is_number or expr in (sympy.true, sympy.false):
            return self._b.constant(_python(expr, dtype), dtype)
        key = ("number", expr)
        if key not in self._made:
            self._made[key] = self._b.op("Reshape", self._emit(expr), self._b.constant([]), dtype=dtype, shape=())
        return self._made[key]

    def _found(self, symbol: sympy.Symbol) -> bool:
        if symbol in self._axes or symbol in self._made:
            return True
        for expr, name, axis in self._derived:
            # a * symbol + c with nothing else unknown
            slope, rest = expr.coeff(symbol, 1), expr.coeff(symbol, 0)
            if slope.is_Integer and slope != 0 and sympy.expand(slope * symbol + rest - expr) == 0:
                if not all(s in self._axes or s in self._made for s in rest.free_symbols):
                    continue
                extent = self._extent(name, axis)
                if rest != 0:
                    extent = self._binary("Sub", extent, self._emit(rest))
                self._made[symbol] = self._binary("Div", extent, self._emit(slope)) if slope != 1 else extent
                return True
        return False

    def _extent(self, name: str, axis: int) -> Value:
        key = ("extent", name, axis)
        if key not in self._made:
            self._made[key] = self._b.op("Shape", name, start=axis, end=axis + 1, shape=(1,))
        return self._made[key]

    def _emit(self, expr: sympy.Basic) -> Value:
        if expr in self._made:
            return self._made[expr]
        if expr.is_Symbol:
            if not self._found(expr):
                raise LookupError(f"size {expr}: no input or value has it as an extent")
            if expr not in self._made:
                self._made[expr] = self._extent(*self._axes[expr])
        elif expr.is_Integer:
            return self._b.constant([int(expr)], torch.int64)
        elif expr.is_Float or expr.is_Rational:
            return self._b.constant([float(expr)], torch.float64)
        elif expr in (sympy.true, sympy.false):
            return self._b.constant([bool(expr)], torch.bool)
        else:
            self._made[expr] = self._function(expr)
        return self._made[expr]

    def _binary(self, op: str, x: Value, y: Value) -> Value:
        if x.dtype != y.dtype:
            wide = torch.float64 if torch.float64 in (x.dtype, y.dtype) else torch.int64
            x, y = self._b.cast(x, wide), self._b.cast(y, wide)
        return self._b.op(op, x, y)

    def _function(self, expr: sympy.Basic) -> Value:
        name = type(expr).__name__
        if name in _FOLDED:
            return functools.reduce(functools.partial(self._binary, _FOLDED[name]), map(self._emit, expr.args))
        if name in _UNARY:
            return self._unary(*_UNARY[name], expr)
        if name in _SPECIAL:
            return _SPECIAL[name](self, expr)
        raise LookupError(f"size expression {expr}: {name} is not known")

    def _power(self, expr: sympy.Basic) -> Value:
        base, exponent = expr.args
        if exponent == -1:
            return self._binary("Div", self._b.constant([1.0], torch.float64), self._emit(base))
        return self._binary("Pow", self._emit(base), self._emit(exponent))

    def _floor_div(self, expr: sympy.Basic) -> Value:
        x, y = map(self._emit, expr.args)
        if not (expr.args[0].is_nonnegative and expr.args[1].is_positive):
            x = self._binary("Sub", x, self._binary("Mod", x, y))  # ONNX's Div of integers cuts off towards zero
        return self._binary("Div", x, y)

    def _modular(self, expr: sympy.Basic) -> Value:
        x, divisor, modulus = map(self._emit, expr.args)
        return self._binary("Mod", self._binary("Div", x, divisor), modulus)

    def _true_div(self, expr: sympy.Basic) -> Value:
        x, y = (self._b.cast(self._emit(a), torch.float64) for a in expr.args)
        return self._binary("Div", x, y)

    def _unary(self, op: str | None, dtype: torch.dtype, expr: sympy.Basic) -> Value:
        x = self._emit(expr.args[0])
        if op is not None:
            x = self._b.op(op, self._b.cast(x, torch.float64), shape=(1,))
        return self._b.cast(x, dtype)

    def _where(self, expr: sympy.Basic) -> Value:
        return self._b.op("Where", *map(self._emit, expr.args))

    def _not(self, expr: sympy.Basic) -> Value:
        return self._b.op("Not", self._emit(expr.args[0]))

    def _unequal(self, expr: sympy.Basic) -> Value:
        return self._b.op("Not", self._binary("Equal", *map(self._emit, expr.args)))


_FOLDED = {"Add": "Add", "Mul": "Mul", "Max": "Max", "Min": "Min", "Mod": "Mod", "PythonMod": "Mod", "CleanDiv": "Div"}
_FOLDED |= {"PowByNatural": "Pow", "FloatPow": "Pow", "And": "And", "Or": "Or", "Equality": "Equal"}
_FOLDED |= {"GreaterThan": "GreaterOrEqual", "StrictGreaterThan": "Greater"}
_FOLDED |= {"LessThan": "LessOrEqual", "StrictLessThan": "Less"}
_UNARY: dict[str, tuple[str | None, torch.dtype]] = {
    "ToFloat": (None, torch.float64),
    "TruncToInt": (None, torch.int64),
    "FloorToInt": ("Floor", torch.int64),
    "CeilToInt": ("Ceil", torch.int64),
    "RoundToInt": ("Round", torch.int64),
    "OpaqueUnaryFn_sqrt": ("Sqrt", torch.float64),
    "OpaqueUnaryFn_exp": ("Exp", torch.float64),
    "OpaqueUnaryFn_log": ("Log", torch.float64),
}
_SPECIAL: dict[str, Callable[[Symbols, sympy.Basic], Value]] = {
    "Pow": Symbols._power,
    "FloorDiv": Symbols._floor_div,
    "ModularIndexing": Symbols._modular,
    "IntTrueDiv": Symbols._true_div,
    "FloatTrueDiv": Symbols._true_div,
    "Identity": lambda s, e: s._emit(e.args[0]),
    "Where": Symbols._where,
    "Not": Symbols._not,
    "Unequality": Symbols._unequal,
}


def dims(shape: Sequence[int | torch.SymInt]) -> tuple[int | torch.SymInt, ...]:
    """The extents, those that turned out to be numbers as ints."""
    return tuple(d if isinstance(d, int) or not d.node.expr.is_number else int(d) for d in shape)


def broadcast(*shapes: Sequence[int | torch.SymInt]) -> tuple[int | torch.SymInt, ...]:
    """The shape these broadcast to: of extents that may be 1 or not, those that are not known to be 1 count."""
    rank = max(len(s) for s in shapes)
    padded = [(*[1] * (rank - len(s)), *s) for s in shapes]
    return tuple(next((d for d in extents if not is_one(d)), 1) for extents in zip(*padded, strict=True))


def is_one(extent: int | torch.SymInt) -> bool:
    return isinstance(extent, int) and extent == 1


def _plain(value: Any) -> Any:
    """int, sympy expression or name."""
    if isinstance(value, torch.SymInt):
        value = value.node.expr
    if isinstance(value, sympy.Basic) and value.is_number:
        return int(value)
    return value


def _expression(value: Any) -> Any:
    return value.node.expr if isinstance(value, Symbolic) else value


def _type_of(value: Any) -> torch.dtype:
    if isinstance(value, bool | torch.SymBool):
        return torch.bool
    return torch.int64 if isinstance(value, int | torch.SymInt) else torch.float64


def _python(expr: Any, dtype: torch.dtype) -> bool | int | float:
    if dtype is torch.bool:
        return bool(expr)
    return int(expr) if dtype is torch.int64 else float(expr)
