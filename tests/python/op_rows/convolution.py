"""Convolution and its relatives."""

import itertools

import numpy as np
from op_case import FLOATS, Row, case, const
from op_oracle import from_torch

# Long sums cancel: what is left of rounding does not shrink with the result.
LONG_SUMS = 2e-4


def deform_conv(
    x, w, offset, bias=None, mask=None, *, group=1, offset_group=1, pads=(0, 0, 0, 0), strides=(1, 1), dilations=(1, 1)
):
    """One kernel position at a time, sampled by torch (the reference evaluator is very slow)."""
    import torch
    from torch.nn import functional

    n, c, h, wd = x.shape
    kh, kw = w.shape[2:]
    oh, ow = offset.shape[2:]
    offset = offset.reshape(n, offset_group, kh * kw, 2, oh, ow)
    mask = (
        torch.ones(n, offset_group, kh * kw, oh, ow, dtype=x.dtype)
        if mask is None
        else mask.reshape(n, offset_group, kh * kw, oh, ow)
    )
    out = torch.zeros(n, w.shape[0], oh, ow, dtype=x.dtype)
    for k in range(kh * kw):
        sampled = []
        for g in range(offset_group):
            y0 = torch.arange(oh, dtype=x.dtype)[:, None] * strides[0] - pads[0] + k // kw * dilations[0]
            x0 = torch.arange(ow, dtype=x.dtype)[None, :] * strides[1] - pads[1] + k % kw * dilations[1]
            ys = (y0 + offset[:, g, k, 0]) / (h - 1) * 2 - 1
            xs = (x0 + offset[:, g, k, 1]) / (wd - 1) * 2 - 1
            part = x[:, g * c // offset_group : (g + 1) * c // offset_group]
            grid = torch.stack([xs, ys], -1)
            sampled.append(functional.grid_sample(part, grid, align_corners=True) * mask[:, g, k][:, None])
        weights = w[:, :, k // kw, k % kw][:, :, None, None]
        out = out + functional.conv2d(torch.cat(sampled, 1), weights, groups=group)
    return out if bias is None else out + bias[None, :, None, None]


def plain_deform_conv(x, w, offset, bias=None, mask=None):
    """Element by element, for any number of axes; stride 1, no padding, one group."""
    kernel, out = w.shape[2:], offset.shape[2:]
    axes = len(kernel)
    offset = offset.reshape(x.shape[0], *kernel, axes, *out)
    y = np.zeros((x.shape[0], w.shape[0], *out), x.dtype)
    for n in range(x.shape[0]):
        for k, o in itertools.product(np.ndindex(*kernel), np.ndindex(*out)):
            point = [o[a] + k[a] + offset[(n, *k, a, *o)] for a in range(axes)]
            low = np.floor(point).astype(int)
            value = np.zeros(x.shape[1], x.dtype)
            for corner in itertools.product((0, 1), repeat=axes):
                at = low + corner
                if all(0 <= i < e for i, e in zip(at, x.shape[2:], strict=True)):
                    value += (
                        np.prod([1 - abs(p - i) for p, i in zip(point, at, strict=True)]) * x[(n, slice(None), *at)]
                    )
            factor = 1 if mask is None else mask.reshape(x.shape[0], *kernel, *out)[(n, *k, *o)]
            y[(n, slice(None), *o)] += w[(slice(None), slice(None), *k)] @ value * factor
    return y if bias is None else y + bias.reshape(-1, *[1] * axes)


def _torch_conv(rank, transposed=False):
    from torch.nn import functional

    return getattr(functional, f"conv_transpose{rank}d" if transposed else f"conv{rank}d")


def _gradients(function, dy, x, w, attrs, channels):
    import torch

    rank = x.ndim - 2
    x, w = x.clone().requires_grad_(), w.clone().requires_grad_()
    bias = torch.zeros(channels, dtype=x.dtype, requires_grad=True)
    pads = attrs.get("pads", [0] * (2 * rank))
    assert pads[:rank] == pads[rank:]
    y = function(
        x,
        w,
        bias,
        stride=attrs.get("strides", 1),
        padding=pads[:rank],
        dilation=attrs.get("dilations", 1),
        groups=attrs.get("group", 1),
    )
    return torch.autograd.grad(y, [x, w, bias], dy)


def conv_grad(dy, x, w, **attrs):
    return _gradients(_torch_conv(x.ndim - 2), dy, x, w, attrs, w.shape[0])


def conv_transpose_grad(dy, x, w, **attrs):
    return _gradients(_torch_conv(x.ndim - 2, True), dy, x, w, attrs, dy.shape[1])


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

COLUMNS = [
    case((1, 4, 12), const([5, 4]), const([2, 2])),
    case((2, 18, 2), const([4, 4]), const([3, 3]), pads=[0, 1, 0, 1], strides=[2, 3]),
    case((1, 6, 3), const([5, 5]), const([2, 3]), dilations=[2, 2], strides=[1, 1], pads=[0, 0, 0, 0]),
]


def folded(x, image, block, **attrs):
    import torch

    pads = attrs.get("pads", [0] * 4)
    height, width = (int(n) for n in image)
    full = (height + pads[0] + pads[2], width + pads[1] + pads[3])
    steps = {"stride": attrs.get("strides", [1, 1]), "dilation": attrs.get("dilations", [1, 1])}
    out = torch.nn.functional.fold(torch.from_numpy(x), full, tuple(int(n) for n in block), **steps)
    return out[:, :, pads[0] : pads[0] + height, pads[1] : pads[1] + width].numpy()


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
            case((2, 16, 5, 4), (16, 16, 3, 3), (16,), strides=[2, 2], pads=[1, 0, 1, 1], output_padding=[1, 1]),
            case((1, 8, 4, 4), (8, 8, 3, 3), strides=[2, 2], output_shape=[9, 8]),
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
    Row(
        "DeformConv",
        [
            case((2, 3, 6, 5), (4, 3, 3, 3), (2, 18, 4, 3), (4,)),
            case(
                (1, 4, 6, 5),
                (4, 2, 2, 2),
                (1, 16, 7, 6),
                None,
                (1, 8, 7, 6),
                group=2,
                offset_group=2,
                pads=[1, 1, 1, 1],
            ),
            case((1, 2, 7, 7), (2, 2, 2, 3), (1, 12, 3, 2), strides=[2, 2], dilations=[2, 2]),
        ],
        dtypes=("float32", "float64", "bfloat16"),
        opset=(28, 19),
        oracle=from_torch(deform_conv),
        tol={"float32": (1e-3, 1e-4), "float64": (1e-9, 1e-9), "bfloat16": (0.05, 0.1)},
        grad=[0, 1, 2, 3, 4],
        grad_inputs=[
            case((2, 2, 4, 5), (3, 2, 2, 2), (2, 8, 3, 4), (3,), (2, 4, 3, 4)),
            case(
                (1, 4, 5, 4),
                (2, 2, 2, 2),
                (1, 16, 6, 5),
                None,
                (1, 8, 6, 5),
                group=2,
                offset_group=2,
                pads=[1, 1, 1, 1],
            ),
            case((1, 2, 7, 7), (2, 2, 2, 3), (1, 12, 3, 2), strides=[2, 2], dilations=[2, 2]),
            case((0, 2, 4, 5), (3, 2, 2, 2), (0, 8, 3, 4), (3,)),
            case(
                (1, 4, 6, 5),
                (4, 1, 3, 2),
                (1, 24, 3, 3),
                (4,),
                group=4,
                offset_group=2,
                strides=[2, 2],
                pads=[1, 0, 0, 1],
            ),
        ],
    ),
    # torch's sampling, which the row above asks, has no one-dimensional form and other names in three.
    Row(
        "DeformConv",
        [
            case((1, 2, 6), (2, 2, 3), (1, 3, 4)),
            case((1, 2, 3, 4, 3), (1, 2, 2, 2, 2), (1, 24, 2, 3, 2), None, (1, 8, 2, 3, 2)),
        ],
        dtypes=("float32", "float64"),
        oracle=plain_deform_conv,
        tol={"float32": (1e-3, 1e-4), "float64": (1e-9, 1e-9)},
        grad=[0, 1, 2, 4],
        name="DeformConv-ranks",
    ),
    Row(
        "CausalConvWithState",
        [
            case((2, 4, 8), (4, 1, 4)),
            case((2, 4, 1), (4, 1, 4), (4,), (2, 4, 3), activation="silu"),
            case((2, 4, 2), (4, 1, 5), None, None, activation="swish"),
            case((1, 3, 6), (3, 1, 1), (3,)),
        ],
        dtypes=("float32", "float16", "bfloat16"),
        outputs=2,
        grad=[0, 1, 2, 3],
        tol={"float32": (2e-5, 2e-6), "float16": (5e-3, 5e-3), "bfloat16": (5e-2, 5e-2)},
    ),
    Row(
        "ConvGrad",
        [
            case((2, 4, 7, 9), (2, 3, 7, 9), (4, 3, 3, 3), pads=[1, 1, 1, 1]),
            case((1, 6, 7), (1, 4, 11), (6, 2, 3), group=2, dilations=[2]),
            case((1, 4, 3, 4), (1, 2, 6, 7), (4, 2, 2, 3), strides=[2, 2], pads=[0, 1, 0, 1]),
            case((1, 3, 5, 5), (1, 8, 5, 5), (3, 8, 1, 1)),
        ],
        dtypes=FLOATS,
        domain="com.microsoft",
        oracle=from_torch(conv_grad),
        outputs=3,
        tol=LONG_SUMS,
    ),
    Row(
        "ConvTransposeGrad",
        [
            case((2, 4, 6, 7), (2, 3, 4, 5), (3, 4, 3, 3)),
            case((1, 4, 9, 8), (1, 4, 5, 3), (4, 2, 3, 2), group=2, strides=[2, 3], pads=[1, 0, 1, 0]),
            case((2, 16, 9, 9), (2, 16, 5, 5), (16, 16, 3, 3), strides=[2, 2], pads=[1, 1, 1, 1]),
        ],
        dtypes=("float32", "float64"),
        domain="com.microsoft",
        oracle=from_torch(conv_transpose_grad),
        outputs=3,
        tol=LONG_SUMS,
    ),
    Row("Col2Im", COLUMNS, dtypes=FLOATS, opset=(28, 18), oracle=folded, grad=[0]),
]
