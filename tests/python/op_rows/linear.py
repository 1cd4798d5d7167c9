"""Matrix product and its relatives."""

from op_case import FLOATS, Row, case, const, data

# Long sums cancel: what is left of rounding does not shrink with the result.
LONG_SUMS = 2e-4

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
]
