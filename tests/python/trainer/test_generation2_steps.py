"""ORTTrainer of the second generation: arguments, binding, steps, options that change them."""

from __future__ import annotations

import copy
import subprocess
import sys
import threading
import warnings

import numpy as np
import onnx
import pytest
import torch
from backpass import optim
from backpass.training import ORTTrainer, ORTTrainerOptions, _settings, amp
from torch import nn
from trainer.generation2_models import (
    BPTT,
    LINEAR,
    NTOKENS,
    Linear,
    cross_entropy,
    flat_loss,
    linear,
    linear_data,
    transformer,
    transformer_data,
    transformer_description,
)

CPU = {"device": {"id": "cpu"}}


def made(config=None, module=None, **options):
    given = ORTTrainerOptions({**CPU, **options})
    return ORTTrainer(module or linear(), LINEAR, config or optim.SGDConfig(lr=0.1), cross_entropy, given)


# ---- arguments
@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"model": None}, AssertionError),
        ({"model_desc": [("x", [])]}, AssertionError),
        ({"optim_config": "AdamOptimizer"}, AssertionError),
        ({"loss_fn": lambda x: x}, AssertionError),
        ({"loss_fn": 3}, AssertionError),
        ({"options": {}}, AssertionError),
        ({"model": "model.onnx"}, ValueError),
        ({"model": onnx.ModelProto()}, AssertionError),
    ],
)
def test_arguments(change, error):
    arguments = {"model": linear(), "model_desc": LINEAR, "optim_config": optim.SGDConfig(), "loss_fn": cross_entropy}
    with pytest.raises(error):
        ORTTrainer(**{**arguments, **change})


def test_one_loss_is_needed():
    description = {"inputs": LINEAR["inputs"], "outputs": [("loss", []), ("output", [2, 4])]}
    with pytest.raises(AssertionError, match=r"Only one loss output is supported \(0 were specified\)"):
        ORTTrainer(linear(), description, optim.SGDConfig(), cross_entropy)


def test_other_devices_are_told_once(monkeypatch):
    monkeypatch.setattr(_settings, "_said", set())
    with pytest.warns(UserWarning, match="device 'cuda': training runs on the CPU"):
        trainer = ORTTrainer(linear(), LINEAR, optim.SGDConfig(), cross_entropy)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ORTTrainer(linear(), LINEAR, optim.SGDConfig(), cross_entropy)
        ORTTrainer(linear(), LINEAR, optim.SGDConfig(), cross_entropy, ORTTrainerOptions(CPU))
    loss, output = trainer.train_step(*linear_data())
    assert loss.device.type == output.device.type == "cpu"


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"mixed_precision": {"loss_scaler": amp.DynamicLossScaler()}}, "mixed_precision.loss_scaler"),
        ({"distributed": {"horizontal_parallel_size": 2, "world_size": 2}}, "horizontal and pipeline"),
        ({"distributed": {"pipeline_parallel": {"pipeline_parallel_size": 2}}}, "horizontal and pipeline"),
        ({"distributed": {"enable_adasum": True, "deepspeed_zero_optimization": {"stage": 1}}}, "enable_adasum"),
    ],
)
def test_options_that_there_are_not(options, text):
    with pytest.raises(ValueError, match=text):
        made(**options)


# ---- binding
def test_inputs_by_position_by_name_and_as_a_list():
    data, label = linear_data()
    expected = made().train_step(data, label)
    for args, kwargs in (
        (([data, label],), {}),
        ((data,), {"label": label}),
        ((), {"label": label, "x": data}),
        ((), {"label": label, "x": data, "not described": data}),
    ):
        found = made().train_step(*args, **kwargs)
        assert isinstance(found, list)
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize("count", [0, 1, 3])
def test_another_number_of_inputs(count):
    data, label = linear_data()
    for step in (made().train_step, made().eval_step):
        with pytest.raises(AssertionError):
            step(*[data, label, label][:count])


def test_extents_of_one_name_must_agree():
    description = {"inputs": [("x", ["n", 2]), ("label", ["n"])], "outputs": [("loss", [], True), ("output", ["n", 4])]}
    trainer = ORTTrainer(linear(), description, optim.SGDConfig(), cross_entropy, ORTTrainerOptions(CPU))
    with pytest.raises(AssertionError, match="Mismatch in dynamic shape n"):
        trainer.train_step(torch.ones(3, 2), torch.zeros(2, dtype=torch.int64))
    _, output = trainer.train_step(torch.ones(3, 2), torch.zeros(3, dtype=torch.int64))
    assert output.shape == (3, 4)


def test_fetches_stay_until_they_are_reset():
    data, label = linear_data()
    whole, some = made(), made()
    for fetches in (["loss"], ["output", "loss"], ["output"]):
        expected = dict(zip(["loss", "output"], whole.train_step(data, label), strict=True))
        some._train_step_info.fetches = fetches
        found = some.train_step(data, label)
        found = found if isinstance(found, list) else [found]
        assert all(torch.equal(value, expected[name]) for name, value in zip(fetches, found, strict=True))
    assert torch.equal(some.eval_step(data), whole.eval_step(data, label)[1]), "the label is not needed"
    some._train_step_info.fetches = ["output", "loss"]
    loss, _ = some.eval_step(data, label)
    assert loss.shape == (), "evaluation keeps the order of the description"
    some._train_step_info.fetches = []
    assert len(some.eval_step(data, label)) == 2
    some._train_step_info.fetches = ["nothing"]
    with pytest.raises(RuntimeError, match="The specified fetches list contains invalid output names"):
        some.train_step(data, label)
    assert some._train_step_info.step == 3


# ---- steps
def reference(module, optimizer, steps, clip=None, schedule=None, every=1):
    """Losses of the same training in torch."""
    losses = []
    for step in range(steps):
        data, label = linear_data(step)
        loss = cross_entropy(module(x=data), label)
        (loss / every).backward()
        losses.append(loss.item())
        if (step + 1) % every:
            continue
        if clip:
            norm = torch.sqrt(sum(p.grad.double().pow(2).sum() for p in module.parameters()))
            for p in module.parameters():
                p.grad.mul_(min(1.0, clip / norm.item()))
        if schedule:
            optimizer.param_groups[0]["lr"] = schedule(step // every)
        optimizer.step()
        optimizer.zero_grad()
    return losses


@pytest.mark.parametrize("every", [1, 3])
def test_sgd_follows_torch(every):
    twin, trainer = linear(), made(optim.SGDConfig(lr=0.3), batch={"gradient_accumulation_steps": every})
    expected = reference(twin, torch.optim.SGD(twin.parameters(), 0.3), 12, every=every)
    found = [trainer.train_step(*linear_data(step))[0].item() for step in range(12)]
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert (trainer._train_step_info.step, trainer._train_step_info.optimization_step) == (12, 12 // every)
    for name, value in twin.state_dict().items():
        torch.testing.assert_close(trainer._torch_model.state_dict()[name], value, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("clips", [True, False])
@pytest.mark.parametrize("norm", [1.0, 0.05])
def test_adam_clips_and_decays_as_torch(clips, norm):
    twin = linear()
    config = optim.AdamConfig(lr=0.02, lambda_coef=0.1, max_norm_clip=norm)
    trainer = made(config, utils={"grad_norm_clip": clips})
    optimizer = torch.optim.AdamW(twin.parameters(), 0.02, weight_decay=0.1)
    expected = reference(twin, optimizer, 20, clip=norm if clips else None)
    found = [trainer.train_step(*linear_data(step))[0].item() for step in range(20)]
    np.testing.assert_allclose(found, expected, rtol=2e-5)


def test_groups_of_weights_have_values_of_their_own():
    twin = linear()
    config = optim.AdamConfig([{"params": ["linear.bias"], "lambda_coef": 0.0, "alpha": 0.5}], 0.02, lambda_coef=0.1)
    trainer = made(config, utils={"grad_norm_clip": False})
    groups = [
        {"params": [twin.linear.weight]},
        {"params": [twin.linear.bias], "weight_decay": 0.0, "betas": (0.5, 0.999)},
    ]
    expected = reference(twin, torch.optim.AdamW(groups, 0.02, weight_decay=0.1), 20)
    found = [trainer.train_step(*linear_data(step))[0].item() for step in range(20)]
    np.testing.assert_allclose(found, expected, rtol=2e-5)


@pytest.mark.parametrize("every", [1, 2])
def test_the_schedule_is_asked_before_each_update(every):
    schedule = optim.LinearWarmupLRScheduler(total_steps=10, warmup=0.5)
    twin = linear()
    trainer = made(optim.SGDConfig(lr=1.0), lr_scheduler=schedule, batch={"gradient_accumulation_steps": every})
    rates = [0, 0.2, 0.4, 0.6, 0.8, 1.0, 0.8, 0.6, 0.4, 0.2]
    expected = reference(
        twin, torch.optim.SGD(twin.parameters(), 1.0), 10 * every, schedule=rates.__getitem__, every=every
    )
    found = []
    for step in range(10 * every):
        found.append(trainer.train_step(*linear_data(step))[0].item())
        assert trainer.options.lr_scheduler.get_last_lr() == pytest.approx([rates[step // every]])
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_the_module_is_trained_and_left_as_it_is():
    module = linear()
    before = copy.deepcopy(module.state_dict())
    module.eval()
    trainer = made(module=module)
    trainer.train_step(*linear_data())
    assert not module.training
    assert not torch.equal(module.linear.weight, before["linear.weight"])
    found = trainer.state_dict(pytorch_format=True)
    assert set(found) == set(before)
    assert all(torch.equal(found[name], value) for name, value in module.state_dict().items())


def test_frozen_weights_stay_and_options_too():
    options = ORTTrainerOptions({**CPU, "utils": {"frozen_weights": ["linear.weight"]}})
    module = linear()
    before = module.linear.weight.detach().clone()
    trainer = ORTTrainer(module, LINEAR, optim.AdamConfig(), cross_entropy, options)
    trainer.train_step(*linear_data())
    assert torch.equal(module.linear.weight, before)
    assert options.utils.frozen_weights == ["linear.weight"], "the caller's options are not changed"
    assert set(trainer.options.utils.frozen_weights) == {"linear.weight", "shift"}
    assert "linear.weight" not in trainer._training_session.get_state()
    assert set(trainer.state_dict()["model"]["full_precision"]) == {"linear.weight", "linear.bias", "shift"}
    wrong = made(utils={"frozen_weights": ["no such weight"]})
    with pytest.raises(RuntimeError, match="not found in model weights"):
        wrong.train_step(*linear_data())


def test_a_module_without_loss_function_whose_loss_is_not_first():
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(2, 4)

        def forward(self, x, label):
            output = self.linear(x)
            return output, cross_entropy(output, label)

    description = {"inputs": LINEAR["inputs"], "outputs": [("output", [2, 4]), ("loss", [], True)]}
    torch.manual_seed(1)
    trainer = ORTTrainer(Own(), description, optim.SGDConfig(lr=0.1), options=ORTTrainerOptions(CPU))
    losses = [trainer.train_step(*linear_data())[1].item() for _ in range(5)]
    assert losses == sorted(losses, reverse=True)
    assert losses[0] > losses[-1]


def test_an_input_that_is_not_used():
    class Mean(nn.Module):
        def forward(self, x, y):
            return torch.mean(x)

    description = {"inputs": [("x", [1]), ("y", [1])], "outputs": [("loss", [], True)]}
    trainer = ORTTrainer(Mean(), description, optim.LambConfig(), options=ORTTrainerOptions(CPU))
    assert trainer.train_step(torch.ones(1), torch.ones(1)) == 1


def test_a_module_that_cannot_be_copied():
    class Locked(Linear):
        def __init__(self):
            super().__init__()
            self._lock = threading.Lock()

        def forward(self, y=None, x=None):
            with self._lock:
                return super().forward(y, x)

    loss, _ = made(module=Locked()).train_step(*linear_data())
    assert loss.item() > 0


# ---- the sample's model
def sample(config=None, seed=3, dropout=0.2, dynamic=False, **options):
    given = ORTTrainerOptions({**CPU, **options})
    description = transformer_description(dynamic)
    return ORTTrainer(transformer(seed, dropout), description, config or optim.LambConfig(lr=0.01), flat_loss, given)


def test_shapes_that_vary():
    trainer = sample(dynamic=True)
    for step in range(5):
        loss, output = trainer.train_step(*transformer_data(step, BPTT - step))
        assert output.shape == (BPTT - step, 4, NTOKENS)
        assert loss.shape == ()


def test_types_and_the_onnx_model_after_the_first_step():
    for first in ("train_step", "eval_step"):
        trainer = sample()
        assert trainer._onnx_model is None
        loss, output = getattr(trainer, first)(*transformer_data(0))
        assert [d.dtype for d in trainer.model_desc.inputs] == [torch.int64, torch.int64]
        assert [d.dtype for d in trainer.model_desc.outputs] == [loss.dtype, output.dtype]
        graph = trainer._onnx_model.graph
        assert [v.name for v in graph.input] == ["input1", "label"]
        assert [v.name for v in graph.output] == ["loss", "predictions"]
        assert [d.dim_value for d in graph.output[1].type.tensor_type.shape.dim] == list(output.shape)
        names = {name for name, _ in trainer._torch_model.named_parameters()}
        assert names <= {tensor.name for tensor in graph.initializer}


def test_two_runs_of_one_seed_are_the_same():
    import backpass

    states = []
    for seed in (0, 0, 1):
        backpass.set_seed(seed)
        trainer = sample(debug={"deterministic_compute": True})
        losses = [trainer.train_step(*transformer_data(step))[0] for step in range(3)]
        states.append((torch.stack(losses), trainer._training_session.get_state()))
    assert torch.equal(states[0][0], states[1][0])
    assert not torch.equal(states[0][0], states[2][0]), "dropout differs"
    assert all(np.array_equal(states[1][1][name], value) for name, value in states[0][1].items())


def test_evaluation_has_no_dropout_and_changes_nothing():
    trainer = sample()
    data = transformer_data(0)
    first = trainer.eval_step(*data)
    module = trainer._torch_model.eval()
    with torch.no_grad():
        expected = module(data[0])
    torch.testing.assert_close(first[1], expected, rtol=1e-4, atol=1e-5)
    assert torch.equal(trainer.eval_step(*data)[1], first[1])
    assert (trainer._train_step_info.step, trainer._train_step_info.optimization_step) == (0, 0)


def test_the_first_step_may_leave_inputs_out():
    trainer = sample(dropout=0.0, debug={"check_model_export": True})
    data, label = transformer_data(0)
    trainer._train_step_info.fetches = ["predictions"]
    predictions = trainer.eval_step(data)
    trainer._train_step_info.fetches = []
    assert torch.equal(trainer.train_step(data, label)[1], predictions)
    assert [d.dtype for d in trainer.model_desc.inputs] == [torch.int64, torch.int64]


def test_check_of_the_export(monkeypatch):
    trainer = sample(debug={"check_model_export": True})
    modes = [part.training for part in trainer._torch_model.modules()]
    trainer.train_step(*transformer_data(0))
    assert modes == [part.training for part in trainer._torch_model.modules()]

    trainer = sample(debug={"check_model_export": True})
    right = trainer._engine.eval_step
    monkeypatch.setattr(trainer._engine, "eval_step", lambda values: {"loss": right(values)["loss"] * 1.1})
    with pytest.raises(AssertionError, match="check_model_export: 'loss' differs"):
        trainer.train_step(*transformer_data(0))


@pytest.mark.parametrize("config", [optim.AdamConfig(), optim.LambConfig(), optim.SGDConfig()])
def test_graphs_that_are_saved(tmp_path, config):
    names = (
        "model_after_graph_transforms_path",
        "model_with_gradient_graph_path",
        "model_with_training_graph_path",
        "model_with_training_graph_after_optimization_path",
    )
    paths = {name: str(tmp_path / name) for name in names}
    trainer = sample(config, debug={"graph_save_paths": paths})
    trainer.train_step(*transformer_data(0))
    transformed, gradient, training, optimized = [onnx.load(path).graph.node for path in paths.values()]
    assert any(n.op_type == "LayerNormalization" for n in transformed)
    assert any("Grad" in n.name for n in gradient)
    assert not any("Grad" in n.name for n in transformed)
    for nodes in (training, optimized):
        assert sum(n.op_type == config.name for n in nodes) == (1 if config.name == "LambOptimizer" else 27)
    assert any(n.op_type == "FusedMatMul" for n in optimized)
    assert {n.domain for n in (*transformed, *gradient, *training, *optimized)} <= {"", "com.microsoft"}


def test_only_the_graphs_that_are_asked_for(tmp_path):
    path = tmp_path / "transformed.onnx"
    paths = {"model_after_graph_transforms_path": str(path), "model_with_training_graph_path": ""}
    sample(debug={"graph_save_paths": paths}).train_step(*transformer_data(0))
    assert [p.name for p in tmp_path.iterdir()] == ["transformed.onnx"]


def test_a_function_over_the_model():
    seen = []

    def change(model):
        seen.append(type(model).__name__)
        return model

    made(_internal_use={"extra_postprocess": change}).train_step(*linear_data())
    assert seen == ["ModelProto"]


# ---- mixed precision
def test_mixed_precision_is_bfloat16(monkeypatch):
    monkeypatch.setattr(_settings, "_said", set())
    scaler = amp.DynamicLossScaler(loss_scale=1024.0)
    with pytest.warns(UserWarning, match="bfloat16"):
        trainer = sample(optim.AdamConfig(), dropout=0.0, mixed_precision={"enabled": True, "loss_scaler": scaler})
    plain = sample(optim.AdamConfig(), dropout=0.0)
    for step in range(5):
        loss, _ = trainer.train_step(*transformer_data(step))
        expected, _ = plain.train_step(*transformer_data(step))
        torch.testing.assert_close(loss.float(), expected, rtol=2e-2, atol=0)
        assert not torch.equal(loss.float(), expected)
    assert scaler.loss_scale == 1024.0
    weights = trainer.state_dict()["model"]["full_precision"]
    assert all(value.dtype == np.float32 for value in weights.values())
    assert trainer._train_step_info.optimization_step == 5


def test_mixed_precision_has_a_scale_by_default():
    options = ORTTrainerOptions({**CPU, "mixed_precision": {"enabled": True}})
    trainer = ORTTrainer(linear(), LINEAR, optim.AdamConfig(), cross_entropy, options)
    assert trainer.options.mixed_precision.loss_scaler.loss_scale == 2**16
    assert options.mixed_precision.loss_scaler is None


def test_steps_that_are_not_finite_change_nothing():
    trainer = made(optim.AdamConfig(), mixed_precision={"enabled": True})
    data, label = linear_data()
    trainer.train_step(data, label)
    before = trainer.state_dict()
    trainer.train_step(torch.full((2, 2), float("inf")), label)
    after = trainer.state_dict()
    assert not trainer._train_step_info.all_finite
    assert (trainer._train_step_info.step, trainer._train_step_info.optimization_step) == (2, 1)
    for name, value in before["model"]["full_precision"].items():
        assert np.array_equal(after["model"]["full_precision"][name], value)
    trainer.train_step(data, label)
    assert trainer._train_step_info.all_finite


# ---- ONNX
def test_what_a_trainer_writes_another_trains(tmp_path):
    path = str(tmp_path / "model.onnx")
    trainer = sample(optim.AdamConfig(), dropout=0.0)
    with pytest.warns(UserWarning, match="before the first step"):
        trainer.save_as_onnx(path)
    trainer.train_step(*transformer_data(0))
    for wrong in (str(tmp_path / "none" / "model.onnx"), str(tmp_path) + "/"):
        with pytest.warns(UserWarning, match="folder that exists"):
            trainer.save_as_onnx(wrong)
    with pytest.raises(AssertionError, match="must be a string"):
        trainer.save_as_onnx(tmp_path / "model.onnx")
    assert not list(tmp_path.iterdir())
    trainer.save_as_onnx(path)
    model = onnx.load(path)
    options = ORTTrainerOptions({**CPU, "utils": {"frozen_weights": ["pe"]}})  # an initializer as others are
    again = ORTTrainer(model, transformer_description(), optim.AdamConfig(), options=options)
    fresh = sample(optim.AdamConfig(), seed=9, dropout=0.0)
    fresh._torch_model.load_state_dict(trainer.state_dict(pytorch_format=True))
    for step in range(3):
        expected, found = fresh.train_step(*transformer_data(step)), again.train_step(*transformer_data(step))
        assert torch.equal(found[0], expected[0])
    assert again._onnx_model is not trainer._onnx_model
    assert again._onnx_model == trainer._onnx_model == model
    assert [d.dtype for d in again.model_desc.inputs] == [torch.int64, torch.int64]
    evaluated = again.eval_step(*transformer_data(7))
    assert torch.equal(evaluated[1], fresh.eval_step(*transformer_data(7))[1])


def test_descriptions_must_be_of_the_model():
    trainer = made()
    trainer.train_step(*linear_data())
    for description in (
        {"inputs": [("z", [2, 2]), ("label", [2])], "outputs": LINEAR["outputs"]},
        {"inputs": LINEAR["inputs"], "outputs": [("loss", [], True), ("z", [2, 4])]},
    ):
        with pytest.raises(AssertionError, match="'z'"):
            ORTTrainer(trainer._onnx_model, description, optim.SGDConfig())
    with pytest.raises(AssertionError, match="loss_fn"):
        ORTTrainer(trainer._onnx_model, LINEAR, optim.SGDConfig(), cross_entropy)


WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None
import importlib.util
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: None if name == "torch" else find(name, package)
import numpy as np, onnx
from backpass import optim
from backpass.training import ORTTrainer, ORTTrainerOptions
description = {"inputs": [("x", [2, 2]), ("label", [2])], "outputs": [("loss", [], True), ("output", [2, 4])]}
def made():
    options = ORTTrainerOptions({"device": {"id": "cpu"}})
    return ORTTrainer(onnx.load(sys.argv[1]), description, optim.AdamConfig(lr=0.1), options=options)
trainer, again = made(), made()
data = np.ones((2, 2), np.float32), np.array([0, 1])
losses = [trainer.train_step(*data)[0] for _ in range(3)]
assert isinstance(losses[0], np.ndarray) and losses[2] < losses[0]
assert trainer.model_desc.inputs[0].dtype == np.float32 and trainer.model_desc.learning_rate.dtype == np.float32
trainer.save_checkpoint(sys.argv[2], {"epoch": 1, "array": np.arange(3)})
assert again.load_checkpoint(sys.argv[2])["epoch"] == 1
assert np.array_equal(again.train_step(*data)[0], trainer.train_step(*data)[0])
assert sys.modules["torch"] is None
print("trained")
"""


def test_onnx_models_need_no_torch(tmp_path):
    trainer = made()
    trainer.train_step(*linear_data())
    path = str(tmp_path / "model.onnx")
    trainer.save_as_onnx(path)
    arguments = [sys.executable, "-c", WITHOUT_TORCH, path, str(tmp_path / "c")]
    found = subprocess.run(arguments, capture_output=True, text=True)
    assert found.stdout == "trained\n", found.stderr


def test_explain():
    trainer = made(optim.AdamConfig())
    trainer.train_step(*linear_data())
    assert "adam" in trainer.explain()
