"""Which operators stay whole when torch decomposes a captured graph."""

from __future__ import annotations

from typing import Any

import torch

KEPT = frozenset(
    [
        "adaptive_avg_pool1d",
        "adaptive_avg_pool2d",
        "adaptive_avg_pool3d",
        "addmm",
        "avg_pool1d",
        "avg_pool2d",
        "avg_pool3d",
        "baddbmm",
        "batch_norm",
        "binary_cross_entropy",
        "binary_cross_entropy_with_logits",
        "celu",
        "chunk",
        "conv1d",
        "conv2d",
        "conv3d",
        "conv_transpose1d",
        "conv_transpose2d",
        "conv_transpose3d",
        "cosine_similarity",
        "cross_entropy_loss",
        "cumsum",
        "detach",
        "dropout",
        "einsum",
        "elu",
        "embedding",
        "gather",
        "gelu",
        "glu",
        "group_norm",
        "gru",
        "hardsigmoid",
        "hardswish",
        "hardtanh",
        "huber_loss",
        "instance_norm",
        "kl_div",
        "l1_loss",
        "layer_norm",
        "leaky_relu",
        "linear",
        "log_softmax",
        "logsumexp",
        "lstm",
        "matmul",
        "max_pool1d",
        "max_pool2d",
        "max_pool3d",
        "mish",
        "mse_loss",
        "nll_loss",
        "nll_loss_nd",
        "one_hot",
        "outer",
        "pad",
        "pixel_shuffle",
        "pixel_unshuffle",
        "prelu",
        "relu6",
        "rms_norm",
        "scaled_dot_product_attention",
        "selu",
        "silu",
        "smooth_l1_loss",
        "soft_margin_loss",
        "softmax",
        "softplus",
        "softsign",
        "split",
        "stack",
        "tril",
        "triu",
        "upsample_bilinear2d",
        "upsample_nearest1d",
        "upsample_nearest2d",
        "upsample_nearest3d",
        "upsample_trilinear3d",
    ]
)


def training_table(kept: frozenset[str] = KEPT) -> dict[Any, Any]:
    """torch's default decompositions without those of the operators that are lowered whole."""
    table: Any = torch.export.default_decompositions()
    for op in list(table.keys()):
        namespace, _, rest = str(op).partition(".")
        if namespace == "aten" and rest.partition(".")[0] in kept:
            table.pop(op)
    return dict(table.items())
