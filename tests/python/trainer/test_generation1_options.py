"""Descriptions, loss scaler, attributes, and what a constructor of any release is called with."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from backpass.trainer import IODescription, LossScaler, ModelDescription, ORTTrainer, generate_sample
from backpass.trainer.attributes import DEFAULTS, WeightAttributes, algorithm_of, settings_of
from backpass.trainer.options import NEWEST, RENAMED, Options, bind_options


def test_descriptions_keep_what_they_are_given() -> None:
    shape = ["batch", 3]
    described = IODescription("x", shape, torch.int64, 10)
    assert (described.name_, described.shape_, described.dtype_, described.num_classes_) == (
        "x",
        shape,
        torch.int64,
        10,
    )
    assert IODescription("Learning_Rate", [0.001]).dtype_ is None
    model = ModelDescription([described], [])
    assert model.inputs_ == [described]
    assert model.outputs_ == []
    assert "'x'" in repr(model)


def test_samples_fit_their_description() -> None:
    classes = generate_sample(IODescription("label", [50, "n"], torch.int64, num_classes=3), torch.device("cpu"))
    assert classes.shape == (50, 1)
    assert classes.dtype == torch.int64
    assert set(classes.flatten().tolist()) == {0, 1, 2}
    values = generate_sample(IODescription("x", ["batch", 4], torch.float64))
    assert values.shape == (1, 4)
    assert values.dtype == torch.float64


# ---- LossScaler
def test_scale_doubles_after_a_window_and_halves_at_once() -> None:
    scaler = LossScaler("scale", True)
    assert (scaler.loss_scale_, scaler.up_scale_window_) == (65536.0, 2000)
    assert (scaler.min_loss_scale_, scaler.max_loss_scale_) == (1.0, 2.0**24)
    for step in range(1, 2000):
        scaler.update_loss_scale(True)
        assert (scaler.stable_steps_, scaler.loss_scale_) == (step, 65536.0)
    scaler.update_loss_scale(True)
    assert (scaler.stable_steps_, scaler.loss_scale_) == (0, 131072.0)
    scaler.update_loss_scale(True)
    scaler.update_loss_scale(False)
    assert (scaler.stable_steps_, scaler.loss_scale_) == (0, 65536.0)


def test_scale_stays_within_its_bounds() -> None:
    scaler = LossScaler("scale", True, loss_scale=4.0, up_scale_window=1, min_loss_scale=2.0, max_loss_scale=8.0)
    seen = []
    for finite in (True, True, False, False, False):
        scaler.update_loss_scale(finite)
        seen.append(scaler.loss_scale_)
    assert seen == [8, 8, 4, 2, 2]
    scaler.reset()
    assert (scaler.loss_scale_, scaler.stable_steps_) == (4.0, 0)


def test_fixed_scale_is_left_alone() -> None:
    scaler = LossScaler("scale", False, loss_scale=128.0)
    scaler.update_loss_scale(False)
    assert (scaler.loss_scale_, scaler.stable_steps_) == (128.0, 0)


# ---- the constructor's arguments
def test_ranks_of_1_4_and_later_stand_ninth_and_tenth() -> None:
    options = bind_options((2, 1, 4, True), {})
    assert (options.gradient_accumulation_steps, options.world_rank, options.world_size) == (2, 1, 4)
    assert options.use_mixed_precision


@pytest.mark.parametrize("postprocess", [None, print])
def test_function_of_1_3_stands_ninth(postprocess: Any) -> None:
    rate = float
    options = bind_options((2, postprocess, 1, 4, False, True, 7, rate, None, True, False, ["w"], 10), {})
    assert options._extra_postprocess is postprocess
    assert (options.world_rank, options.world_size, options.allreduce_post_accumulation) == (1, 4, True)
    assert (options.global_step, options.get_lr_this_step, options.deepspeed_zero_stage) == (7, rate, 1)
    assert (options.enable_grad_norm_clip, options.frozen_weights, options._opset_version) == (False, ["w"], 10)


def test_names_of_all_releases_are_known() -> None:
    options = bind_options((), {"postprocess_model": print, "partition_optimizer": True})
    assert (options._extra_postprocess, options.deepspeed_zero_stage) == (print, 1)
    assert bind_options((), {"deepspeed_zero": 0}).deepspeed_zero_stage == 0
    assert bind_options((), {"use_invertible_layernorm_grad": True}).use_memory_efficient_gradient
    assert set(RENAMED.values()) <= set(NEWEST)
    defaults = Options()
    everything = {name: getattr(defaults, name) for name in NEWEST}
    assert bind_options((), everything) == defaults
    assert bind_options((), {"frozen_weights": None}).frozen_weights == ()


@pytest.mark.parametrize(
    ("positional", "named", "message"),
    [
        ((), {"gradient_acumulation_steps": 2}, "unknown argument 'gradient_acumulation_steps'"),
        ((2,), {"gradient_accumulation_steps": 2}, "'gradient_accumulation_steps' twice"),
        ((), {"postprocess_model": print, "_extra_postprocess": print}, "'_extra_postprocess' twice"),
        (tuple(range(30)), {}, "got 37 arguments by position, expected at most 26"),
    ],
)
def test_arguments_that_do_not_fit_are_named(positional: Any, named: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        bind_options(positional, named)


@pytest.mark.parametrize(
    ("named", "message"),
    [
        ({"gradient_accumulation_steps": 0}, "gradient_accumulation_steps: got 0, expected 1 or more"),
        ({"world_rank": 2, "world_size": 2}, "world_rank: got 2 of 2"),
        ({"deepspeed_zero_stage": 2}, "deepspeed_zero_stage: got 2, expected 0 or 1"),
    ],
)
def test_values_that_make_no_sense_are_refused(named: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        bind_options((), named)


def test_signature_lists_the_options() -> None:
    names = list(inspect.signature(ORTTrainer).parameters)
    assert names == [
        *("model", "loss_fn", "model_desc", "training_optimizer_name", "map_optimizer_attributes"),
        *("learning_rate_description", "device", *NEWEST),
    ]


# ---- attributes of optimizers
def test_attributes_become_settings() -> None:
    given = {"alpha": 0.8, "lambda": 1, "max_norm_clip": 2.0, "do_bias_correction": 0, "weight_decay_mode": 1}
    expected = {"alpha": 0.8, "weight_decay": 1.0, "max_norm": 2.0, "correct_bias": False, "decays_after": True}
    assert settings_of("w", given) == expected
    assert DEFAULTS["lamb"] == {"epsilon": 1e-6, "correct_bias": False}


def test_attributes_are_numbers() -> None:
    with pytest.raises(
        ValueError, match=r"Optimizer attributes must be either float or int\. 'alpha' of 'w': got '0.9'"
    ):
        settings_of("w", {"alpha": "0.9"})
    with pytest.raises(ValueError, match="attribute of 'w': got 'lamda', expected one of alpha, beta, lambda"):
        settings_of("w", {"lamda": 0.1})


def test_optimizers_are_the_three() -> None:
    assert algorithm_of("LambOptimizer") == "lamb"
    with pytest.raises(ValueError, match="got 'Adam', expected one of SGDOptimizer, AdamOptimizer, LambOptimizer"):
        algorithm_of("Adam")


def test_lamb_shares_ratios_and_bias_correction() -> None:
    ask = WeightAttributes("lamb", {"a": {"ratio_max": 2.0}, "b": {"ratio_max": 3.0}}.__getitem__)
    ask("a")
    with pytest.raises(ValueError, match=r"one 'ratio_max' for all weights: got 3.0 for 'b', expected 2.0 as for 'a'"):
        ask("b")
    adam = WeightAttributes("adam", {"a": {"do_bias_correction": 1}, "b": {"do_bias_correction": 0}}.__getitem__)
    assert [adam(weight)["correct_bias"] for weight in "ab"] == [True, False]
    assert WeightAttributes("adam", None)("w") == {}
