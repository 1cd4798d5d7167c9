"""Matrix product and its relatives, determinants, triangular systems."""

import numpy as np
import torch
from op_case import FLOATS, Row, case, const, data
from op_oracle import from_torch

# Long sums cancel: what is left of rounding does not shrink with the result.
LONG_SUMS = 2e-4


def fused_matmul(a, b, alpha=1.0, transA=0, transB=0, transBatchA=0, transBatchB=0):  # noqa: N803
    if transBatchA:
        a = np.moveaxis(a, 0, -2)
    if transBatchB:
        b = np.moveaxis(b, 0, -2)
    return alpha * np.matmul(np.swapaxes(a, -1, -2) if transA else a, np.swapaxes(b, -1, -2) if transB else b)


def fused_gemm(a, b, c, transB=0, alpha=1.0, activation="", activation_alpha=0.0):  # noqa: N803
    y = alpha * a @ (b.T if transB else b) + c
    return np.where(y < 0, activation_alpha * y, y).astype(a.dtype)


EQUATIONS = [
    case((3, 4), (4, 5), equation="ij,jk"),
    case((2, 3, 5, 4), (2, 3, 7, 4), equation="bhqd,bhkd->bqhk"),
    case((2, 5, 3, 4), (2, 7, 3, 4), equation="bqhd,bkhd->bhqk"),
    case((2, 3, 4, 4), equation="...ii->...i"),
    case((4, 4), equation="ii"),
    case((3, 5), equation="ij->ji"),
    case((3,), (4,), equation="i,j->ij"),
    case((2, 3, 5), (3, 5), equation="...a,...a->..."),
    case((2, 5), (3, 5, 7), (2, 7), equation="bn,anm,bm->ba"),
    case((), (3, 4), equation=", ij -> ji"),
    case((2, 0), (0, 3), equation="ij,jk->ik"),
    case((2, 3, 4), (2, 4), equation="bij,bj->bij"),
    case((2, 3, 4), equation="Aba->"),
]


def einsum(*operands: np.ndarray, equation: str) -> np.ndarray:
    wide = [x.astype(np.float64) if x.dtype.kind == "f" else x for x in operands]
    return np.asarray(np.einsum(equation, *wide)).astype(operands[0].dtype)


def well_conditioned(*shape: int):
    """Both triangles are filled: the one that is not asked for must not be read."""
    return data(*shape, make=lambda rng, shape: rng.uniform(-0.5, 0.5, shape) + 2 * np.eye(shape[-1]))


def solve_triangular(a, b, upper=0, transpose=0, unit=0):
    a, upper = (a.mT, 1 - upper) if transpose else (a, upper)
    return torch.linalg.solve_triangular(a, b, upper=bool(upper), unitriangular=bool(unit))


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
    Row("Einsum", EQUATIONS, dtypes=(*FLOATS, "int32", "int8"), opset=(28, 12), oracle=einsum, tol=1e-4, grad=[0, 1]),
    Row(
        "SolveTriangular",
        [
            case(well_conditioned(3, 3), (3, 2)),
            case(well_conditioned(2, 1, 4, 4), (3, 4, 1)),
            case(well_conditioned(4, 4), (2, 4, 3)),
            case(well_conditioned(2, 3, 3), (3, 2)),
            case(well_conditioned(1, 1), (1, 1)),
            case(well_conditioned(0, 0), (0, 3)),
            case(well_conditioned(3, 3), (3, 0)),
            case(well_conditioned(0, 2, 2), (2, 3)),
            case(well_conditioned(17, 17), (17, 130)),
        ],
        attrs=[
            {},
            {"upper": 1},
            {"transpose": 1},
            {"upper": 1, "transpose": 1},
            {"unit": 1},
            {"upper": 1, "transpose": 1, "unit": 1},
        ],
        domain="backpass",
        dtypes=FLOATS,
        oracle=from_torch(solve_triangular),
        grad=[0, 1],
        bench=(well_conditioned(256, 256), (256, 256)),
    ),
    Row("Det", [(3, 3), (2, 5, 5), (1, 1), (0, 3, 3), (0, 0)], dtypes=FLOATS, opset=(28, 11), tol=1e-3, grad=[0]),
]
