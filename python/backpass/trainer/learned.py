"""Learned: weights, optimizer state and counters of an Engine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from backpass import _core
from backpass._convert import to_engine
from backpass._core import InvalidInput
from backpass.trainer.source import Source

_GROUP = "group0"


class Learned:
    """What training changes, and what a checkpoint holds."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._trainer: Any = None
        self._state: Any = None

    def start(self) -> Any:
        """The native trainer, made if it is the first time."""
        raise NotImplementedError

    # ---- counters
    @property
    def steps(self) -> int:
        """Train steps so far."""
        return int(self.start().steps)

    @steps.setter
    def steps(self, value: int) -> None:
        self.start().steps = value

    @property
    def updates(self) -> int:
        """Updates of the weights so far."""
        return int(self.start().updates)

    @updates.setter
    def updates(self, value: int) -> None:
        self.start().updates = value

    @property
    def loss_scale(self) -> float:
        return float(self.start().loss_scale)

    @loss_scale.setter
    def loss_scale(self, value: float) -> None:
        self.start().loss_scale = float(value)

    @property
    def last_norm(self) -> float:
        """Norm of all gradients of the latest update, before clipping."""
        return float(self.start().last_norm)

    @property
    def random(self) -> tuple[int, int] | None:
        """Seed, and the number of the next run: what dropout draws follows from both. None before the first step of
        what has no seed of its own."""
        resume = self._started_state().resume
        return None if resume.seed is None or resume.random_counter is None else (resume.seed, resume.random_counter)

    @random.setter
    def random(self, value: tuple[int, int]) -> None:
        resume = self._started_state().resume
        resume.seed, resume.random_counter = value
        self.start().resume_random()

    def drop_gradients(self) -> None:
        """Forgets gradients of an accumulation that is not finished."""
        self.start().drop_gradients()

    # ---- values
    @property
    def trained(self) -> list[str]:
        """Names of the weights that are trained."""
        state = self._started_state()
        found = list(self._trainer.trained)  # known when there is a model: not all parameters need to have gradients
        return found or [name for name in state.parameter_names if state.requires_grad(name)]

    @property
    def unreached(self) -> list[str]:
        """Weights that are not frozen, and that no gradient has been seen to reach; all before there is a model that
        trains."""
        state, reached = self._started_state(), set(self._trainer.trained)
        return [name for name in state.parameter_names if state.requires_grad(name) and name not in reached]

    def weights(self) -> dict[str, Any]:
        """Parameters, trained and frozen, by name: views (torch tensors of a torch module, else numpy arrays)."""
        return self._source.weights(self._started_state())

    def buffers(self) -> dict[str, Any]:
        """Buffers of a torch module, or running statistics of an ONNX model, as :meth:`weights`."""
        return self._source.buffers(self._started_state())

    def moments(self) -> dict[str, dict[str, np.ndarray[Any, Any]]]:
        """For each trained weight {"momentum0": …, "momentum1": …}, views; nothing for sgd."""
        for group in self._started_state().optimizer_groups:
            if group.name == _GROUP:
                return {w: {n: t.array() for n, t in kept.items()} for w, kept in group.momentums.items()}
        return {}

    def load(
        self,
        weights: Mapping[str, Any] | None = None,
        moments: Mapping[str, Mapping[str, Any]] | None = None,
        counters: Mapping[str, float] | None = None,
        strict: bool = False,
    ) -> list[str]:
        """Copies values into weights, buffers and moments, and sets ``counters`` ("steps", "updates", "loss_scale").

        Returns the names it does not know, or raises RuntimeError for the first, before anything changes, if `strict`.
        """
        state, own = self._started_state(), {**self.buffers(), **self.weights()}
        unknown = [name for name in {**(weights or {}), **(moments or {})} if name not in own]
        if strict and unknown:
            raise RuntimeError(f"Checkpoint tensor: {unknown[0]} is not present in the model.")
        for name in counters or {}:
            if name not in ("steps", "updates", "loss_scale"):
                raise InvalidInput(f"counters: got '{name}', expected steps, updates or loss_scale")
        self.check(weights or {}, moments or {})
        self._source.copy_in({n: v for n, v in (weights or {}).items() if n in own}, state)
        self._copy_moments({weight: kept for weight, kept in (moments or {}).items() if weight in own})
        for name, value in (counters or {}).items():
            setattr(self, name, value)
        return unknown

    def check(self, weights: Mapping[str, Any], moments: Mapping[str, Mapping[str, Any]]) -> None:
        """InvalidInput for values that `load` could not copy; names it does not know are passed over."""
        own, mine = {**self.buffers(), **self.weights()}, self.moments()
        for name, values in weights.items():
            if name in own:
                _check(f"'{name}'", own[name], values)
        for weight, kept in moments.items():
            for name, values in kept.items() if weight in own else ():
                _check(f"{name} of '{weight}'", mine.get(weight, {}).get(name, own[weight]), values)

    def _copy_moments(self, moments: Mapping[str, Mapping[str, Any]]) -> None:
        mine = self.moments()
        for weight, kept in moments.items():
            for name, values in kept.items():
                if name in mine.get(weight, {}):
                    np.copyto(mine[weight][name], np.asarray(values), casting="same_kind")
        if new := {weight: kept for weight, kept in moments.items() if weight not in mine}:  # there is no model yet
            group = next((g for g in self._state.optimizer_groups if g.name == _GROUP), None) or _core.OptimizerGroup()
            made = {weight: {name: _kept(values) for name, values in kept.items()} for weight, kept in new.items()}
            group.name, group.momentums = _GROUP, {**group.momentums, **made}
            self._state.set_group(group)

    def _started_state(self) -> Any:
        self.start()
        self._source.refresh(self._state)
        return self._state


def _kept(values: Any) -> _core.Tensor:
    """A copy, for the trainer to keep."""
    tensor: _core.Tensor = to_engine(np.array(values, copy=True))
    return tensor


def _check(what: str, own: Any, values: Any) -> None:
    """Shapes have to be the same, and a number of its kind has to be what each value becomes."""
    given = values if hasattr(values, "detach") else np.asarray(values)
    if tuple(given.shape) != tuple(own.shape):
        raise InvalidInput(f"{what}: got {list(given.shape)}, expected {list(own.shape)}")
    if _kind(given) > _kind(own):
        raise InvalidInput(f"{what}: got {given.dtype}, expected {own.dtype}, or what that can hold")


def _kind(values: Any) -> int:
    """Booleans, integers, floats, and whatever else."""
    if hasattr(values, "detach"):
        dtype = values.dtype
        return 3 if dtype.is_complex else 2 if dtype.is_floating_point else 0 if str(dtype) == "torch.bool" else 1
    return 2 if values.dtype.name == "bfloat16" else {"b": 0, "i": 1, "u": 1, "f": 2}.get(values.dtype.kind, 3)
