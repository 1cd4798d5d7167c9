"""Steps of the first generation's ORTTrainer."""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from backpass.trainer import IODescription, LossScaler, ModelDescription, ORTTrainer, ort_trainer
from networks_of_generation1 import (
    FEATURES,
    RATE,
    PerceptronWithLoss,
    batch_of,
    description,
    nll,
    perceptron,
    rate_of,
    train,
    trainer_of,
)
from torch import Tensor, nn


def torch_losses(module: nn.Module, optimizer: torch.optim.Optimizer, steps: range, clip: bool = False) -> list[float]:
    losses = []
    for step in steps:
        data, target = batch_of(step)
        optimizer.zero_grad()
        loss = nll(module(data), target)
        loss.backward()
        if clip:
            norm = torch.linalg.vector_norm(torch.stack([p.grad.norm() for p in module.parameters()]))
            for p in module.parameters():
                p.grad *= min(1.0, 1.0 / norm.item())
        optimizer.step()
        losses.append(loss.item())
    return losses


# ---- arithmetic
@pytest.mark.parametrize(
    ("name", "attributes", "make"),
    [
        ("SGDOptimizer", None, lambda p: torch.optim.SGD(p, 0.05)),
        ("AdamOptimizer", None, lambda p: torch.optim.Adam(p, 0.05)),
        ("AdamOptimizer", {"alpha": 0.8, "beta": 0.9, "lambda": 0.1}, "AdamW"),
    ],
)
def test_losses_follow_torch(name: str, attributes: dict[str, float] | None, make: Any) -> None:
    ours, theirs = perceptron(), perceptron()
    if make == "AdamW":
        optimizer: torch.optim.Optimizer = torch.optim.AdamW(theirs.parameters(), 0.05, (0.8, 0.9), weight_decay=0.1)
    else:
        optimizer = make(theirs.parameters())
    trainer = trainer_of(ours, name, attributes=lambda _: attributes or {}, enable_grad_norm_clip=False)
    assert train(trainer, range(30)) == pytest.approx(torch_losses(theirs, optimizer, range(30)), rel=2e-5)


def test_adam_clips_by_the_norm_of_all_gradients() -> None:
    ours, theirs = perceptron(), perceptron()
    with torch.no_grad():
        for module in (ours, theirs):
            module.fc2.weight *= 20
    optimizer = torch.optim.Adam(theirs.parameters(), 0.05, eps=1e-2)  # without an epsilon Adam would undo any scale
    trainer = trainer_of(ours, "AdamOptimizer", attributes=lambda _: {"epsilon": 1e-2})
    expected = torch_losses(theirs, optimizer, range(10), clip=True)
    assert train(trainer, range(10)) == pytest.approx(expected, rel=2e-5)


def test_attributes_are_asked_once_per_trained_weight() -> None:
    asked = []

    def attributes(name: str) -> dict[str, float]:
        asked.append(name)
        return {"lambda": 0.5} if name == "fc2.bias" else {}

    trainer = trainer_of(perceptron(), "AdamOptimizer", attributes=attributes, frozen_weights=["fc1.bias"])
    train(trainer, range(3))
    assert sorted(asked) == ["fc1.weight", "fc2.bias", "fc2.weight"]


@pytest.mark.parametrize("fetches", [None, ["loss"]])
def test_accumulation_updates_every_nth_call(fetches: list[str] | None) -> None:
    """With fetches, too: there the original updated at every call."""
    module, joined = perceptron(), perceptron()
    trainer = trainer_of(module, gradient_accumulation_steps=3)
    start = module.fc1.weight.detach().clone()
    for step in range(3):
        assert torch.equal(module.fc1.weight, start)
        assert (trainer.current_step, trainer.global_step_) == (step, 0)
        trainer.train_step(*batch_of(step), rate_of(0.1), fetches=fetches)
    assert (trainer.current_step, trainer.global_step_) == (3, 1)
    losses = [nll(joined(data), target) for data, target in (batch_of(step) for step in range(3))]
    torch.stack(losses).mean().backward()
    with torch.no_grad():
        for parameter in joined.parameters():
            parameter -= 0.1 * parameter.grad
    for ours, theirs in zip(module.parameters(), joined.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_frozen_weights_and_buffers_keep_their_bits() -> None:
    module = perceptron()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    train(trainer_of(module, frozen_weights=["fc1.weight"]), range(2))
    same = {name for name, value in module.state_dict().items() if torch.equal(value, before[name])}
    assert same == {"fc1.weight", "bias_buffer"}


def test_unknown_frozen_weights_are_named() -> None:
    trainer = trainer_of(perceptron(), frozen_weights=["fc9.weight"])
    with pytest.raises(RuntimeError, match=r"fc9\.weight.* in frozen_weights not found in model weights"):
        train(trainer, range(1))


# ---- calls
def test_outputs_come_as_described() -> None:
    trainer = trainer_of(perceptron())
    data, target = batch_of(0)
    results = trainer.train_step(data, target, rate_of(0.0))
    assert isinstance(results, list)
    loss, scores = results
    assert (loss.shape, scores.shape) == ((), (5, 4))
    assert math.exp(loss) > 1
    assert loss.item() == pytest.approx(nll(scores, target).item(), rel=1e-6)
    assert not loss.requires_grad


def test_values_may_come_as_list_and_by_name() -> None:
    trainer = trainer_of(perceptron())
    data, target = batch_of(0)
    zero = rate_of(0.0)
    ways: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
        ((data, target, zero), {}),
        (([data, target, zero],), {}),
        ((data, target), {"Learning_Rate": zero}),
        ((), {"Learning_Rate": zero, "label": target, "input1": data}),
        ((target, zero), {"input1": data}),
    ]
    losses = {trainer.train_step(*args, **named)[0].item() for args, named in ways}
    assert len(losses) == 1
    assert trainer.current_step == len(ways)


def test_fetches_are_given_in_their_order() -> None:
    trainer = trainer_of(perceptron())
    data, target = batch_of(0)
    loss, scores = trainer.train_step(data, target, rate_of(0.0))
    again, last = trainer.train_step(data, target, rate_of(0.0), fetches=["probability", "loss"])
    assert torch.equal(again, scores)
    assert torch.equal(last, loss)
    assert torch.equal(trainer.train_step(data, target, rate_of(0.0), fetches=["probability"]), scores)
    assert torch.equal(trainer.eval_step(data, fetches=["probability"]), scores)


def test_wrong_arguments_are_named() -> None:
    trainer = trainer_of(perceptron())
    data, target = batch_of(0)
    with pytest.raises(AssertionError, match=r"\['Learning_Rate'\] missing.*get_lr_this_step"):
        trainer.train_step(data, target)
    with pytest.raises(AssertionError, match="got 4 by position, expected at most 3"):
        trainer.train_step(data, target, rate_of(0.1), target)
    with pytest.raises(AssertionError, match=r"'targets'.*expected names among"):
        trainer.train_step(data, targets=target)
    with pytest.raises(ValueError, match=r"fetches: got \['scores'\], expected some of \['loss', 'probability'\]"):
        trainer.train_step(data, target, rate_of(0.1), fetches=["scores"])
    assert trainer.current_step == 0


def test_call_is_a_step_of_its_mode() -> None:
    trainer = trainer_of(perceptron())
    data, target = batch_of(0)
    assert trainer.is_train
    trainer(data, target, rate_of(0.1))
    trainer.eval()
    loss, _ = trainer(data, target)
    assert trainer.current_step == 1
    trainer.train()
    assert trainer(data, target, rate_of(0.1))[0].item() == pytest.approx(loss.item())
    assert trainer.current_step == 2


@pytest.mark.parametrize("as_tensor", [False, True])
def test_rate_of_this_step_is_asked_with_the_number_of_updates(as_tensor: bool) -> None:
    asked = []

    def rate(step: int) -> Any:
        asked.append(step)
        return torch.tensor([0.02]) if as_tensor else 0.02

    trainer = trainer_of(perceptron(), get_lr_this_step=rate, global_step=7, gradient_accumulation_steps=2)
    losses = [trainer.train_step(*batch_of(step))[0].item() for step in range(4)]
    assert asked == [7, 7, 8, 8]
    other = trainer_of(perceptron(), gradient_accumulation_steps=2)
    assert losses == train(other, range(4), 0.02)


def test_loss_may_be_inside_the_module() -> None:
    torch.manual_seed(1)
    module = PerceptronWithLoss()
    trainer = trainer_of(module, loss_fn=None, get_lr_this_step=lambda _: torch.tensor([0.02]))
    loss, _ = trainer.train_step(*batch_of(0))
    assert loss.item() > 0
    assert {tensor.name for tensor in trainer.onnx_model_.graph.initializer} == {
        name for name, _ in module.named_parameters()
    }


class Defaults(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 4)

    def forward(self, y: Tensor | None = None, x: Tensor | None = None) -> Tensor:
        return self.linear(x) + (y if y is not None else torch.ones(2, 4))


def test_inputs_are_bound_by_name_where_they_are_some_of_forwards() -> None:
    def loss_fn(x: Tensor, label: Tensor) -> Tensor:
        return nll(x, label)

    torch.manual_seed(1)
    module = Defaults()
    described = ModelDescription(
        [IODescription("x", [2, 2], torch.float32), IODescription("label", [2], torch.int64, num_classes=4)],
        [IODescription("loss", [], torch.float32), IODescription("output", [2, 4], torch.float32)],
    )
    trainer = ORTTrainer(
        module, loss_fn, described, "SGDOptimizer", None, RATE, "cpu", get_lr_this_step=lambda _: rate_of(0.02)
    )
    data, label = torch.randn(2, 2), torch.tensor([0, 1])
    expected = nll(module.linear(data) + 1, label).item()
    loss, _ = trainer.train_step(x=data, label=label)
    assert loss.item() == pytest.approx(expected, rel=1e-6)
    assert trainer.state_dict().keys() == {"linear.bias", "linear.weight"}


@pytest.mark.parametrize("loss_fn", [nn.functional.cross_entropy, nn.CrossEntropyLoss(), lambda *both: nll(*both)])
def test_losses_of_torch_are_losses(loss_fn: Any) -> None:
    expected = train(trainer_of(perceptron()), range(2))
    assert train(trainer_of(perceptron(), loss_fn=loss_fn), range(2)) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("loss_fn", [lambda x: x.sum(), lambda x, y, z: x.sum()])
def test_loss_function_takes_prediction_and_label(loss_fn: Any) -> None:
    with pytest.raises(RuntimeError, match="loss function should take two arguments - predict and label"):
        trainer_of(perceptron(), loss_fn=loss_fn)


def test_types_and_shapes_are_those_of_the_values() -> None:
    """Seed 003 describes token ids as floats and flat labels with three extents."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Embedding(11, 3), nn.Linear(3, 11))
    described = ModelDescription(
        [IODescription("src", [4, 2], torch.float32), IODescription("label", [4, 2, 11], torch.int64)],
        [IODescription("loss", [], torch.float32), IODescription("output", [4, 2, 11], torch.float32)],
    )
    trainer = ORTTrainer(
        module, lambda output, target: nll(output.view(-1, 11), target), described, "SGDOptimizer", None,
        IODescription("Learning_Rate", [0.001]), "cpu", _opset_version=12,
    )  # fmt: skip
    loss, output = trainer.train_step(torch.arange(8).reshape(4, 2), torch.arange(8), rate_of(0.1))
    assert loss.item() > 0
    assert output.shape == (4, 2, 11)


def test_batches_may_have_any_size() -> None:
    ours, theirs = perceptron(), perceptron()
    trainer, optimizer = trainer_of(ours), torch.optim.SGD(theirs.parameters(), 0.1)
    for rows in (5, 2, 1, 7, 5):
        data, target = batch_of(rows, rows)
        loss, scores = trainer.train_step(data, target, rate_of(0.1))
        assert scores.shape == (rows, 4)
        optimizer.zero_grad()
        expected = nll(theirs(data), target)
        expected.backward()
        optimizer.step()
        assert loss.item() == pytest.approx(expected.item(), rel=1e-5)


# ---- evaluation
class Normalised(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(FEATURES)
        self.drop = nn.Dropout(0.5)
        self.out = nn.Linear(FEATURES, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.drop(self.norm(x)))


def test_evaluation_drops_nothing_and_uses_running_statistics() -> None:
    torch.manual_seed(0)
    module = Normalised()
    trainer = trainer_of(module)
    train(trainer, range(5))
    before = {name: value.clone() for name, value in module.state_dict().items()}
    data, target = batch_of(0)
    loss, scores = trainer.eval_step(data, target)
    module.eval()
    with torch.no_grad():
        torch.testing.assert_close(scores, module(data))
        torch.testing.assert_close(loss, nll(module(data), target))
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert before["norm.num_batches_tracked"] == 5


def test_first_call_may_evaluate() -> None:
    module = perceptron()
    trainer = trainer_of(module)
    data, target = batch_of(0)
    with torch.no_grad():
        torch.testing.assert_close(trainer.eval_step(data, fetches=["probability"]), module(data))
    assert trainer.current_step == 0
    assert trainer.state_dict().keys() == module.state_dict().keys()
    with pytest.raises(Exception, match="label"):
        trainer.eval_step(data)
    trainer.train_step(data, target, rate_of(0.1))


# ---- mixed precision, devices
def quiet() -> Any:
    ort_trainer._said.clear()
    return warnings.catch_warnings(record=True)


def test_mixed_precision_is_bfloat16_and_says_so() -> None:
    with quiet() as said:
        warnings.simplefilter("always")
        trainers = [trainer_of(perceptron(), use_mixed_precision=True) for _ in range(2)]
    assert [str(w.message) for w in said if "bfloat16" in str(w.message)] == [
        "ORTTrainer: use_mixed_precision: products are computed in bfloat16, not in float16; weights stay float32"
    ]
    scale = LossScaler(trainers[0].loss_scale_input_name, True)
    assert trainers[0].loss_scale_input_name == "default_loss_scale_input_name"
    data, target = batch_of(0)
    loss, _, finite = trainers[0].train_step(data, target, rate_of(0.1), torch.tensor([scale.loss_scale_]))
    assert finite.shape == (1,)
    assert finite.dtype == torch.bool
    assert finite.item() is True
    again, _, _ = trainers[1].train_step(
        data, target, rate_of(0.1), **{trainers[1].loss_scale_input_name: torch.tensor([scale.loss_scale_])}
    )
    assert again.item() == loss.item()
    exact = nll(perceptron()(data), target).item()
    assert loss.item() != exact
    assert loss.item() == pytest.approx(exact, rel=2e-2)
    assert all(parameter.dtype == torch.float32 for parameter in trainers[0].torch_model_.parameters())


def test_scale_does_not_change_what_is_learnt() -> None:
    modules = [perceptron() for _ in range(2)]
    for module, scale in zip(modules, (1.0, 65536.0), strict=True):
        trainer = trainer_of(module, use_mixed_precision=True)
        for step in range(4):
            trainer.train_step(*batch_of(step), rate_of(0.1), torch.tensor([scale]))
    for one, other in zip(modules[0].parameters(), modules[1].parameters(), strict=True):
        torch.testing.assert_close(one, other)


def test_finiteness_is_told_where_an_accumulation_ends() -> None:
    trainer = trainer_of(perceptron(), use_mixed_precision=True, gradient_accumulation_steps=2)
    counts = [len(trainer.train_step(*batch_of(s), rate_of(0.1), torch.tensor([8.0]))) for s in range(4)]
    assert counts == [2, 3, 2, 3]


def test_scaler_is_told_and_an_update_that_is_not_finite_is_left_out() -> None:
    scaler = LossScaler("scale", True, loss_scale=1024.0, up_scale_window=2)
    module = perceptron()
    trainer = trainer_of(module, "AdamOptimizer", use_mixed_precision=True, loss_scaler=scaler)
    assert len(trainer.train_step(*batch_of(0), rate_of(0.01))) == 2
    assert (scaler.stable_steps_, trainer.global_step_) == (1, 1)
    before = {name: value.clone() for name, value in trainer.state_dict().items()}
    data, target = batch_of(1)
    trainer.train_step(data * torch.inf, target, rate_of(0.01), fetches=["loss"])
    assert (scaler.stable_steps_, scaler.loss_scale_) == (0, 512.0)
    assert (trainer.global_step_, trainer.current_step) == (1, 2)
    assert all(torch.equal(value, before[name]) for name, value in trainer.state_dict().items())
    for step in range(2):
        trainer.train_step(*batch_of(step), rate_of(0.01))
    assert (scaler.loss_scale_, trainer.global_step_) == (1024.0, 3)


@pytest.mark.parametrize("device", ["cuda", torch.device("cuda", 0)])
def test_other_devices_warn_once_and_are_the_cpu(device: Any) -> None:
    module = perceptron()
    with quiet() as said:
        warnings.simplefilter("always")
        trainers = [ORTTrainer(module, nll, description(), "SGDOptimizer", None, RATE, device) for _ in range(2)]
    assert [str(w.message) for w in said] == [f"ORTTrainer: device {str(device)!r}: training runs on the CPU"]
    loss, _ = trainers[0].train_step(*batch_of(0), rate_of(0.1))
    assert loss.device.type == "cpu"


def test_cpu_says_nothing() -> None:
    with quiet() as said:
        warnings.simplefilter("always")
        train(trainer_of(perceptron(), get_lr_this_step=None), range(1))
    assert not said


# ---- models
def test_initializers_have_the_names_of_the_module() -> None:
    module = perceptron()
    trainer = trainer_of(module)
    assert trainer.onnx_model_ is None
    assert trainer.session is None
    train(trainer, range(1))
    names = {tensor.name for tensor in trainer.onnx_model_.graph.initializer}
    assert names - {"bias_buffer"} == {name for name, _ in module.named_parameters()}


def test_model_is_written_with_what_was_learnt(tmp_path: Path) -> None:
    trainer = trainer_of(perceptron())
    path = tmp_path / "model.onnx"
    with pytest.warns(UserWarning, match="nothing is written"):
        trainer.save_as_onnx(str(path))
    assert not path.exists()
    train(trainer, range(3))
    trainer.save_as_onnx(str(path))
    onnx.checker.check_model(str(path), full_check=True)
    data, target = batch_of(9)
    loss, scores = onnxruntime.InferenceSession(str(path)).run(
        ["loss", "probability"], {"input1": data.numpy(), "label": target.numpy()}
    )
    expected_loss, expected_scores = trainer.eval_step(data, target)
    np.testing.assert_allclose(scores, expected_scores, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(loss, expected_loss, rtol=1e-5)


@pytest.mark.parametrize("name", ["_extra_postprocess", "postprocess_model"])
def test_exported_models_can_be_changed(name: str) -> None:
    weights = []

    def double_scores(model: onnx.ModelProto) -> str:
        weights.append({tensor.name for tensor in model.graph.initializer})
        graph = model.graph
        for node in graph.node:
            node.input[:] = ["twice" if name == "probability" else name for name in node.input]
        source = next(node for node in graph.node if "probability" in node.output)
        place = list(graph.node).index(source) + 1
        graph.node.insert(place, onnx.helper.make_node("Add", ["probability", "probability"], ["twice"]))
        return "ignored"

    data, target = batch_of(0)
    trainer = trainer_of(perceptron(), **{name: double_scores})
    loss, scores = trainer.train_step(data, target, rate_of(0.1))
    assert loss.item() == pytest.approx(nll(2 * scores, target).item(), rel=1e-6)
    assert {"fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"} <= weights[0]
    assert trainer.state_dict().keys() == perceptron().state_dict().keys()


def test_session_gives_arrays() -> None:
    trainer = trainer_of(perceptron(), "LambOptimizer")
    train(trainer, range(1))
    state = trainer.session.get_state()
    assert all(isinstance(value, np.ndarray) for value in state.values())
    assert state.keys() == trainer.state_dict().keys() - {"bias_buffer"}  # what is trained


def test_trainer_explains_itself() -> None:
    trainer = trainer_of(perceptron(), "AdamOptimizer")
    train(trainer, range(1))
    assert "adam" in trainer.explain()
