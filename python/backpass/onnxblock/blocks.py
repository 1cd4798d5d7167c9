"""Block, and the small ones that others are composed of. Each returns the name of its output."""

from __future__ import annotations

import copy
import os
from abc import ABC, abstractmethod
from typing import Any, TypeVar

import numpy as np
import onnx
from onnx import TensorProto, checker, helper, shape_inference

from backpass._core import InvalidInput
from backpass.onnxblock import _graph_utils as graph_utils
from backpass.onnxblock import model_accessor

_T = TypeVar("_T")


class Block(ABC):
    """Appends nodes to the model of the surrounding ``with onnxblock.base(model):`` when it is called.

    A custom block says in ``build(self, *input_names)`` which nodes or blocks are stacked on its inputs, and
    returns the name of its output, or a tuple of names. ``__init__`` may do without ``super().__init__()``.
    """

    def __init__(self, temp_file_name: str = "temp.onnx") -> None:
        """``temp_file_name`` is accepted for old scripts; no temporary file is written."""
        if os.path.isabs(temp_file_name):
            raise InvalidInput(f"temp_file_name: got {temp_file_name!r}, expected a name without folder")

    @property
    def base(self) -> onnx.ModelProto:
        """The model under construction; after the ``with``, the one this block was last called on."""
        accessor = model_accessor.current()
        last: onnx.ModelProto | None = accessor.model if accessor else self.__dict__.get("_last_base")
        return _inside_a_base(last, self)

    @abstractmethod
    def build(self, *args: Any, **kwargs: Any) -> Any:
        """Appends to ``self.base`` and returns the name(s) of the output(s)."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Builds, then checks the whole model unless another block is being built around this one."""
        accessor = self._enter()
        try:
            result = self._assemble(*args, **kwargs)
        finally:
            accessor.depth -= 1
        if accessor.depth == 0:
            self._check()
        return result

    def infer_shapes_on_base(self) -> onnx.ModelProto:
        """A copy of the model under construction with the types and shapes that follow."""
        return shape_inference.infer_shapes(self.base)

    def _check(self) -> None:
        checker.check_model(self.base, full_check=True)

    def _assemble(self, *args: Any, **kwargs: Any) -> Any:
        return self.build(*args, **kwargs)

    def _enter(self) -> model_accessor.ModelAccessor:
        accessor = _inside_a_base(model_accessor.current(), self)
        self.__dict__["_last_base"] = accessor.model
        accessor.depth += 1
        return accessor


def _inside_a_base(found: _T | None, block: Block) -> _T:
    if found is None:
        raise InvalidInput(
            f"{type(block).__name__} has no model to build on: call it inside `with onnxblock.base(model):` "
            "or `with onnxblock.empty_base():`"
        )
    return found


class _Op(Block):
    """One node with one output, called as its class unless ``op`` says otherwise."""

    op = ""
    domain = ""

    def _node(self, *inputs: str, token: str = "", **attributes: Any) -> str:
        op = self.op or type(self).__name__
        token = token or f"{op.lower()}_output"
        (output,) = graph_utils.add_node(self.base, op, inputs, token, domain=self.domain, **attributes)
        return output


class _BinaryOp(_Op):
    def build(self, input_name1: str, input_name2: str) -> str:
        return self._node(input_name1, input_name2)


class Add(_BinaryOp):
    """a + b."""


class Sub(_BinaryOp):
    """a - b."""


class Mul(_BinaryOp):
    """a * b."""


class Div(_BinaryOp):
    """a / b."""


class _UnaryOp(_Op):
    def build(self, input_name: str) -> str:
        return self._node(input_name)


class Sigmoid(_UnaryOp):
    """1 / (1 + exp(-x))."""


class Log(_UnaryOp):
    """The natural logarithm."""


class Neg(_UnaryOp):
    """-x."""


class Abs(_UnaryOp):
    """The absolute value."""


class Pow(_Op):
    """x to a constant power."""

    def __init__(self, exponent: float) -> None:
        self._exponent = exponent

    def build(self, input_name: str) -> str:
        return self._node(input_name, graph_utils.add_initializer(self.base, "pow_exponent", [self._exponent]))


class _Reduce(_Op):
    def __init__(self, keepdims: bool = True) -> None:
        self._keepdims = keepdims

    def build(self, input_name: str) -> str:
        return self._node(input_name, keepdims=int(self._keepdims))


class ReduceMean(_Reduce):
    """The mean of all elements."""


class ReduceSum(_Reduce):
    """The sum of all elements."""


class Constant(Block):
    """A number, as a float tensor of shape [1]."""

    def __init__(self, value_float: float) -> None:
        self._value = value_float

    def build(self) -> str:
        return graph_utils.add_initializer(self.base, "initializer", [self._value])


class SequenceConstruct(_Op):
    """A sequence of tensors."""

    def build(self, *sequence_input_names: str) -> str:
        return self._node(*sequence_input_names)


class ReduceAllL2(_Op):
    """The Euclidean norm of all elements of all inputs together."""

    domain = "com.microsoft"

    def build(self, *reduce_node_input_names: str) -> str:
        output = self._node(*reduce_node_input_names)
        self.base.graph.value_info.append(helper.make_tensor_value_info(output, TensorProto.FLOAT, []))
        return output


class Clip(_Op):
    """x limited to [clip_min, clip_max]; None is no limit."""

    def __init__(self, clip_min: float | None = None, clip_max: float | None = None) -> None:
        self._min = clip_min
        self._max = clip_max

    def build(self, input_name: str) -> str:
        code = graph_utils.element_type(self.base, input_name)
        limits = []
        for token, value in (("clip_min", self._min), ("clip_max", self._max)):
            limits.append("" if value is None else graph_utils.add_initializer(self.base, token, [value], code))
        while limits and not limits[-1]:
            limits.pop()
        return self._node(input_name, *limits)


class PassThrough(Block):
    """Nothing: its outputs are its inputs."""

    def build(self, *input_names: str) -> tuple[str, ...]:
        return input_names


class InputLike(Block):
    """A new input of the graph with type and shape of the value called ``like``."""

    def __init__(self, like: str) -> None:
        self._like = like

    def build(self, input_name: str | None = None) -> str:
        cloned = copy.deepcopy(graph_utils.value_info(self.base, self._like))
        cloned.name = input_name or graph_utils.generate_graph_name("input")
        self.base.graph.input.append(cloned)
        return cloned.name


class LabelEncoder(_Op):
    """Replaces keys by values (``ai.onnx.ml``)."""

    domain = "ai.onnx.ml"

    def __init__(
        self,
        default_float: float = 0.0,
        default_int64: int = -1,
        default_string: str = "_Unused",
        keys_floats: list[float] | None = None,
        keys_int64s: list[int] | None = None,
        keys_strings: list[str] | None = None,
        values_floats: list[float] | None = None,
        values_int64s: list[int] | None = None,
        values_strings: list[str] | None = None,
    ) -> None:
        self._attributes: dict[str, Any] = {
            "default_float": default_float, "default_int64": default_int64, "default_string": default_string,
            "keys_floats": keys_floats, "keys_int64s": keys_int64s, "keys_strings": keys_strings,
            "values_floats": values_floats, "values_int64s": values_int64s, "values_strings": values_strings,
        }  # fmt: skip

    def build(self, input_name: str) -> str:
        return self._node(input_name, **self._attributes)


class Cast(_Op):
    """Another element type, by its ONNX code (``onnx.TensorProto.FLOAT``)."""

    def __init__(self, to: int) -> None:
        self._to = to

    def build(self, input_name: str) -> str:
        return self._node(input_name, token="cast.output", to=self._to)


class Linear(_Op):
    """x W + b, with W [in_features, out_features] and b drawn from numpy's global normal generator."""

    op = "Gemm"

    def __init__(
        self, in_features: int, out_features: int, bias: bool = True, alpha: float = 1.0, beta: float = 1.0
    ) -> None:
        if min(in_features, out_features) < 1:
            raise InvalidInput(f"Linear: got {in_features} and {out_features} features, expected at least 1 each")
        self._shape = (in_features, out_features)
        self._bias = bias
        self._alpha = alpha
        self._beta = beta

    def build(self, linear_input_name: str) -> str:
        inputs = [linear_input_name, self._parameter("weight", self._shape)]
        if self._bias:
            inputs.append(self._parameter("bias", self._shape[1:]))
        return self._node(*inputs, token="linear.output", name="linear", alpha=self._alpha, beta=self._beta)

    def _parameter(self, token: str, shape: tuple[int, ...]) -> str:
        return graph_utils.add_initializer(self.base, f"linear.{token}", np.random.randn(*shape))
