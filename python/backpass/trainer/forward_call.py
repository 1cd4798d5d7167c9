"""ForwardCall: a module and its loss function as one function of the described inputs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from backpass._core import InvalidInput

_FREE = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


@dataclass
class ForwardCall:
    """How described inputs reach forward and the loss function, and which results have which names."""

    module: nn.Module
    loss_fn: Callable[[Any, Any], Any] | None
    inputs: list[str]
    outputs: list[str]
    loss_index: int
    binding: str

    def __post_init__(self) -> None:
        parameters = _parameters(self.module.forward)
        self._names = [p.name for p in parameters]
        self.label: str | None = None
        self._given = list(self.inputs)  # to forward
        if self.loss_fn is not None:
            self.label = self.inputs[-1]
        self._by_name = self._binds_by_name(parameters)
        if self._by_name:
            self._given = [name for name in self.inputs if name in self._names]
        elif self.label is not None:
            self._given = self.inputs[:-1]
        if self.binding == "g2":
            self._check_names(parameters)

    def _check_names(self, parameters: Sequence[inspect.Parameter]) -> None:
        """InvalidInput for a described input that forward has no parameter for, or has at another place."""
        forward = f"{type(self.module).__name__}.forward"
        if self._by_name and not any(p.kind is p.VAR_KEYWORD for p in parameters):
            for name in self.inputs:
                if name not in self._names and name != self.label:
                    raise InvalidInput(
                        f"described input '{name}': {forward} has no such parameter, it has {self._names}"
                    )
        if self._by_name or any(p.kind in _FREE for p in parameters) or not parameters:
            return
        for place, name in enumerate(self._given):
            if place >= len(self._names):
                raise InvalidInput(f"described input '{name}': {forward} takes {len(self._names)}: {self._names}")
            if name in self._names and self._names[place] != name:
                needed = [p.name for p in parameters if p.default is p.empty and p.name not in self._given]
                raise InvalidInput(
                    f"described input '{name}': got no description of {needed}, expected all that {forward} needs"
                )

    def _binds_by_name(self, parameters: Sequence[inspect.Parameter]) -> bool:
        second = _label_parameter(self.loss_fn)
        if self.binding == "g2":
            needed = [p.name for p in parameters if p.default is p.empty and p.kind not in _FREE]
            return set(needed) <= set(self.inputs) and any(name in self._names for name in self.inputs)
        expected = [*self._names, *([second] if second is not None else [])]
        count = len(self.inputs)
        if count >= len(expected) or not set(self.inputs) <= set(expected) or self.inputs == expected[:count]:
            return False
        self.label = second if second in self.inputs else self.label
        return True

    def needs_label(self, wanted: Sequence[str] | None) -> bool:
        """Whether these outputs, or all, take the loss function."""
        return self.label is not None and (wanted is None or self.outputs[self.loss_index] in wanted)

    def function(
        self, given: Sequence[str], wanted: Sequence[str], absent: Mapping[str, Any], whole: bool
    ) -> Callable[..., tuple[torch.Tensor, ...]]:
        """Of tensors for the `given` inputs to the `wanted` outputs; `absent` are inputs that are no tensors. Without
        `whole`, the loss function is not called. Losses are computed in float32 whatever the predictions are in."""

        def call(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
            found = self.results({**absent, **dict(zip(given, tensors, strict=True))}, whole)
            return tuple(found[name] for name in wanted)

        return call

    def results(self, values: Mapping[str, Any], whole: bool) -> dict[str, torch.Tensor]:
        """What the module gives, by described name."""
        if self._by_name:
            predictions = self.module(**{name: values[name] for name in self._given if name in values})
        else:
            predictions = self.module(*[values[name] for name in self._given if name in values])
        if self.loss_fn is None:
            return self._named(_leaves(predictions), self.outputs)
        others = [name for i, name in enumerate(self.outputs) if i != self.loss_index]
        found = self._named(_leaves(predictions), others)
        if whole:
            assert self.label is not None
            loss = self.loss_fn(pytree.tree_map(_single, predictions), values[self.label])
            found[self.outputs[self.loss_index]] = _single(loss)
        return found

    def _named(self, leaves: Sequence[torch.Tensor], names: Sequence[str]) -> dict[str, torch.Tensor]:
        if len(leaves) < len(names):
            name = type(self.module).__name__
            raise InvalidInput(f"{name}: got {len(leaves)} results, expected one for each of {list(names)}")
        return dict(zip(names, leaves, strict=False))


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # compiled
        return []


def _label_parameter(loss_fn: Callable[..., Any] | None) -> str | None:
    """Name of the second parameter; RuntimeError where there are not two."""
    if loss_fn is None:
        return None
    names = [p.name for p in _parameters(loss_fn)]
    if len(names) != 2:
        raise RuntimeError("loss function should take two arguments - predict and label.")
    return names[1]


def _leaves(result: Any) -> list[torch.Tensor]:
    if isinstance(result, Mapping):
        result = list(result.values())
    return [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)]


def _single(value: Any) -> Any:
    is_narrow = isinstance(value, torch.Tensor) and value.dtype in (torch.bfloat16, torch.float16)
    return value.float() if is_narrow else value
