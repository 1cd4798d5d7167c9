"""Configurations of optimizers: what `backpass.training.ORTTrainer` is told about the update."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from numbers import Real
from typing import Any

from backpass.optim._require import require

__all__ = ["AdamConfig", "LambConfig", "SGDConfig"]

_NAMES = ("AdamOptimizer", "LambOptimizer", "SGDOptimizer")
# What `lambda` is called where Python does not allow the word.
_ALIASES = {"lambda_coef": "lambda"}


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _check(settings: dict[str, Any], names: Sequence[str]) -> None:
    """Rates, decays and coefficients are numbers that are not negative."""
    for name in names:
        value = settings[name]
        require(_is_number(value) and value >= 0, f"'{name}' must be a number that is not negative, not {value!r}")


class _OptimizerConfig:
    """What the configurations of all optimizers share.

    `params` are groups of weights: each names some under 'params', and values that differ from `defaults` for them.
    """

    def __init__(self, name: str, params: list[dict[str, Any]], defaults: dict[str, Any]) -> None:
        require(isinstance(name, str) and name in _NAMES, f"'name' must be one of {', '.join(_NAMES)}, not {name!r}")
        require(isinstance(defaults, dict), f"'defaults' must be a dict, not {type(defaults).__name__}")
        require("lr" in defaults, "'defaults' must contain 'lr', the learning rate")
        _check(defaults, ["lr"])
        require(isinstance(params, list), f"'params' must be a list of dicts, not {type(params).__name__}")
        for group in params:
            _check_group(group, defaults)
        self.name = name
        self.lr = float(defaults["lr"])
        self.defaults = _renamed(defaults)
        self.params = [self.defaults | _renamed(group) for group in params]

    def values_of(self, weight: str) -> dict[str, Any]:
        """What holds for one weight. Of several groups that name it the last one counts."""
        values = self.defaults
        for group in self.params:
            if weight in _named(group):
                values = group
        return {name: value for name, value in values.items() if name != "params"}

    def named(self) -> list[str]:
        """Weights that the groups name."""
        return [name for group in self.params for name in _named(group)]

    def __repr__(self) -> str:
        return f"{type(self).__name__}(params={self.params!r}, defaults={self.defaults!r})"


def _named(group: dict[str, Any]) -> Sequence[str]:
    return [group["params"]] if isinstance(group["params"], str) else group["params"]


def _check_group(group: Any, defaults: dict[str, Any]) -> None:
    require(
        isinstance(group, dict) and len(group) > 1 and "params" in group,
        f"'params' must be a list of dicts with 'params', names of weights, and at least one more key: got {group!r}",
    )
    known = {*defaults, *(_ALIASES.get(name, name) for name in defaults)}
    for name in group:
        require(name == "params" or name in known, f"'{name}' in 'params' is not one of {', '.join(sorted(defaults))}")


def _renamed(values: dict[str, Any]) -> dict[str, Any]:
    return {_ALIASES.get(name, name): value for name, value in values.items()}


class SGDConfig(_OptimizerConfig):
    """Gradient descent: `w -= lr * g`, for all weights alike."""

    def __init__(self, params: list[dict[str, Any]] = [], lr: float = 0.001) -> None:  # noqa: B006  # is not changed
        super().__init__("SGDOptimizer", [], {"lr": lr})
        require(isinstance(params, list) and not params, "'params' must be an empty list for SGD optimizer")


class AdamConfig(_OptimizerConfig):
    """Adam, with decay of the weights before the update (AdamW of PyTorch) or after it (of transformers)."""

    @enum.unique
    class DecayMode(enum.IntEnum):
        """When a weight decays."""

        BEFORE_WEIGHT_UPDATE = 0
        AFTER_WEIGHT_UPDATE = 1

    def __init__(
        self,
        params: list[dict[str, Any]] = [],  # noqa: B006  # is not changed
        lr: float = 0.001,
        alpha: float = 0.9,
        beta: float = 0.999,
        lambda_coef: float = 0.0,
        epsilon: float = 1e-8,
        max_norm_clip: float = 1.0,
        do_bias_correction: bool = True,
        weight_decay_mode: DecayMode = DecayMode.BEFORE_WEIGHT_UPDATE,
    ) -> None:
        defaults = {
            "lr": lr,
            "alpha": alpha,
            "beta": beta,
            "lambda_coef": lambda_coef,
            "epsilon": epsilon,
            "max_norm_clip": max_norm_clip,
            "do_bias_correction": do_bias_correction,
            "weight_decay_mode": weight_decay_mode,
        }
        _check_moments(params, defaults)
        require(weight_decay_mode in list(AdamConfig.DecayMode), "'weight_decay_mode' must be an AdamConfig.DecayMode")
        super().__init__("AdamOptimizer", params, defaults)
        self.alpha = alpha
        self.beta = beta
        self.lambda_coef = lambda_coef
        self.epsilon = epsilon
        self.max_norm_clip = max_norm_clip
        self.do_bias_correction = do_bias_correction
        self.weight_decay_mode = weight_decay_mode


class LambConfig(_OptimizerConfig):
    """LAMB: Adam whose step has, weight by weight, the length of the weight."""

    def __init__(
        self,
        params: list[dict[str, Any]] = [],  # noqa: B006  # is not changed
        lr: float = 0.001,
        alpha: float = 0.9,
        beta: float = 0.999,
        lambda_coef: float = 0.0,
        ratio_min: float = float("-inf"),
        ratio_max: float = float("inf"),
        epsilon: float = 1e-6,
        max_norm_clip: float = 1.0,
        do_bias_correction: bool = False,
    ) -> None:
        defaults = {
            "lr": lr,
            "alpha": alpha,
            "beta": beta,
            "lambda_coef": lambda_coef,
            "ratio_min": ratio_min,
            "ratio_max": ratio_max,
            "epsilon": epsilon,
            "max_norm_clip": max_norm_clip,
            "do_bias_correction": do_bias_correction,
        }
        _check_moments(params, defaults)
        require(_is_number(ratio_min) and _is_number(ratio_max), "'ratio_min' and 'ratio_max' must be numbers")
        super().__init__("LambOptimizer", params, defaults)
        self.alpha = alpha
        self.beta = beta
        self.lambda_coef = lambda_coef
        self.ratio_min = ratio_min
        self.ratio_max = ratio_max
        self.epsilon = epsilon
        self.max_norm_clip = max_norm_clip
        self.do_bias_correction = do_bias_correction


def _check_moments(params: Any, defaults: dict[str, Any]) -> None:
    """What Adam and LAMB both ask of their settings."""
    _check(defaults, ["lr", "alpha", "beta", "lambda_coef", "epsilon"])
    require(isinstance(defaults["do_bias_correction"], bool), "'do_bias_correction' must be a bool")
    for group in [defaults, *(params if isinstance(params, list) else [])]:
        if group is not defaults and isinstance(group, dict):
            require("lr" not in group, "'lr' is not supported inside params")
        norm = group.get("max_norm_clip", 1.0) if isinstance(group, dict) else 1.0
        require(_is_number(norm) and norm > 0, f"'max_norm_clip' must be a number above 0, not {norm!r}")
