"""Quantization, and products and convolutions of quantized numbers."""

import numpy as np
import torch
from onnx import TensorProto
from op_case import FLOATS, Row, case, const, data
from op_oracle import from_torch

UINT8 = np.array(0, np.uint8)
MASK = np.array([[1, 0, 0, 0, 1], [0, 0, 1, 1, 1], [0, 0, 0, 0, 1]], bool)


def scale(*shape: int) -> object:
    return data(*shape, low=0.01, high=0.1)


def zero(dtype: str, *shape: int) -> object:
    return data(*shape, dtype=dtype, low=0, high=4)


QUANTIZE = [
    case((3, 5), const(0.1, "row"), zero("uint8")),
    case((2, 3, 4), scale(3), zero("int8", 3), axis=1),
    case((2, 3, 5), scale(5), zero("int8", 5), axis=-1),
    case((2, 9, 3), scale(2, 3, 3), None, axis=1, block_size=3),
    case((3, 10), scale(3, 3), zero("uint8", 3, 3), axis=1, block_size=4),
    case((7,), const(0.05, "row")),
    case((), scale(), zero("int16")),
    case((0, 3), scale(), zero("uint16")),
    case((4, 3), scale(1), None, output_dtype=TensorProto.INT4),
    case((2050,), scale(), None, output_dtype=TensorProto.UINT4),
    case((7,), scale(), None, output_dtype=TensorProto.INT2),
    case((3, 5), scale(), None, output_dtype=TensorProto.FLOAT8E4M3FN),
    case((3, 5), scale(), None, output_dtype=TensorProto.FLOAT8E5M2FNUZ, saturate=0),
    case((3, 5), scale(3), None, axis=0, output_dtype=TensorProto.FLOAT4E2M1),
]


def codes(dtype: str, *shape: int) -> object:
    return data(*shape, dtype=dtype, low=-128, high=127)


DEQUANTIZE = [
    case(codes("uint8", 3, 5), scale(), zero("uint8")),
    case(codes("int8", 2, 3, 4), scale(3), zero("int8", 3), axis=1),
    case(codes("int8", 2, 3, 5), scale(5), zero("int8", 5), axis=-1),
    case(codes("int16", 2, 9, 3), scale(2, 3, 3), None, axis=1, block_size=3),
    case(codes("uint8", 3, 10), scale(3, 3), zero("uint8", 3, 3), axis=1, block_size=4),
    case(codes("int32", 7), scale()),
    case(codes("uint16", 0, 3), scale(), zero("uint16")),
    case(codes("int8"), scale(), zero("int8")),
    case(codes("int8", 1030, 3), scale(1)),
]
OLD = [case((3, 5), scale(), zero("uint8")), case((2, 3, 4), scale(3), zero("int8", 3), axis=1)]


def u8(*shape):
    return data(*shape, dtype="uint8", low=0, high=255)


def i8(*shape):
    return data(*shape, dtype="int8", low=-127, high=127)


def fixed(value, zero, dtype):
    return np.array(value, "float32"), np.array(zero, dtype)


def centered(x, zero, rows):
    if zero is not None and rows and zero.ndim == 1:
        zero = zero[:, None]
    return x.astype(np.int32) - (0 if zero is None else zero.astype(np.int32))


def qlinear_matmul(a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero):
    sums = np.matmul(centered(a, a_zero, False), centered(b, b_zero, False)).astype(np.float32)
    scaled = np.rint(sums * (a_scale * b_scale / y_scale)) + y_zero.astype(np.float32)
    limits = np.iinfo(y_zero.dtype)
    return np.clip(scaled, limits.min, limits.max).astype(y_zero.dtype)


ROWS = [
    Row("QuantizeLinear", QUANTIZE, opset=(28, 23), bench=((1024, 1024), const(0.1, "row"), UINT8)),
    Row("QuantizeLinear", OLD, opset=(19, 13), name="QuantizeLinear-old"),
    Row("QuantizeLinear", OLD, domain="com.microsoft", opset=1, oracle="ort"),
    Row("DequantizeLinear", DEQUANTIZE[:3], domain="com.microsoft", opset=1, oracle="ort"),
    Row(
        "DequantizeLinear",
        DEQUANTIZE,
        dtypes=("float32", "float16"),
        opset=(28, 23),
        grad=[1],
        bench=(codes("uint8", 1024, 1024), scale()),
    ),
    # One scale in a tensor of one axis, which may as well have been one per channel.
    Row(
        "DequantizeLinear",
        [
            case(codes("int8", 6, 3), scale(1)),
            case(codes("int8", 5), scale(1), zero("int8", 1)),
            case(codes("uint8", 2, 1, 3), scale(1)),
            case(codes("uint8", 1, 3), scale(1, 1), None, block_size=4),
        ],
        grad=[1],
        name="DequantizeLinear-one",
    ),
    Row(
        "DynamicQuantizeLinear",
        [(3, 5), (7,), (2, 3, 4), (4099,)],
        opset=(28, 11),
        outputs=3,
        grad=[0],
        bench=(1024, 1024),
    ),
    Row(
        "ConvInteger",
        [
            case(u8(1, 2, 5, 6), u8(3, 2, 3, 3), np.array(7, "uint8"), np.array(3, "uint8"), pads=[1, 1, 1, 1]),
            case(u8(2, 4, 9), i8(6, 2, 3), None, None, group=2, strides=[2]),
            case(u8(1, 2, 5, 5), i8(3, 2, 3, 3), np.array(100, "uint8"), np.int8([1]), dilations=[2, 1]),
        ],
        opset=(21, 10),
        oracle="ort",
    ),
    # Not onnxruntime: without VNNI its 8-bit products saturate in 16 bits.
    Row(
        "QLinearConv",
        [
            case(
                u8(1, 2, 7, 6),
                np.array(0.02, "float32"),
                np.array(120, "uint8"),
                u8(3, 2, 3, 3),
                np.array(0.03, "float32"),
                np.array(120, "uint8"),
                np.array(0.2, "float32"),
                np.array(100, "uint8"),
                pads=[1, 1, 1, 1],
            ),
            case(
                u8(2, 4, 7, 6),
                np.array(0.02, "float32"),
                np.array(120, "uint8"),
                i8(6, 2, 3, 3),
                np.float32([0.03, 0.1, 0.2, 1, 2, 3]),
                np.int8([0] * 6),
                np.array(1.5, "float32"),
                np.array(100, "uint8"),
                data(6, dtype="int32", low=-999, high=999),
                group=2,
                strides=[2, 1],
            ),
            case(
                i8(1, 3, 5, 5),
                np.array(0.02, "float32"),
                np.array(-3, "int8"),
                i8(4, 3, 1, 1),
                np.array(0.03, "float32"),
                np.array(0, "int8"),
                np.array(0.2, "float32"),
                np.array(5, "int8"),
            ),
        ],
        opset=(21, 10),
    ),
    Row(
        "MatMulInteger",
        [
            case(u8(3, 5), i8(5, 4)),
            case(i8(3, 5), u8(5, 4), data(dtype="int8", low=-9, high=9), data(dtype="uint8", low=0, high=9)),
            case(u8(2, 3, 5), u8(5, 4), data(3, dtype="uint8", low=0, high=9), data(4, dtype="uint8", low=0, high=9)),
            case(u8(2, 3, 5), u8(2, 5, 4), data(2, 3, 1, dtype="uint8", low=0, high=9), None),
        ],
        # onnxruntime has no per-row zero points, the reference evaluator no vector of them.
        oracle=lambda a, b, a0=None, b0=None: np.matmul(centered(a, a0, True), centered(b, b0, False)),
        opset=(28, 10),
    ),
    Row(
        "QLinearMatMul",
        [
            case(u8(3, 5), *fixed(0.02, 3, "uint8"), u8(5, 4), *fixed(0.01, 7, "uint8"), *fixed(0.03, 100, "uint8")),
            case(i8(2, 3, 70), *fixed(0.02, 3, "int8"), i8(70, 4), *fixed(0.01, -7, "int8"), *fixed(0.5, 10, "int8")),
            case(i8(7), *fixed(0.02, 3, "int8"), i8(2, 7, 4), *fixed(0.01, -7, "int8"), *fixed(0.3, 0, "int8")),
        ],
        oracle=qlinear_matmul,
        opset=(28, 10),
    ),
    Row(
        "QLinearMatMul",
        [
            case(
                u8(3, 5),
                np.float32([0.1, 0.2, 0.3]),
                np.uint8([1, 2, 3]),
                i8(5, 2),
                np.float32([0.5, 0.25]),
                np.int8([0, 1]),
                *fixed(1.5, 100, "uint8"),
            ),
        ],
        oracle=lambda a, sa, za, b, sb, zb, sy, zy: qlinear_matmul(a, sa[:, None], za[:, None], b, sb, zb, sy, zy),
        name="QLinearMatMul-per-row",
    ),
    Row(
        "FakeQuant",
        [case(data(5, 7, low=-3, high=9), const(0.1, "row"), const(3.0, "row"))],
        attrs={"quant_min": 0, "quant_max": 60},
        domain="com.microsoft",
        oracle=from_torch(
            lambda x, s, z, quant_min, quant_max: torch.fake_quantize_per_tensor_affine(
                x, float(s), int(z), quant_min, quant_max
            )
        ),
    ),
    Row(
        "FakeQuantGrad", [case((3, 5), MASK)], dtypes=FLOATS, domain="com.microsoft", oracle=lambda dy, mask: dy * mask
    ),
]
