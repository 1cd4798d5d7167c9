"""transformers' Trainer, with the passes of its model run by Backpass."""

from backpass import _needs_torch  # noqa: F401

# isort: split

import dataclasses
import logging
from typing import Any

import transformers
from torch import nn
from transformers.trainer_utils import unwrap_peft_model
from transformers.training_args import OptimizerNames

from backpass import optim
from backpass.ortmodule import ORTModule, RuntimeOptions

__all__ = ["Trainer"]

logger = logging.getLogger(__name__)
_ADAM = (OptimizerNames.ADAMW_TORCH, OptimizerNames.ADAMW_TORCH_FUSED)
_FUSED = "fused=backpass"
_OF_ACCELERATE = {"_is_accelerate_prepared", "_original_forward"}  # what it leaves on what it was given


class _Accelerated(ORTModule):
    """What the trainer calls in place of its model: known by the model's name, which some losses are chosen by."""

    def _get_name(self) -> str:
        name: str = unwrap_peft_model(self.module)._get_name()  # type: ignore[no-untyped-call]
        return name

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _OF_ACCELERATE:
            vars(self)[name] = value
        else:
            super().__setattr__(name, value)


def _note_what_saving_notes(model: nn.Module) -> None:
    """Done before the model is captured, the first checkpoint changes nothing that would have to be captured again."""
    if isinstance(model, transformers.PreTrainedModel):
        model.config.dtype = str(model.dtype).removeprefix("torch.")
        model.config.architectures = [type(model).__name__]


class Trainer(transformers.Trainer):
    """Takes and does what transformers.Trainer does; forward and backward passes run in Backpass.

    ``trainer.model`` stays the model as it was given: what is saved, pushed, generated with, or shown to callbacks is
    that. Only calls for a loss or a prediction go to an `ORTModule` around it, which is also what is distributed
    (DistributedDataParallel) and what mixed precision (``bf16=True``) applies to.

    ``gradient_checkpointing`` means that the engine computes again what does not stand between blocks
    (``RuntimeOptions.memory_opt_level`` 2), unless `runtime_options` say how much memory there is. With
    ``optim_args="fused=backpass"`` the optimizer is `backpass.optim.FusedAdam`, in the arithmetic of torch's AdamW.
    """

    def __init__(self, *args: Any, runtime_options: RuntimeOptions | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._runtime_options = runtime_options or RuntimeOptions()
        self._accelerated: _Accelerated | None = None
        if (problem := self._problem()) is not None:
            raise ValueError(f"backpass.integrations.transformers.Trainer: {problem}")

    def _problem(self) -> str | None:
        if isinstance(self.model, ORTModule):
            return "got an ORTModule, expected the model inside it; the trainer puts one around it"
        if self.args.device.type != "cpu":
            return f"got arguments for {self.args.device}, expected the CPU; use TrainingArguments(use_cpu=True)"
        if self.args.torch_compile:
            return "got torch_compile=True, expected False; the model is captured as it is"
        if self.is_deepspeed_enabled or self.is_fsdp_enabled:
            return "got DeepSpeed or FSDP, expected one process or DistributedDataParallel; leave them out"
        return None

    def _wrap_model(self, model: nn.Module, training: bool = True, dataloader: Any = None) -> nn.Module:
        if model is not self.model:
            return model
        wrapped = self._accelerated
        is_other = wrapped is None or wrapped.module is not model
        if wrapped is None or is_other or (training and self.accelerator.use_distributed):
            if self.args.save_strategy != "no":
                _note_what_saving_notes(model)
            wrapped = self._accelerated = _Accelerated(model, options=self._options())
        if not training and self.accelerator._models:  # prepared when training began
            return wrapped
        prepared: nn.Module = self.accelerator.prepare_model(wrapped, evaluation_mode=not training)
        return prepared

    def _options(self) -> RuntimeOptions:
        given = self._runtime_options
        if self.args.gradient_checkpointing and not (given.max_memory or given.memory_opt_config):
            return dataclasses.replace(given, memory_opt_level=2)
        return given

    @staticmethod
    def get_optimizer_cls_and_kwargs(args: transformers.TrainingArguments, model: Any = None) -> tuple[Any, Any]:
        if args.optim_args != _FUSED:
            found: tuple[Any, Any] = transformers.Trainer.get_optimizer_cls_and_kwargs(args, model)
            return found
        if args.optim not in _ADAM:
            raise ValueError(
                f"optim_args={_FUSED!r}: got optim={OptimizerNames(args.optim).value!r}, expected 'adamw_torch'"
            )
        adam = {"betas": (args.adam_beta1, args.adam_beta2), "eps": args.adam_epsilon}
        return optim.FusedAdam, {"lr": args.learning_rate, **adam, "adam_w_mode": optim.AdamWMode.ADAMW_TORCH}

    def train(self, *args: Any, **kwargs: Any) -> Any:
        result = super().train(*args, **kwargs)
        logger.info(self.explain())
        return result

    def explain(self) -> str:
        """What was captured of the model, what torch still runs, what was rewritten."""
        if self._accelerated is None:
            return "nothing has run yet: train, evaluate or predict first"
        return self._accelerated.explain()
