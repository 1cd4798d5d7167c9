"""Alternatives: graphs for one call of a module that decides by the contents of tensors what to compute.

Each graph holds one way through the module's code and tells, with its results, whether the module would have gone that
way (`Variant.decides`). Where none answers, the module is captured as it decides now.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from backpass.ortmodule.fallback import ORTModuleTorchModelException, refusal
from backpass.ortmodule.variant import Call, Variant
from backpass.torch.compiled import OtherDecisionError

WAYS = 8  # graphs, of which all may have to run before one answers
_TRIES = 2  # captures for one call: numbers drawn at random, or rounded otherwise, may decide otherwise once more


class Alternatives:
    """Graphs for calls of one structure, the one that answered last first."""

    def __init__(self, first: Variant, capture: Callable[[Call], Variant], name: str) -> None:
        self._variants = [first]
        self._capture = capture
        self._name = name

    def run(self, call: Call) -> Any:
        """What the module returns; ORTModuleTorchModelException where no graph that can be captured tells."""
        numbers = torch.get_rng_state()  # each graph draws what the first one drew
        untried = [v for v in self._variants if v.fits(call.shapes)]
        captures = 0
        while True:
            if not untried:
                untried = [self._next(call, captures)]
                captures += 1
            variant = untried.pop(0)
            torch.set_rng_state(numbers)
            try:
                result = variant.answer(variant.feeds_for(call), call)
            except OtherDecisionError:
                continue
            except RuntimeError:  # it went a way that was not meant for these contents; who asks anew gets the reason
                if captures == _TRIES or call.tree.retyped():
                    raise
                continue
            self._variants.remove(variant)
            self._variants.insert(0, variant)
            return result

    def _next(self, call: Call, captures: int) -> Variant:
        if captures == _TRIES or len(self._variants) == WAYS:
            why = (
                f"more than {WAYS} ways"
                if captures < _TRIES
                else "a way that is another each time it is asked for (by random numbers, or by how sums are rounded)"
            )
            text = f"{self._name} decides by the contents of tensors what to compute: got {why}, expected a few"
            raise refusal(ORTModuleTorchModelException, text)
        if captures:
            torch.manual_seed(len(self._variants))
        variant = self._capture(call)
        self._variants.append(variant)
        return variant
