"""Matrix product and its relatives."""

import numpy as np
from op_case import FLOATS, Row, case, const, data

# Long sums cancel: what is left of rounding does not shrink with the result.
LONG_SUMS = 2e-4


def u8(*shape):
    return data(*shape, dtype="uint8", low=0, high=255)


def i8(*shape):
    return data(*shape, dtype="int8", low=-127, high=127)


def scale(value, zero, dtype):
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


def fused_matmul(a, b, alpha=1.0, transA=0, transB=0, transBatchA=0, transBatchB=0):  # noqa: N803
    if transBatchA:
        a = np.moveaxis(a, 0, -2)
    if transBatchB:
        b = np.moveaxis(b, 0, -2)
    return alpha * np.matmul(np.swapaxes(a, -1, -2) if transA else a, np.swapaxes(b, -1, -2) if transB else b)


def fused_gemm(a, b, c, transB=0, alpha=1.0, activation="", activation_alpha=0.0):  # noqa: N803
    y = alpha * a @ (b.T if transB else b) + c
    return np.where(y < 0, activation_alpha * y, y).astype(a.dtype)


ROWS = [
    Row(
        "MatMul",
        [
            ((3, 5), (5, 4)),
            ((2, 3, 5), (5, 17)),
            ((2, 1, 7, 9), (3, 9, 33)),
            ((5,), (5,)),
            ((5,), (2, 5, 3)),
            ((4, 3, 5), (5,)),
            ((0, 5), (5, 4)),
            ((3, 0), (0, 4)),
            ((2, 0, 3), (3, 4)),
            ((40, 300), (300, 50)),
            ((1, 64), (64, 100)),
            case((2, 7, 20), const([[0.5] * 6] * 20, "row")),
            case((1, 3, 70), const([[0.25] * 5] * 70, "row")),
        ],
        dtypes=FLOATS,
        tol=LONG_SUMS,
        opset=(28, 9, 7),
        grad=[0, 1],
        bench=((512, 768), (768, 768)),
    ),
    Row(
        "MatMul",
        [
            case(data(3, 5, dtype=t, low=low, high=9), data(5, 4, dtype=t, low=low, high=9))
            for t, low in (("int32", -9), ("int64", -9), ("uint32", 0), ("uint64", 0))
        ]
        + [case(data(2, 1, 3, 5, dtype="int64", low=-9, high=9), data(4, 5, 2, dtype="int64", low=-9, high=9))],
        name="MatMul-integers",
    ),
    Row(
        "Gemm",
        [
            ((3, 5), (5, 4), (4,)),
            ((3, 5), (5, 4), (3, 1)),
            ((3, 5), (5, 4), (3, 4)),
            ((3, 5), (5, 4), ()),
            ((3, 5), (5, 4), (1, 4)),
            ((33, 300), (300, 70)),
            ((1, 5), (5, 9)),
            case((3, 5), (5, 4), (4,), alpha=0.5, beta=0.25),
            case((5, 3), (5, 4), (3, 4), transA=1, alpha=2.0),
            case((3, 5), (4, 5), (4,), transB=1, beta=0.0),
            case((105, 31), (40, 105), (31, 40), transA=1, transB=1),
            case((3, 5), const([[0.5] * 5] * 4, "row"), const([1.0, 2, 3, 4], "row"), transB=1),
            ((0, 5), (5, 4), (4,)),
            ((3, 0), (0, 4), (4,)),
        ],
        dtypes=FLOATS,
        tol=LONG_SUMS,
        opset=(28, 11),
        grad=[0, 1, 2],
        bench=((512, 768), (768, 768), (768,)),
    ),
    Row("Gemm", [((3, 5), (5, 4), (4,)), ((3, 5), (5, 4), (3, 4))], opset=(7, 9), name="Gemm-7"),
    Row(
        "Gemm",
        [
            case(data(3, 5, dtype="int32", low=-9, high=9), data(5, 4, dtype="int32", low=-9, high=9)),
            case(
                data(5, 3, dtype="int64", low=-9, high=9),
                data(5, 4, dtype="int64", low=-9, high=9),
                data(4, dtype="int64", low=-9, high=9),
                transA=1,
            ),
        ],
        name="Gemm-integers",
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
            case(u8(3, 5), *scale(0.02, 3, "uint8"), u8(5, 4), *scale(0.01, 7, "uint8"), *scale(0.03, 100, "uint8")),
            case(i8(2, 3, 70), *scale(0.02, 3, "int8"), i8(70, 4), *scale(0.01, -7, "int8"), *scale(0.5, 10, "int8")),
            case(i8(7), *scale(0.02, 3, "int8"), i8(2, 7, 4), *scale(0.01, -7, "int8"), *scale(0.3, 0, "int8")),
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
                *scale(1.5, 100, "uint8"),
            ),
        ],
        oracle=lambda a, sa, za, b, sb, zb, sy, zy: qlinear_matmul(a, sa[:, None], za[:, None], b, sb, zb, sy, zy),
        name="QLinearMatMul-per-row",
    ),
    *[
        Row(
            op,
            [
                ((2, 3, 4), (2, 4, 5)),
                case((2, 4, 3), (2, 5, 4), transA=1, transB=1, alpha=0.5),
                case((6, 2, 4), (2, 4, 5), transBatchA=1),
                case((4, 2, 6), (2, 4, 5), transBatchA=1, transA=1),
                case((2, 3, 7, 6), (7, 2, 3, 5), transA=1, transBatchB=1),
                case((16, 2, 3, 8), (9, 2, 3, 8), transBatchA=1, transBatchB=1, transB=1),
                case((5,), (5, 4)),
                case((3, 4), const([[0.5] * 4] * 5, "row"), transB=1),
            ],
            domain="com.microsoft",
            dtypes=FLOATS,
            oracle=fused_matmul,
            tol=LONG_SUMS,
            grad=[0, 1],
        )
        for op in ("FusedMatMul", "TransposeMatMul")
    ],
    Row(
        "FusedGemm",
        [
            case((3, 4), (4, 5), (5,), activation="Relu"),
            case((3, 4), (5, 4), (5,), transB=1, alpha=0.5, activation="LeakyRelu", activation_alpha=0.25),
        ],
        domain="com.microsoft",
        oracle=fused_gemm,
    ),
]
