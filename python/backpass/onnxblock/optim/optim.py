"""AdamW, SGD, ClipGradNorm: models that update all parameters in one step, in place."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from onnx import TensorProto, helper

from backpass._core import InvalidInput
from backpass.onnxblock import blocks
from backpass.onnxblock.onnxblock import ForwardBlock

_DOMAIN = "com.microsoft"


def _within(what: str, value: float, below: float = math.inf) -> float:
    if not 0 <= float(value) < below:  # not a number is not within either
        raise InvalidInput(f"{what}: got {value}, expected a number in [0, {below})")
    return float(value)


class ClipGradNorm(blocks._Op):
    """Scales all gradients, in place, so that their common Euclidean norm is at most ``max_norm``."""

    op, domain = "InplaceClipGradNorm", _DOMAIN

    def __init__(self, max_norm: float) -> None:
        super().__init__()
        self._max_norm = _within("max_norm", max_norm)

    def build(self, gradients_name: str) -> str:
        return self._node(gradients_name, token="clip_grad_norm_output", max_norm=self._max_norm)


class _Update(blocks._Op):
    """The node that updates sequences of tensors; its output says whether it did."""

    domain = _DOMAIN

    def _updated(self, *inputs: str, token: str, **attributes: Any) -> str:
        output = self._node(*inputs, token=token, **attributes)
        self.base.graph.value_info.append(helper.make_tensor_value_info(output, TensorProto.BOOL, [1]))
        return output


class SGDOptimizer(_Update):
    """p -= learning_rate * gradient."""

    op = "SGDOptimizerV2"

    def build(self, learning_rate_name: str, gradients_name: str, params_name: str) -> str:
        return self._updated(learning_rate_name, params_name, gradients_name, token="update_completed")


class AdamWOptimizer(_Update):
    """Adam with decoupled weight decay.

    ``adam_mode`` 1, ONNX Runtime's: epsilon is added before the second moment is corrected, and decay comes after the
    step. 0, torch's: the other way round.
    """

    def __init__(
        self,
        bias_correction: bool | None = True,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float | None = 1e-6,
        weight_decay: float | None = 0.0,
        adam_mode: int = 1,
    ) -> None:
        super().__init__()
        if adam_mode not in (0, 1):
            raise InvalidInput(f"adam_mode: got {adam_mode}, expected 0 or 1")
        self._attributes = {
            "adam_mode": adam_mode,
            "alpha": _within("betas[0]", betas[0], 1.0),
            "beta": _within("betas[1]", betas[1], 1.0),
            "correct_bias": int(bool(bias_correction)),
            "epsilon": _within("eps", 1e-6 if eps is None else eps),
            "weight_decay": _within("weight_decay", weight_decay or 0.0),
        }

    def build(
        self,
        learning_rate_name: str,
        step_name: str,
        parameter_sequence_name: str,
        gradient_sequence_name: str,
        first_order_moment_sequence_name: str,
        second_order_moment_sequence_name: str,
    ) -> str:
        return self._updated(
            learning_rate_name, step_name, parameter_sequence_name, gradient_sequence_name,
            first_order_moment_sequence_name, second_order_moment_sequence_name,
            token="adamw.updated_flag", **self._attributes,
        )  # fmt: skip


class _Optimizer(ForwardBlock):
    """Learning rate, step number and the sequences as inputs, one update, one flag as output."""

    _moments: tuple[str, ...] = ("first_order_moments",)

    def __init__(self, clip_grad: blocks.Block | float | None = None) -> None:
        super().__init__()
        self._clip_grad = ClipGradNorm(clip_grad) if isinstance(clip_grad, int | float) else clip_grad

    def build(self, parameters: tuple[Sequence[TensorProto], Sequence[TensorProto]]) -> str:
        """``parameters`` is what `TrainingBlock.parameters` returns: trained, frozen."""
        trained, _ = parameters
        if not trained:
            raise InvalidInput("an optimizer needs at least one initializer to train: got none in requires_grad")
        graph = self.base.graph
        graph.input.append(helper.make_tensor_value_info("learning_rate", TensorProto.FLOAT, [1]))
        graph.input.append(helper.make_tensor_value_info("step", TensorProto.INT64, [1]))
        for name in ("params", "gradients", *self._moments):
            graph.input.append(helper.make_tensor_sequence_value_info(name, trained[0].data_type, None))
        gradients = "gradients" if self._clip_grad is None else self._clip_grad("gradients")
        return self._update(gradients)

    def _update(self, gradients: str) -> str:
        raise NotImplementedError


class AdamW(_Optimizer):
    """The model of AdamW over all trained parameters. ``clip_grad`` is a `ClipGradNorm`, or its number.

    ``adam_mode`` as for `AdamWOptimizer`: 0 is torch's arithmetic.
    """

    _moments = ("first_order_moments", "second_order_moments")

    def __init__(
        self,
        bias_correction: bool | None = True,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float | None = 1e-6,
        weight_decay: float | None = 0.0,
        clip_grad: blocks.Block | float | None = None,
        adam_mode: int = 1,
    ) -> None:
        super().__init__(clip_grad)
        self._optimizer = AdamWOptimizer(bias_correction, betas, eps, weight_decay, adam_mode)

    def _update(self, gradients: str) -> str:
        flag: str = self._optimizer("learning_rate", "step", "params", gradients, *self._moments)
        return flag


class SGD(_Optimizer):
    """The model of gradient descent over all trained parameters. ``clip_grad`` is a `ClipGradNorm`, or its number."""

    def __init__(self, clip_grad: blocks.Block | float | None = None) -> None:
        super().__init__(clip_grad)
        self._optimizer = SGDOptimizer()

    def _update(self, gradients: str) -> str:
        flag: str = self._optimizer("learning_rate", gradients, "params")
        return flag
