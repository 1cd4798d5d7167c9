"""State dictionaries and checkpoint files of the first generation."""

from __future__ import annotations

import copy
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from backpass.trainer import LossScaler, ORTTrainer, load_checkpoint, save_checkpoint
from backpass.trainer.checkpoint import checkpoint_name, join_shards, part_of
from backpass.trainer.flat_state import take_apart
from networks_of_generation1 import Perceptron, batch_of, perceptron, rate_of, train, trainer_of

NAMES = ["fc1.bias", "fc1.weight", "fc2.bias", "fc2.weight", "bias_buffer"]
TRAINED = NAMES[:4]
MOMENTS = [f"Moment_{number}_{name}" for number in (1, 2) for name in TRAINED]
OPTIMIZERS = ["SGDOptimizer", "AdamOptimizer", "LambOptimizer"]


def trained(optimizer: str = "AdamOptimizer", steps: int = 3, **options: Any) -> ORTTrainer:
    trainer = trainer_of(perceptron(), optimizer, **options)
    train(trainer, range(steps))
    return trainer


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(value, other[name]) for name, value in one.items())


# ---- what is in it
@pytest.mark.parametrize(
    ("optimizer", "more"),
    [
        ("SGDOptimizer", []),
        ("AdamOptimizer", [*MOMENTS, *(f"Update_Count_{name}" for name in TRAINED)]),
        ("LambOptimizer", [*MOMENTS, "Step"]),
    ],
)
def test_names_of_a_state(optimizer: str, more: list[str]) -> None:
    trainer = trainer_of(perceptron(), optimizer)
    with pytest.warns(UserWarning, match="before its first step"):
        assert trainer.state_dict() == {}
    train(trainer, range(2))
    state = trainer.state_dict()
    assert state.keys() == {*NAMES, *more}
    assert all(isinstance(value, torch.Tensor) for value in state.values())
    assert trainer.state_dict(include_optimizer_state=False).keys() == set(NAMES)
    for name in more:
        if name.startswith("Moment"):
            assert state[name].dtype == torch.float32
            assert state[name].shape == state[name[9:]].shape
        else:
            assert (state[name].dtype, state[name].tolist()) == (torch.int64, [3])


def test_state_is_a_copy() -> None:
    trainer = trained()
    state = trainer.state_dict()
    kept = copy.deepcopy(state)
    train(trainer, range(3, 5))
    assert same(state, kept)
    assert not same(state, trainer.state_dict())
    for value in state.values():
        value.zero_()
    assert trainer.state_dict()["fc1.weight"].any()


def test_frozen_weights_have_no_moments() -> None:
    state = trained("LambOptimizer", frozen_weights=["fc1.weight"]).state_dict()
    assert "fc1.weight" in state
    assert "Moment_1_fc1.weight" not in state


def test_module_takes_the_state() -> None:
    trainer = trained()
    other = perceptron(2)
    other.load_state_dict(trainer.state_dict(), strict=False)
    other.load_state_dict(trainer.state_dict(include_optimizer_state=False), strict=True)
    assert same(other.state_dict(), trainer.torch_model_.state_dict())


# ---- going on
def by_dictionary(trainer: ORTTrainer, resumed: ORTTrainer, folder: Path) -> None:
    resumed.load_state_dict(trainer.state_dict(), strict=True)


def by_torch_save(trainer: ORTTrainer, resumed: ORTTrainer, folder: Path) -> None:
    torch.save(trainer.state_dict(), folder / "state.pt")
    resumed.load_state_dict(torch.load(folder / "state.pt", weights_only=True), strict=True)


def by_pickle(trainer: ORTTrainer, resumed: ORTTrainer, folder: Path) -> None:
    resumed.load_state_dict(copy.copy(pickle.loads(pickle.dumps(trainer.state_dict()))))


def by_checkpoint(trainer: ORTTrainer, resumed: ORTTrainer, folder: Path) -> None:
    save_checkpoint(trainer, folder)
    assert load_checkpoint(resumed, folder, strict=True) == {}


@pytest.mark.parametrize(
    ("way", "has_run"),
    [(by_dictionary, False), (by_dictionary, True), (by_torch_save, False), (by_pickle, False), (by_checkpoint, True)],
)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_training_goes_on_with_the_same_bits(
    optimizer: str, way: Callable[[ORTTrainer, ORTTrainer, Path], None], has_run: bool, tmp_path: Path
) -> None:
    asked: list[int] = []

    def rate(step: int) -> float:
        asked.append(step)
        return 0.05 / (1 + step)

    def losses(trainer: ORTTrainer, steps: range) -> list[float]:
        return [trainer.train_step(*batch_of(step))[0].item() for step in steps]

    trainer = trainer_of(perceptron(), optimizer, get_lr_this_step=rate)
    losses(trainer, range(3))
    resumed = trainer_of(perceptron(2), optimizer, get_lr_this_step=rate)
    if has_run:
        losses(resumed, range(20, 25))
    way(trainer, resumed, tmp_path)
    assert (resumed.current_step, resumed.global_step_) == (3, 3)
    assert same(trainer.state_dict(), resumed.state_dict())
    expected = losses(trainer, range(3, 7))
    asked.clear()
    assert losses(resumed, range(3, 7)) == expected
    assert asked == [3, 4, 5, 6]
    assert same(trainer.state_dict(), resumed.state_dict())


class Dropping(Perceptron):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(torch.nn.functional.dropout(x, 0.3, self.training))


@pytest.mark.parametrize("has_run", [False, True])
def test_dropout_goes_on(has_run: bool, tmp_path: Path) -> None:
    torch.manual_seed(5)
    one, other = (trainer_of(Dropping(), "AdamOptimizer") for _ in range(2))
    train(one, range(3))
    if has_run:
        train(other, range(2))
    by_checkpoint(one, other, tmp_path)
    expected = train(one, range(3, 7))
    assert train(other, range(3, 7)) == expected
    assert train(trainer_of(Dropping(), "AdamOptimizer"), range(3, 7)) != expected


def test_loss_scale_goes_on(tmp_path: Path) -> None:
    scalers = [LossScaler("scale", True, loss_scale=64.0, up_scale_window=3) for _ in range(2)]
    one, other = (
        trainer_of(perceptron(), "AdamOptimizer", use_mixed_precision=True, loss_scaler=scaler) for scaler in scalers
    )
    train(one, range(5))
    assert (scalers[0].loss_scale_, scalers[0].stable_steps_) == (128.0, 2)
    by_checkpoint(one, other, tmp_path)
    assert (scalers[1].loss_scale_, scalers[1].stable_steps_) == (128.0, 2)
    assert train(one, range(5, 8)) == train(other, range(5, 8))
    assert scalers[1].loss_scale_ == 256.0


def test_loaded_state_is_there_at_once() -> None:
    """As the original's test of a frozen weight: load, evaluate, and compare."""
    options: dict[str, Any] = {"frozen_weights": ["fc1.weight"]}
    trainer = trained("LambOptimizer", steps=5, **options)
    data, target = batch_of(9)
    loss, _ = trainer.eval_step(data, target)
    state = trainer.state_dict()
    other = trainer_of(perceptron(2), "LambOptimizer", **options)
    other.load_state_dict(state)
    loaded, _ = other.eval_step(data, target)
    assert loaded == loss
    assert same(other.state_dict(), state)


def test_state_of_the_original_has_tensors_alone() -> None:
    trainer = trained("AdamOptimizer", steps=4)
    plain = dict(trainer.state_dict())
    plain |= {"fc1.weight_fp16": plain["fc1.weight"].half()}
    resumed = trainer_of(perceptron(2), "AdamOptimizer", global_step=4)
    resumed.load_state_dict(plain, strict=True)
    assert train(trainer, range(4, 6)) == train(resumed, range(4, 6))


def test_weights_alone_leave_the_optimizer_as_it_is() -> None:
    trainer, other = trained(), trained(steps=1)
    moments = {name: value for name, value in other.state_dict().items() if name not in NAMES}
    other.load_state_dict(trainer.state_dict(include_optimizer_state=False), strict=True)
    state = other.state_dict()
    assert same({name: value for name, value in state.items() if name not in NAMES}, moments)
    assert torch.equal(state["fc1.weight"], trainer.state_dict()["fc1.weight"])
    assert other.current_step == 1


def test_an_accumulation_that_is_not_finished_begins_anew() -> None:
    trainer = trained("SGDOptimizer", steps=4, gradient_accumulation_steps=3)
    resumed = trainer_of(perceptron(2), gradient_accumulation_steps=3)
    resumed.load_state_dict(trainer.state_dict())
    assert (resumed.current_step, resumed.global_step_) == (3, 1)
    other = trained("SGDOptimizer", steps=3, gradient_accumulation_steps=3)
    assert train(resumed, range(5, 11)) == train(other, range(5, 11))


# ---- what does not fit
def test_strict_names_what_the_model_does_not_have() -> None:
    trainer, state = trainer_of(perceptron()), trained("LambOptimizer").state_dict()
    with pytest.warns(UserWarning, match="'Moment_1_fc1.bias', .* and 3 more$"):
        trainer.load_state_dict(state)
    with pytest.raises(RuntimeError, match=r"Checkpoint tensor: Moment_1_fc1\.\w+ is not present in the model\."):
        trainer.load_state_dict(state, strict=True)
    with pytest.raises(RuntimeError, match=r"Checkpoint tensor: fc3\.bias is not present in the model\."):
        trainer.load_state_dict({"fc3.bias": torch.zeros(1)}, strict=True)


def test_misspelt_names_are_told() -> None:
    trainer, state = trained(), trained(steps=5).state_dict()
    state["fc1.wieght"] = state.pop("fc1.weight")
    told = "does not have are passed over: 'fc1.wieght'; what the state does not have stays as it is: 'fc1.weight'$"
    with pytest.warns(UserWarning, match=told):
        trainer.load_state_dict(state)


@pytest.mark.parametrize("name", ["fc1.weight", "Moment_1_fc1.weight", "Update_Count_fc1.weight"])
def test_text_is_no_weight(name: str) -> None:
    trainer, state = trained(), trained(steps=5).state_dict()
    before = trainer.state_dict()
    for value in ("text", None, ["text"]):
        with pytest.raises(ValueError, match=rf"^\[{name}\]: got a {type(value).__name__}, expected"):
            trainer.load_state_dict({**state, name: value})
    assert same(trainer.state_dict(), before)


@pytest.mark.parametrize("name", ["fc2.weight", "Moment_2_fc2.weight"])
def test_shapes_that_do_not_fit_are_named_before_anything_changes(name: str) -> None:
    trainer, other = trained(), trained(steps=5)
    before, state = trainer.state_dict(), other.state_dict()
    state[name] = state[name][:, :3]
    with pytest.raises(ValueError, match=rf"\[{name}\] shape: got \[4, 3\], expected \[4, 8\]"):
        trainer.load_state_dict(state)
    assert same(trainer.state_dict(), before)


def test_counts_of_one_state_agree() -> None:
    state = {"Update_Count_a": np.array([3]), "Update_Count_b": np.array([4])}
    with pytest.raises(ValueError, match="Update_Count_b: got update 4, expected 3 as elsewhere"):
        take_apart(state, ["a", "b"], ["a", "b"])


# ---- files
def test_checkpoint_gives_back_what_was_stored_with_it(tmp_path: Path) -> None:
    trainer = trained()
    save_checkpoint(trainer, str(tmp_path), "run", {"epoch": 3, "order": torch.arange(4)})
    assert [path.name for path in tmp_path.iterdir()] == ["run.ort.pt"]
    assert torch.load(tmp_path / "run.ort.pt", weights_only=True).keys() == {"model", "epoch", "order"}
    back = load_checkpoint(trainer_of(perceptron(2), "AdamOptimizer"), str(tmp_path), "run")
    assert back.keys() == {"epoch", "order"}
    assert back["epoch"] == 3


def test_checkpoint_without_optimizer(tmp_path: Path) -> None:
    save_checkpoint(trained(), tmp_path, include_optimizer_state=False)
    assert torch.load(tmp_path / "ORT_checkpoint.ort.pt", weights_only=True)["model"].keys() == set(NAMES)


def test_checkpoint_overwrites_with_a_warning(tmp_path: Path) -> None:
    save_checkpoint(trained(), tmp_path)
    with pytest.warns(UserWarning, match=r"ORT_checkpoint\.ort\.pt is there already"):
        save_checkpoint(trained(), tmp_path)
    assert len(list(tmp_path.iterdir())) == 1


def test_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = trained()
    save_checkpoint(trainer, tmp_path)
    before = (tmp_path / "ORT_checkpoint.ort.pt").read_bytes()

    def fail(_: Any, file: Any) -> None:
        file.write(b"half")
        raise OSError("disk full")

    monkeypatch.setattr(torch, "save", fail)
    with pytest.warns(UserWarning, match="already"), pytest.raises(OSError, match="disk full"):
        save_checkpoint(trainer, tmp_path)
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [before]


def test_one_wrong_bit_is_found(tmp_path: Path) -> None:
    trainer = trained()
    save_checkpoint(trainer, tmp_path)
    path, state = tmp_path / "ORT_checkpoint.ort.pt", trainer.state_dict()
    content = path.read_bytes()
    weight = content.index(state["fc1.weight"].numpy().tobytes())
    for place in (*range(weight, weight + 8), *range(0, len(content), 97)):
        damaged = bytearray(content)
        damaged[place] ^= 8
        path.write_bytes(damaged)
        try:
            load_checkpoint(trainer, tmp_path)
            is_found = False
        except ValueError as error:
            is_found = str(path) in str(error)
        assert is_found or (same(trainer.state_dict(), state) and not weight <= place < weight + 8)


def test_a_file_of_another_model_is_named(tmp_path: Path) -> None:
    torch.save({"model": {"fc1.weight": torch.ones(2)}}, tmp_path / "ORT_checkpoint.ort.pt")
    with pytest.raises(ValueError, match=r"ORT_checkpoint.ort.pt': \[fc1.weight\] shape: got \[2\]"):
        load_checkpoint(trained(), tmp_path)


@pytest.mark.parametrize("kind", [AssertionError, FileNotFoundError])
def test_missing_folders_and_files_are_named(kind: type[Exception], tmp_path: Path) -> None:
    trainer = trained()
    with pytest.raises(kind, match="nowhere is no folder; make it first"):
        save_checkpoint(trainer, tmp_path / "nowhere")
    with pytest.raises(kind, match='No checkpoint files found with prefix "run"'):
        load_checkpoint(trainer, tmp_path, "run")
    save_checkpoint(trainer, tmp_path, "run_2")
    with pytest.raises(kind, match='No checkpoint files found with prefix "run"'):
        load_checkpoint(trainer, tmp_path, "run")


def test_files_run_no_code(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(tmp_path / "executed"),)

    torch.save({"model": {}, "epoch": Evil()}, tmp_path / "ORT_checkpoint.ort.pt")
    with pytest.raises(ValueError, match=r"ORT_checkpoint\.ort\.pt") as error:
        load_checkpoint(trained(), tmp_path)
    assert isinstance(error.value.__cause__, pickle.UnpicklingError)
    assert not (tmp_path / "executed").exists()


# ---- one file per rank
def in_pieces(state: dict[str, Any], ranks: int) -> list[dict[str, Any]]:
    """As ranks store it that hold a part of the optimizer each: the first moments and weights as flat pieces."""
    pieces: list[dict[str, Any]] = [{} for _ in range(ranks)]
    for number, (name, value) in enumerate(state.items()):
        if name.startswith(("Moment_", "Update_Count_")) and "bias" in name:
            pieces[number % ranks][name] = value
        elif name.startswith("Moment_"):
            for rank, part in enumerate(value.flatten().tensor_split(ranks)):
                pieces[rank][f"{name}_view_{rank}"] = part
        elif name.startswith("Update_Count_"):
            for rank in range(ranks):
                pieces[rank][f"{name}_view_{rank}"] = value
        else:
            for rank in range(ranks):
                pieces[rank][name] = value
    return pieces


@pytest.mark.parametrize("ranks", [2, 3, 11])
def test_pieces_of_all_ranks_are_joined(ranks: int, tmp_path: Path) -> None:
    trainer = trained()
    state = trainer.state_dict()
    for rank, piece in enumerate(in_pieces(state, ranks)):
        torch.save({"model": piece, "epoch": 2}, tmp_path / f"ORT_checkpoint.ZeRO.{rank}.{ranks - 1}.ort.pt")
    resumed = trainer_of(perceptron(2), "AdamOptimizer")
    with pytest.warns(UserWarning, match=f"{ranks} files of 'ORT_checkpoint' are joined"):
        assert load_checkpoint(resumed, tmp_path, strict=True) == {"epoch": 2}
    assert same(resumed.state_dict(), state)


def test_weights_in_pieces_have_the_shape_of_their_half_copies() -> None:
    weight = torch.arange(6.0).reshape(2, 3)
    states = [{"w_view_0": weight.flatten()[:4], "w_fp16": weight.half()}, {"w_view_1": weight.flatten()[4:]}]
    assert torch.equal(join_shards(states)["w"], weight)
    with pytest.raises(ValueError, match=r"\[w\] elements of all ranks: got 4, expected 6"):
        join_shards(states[:1])


def test_each_rank_stores_its_part() -> None:
    state = trained("LambOptimizer").state_dict()
    parts = [part_of(state, rank, 3) for rank in range(3)]
    assert [part[f"Moment_1_fc2.weight_view_{rank}"].numel() for rank, part in enumerate(parts)] == [11, 11, 10]
    assert all(torch.equal(part["fc2.weight"], state["fc2.weight"]) for part in parts)
    joined = join_shards(parts)
    assert same(joined, state)
    assert joined.counters == state.counters
    assert part_of(state) is state


def test_ranks_that_are_missing_or_mixed_are_named(tmp_path: Path) -> None:
    trainer = trained()
    torch.save({"model": {}}, tmp_path / checkpoint_name("run", 0, 3))
    torch.save({"model": {}}, tmp_path / checkpoint_name("run", 2, 3))
    with pytest.raises(AssertionError, match=r"of 3 ranks' checkpoints \['run\.ZeRO\.1\.2\.ort\.pt'\] are missing"):
        load_checkpoint(trainer, tmp_path, "run")
    torch.save({"model": {}}, tmp_path / checkpoint_name("run", 0, 2))
    with pytest.raises(ValueError, match=r"runs with \[2, 3\] ranks"):
        load_checkpoint(trainer, tmp_path, "run")
    save_checkpoint(trainer, tmp_path, "run")
    with pytest.raises(ValueError, match=r"has run\.ort\.pt and files of 3 ranks; remove those that are outdated"):
        load_checkpoint(trainer, tmp_path, "run")


def test_two_trainers_of_one_module_share_its_weights() -> None:
    module = perceptron()
    one, other = trainer_of(module), trainer_of(module)
    one.train_step(*batch_of(0), rate_of(0.1))
    other.train_step(*batch_of(1), rate_of(0.1))
    assert same(one.state_dict(), other.state_dict())
