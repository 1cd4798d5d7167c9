"""Convolution and its relatives."""

from op_case import FLOATS, Row, case

# Long sums cancel: what is left of rounding does not shrink with the result.
LONG_SUMS = 2e-4

CONV_SETS = [
    case((2, 3, 7, 9), (4, 3, 3, 3), (4,), pads=[1, 1, 1, 1]),
    case((1, 8, 6, 6), (16, 8, 3, 3), strides=[2, 2], pads=[0, 1, 2, 1]),
    case((2, 4, 11), (6, 2, 3), (6,), group=2, dilations=[2]),
    case((1, 2, 5, 6, 4), (3, 2, 2, 3, 2), (3,), pads=[1, 0, 1, 0, 1, 0]),
    case((2, 8, 9, 9), (8, 1, 3, 3), (8,), group=8, pads=[1, 1, 1, 1]),
    case((1, 16, 5, 5), (8, 16, 1, 1), (8,)),
    case((1, 1, 8, 8), (1, 1, 3, 3), auto_pad="SAME_UPPER", strides=[3, 2]),
    case((1, 1, 7, 8), (1, 1, 2, 4), auto_pad="SAME_LOWER", strides=[2, 2]),
    case((1, 2, 7, 8), (3, 2, 2, 4), auto_pad="VALID"),
    case((1, 2, 9, 9), (3, 2, 3, 3), dilations=[2, 3], strides=[1, 2], pads=[2, 3, 2, 3], kernel_shape=[3, 3]),
    case((0, 2, 5, 5), (3, 2, 3, 3)),
    case((1, 2, 3, 3, 3, 3), (2, 2, 2, 2, 2, 2), (2,)),
    case((1, 24, 10, 10), (24, 1, 5, 5), group=24, strides=[2, 2], pads=[2, 2, 2, 2]),
]

ROWS = [
    Row(
        "Conv",
        CONV_SETS,
        dtypes=FLOATS,
        opset=(28, 11, 7),
        tol=LONG_SUMS,
        grad=[0, 1, 2],
        bench=((1, 64, 56, 56), (64, 64, 3, 3)),
    ),
    # The reference evaluator mixes up channels when group > 1.
    Row(
        "ConvTranspose",
        [
            case((2, 3, 4, 5), (3, 4, 3, 3), (4,)),
            case((1, 4, 5, 3), (4, 2, 3, 2), (4,), group=2, strides=[2, 3], pads=[1, 0, 1, 1]),
            case((1, 2, 7), (2, 3, 4), strides=[2], output_padding=[1], dilations=[2]),
            case((1, 2, 3, 3), (2, 2, 3, 3), strides=[3, 2], output_shape=[10, 8]),
            case((1, 2, 3, 3), (2, 2, 3, 3), strides=[2, 2], auto_pad="SAME_UPPER"),
            case((1, 2, 3, 4), (2, 1, 4, 4), strides=[2, 2], auto_pad="SAME_LOWER"),
            case((1, 2, 3, 3), (2, 2, 3, 3), auto_pad="VALID"),
            case((1, 2, 3, 2, 3), (2, 2, 3, 2, 3), (2,), strides=[1, 2, 2]),
            case((1, 16, 6, 6), (16, 8, 1, 1)),
        ],
        dtypes=("float32", "float16", "bfloat16"),
        opset=(22, 11, 7),
        oracle="ort",
        tol=LONG_SUMS,
        grad=[0, 1, 2],
    ),
    Row(
        "ConvTranspose",
        [case((2, 3, 4, 5), (3, 4, 3, 3), (4,), strides=[2, 2], output_padding=[1, 1])],
        dtypes=("float64",),
        name="ConvTranspose-double",
    ),
]
