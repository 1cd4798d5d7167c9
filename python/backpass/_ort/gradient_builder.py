"""GradientGraphBuilder: the original's way to the gradient of an ONNX model."""

from __future__ import annotations

import os
from collections.abc import Collection

from backpass._atomic_file import write_file
from backpass._core import InvalidInput
from backpass.gradient import grad

__all__ = ["GradientGraphBuilder"]


class GradientGraphBuilder:
    """Adds ``<name>_grad`` for each of ``x_node_arg_names`` to the outputs of a model that is given as bytes: what the
    loss changes by. `backpass.grad` does the same in one call."""

    def __init__(
        self,
        serialized_model: bytes,
        y_node_arg_names: Collection[str],
        x_node_arg_names: Collection[str],
        loss_node_arg_name: str,
    ) -> None:
        if set(y_node_arg_names) != {loss_node_arg_name}:
            raise InvalidInput(
                f"y_node_arg_names: got {sorted(y_node_arg_names)}, expected the loss, {loss_node_arg_name!r}, alone"
            )
        self._source = bytes(serialized_model)
        self._wanted, self._loss = sorted(x_node_arg_names), loss_node_arg_name
        self._model = b""

    def build(self) -> None:
        import onnx

        before = onnx.load_model_from_string(self._source)
        found = grad(self._source, self._wanted, [self._loss])
        known = {output.name for output in found.graph.output}
        for place, output in enumerate(o for o in before.graph.output if o.name not in known):
            found.graph.output.insert(place, output)
        self._model = found.SerializeToString()

    def get_model(self) -> bytes:
        """The model with gradients, after `build`."""
        if not self._model:
            raise InvalidInput("GradientGraphBuilder: got no model yet, expected build() to have been called")
        return self._model

    def save(self, path: str | os.PathLike[str]) -> None:
        write_file(path, self.get_model())
