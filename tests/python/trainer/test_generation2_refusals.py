"""States, files and descriptions that do not fit a trainer of the second generation: refused, and nothing is loaded."""

from __future__ import annotations

import copy

import backpass
import h5py
import numpy as np
import pytest
import torch
from backpass import optim
from backpass.trainer.checkpoint import read_checkpoint
from backpass.training import ORTTrainer, ORTTrainerOptions, _checkpoint_storage, checkpoint
from torch import nn
from trainer.generation2_models import LINEAR, Linear, assert_same_state, cross_entropy, linear, linear_data


def made(config=None, module=None, description=LINEAR):
    options = ORTTrainerOptions({"device": {"id": "cpu"}})
    return ORTTrainer(module or linear(), description, config or optim.AdamConfig(lr=0.1), cross_entropy, options)


def trained(steps=1, **given):
    trainer = made(**given)
    for step in range(steps):
        trainer.train_step(*linear_data(step))
    return trainer


@pytest.fixture(scope="module")
def trainer():
    return trained()


@pytest.fixture(scope="module")
def saved():
    return trained(3).state_dict()


@pytest.fixture
def state(saved):
    return copy.deepcopy(saved)


# ---- states
def put(*path_and_value):
    *path, last, value = path_and_value

    def change(state):
        for name in path:
            state = state[name]
        state[last] = value

    return change


FORMS = {
    "weights": (put("model", "full_precision", [1, 2]), r"state_dict\[model\]\[full_precision\]: got a list"),
    "a weight": (
        put("model", "full_precision", "linear.bias", "text"),
        r"\[linear.bias\]: got a str, expected an array",
    ),
    "complex": (
        put("model", "full_precision", "linear.bias", np.ones(4, np.complex64)),
        "expected an array of numbers",
    ),
    "optimizer": (put("optimizer", None), r"state_dict\[optimizer\]: got a NoneType, expected a dict"),
    "moments": (put("optimizer", "linear.bias", 3), r"state_dict\[optimizer\]\[linear.bias\]: got a int"),
    "a moment": (put("optimizer", "linear.bias", "Moment_2", None), r"\[Moment_2\]: got a NoneType"),
    "a count": (put("optimizer", "linear.bias", "Update_Count", np.zeros(0)), r"\[Update_Count\]: got a ndarray"),
    "no count": (put("optimizer", "linear.bias", "Update_Count", np.array([0])), "got 0, expected 1 or more"),
    "counts": (put("optimizer", "linear.bias", "Update_Count", np.array([9])), "updated together"),
    "a step": (put("train_step_info", "step", "three"), r"state_dict\[train_step_info\]\[step\]: got a str"),
    "half a seed": (put("train_step_info", "seed", 4), "expected both or none"),
}


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("name", FORMS)
def test_a_state_of_another_form_is_refused_when_it_is_given(trainer, state, name, strict):
    change, says = FORMS[name]
    if name == "half a seed":
        state["train_step_info"].pop("random_counter", None)
    change(state)
    before = trainer.state_dict()
    with pytest.raises(ValueError, match=says):
        trainer.load_state_dict(state, strict)
    assert_same_state(trainer.state_dict(), before)
    waiting = made()
    with pytest.raises(ValueError, match=says):
        waiting.load_state_dict(state, strict)
    assert waiting._load_state_dict is None


@pytest.mark.parametrize("given", [None, "file.ortcp", [1]])
def test_what_is_no_state_is_refused(trainer, given):
    with pytest.raises(ValueError, match=r"state_dict: got a .*, expected a dict"):
        trainer.load_state_dict(given)


SHAPES = {
    "weight": (put("model", "full_precision", "linear.bias", np.ones(5, np.float32)), r"'linear.bias': got \[5\]"),
    "buffer": (put("model", "full_precision", "shift", np.ones((4, 1), np.float32)), r"'shift': got \[4, 1\]"),
    "moment": (put("optimizer", "linear.bias", "Moment_2", np.ones(3, np.float32)), r"momentum1 of .*: got \[3\]"),
}  # fmt: skip


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("name", SHAPES)
def test_a_failed_load_changes_neither_weights_nor_moments(trainer, state, name, strict):
    change, says = SHAPES[name]
    change(state)
    before = trainer.state_dict()
    with pytest.raises(backpass.InvalidInput, match=says):
        trainer.load_state_dict(state, strict)
    assert_same_state(trainer.state_dict(), before)


@pytest.mark.parametrize("name", SHAPES)
def test_a_state_that_waits_and_does_not_fit_is_not_half_loaded(state, name):
    change, says = SHAPES[name]
    change(state)
    module = linear(7)
    before = {key: value.clone() for key, value in module.state_dict().items()}
    waiting = made(module=module)
    waiting.load_state_dict(state)
    for step in (waiting.train_step, waiting.eval_step):
        with pytest.raises(backpass.InvalidInput, match=says):
            step(*linear_data())
    assert all(torch.equal(value, before[key]) for key, value in module.state_dict().items())


def test_a_failed_flat_load_changes_nothing(trainer, saved):
    with pytest.warns(DeprecationWarning, match="state_dict"):
        flat = checkpoint.experimental_state_dict(trained(2))
    before = trainer.state_dict()
    refused = (ValueError, backpass.InvalidInput)
    for name, value in (("Moment_1_linear.bias", torch.ones(3)), ("linear.bias", torch.ones(4).cfloat())):
        with pytest.warns(DeprecationWarning, match="load"), pytest.raises(refused, match=r"linear\.bias"):
            checkpoint.experimental_load_state_dict(trainer, {**flat, name: value})
        assert_same_state(trainer.state_dict(), before)


# ---- parameters that forward does not use
class Spare(Linear):
    def __init__(self):
        super().__init__()
        self.spare = nn.Parameter(torch.ones(3))


def test_a_parameter_that_is_not_used(tmp_path):
    first, second = trained(2, module=Spare()), made(module=Spare())
    second.eval_step(*linear_data())
    evaluated = second.state_dict()
    assert "spare" in evaluated["model"]["full_precision"]
    second.load_state_dict(first.state_dict())
    assert torch.equal(second.train_step(*linear_data(5))[0], first.train_step(*linear_data(5))[0])
    assert_same_state(second.state_dict(), first.state_dict())
    second.load_state_dict(evaluated)
    second.train_step(*linear_data())


def test_moments_that_are_missing_after_an_evaluation_are_told_before_training(state):
    trainer = made()
    trainer.eval_step(*linear_data())
    del state["optimizer"]["linear.bias"]
    trainer.load_state_dict(state)
    before = trainer.state_dict()
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"Missing keys: linear.bias in state_dict\[optimizer\]"):
            trainer.train_step(*linear_data())
    assert_same_state(trainer.state_dict()["model"], before["model"])
    trainer.load_state_dict(state, strict=False)
    trainer.train_step(*linear_data())


# ---- files
def test_files_that_are_cut_short(tmp_path, trainer):
    path = tmp_path / "c.ortcp"
    trainer.save_checkpoint(str(path))
    before, content = trainer.state_dict(), path.read_bytes()
    for length in (len(content) // 2, len(content) - 9):
        (tmp_path / "short").write_bytes(content[:length])
        with pytest.raises(ValueError, match=r"short' is no checkpoint that can be read: .*; load an older checkpoint"):
            trainer.load_checkpoint(str(tmp_path / "short"))
    assert_same_state(trainer.state_dict(), before)


def test_files_of_others(tmp_path, trainer):
    with h5py.File(tmp_path / "other", "w") as file:
        file.create_dataset("images", data=np.ones(3))
    with pytest.raises(ValueError, match=r"other' has no 'trainer_options', expected a checkpoint file of ORTTrainer"):
        trainer.load_checkpoint(str(tmp_path / "other"))
    _checkpoint_storage.save({"trainer_options": {"world_rank": 0}}, tmp_path / "options")
    for read in (trainer.load_checkpoint, lambda path: checkpoint.aggregate_checkpoints([path])):
        with pytest.raises(ValueError, match=r"options': got trainer_options without \['world_size'"):
            read(str(tmp_path / "options"))
    for text in ("zz", "7b", "5b317d"):
        with pytest.raises(ValueError, match="user_dict: got text that is damaged"):
            _checkpoint_storage.from_serialized_hex(text)


def test_flat_files_that_are_damaged(tmp_path):
    path = tmp_path / "c.ort.pt"
    torch.save({"model": {"w": torch.ones(300)}}, path)
    content = path.read_bytes()
    assert read_checkpoint(path)["model"]["w"].sum() == 300
    for damaged in (b"", b"text", content[: len(content) // 2]):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"c.ort.pt' is no checkpoint that can be read"):
            read_checkpoint(path)
    torch.save([1, 2], path)
    with pytest.raises(ValueError, match=r"c.ort.pt': got list, expected 'model'"):
        read_checkpoint(path)
    with pytest.raises(FileNotFoundError):
        read_checkpoint(tmp_path / "none")


def test_a_file_that_does_not_fit_is_named(tmp_path, trainer, state):
    state["model"]["full_precision"]["linear.wieght"] = state["model"]["full_precision"].pop("linear.weight")
    _checkpoint_storage.save(state, tmp_path / "c.ortcp")
    with pytest.raises(RuntimeError, match=r"c.ortcp': Missing keys: linear.weight in state_dict\[model\]"):
        trainer.load_checkpoint(str(tmp_path / "c.ortcp"))
    _checkpoint_storage.save(
        {**state, "trainer_options": {**state["trainer_options"], "zero_stage": "x"}}, tmp_path / "d"
    )
    with pytest.raises(ValueError, match="d' is no checkpoint that can be read"):
        trainer.load_checkpoint(str(tmp_path / "d"))


# ---- configurations
@pytest.mark.parametrize("names", ["linear.wieght", ["linear.bias", "linear.wieght"]])
def test_groups_of_weights_that_the_model_does_not_have(names):
    trainer = made(optim.AdamConfig(params=[{"params": names, "alpha": 0.5}]))
    with pytest.raises(
        RuntimeError, match=r"^\['linear.wieght'\] in params of the optimizer not found in model weights"
    ):
        trainer.train_step(*linear_data())


# ---- descriptions
class Masked(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(2, 4)

    def forward(self, x, mask=None):
        return self.linear(x if mask is None else x * mask)


def described(*inputs):
    return {"inputs": list(inputs), "outputs": LINEAR["outputs"]}


def test_names_that_forward_does_not_have():
    x, label = linear_data()
    typing_error = made(module=Masked(), description=described(("x", [2, 2]), ("msk", [2, 2]), ("label", [2])))
    with pytest.raises(backpass.InvalidInput, match=r"described input 'msk': Masked.forward has no such parameter"):
        typing_error.train_step(x, x, label)
    too_many = made(module=nn.Linear(2, 4), description=described(("a", [2, 2]), ("b", [2, 2]), ("label", [2])))
    with pytest.raises(backpass.InvalidInput, match=r"described input 'b': Linear.forward takes 1: \['input'\]"):
        too_many.train_step(x, x, label)
    elsewhere = made(module=Masked(), description=described(("mask", [2, 2]), ("label", [2])))
    with pytest.raises(backpass.InvalidInput, match=r"described input 'mask': got no description of \['x'\]"):
        elsewhere.train_step(x, label)


def test_other_names_by_position():
    x, label = linear_data()
    module = Masked()
    trainer = made(module=module, description=described(("data", [2, 2]), ("label", [2])))
    expected = cross_entropy(module(x), label).item()
    assert trainer.train_step(x, label)[0].item() == pytest.approx(expected, rel=1e-6)


def test_ranks_that_do_not_fit(trainer):
    x, label = linear_data()
    wrong = made(description=described(("x", [2]), ("label", [2])))
    for step in (wrong.train_step, wrong.eval_step):
        with pytest.raises(AssertionError, match=r"input 'x': got shape \[2, 2\], expected 1 axes"):
            step(x, label)
    with pytest.raises(AssertionError, match=r"input 'x': got shape \[1, 2, 2\], expected 2 axes"):
        trainer.eval_step(x[None], label)
    options = ORTTrainerOptions({"device": {"id": "cpu"}})
    with pytest.raises(AssertionError, match=r"model_desc: input 'x': got \[2\], expected 2 axes as in the model"):
        ORTTrainer(trainer._onnx_model, described(("x", [2]), ("label", [2])), optim.AdamConfig(), options=options)
