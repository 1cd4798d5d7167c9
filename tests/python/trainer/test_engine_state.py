"""State, files and reports of an Engine."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from backpass import InvalidInput
from backpass.trainer.engine import Description, Engine, Settings
from torch import nn


def cross_entropy(out: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(out, label)


def module_of(dropout: float = 0.0) -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(
        nn.Linear(4, 8, bias=False), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(dropout), nn.Linear(8, 3)
    )


def engine_of(module: nn.Module, **changes: Any) -> Engine:
    inputs = [Description("x", ["batch", 4]), Description("label", ["batch"])]
    outputs = [Description("loss", []), Description("out", ["batch", 3])]
    settings = Settings(**{"algorithm": "adam", "seed": 5, **changes})
    return Engine.from_torch(module, cross_entropy, inputs, outputs, 0, settings)


def batches(count: int) -> list[dict[str, torch.Tensor]]:
    chance = torch.Generator().manual_seed(1)
    return [
        {"x": torch.randn(6, 4, generator=chance), "label": torch.randint(3, (6,), generator=chance)}
        for _ in range(count)
    ]


def _saved(engine: Engine) -> dict[str, Any]:
    weights = {n: v.numpy().copy() for n, v in {**engine.weights(), **engine.buffers()}.items()}
    moments = {w: {n: m.copy() for n, m in kept.items()} for w, kept in engine.moments().items()}
    counters = {"steps": engine.steps, "updates": engine.updates, "loss_scale": engine.loss_scale}
    return {"weights": weights, "moments": moments, "counters": counters}


@pytest.mark.parametrize("algorithm", ["sgd", "adam", "lamb"])
@pytest.mark.parametrize("loads_first", [True, False])
def test_going_on_is_bitwise(algorithm: str, loads_first: bool) -> None:
    first, data = engine_of(module_of(), algorithm=algorithm, scales_loss=True, clips_gradients=True), batches(8)
    first.loss_scale = 8
    for values in data[:4]:
        first.train_step(values, 0.1)
    saved = _saved(first)
    second = engine_of(module_of(), algorithm=algorithm, scales_loss=True, clips_gradients=True)
    if not loads_first:
        second.train_step(data[0], 0.1)
    assert second.load(**saved, strict=True) == []
    assert (second.steps, second.updates, second.loss_scale) == (4, 4, 8.0)
    for values in data[4:]:
        losses = [e.train_step(values, 0.1).outputs["loss"] for e in (first, second)]
        assert torch.equal(*losses)
    for name, value in first.weights().items():
        assert torch.equal(value, second.weights()[name]), name


def test_names_that_are_not_there() -> None:
    engine = engine_of(module_of())
    assert engine.load({"no": np.zeros(2)}) == ["no"]
    with pytest.raises(RuntimeError, match=r"Checkpoint tensor: no is not present in the model\."):
        engine.load({"no": np.zeros(2)}, strict=True)
    with pytest.raises(InvalidInput, match=r"'0.weight': got \[3\], expected \[8, 4\]"):
        engine.load({"0.weight": np.zeros(3)})
    with pytest.raises(InvalidInput, match="counters: got 'epochs'"):
        engine.load(counters={"epochs": 1})


def test_settings_of_single_weights() -> None:
    asked: list[str] = []

    def decay(name: str) -> dict[str, float]:
        asked.append(name)
        return {"weight_decay": 0.0} if "bias" in name else {}

    module = module_of()
    engine_of(module, defaults={"weight_decay": 0.5}, by_weight=decay).train_step(batches(1)[0], 0.1)
    plain = module_of()
    engine_of(plain, defaults={"weight_decay": 0.5}).train_step(batches(1)[0], 0.1)
    assert asked == [name for name, _ in module.named_parameters()]
    assert torch.equal(module[0].weight, plain[0].weight)
    assert not torch.equal(module[4].bias, plain[4].bias)
    with pytest.raises(InvalidInput, match="settings of weights: got 'momentum'"):
        engine_of(module_of(), defaults={"momentum": 1}).train_step(batches(1)[0], 0.1)


def test_updates_that_are_not_finite_change_nothing() -> None:
    module = module_of()
    engine = engine_of(module, scales_loss=True)
    before = {n: v.clone() for n, v in engine.weights().items()}
    values = batches(1)[0]
    result = engine.train_step({**values, "x": values["x"] * torch.inf}, 0.1)
    assert (result.updated, result.all_finite, engine.updates) == (False, False, 0)
    assert all(torch.equal(v, before[n]) for n, v in engine.weights().items())


# ---- ONNX
def test_onnx_model_runs_elsewhere() -> None:
    module = module_of(0.3)
    engine = engine_of(module)
    for values in batches(3):
        engine.train_step(values, 0.1)
    model = engine.onnx_model(training=False)
    onnx.checker.check_model(model, full_check=True)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    assert [i.name for i in session.get_inputs()] == ["x", "label"]
    assert [o.name for o in session.get_outputs()] == ["loss", "out"]
    assert session.get_inputs()[0].shape == ["batch", 4]
    values = batches(5)[4]
    found = session.run(None, {n: v.numpy() for n, v in values.items()})
    expected = engine.eval_step(values)
    for array, name in zip(found, ("loss", "out"), strict=True):
        np.testing.assert_allclose(array, expected[name], rtol=1e-5, atol=1e-6)
    training = engine.onnx_model()
    onnx.checker.check_model(training, full_check=True)
    assert {t.name for t in training.graph.initializer} == set(module.state_dict())
    assert any(node.op_type == "Dropout" for node in training.graph.node)
    onnxruntime.InferenceSession(training.SerializeToString()).run(None, {n: v.numpy() for n, v in values.items()})


def test_onnx_model_goes_on_as_the_module_does() -> None:
    module = module_of()
    engine = engine_of(module)
    engine.train_step(batches(1)[0], 0.1)
    model, names = engine.onnx_model(), [n for n, _ in module.named_buffers()]
    second = Engine.from_onnx(model, ["x", "label"], ["loss", "out"], "loss", Settings("adam", frozen=names))
    assert sorted(second.trained) == sorted(engine.trained)
    again = {t.name for t in second.onnx_model().graph.initializer}
    assert again == {t.name for t in model.graph.initializer}
    engine.load(moments={w: {n: np.zeros_like(m) for n, m in k.items()} for w, k in engine.moments().items()})
    engine.updates = 0
    for values in batches(4):
        ours = engine.train_step(values, 0.1).outputs["loss"]
        theirs = second.train_step({n: v.numpy() for n, v in values.items()}, 0.1).outputs["loss"]
        assert isinstance(theirs, np.ndarray)
        np.testing.assert_allclose(theirs, ours.numpy(), rtol=1e-5)


def test_onnx_model_before_the_first_step() -> None:
    engine = engine_of(module_of())
    assert not engine.is_ready
    with pytest.raises(RuntimeError, match="expected a step before"):
        engine.onnx_model()
    engine.prepare(batches(1)[0])
    assert engine.is_ready
    assert engine.steps == 0
    assert engine.onnx_model().graph.output[0].name == "loss"


def test_postprocessing() -> None:
    seen: list[set[str]] = []

    def note(model: onnx.ModelProto) -> None:
        seen.append({t.name for t in model.graph.initializer})
        for node in model.graph.node:
            if node.op_type == "Relu":
                node.op_type = "Tanh"

    module = module_of()
    engine = engine_of(module, postprocess=note)
    values = batches(1)[0]
    out = engine.train_step(values, 0.0).outputs["out"]
    assert seen == [set(module.state_dict())]
    module.load_state_dict(module_of().state_dict())
    expected = module[4](torch.tanh(module[1](module[0](values["x"]))))
    torch.testing.assert_close(out, expected.detach())


# ---- mixed precision
@pytest.mark.parametrize("kind", ["torch", "onnx"])
def test_mixed_precision_follows_float32(kind: str) -> None:
    exact = engine_of(module_of(), defaults={"epsilon": 1e-3})
    module = module_of()
    narrow = engine_of(module, mixed_precision=True, defaults={"epsilon": 1e-3})
    if kind == "onnx":
        whole = engine_of(module_of())
        whole.prepare(batches(1)[0])
        settings = Settings("adam", {"epsilon": 1e-3}, mixed_precision=True)
        settings.frozen = [n for n, _ in module.named_buffers()]
        narrow = Engine.from_onnx(whole.onnx_model(), ["x", "label"], ["loss", "out"], "loss", settings)
    differs = False
    for values in batches(20):
        a, b = (e.train_step(values, 0.01).outputs["loss"] for e in (exact, narrow))
        assert b.dtype == torch.float32
        assert float(abs(a - b)) < 0.05
        differs = differs or bool(a != b)
    assert differs
    for name, value in exact.weights().items():
        other = torch.as_tensor(narrow.weights()[name])
        assert other.dtype == torch.float32
        assert float((value - other).abs().max()) < 0.05
    assert "bfloat16" in narrow.explain()


# ---- reports
def test_explain() -> None:
    engine = engine_of(module_of(), accumulation_steps=2, clips_gradients=True, defaults={"weight_decay": 0.1})
    assert "the first step makes one" in engine.explain()
    engine.train_step(batches(1)[0], 0.1)
    text = engine.explain()
    for part in ("adam", "weight_decay 0.1", "one update per 2 steps", "norm of all gradients", "programs: 1", "peak"):
        assert part in text, part
    assert engine.plan().peak_bytes > 0
    assert engine.output_types() == {"loss": 1, "out": 1}


# ---- without torch
WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None
import numpy as np, onnx
from backpass.trainer.engine import Engine, Settings
model = onnx.load(sys.argv[1])
engine = Engine.from_onnx(model, ["x", "label"], ["loss", "out"], "loss", Settings("adam"))
x, label = np.ones((2, 4), np.float32), np.zeros(2, np.int64)
losses = [float(engine.train_step({"x": x, "label": label}, 0.1).outputs["loss"]) for _ in range(5)]
assert losses[-1] < losses[0]
assert engine.eval_step({"x": x}, ["out"])["out"].shape == (2, 3)
"""


def test_onnx_models_need_no_torch(tmp_path: Any) -> None:
    engine = engine_of(nn.Linear(4, 3))
    engine.prepare(batches(1)[0])
    onnx.save(engine.onnx_model(), tmp_path / "model.onnx")
    subprocess.run([sys.executable, "-c", WITHOUT_TORCH, tmp_path / "model.onnx"], check=True)


def test_onnx_names() -> None:
    engine = engine_of(nn.Linear(4, 3))
    engine.prepare(batches(1)[0])
    model = engine.onnx_model()
    with pytest.raises(RuntimeError, match=r"\['no'\] in frozen_weights not found in model weights\."):
        Engine.from_onnx(model, ["x", "label"], ["loss"], "loss", Settings("sgd", frozen=["no"]))
    with pytest.raises(InvalidInput, match=r"described inputs: got \['y'\]"):
        Engine.from_onnx(model, ["y"], ["loss"], "loss", Settings("sgd"))
    trained = Engine.from_onnx(model, ["x", "label"], ["loss", "out"], "loss", Settings("sgd", frozen=["weight"]))
    assert trained.trained == ["bias"]
    with pytest.raises(InvalidInput, match=r"inputs: got no \['label'\]"):
        trained.eval_step({"x": np.ones((2, 4), np.float32)})
    values = {"x": torch.ones(2, 4), "label": torch.zeros(2, dtype=torch.int64)}
    assert isinstance(trained.train_step(values, 0.1).outputs["loss"], torch.Tensor)
