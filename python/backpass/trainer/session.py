"""The state behind a trainer of the first generation, in its flat form."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from backpass.trainer.engine import Engine
from backpass.trainer.flat_state import (
    MOMENTS,
    Parts,
    counters_of,
    is_numeric,
    optimizer_entries,
    take_apart,
    with_counters,
)


class Session:
    """`trainer.session`: there from the moment on at which there is something to train."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def get_state(self) -> dict[str, np.ndarray[Any, Any]]:
        """Copies of the weights that are trained, their moments and counters, as numpy arrays."""
        weights = self._engine.weights()
        return {name: np.array(_array(weights[name])) for name in self._engine.trained} | self._optimizer()

    def state(self, module: Any, counters: Mapping[str, float] | None) -> dict[str, Any]:
        """As tensors, by the names of a module (or of an ONNX model, where it is None); the optimizer's too, if there
        are `counters` to store with it."""
        values = {**self._engine.weights(), **self._engine.buffers()} if module is None else module.state_dict()
        tensors = {name: _copy(value) for name, value in values.items() if hasattr(value, "shape")}
        if counters is None:
            return tensors
        return with_counters(tensors | {name: _tensor(v) for name, v in self._optimizer().items()}, counters)

    def load(self, module: Any, state: Mapping[str, Any], strict: bool) -> dict[str, float]:
        """Takes over a state and gives back the counters that came with it."""
        own = {**self._engine.weights(), **self._engine.buffers()}
        if module is not None:
            own = {**own, **{name: v for name, v in module.state_dict().items() if hasattr(v, "shape")}}
        parts = take_apart(state, own, self.moments())
        report_unknown(parts, own, strict)
        _check_values(parts, own)
        counters = counters_of(state)
        updates = counters.get("updates", parts.updates)
        if module is not None:
            module.load_state_dict({name: _tensor(value) for name, value in parts.weights.items()}, strict=False)
            parts.weights = {}
        weights = {name: _array(value) for name, value in parts.weights.items()}
        kept = {w: {name: _array(value) for name, value in by.items()} for w, by in parts.moments.items()}
        self._engine.load(weights, kept, {} if updates is None else {"updates": int(updates)})
        self._engine.drop_gradients()
        return counters

    def _optimizer(self) -> dict[str, np.ndarray[Any, Any]]:
        return optimizer_entries(self._engine.settings.algorithm, self.moments(), self._engine.updates)

    def moments(self) -> dict[str, dict[str, Any]]:
        """By weight. The engine makes them when it first trains: until then they are zero."""
        if self._engine.settings.algorithm == "sgd":
            return {}
        if self._engine.settings.communicator is not None and self._engine.settings.zero_stage:
            self._engine.start().gather_optimizer_state()  # all ranks ask together
        weights = self._engine.weights()
        zeros = {weight: np.zeros(weights[weight].shape, np.float32) for weight in self._engine.trained}
        return self._engine.moments() or {w: dict.fromkeys(MOMENTS, values) for w, values in zeros.items()}


def report_unknown(parts: Parts, own: Collection[str], strict: bool) -> None:
    """RuntimeError, or a warning unless it is `strict`, for names that the model does not have."""
    if not parts.unknown:
        return
    if strict:
        raise RuntimeError(f"Checkpoint tensor: {parts.unknown[0]} is not present in the model.")
    text = f"load_state_dict: names that the model does not have are passed over: {_few(parts.unknown)}"
    if missing := [name for name in own if name not in parts.weights]:
        text += f"; what the state does not have stays as it is: {_few(missing)}"
    warnings.warn(text, stacklevel=4)


def _few(names: Sequence[str]) -> str:
    shown = ", ".join(repr(name) for name in names[:5])
    return shown if len(names) <= 5 else f"{shown} and {len(names) - 5} more"


def _check_values(parts: Parts, own: Mapping[str, Any]) -> None:
    """Before anything changes."""
    given = dict(parts.weights)
    for weight, by_name in parts.moments.items():
        given |= {MOMENTS[name] + weight: value for name, value in by_name.items()}
    for name, value in given.items():
        if not hasattr(value, "shape") or not is_numeric(value):
            raise ValueError(f"[{name}]: got a {type(value).__name__}, expected a tensor or an array of numbers")
        weight = name if name in own else name.removeprefix("Moment_1_").removeprefix("Moment_2_")
        if tuple(value.shape) != tuple(own[weight].shape):
            text = f"[{name}] shape: got {list(value.shape)}, expected {list(own[weight].shape)}"
            raise ValueError(f"{text}; the state is that of another model")


def _array(value: Any) -> Any:
    return value.detach().cpu().numpy() if hasattr(value, "detach") else np.asarray(value)


def _copy(value: Any) -> Any:
    """Of torch where that is installed, as scripts expect; else of numpy."""
    return value.detach().cpu().clone() if hasattr(value, "detach") else _tensor(np.array(value))


def _tensor(value: Any) -> Any:
    if hasattr(value, "detach") or importlib.util.find_spec("torch") is None:
        return value
    import torch

    return torch.from_numpy(np.asarray(value))
