"""Conditions on shapes under which a captured graph is valid, as torch writes them, evaluated without trusting them.

A capture with variable dimensions takes one way through the module's code: ``L['x'].size()[0] > 4`` says which. The
text may come from a cache on disk, so only arithmetic on sizes is carried out.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from types import CodeType
from typing import Any

_ALLOWED = (
    ast.Expression,
    ast.BoolOp,
    ast.And,
    ast.Or,
    ast.UnaryOp,
    ast.Not,
    ast.USub,
    ast.BinOp,
    ast.Add,
    ast.Sub,
    ast.Mult,
    ast.FloorDiv,
    ast.Div,
    ast.Mod,
    ast.Compare,
    ast.Eq,
    ast.NotEq,
    ast.Lt,
    ast.LtE,
    ast.Gt,
    ast.GtE,
    ast.Load,
)
_FUNCTIONS: dict[str, Callable[..., Any]] = {"max": max, "min": min}


class _Sized:
    def __init__(self, shape: Sequence[int]) -> None:
        self._shape = shape

    def size(self) -> Sequence[int]:
        return self._shape


class Guards:
    """Conditions; `hold` for shapes by name. One that is not understood never holds."""

    def __init__(self, texts: Sequence[str]) -> None:
        self.texts = list(texts)
        self._compiled: list[CodeType] | None = None

    def hold(self, shapes: Mapping[str, Sequence[int]]) -> bool:
        if self._compiled is None:
            self._compiled = [_compiled(text) for text in self.texts]
        space = {"__builtins__": {}, "L": {name: _Sized(shape) for name, shape in shapes.items()}, **_FUNCTIONS}
        try:
            return all(eval(code, space) for code in self._compiled)
        except (LookupError, ArithmeticError):
            return False


def _compiled(text: str) -> CodeType:
    try:
        tree = ast.parse(text, mode="eval")
        _check(tree)
    except (SyntaxError, ValueError):
        tree = ast.parse("False", mode="eval")
    return compile(tree, "<guard>", "eval")


def _check(node: ast.AST) -> None:
    if isinstance(node, ast.Constant):
        if not isinstance(node.value, bool | int | float):
            raise ValueError("a constant that is no number")
        return
    if isinstance(node, ast.Subscript):
        _check_subscript(node)
        return
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _FUNCTIONS:
        for argument in node.args:
            _check(argument)
        return
    if not isinstance(node, _ALLOWED):
        raise ValueError(f"{type(node).__name__} in a condition on sizes")
    for child in ast.iter_child_nodes(node):
        _check(child)


def _check_subscript(node: ast.Subscript) -> None:
    """``L['name'].size()[0]`` and nothing else."""
    text = ast.unparse(node)
    call = node.value
    if (
        isinstance(node.slice, ast.Constant)
        and type(node.slice.value) is int
        and isinstance(call, ast.Call)
        and not call.args
        and isinstance(call.func, ast.Attribute)
        and call.func.attr == "size"
        and isinstance(call.func.value, ast.Subscript)
        and isinstance(call.func.value.value, ast.Name)
        and call.func.value.value.id == "L"
        and isinstance(call.func.value.slice, ast.Constant)
    ):
        return
    raise ValueError(f"{text} in a condition on sizes")
