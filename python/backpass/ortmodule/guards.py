"""Conditions on shapes under which a captured graph is valid, as torch writes them, evaluated without trusting them.

A capture with variable dimensions takes one way through the module's code: ``L['x'].size()[0] > 4`` says which. The
text may come from a cache on disk, so only arithmetic on sizes is carried out.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Mapping, Sequence
from types import CodeType
from typing import Any

_SIZE = re.compile(r"\bL\['(\w+)'\]\.size\(\)\[(\d+)\]")
_FUNCTIONS: dict[str, Any] = {"max": max, "min": min}
_OPERATORS = (ast.Not, ast.USub, ast.Add, ast.Sub, ast.Mult, ast.FloorDiv, ast.Div, ast.Mod)
_COMPARISONS = (ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE)
_EXPRESSIONS = (ast.Expression, ast.BoolOp, ast.UnaryOp, ast.BinOp, ast.Compare, ast.Call, ast.Name)
_ALLOWED = (*_EXPRESSIONS, *_OPERATORS, *_COMPARISONS, ast.boolop, ast.Load)


class Guards:
    """Conditions; `hold` for shapes by name. One that is not understood never holds."""

    def __init__(self, texts: Sequence[str]) -> None:
        self.texts = list(texts)

    @functools.cached_property
    def _compiled(self) -> list[tuple[CodeType, dict[str, tuple[str, int]]]]:
        return [_compiled(text) for text in self.texts]

    def hold(self, shapes: Mapping[str, Sequence[int]]) -> bool:
        try:
            for code, sizes in self._compiled:
                found = {variable: shapes[name][axis] for variable, (name, axis) in sizes.items()}
                if not eval(code, {"__builtins__": {}, **_FUNCTIONS, **found}):
                    return False
        except (LookupError, ArithmeticError, NameError, TypeError):
            return False
        return True


def _compiled(text: str) -> tuple[CodeType, dict[str, tuple[str, int]]]:
    """The condition in terms of variables, and the size, by name and axis, that each stands for."""
    sizes: dict[str, tuple[str, int]] = {}

    def variable(found: re.Match[str]) -> str:
        sizes[name := f"size_{len(sizes)}"] = found[1], int(found[2])
        return name

    try:
        tree = ast.parse(_SIZE.sub(variable, text), mode="eval")
        is_arithmetic = all(isinstance(node, _ALLOWED) or _is_number(node) for node in ast.walk(tree))
    except (SyntaxError, ValueError):
        is_arithmetic = False
    return compile(tree if is_arithmetic else ast.parse("False", mode="eval"), "<guard>", "eval"), sizes


def _is_number(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, bool | int | float)
