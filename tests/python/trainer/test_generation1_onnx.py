"""ORTTrainer of the first generation over ONNX models, with and without torch."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from backpass.trainer import IODescription, LossScaler, ModelDescription, ORTTrainer, load_checkpoint, save_checkpoint
from networks_of_generation1 import RATE, batch_of, description, perceptron, rate_of, train, trainer_of
from onnx import parser

TEXT = """<ir_version: 10, opset_import: ["" : 17]>
perceptron (float[batch, 6] input1, int64[batch] label) => (float loss, float[batch, 4] probability)
<float[8, 6] fc1.weight, float[8] fc1.bias, float[4, 8] fc2.weight, float[4] fc2.bias> {
  a = Gemm<transB = 1>(input1, fc1.weight, fc1.bias)
  h = Relu(a)
  probability = Gemm<transB = 1>(h, fc2.weight, fc2.bias)
  loss = SoftmaxCrossEntropyLoss(probability, label)
}"""


def model_of(seed: int = 1) -> onnx.ModelProto:
    """The perceptron of the other tests, with its weights."""
    model = parser.parse_model(TEXT.replace("fc1.", "fc1_").replace("fc2.", "fc2_"))
    module = perceptron(seed)
    text = model.SerializeToString()
    model = onnx.load_from_string(text)
    for node in model.graph.node:
        node.input[:] = [name.replace("fc1_", "fc1.").replace("fc2_", "fc2.") for name in node.input]
    del model.graph.initializer[:]
    for name, value in module.named_parameters():
        model.graph.initializer.append(onnx.numpy_helper.from_array(value.detach().numpy(), name))
    onnx.checker.check_model(model, full_check=True)
    return model


def onnx_trainer(optimizer: str = "LambOptimizer", seed: int = 1, **options: Any) -> ORTTrainer:
    return ORTTrainer(model_of(seed), None, description(), optimizer, None, RATE, "cpu", **options)


@pytest.mark.parametrize("optimizer", ["SGDOptimizer", "AdamOptimizer", "LambOptimizer"])
def test_model_trains_as_the_module_does(optimizer: str) -> None:
    module = perceptron()
    module.bias_buffer.zero_()
    expected = train(trainer_of(module, optimizer), range(10))
    assert train(onnx_trainer(optimizer), range(10)) == pytest.approx(expected, rel=1e-5)


def test_state_is_there_at_once() -> None:
    trainer = onnx_trainer("LambOptimizer")
    assert trainer.session is not None
    state = trainer.state_dict()
    weights = {"fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"}
    assert state.keys() == weights | {f"Moment_{n}_{name}" for n in (1, 2) for name in weights} | {"Step"}
    assert all(isinstance(value, torch.Tensor) for value in state.values())
    assert state["Step"].tolist() == [1]


def test_changed_state_goes_through_a_file(tmp_path: Path) -> None:
    trainer = onnx_trainer(allreduce_post_accumulation=True, deepspeed_zero=0)
    state = trainer.state_dict()
    state["fc1.weight"] += 1
    trainer.load_state_dict(state)
    save_checkpoint(trainer, tmp_path, "toy")
    other = onnx_trainer(seed=2)
    load_checkpoint(other, tmp_path, "toy")
    for name, value in other.state_dict().items():
        assert torch.equal(value, state[name]), name


@pytest.mark.parametrize("steps", [1, 4])
def test_mixed_precision_with_the_callers_scale(steps: int) -> None:
    trainer = onnx_trainer(use_mixed_precision=True, gradient_accumulation_steps=steps)
    scaler = LossScaler(trainer.loss_scale_input_name, True)
    finite = []
    for step in range(8):
        results = trainer.train_step(*batch_of(step), rate_of(1e-3), torch.tensor([scaler.loss_scale_]), fetches=None)
        if len(results) == 3:
            finite.append(results[2].item())
            scaler.update_loss_scale(finite[-1])
    assert finite == [True] * (8 // steps)


def test_loss_function_is_not_used() -> None:
    with pytest.warns(UserWarning, match="loss_fn is not used"):
        ORTTrainer(model_of(), lambda x, y: x, description(), "SGDOptimizer", None, RATE, "cpu")


def test_model_stays_as_it_is_and_may_be_a_file(tmp_path: Path) -> None:
    model = model_of()
    before = model.SerializeToString()
    onnx.save(model, tmp_path / "model.onnx")
    losses = []
    for given in (model, before, str(tmp_path / "model.onnx"), tmp_path / "model.onnx"):
        trainer = ORTTrainer(given, None, description(), "SGDOptimizer", None, RATE, "cpu")
        losses.append(train(trainer, range(2)))
    assert model.SerializeToString() == before
    assert losses == [losses[0]] * 4


def test_written_model_trains_on(tmp_path: Path) -> None:
    trainer = onnx_trainer("SGDOptimizer")
    train(trainer, range(2))
    trainer.save_as_onnx(tmp_path / "model.onnx")
    other = ORTTrainer(tmp_path / "model.onnx", None, description(), "SGDOptimizer", None, RATE, "cpu")
    assert train(trainer, range(2, 4)) == train(other, range(2, 4))


def test_names_that_the_model_does_not_have() -> None:
    described = ModelDescription([IODescription("x", [1]), IODescription("label", [1])], [IODescription("loss", [])])
    with pytest.raises(Exception, match=r"described inputs: got \['x'\]"):
        ORTTrainer(model_of(), None, described, "SGDOptimizer", None, RATE, "cpu")
    with pytest.raises(RuntimeError, match="in frozen_weights not found in model weights"):
        onnx_trainer(frozen_weights=["fc3.bias"])


def test_arrays_give_arrays() -> None:
    trainer = onnx_trainer("SGDOptimizer")
    data, target = batch_of(0)
    loss, scores = trainer.train_step(data.numpy(), target.numpy(), np.array([0.1], np.float32))
    assert isinstance(loss, np.ndarray)
    assert loss.shape == ()
    assert scores.shape == (5, 4)
    assert torch.equal(onnx_trainer("SGDOptimizer").train_step(data, target, 0.1)[1], torch.from_numpy(scores))


WITHOUT_TORCH = """
    import sys
    sys.modules["torch"] = None  # as where it is not installed
    import numpy as np
    import backpass
    from backpass import IODescription, ModelDescription, ORTTrainer

    described = ModelDescription(
        [IODescription("input1", ["batch", 6]), IODescription("label", ["batch"])],
        [IODescription("loss", []), IODescription("probability", ["batch", 4])],
    )
    arguments = (sys.argv[1], None, described, "AdamOptimizer", None, IODescription("Learning_Rate", [1]), "cpu")
    trainer = ORTTrainer(*arguments)
    random = np.random.default_rng(0)
    data, label = random.standard_normal((5, 6), np.float32), random.integers(0, 4, 5)
    losses = [float(trainer.train_step(data, label, 0.05)[0]) for _ in range(20)]
    assert losses[-1] < 0.5 * losses[0], losses
    state = trainer.state_dict()
    assert all(isinstance(value, np.ndarray) for value in state.values())
    other = ORTTrainer(*arguments)
    other.load_state_dict(state, strict=True)
    assert other.train_step(data, label, 0.05)[0] == trainer.train_step(data, label, 0.05)[0]
    try:
        backpass.save_checkpoint(trainer, ".")
    except ModuleNotFoundError as error:
        print(error)
"""


def test_torch_is_not_needed(tmp_path: Path) -> None:
    onnx.save(model_of(), tmp_path / "model.onnx")
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(WITHOUT_TORCH), str(tmp_path / "model.onnx")],
        cwd=tmp_path, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "pip install 'backpass[torch]'" in done.stdout
