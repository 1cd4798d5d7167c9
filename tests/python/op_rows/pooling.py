"""Pooling."""

import numpy as np
from op_case import FLOATS, Row, case, const, data
from op_oracle import from_torch


def max_pool_grad(dy, indices, x, **_):
    dx = np.zeros(x.size, dy.dtype)
    np.add.at(dx, indices.ravel(), dy.ravel())
    return dx.reshape(x.shape)


def average_pool_grad(dy, x, kernel_shape, strides, pads=(0, 0, 0, 0), count_include_pad=0):
    import torch

    x = x.clone().requires_grad_()
    y = torch.nn.functional.avg_pool2d(x, kernel_shape, strides, pads[:2], count_include_pad=bool(count_include_pad))
    return torch.autograd.grad(y, x, dy)


WINDOWS = [
    case((2, 3, 7, 9), kernel_shape=[3, 2]),
    case((1, 2, 9, 8), kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]),
    case((1, 2, 10), kernel_shape=[3], strides=[2], ceil_mode=1),
    case((1, 2, 5, 6, 7), kernel_shape=[2, 3, 2], strides=[1, 2, 3]),
    case((1, 1, 8, 8), kernel_shape=[3, 3], auto_pad="SAME_UPPER", strides=[2, 3]),
    case((1, 1, 7, 8), kernel_shape=[2, 4], auto_pad="SAME_LOWER", strides=[2, 2]),
    case((1, 1, 7, 8), kernel_shape=[2, 4], auto_pad="VALID"),
    case((1, 2, 9, 9), kernel_shape=[2, 3], strides=[2, 2], pads=[0, 1, 1, 0], ceil_mode=1),
    case((1, 1, 32, 32), kernel_shape=[5, 5], pads=[2, 2, 2, 2]),
]
DILATED = [
    case((1, 2, 9, 9), kernel_shape=[3, 2], dilations=[2, 3], strides=[2, 1]),
    case((1, 2, 11), kernel_shape=[3], dilations=[3], pads=[2, 2], ceil_mode=1, strides=[2]),
]

ROWS = [
    # The reference evaluator shifts windows when ceil_mode leaves more than one element over.
    Row("MaxPool", WINDOWS, dtypes=("float32", "float64"), opset=(22, 12, 11), oracle="ort", grad=[0]),
    Row("MaxPool", DILATED, dtypes=("float32", "float64"), opset=(22, 10), oracle="ort", name="MaxPool-dilated"),
    Row("MaxPool", WINDOWS[:2], dtypes=("float16", "bfloat16"), name="MaxPool-16"),
    Row(
        "MaxPool",
        [
            case(data(1, 2, 7, 9, dtype=t, low=low, high=100), kernel_shape=[3, 3], strides=[2, 2])
            for t, low in (("int8", -100), ("uint8", 0))
        ],
        oracle="ort",
        opset=12,
        name="MaxPool-8-bit",
    ),
    Row(
        "MaxPool",
        [
            case((2, 3, 7, 9), kernel_shape=[3, 2], strides=[2, 2]),
            case((2, 3, 7, 9), kernel_shape=[3, 2], storage_order=1, pads=[1, 1, 1, 1]),
            case((1, 2, 5, 6, 4), kernel_shape=[2, 2, 2], pads=[0, 1, 0, 0, 0, 1]),
            case((2, 3, 9), kernel_shape=[4], pads=[2, 1]),
        ],
        dtypes=("float32", "float64"),
        outputs=2,
        oracle="ort",
        opset=12,
        name="MaxPool-indices",
    ),
    Row(
        "AveragePool",
        WINDOWS,
        attrs=[{}, {"count_include_pad": 1}],
        dtypes=("float32",),
        opset=(22, 11),
        oracle="ort",
        grad=[0],
    ),
    Row("AveragePool", DILATED, attrs=[{}, {"count_include_pad": 1}], opset=19, oracle="ort", name="AveragePool-19"),
    Row("AveragePool", WINDOWS[:2], dtypes=("float64", "float16", "bfloat16"), name="AveragePool-types"),
    Row(
        "LpPool",
        [c for c in WINDOWS if "ceil_mode" not in c.attrs],
        attrs=[{}, {"p": 1}, {"p": 3}],
        opset=(18, 11),
        oracle="ort",
        grad=[0],
    ),
    Row("LpPool", DILATED[:1], dtypes=FLOATS, name="LpPool-types"),
    Row("GlobalAveragePool", [(2, 3, 5, 4), (1, 2, 7), (1, 2, 3, 2, 2), (1, 1, 101, 33)], dtypes=FLOATS, grad=[0]),
    # The reference evaluator is right for two spatial axes only.
    Row(
        "GlobalMaxPool",
        [(2, 3, 5, 4), (1, 2, 7), (1, 2, 3, 2, 2)],
        dtypes=FLOATS,
        oracle=lambda x: x.max(axis=tuple(range(2, x.ndim)), keepdims=True),
        grad=[0],
    ),
    Row(
        "GlobalLpPool",
        [(2, 3, 5, 4), (1, 2, 7)],
        attrs=[{}, {"p": 1}, {"p": 3}],
        opset=(7, 13),
        oracle="ort",
        grad=[0],
    ),
    # The last input only tells the extents of X.
    Row(
        "MaxPoolGrad",
        [
            case((1, 1, 2, 2), const([[[[5, 7], [13, 15]]]]), (1, 1, 4, 4), kernel_shape=[2, 2], strides=[2, 2]),
            case((1, 1, 3, 3), const([[[[5, 5, 7], [5, 5, 7], [13, 13, 15]]]]), (1, 1, 4, 4), kernel_shape=[2, 2]),
        ],
        dtypes=FLOATS,
        oracle=max_pool_grad,
        opset=16,
        grad=[0],
    ),
    Row(
        "AveragePoolGrad",
        [
            case((1, 2, 5, 4), (1, 2, 9, 8), kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]),
            case((1, 2, 4, 4), (1, 2, 8, 9), kernel_shape=[2, 3], strides=[2, 2], count_include_pad=1),
        ],
        dtypes=FLOATS,
        oracle=from_torch(average_pool_grad),
        opset=16,
        grad=[0],
        torch=False,
    ),
    Row(
        "MaxUnpool",
        [
            case((1, 1, 2, 2), const([[[[5, 7], [13, 15]]]]), kernel_shape=[2, 2], strides=[2, 2]),
            case((1, 1, 2, 2), const([[[[5, 7], [13, 15]]]]), const([1, 1, 5, 5]), kernel_shape=[2, 2], strides=[2, 2]),
            case((1, 2, 3), const([[[0, 2, 5], [6, 8, 11]]]), kernel_shape=[2], strides=[2]),
        ],
        dtypes=("float32", "float64", "float16", "bfloat16"),
        opset=(28, 9),
        grad=[0],
    ),
]
