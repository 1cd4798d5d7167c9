"""FusedAdam against torch's optimizers and against the formulas in float64, and as an optimizer of torch."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from backpass.optim import AdamWMode, FP16_Optimizer, FusedAdam

SHAPES = [(0,), (1,), (7,), (16384 + 3,), (), (3, 5), (4, 3, 5, 2), (129, 64)]
STEPS = 50


def parameters(seed: int = 0, dtype: torch.dtype = torch.float32, shapes: Any = SHAPES) -> list[torch.nn.Parameter]:
    made = torch.Generator().manual_seed(seed)
    return [torch.nn.Parameter(torch.randn(shape, generator=made).to(dtype)) for shape in shapes]


def gradients(step: int, weights: list[torch.nn.Parameter]) -> None:
    made = torch.Generator().manual_seed(100 + step)
    for p in weights:
        p.grad = torch.randn(p.shape, generator=made).to(p.dtype)


def train(optimizer: torch.optim.Optimizer, weights: list[torch.nn.Parameter], steps: int = STEPS) -> None:
    for step in range(steps):
        gradients(step, weights)
        optimizer.step()


def options(mode: AdamWMode) -> Iterator[dict[str, Any]]:
    for bias_correction in (True, False):
        for decay in (0.0, 0.1):
            yield {"lr": 0.01, "betas": (0.8, 0.99), "eps": 1e-5, "weight_decay": decay, "adam_w_mode": mode,
                   "bias_correction": bias_correction}  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("mode", "rival"), [(0, torch.optim.Adam), (2, torch.optim.AdamW)])
def test_follows_torch(mode: int, rival: type, dtype: torch.dtype) -> None:
    for decay in (0.0, 0.1):
        settings = {"lr": 0.01, "betas": (0.8, 0.99), "eps": 1e-5, "weight_decay": decay}
        ours, theirs = parameters(dtype=dtype), parameters(dtype=dtype)
        train(FusedAdam(ours, adam_w_mode=mode, **settings), ours)
        train(rival(theirs, **settings), theirs)
        tolerance = 3e-6 if dtype == torch.float32 else 1e-13
        for a, b in zip(ours, theirs, strict=True):
            torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


def reference(weights: list[np.ndarray], grads: list[list[np.ndarray]], settings: dict[str, Any]) -> list[np.ndarray]:
    mode, decay, eps, rate = (settings[name] for name in ("adam_w_mode", "weight_decay", "eps", "lr"))
    alpha, beta = settings["betas"]
    results = []
    for number, w in enumerate(weights):
        m, v = np.zeros_like(w), np.zeros_like(w)
        for step, all_of_step in enumerate(grads, start=1):
            g = all_of_step[number] + (decay * w if mode == 0 else 0)
            m, v = alpha * m + (1 - alpha) * g, beta * v + (1 - beta) * g * g
            ca, cb = (1 - alpha**step, 1 - beta**step) if settings["bias_correction"] else (1.0, 1.0)
            if mode == 1:
                w = w - rate * np.sqrt(cb) / ca * m / (np.sqrt(v) + eps)
                w = w - rate * decay * w
            else:
                w = w * (1 - rate * decay * (mode == 2)) - rate * m / ca / (np.sqrt(v / cb) + eps)
        results.append(w)
    return results


@pytest.mark.parametrize("mode", list(AdamWMode))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_follows_the_formulas(mode: AdamWMode, dtype: torch.dtype) -> None:
    for settings in options(mode):
        ours = parameters(dtype=dtype)
        grads = []
        for step in range(STEPS):
            gradients(step, ours)
            grads.append([p.grad.double().numpy() for p in ours])
        wanted = reference([p.detach().double().numpy() for p in ours], grads, settings)
        train(FusedAdam(ours, **settings), ours)
        tolerance = 5e-6 if dtype == torch.float32 else 1e-12
        for got, want in zip(ours, wanted, strict=True):
            np.testing.assert_allclose(got.detach().double().numpy(), want, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_sixteen_bits_are_computed_in_float32(dtype: torch.dtype) -> None:
    ours, wide = parameters(dtype=dtype), [torch.nn.Parameter(p.detach().float()) for p in parameters(dtype=dtype)]
    optimizer = FusedAdam(ours, lr=0.01, weight_decay=0.1, adam_w_mode=2)
    rival = FusedAdam(wide, lr=0.01, weight_decay=0.1, adam_w_mode=2)
    for step in range(5):
        gradients(step, ours)
        for p, q in zip(ours, wide, strict=True):
            q.grad = p.grad.float()
        optimizer.step()
        rival.step()
        for p, q in zip(ours, wide, strict=True):  # stored in 16 bits between steps, like everything else
            assert optimizer.state[p]["exp_avg"].dtype == dtype
            assert torch.equal(p, q.to(dtype))
            for name in ("exp_avg", "exp_avg_sq"):
                assert torch.equal(optimizer.state[p][name], rival.state[q][name].to(dtype))
                rival.state[q][name] = optimizer.state[p][name].float()
            q.data = p.detach().float()


def test_threads_do_not_matter() -> None:
    results = []
    before = torch.get_num_threads()
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            ours = parameters(shapes=[(100_003,), (5,), (300, 300)])
            train(FusedAdam(ours, weight_decay=0.1), ours, 3)
            results.append(ours)
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


@pytest.mark.parametrize("layout", ["channels_last", "transposed", "strided", "gradient", "expanded_state"])
def test_any_layout(layout: str) -> None:
    plain = torch.randn(4, 6, 5, 3, generator=torch.Generator().manual_seed(1))
    rival = [torch.nn.Parameter(plain.clone())]
    values = plain.clone()
    if layout == "channels_last":
        values = values.to(memory_format=torch.channels_last)
    elif layout == "transposed":
        values = values.transpose(0, 2).contiguous().transpose(0, 2)
    elif layout == "strided":
        values = torch.stack([values, values], -1)[..., 0]
    ours = [torch.nn.Parameter(values)]
    optimizers = FusedAdam(ours, weight_decay=0.1), FusedAdam(rival, weight_decay=0.1)
    for step in range(3):
        for weights, optimizer in zip((ours, rival), optimizers, strict=True):
            gradients(step, weights)
            if layout == "gradient" and weights is ours:
                ours[0].grad = ours[0].grad.permute(3, 2, 1, 0).contiguous().permute(3, 2, 1, 0)
            optimizer.step()
    assert torch.equal(ours[0], rival[0])
    assert ours[0].stride() == values.stride()


def test_groups_and_missing_gradients() -> None:
    first, second = parameters(1, shapes=[(5,), (6,)]), parameters(2, shapes=[(7,)])
    optimizer = FusedAdam([{"params": first, "lr": 0.1}], adam_w_mode=2)
    optimizer.add_param_group({"params": second, "weight_decay": 0.5, "betas": (0.5, 0.6)})
    kept = first[1].detach().clone()
    gradients(0, [first[0], *second])
    optimizer.step()
    assert torch.equal(first[1], kept)
    assert first[1] not in optimizer.state or not optimizer.state[first[1]]
    assert [group["step"] for group in optimizer.param_groups] == [1, 1]
    assert set(optimizer.state[second[0]]) == {"exp_avg", "exp_avg_sq"}
    rival = parameters(2, shapes=[(7,)])
    gradients(0, [torch.nn.Parameter(torch.zeros(5)), *rival])
    rival[0].grad = second[0].grad
    torch.optim.AdamW(rival, lr=1e-3, betas=(0.5, 0.6), eps=1e-6, weight_decay=0.5).step()
    torch.testing.assert_close(second[0], rival[0], rtol=1e-6, atol=1e-7)


def test_state_goes_to_a_file_and_back(tmp_path: Any) -> None:
    whole, resumed = parameters(), parameters()
    optimizer = FusedAdam(whole, weight_decay=0.1)
    train(optimizer, whole, 6)
    half = FusedAdam(resumed, weight_decay=0.1)
    train(half, resumed, 3)
    torch.save(half.state_dict(), tmp_path / "state")
    again = FusedAdam(resumed, lr=7)
    again.load_state_dict(torch.load(tmp_path / "state"))
    for step in range(3, 6):
        gradients(step, resumed)
        again.step()
    assert all(torch.equal(a, b) for a, b in zip(whole, resumed, strict=True))


def test_state_of_torch_is_taken_over() -> None:
    ours, theirs = parameters(), parameters()
    rival = torch.optim.AdamW(theirs, lr=0.01)
    train(rival, theirs, 3)
    for p, q in zip(ours, theirs, strict=True):
        p.data.copy_(q.data)
    optimizer = FusedAdam(ours, adam_w_mode=2)
    optimizer.load_state_dict(copy.deepcopy(rival.state_dict()))
    assert optimizer.param_groups[0]["step"] == 3
    train(optimizer, ours, 3)
    train(rival, theirs, 3)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)


def test_copies_and_pickles() -> None:
    weights = parameters()
    optimizer = FusedAdam(weights, adam_w_mode=0, set_grad_none=False)
    train(optimizer, weights, 1)
    twin = copy.deepcopy(optimizer)
    assert twin._adam_w_mode == AdamWMode.ADAM_L2_REGULARIZATION
    assert twin.param_groups[0]["step"] == 1


def test_closure_and_learning_rate_as_tensor() -> None:
    weight = torch.nn.Parameter(torch.tensor([3.0, -2.0]))
    optimizer = FusedAdam([weight], lr=torch.tensor(0.1))

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = (weight**2).sum()
        loss.backward()
        return loss

    with torch.no_grad():
        losses = [float(optimizer.step(closure)) for _ in range(30)]
    assert losses[0] == 13
    assert losses[-1] < losses[0] / 2


def test_schedulers() -> None:
    weights = parameters()
    optimizer = FusedAdam(weights, lr=1.0)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    train(optimizer, weights, 1)
    schedule.step()
    assert optimizer.param_groups[0]["lr"] == 0.5


def test_zero_grad() -> None:
    weights = parameters()
    gradients(0, weights)
    optimizer = FusedAdam(weights, set_grad_none=False)
    optimizer.zero_grad(set_to_none=False)
    assert all(p.grad is not None and not p.grad.any() for p in weights)
    optimizer.zero_grad()
    assert all(p.grad is None for p in weights)
    gradients(0, weights)
    FusedAdam(weights).zero_grad(set_to_none=False)
    assert all(p.grad is None for p in weights)


def test_grad_scaler_divides_and_skips() -> None:
    ours, theirs = parameters(), parameters()
    optimizer, rival = FusedAdam(ours), FusedAdam(theirs)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    scaler.scale(torch.ones(()))
    gradients(0, ours)
    gradients(0, theirs)
    for p in ours:
        p.grad.mul_(1024)
    scaler.step(optimizer)
    scaler.update()
    rival.step()
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
    gradients(1, ours)
    ours[3].grad[100] = torch.inf
    scaler.step(optimizer)
    scaler.update()
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
    assert optimizer.param_groups[0]["step"] == 1
    assert scaler.get_scale() == 512


def test_autograd_notices() -> None:
    weight = torch.nn.Parameter(torch.randn(3))
    optimizer = FusedAdam([weight])
    loss = (weight**2).sum()
    weight.grad = torch.ones(3)
    version = weight._version
    optimizer.step()
    assert weight._version > version
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_what_it_cannot_do() -> None:
    table = torch.nn.Embedding(5, 3, sparse=True)
    optimizer = FusedAdam(table.parameters())
    table(torch.tensor([1, 2])).sum().backward()
    with pytest.raises(RuntimeError, match="FusedAdam does not support sparse gradients, please consider SparseAdam"):
        optimizer.step()
    weight = torch.nn.Parameter(torch.zeros(2, dtype=torch.complex64))
    weight.grad = torch.zeros_like(weight)
    with pytest.raises(RuntimeError, match=r"got a parameter of torch\.complex64"):
        FusedAdam([weight]).step()
    for wrong in ({"lr": -1.0}, {"eps": -1.0}, {"weight_decay": -0.1}, {"betas": (1.0, 0.9)}, {"adam_w_mode": 7}):
        with pytest.raises(ValueError, match=r"got|is not a valid"):
            FusedAdam(parameters(), **wrong)


def test_fp16_optimizer_warns_and_returns_what_it_got() -> None:
    optimizer = torch.optim.SGD(parameters(), lr=0.1)
    with pytest.warns(UserWarning, match="optimizer name not found in the registry: torch.optim.sgd.SGD"):
        assert FP16_Optimizer(optimizer, static_loss_scale=1) is optimizer
    optimizer._amp_stash = object()  # as apex marks its own
    with pytest.warns(UserWarning, match=r"apex.amp.optimizer.unique_name_as_id: its replacements are CUDA kernels"):
        assert FP16_Optimizer(optimizer) is optimizer
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        FusedAdam(parameters())
