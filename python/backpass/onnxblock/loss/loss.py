"""MSELoss, L1Loss, BCEWithLogitsLoss, CrossEntropyLoss: what torch computes under the same names."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import onnx
from numpy.typing import ArrayLike
from onnx import TensorProto, helper

from backpass._core import InvalidInput, Unsupported
from backpass.onnxblock import _graph_utils as graph_utils
from backpass.onnxblock import blocks

_REDUCTIONS = {"mean": blocks.ReduceMean, "sum": blocks.ReduceSum, "none": None}


class _Loss(blocks.Block):
    """Knows its reduction; makes inputs for targets that the model does not have yet."""

    def __init__(self, reduction: str = "mean") -> None:
        super().__init__()
        if reduction not in _REDUCTIONS:
            expected = ", ".join(repr(r) for r in _REDUCTIONS)
            raise InvalidInput(f"Reduction {reduction!r} not supported: expected one of {expected}")
        self._reduction = reduction

    def _reduced(self, name: str) -> str:
        reduce = _REDUCTIONS[self._reduction]
        return name if reduce is None else str(reduce(keepdims=False)(name))

    def _target(self, name: str, like: str) -> str:
        if not graph_utils.node_arg_exists(self.base, name):
            blocks.InputLike(like)(name)
        return name


class MSELoss(_Loss):
    """(input - target) squared."""

    def build(self, loss_input_name: str, target_name: str = "target") -> str:
        difference = blocks.Sub()(loss_input_name, self._target(target_name, loss_input_name))
        return self._reduced(blocks.Pow(2.0)(difference))


class L1Loss(_Loss):
    """The absolute value of input - target."""

    def build(self, loss_input_name: str, target_name: str = "target") -> str:
        difference = blocks.Sub()(loss_input_name, self._target(target_name, loss_input_name))
        return self._reduced(blocks.Abs()(difference))


class BCEWithLogitsLoss(_Loss):
    """Binary cross entropy of targets in [0, 1] and logits.

    ``weight`` scales the loss of each element, ``pos_weight`` the part of positive targets; both broadcast. Finite for
    logits of any size, because no logarithm of a rounded sigmoid is taken:
    (1 - t) x + (1 + (pos_weight - 1) t) softplus(-x).
    """

    def __init__(
        self, weight: ArrayLike | None = None, reduction: str = "mean", pos_weight: ArrayLike | None = None
    ) -> None:
        super().__init__(reduction)
        self._weight = weight
        self._pos_weight = pos_weight

    def build(self, loss_input_name: str, target_name: str = "target") -> str:
        target = self._target(target_name, loss_input_name)
        code = graph_utils.element_type(self.base, loss_input_name)
        one = self._constant("ones", 1.0, code)
        negative = blocks.Mul()(blocks.Sub()(one, target), loss_input_name)
        positive = _Softplus()(blocks.Neg()(loss_input_name))
        if self._pos_weight is not None:
            extra = self._constant("pos_weight", np.asarray(self._pos_weight, np.float64) - 1.0, code)
            positive = blocks.Mul()(blocks.Add()(blocks.Mul()(extra, target), one), positive)
        loss: str = blocks.Add()(negative, positive)
        if self._weight is not None:
            loss = blocks.Mul()(self._constant("weight", self._weight, code), loss)
        return self._reduced(loss)

    def _constant(self, token: str, value: Any, code: int) -> str:
        return graph_utils.add_initializer(self.base, f"bceloss.{token}", value, code)


class _Softplus(blocks._UnaryOp):
    op = "Softplus"


class CrossEntropyLoss(_Loss):
    """Cross entropy of scores [N, C, ...] and class numbers [N, ...].

    ``weight`` has one number per class. Labels equal to ``ignore_index`` do not count. With "mean", the sum is divided
    by the sum of the weights of the labels that count.
    """

    def __init__(
        self, weight: ArrayLike | None = None, reduction: str = "mean", ignore_index: int | None = None
    ) -> None:
        super().__init__(reduction)
        self._weight = None if weight is None else np.asarray(weight)
        if self._weight is not None and self._weight.ndim != 1:
            raise InvalidInput(f"weight: got an array of rank {self._weight.ndim}, expected one number per class")
        self._ignore_index = ignore_index

    def build(self, scores_input_name: str, labels_name: str = "labels") -> str:
        model = self.base
        if graph_utils.opset_of(model) < 12:
            raise Unsupported(
                f"CrossEntropyLoss needs opset 12, the model has {graph_utils.opset_of(model)}: "
                "convert it with onnx.version_converter.convert_version(model, 13)"
            )
        scores = graph_utils.value_info(model, scores_input_name)
        inputs = [scores_input_name, self._labels(labels_name, scores)]
        if self._weight is not None:
            code = scores.type.tensor_type.elem_type
            inputs.append(graph_utils.add_initializer(model, "celoss.weight", self._weight, code))
        attributes: dict[str, Any] = {"reduction": self._reduction, "ignore_index": self._ignore_index}
        loss, name = graph_utils.add_node(model, "SoftmaxCrossEntropyLoss", inputs, "loss", "log_prob", **attributes)
        log_prob = copy.deepcopy(scores)
        log_prob.name = name
        model.graph.value_info.append(log_prob)
        return loss

    def _labels(self, name: str, scores: onnx.ValueInfoProto) -> str:
        """The labels; a new input has the shape of the scores without their axis of classes, which is the second."""
        if graph_utils.node_arg_exists(self.base, name):
            return name
        labels = helper.make_tensor_value_info(name, TensorProto.INT64, None)
        if scores.type.tensor_type.HasField("shape"):
            shape = scores.type.tensor_type.shape
            if len(shape.dim) < 2:
                raise InvalidInput(f"scores {scores.name!r}: got rank {len(shape.dim)}, expected [N, C, ...]")
            labels.type.tensor_type.shape.CopyFrom(shape)
            del labels.type.tensor_type.shape.dim[1]
        self.base.graph.input.append(labels)
        return name
