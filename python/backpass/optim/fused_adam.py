"""FusedAdam: torch.optim's Adam and AdamW, and that of Hugging Face, as one pass of the engine over all weights."""

from backpass import _needs_torch  # noqa: F401

# isort: split

import enum
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.autograd import profiler
from torch.optim import optimizer

from backpass._core import adam_step, adam_tensors

_FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


class AdamWMode(enum.IntEnum):
    """What weight_decay does."""

    ADAM_L2_REGULARIZATION = 0  # weight_decay * weight is added to the gradient, as in torch.optim.Adam
    ADAMW_TRANSFORMERS = 1  # the weight decays after the step, as in Hugging Face's AdamW
    ADAMW_TORCH = 2  # the weight decays before the step, as in torch.optim.AdamW


class FusedAdam(torch.optim.Optimizer):
    """Adam on the CPU at the speed of memory.

    The number of the step is kept per group (``group["step"]``), moments as ``exp_avg`` and ``exp_avg_sq`` of a
    parameter's state. Parameters may be float32, float64, float16 and bfloat16; moments have the type of their
    parameter, and what has 16 bits is computed in float32. A state of torch.optim.Adam or AdamW can be loaded.
    """

    _step_supports_amp_scaling = True  # torch.amp.GradScaler leaves the division by its scale to step()

    def __init__(
        self,
        params: Any,
        lr: float | torch.Tensor = 1e-3,
        bias_correction: bool = True,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        adam_w_mode: AdamWMode | int = AdamWMode.ADAMW_TRANSFORMERS,
        weight_decay: float = 0.0,
        set_grad_none: bool = True,
    ) -> None:
        for name, value in {"lr": lr, "eps": eps, "weight_decay": weight_decay}.items():
            if not float(value) >= 0:
                raise ValueError(f"{name}: got {value!r}, expected a number from 0 on")
        if len(betas) != 2 or not all(0 <= float(beta) < 1 for beta in betas):
            raise ValueError(f"betas: got {betas!r}, expected two numbers from 0 to below 1")
        self._adam_w_mode = AdamWMode(adam_w_mode)
        self._set_grad_none = set_grad_none
        settings = {"lr": lr, "bias_correction": bias_correction, "betas": betas, "eps": eps}
        super().__init__(params, {**settings, "weight_decay": weight_decay})

    def __getstate__(self) -> dict[str, Any]:
        kept = {"_adam_w_mode": self._adam_w_mode, "_set_grad_none": self._set_grad_none}
        return {**super().__getstate__(), **kept}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        for group in self.param_groups:
            group.setdefault("bias_correction", True)
            for name in ("amsgrad", "maximize"):
                if group.get(name):
                    raise ValueError(f"FusedAdam: got a state with {name}=True, expected one of an Adam without")
            counts = {self.state.get(p, {}).pop("step", None) for p in group["params"]} - {None}
            steps = {int(count) for count in counts}  # torch's optimizers count per parameter
            if len(steps) > 1:
                raise ValueError(f"FusedAdam: got parameters that took {sorted(steps)} steps, expected one number")
            if steps:
                group.setdefault("step", *steps)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drops gradients, or makes them 0 if neither this call nor the constructor wants them dropped."""
        drops = self._set_grad_none or set_to_none
        if not drops or profiler._is_profiler_enabled:
            super().zero_grad(set_to_none=drops)
            return
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.grad = None

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step of every parameter that has a gradient; the result of `closure`, which is called first."""
        if self._is_watched():
            return self._watched_step() if closure is None else self._watched_step(closure)
        return self._step(closure)

    # torch would put its own watch around it, which takes longer than the step of a small model.
    step.hooked = True  # type: ignore[attr-defined]

    def _is_watched(self) -> bool:
        """Whether there are hooks to call, or a profiler to tell."""
        return bool(
            profiler._is_profiler_enabled
            or self._optimizer_step_pre_hooks
            or self._optimizer_step_post_hooks
            or optimizer._global_optimizer_pre_hooks
            or optimizer._global_optimizer_post_hooks
        )

    def _step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        found_inf = getattr(self, "found_inf", None)  # by GradScaler, as is grad_scale
        if found_inf is not None and float(found_inf) != 0:
            return loss
        scale = getattr(self, "grad_scale", None)
        for group in self.param_groups:
            group["step"] = group.get("step", 0) + 1
            self._update(group, 1.0 if scale is None else 1.0 / float(scale))
        return loss

    _watched_step = torch.optim.Optimizer.profile_hook_step(_step)

    def _update(self, group: dict[str, Any], gradient_scale: float) -> None:
        tensors = adam_tensors(group["params"], self.state, self._start)
        parameters, gradients, _, _ = tensors
        try:
            left_out = self._run(group, tensors, gradient_scale)
        except (BufferError, RuntimeError) as error:
            if any(g.layout != torch.strided for g in gradients):
                message = "FusedAdam does not support sparse gradients, please consider SparseAdam instead"
                raise RuntimeError(message) from error
            raise
        for i in left_out:
            self._update_copies(group, [column[i] for column in tensors], gradient_scale)
        torch._C._increment_version(parameters)

    def _run(self, group: dict[str, Any], tensors: Sequence[list[torch.Tensor]], gradient_scale: float) -> list[int]:
        alpha, beta = group["betas"]
        parameters, gradients, first, second = tensors
        return adam_step(
            parameters,
            gradients,
            first,
            second,
            float(group["lr"]),
            group["step"],
            float(alpha),
            float(beta),
            group["eps"],
            group["weight_decay"],
            self._adam_w_mode,
            bool(group["bias_correction"]),
            gradient_scale,
            torch.get_num_threads(),
        )

    @torch.no_grad()
    def _update_copies(self, group: dict[str, Any], tensors: list[torch.Tensor], gradient_scale: float) -> None:
        """Where a parameter, its gradient and its moments do not lie alike in memory."""
        kind = tensors[0].dtype
        copies = [t.to(kind).clone(memory_format=torch.contiguous_format) for t in tensors]
        if self._run(group, [[copy] for copy in copies], gradient_scale):
            shapes = [list(t.shape) for t in tensors]
            raise RuntimeError(f"FusedAdam: got parameter, gradient and moments of shapes {shapes}, expected the same")
        for i in (0, 2, 3):
            tensors[i].copy_(copies[i])

    @torch.no_grad()
    def _start(self, parameter: torch.Tensor) -> dict[str, torch.Tensor]:
        if parameter.dtype not in _FLOATS or parameter.device.type != "cpu":
            raise RuntimeError(
                f"FusedAdam: got a parameter of {parameter.dtype} on {parameter.device}, expected float32, float64, "
                "float16 or bfloat16 on cpu"
            )
        state: dict[str, torch.Tensor] = self.state[parameter]
        state["exp_avg"] = torch.zeros_like(parameter)
        state["exp_avg_sq"] = torch.zeros_like(parameter)
        return state
