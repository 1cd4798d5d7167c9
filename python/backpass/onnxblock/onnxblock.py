"""ForwardBlock and TrainingBlock: blocks that make whole models."""

from __future__ import annotations

import warnings
from typing import Any, TypeVar

import onnx
from onnx import TensorProto, checker

from backpass import _core
from backpass._core import InvalidInput
from backpass.onnxblock import _graph_utils as graph_utils
from backpass.onnxblock import blocks

_T = TypeVar("_T")
Parameters = tuple[list[TensorProto], list[TensorProto]]


class ForwardBlock(blocks.Block):
    """A block whose outputs become the outputs of the model.

    ```
    class Scaled(onnxblock.ForwardBlock):
        def build(self, name):
            return onnxblock.blocks.Mul()(name, onnxblock.blocks.Constant(2.0)())
    ```
    """

    _built: onnx.ModelProto | None = None

    def _assemble(self, *args: Any, **kwargs: Any) -> Any:
        returned = self.build(*args, **kwargs)
        self._finish(graph_utils.names_of(returned, self))
        return returned

    def _finish(self, outputs: list[str]) -> None:
        graph_utils.check_names(self.base)
        model = self.infer_shapes_on_base()
        graph_utils.register_outputs(model, outputs)
        self.base.CopyFrom(model)
        self._built = model

    def _result(self, found: _T | None) -> _T:
        if found is None:
            raise InvalidInput(
                f"{type(self).__name__} is not built yet: call it inside `with onnxblock.base(model):` first"
            )
        return found

    def to_model_proto(self) -> onnx.ModelProto:
        """The model that was built."""
        return self._result(self._built)


class TrainingBlock(ForwardBlock):
    """A block whose first output is the loss; calling it makes a training model and an eval model.

    Which initializers are trained is said by `requires_grad` before the call. The model of the surrounding ``with``
    becomes the training model.
    """

    _parameters: Parameters | None = None
    _models: tuple[onnx.ModelProto, onnx.ModelProto] | None = None

    def requires_grad(self, argument_name: str, value: bool = True) -> None:
        """Trains the initializer or input of this name; with False, makes it a parameter that is not trained."""
        trained, frozen = self._choice()
        (trained if value else frozen)[argument_name] = None
        (frozen if value else trained).pop(argument_name, None)

    def parameters(self) -> Parameters:
        """Trained and frozen parameters, each in the order of the model's initializers."""
        return self._result(self._parameters)

    def to_model_proto(self) -> tuple[onnx.ModelProto, onnx.ModelProto]:  # type: ignore[override]
        """Training model and eval model."""
        return self._result(self._models)

    def _check(self) -> None:
        """Nothing: the forward model was checked, and training models have operators that onnx does not know."""

    def _choice(self) -> tuple[dict[str, None], dict[str, None]]:
        """Names to train and to freeze: dicts, because they keep the order."""
        choice: tuple[dict[str, None], dict[str, None]] = self.__dict__.setdefault("_chosen", ({}, {}))
        return choice

    def _finish(self, outputs: list[str]) -> None:
        graph_utils.check_names(self.base)
        model = self.infer_shapes_on_base()
        graph_utils.register_outputs(model, outputs)
        checker.check_model(model, full_check=True)
        trained, frozen = (list(names) for names in self._choice())
        parameters = _split(model, trained, frozen)
        constant = {tensor.name for tensor in model.graph.initializer}
        frozen = [name for name in frozen if name in constant]  # an input that is not trained is just an input
        built = _core.build_training_model(model.SerializeToString(), trained, frozen, outputs)
        training, evaluation = (onnx.load_model_from_string(part) for part in built)
        self.base.CopyFrom(training)
        self._parameters, self._models = parameters, (training, evaluation)


def _split(model: onnx.ModelProto, trained: list[str], frozen: list[str]) -> Parameters:
    known = {info.name for info in model.graph.input} | {tensor.name for tensor in model.graph.initializer}
    for name in trained:
        if name not in known:
            raise _not_a_parameter(model, name)
    absent = [name for name in frozen if name not in known]
    if absent:
        shown = ", ".join(absent[:20]) + (f" and {len(absent) - 20} more" if len(absent) > 20 else "")
        warnings.warn(f"frozen parameters that are neither initializers nor inputs are ignored: {shown}", stacklevel=2)
    initializers = list(model.graph.initializer)
    return [t for t in initializers if t.name in trained], [t for t in initializers if t.name in frozen]


def _not_a_parameter(model: onnx.ModelProto, name: str) -> InvalidInput:
    for node in model.graph.node:
        if name in node.output:
            advice = "make it an initializer" if node.op_type == "Constant" else "name what it is computed from"
            return InvalidInput(
                f"parameter {name!r}: got the output of {node.op_type} {node.name!r}, "
                f"expected an initializer or an input; {advice}"
            )
    return graph_utils.unknown(model, name, "requires_grad: ")
