"""Custom operators and gradients, written in Python.

::

    @backpass.register_operator("my.domain", "Cube")
    def cube(x):
        return x**3

    @backpass.register_gradient("my.domain", "Cube")
    def cube_gradient(g):
        return 3 * g.x() * g.x() * g.dy()

From then on models may hold ``my.domain.Cube``: sessions run it, ``backpass.grad``, ``backpass.check`` and training
know it. See docs/custom_operators.md.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from backpass import _core
from backpass._convert import CODE_OF_DTYPE, DTYPE_OF_CODE, to_engine, to_numpy

Array = np.ndarray[Any, Any]
Extent = _core.Extent
F = TypeVar("F", bound=Callable[..., Any])
Counted = int | tuple[int, int | None]


@dataclass(frozen=True)
class TensorType:
    """What is known of a tensor before running: element type, and shape unless that depends on contents.

    Extents that may vary are :class:`Extent` objects, which can be added, subtracted, multiplied and floor-divided.
    """

    dtype: np.dtype[Any]
    shape: tuple[int | Extent, ...] | None


def register_operator(
    domain: str,
    name: str,
    *,
    types: Callable[..., Any] | None = None,
    inputs: Counted = 1,
    outputs: Counted = 1,
    since: int = 1,
    pure: bool = True,
    replace: bool = False,
) -> Callable[[F], F]:
    """Decorator: the function computes the operator ``domain.name``, from numpy arrays to an array or a tuple of them.

    Attributes of the node are keyword arguments; an omitted input is ``None``. ``types`` gets a :class:`TensorType` per
    input, and the attributes, and returns those of the outputs, as ``TensorType`` or ``(dtype, shape)``; without it
    every output is like the first input. ``inputs`` and ``outputs``: how many, or ``(least, most)`` where ``None`` is
    any number. ``pure=False``: never computed ahead, nor once for two equal nodes.
    """

    def register(function: F) -> F:
        number = _add(types, function)
        _core.register_operator(
            domain, name, number, since, _range(inputs), _range(outputs), types is not None, pure, replace
        )
        return function

    return register


def register_gradient(domain: str, name: str, *, by_numbers: bool = False, replace: bool = False) -> Callable[[F], F]:
    """Decorator: the function is the gradient of ``domain.name``: an operator, or a function that models bring along.

    It is a rule that writes nodes, ``rule(g)`` with a :class:`GradientGraph`, so that derivatives of derivatives
    exist; it returns one gradient per input, ``None`` for zeros. Or, ``by_numbers``, it computes with numpy:
    ``backward(inputs, outputs, gradients, **attributes)``, where ``None`` among ``gradients`` means that nothing flows
    back to that output. What has a gradient keeps it unless ``replace``.
    """

    def register(function: F) -> F:
        _core.register_gradient(domain, name, _add(None, function), by_numbers, replace)
        return function

    return register


def unregister(domain: str, name: str) -> None:
    """Takes back what was registered under that name; a built-in operator has its own gradient again."""
    _core.unregister(domain, name)


def _type_of(handle: _core.GraphValue) -> tuple[int, tuple[int | Extent, ...] | None]:
    found: Any = handle.type()
    if found is None:
        raise _core.InvalidInput("a value of a gradient rule has no element type; is its operator's input a tensor?")
    code, shape = found
    return code, shape


def _operator(op: str, swap: bool = False) -> Callable[[Value, Any], Value]:
    """Python's operator that adds a node ``op``; with ``swap``, the one of the right operand."""

    def apply(value: Value, other: Any) -> Value:
        second = other if isinstance(other, Value) else value._graph.constant(other, value)
        return value._graph.op(op, second, value) if swap else value._graph.op(op, value, second)

    return apply


class Value:
    """A value in the graph of a gradient rule. Arithmetic adds nodes; numbers take its element type."""

    def __init__(self, handle: _core.GraphValue, graph: GradientGraph) -> None:
        self._handle = handle
        self._graph = graph

    @property
    def dtype(self) -> np.dtype[Any]:
        return DTYPE_OF_CODE[_type_of(self._handle)[0]]

    @property
    def shape(self) -> tuple[int | Extent, ...] | None:
        """Extents as far as they are known while the rule runs; ``g.shape(v)`` is the shape as a value."""
        return _type_of(self._handle)[1]

    __add__, __radd__ = _operator("Add"), _operator("Add", swap=True)
    __sub__, __rsub__ = _operator("Sub"), _operator("Sub", swap=True)
    __mul__, __rmul__ = _operator("Mul"), _operator("Mul", swap=True)
    __truediv__, __rtruediv__ = _operator("Div"), _operator("Div", swap=True)
    __pow__ = _operator("Pow")
    __matmul__ = _operator("MatMul")

    def __neg__(self) -> Value:
        return self._graph.op("Neg", self)

    def __repr__(self) -> str:
        try:
            return f"Value({self.dtype}, shape={self.shape})"
        except _core.Error:  # whoever shows it may be about to show an error
            return "Value(of unknown type)"


class GradientGraph:
    """What a gradient rule sees: inputs, outputs and the gradients that reached them; and how it adds nodes.

    ``attributes`` are those of the differentiated node, ``label`` is how messages name it.
    """

    def __init__(self, handle: _core.GraphValue, label: str, attributes: dict[str, Any]) -> None:
        self._handle = handle
        self.label = label
        self.attributes = attributes
        self._answered = False

    def __repr__(self) -> str:
        return f"GradientGraph({self.label}, attributes={self.attributes})"

    @property
    def inputs(self) -> list[Value | None]:
        """All inputs, None where one is omitted."""
        count = self._handle.input_count()
        return [self.x(i) if self._handle.has_input(i) else None for i in range(count)]

    @property
    def outputs(self) -> list[Value | None]:
        """All outputs, None where nobody wants one."""
        count = self._handle.output_count()
        return [self.y(k) if self._handle.has_output(k) else None for k in range(count)]

    def x(self, i: int = 0) -> Value:
        return Value(self._handle.x(i), self)

    def y(self, k: int = 0) -> Value:
        return Value(self._handle.y(k), self)

    def has_dy(self, k: int = 0) -> bool:
        """Whether something flows back to output k."""
        return self._handle.has_dy(k)

    def dy(self, k: int = 0) -> Value:
        """The gradient of output k; zeros when nothing flows back to it."""
        return Value(self._handle.dy(k), self)

    def wants(self, i: int) -> bool:
        """Whether the gradient of input i is asked for."""
        return self._handle.wants(i)

    def op(self, op: str, *inputs: Value | None, domain: str = "", **attributes: Any) -> Value:
        """A node of any operator, with one output. ``None`` among the inputs is an omitted one."""
        return self.ops(op, *inputs, outputs=1, domain=domain, **attributes)[0]

    def ops(self, op: str, *inputs: Value | None, outputs: int, domain: str = "", **attributes: Any) -> list[Value]:
        """The same with several outputs."""
        handles = [None if v is None else v._handle for v in inputs]
        given = {name: _attribute(value) for name, value in attributes.items()}
        return [Value(h, self) for h in self._handle.nodes(op, handles, given, domain, outputs)]

    def constant(self, value: Any, like: Value | None = None) -> Value:
        """A constant: an array as it is; a number, which takes the element type of ``like`` (or of dy)."""
        if isinstance(value, bool | int | float) and (like is None or like.dtype.kind != "b"):
            return Value(self._handle.number(float(value), None if like is None else like._handle), self)
        if value is None:
            raise _core.InvalidInput(f"{self.label} constant: got None, expected a number or an array")
        array = np.asarray(value) if like is None else np.asarray(value, like.dtype)
        return Value(self._handle.constant(to_engine(array)), self)

    def shape(self, value: Value) -> Value:
        """The shape of a value, 1-D int64."""
        return Value(value._handle.shape(), self)

    def zeros_like(self, value: Value) -> Value:
        return Value(value._handle.zeros(), self)

    def cast_like(self, value: Value, like: Value) -> Value:
        return self._like("cast", value, like)

    def reshape_like(self, value: Value, like: Value) -> Value:
        return self._like("reshape", value, like)

    def expand_like(self, value: Value, like: Value) -> Value:
        return self._like("expand", value, like)

    def reduce_like(self, value: Value, like: Value) -> Value:
        """Summed over what ``like`` was broadcast along, so that it has the shape of ``like``."""
        return self._like("reduce", value, like)

    def set(self, i: int, gradient: Value | None) -> None:
        """The gradient of input i, None for zeros: for rules that return nothing."""
        self._answered = True
        self._handle.set(i, None if gradient is None else gradient._handle)

    def _like(self, how: str, value: Value, like: Value) -> Value:
        return Value(self._handle.like(how, value._handle, like._handle), self)

    def _take(self, answer: Any) -> None:
        if self._answered and answer is None:
            return
        gradients = list(answer) if isinstance(answer, tuple | list) else [answer]
        for i, gradient in enumerate(gradients):
            if gradient is not None and not isinstance(gradient, Value):
                kind = type(gradient).__name__
                raise _core.InvalidInput(f"{self.label} gradient of input {i}: got {kind}, expected a value of g")
            self.set(i, gradient)


# ---- called by the engine
# What was registered, by number. Nothing is ever removed: open models may go on using it.
_functions: dict[int, tuple[Callable[..., Any] | None, Callable[..., Any]]] = {}
_numbers = itertools.count()


def _add(types: Callable[..., Any] | None, function: Callable[..., Any]) -> int:
    if not callable(function) or not (types is None or callable(types)):
        raise TypeError(f"expected a function, got {function!r} and {types!r}")
    number = next(_numbers)
    _functions[number] = types, function
    return number


@contextlib.contextmanager
def _inside(what: str, *refusals: type[Exception]) -> Iterator[None]:
    """Exceptions say where they were raised, except ``refusals``, whose messages say it."""
    try:
        yield
    except refusals:
        raise
    except Exception as error:
        error.add_note(f"raised in the {what}")
        raise


def call_types(number: int, label: str, attributes: dict[str, Any], inputs: list[Any]) -> list[Any]:
    """Runs a rule for types. ValueErrors refuse the node; other exceptions are mistakes of the rule."""
    given = [None if t is None else TensorType(DTYPE_OF_CODE[t[0]], t[1]) for t in inputs]
    types, _ = _functions[number]
    assert types is not None
    with _inside(f"rule for types of {label}", _core.InvalidInput, _core.Unsupported):
        try:
            answer = types(*given, **_numpy_attributes(attributes))
        except ValueError as error:
            raise _core.InvalidInput(f"{label} {error}") from error
    answers = list(answer) if isinstance(answer, list) or _is_several(answer) else [answer]
    return [_type(label, a) for a in answers]


def call_forward(
    number: int, label: str, attributes: dict[str, Any], inputs: list[Any], wanted: list[bool]
) -> list[Any]:
    """Runs an operator."""
    arrays = [_read_only(t) for t in inputs]
    with _inside(f"forward function of {label}"):
        answer = _functions[number][1](*arrays, **_numpy_attributes(attributes))
    return _tensors(label, answer, wanted)


def call_backward(
    number: int,
    label: str,
    attributes: dict[str, Any],
    inputs: list[Any],
    outputs: list[Any],
    gradients: list[Any],
) -> list[Any]:
    """Runs a gradient by numbers."""
    parts = [tuple(_read_only(t) for t in part) for part in (inputs, outputs, gradients)]
    with _inside(f"gradient function of {label}"):
        answer = _functions[number][1](*parts, **_numpy_attributes(attributes))
    count = len(answer) if isinstance(answer, tuple | list) else 1
    if count < len(inputs):
        raise _core.InvalidInput(
            f"{label} gradients: got {count}, expected one for each of the {len(inputs)} inputs, None for zeros"
        )
    return _tensors(label, answer, [False] * len(inputs))


def call_gradient(number: int, label: str, attributes: dict[str, Any], handle: _core.GraphValue) -> None:
    """Runs a gradient rule."""
    graph = GradientGraph(handle, label, _numpy_attributes(attributes))
    with _inside(f"gradient rule of {label}", _core.InvalidInput, _core.Unsupported):
        graph._take(_functions[number][1](graph))


def _tensors(label: str, answer: Any, wanted: Sequence[bool]) -> list[Any]:
    results = list(answer) if isinstance(answer, tuple | list) else [answer]
    for k, is_wanted in enumerate(wanted[: len(results)]):
        if is_wanted and results[k] is None:
            raise _core.InvalidInput(f"{label} output {k}: got None, expected an array")
    # Results have memory of their own: functions may return what they were given, or what they keep.
    return [None if r is None else to_engine(np.array(r)) for r in results]


def _read_only(tensor: Any) -> Any:
    array = to_numpy(tensor)
    if isinstance(array, np.ndarray):
        array.flags.writeable = False
    return array


def _is_several(answer: Any) -> bool:
    return isinstance(answer, tuple) and (len(answer) != 2 or isinstance(answer[0], TensorType | tuple))


def _type(label: str, answer: Any) -> Any:
    if answer is None:
        return None
    if isinstance(answer, TensorType):
        answer = answer.dtype, answer.shape
    if not isinstance(answer, tuple | list) or len(answer) != 2:
        raise _core.InvalidInput(f"{label} rule for types: got {answer!r}, expected (dtype, shape)")
    dtype, shape = answer
    code = CODE_OF_DTYPE.get(np.dtype(dtype))
    if code is None:
        raise _core.InvalidInput(f"{label} rule for types: got element type {dtype}, expected one that ONNX has")
    for extent in shape or ():
        if not isinstance(extent, int | np.integer | Extent):
            raise _core.InvalidInput(f"{label} rule for types: got extent {extent!r}, expected a number or an Extent")
    return code, None if shape is None else tuple(shape)


def _numpy_attributes(attributes: dict[str, Any]) -> dict[str, Any]:
    return {name: to_numpy(v) if isinstance(v, _core.Tensor) else v for name, v in attributes.items()}


def _attribute(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return to_engine(value)
    if isinstance(value, tuple | list):
        return [_attribute(v) for v in value]
    return value.item() if isinstance(value, np.generic) else int(value) if isinstance(value, bool) else value


def _range(count: Counted) -> tuple[int, int]:
    if isinstance(count, int):
        return count, count
    return count[0], -1 if count[1] is None else count[1]
