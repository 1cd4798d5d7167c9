"""TrainingSession: what `ORTTrainer._training_session` is from the first step on: its state, in every form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from backpass.trainer.flat_state import take_apart
from backpass.trainer.session import Session, report_unknown
from backpass.training._state import as_array, engine_moments, optimizer_state


class TrainingSession(Session):
    """State of an engine that trains, flat (`get_state`) and nested. What it gives are copies."""

    def get_model_state(self, include_mixed_precision_weights: bool = False) -> dict[str, Any]:
        """Weights that are trained. There are no others for mixed precision: those of the engine are float32."""
        weights = self._engine.weights()
        return {"full_precision": {name: np.array(as_array(weights[name])) for name in self._engine.trained}}

    def get_optimizer_state(self) -> dict[str, Any]:
        engine = self._engine
        return optimizer_state(engine.settings.algorithm, self.moments(), engine.updates)

    def get_partition_info_map(self) -> dict[str, Any]:
        """Weights of which this process gives a part of the moments only: none, they are gathered first."""
        return {}

    def frozen(self) -> dict[str, np.ndarray[Any, Any]]:
        """Those of weights and buffers that are not trained."""
        trained, own = set(self._engine.trained), {**self._engine.weights(), **self._engine.buffers()}
        return {name: np.array(as_array(value)) for name, value in own.items() if name not in trained}

    def check(self, weights: Mapping[str, Any], optimizer: Mapping[str, Any]) -> None:
        """InvalidInput for what could not be loaded; nothing changes."""
        self._engine.check(weights, engine_moments(optimizer)[0])

    def load_weights(self, weights: Mapping[str, Any]) -> None:
        self._engine.load(weights={name: _fitting(value) for name, value in weights.items()})

    def load_optimizer(self, state: Mapping[str, Any]) -> None:
        """Moments, and the number of updates; gradients of an accumulation that is not finished are dropped."""
        moments, updates = engine_moments(state)
        trained = set(self._engine.trained)
        mine = {weight: kept for weight, kept in moments.items() if weight in trained}
        self._engine.load(moments=mine, counters={} if updates is None else {"updates": updates})
        self._engine.drop_gradients()

    def load_state(self, state: Mapping[str, Any], strict: bool = False) -> None:
        """Takes over a flat state. RuntimeError, if `strict`, for a name that is not the model's."""
        engine = self._engine
        own = {**engine.weights(), **engine.buffers()}
        parts = take_apart(state, own, engine.trained)
        report_unknown(parts, own, strict)
        kept = {w: {name: as_array(value) for name, value in by.items()} for w, by in parts.moments.items()}
        engine.load(parts.weights, kept, {} if parts.updates is None else {"updates": parts.updates})
        engine.drop_gradients()


def _fitting(value: Any) -> Any:
    """torch takes arrays that may be written."""
    array = as_array(value)
    return array if array.flags.writeable else array.copy()
