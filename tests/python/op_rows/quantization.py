"""Type conversion and quantization."""

import numpy as np
from onnx import TensorProto
from op_case import FLOATS, INTEGERS, Row, case, const, data, unary

F32 = TensorProto.FLOAT
UINT8 = np.array(0, np.uint8)


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

ROWS = [
    *(
        Row(
            "Cast",
            unary(),
            {"to": to},
            dtypes=(*FLOATS, *INTEGERS, "bool"),
            opset=(28, 13, 9),
            grad=[0] if name == "float" else None,
            torch=lambda x, to: x.float(),
            name=f"Cast-{name}",
            bench=(1024, 1024),
        )
        for name, to in {"float": F32, "int64": TensorProto.INT64, "bool": TensorProto.BOOL}.items()
    ),
    Row(
        "CastLike",
        [((2, 3), UINT8), ((0,), UINT8), ((), np.zeros(3, np.float64)), ((2, 3), np.zeros(1, np.float64))],
        dtypes=("float32", "int32", "bool"),
        grad=[0],
        torch=lambda x, like: x.to(like.dtype),
    ),
    Row("BitCast", unary(), {"to": TensorProto.INT32}),
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
]
