"""State of the second generation's trainer: keys, warnings, resuming from every form of it, files."""

from __future__ import annotations

import copy
import pickle
import warnings
from unittest.mock import Mock, patch

import numpy as np
import onnx
import pytest
import torch
from backpass import optim
from backpass.training import ORTTrainer, ORTTrainerOptions, _checkpoint_storage, amp, checkpoint
from trainer.generation2_models import (
    LINEAR,
    assert_same_state,
    cross_entropy,
    flat_loss,
    linear,
    linear_data,
    transformer,
    transformer_data,
    transformer_description,
)

CONFIGS = {
    "sgd": lambda: optim.SGDConfig(lr=0.1),
    "adam": lambda: optim.AdamConfig(lr=0.1, lambda_coef=0.01),
    "lamb": lambda: optim.LambConfig(lr=0.1),
}
KEYS = {"linear.weight", "linear.bias", "shift"}


def made(config=None, module=None, **options):
    given = ORTTrainerOptions({"device": {"id": "cpu"}, **options})
    return ORTTrainer(module or linear(), LINEAR, config or optim.AdamConfig(), cross_entropy, given)


def trained(config=None, steps=1, **options):
    trainer = made(config, **options)
    for step in range(steps):
        trainer.train_step(*linear_data(step))
    return trainer


# ---- keys
@pytest.mark.parametrize("name", CONFIGS)
def test_keys(name):
    state = trained(CONFIGS[name](), 3).state_dict()
    assert set(state) == {"model", "optimizer", "trainer_options", "train_step_info"}
    assert set(state["model"]) == {"full_precision"}
    assert set(state["model"]["full_precision"]) == KEYS
    weights = {"linear.weight", "linear.bias"}
    if name == "sgd":
        assert state["optimizer"] == {}
    elif name == "adam":
        assert set(state["optimizer"]) == weights
        assert all(set(state["optimizer"][w]) == {"Moment_1", "Moment_2", "Update_Count"} for w in weights)
        assert np.array_equal(state["optimizer"]["linear.bias"]["Update_Count"], [4]), "the number of the next update"
    else:
        assert set(state["optimizer"]) == {*weights, "shared_optimizer_state"}
        assert all(set(state["optimizer"][w]) == {"Moment_1", "Moment_2"} for w in weights)
        assert np.array_equal(state["optimizer"]["shared_optimizer_state"]["Step"], [4])
    assert state["train_step_info"].items() >= {"optimization_step": 3, "step": 3}.items()
    assert state["trainer_options"] == {
        "mixed_precision": False,
        "zero_stage": 0,
        "world_rank": 0,
        "world_size": 1,
        "optimizer_name": CONFIGS[name]().name,
        "data_parallel_size": 1,
        "horizontal_parallel_size": 1,
    }


def test_states_are_copies():
    trainer = trained()
    state = trainer.state_dict()
    kept = copy.deepcopy(state)
    trainer.train_step(*linear_data(1))
    assert_same_state(state, kept)
    state["model"]["full_precision"]["linear.weight"][:] = 0
    assert trainer._torch_model.linear.weight.abs().min() > 0


def test_before_the_first_step():
    trainer = made()
    text = (
        "ONNX Runtime training session is not initialized yet. "
        "Please run train_step or eval_step at least once before calling ORTTrainer.state_dict()."
    )
    with pytest.warns(UserWarning, match="not initialized") as seen:
        assert trainer.state_dict() == {}
    assert seen[0].message.args[0] == text
    assert not trainer._load_state_dict
    state = trained().state_dict()
    trainer.load_state_dict(state)
    assert trainer._load_state_dict.args[0] is state
    with pytest.warns(UserWarning, match="not initialized"):
        assert trainer.state_dict() is state


def test_pytorch_format_goes_into_the_module():
    trainer = trained()
    module = linear(5)
    module.load_state_dict(trainer.state_dict(pytorch_format=True))
    assert all(torch.equal(a, b) for a, b in zip(module.parameters(), trainer._torch_model.parameters(), strict=True))


# ---- resuming
def by_state(trainer, fresh, path):
    fresh.load_state_dict(trainer.state_dict())


def by_file(trainer, fresh, path):
    trainer.save_checkpoint(str(path / "c.ortcp"), {"epoch": 3, "array": torch.arange(4)})
    user = fresh.load_checkpoint(str(path / "c.ortcp"))
    assert user["epoch"] == 3
    assert torch.equal(user["array"], torch.arange(4))


def by_flat_state(trainer, fresh, path):
    with pytest.warns(DeprecationWarning, match="state_dict"):
        checkpoint.experimental_load_state_dict(fresh, checkpoint.experimental_state_dict(trainer), strict=True)


def by_flat_file(trainer, fresh, path):
    with pytest.warns(DeprecationWarning, match="save_checkpoint"):
        checkpoint.experimental_save_checkpoint(trainer, str(path), checkpoint_state_dict={"epoch": 4})
    with pytest.warns(DeprecationWarning, match="load_checkpoint"):
        found = checkpoint.experimental_load_checkpoint(fresh, str(path))
    assert found == {"epoch": 4}


WAYS = [by_state, by_file, by_flat_state, by_flat_file]
FIRST = ["deferred", "after a step", "after an evaluation", "onnx"]
# Every way of every optimizer's state, and every moment of each way; the loss scale goes with one optimizer: to capture
# a module in mixed precision takes torch five times as long.
RESUMED = [
    *((name, "deferred", way, name == "adam") for name in CONFIGS for way in WAYS),
    *(("lamb", first, way, False) for first in FIRST[1:] for way in WAYS),
    *(("adam", first, by_file, True) for first in FIRST[1:]),
    *(("sgd", first, by_state, False) for first in FIRST[1:]),
]


@pytest.mark.parametrize(("name", "first", "way", "mixed"), RESUMED)
def test_resuming_is_exact(tmp_path, name, first, way, mixed):
    """Three steps, then three more here and in a fresh trainer: all bits of losses and states are the same."""

    def settings():
        schedule = optim.LinearWarmupLRScheduler(total_steps=12, warmup=0.5)
        scaler = {"enabled": True, "loss_scaler": amp.DynamicLossScaler(loss_scale=4096.0)} if mixed else {}
        frozen = {"frozen_weights": ["shift"]} if first == "onnx" else {}
        return {"lr_scheduler": schedule, "mixed_precision": scaler, "utils": frozen}

    trainer = trained(CONFIGS[name](), 3, **settings())
    if mixed:
        trainer.options.mixed_precision.loss_scaler.loss_scale = 512.0
    fresh = made(CONFIGS[name](), linear(7), **settings())
    if first == "onnx":
        options = ORTTrainerOptions({"device": {"id": "cpu"}, **settings()})
        fresh = ORTTrainer(trainer._onnx_model, LINEAR, CONFIGS[name](), options=options)
        fresh.train_step(*linear_data(8))
    elif first == "after a step":
        fresh.train_step(*linear_data(8))
    elif first == "after an evaluation":
        fresh.eval_step(*linear_data(8))
    way(trainer, fresh, tmp_path)
    for step in range(3, 6):
        expected, found = trainer.train_step(*linear_data(step)), fresh.train_step(*linear_data(step))
        if first != "onnx":  # whose bfloat16 is in other places
            assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
        assert fresh.options.lr_scheduler.get_last_lr() == trainer.options.lr_scheduler.get_last_lr()
    if first != "onnx":
        assert_same_state(fresh.state_dict(), trainer.state_dict())
    info = fresh.state_dict()["train_step_info"]
    assert info.items() >= {"optimization_step": 6, "step": 6, **({"loss_scale": 512.0} if mixed else {})}.items()


@pytest.mark.parametrize("name", CONFIGS)
def test_a_file_loaded_and_saved_is_the_same(tmp_path, name):
    trainer = trained(CONFIGS[name](), 2)
    trainer.save_checkpoint(str(tmp_path / "a"))
    fresh = made(CONFIGS[name](), linear(9))
    assert fresh.load_checkpoint(str(tmp_path / "a")) is None
    fresh.eval_step(*linear_data())
    fresh.save_checkpoint(str(tmp_path / "b"))
    assert_same_state(_checkpoint_storage.load(tmp_path / "b"), _checkpoint_storage.load(tmp_path / "a"))
    with pytest.raises(FileExistsError):
        trainer.save_checkpoint(str(tmp_path / "a"))


def test_two_trainers_of_one_module():
    """The state that waits is applied by the first step, so the other trainer's steps before do not matter."""
    module, config = linear(), optim.AdamConfig()
    first, second = made(config, module), made(config, module)
    first.train_step(*linear_data(0))
    state = first.state_dict()
    second.load_state_dict(state)
    first.train_step(*linear_data(1))
    expected = first.state_dict()
    second.train_step(*linear_data(1))
    assert_same_state(second.state_dict(), expected)


def test_an_unfinished_accumulation_begins_anew():
    """Its gradients are in no state: the next update is over as many steps as any other."""
    trainer = trained(optim.SGDConfig(lr=0.1), 4, batch={"gradient_accumulation_steps": 3})
    fresh = made(optim.SGDConfig(lr=0.1), linear(7), batch={"gradient_accumulation_steps": 3})
    fresh.load_state_dict(trainer.state_dict())
    updates = []
    for step in range(4, 10):
        fresh.train_step(*linear_data(step))
        updates.append(fresh._train_step_info.optimization_step)
    assert updates == [1, 1, 2, 2, 2, 3]
    assert fresh._train_step_info.step == 10


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_the_sample_resumes(tmp_path, dropout):
    def sample(seed):
        options = ORTTrainerOptions({"device": {"id": "cpu"}})
        module = transformer(seed, dropout)
        return ORTTrainer(module, transformer_description(), optim.LambConfig(lr=0.01), flat_loss, options)

    trainer = sample(1)
    for step in range(2):
        trainer.train_step(*transformer_data(step))
    trainer.save_checkpoint(str(tmp_path / "c"))
    fresh = sample(2)
    fresh.load_checkpoint(str(tmp_path / "c"))
    for step in range(2, 5):
        assert torch.equal(fresh.train_step(*transformer_data(step))[0], trainer.train_step(*transformer_data(step))[0])
    assert_same_state(fresh.state_dict(), trainer.state_dict())


# ---- what does not fit
@pytest.mark.parametrize("part", ["model", "optimizer", "train_step_info"])
def test_a_missing_part_is_told(part):
    trainer = trained()
    state = trained(steps=3).state_dict()
    del state[part]
    with pytest.warns(UserWarning, match="Missing key") as seen:
        trainer.load_state_dict(state)
    assert [str(w.message) for w in seen] == [f"Missing key: {part} in state_dict"]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda s: s["model"].pop("full_precision"), r"Missing keys: full_precision in state_dict\[model\]"),
        (lambda s: s["model"].update(mixed={}), r"Unexpected keys: mixed in state_dict\[model\]"),
        (
            lambda s: s["model"]["full_precision"].pop("linear.bias"),
            r"Missing keys: linear.bias in state_dict\[model\]\[full_precision\]",
        ),
        (lambda s: s["model"]["full_precision"].update(other=np.ones(2)), "Unexpected keys: other in"),
        (lambda s: s["optimizer"].clear(), r"Missing keys: linear.bias, linear.weight in state_dict\[optimizer\]"),
        (lambda s: s["optimizer"].update(b={}), r"Unexpected keys: b in state_dict\[optimizer\]"),
        (lambda s: s["optimizer"]["linear.bias"].pop("Moment_1"), "Missing keys: Moment_1"),
        (lambda s: s["optimizer"]["linear.bias"].update(Moment_3=1), "Unexpected keys: Moment_3"),
    ],
)
def test_strict(change, text):
    trainer, state = trained(), trained(steps=3).state_dict()
    before = trainer.state_dict()
    change(state)
    with pytest.raises(RuntimeError, match=text):
        trainer.load_state_dict(state)
    assert_same_state(trainer.state_dict(), before)
    waiting = made()
    waiting.load_state_dict(state)
    for _ in range(2):  # a state that does not fit is not forgotten, so nobody trains without it
        with pytest.raises(RuntimeError, match=text):
            waiting.train_step(*linear_data())
    if "Missing keys: full" not in text:
        trainer.load_state_dict(state, strict=False)


def test_another_optimizer():
    with pytest.raises(AssertionError) as error:
        trained(optim.LambConfig()).load_state_dict(trained().state_dict(), strict=False)
    assert str(error.value) == "Optimizer mismatch: expected LambOptimizer, got AdamOptimizer"


def test_counters_that_disagree():
    state = trained().state_dict()
    state["optimizer"]["linear.bias"]["Update_Count"][:] = 9
    with pytest.raises(ValueError, match="updated together"):
        trained().load_state_dict(state)


def test_flat_states():
    trainer = trained(steps=2)
    with pytest.warns(DeprecationWarning, match="state_dict"):
        state = checkpoint.experimental_state_dict(trainer)
    with pytest.warns(DeprecationWarning, match="state_dict"):
        weights = checkpoint.experimental_state_dict(trainer, include_optimizer_state=False)
    assert set(weights) == KEYS
    moments = {f"{kind}_linear.{w}" for kind in ("Moment_1", "Moment_2", "Update_Count") for w in ("weight", "bias")}
    assert set(state) == KEYS | moments
    assert state["Update_Count_linear.bias"].tolist() == [3]
    with pytest.warns(DeprecationWarning, match="load"), pytest.raises(RuntimeError) as error:
        checkpoint.experimental_load_state_dict(trainer, {**state, "other": torch.ones(1)}, strict=True)
    assert str(error.value) == "Checkpoint tensor: other is not present in the model."


def test_pickles_of_the_original_are_read_when_asked_for(tmp_path):
    trainer = trained()
    state = {**trainer.state_dict(), "user_dict": pickle.dumps({"epoch": 5}).hex()}
    _checkpoint_storage.save(state, tmp_path / "c")
    before = trainer.state_dict()
    trainer.train_step(*linear_data(4))
    with pytest.raises(ValueError, match="allow_pickle=True"):
        trainer.load_checkpoint(str(tmp_path / "c"))
    assert trainer.load_checkpoint(str(tmp_path / "c"), allow_pickle=True) == {"epoch": 5}
    assert_same_state(trainer.state_dict(), before)


# ---- with a session that is not ours: scripts and tests put one in place
class Session:
    def __init__(self, model, optimizer, partition):
        self.model, self.optimizer, self.partition = model, optimizer, partition

    def get_model_state(self, include_mixed_precision_weights=False):
        return self.model

    def get_optimizer_state(self):
        return self.optimizer

    def get_partition_info_map(self):
        return self.partition


WEIGHTS = {"full_precision": {"a": np.arange(5), "b": np.arange(7)}}
OPTIMIZER = {"a": {"Moment_1": np.arange(5)}, "shared_optimizer_state": {"step": np.arange(1)}}
ZERO = {"distributed": {"allreduce_post_accumulation": True, "deepspeed_zero_optimization": {"stage": 1}}}


def replaced(model=None, optimizer=None, partition=None, initializers=(), **options):
    trainer = made(optim.LambConfig(), **options)
    trainer._training_session = Session(model or {}, optimizer or {}, partition or {})
    trainer._onnx_model = Mock()
    trainer._onnx_model.graph.initializer = list(initializers)
    return trainer


def test_state_of_another_session():
    state = replaced().state_dict()
    assert state["model"] == {}
    assert state["optimizer"] == {}
    assert "partition_info" not in state
    state = replaced(WEIGHTS, OPTIMIZER, {"a": {"original_dim": [1, 2, 3]}}, **ZERO).state_dict()
    assert_same_state(state["model"], WEIGHTS)
    assert_same_state(state["optimizer"], OPTIMIZER)
    assert state["partition_info"]["a"]["original_dim"] == [1, 2, 3]
    flat = replaced(WEIGHTS, OPTIMIZER).state_dict(pytorch_format=True)
    assert {name: value.tolist() for name, value in flat.items()} == {"a": [*range(5)], "b": [*range(7)]}


def test_frozen_weights_of_another_model():
    values = {"frozen": np.array([1, 2, 3], np.float32), "half": np.array([7, 8], np.float16), "other": np.ones(2)}
    tensors = [onnx.numpy_helper.from_array(value, name) for name, value in values.items()]
    trainer = replaced(WEIGHTS, initializers=tensors)
    trainer.options.utils.frozen_weights = ["frozen", "half"]
    found = trainer.state_dict()["model"]["full_precision"]
    assert set(found) == {"a", "b", "frozen", "half"}
    assert np.array_equal(found["half"], [7, 8])


def test_what_loading_calls():
    trainer = replaced()
    trainer.state_dict = Mock(return_value={"model": WEIGHTS, "optimizer": OPTIMIZER})
    trainer._update_onnx_model_initializers, trainer._init_session = Mock(), Mock()
    given = {
        "model": {"full_precision": {"a": np.array([1, 2]), "b": np.array([3])}},
        "optimizer": {"a": {"Moment_1": np.array([5])}, "shared_optimizer_state": {"step": np.array([9])}},
        "trainer_options": {"optimizer_name": b"LambOptimizer"},
    }
    with pytest.warns(UserWarning, match="Missing key: train_step_info"):
        trainer.load_state_dict(given)
    (weights,), _ = trainer._update_onnx_model_initializers.call_args
    (optimizer,), _ = trainer._init_session.call_args
    assert_same_state(weights, given["model"]["full_precision"])
    assert_same_state(optimizer, given["optimizer"])


def test_what_saving_calls():
    trainer = made()
    trainer.state_dict = Mock(return_value={"model": {}, "optimizer": {}})
    with patch.object(_checkpoint_storage, "save") as save:
        trainer.save_checkpoint("abc")
        trainer.save_checkpoint("def", include_optimizer_states=False)
        trainer.save_checkpoint("ghi", user_dict={"x": np.arange(4)})
    calls = [call.args for call in save.call_args_list]
    assert calls[0] == ({"model": {}, "optimizer": {}}, "abc")
    assert calls[1] == ({"model": {}}, "def")
    assert calls[2][0]["user_dict"] == _checkpoint_storage.to_serialized_hex({"x": np.arange(4)})


OPTIONS = {
    "mixed_precision": np.bool_(False),
    "world_rank": np.int64(0),
    "world_size": np.int64(1),
    "horizontal_parallel_size": np.int64(1),
    "data_parallel_size": np.int64(1),
    "zero_stage": np.int64(0),
}


@pytest.mark.parametrize("change", [{}, {"zero_stage": np.int64(1)}, {"horizontal_parallel_size": np.int64(2)}])
def test_what_loading_a_file_calls(change):
    options = {**OPTIONS, **change}
    state = {"model": {}, "trainer_options": options, "user_dict": _checkpoint_storage.to_serialized_hex({"x": 1})}
    trainer = made()
    trainer.load_state_dict = Mock()
    with (
        patch.object(_checkpoint_storage, "load", side_effect=[options, state]) as load,
        patch.object(checkpoint, "aggregate_checkpoints", return_value=state) as aggregate,
    ):
        assert trainer.load_checkpoint("abc") == {"x": 1}
    assert load.call_args_list[0].args == ("abc",)
    assert load.call_args_list[0].kwargs == {"key": "trainer_options"}
    if change:
        assert aggregate.call_args.args[0] == ("abc",)
    else:
        assert not aggregate.called
        assert load.call_args_list[1].args == ("abc",)
        assert "key" not in load.call_args_list[1].kwargs


# ---- files of several ranks
def rank_state(rank, size, weights, moments, mixed=False, across=1, zero=1, **info):
    return {
        "model": {"full_precision": weights},
        "optimizer": {
            name: {"Moment_1": m, "Moment_2": m * 2, "Update_Count": np.array([5])} for name, m in moments.items()
        },
        "trainer_options": {
            **OPTIONS,
            "mixed_precision": mixed,
            "world_rank": rank,
            "world_size": size,
            "zero_stage": zero,
            "horizontal_parallel_size": across,
            "data_parallel_size": size // across,
            "optimizer_name": "AdamOptimizer",
        },
        "train_step_info": {"optimization_step": 4, "step": 8},
        "partition_info": info,
    }


def saved(folder, states):
    paths = [str(folder / f"{i}.ortcp") for i in range(len(states))]
    for path, state in zip(paths, states, strict=True):
        _checkpoint_storage.save(state, path)
    return paths[::-1]


@pytest.mark.parametrize("mixed", [False, True])
def test_zero_shards_are_joined(tmp_path, mixed):
    cut = {"original_dim": np.array([2, 3])}
    whole, all_moments = np.arange(6.0).reshape(2, 3), np.arange(10.0, 16.0)
    states = [
        rank_state(
            rank,
            3,
            {"cut": whole.reshape(-1)[2 * rank : 2 * rank + 2] if mixed else whole, "same": np.arange(3)},
            {"cut": all_moments[2 * rank : 2 * rank + 2], "same": np.arange(3)},
            mixed,
            cut=cut,
        )
        for rank in range(3)
    ]
    found = checkpoint.aggregate_checkpoints(saved(tmp_path, states), pytorch_format=False)
    assert np.array_equal(found["model"]["full_precision"]["cut"], whole)
    assert np.array_equal(found["model"]["full_precision"]["same"], np.arange(3))
    assert np.array_equal(found["optimizer"]["cut"]["Moment_1"], all_moments.reshape(2, 3))
    assert np.array_equal(found["optimizer"]["cut"]["Moment_2"], all_moments.reshape(2, 3) * 2)
    assert np.array_equal(found["optimizer"]["cut"]["Update_Count"], [5])
    options = found["trainer_options"]
    assert options["mixed_precision"] == mixed
    assert (options["zero_stage"], options["world_rank"], options["world_size"]) == (0, 0, 1)
    assert found["train_step_info"] == {"optimization_step": 4, "step": 8}
    assert "partition_info" not in found


def test_shards_in_torch_format_and_ranks_that_are_missing(tmp_path):
    states = [
        rank_state(rank, 2, {"w": np.arange(4.0)}, {"w": np.arange(2)}, w={"original_dim": [4]}) for rank in range(2)
    ]
    paths = saved(tmp_path, states)
    assert torch.equal(checkpoint.aggregate_checkpoints(paths)["w"], torch.arange(4.0, dtype=torch.float64))
    with pytest.raises(ValueError, match=r"files of ranks \[1\], expected those of 0 to 1"):
        checkpoint.aggregate_checkpoints(paths[:1])


def test_shards_that_disagree(tmp_path):
    states = [rank_state(rank, 2, {"w": np.arange(4) + rank}, {}) for rank in range(2)]
    with pytest.raises(AssertionError, match="Value mismatch for model state w"):
        checkpoint.aggregate_checkpoints(saved(tmp_path, states))


@pytest.mark.parametrize("zero", [0, 1])
def test_megatron_parts_are_joined(tmp_path, zero):
    """Two processes hold halves of each weight, by rows or by columns; two such pairs train on different data."""
    rows, columns = np.arange(12.0).reshape(4, 3), np.arange(20.0).reshape(2, 10)
    moments = {"rows": rows + 100, "columns": columns + 100}
    info = {
        "rows": {"original_dim": np.array([2, 3]), "megatron_row_partition": np.array([1])},
        "columns": {"original_dim": np.array([2, 5]), "megatron_row_partition": np.array([0])},
    }

    def part(values, name, place):
        return np.split(values, 2, 0 if name == "rows" else 1)[place]

    states = []
    for rank in range(4):
        place, copy_of = rank % 2, rank // 2
        kept = {name: part(values, name, place) for name, values in moments.items()}
        if zero:
            kept = {name: np.split(values.reshape(-1), 2)[copy_of] for name, values in kept.items()}
        weights = {"rows": part(rows, "rows", place), "columns": part(columns, "columns", place), "same": np.arange(3)}
        states.append(rank_state(rank, 4, weights, kept, across=2, zero=zero, **info))
    found = checkpoint.aggregate_checkpoints(saved(tmp_path, states), pytorch_format=False)
    assert np.array_equal(found["model"]["full_precision"]["rows"], rows)
    assert np.array_equal(found["model"]["full_precision"]["columns"], columns)
    for name, values in moments.items():
        assert np.array_equal(found["optimizer"][name]["Moment_1"], values)
    assert np.array_equal(found["model"]["full_precision"]["same"], np.arange(3))
    assert "partition_info" not in found


@pytest.mark.parametrize("size", [2, 3, 5])
@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("mixed", [False, True])
def test_what_ranks_write_is_the_whole_again(tmp_path, name, size, mixed):
    state = trained(CONFIGS[name](), 2).state_dict()
    states = []
    for rank in range(size):
        options = {"zero_stage": 1, "world_rank": rank, "world_size": size, "mixed_precision": mixed}
        own = {**state, "trainer_options": {**state["trainer_options"], **options}}
        states.append(checkpoint.shard_of(own, rank, size))
    if name != "sgd":
        assert states[0]["optimizer"]["linear.weight"]["Moment_1"].size == -(-8 // size)
    found = checkpoint.aggregate_checkpoints(saved(tmp_path, states), pytorch_format=False)
    assert_same_state(found["model"], state["model"])
    assert_same_state(found.get("optimizer", {}), state["optimizer"])


def test_a_single_zero_file_is_loaded(tmp_path):
    trainer = trained(steps=2, **ZERO)
    trainer.save_checkpoint(str(tmp_path / "c"), {"epoch": 1})
    fresh = made(module=linear(4))
    assert fresh.load_checkpoint(str(tmp_path / "c")) == {"epoch": 1}
    trainer.train_step(*linear_data(3))
    fresh.train_step(*linear_data(3))
    expected = trainer.state_dict()
    assert_same_state(fresh.state_dict()["model"], expected["model"])
    assert_same_state(fresh.state_dict()["optimizer"], expected["optimizer"])


def test_no_warnings_in_ordinary_use(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trainer = trained(steps=2)
        trainer.save_checkpoint(str(tmp_path / "c"))
        fresh = made()
        fresh.load_checkpoint(str(tmp_path / "c"))
        fresh.train_step(*linear_data(3))
