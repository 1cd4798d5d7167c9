"""Layers: activations, normalisation in both modes, losses, attention, convolution, pooling."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from exporter_check import check, check_table, ops_of
from torch import nn

torch.manual_seed(2)


def x(*shape: int) -> torch.Tensor:
    return torch.randn(shape)


def labels(classes: int, *shape: int) -> torch.Tensor:
    return torch.randint(0, classes, shape)


def randomised(module: nn.Module) -> nn.Module:
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_()
        for name, buffer in module.named_buffers():
            if buffer.is_floating_point():
                buffer.uniform_(0.5, 2.0) if "var" in name else buffer.normal_()
    return module


ACTIVATIONS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "relu": (F.relu, (x(3, 4),)),
    "gelu": (lambda a: (F.gelu(a), F.gelu(a, approximate="tanh")), (x(3, 4),)),
    "silu": (F.silu, (x(3, 4),)),
    "leaky_relu": (lambda a: F.leaky_relu(a, 0.3), (x(3, 4),)),
    "elu": (lambda a: (F.elu(a, 0.7), F.selu(a), F.celu(a, 0.6)), (x(3, 4),)),
    "factors of doubles": (
        lambda a: (F.leaky_relu(a, 0.3), F.elu(a, 0.7), F.selu(a)),
        (x(5, 7).double(),),
    ),
    "softplus": (lambda a: (F.softplus(a), F.softplus(a, 2.0, 1.0)), (x(3, 4),)),
    "logsigmoid": (F.logsigmoid, (x(3, 4),)),
    "hard at its bounds": (
        lambda a: (F.hardtanh(a), F.relu6(a), F.hardsigmoid(a * 3), F.hardswish(a * 3)),
        (torch.tensor([-2.0, -1.0, 0.0, 0.5, 1.0, 2.0]),),
    ),
    "hard": (lambda a: (F.hardtanh(a, -0.5, 0.7), F.relu6(a * 5), F.hardsigmoid(a), F.hardswish(a)), (x(3, 4),)),
    "mish": (F.mish, (x(3, 4),)),
    "softsign and shrinking": (
        lambda a: (F.softsign(a), F.tanhshrink(a), F.softshrink(a), F.hardshrink(a)),
        (x(3, 4),),
    ),
    "threshold": (lambda a: F.threshold(a, 0.1, 20.0), (x(3, 4),)),
    "prelu": (randomised(nn.PReLU(4)), (x(2, 4, 3),)),
    "prelu of a matrix": (randomised(nn.PReLU(4)), (x(2, 4),)),
    "glu": (lambda a: (F.glu(a), F.glu(a, 0)), (x(2, 4),)),
    "softmax": (lambda a: (F.softmax(a, 1), F.softmax(a, 0), F.log_softmax(a, -1), F.softmin(a, 1)), (x(3, 4),)),
    "softmax in double": (lambda a: F.softmax(a, 1, dtype=torch.float64), (x(1, 1),)),
    "softmax of a number": (lambda a: (a.softmax(0), a.log_softmax(0)), (x(),)),
    "normalize": (lambda a: (F.normalize(a, dim=1), F.cosine_similarity(a, a + 1)), (x(3, 4),)),
}


def test_activations() -> None:
    check_table(ACTIVATIONS)


def test_distances() -> None:
    points = torch.tensor([[1.0, 2.0], [1.0, 2.0], [3.0, -1.0]])
    check(F.pdist, (points,))
    assert not check(F.cosine_similarity, (points, points.flip(0) * 0)).fallbacks


NORMS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "layer": (randomised(nn.LayerNorm(5)), (x(3, 4, 5),)),
    "layer over two axes": (randomised(nn.LayerNorm((4, 5), eps=1e-3)), (x(3, 4, 5),)),
    "layer without bias": (randomised(nn.LayerNorm(5, bias=False)), (x(3, 5),)),
    "layer plain": (nn.LayerNorm(5, elementwise_affine=False), (x(3, 5),)),
    "rms": (randomised(nn.RMSNorm(5)), (x(3, 4, 5),)),
    "rms with eps": (randomised(nn.RMSNorm((4, 5), eps=1e-2)), (x(3, 4, 5),)),
    "rms plain": (nn.RMSNorm(5, elementwise_affine=False), (x(3, 5),)),
    "group": (randomised(nn.GroupNorm(2, 4)), (x(3, 4, 5, 2),)),
    "group plain": (nn.GroupNorm(4, 4, affine=False), (x(3, 4, 5),)),
    "group of a matrix": (randomised(nn.GroupNorm(2, 6)), (x(3, 6),)),
    "instance": (randomised(nn.InstanceNorm2d(3, affine=True)), (x(2, 3, 4, 5),)),
    "instance plain": (nn.InstanceNorm1d(3), (x(2, 3, 7),)),
    "instance with statistics": (
        randomised(nn.InstanceNorm2d(3, momentum=0.3, track_running_stats=True)),
        (x(2, 3, 4, 5),),
    ),
    "batch 1d": (randomised(nn.BatchNorm1d(4)), (x(6, 4),)),
    "batch 1d with time": (randomised(nn.BatchNorm1d(4, momentum=0.3)), (x(3, 4, 5),)),
    "batch 2d": (randomised(nn.BatchNorm2d(3, eps=1e-2)), (x(2, 3, 4, 5),)),
    "batch plain": (nn.BatchNorm2d(3, affine=False), (x(2, 3, 4, 5),)),
    "batch without statistics": (randomised(nn.BatchNorm2d(3, track_running_stats=False)), (x(2, 3, 4, 5),)),
    "batch, cumulative average": (nn.BatchNorm1d(4, momentum=None), (x(6, 4),)),
    "local response": (nn.LocalResponseNorm(2), (x(2, 4, 3, 3),)),
}


@pytest.mark.parametrize("training", [True, False])
def test_norms(training: bool) -> None:
    rows = {name: (row[0].train(training), row[1]) for name, row in NORMS.items()}
    ops = ops_of(check_table(rows))
    assert ops["LayerNormalization"] == 4
    assert ops["RMSNormalization"] == 3
    assert ops["GroupNormalization"] == 3
    assert ops["BatchNormalization"] == 6 + (not training)
    assert ops["InstanceNormalization"] == 2 + training


def test_batch_norm_statistics_come_back() -> None:
    module = randomised(nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3))).train()
    exported = check(module, (x(2, 2, 6, 6),), [(x(3, 2, 5, 8),)])
    assert {o.target for o in exported.outputs if o.kind == "buffer_mutation"} == {
        "1.running_mean",
        "1.running_var",
        "1.num_batches_tracked",
    }


def ignoring(target: torch.Tensor, index: int = -100) -> torch.Tensor:
    target = target.clone()
    target.view(-1)[1] = index
    return target


SIGNS = x(4, 5).sign()
WEIGHT = torch.rand(5) + 0.5


def _ce(**settings: Any) -> Any:
    return lambda a, t: [F.cross_entropy(a, t, reduction=r, **settings) for r in ("mean", "sum", "none")]


LOSSES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "cross entropy": (_ce(), (x(4, 5), labels(5, 4))),
    "ignored": (_ce(), (x(4, 5), ignoring(labels(5, 4)))),
    "ignore_index": (_ce(ignore_index=2), (x(4, 5), ignoring(labels(5, 4), 2))),
    "weights": (_ce(weight=WEIGHT), (x(4, 5), ignoring(labels(5, 4)))),
    "smoothing": (_ce(label_smoothing=0.1), (x(4, 5), ignoring(labels(5, 4)))),
    "smoothing and weights": (_ce(label_smoothing=0.1, weight=WEIGHT), (x(4, 5), ignoring(labels(5, 4)))),
    "images": (_ce(), (x(2, 5, 3, 2), ignoring(labels(5, 2, 3, 2)))),
    "images, smoothing, weights": (_ce(label_smoothing=0.2, weight=WEIGHT), (x(2, 5, 3), ignoring(labels(5, 2, 3)))),
    "one element": (_ce(), (x(5), labels(5))),
    "probabilities": (_ce(), (x(4, 5), torch.softmax(x(4, 5), 1))),
    "probabilities, smoothing, weights": (_ce(label_smoothing=0.1, weight=WEIGHT), (x(4, 5, 2), torch.rand(4, 5, 2))),
    "nll": (
        lambda a, t: [F.nll_loss(F.log_softmax(a, 1), t, reduction=r) for r in ("mean", "sum", "none")],
        (x(4, 5), ignoring(labels(5, 4))),
    ),
    "nll with weights": (lambda a, t: F.nll_loss(a, t, weight=WEIGHT, ignore_index=1), (x(2, 5, 3), labels(5, 2, 3))),
    "mse": (lambda a, t: [F.mse_loss(a, t, reduction=r) for r in ("mean", "sum", "none")], (x(4, 5), x(4, 5))),
    "l1": (lambda a, t: [F.l1_loss(a, t, reduction=r) for r in ("mean", "sum", "none")], (x(4, 5), x(4, 5))),
    "smooth l1": (lambda a, t: [F.smooth_l1_loss(a, t, beta=v) for v in (1.0, 0.5, 0.0)], (x(4, 5), x(4, 5))),
    "huber": (lambda a, t: [F.huber_loss(a, t, delta=v) for v in (1.0, 0.5)], (x(4, 5), x(4, 5))),
    "binary": (
        lambda a, t: [F.binary_cross_entropy(a, t, reduction=r) for r in ("mean", "none")],
        (torch.rand(4, 5), torch.rand(4, 5)),
    ),
    "binary with weights": (lambda a, t: F.binary_cross_entropy(a, t, WEIGHT), (torch.rand(4, 5), torch.rand(4, 5))),
    "logits": (
        lambda a, t: [F.binary_cross_entropy_with_logits(a, t, reduction=r) for r in ("mean", "none")],
        (x(4, 5) * 9, torch.rand(4, 5)),
    ),
    "logits with weights": (
        lambda a, t: F.binary_cross_entropy_with_logits(a, t, WEIGHT, pos_weight=WEIGHT * 2),
        (x(4, 5), torch.rand(4, 5)),
    ),
    "kl": (
        lambda a, t: [F.kl_div(F.log_softmax(a, 1), t, reduction=r) for r in ("batchmean", "sum", "none")],
        (x(4, 5), torch.softmax(x(4, 5), 1)),
    ),
    "kl of logarithms": (lambda a, t: F.kl_div(a, t, log_target=True), (x(4, 5), x(4, 5))),
    "others": (
        lambda a, b: (F.soft_margin_loss(a, SIGNS), F.hinge_embedding_loss(a, SIGNS), F.poisson_nll_loss(a, b)),
        (x(4, 5), torch.rand(4, 5)),
    ),
    "triplet": (F.triplet_margin_loss, (x(4, 5), x(4, 5), x(4, 5))),
}


def test_losses() -> None:
    ops = ops_of(check_table(LOSSES))
    assert ops["SoftmaxCrossEntropyLoss"] == 18


def test_binary_cross_entropy_of_saturated_probabilities() -> None:
    logits, labels = torch.tensor([50.0, -200.0, 50.0, 0.5]), torch.tensor([1.0, 0.0, 0.0, 1.0])
    check(lambda a: F.binary_cross_entropy(a.sigmoid(), labels), (logits,))
    check(lambda a: F.binary_cross_entropy(a, labels), (torch.tensor([0.0, 0.0, 1.0, 1.0]),))


def test_losses_of_any_batch() -> None:
    def function(a: torch.Tensor, t: torch.Tensor) -> Any:
        flat = F.cross_entropy(a.view(-1, a.shape[-1]), t.view(-1), label_smoothing=0.1)
        return F.cross_entropy(a[:, :-1].transpose(1, 2), t[:, 1:]), flat, F.mse_loss(a, a.detach() * 2)

    check(function, (x(2, 3, 5), labels(5, 2, 3)), [(x(4, 7, 5), labels(5, 4, 7))])


def sdpa(**settings: Any) -> Any:
    return lambda q, k, v, *m: F.scaled_dot_product_attention(q, k, v, *m, **settings)


HEADS = (x(2, 3, 5, 4), x(2, 3, 7, 4), x(2, 3, 7, 6))
SQUARE = (x(2, 3, 5, 4), x(2, 3, 5, 4), x(2, 3, 5, 4))
KEEP = torch.rand(2, 1, 5, 7) > 0.3
NONE_SEEN = KEEP.clone()
NONE_SEEN[0, 0, 2] = False

ATTENTION: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "plain": (sdpa(), HEADS),
    "scale": (sdpa(scale=0.3), HEADS),
    "causal": (sdpa(is_causal=True), SQUARE),
    "causal, longer keys": (sdpa(is_causal=True), HEADS),
    "bool mask": (sdpa(), (*HEADS, KEEP)),
    "a query that sees nothing": (sdpa(), (*HEADS, NONE_SEEN)),
    "mask for all keys": (sdpa(), (*HEADS, torch.ones(2, 1, 5, 1, dtype=torch.bool))),
    "float mask": (sdpa(), (*HEADS, x(5, 7))),
    "float mask of heads": (sdpa(), (*HEADS, x(2, 3, 5, 7))),
    "shared keys, no batch": (sdpa(enable_gqa=True), (x(4, 5, 4), x(2, 7, 4), x(2, 7, 4))),
    "shared keys": (sdpa(enable_gqa=True), (x(2, 4, 5, 4), x(2, 2, 7, 4), x(2, 2, 7, 4))),
    "three axes": (sdpa(), (x(3, 5, 4), x(3, 7, 4), x(3, 7, 4), torch.rand(3, 5, 7) > 0.3)),
    "two axes": (sdpa(), (x(5, 4), x(7, 4), x(7, 4))),
    "batches that broadcast": (sdpa(), (x(2, 3, 5, 4), x(1, 3, 7, 4), x(1, 3, 7, 4))),
}


def test_attention() -> None:
    ops = ops_of(check_table(ATTENTION))
    assert ops["Attention"] == len(ATTENTION) - 2
    by_parts = check_table(ATTENTION, target_opset=22)
    assert "Attention" not in ops_of(by_parts)


def test_attention_of_any_length() -> None:
    def function(q: torch.Tensor, k: torch.Tensor, m: torch.Tensor) -> Any:
        return F.scaled_dot_product_attention(q, k, k, m), F.scaled_dot_product_attention(q, q, q, is_causal=True)

    one = (x(2, 3, 5, 4), x(2, 3, 7, 4), torch.rand(2, 1, 5, 7) > 0.2)
    two = (x(4, 3, 2, 4), x(4, 3, 9, 4), torch.rand(4, 1, 2, 9) > 0.2)
    check(function, one, [two])


CONVOLUTIONS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "1d": (nn.Conv1d(3, 4, 3, padding=1), (x(2, 3, 9),)),
    "1d causal": (nn.Conv1d(4, 4, 3, padding=2, groups=4, bias=False), (x(2, 4, 9),)),
    "2d": (nn.Conv2d(3, 4, 3, stride=2, padding=(1, 0), dilation=(1, 2)), (x(2, 3, 9, 8),)),
    "2d groups": (nn.Conv2d(4, 6, 3, groups=2), (x(1, 4, 5, 5),)),
    "2d same": (nn.Conv2d(3, 4, (2, 3), padding="same"), (x(2, 3, 5, 6),)),
    "2d without batch": (nn.Conv2d(3, 4, 3), (x(3, 5, 6),)),
    "2d circular": (nn.Conv2d(3, 4, 3, padding=1, padding_mode="circular"), (x(1, 3, 5, 6),)),
    "3d": (nn.Conv3d(2, 3, 2), (x(1, 2, 3, 4, 5),)),
    "transposed 1d": (nn.ConvTranspose1d(3, 4, 3, stride=2), (x(2, 3, 5),)),
    "transposed 2d": (nn.ConvTranspose2d(4, 6, 3, 2, 1, output_padding=1, groups=2), (x(2, 4, 3, 4),)),
}

POOLING: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "max 1d": (nn.MaxPool1d(3, 2), (x(2, 3, 9),)),
    "max 2d": (nn.MaxPool2d(3, 2, 1), (x(2, 3, 9, 8),)),
    "max 2d ceil": (nn.MaxPool2d(3, 2, 1, ceil_mode=True), (x(2, 3, 8, 7),)),
    "max 2d dilated": (nn.MaxPool2d(2, 1, dilation=2), (x(3, 6, 7),)),
    "max 2d with indices": (nn.MaxPool2d(2, return_indices=True), (x(2, 3, 6, 4),)),
    "max 3d": (nn.MaxPool3d(2), (x(1, 2, 4, 4, 5),)),
    "average 1d": (nn.AvgPool1d(3, 2, 1), (x(2, 3, 9),)),
    "average 2d": (nn.AvgPool2d(3, 2, 1), (x(2, 3, 9, 8),)),
    "average 2d of what is there": (nn.AvgPool2d(3, 2, 1, count_include_pad=False), (x(2, 3, 9, 8),)),
    "average 2d ceil": (nn.AvgPool2d(3, 2, 1, ceil_mode=True), (x(2, 3, 8, 7),)),
    "average 2d divisor": (nn.AvgPool2d(2, divisor_override=3), (x(2, 3, 8, 7),)),
    "adaptive to 1": (nn.AdaptiveAvgPool2d(1), (x(2, 3, 5, 7),)),
    "adaptive, even": (nn.AdaptiveAvgPool2d((2, 3)), (x(2, 3, 4, 9),)),
    "adaptive, uneven": (nn.AdaptiveAvgPool2d((3, 2)), (x(2, 3, 5, 7),)),
    "adaptive 1d": (nn.AdaptiveAvgPool1d(3), (x(2, 3, 7),)),
    "nearest": (nn.Upsample(scale_factor=2), (x(2, 3, 4, 5),)),
    "nearest, odd": (nn.Upsample(size=(7, 3)), (x(2, 3, 4, 5),)),
    "bilinear": (nn.Upsample(scale_factor=2, mode="bilinear"), (x(2, 3, 4, 5),)),
    "bilinear, corners": (nn.Upsample(size=(7, 9), mode="bilinear", align_corners=True), (x(2, 3, 4, 5),)),
    "linear 1d": (nn.Upsample(scale_factor=3, mode="linear"), (x(2, 3, 4),)),
    "bicubic": (nn.Upsample(scale_factor=2, mode="bicubic"), (x(1, 2, 4, 5),)),
    "grid": (
        lambda a, g: F.grid_sample(a, g, align_corners=False),
        (x(1, 2, 4, 5), torch.rand(1, 3, 3, 2) * 1.6 - 0.8),
    ),
}


def test_convolutions() -> None:
    ops = ops_of(check_table(CONVOLUTIONS))
    assert ops["Conv"] == 8
    assert ops["ConvTranspose"] == 2


def test_pooling() -> None:
    check_table(POOLING)


def test_nearest_takes_the_elements_torch_takes() -> None:
    sizes = [(14, 18), (20, 44), (26, 22), (28, 18), (30, 46), (9, 27), (27, 9), (2, 82)]
    rows = {f"{old} to {new}": (lambda a, n=new: F.interpolate(a, n), (x(1, 2, old),)) for old, new in sizes}
    rows["by factors"] = (
        lambda a: [F.interpolate(a, scale_factor=f) for f in (0.6, 1.7, 2, (0.6, 3))],
        (x(1, 2, 9, 10),),
    )
    check_table(rows)
    check(lambda a: F.interpolate(a, scale_factor=0.6), (x(1, 2, 9),), [(x(2, 2, 14),)])


def test_cubic_samples_beyond_the_border() -> None:
    def function(a: torch.Tensor, grid: torch.Tensor) -> Any:
        padding = ("zeros", "border", "reflection")
        return [F.grid_sample(a, grid, "bicubic", p, align_corners=c) for p in padding for c in (False, True)]

    grid = torch.rand(2, 4, 5, 2, dtype=torch.float64) * 3 - 1.5  # in double: large terms of the gradient cancel
    check(function, (x(2, 3, 9, 10).double(), grid))


def test_images_of_any_size() -> None:
    module = nn.Sequential(nn.Conv2d(2, 4, 3, 2, 1), nn.ReLU(), nn.MaxPool2d(2), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    check(module, (x(2, 2, 16, 16),), [(x(3, 2, 20, 12),), (x(1, 2, 9, 31),)])


MATRICES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "linear": (nn.Linear(4, 3), (x(2, 4),)),
    "linear of sequences": (nn.Linear(4, 3, bias=False), (x(2, 5, 4),)),
    "linear of a vector": (nn.Linear(4, 3), (x(4),)),
    "matmul": (lambda a, b, v: (a @ b, a @ v, v @ b[0], v @ v, a[0] @ b[0]), (x(2, 3, 4), x(2, 4, 5)[:, :, :4], x(4))),
    "matmul of ints": (lambda a: (a @ a, a.int() @ a.int()), (torch.randint(-3, 4, (3, 3)),)),
    "bmm": (torch.bmm, (x(2, 3, 4), x(2, 4, 5))),
    "addmm": (
        lambda c, a, b: (torch.addmm(c, a, b), torch.addmm(c, a, b, beta=0.5, alpha=2)),
        (x(5), x(3, 4), x(4, 5)),
    ),
    "addmm of doubles": (
        lambda c, a, b: torch.addmm(c, a, b, beta=0.3, alpha=0.7),
        (x(5).double(), x(3, 4).double(), x(4, 5).double()),
    ),
    "addmm, beta 0": (lambda c, a, b: torch.addmm(c, a, b, beta=0), (x(3, 5), x(3, 4), x(4, 5))),
    "baddbmm": (lambda c, a, b: torch.baddbmm(c, a, b, beta=0.5, alpha=2), (x(3, 5), x(2, 3, 4), x(2, 4, 5))),
    "einsum": (
        lambda a, b: (torch.einsum("bij,bjk->bik", a, b), torch.einsum("bij,bjk->bk", a, b)),
        (x(2, 3, 4), x(2, 4, 5)),
    ),
    "outer": (torch.outer, (x(3), x(4))),
    "triangular systems": (
        lambda a, b: (
            torch.linalg.solve_triangular(a, b, upper=False),
            torch.linalg.solve_triangular(a, b[0], upper=True, unitriangular=True),
            torch.linalg.solve_triangular(a[0], b.mT, upper=True, left=False),
            torch.linalg.solve_triangular(a.double(), b.double(), upper=False),
        ),
        (x(2, 3, 3) + 4 * torch.eye(3), x(2, 3, 4)),
    ),
}


def test_matrices() -> None:
    ops = ops_of(check_table(MATRICES))
    assert ops["Einsum"] >= 2


@pytest.mark.parametrize("p", [0.3, 1.0, 0.0])
def test_dropout_is_one_node_in_training(p: float) -> None:
    from backpass.torch import export_module
    from exporter_check import run

    module = nn.Dropout(p).train()
    value = torch.ones(200, 300)
    exported = export_module(module, (value,))
    y, _ = run(exported, module, (value,))
    share = (y == 0).float().mean().item()
    assert abs(share - p) < 0.01
    kept = y[y != 0]
    assert torch.allclose(kept, torch.full_like(kept, 1 / (1 - p) if p < 1 else 0))
    assert ops_of(exported)["Dropout"] == (1 if 0 < p < 1 else 0)
    assert "Dropout" not in ops_of(export_module(module.eval(), (value,)))


def test_attention_dropout_acts_on_probabilities() -> None:
    from backpass.torch import export_module
    from exporter_check import run

    def function(q: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, q, v, dropout_p=0.25)

    from exporter_check import Function

    module = Function(function)
    q, v = torch.zeros(1, 1, 64, 8), torch.eye(64)[None, None]
    exported = export_module(module, (q, v))
    shares, _ = run(exported, module, (q, v))
    assert abs((shares == 0).float().mean().item() - 0.25) < 0.03
    assert torch.allclose(shares[shares != 0], torch.tensor(1 / 64 / 0.75))
