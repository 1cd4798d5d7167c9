"""GraphBuilder: makes the nodes, initializers and symbolic sizes of an ONNX graph.

A lowering gets the builder first, then the fx node, then the node's arguments, in which every fx.Node that stands for
a tensor was replaced by a :class:`Value`: a ``str`` (the ONNX name) that also knows what torch knew of the tensor,
``.dtype`` (a torch.dtype) and ``.shape`` (ints and torch.SymInts). Numbers stay numbers, fx.Nodes that stand for sizes
are torch.SymInts (SymFloats, SymBools), tensor lists are lists of Values, ``None`` stays ``None``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, overload

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper

from backpass.torch.symbols import Symbolic, Symbols, broadcast, dims

Dim = int | torch.SymInt
Scalar = bool | int | float | complex | torch.SymInt | torch.SymFloat | torch.SymBool

DOMAIN = "backpass"
INDICES_FROM_FRONT = "__indices_from_front"  #: a negative index is an error, src/ops/indexing/gather.hpp
SMALL = 64  # elements up to which equal constants are one initializer

ONNX_TYPES: dict[torch.dtype, int] = {
    torch.float32: TensorProto.FLOAT,
    torch.float64: TensorProto.DOUBLE,
    torch.float16: TensorProto.FLOAT16,
    torch.bfloat16: TensorProto.BFLOAT16,
    torch.int8: TensorProto.INT8,
    torch.int16: TensorProto.INT16,
    torch.int32: TensorProto.INT32,
    torch.int64: TensorProto.INT64,
    torch.uint8: TensorProto.UINT8,
    torch.uint16: TensorProto.UINT16,
    torch.uint32: TensorProto.UINT32,
    torch.uint64: TensorProto.UINT64,
    torch.bool: TensorProto.BOOL,
    torch.complex64: TensorProto.COMPLEX64,
    torch.complex128: TensorProto.COMPLEX128,
}

# Element types of results that are not those of what they are computed from.
_OTHER_TYPES = dict.fromkeys(
    ("And", "Equal", "Greater", "GreaterOrEqual", "IsInf", "IsNaN", "Less", "LessOrEqual", "Not", "Or", "Xor"),
    torch.bool,
) | dict.fromkeys(("ArgMax", "ArgMin", "NonZero", "Shape", "Size"), torch.int64)

_POINTWISE = {
    "Abs", "Add", "And", "Cast", "Clip", "Div", "Equal", "Exp", "Greater", "GreaterOrEqual", "Identity", "IsNaN",
    "Less", "LessOrEqual", "Log", "LogSoftmax", "Max", "Min", "Mod", "Mul", "Neg", "Not", "Or", "Pow", "Reciprocal",
    "Round", "Sigmoid", "Sign", "Softmax", "Softplus", "Sqrt", "StopGradient", "Sub", "Where", "Xor",
}  # as far as shapes go  # fmt: skip


class NoLoweringError(Exception):
    """Raised by a lowering that cannot express these arguments; the text says what. The operator is then decomposed
    or handed to torch."""


class Value(str):
    """The name of an ONNX value, with the element type and shape torch knew (None where nobody said)."""

    dtype: torch.dtype | None
    shape: tuple[Dim, ...] | None

    def __new__(cls, name: str, dtype: torch.dtype | None = None, shape: Sequence[Dim] | None = None) -> Value:
        self = super().__new__(cls, name)
        self.dtype = dtype
        self.shape = None if shape is None else dims(shape)
        return self

    @property
    def rank(self) -> int:
        if self.shape is None:
            raise TypeError(f"the shape of {str(self)!r} is not known here")
        return len(self.shape)


class GraphBuilder:
    """Collects one ONNX graph."""

    def __init__(self, target_opset: int = 23, *, fixed_opset: bool = False, stop_gradient: bool = True) -> None:
        self.opset = target_opset
        self._fixed_opset = fixed_opset
        self.stop_gradient_kept = stop_gradient
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: dict[str, onnx.TensorProto] = {}
        self.running_statistics: dict[str, tuple[str, str, float]] = {}  # by result: mean, variance, torch's momentum
        self.domains: dict[str, int] = {"": target_opset}
        self.symbols = Symbols(self)
        self._names: set[str] = set()
        self._constants: dict[tuple[Any, ...], Value] = {}
        self._node_names: set[str] = set()
        self._scope = "v"

    # ---- names
    def scope(self, name: str) -> None:
        """Names of the values and nodes made from now on begin with this."""
        self._scope = name

    def fresh(self, hint: str | None = None) -> str:
        """A name not used yet, `hint` itself when it is free."""
        return unused_name(hint or self._scope, self._names)

    def reserve(self, name: str) -> None:
        self._names.add(name)

    def require_opset(self, version: int) -> None:
        """Raises the model's opset to one that has an operator, unless the user chose one."""
        if self.opset < version and self._fixed_opset:
            raise NoLoweringError(f"needs opset {version}")
        self.opset = self.domains[""] = max(self.opset, version)

    # ---- nodes
    @overload
    def op(self, op_type: str, *inputs: str | Scalar | None, outputs: None = None, **settings: Any) -> Value: ...

    @overload
    def op(
        self, op_type: str, *inputs: str | Scalar | None, outputs: int | Sequence[str | None], **settings: Any
    ) -> tuple[Value, ...]: ...

    def op(
        self,
        op_type: str,
        *inputs: str | Scalar | None,
        outputs: int | Sequence[str | None] | None = None,
        domain: str = "",
        name: str | None = None,
        dtype: torch.dtype | None = None,
        shape: Sequence[Dim] | None = None,
        **attributes: Any,
    ) -> Value | tuple[Value, ...]:
        """Adds a node and returns its output, or a tuple of them when ``outputs`` says how many.

        ``None`` among the inputs is an omitted one; a number is a constant of the element type of the first tensor that
        is computed with. Attributes that are None are left out. ``outputs`` may be a list of names, in which None
        stands for an output nobody wants. ``dtype`` and ``shape`` describe the first output: without them it has the
        usual element type, and the shape of operators that work element by element.
        """
        wanted = [o or "" for o in outputs] if isinstance(outputs, list | tuple) else self._fresh_list(outputs)
        computed = inputs[1:] if op_type == "Where" else inputs
        kind = next((i.dtype for i in computed if isinstance(i, Value)), None)
        values = [i if i is None or isinstance(i, str) else self._number(i, op_type, kind) for i in inputs]
        names = ["" if i is None else str(i) for i in values]
        while names and not names[-1]:
            names.pop()
        label = unused_name(name or self._scope, self._node_names)
        kept = {key: value for key, value in attributes.items() if value is not None}
        self.nodes.append(helper.make_node(op_type, names, wanted, name=label, domain=domain, **kept))
        if domain and domain not in self.domains:
            self.domains[domain] = 1
        extents = _usual_shape(op_type, values) if shape is None else shape
        first = Value(wanted[0], dtype or _OTHER_TYPES.get(op_type, kind), extents)
        return first if outputs is None else (first, *map(Value, wanted[1:]))

    def _number(self, value: Scalar, op_type: str, dtype: torch.dtype | None) -> Value:
        if dtype is None:
            raise TypeError(f"{op_type}: got the number {value} beside no tensor whose element type is known")
        return self.scalar(value, dtype)

    def _fresh_list(self, count: Any) -> list[str]:
        return [self.fresh() for _ in range(1 if count is None else count)]

    def cast(self, value: Value, dtype: torch.dtype) -> Value:
        """The value with another element type; itself when it has that type already."""
        if value.dtype == dtype:
            return value
        if dtype not in ONNX_TYPES or dtype.is_complex or (value.dtype is not None and value.dtype.is_complex):
            raise NoLoweringError(f"Cast from {value.dtype} to {dtype}")
        return self.op("Cast", value, to=ONNX_TYPES[dtype], dtype=dtype)

    def identity(self, value: str) -> Value:
        return self.op("Identity", value)

    def stop_gradient(self, value: Value) -> Value:
        """The value, through which no gradient flows back."""
        if not self.stop_gradient_kept:
            return self.identity(value)
        return self.op("StopGradient", value, domain=DOMAIN)

    @staticmethod
    def like(name: str, other: Value) -> Value:
        return Value(name, other.dtype, other.shape)

    # ---- constants
    def constant(self, value: Any, dtype: torch.dtype | None = None, hint: str | None = None) -> Value:
        """An initializer from a number, list, numpy array or torch tensor. Python floats are float32, ints int64."""
        tensor = _as_tensor(value, dtype)
        key = None
        if tensor.numel() <= SMALL:
            key = (tensor.dtype, tuple(tensor.shape), _bytes(tensor))
            if key in self._constants:
                return self._constants[key]
        result = self.add_initializer(self.fresh(hint or "constant"), tensor)
        if key is not None:
            self._constants[key] = result
        return result

    def add_initializer(self, name: str, tensor: torch.Tensor) -> Value:
        if tensor.dtype not in ONNX_TYPES:
            raise NoLoweringError(f"a constant of type {tensor.dtype}")
        proto = TensorProto(name=name, data_type=ONNX_TYPES[tensor.dtype], dims=list(tensor.shape))
        proto.raw_data = _bytes(tensor)
        self.initializers[name] = proto
        return Value(name, tensor.dtype, tuple(tensor.shape))

    def scalar(self, value: Scalar, dtype: torch.dtype) -> Value:
        """A number, also a symbolic one, as a 0-D value of this element type."""
        if isinstance(value, Symbolic):
            return self.cast(self.symbols.number(value), dtype)
        return self.constant(value, dtype)

    # ---- sizes
    def sizes(self, values: Iterable[Dim | str]) -> Value:
        """A 1-D int64 value holding these sizes; names stand for int64 values of one element."""
        return self.symbols.vector(list(values))

    def size(self, value: Dim | str) -> Value:
        """One size, as a 0-D int64 value."""
        if isinstance(value, str):
            return self.op("Reshape", value, self.constant([]), dtype=torch.int64, shape=())
        if isinstance(value, int):
            return self.constant(value, torch.int64)
        return self.symbols.number(value)

    # ---- going back
    def mark(self) -> tuple[int, ...]:
        """The state now, for :meth:`rollback`."""
        return len(self.nodes), len(self.initializers), len(self._constants), *self.symbols.mark()

    def rollback(self, mark: tuple[int, ...]) -> None:
        """Forgets everything made since the mark."""
        del self.nodes[mark[0] :]
        for table, length in ((self.initializers, mark[1]), (self._constants, mark[2])):
            while len(table) > length:
                table.popitem()
        self.symbols.rollback(mark[3:])

    # ---- what fx knew
    @staticmethod
    def shape_of(value: Value) -> tuple[Dim, ...]:
        if value.shape is None:
            raise TypeError(f"the shape of {str(value)!r} is not known here")
        return value.shape

    @staticmethod
    def dtype_of(value: Value) -> torch.dtype:
        if value.dtype is None:
            raise TypeError(f"the element type of {str(value)!r} is not known here")
        return value.dtype

    def value_info(self, name: str, dtype: torch.dtype, shape: Sequence[Dim]) -> onnx.ValueInfoProto:
        extents = [d if isinstance(d, int) else self.symbols.dim_name(d) for d in dims(shape)]
        return helper.make_tensor_value_info(name, ONNX_TYPES[dtype], extents)

    def model(
        self, inputs: Sequence[onnx.ValueInfoProto], outputs: Sequence[onnx.ValueInfoProto], name: str = "graph"
    ) -> onnx.ModelProto:
        """The finished model. Nodes are in the order in which they were made."""
        graph = onnx.GraphProto(name=name)
        graph.node.extend(self.nodes)
        graph.input.extend(inputs)
        graph.output.extend(outputs)
        graph.initializer.extend(self.initializers.values())
        opsets = [helper.make_opsetid(domain, version) for domain, version in self.domains.items()]
        model = helper.make_model(graph, opset_imports=opsets, producer_name="backpass")
        model.ir_version = 10
        return model


def _usual_shape(op_type: str, inputs: Sequence[str | None]) -> tuple[Dim, ...] | None:
    shapes = [getattr(i, "shape", None) for i in inputs if i is not None]
    known = [s for s in shapes if s is not None]
    return broadcast(*known) if op_type in _POINTWISE and known and len(known) == len(shapes) else None


def unused_name(hint: str, taken: set[str]) -> str:
    """The hint, numbered when it is taken already; taken from now on."""
    name, count = hint, 0
    while name in taken:
        count += 1
        name = f"{hint}_{count}"
    taken.add(name)
    return name


def _as_tensor(value: Any, dtype: torch.dtype | None) -> torch.Tensor:
    from torch._subclasses.fake_tensor import unset_fake_temporarily

    with unset_fake_temporarily():
        if isinstance(value, torch.Tensor):
            return value.detach() if dtype is None else value.detach().to(dtype)
        if isinstance(value, np.ndarray | np.generic):
            tensor = torch.from_numpy(np.ascontiguousarray(value).copy())
            return tensor if dtype is None else tensor.to(dtype)
        if dtype is None and isinstance(value, list | tuple) and not value:
            dtype = torch.int64
        if isinstance(value, int) and dtype is not None:
            return torch.tensor(value).to(dtype)  # numbers beyond a small type wrap around, as torch's operators do
        return torch.tensor(value, dtype=dtype)


def _bytes(tensor: torch.Tensor) -> bytes:
    from torch._subclasses.fake_tensor import unset_fake_temporarily

    with unset_fake_temporarily():
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        return b"" if flat.numel() == 0 else flat.view(torch.uint8).numpy().tobytes()


__all__ = ["ONNX_TYPES", "Dim", "GraphBuilder", "NoLoweringError", "Scalar", "Value"]
