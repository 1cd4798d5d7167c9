"""One declaration per operator. A Row says what an operator is fed; everything else is derived from it:
forward values against an independent oracle, dynamic extents, shape inference, float64, 16-bit storage, older opsets
(test_ops.py), timing against onnxruntime (benchmarks/ops.py). op_rows/README.md shows how to write one.
"""

from __future__ import annotations

import functools
import importlib
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import ml_dtypes  # noqa: F401  registers bfloat16 and the small formats with numpy
import numpy as np
import onnx
from onnx import helper

# ---- Element types. The first of a row is checked on every input set, the others on the first few (all of them under
# the marker slow).
REALS = ("float32", "float64")
FLOATS = ("float32", "float64", "float16", "bfloat16")
SIGNED = ("int32", "int64", "int8", "int16")
INTEGERS = (*SIGNED, "uint8", "uint16", "uint32", "uint64")
NUMBERS = (*FLOATS, *INTEGERS)
ANY = (*NUMBERS, "bool")

NEWEST = onnx.defs.onnx_opset_version()

# (rtol, atol) by element type; float16 and bfloat16 are compared with a float32 oracle after rounding it to storage.
TOLERANCE = {"float32": (2e-5, 2e-6), "float64": (1e-12, 1e-13), "float16": (2e-3, 1e-3), "bfloat16": (1.6e-2, 1e-2)}


# ---- What one input is fed.
@dataclass(frozen=True)
class Data:
    """Random numbers. Floats are normal, or uniform when `low`/`high` are given; integers lie in [low, high)."""

    shape: tuple[int, ...]
    dtype: str | None = None  # None: the row's
    low: float | None = None
    high: float | None = None
    make: Callable[[np.random.Generator, tuple[int, ...]], np.ndarray] | None = None


@dataclass(frozen=True, eq=False)
class Const:
    """Stored in the model as an initializer (cast to `dtype`; "row" means the row's element type)."""

    value: Any
    dtype: str = ""


@dataclass(frozen=True, eq=False)
class Case:
    """One input set: a Data, Const, array (fed as it is), list (a sequence) or None (omitted) per input."""

    inputs: tuple[Any, ...]
    attrs: Mapping[str, Any] = field(default_factory=dict)


def data(*shape: int, dtype: str | None = None, low: float | None = None, high: float | None = None,
         make: Callable[..., np.ndarray] | None = None) -> Data:  # fmt: skip
    return Data(shape, dtype, low, high, make)


def const(value: Any, dtype: str = "") -> Const:
    """`const([2, 3])` is an int64 initializer, `const(0.5, "row")` one of the row's element type."""
    return Const(value, dtype)


def case(*inputs: Any, **attrs: Any) -> Case:
    """A tuple of ints stands for random data of that shape: `case((2, 3), const([0]), axis=1)`."""
    return Case(tuple(_as_input(i) for i in inputs), attrs)


def _as_input(value: Any) -> Any:
    return Data(value) if isinstance(value, tuple) else value


def unary(**range_: Any) -> list[Case]:
    """Odd sizes, one, none, scalar, several ranks. `unary(low=0.1, high=4)` for a restricted domain."""
    shapes = [(2, 3, 5), (7,), (), (1,), (0,), (3, 0, 2), (1, 1, 1), (17, 33), (2, 1, 3, 2, 1, 2), (4099,)]
    return [case(data(*s, **range_)) for s in shapes]


def numbers_and_edges(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Normal numbers with infinities and NaN among them: `data(9, make=numbers_and_edges)`."""
    x = rng.standard_normal(shape).astype(np.float32)
    flat = x.reshape(-1)
    flat[::5] = np.inf
    flat[1::5] = -np.inf
    flat[2::5] = np.nan
    return x


def edges() -> list[Case]:
    """What functions of one float32 must stand, besides unary()."""
    return [case(data(*s, dtype="float32", make=numbers_and_edges)) for s in [(3, 7), (5,), (0,), ()]]


def broadcast(count: int = 2, **range_: Any) -> list[Case]:
    """Equal shapes, scalars, either side broadcast, both sides broadcast, different ranks, nothing at all."""
    pairs = [((2, 3, 5), (2, 3, 5)), ((3, 4), (4,)), ((4,), (3, 4)), ((2, 1, 5), (1, 3, 1)), ((), ()), ((2, 3), ()),
             ((), (7,)), ((0,), (1,)), ((3, 0), (3, 1)), ((1,), (1, 1, 1)), ((17, 33), (17, 1)),
             ((2, 3, 4, 5), (3, 1, 5)), ((5, 1, 7, 1, 3), (2, 1, 9, 1))]  # fmt: skip
    sides = [[data(*pair[i % 2], **range_) for i in range(count)] for pair in pairs]
    return [case(*inputs) for inputs in sides]


# ---- The declaration.
@dataclass(frozen=True, eq=False)
class Row:
    """
    op       operator; several rows may share it (give them a `name`)
    inputs   input sets: a Case, or a shape (tuple of ints: one input of that shape), or a tuple of inputs as for case()
    attrs    attributes of all sets, or a list of them: each set is run with each
    dtypes   element types of Data inputs that name none
    opset    version, or several: the newest form and those that adapters lift
    oracle   "reference" (onnx.reference), "ort" (onnxruntime), "torch" (torch.<op>), or a function of the input arrays
             (and attributes) that returns the output(s); op_oracle.from_torch wraps one that works on torch tensors;
             "random": outputs are drawn by chance, only their types and shapes are checked
    tol      rtol of float32, or {dtype: (rtol, atol)}
    outputs  how many (default: what the schema requires)
    sized    False when extents of an output depend on data, so shape inference cannot know them
    grad     positions of the differentiable inputs (test_gradients.py)
    grad_inputs  input sets for the gradient instead of `inputs`, where those lie on kinks or too near to a pole
    torch    the operator as a function of torch tensors, to compare derivatives with; by default that of the oracle.
             False when the oracle's cannot be differentiated
    bench    what benchmarks/ops.py runs (default: the largest set)
    """

    op: str
    inputs: Sequence[Any]
    attrs: Mapping[str, Any] | Sequence[Mapping[str, Any]] = field(default_factory=dict)
    dtypes: Sequence[str] = ("float32",)
    domain: str = ""
    opset: int | Sequence[int] = NEWEST
    oracle: str | Callable[..., Any] = "reference"
    tol: float | Mapping[str, tuple[float, float]] = field(default_factory=dict)
    outputs: int | None = None
    sized: bool = True
    grad: Sequence[int] | None = None
    grad_inputs: Sequence[Any] | None = None
    torch: Callable[..., Any] | Literal[False] | None = None
    bench: Any = None
    name: str = ""

    @property
    def label(self) -> str:
        return self.name or (f"{self.domain}.{self.op}" if self.domain else self.op)

    @functools.cached_property
    def cases(self) -> list[Case]:
        return [case for variant in self._by_variant(self.inputs) for case in variant]

    @functools.cached_property
    def grad_cases(self) -> list[Case]:
        """For the gradient; sets of attributes take turns, so that the first few show all of them."""
        sets = self._by_variant(self.inputs if self.grad_inputs is None else self.grad_inputs)
        return [case for turn in zip(*(s[i % len(s) :] + s[: i % len(s)] for i, s in enumerate(sets)), strict=True)
                for case in turn]  # fmt: skip

    def _by_variant(self, inputs: Sequence[Any]) -> list[list[Case]]:
        return [[Case(c.inputs, {**a, **c.attrs}) for c in map(_as_case, inputs)] for a in self._variants()]

    def _variants(self) -> list[Mapping[str, Any]]:
        return [self.attrs] if isinstance(self.attrs, Mapping) else list(self.attrs)

    @property
    def opsets(self) -> tuple[int, ...]:
        return (self.opset,) if isinstance(self.opset, int) else tuple(self.opset)

    @property
    def bench_case(self) -> Case:
        if self.bench is None:
            return max(self.cases, key=_elements)
        c = _as_case(self.bench)
        return Case(c.inputs, {**self._variants()[0], **c.attrs})

    def tolerance(self, dtype: str) -> tuple[float, float]:
        if isinstance(self.tol, Mapping):
            return self.tol.get(dtype) or TOLERANCE.get(dtype, (0.0, 0.0))
        rtol, atol = TOLERANCE.get(dtype, (0.0, 0.0))
        factor = max(1.0, self.tol / TOLERANCE["float32"][0])
        return rtol * factor, atol * factor


def _as_case(value: Any) -> Case:
    if isinstance(value, Case):
        return value
    if isinstance(value, tuple) and all(isinstance(v, int) for v in value):
        return case(value)
    return case(*value) if isinstance(value, tuple) else case(value)


def _elements(c: Case) -> int:
    return sum(int(np.prod(i.shape)) for i in c.inputs if isinstance(i, Data))


def all_rows() -> list[Row]:
    """The rows of every file in op_rows/."""
    folder = Path(__file__).with_name("op_rows")
    if str(folder.parent) not in sys.path:
        sys.path.insert(0, str(folder.parent))
    names = sorted(p.stem for p in folder.glob("*.py") if p.stem != "__init__")
    return [row for name in names for row in importlib.import_module(f"op_rows.{name}").ROWS]


# ---- From a row to a model and its feeds.
@dataclass
class Instance:
    """A case with numbers: one array (or list, or None) per input, in order."""

    row: Row
    dtype: str
    case: Case
    opset: int
    values: list[Any]

    @functools.cached_property
    def feeds(self) -> dict[str, Any]:
        return {f"x{i}": v for i, v in self._fed()}

    def _fed(self) -> Iterator[tuple[int, Any]]:
        pairs = zip(self.values, self.case.inputs, strict=True)
        return ((i, v) for i, (v, spec) in enumerate(pairs) if v is not None and not isinstance(spec, Const))

    def model(self, dynamic: bool = False, as_float32: bool = False) -> onnx.ModelProto:
        """The one-node model. `as_float32` replaces 16-bit floats by float32: the oracle's view."""
        values = [widen(v) for v in self.values] if as_float32 else self.values
        names = ["" if v is None else f"x{i}" for i, v in enumerate(values)]
        while names and not names[-1]:  # onnxruntime crashes on some omitted inputs at the end
            names.pop()
        outputs = [f"y{i}" for i in range(self.output_count)]
        attrs = {k: self._attr(v, as_float32) for k, v in self.case.attrs.items()}
        node = helper.make_node(self.row.op, names, outputs, name="node", domain=self.row.domain, **attrs)
        fed = [(f"x{i}", values[i]) for i, _ in self._fed()]
        inputs = [helper.make_value_info(x, type_of(v, x if dynamic else "")) for x, v in fed]
        constants = [
            onnx.numpy_helper.from_array(np.asarray(v), f"x{i}")
            for i, v in enumerate(values)
            if v is not None and isinstance(self.case.inputs[i], Const)
        ]
        graph = helper.make_graph([node], "row", inputs, [onnx.ValueInfoProto(name=n) for n in outputs], constants)
        opsets = [helper.make_opsetid("", NEWEST if self.row.domain else self.opset)]
        if self.row.domain:
            opsets.append(helper.make_opsetid(self.row.domain, 1 if self.opset == NEWEST else self.opset))
        return helper.make_model(graph, opset_imports=opsets, ir_version=10 if self.opset < 24 else onnx.IR_VERSION)

    @staticmethod
    def _attr(value: Any, as_float32: bool) -> Any:
        if isinstance(value, np.ndarray):
            return onnx.numpy_helper.from_array(widen(value) if as_float32 else value)
        return value

    @property
    def output_count(self) -> int:
        if self.row.outputs is not None:
            return self.row.outputs
        if not onnx.defs.has(self.row.op, self.row.domain):
            return 1
        return max(1, onnx.defs.get_schema(self.row.op, self.opset, self.row.domain).min_output)

    def __str__(self) -> str:
        inputs = ", ".join("-" if v is None else describe(v) for v in self.values)
        attrs = "".join(f", {k}={v!r}" for k, v in self.case.attrs.items())
        return f"{self.row.op}({inputs}{attrs}) opset {self.opset}"


def instances(row: Row, dtype: str, opset: int, limit: int | None = None) -> Iterator[Instance]:
    for c in row.cases[:limit]:
        yield instance(row, dtype, c, opset)


def instance(row: Row, dtype: str, c: Case, opset: int) -> Instance:
    # The seed hangs on what is fed, not on the order of rows: editing one row leaves the numbers of the others alone.
    seed = zlib.crc32(f"{row.label}|{[getattr(i, 'shape', None) for i in c.inputs]}|{sorted(c.attrs)}".encode())
    rng = np.random.default_rng(seed)
    return Instance(row, dtype, c, opset, [_materialise(i, rng, dtype) for i in c.inputs])


def _materialise(value: Any, rng: np.random.Generator, dtype: str) -> Any:
    if isinstance(value, Data):
        return _random(value, rng, np.dtype(value.dtype or dtype))
    if isinstance(value, Const):
        wanted = dtype if value.dtype == "row" else value.dtype
        array = np.asarray(value.value)
        return array.astype(wanted) if wanted else array
    if isinstance(value, np.generic):
        return np.asarray(value)
    if isinstance(value, list):
        return [_materialise(_as_input(v), rng, dtype) for v in value]
    return value


def _random(d: Data, rng: np.random.Generator, dtype: np.dtype) -> np.ndarray:
    if d.make is not None:
        return np.asarray(d.make(rng, d.shape)).astype(dtype)
    if dtype.kind == "b":
        return np.asarray(rng.integers(0, 2, d.shape)).astype(bool)
    if dtype.kind in "iu":
        low = (0 if dtype.kind == "u" else -9) if d.low is None else int(np.floor(d.low))
        high = 10 if d.high is None else max(low + 1, int(np.ceil(d.high)))
        return np.asarray(rng.integers(max(low, 0) if dtype.kind == "u" else low, high, d.shape)).astype(dtype)
    if d.low is None and d.high is None:
        return np.asarray(rng.standard_normal(d.shape)).astype(dtype)
    low, high = -1.0 if d.low is None else d.low, 1.0 if d.high is None else d.high
    return np.asarray(rng.uniform(low, high, d.shape)).astype(dtype)


def type_of(value: Any, symbols: str = "") -> onnx.TypeProto:
    """With `symbols`, extents become "<symbols>_0", "<symbols>_1", ..."""
    if isinstance(value, list):  # elements share their type, not their shape
        element = type_of(value[0])
        if len({np.shape(item) for item in value}) > 1:
            element.tensor_type.ClearField("shape")
        return helper.make_sequence_type_proto(element)
    code = onnx.TensorProto.STRING if value.dtype == object else helper.np_dtype_to_tensor_dtype(value.dtype)
    shape = [f"{symbols}_{i}" for i in range(value.ndim)] if symbols else value.shape
    return helper.make_tensor_type_proto(code, shape)


def is_half(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.dtype.name in ("float16", "bfloat16")


def widen(value: Any) -> Any:
    if isinstance(value, list):
        return [widen(v) for v in value]
    return value.astype(np.float32) if is_half(value) else value


def describe(value: Any) -> str:
    return f"seq[{len(value)}]" if isinstance(value, list) else f"{value.dtype}{list(value.shape)}"
