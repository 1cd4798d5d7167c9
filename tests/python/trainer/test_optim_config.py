"""Configurations of optimizers, schedules of the learning rate, loss scalers and TrainStepInfo."""

from __future__ import annotations

import math

import numpy as np
import pytest
from backpass import optim
from backpass.optim import lr_scheduler
from backpass.optim.config import _OptimizerConfig
from backpass.training import TrainStepInfo, amp


# ---- configurations
@pytest.mark.parametrize(
    ("name", "defaults", "params"),
    [
        ("AdamOptimizer", {"lr": -1}, []),
        ("NoOptimizer", {"lr": 0.1}, []),
        (optim.AdamConfig, {"lr": 0.1}, []),
        ("SGDOptimizer", [], []),
        ("SGDOptimizer", {}, []),
        ("AdamOptimizer", {"lr": None}, []),
        ("AdamOptimizer", {"lr": True}, []),
        ("SGDOptimizer", {"lr": 0.1}, {}),
        ("AdamOptimizer", {"lr": 0.1, "alpha": 2}, [[]]),
        ("AdamOptimizer", {"lr": 0.1, "alpha": 2}, [{"alpha": 1}]),
        ("AdamOptimizer", {"lr": 0.1, "alpha": 2}, [{"params": ["w"]}]),
        ("AdamOptimizer", {"lr": 0.1}, [{"params": ["w"], "alpha": 1}]),
    ],
)
def test_what_no_configuration_takes(name, defaults, params):
    with pytest.raises(AssertionError):
        _OptimizerConfig(name=name, params=params, defaults=defaults)


@pytest.mark.parametrize("name", ["AdamOptimizer", "LambOptimizer", "SGDOptimizer"])
@pytest.mark.parametrize("alpha", [None, 0.5])
def test_groups_are_completed_by_the_defaults(name, alpha):
    group = {"params": ["a", "b"], "alpha": 0.4 if alpha is None else alpha}
    config = _OptimizerConfig(name, [group], {"lr": 0.3, "alpha": 0.4})
    assert (config.name, config.lr) == (name, 0.3)
    assert set(group) == {"params", "alpha"}, "the caller's own is not changed"
    assert config.params == [{**group, "lr": 0.3}]


def test_sgd():
    assert optim.SGDConfig().name == "SGDOptimizer"
    assert optim.SGDConfig().lr == 0.001
    assert optim.SGDConfig(lr=0.002).lr == 0.002
    with pytest.raises(AssertionError) as error:
        optim.SGDConfig(params=[{"params": ["w"], "lr": 0.1}], lr=0.002)
    assert str(error.value) == "'params' must be an empty list for SGD optimizer"


def test_adam():
    config = optim.AdamConfig()
    expected = {
        "lr": 0.001,
        "alpha": 0.9,
        "beta": 0.999,
        "lambda_coef": 0.0,
        "epsilon": 1e-8,
        "max_norm_clip": 1.0,
        "do_bias_correction": True,
        "weight_decay_mode": optim.AdamConfig.DecayMode.BEFORE_WEIGHT_UPDATE,
    }
    assert config.name == "AdamOptimizer"
    assert {name: getattr(config, name) for name in expected} == expected
    assert [mode.value for mode in optim.AdamConfig.DecayMode] == [0, 1]
    assert "lambda" in config.defaults
    assert "lambda_coef" not in config.defaults


def test_lamb():
    config = optim.LambConfig()
    expected = {
        "lr": 0.001,
        "alpha": 0.9,
        "beta": 0.999,
        "lambda_coef": 0.0,
        "ratio_min": -math.inf,
        "ratio_max": math.inf,
        "epsilon": 1e-6,
        "max_norm_clip": 1.0,
        "do_bias_correction": False,
    }
    assert config.name == "LambOptimizer"
    assert {name: getattr(config, name) for name in expected} == expected


@pytest.mark.parametrize("kind", [optim.AdamConfig, optim.LambConfig])
def test_groups_of_weights(kind):
    groups = [{"params": ["a", "b"], "alpha": 0.1}, {"params": ["b"], "lambda_coef": 0.5}, {"params": "c", "beta": 0.2}]
    config = kind(params=groups, alpha=0.2)
    assert config.params[0]["alpha"] == 0.1
    assert config.values_of("a")["alpha"] == 0.1
    assert (config.values_of("b")["alpha"], config.values_of("b")["lambda"]) == (0.2, 0.5), "the last group wins"
    assert config.values_of("c")["beta"] == 0.2
    assert config.values_of("other") == config.defaults
    with pytest.raises(AssertionError) as error:
        kind(params=[{"params": ["a"], "lr": 0.1}])
    assert str(error.value) == "'lr' is not supported inside params"


@pytest.mark.parametrize("kind", [optim.AdamConfig, optim.LambConfig])
@pytest.mark.parametrize("bad", [{"max_norm_clip": 0}, {"alpha": -1}, {"epsilon": "1"}, {"do_bias_correction": 1}])
def test_values_out_of_range(kind, bad):
    with pytest.raises(AssertionError, match=next(iter(bad))):
        kind(**bad)


# ---- schedules
def rates(schedule, config, steps):
    found = []
    for step in range(steps):
        info = TrainStepInfo(config, optimization_step=step)
        assert schedule._step(info) == schedule.get_last_lr()
        (rate,) = schedule.get_last_lr()
        found.append(rate)
    return found


RISE = [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (lr_scheduler.ConstantWarmupLRScheduler, [*RISE, 1.0, 1.0, 1.0, 1.0]),
        (lr_scheduler.CosineWarmupLRScheduler, [*RISE, 0.9045084971, 0.6545084971, 0.3454915028, 0.0954915028]),
        (lr_scheduler.LinearWarmupLRScheduler, [*RISE, 0.8, 0.6, 0.4, 0.2]),
        (lr_scheduler.PolyWarmupLRScheduler, [*RISE, 0.80000002, 0.60000004, 0.40000006, 0.20000008]),
    ],
)
def test_schedules(kind, expected):
    schedule = kind(total_steps=10, warmup=0.5)
    assert (schedule.total_steps, schedule.warmup) == (10, 0.5)
    assert schedule.get_last_lr() == []
    np.testing.assert_allclose(rates(schedule, optim.SGDConfig(lr=1), 10), expected, rtol=1e-8)


@pytest.mark.parametrize(
    ("kind", "name", "expected"),
    [  # computed by hand from the formulas: total 10, base 1, default warm-up of 0.02 steps
        (lr_scheduler.ConstantWarmupLRScheduler, "warmup", RISE),
        (lr_scheduler.LinearWarmupLRScheduler, "warmup", RISE),
        (
            lr_scheduler.CosineWarmupLRScheduler,
            "cycles",
            [0.0, *((1 + math.cos(math.pi * (n - 0.02) / 9.98)) / 2 for n in range(1, 6))],
        ),
        (
            lr_scheduler.PolyWarmupLRScheduler,
            "lr_end",
            [0.0, *(0.5 * (1 - (n - 0.02) / 9.98) + 0.5 for n in range(1, 6))],
        ),
    ],
)
def test_the_second_argument_by_position(kind, name, expected):
    schedule = kind(10, 0.5)
    assert getattr(schedule, name) == 0.5
    np.testing.assert_allclose(rates(schedule, optim.SGDConfig(lr=1), 6), expected, rtol=1e-12)


def test_ends_of_schedules():
    config = optim.SGDConfig(lr=1)
    assert rates(lr_scheduler.PolyWarmupLRScheduler(4, 0.25, 2.0, 0.0), config, 7)[4:] == [0.25, 0.25, 0.25]
    assert rates(lr_scheduler.LinearWarmupLRScheduler(4), config, 7)[4:] == [0.0, 0.0, 0.0]
    with pytest.raises(AssertionError, match=r"lr_end \(1\.0\) must be below the learning rate \(1\.0\)"):
        rates(lr_scheduler.PolyWarmupLRScheduler(4, 1.0), config, 1)


@pytest.mark.parametrize(
    ("kind", "arguments"),
    [
        (lr_scheduler.LinearWarmupLRScheduler, {"total_steps": 0}),
        (lr_scheduler.LinearWarmupLRScheduler, {"total_steps": 1.5}),
        (lr_scheduler.LinearWarmupLRScheduler, {"total_steps": 4, "warmup": 1.0}),
        (lr_scheduler.ConstantWarmupLRScheduler, {"total_steps": 4, "warmup": -0.5}),
        (lr_scheduler.ConstantWarmupLRScheduler, {"total_steps": 4, "warmup": 0}),
        (lr_scheduler.CosineWarmupLRScheduler, {"total_steps": 4, "cycles": 0.0}),
        (lr_scheduler.CosineWarmupLRScheduler, {"total_steps": 4, "cycles": 1}),
        (lr_scheduler.PolyWarmupLRScheduler, {"total_steps": 4, "power": -1.0}),
        (lr_scheduler.PolyWarmupLRScheduler, {"total_steps": 4, "lr_end": -1.0}),
    ],
)
def test_what_schedules_refuse(kind, arguments):
    with pytest.raises(AssertionError):
        kind(**arguments)


def test_a_schedule_of_ones_own():
    class Halving(lr_scheduler._LRScheduler):
        def get_lr(self, info):
            return [info.optimizer_config.lr / 2**info.optimization_step]

    assert rates(Halving(), optim.SGDConfig(lr=1), 3) == [1, 0.5, 0.25]
    with pytest.raises(TypeError):
        lr_scheduler._LRScheduler()


# ---- loss scalers
def test_dynamic_loss_scaler_through_all_its_branches():
    scaler, info = amp.DynamicLossScaler(), TrainStepInfo(optim.LambConfig())
    assert (scaler.loss_scale, scaler.up_scale_window) == (2**16, 2000)
    assert (scaler.min_loss_scale, scaler.max_loss_scale) == (1, 2**24)
    for power in range(16, 26):
        for step in range(1, 2000):
            assert scaler.update(info) == 2 ** min(power, 24)
            assert scaler._stable_steps_count == step
        assert scaler.update(info) == 2 ** min(power + 1, 24)
        assert scaler._stable_steps_count == 0
    info.all_finite = False
    for power in range(23, -3, -1):
        assert scaler.update(info) == 2 ** max(power, 0)
    info.all_finite = True
    scaler.update(info)
    scaler.reset()
    assert (scaler.loss_scale, scaler._stable_steps_count) == (2**16, 0)


def test_values_of_a_loss_scaler():
    scaler = amp.loss_scaler.DynamicLossScaler(
        automatic_update=False, loss_scale=3, up_scale_window=7, min_loss_scale=5, max_loss_scale=10
    )
    assert (scaler.loss_scale, scaler.up_scale_window) == (3, 7)
    assert (scaler.min_loss_scale, scaler.max_loss_scale, scaler.automatic_update) == (5, 10, False)
    info = TrainStepInfo(optim.LambConfig(), all_finite=False)
    assert scaler.update(info) == 3
    assert scaler.input_name is None
    scaler.input_name = "scale"
    assert scaler.input_name == "scale"
    with pytest.raises(AssertionError):
        scaler.loss_scale = 0
    with pytest.raises(AssertionError):
        amp.LossScaler(-1.0)
    with pytest.raises(NotImplementedError):
        amp.LossScaler(2.0).update(info)


# ---- TrainStepInfo
def test_train_step_info():
    config = optim.LambConfig()
    info = TrainStepInfo(config, False, ["a"], 123, 456)
    assert (info.optimizer_config, info.all_finite, info.fetches) == (config, False, ["a"])
    assert (info.optimization_step, info.step) == (123, 456)
    info = TrainStepInfo(config)
    assert (info.all_finite, info.fetches, info.optimization_step, info.step) == (True, [], 0, 0)
    assert TrainStepInfo(config).fetches is not info.fetches


@pytest.mark.parametrize("bad", [-1, "text", None, 1.5])
@pytest.mark.parametrize("name", ["optimizer_config", "all_finite", "fetches", "optimization_step", "step"])
def test_what_train_step_info_refuses(name, bad):
    with pytest.raises(AssertionError, match=name):
        TrainStepInfo(**{"optimizer_config": optim.LambConfig(), name: bad})
