"""Arithmetic, comparison, logic, rounding, elementary functions, conversion of types."""

import numpy as np
import torch
from onnx import TensorProto
from op_case import (
    FLOATS,
    INTEGERS,
    NUMBERS,
    REALS,
    SIGNED,
    Row,
    broadcast,
    case,
    const,
    data,
    edges,
    numbers_and_edges,
    unary,
)
from op_oracle import from_torch

EDGES = edges()
UINT8 = np.array(0, np.uint8)
MS = {"domain": "com.microsoft"}


def shifts(signed):
    low = -9 if signed else 0
    pairs = [((2, 3), (2, 3)), ((3, 4), (4,)), ((7,), ()), ((0,), (1,))]
    return [case(data(*a, low=low, high=100), data(*b, low=0, high=9)) for a, b in pairs]


def shift(x, y, direction):
    return np.left_shift(x, y) if direction == "LEFT" else np.right_shift(x, y)


def truncated(a, b):
    """Integer division as C does it; by zero it is 0."""
    if not np.issubdtype(a.dtype, np.integer):
        return a / b
    b_ = np.where(b == 0, 1, b)
    q = np.floor_divide(a, b_)
    return np.where(b == 0, 0, q + ((np.remainder(a, b_) != 0) & ((a < 0) ^ (b_ < 0)))).astype(a.dtype)


def mod(a, b, fmod=0):
    if np.issubdtype(a.dtype, np.integer):
        b_ = np.where(b == 0, 1, b)
        return np.where(b == 0, 0, np.fmod(a, b_) if fmod else np.mod(a, b_)).astype(a.dtype)
    return np.fmod(a, b) if fmod else np.mod(a, b)


def strings(*shape):
    return np.resize(np.array(["a", "bc", "", "bc", "d"], dtype=object), shape)


def gradient_args(a, b):
    rank = max(len(a), len(b))
    full_a, full_b = [0] * (rank - len(a)) + list(a), [0] * (rank - len(b)) + list(b)
    axes = range(rank - 1, -1, -1)
    repeated = [[i for i in axes if x[i] != y[i] and x[i] < 2] for x, y in ((full_a, full_b), (full_b, full_a))]
    return [np.array(axes, np.int64) for axes in repeated]


def power(x, y):
    return torch.pow(x, y).to(x.dtype)


INTEGER_PAIRS = broadcast(low=0, high=100)
MIXED_POW = [
    case(data(2, 3, dtype="float32", low=0.1, high=3), data(3, dtype="int64", low=-3, high=4)),
    case(data(2, 3, dtype="int64", low=-5, high=6), data(2, 3, dtype="int32", low=0, high=5)),
    case(data(4, dtype="int32", low=1, high=9), data(4, dtype="float32", low=0, high=2)),
    case(data(4, dtype="float64", low=0.1, high=9), data(1, dtype="float32", low=-2, high=2)),
]
POWERS = [case(data(5, 7), const(p, "row")) for p in (2.0, 3.0)]
ROOTS = [case(data(5, 7, low=0.1, high=4), const(p, "row")) for p in (0.5, -1.0, 1.7, 0.0)]
BOOLS = [case(data(*a, dtype="bool"), data(*b, dtype="bool")) for a, b in
         [((2, 3), (2, 3)), ((3, 4), (4,)), ((2, 1, 3), (5, 1)), ((), ()), ((0,), (1,))]]  # fmt: skip
WHERE = [
    case(data(2, 3, dtype="bool"), (2, 3), (2, 3)),
    case(data(3, 1, dtype="bool"), (4,), ()),
    case(data(2, 1, 3, dtype="bool"), (5, 1), (1, 1, 3)),
    case(data(0, dtype="bool"), (1,), (0,)),
    case(data(dtype="bool"), (17, 33), (33,)),
]
CLIP = [
    case((2, 3), const(-0.5, "row"), const(0.5, "row")),
    case((7,), None, const(0.0, "row")),
    case((0,)),
    case((3, 5), (), None),
]
PAIRS = [((2, 3, 5), (2, 3, 5)), ((7,), (7,)), ((), ()), ((0,), (0,)), ((17, 33), (17, 33))]

ROWS = [
    Row("Add", broadcast(), dtypes=FLOATS, opset=(28, 13, 7), grad=[0, 1], bench=((1024, 1024), (1024,))),
    Row("Add", INTEGER_PAIRS, dtypes=INTEGERS, opset=(28, 14), name="Add-integers"),
    Row("Sub", broadcast(), dtypes=FLOATS, opset=(28, 7), grad=[0, 1]),
    Row("Sub", INTEGER_PAIRS, dtypes=SIGNED, name="Sub-integers"),
    Row("Mul", broadcast(), dtypes=FLOATS, opset=(28, 7), grad=[0, 1], bench=((1024, 1024), (1024, 1))),
    Row("Mul", INTEGER_PAIRS, dtypes=INTEGERS, name="Mul-integers"),
    Row("Div", broadcast(low=0.5, high=4), dtypes=FLOATS, opset=(28, 7), grad=[0, 1]),
    Row("Div", broadcast(low=-20, high=20), dtypes=SIGNED, oracle=truncated, name="Div-signed"),
    Row("Div", broadcast(low=0, high=20), dtypes=("uint8", "uint16", "uint32", "uint64"), oracle=truncated,
        name="Div-unsigned"),
    Row("Mod", broadcast(low=-20, high=20), attrs=[{}, {"fmod": 1}], dtypes=SIGNED, oracle=mod, opset=(28, 10)),
    Row("Mod", broadcast(low=0.5, high=5), attrs={"fmod": 1}, dtypes=FLOATS, oracle=mod, opset=(28, 10),
        grad=[0, 1], name="Mod-float"),
    Row("Mod", broadcast(low=-5, high=-0.5), attrs={"fmod": 0}, dtypes=REALS, oracle=mod, grad=[0, 1],
        name="Mod-floored"),
    Row("Neg", unary(), dtypes=(*FLOATS, "int32", "int8"), opset=(28, 7), grad=[0]),
    Row("Abs", unary(), dtypes=(*FLOATS, "int32", "uint8"), opset=(28, 7), grad=[0]),
    Row("Reciprocal", unary(low=0.5, high=4), dtypes=FLOATS, opset=(28, 7), grad=[0]),
    Row("Sum", [*broadcast(3), case((2, 3))], dtypes=FLOATS, opset=(28, 8), grad=[0, 1, 2]),
    # The reference adds in place and cannot broadcast.
    Row("Mean", [*broadcast(3), case((2, 3))], dtypes=FLOATS, opset=(28, 8), grad=[0, 1, 2],
        oracle=lambda *x: (sum(x[1:], x[0]) / len(x)).astype(x[0].dtype)),
    Row("Max", [*broadcast(3), case((2, 3))], dtypes=NUMBERS, opset=(28, 12), grad=[0, 1, 2]),
    Row("Min", [*broadcast(3), case((2, 3))], dtypes=NUMBERS, opset=(28, 12), grad=[0, 1, 2]),
    Row("Max", [(2, 3), case((2, 3), (2, 3))], opset=7, name="Max-7"),
    Row("Max", [case(data(9, make=numbers_and_edges), data(9, make=numbers_and_edges))], name="Max-edges"),
    Row("Clip", CLIP, dtypes=(*FLOATS, "int32", "uint8"), opset=(28, 13, 11), grad=[0, 1, 2]),
    Row("Clip", [(2, 3), (0,), ()], attrs=[{}, {"min": -0.5, "max": 0.5}], opset=7, name="Clip-attributes"),
    Row("Pow", broadcast(low=0.5, high=2), dtypes=FLOATS, opset=(28, 13, 7), oracle=from_torch(power), grad=[0, 1]),
    Row("Pow", [*POWERS, *ROOTS], dtypes=FLOATS, grad=[0], torch=power, name="Pow-constant"),
    Row("Pow", MIXED_POW, grad=[0, 1], torch=power, name="Pow-mixed"),
    Row("Sign", [*unary(), *EDGES], dtypes=(*FLOATS, "int32", "uint8"), opset=(28, 9)),
    # ---- rounding
    Row("Ceil", [*unary(), *EDGES], dtypes=FLOATS, opset=(28, 7)),
    Row("Floor", [*unary(), *EDGES], dtypes=FLOATS, opset=(28, 7)),
    Row("Round", [case(np.array([0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 1e20, 0.49999997], "float32")), *unary(), *EDGES],
        dtypes=FLOATS, opset=(28, 11)),
    # ---- elementary functions
    Row("Sqrt", unary(low=0, high=9), dtypes=FLOATS, opset=(28, 7), grad=[0]),
    Row("Exp", [*unary(), *EDGES], dtypes=FLOATS, opset=(28, 7), grad=[0], bench=(1024, 1024)),
    Row("Log", [*unary(low=0.01, high=9), *EDGES], dtypes=FLOATS, opset=(28, 7), grad=[0], bench=(1024, 1024)),
    Row("Sin", [*unary(low=-50, high=50), case(data(9, low=-1e6, high=1e6))], dtypes=FLOATS, opset=(28, 7), grad=[0]),
    Row("Cos", [*unary(low=-50, high=50), case(data(9, low=-1e6, high=1e6))], dtypes=FLOATS, opset=(28, 7), grad=[0]),
    Row("Tan", unary(low=-1.4, high=1.4), dtypes=FLOATS, opset=(28, 7), grad=[0]),
    Row("Asin", unary(low=-1, high=1), dtypes=FLOATS, opset=(28, 7), grad=[0]),
    Row("Acos", unary(low=-1, high=1), dtypes=FLOATS, opset=(28, 7), grad=[0]),
    Row("Atan", unary(), dtypes=FLOATS, opset=(28, 7), grad=[0]),
    Row("Sinh", unary(), dtypes=FLOATS, opset=(28, 9), grad=[0]),
    Row("Cosh", unary(), dtypes=FLOATS, opset=(28, 9), grad=[0]),
    Row("Tanh", [*unary(), *EDGES], dtypes=FLOATS, opset=(28, 7), grad=[0], bench=(1024, 1024)),
    Row("Asinh", unary(), dtypes=FLOATS, opset=(28, 9), grad=[0]),
    Row("Acosh", unary(low=1, high=9), dtypes=FLOATS, opset=(28, 9), grad=[0]),
    Row("Atanh", unary(low=-0.9, high=0.9), dtypes=FLOATS, opset=(28, 9), grad=[0]),
    # ---- comparison and logic
    Row("Equal", broadcast(low=0, high=3), dtypes=(*INTEGERS, *FLOATS), opset=(28, 11)),
    Row("Equal", BOOLS, opset=(28, 7), name="Equal-bool"),
    Row("Equal", [case(strings(2, 3), strings(3)), case(strings(5), strings()), case(strings(0), strings(1))], opset=28,
        name="Equal-strings"),
    Row("Greater", broadcast(), dtypes=FLOATS, opset=(28, 13, 9, 7)),
    Row("GreaterOrEqual", broadcast(low=0, high=3), dtypes=INTEGERS, opset=(28, 12)),
    Row("Less", broadcast(), dtypes=FLOATS, opset=(28, 9, 7)),
    Row("LessOrEqual", broadcast(low=0, high=3), dtypes=INTEGERS, opset=(28, 12)),
    Row("And", BOOLS, opset=(28, 7)),
    Row("Or", BOOLS, opset=(28, 7)),
    Row("Xor", BOOLS, opset=(28, 7)),
    Row("Not", [case(data(*s, dtype="bool")) for s in [(2, 3), (), (0,), (130,)]], opset=(28, 7)),
    Row("BitwiseAnd", INTEGER_PAIRS, dtypes=INTEGERS, opset=(28, 18)),
    Row("BitwiseOr", INTEGER_PAIRS, dtypes=INTEGERS, opset=(28, 18)),
    Row("BitwiseXor", INTEGER_PAIRS, dtypes=INTEGERS, opset=(28, 18)),
    Row("BitwiseNot", unary(low=0, high=100), dtypes=INTEGERS, opset=(28, 18)),
    Row("BitShift", shifts(False), attrs=[{"direction": "LEFT"}, {"direction": "RIGHT"}],
        dtypes=("uint8", "uint16", "uint32", "uint64"), opset=(28, 11), oracle=shift),
    Row("BitShift", shifts(True), attrs=[{"direction": "LEFT"}, {"direction": "RIGHT"}], dtypes=SIGNED, oracle=shift,
        name="BitShift-signed"),
    Row("IsNaN", EDGES, opset=(28, 13, 9)),
    Row("IsInf", EDGES, attrs=[{}, {"detect_positive": 0}, {"detect_negative": 0}], opset=(28, 10)),
    Row("Where", WHERE, dtypes=(*NUMBERS, "bool"), opset=(28, 9), grad=[1, 2]),
    Row("Where",
        [case(data(2, 3, dtype="bool"), strings(3), strings()), case(data(dtype="bool"), strings(4), strings(4))],
        name="Where-strings"),
    # ---- conversion of types
    *(Row("Cast", unary(), {"to": to}, dtypes=(*FLOATS, *INTEGERS, "bool"), opset=(28, 13, 9),
          grad=[0] if name == "float" else None, torch=lambda x, to: x.float(), name=f"Cast-{name}",
          bench=(1024, 1024))
      for name, to in {"float": TensorProto.FLOAT, "int64": TensorProto.INT64, "bool": TensorProto.BOOL}.items()),
    Row("CastLike",
        [((2, 3), UINT8), ((0,), UINT8), ((), np.zeros(3, np.float64)), ((2, 3), np.zeros(1, np.float64))],
        dtypes=("float32", "int32", "bool"), grad=[0], torch=lambda x, like: x.to(like.dtype)),
    Row("BitCast", unary(), {"to": TensorProto.INT32}),
    # ---- com.microsoft
    Row("TanhGrad", PAIRS, dtypes=FLOATS, oracle=from_torch(lambda dy, y: dy * (1 - y * y)), **MS),
    Row("Scale", [case((2, 3), data(1, dtype="float32")), case((7,), data(dtype="float32"))],
        attrs=[{}, {"scale_down": 1}], dtypes=FLOATS, oracle=lambda x, s,
        scale_down=0: x / s if scale_down else x * s, grad=[0, 1], **MS),
    Row("BatchScale", [(2, 3), (0,), ()], attrs={"scale0": 0.5, "scale1": -2.0},
        dtypes=FLOATS, outputs=2, oracle=lambda x, **a: [x * np.float32(a["scale0"]), x * np.float32(a["scale1"])],
        grad=[0], **MS),
    Row("ScaledSum", [case((2, 3), (2, 3), scale_0=0.5, scale_1=2.0),
                      case((7,), (7,), (7,), scale_0=1.0, scale_1=-1.0, scale_2=0.25)],
        dtypes=FLOATS, oracle=lambda *x, **a: sum(v * np.float32(a[f"scale_{i}"]) for i, v in enumerate(x)),
        grad=[0, 1, 2], **MS),
    Row("MixedPrecisionScale", [case(np.array(0.5, np.float32), (2, 3), (4,))], attrs={"to": TensorProto.FLOAT16},
        outputs=2, oracle=lambda s, *x, to: [(v * s).astype(np.float16) for v in x], **MS),
    Row("IsFinite", [*EDGES, *unary()], dtypes=FLOATS, oracle=lambda x: np.isfinite(x), **MS),
    Row("BroadcastGradientArgs",
        [case(np.array([2, 1, 5]), np.array([3, 5])), case(np.array([4]), np.array([4])),
         case(np.array([1, 1]), np.array([2, 3, 4])), case(const([7, 1]), const([1, 2]))],
        outputs=2, oracle=gradient_args, sized=False, **MS),
]  # fmt: skip
