"""ORTTrainer of the first generation: a train step in one call, with the learning rate as its last argument.

    trainer = ORTTrainer(model, loss_fn, model_desc, "SGDOptimizer", None, IODescription("Learning_Rate", [1]), "cpu")
    loss, output = trainer.train_step(data, target, torch.tensor([0.01]))

The module that is given is the one that is trained: its parameters and the trainer's are the same memory.
"""

from __future__ import annotations

import inspect
import os
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from backpass._atomic_file import write_file
from backpass.parallel import communicator_of
from backpass.trainer.arguments import Description, by_name
from backpass.trainer.attributes import DEFAULTS, WeightAttributes, algorithm_of
from backpass.trainer.descriptions import IODescription, ModelDescription
from backpass.trainer.engine import Engine, Settings
from backpass.trainer.given import is_module, loss_of_two, model_proto
from backpass.trainer.options import Options, bind_options
from backpass.trainer.session import Session

LOSS_SCALE = "default_loss_scale_input_name"
_said: set[str] = set()


class ORTTrainer:
    """Trains a torch module or an ONNX model.

    `model_desc` lists inputs in the order of the call, labels last, and outputs, the loss first. `loss_fn` takes a
    prediction and a label; without one the model's first output is the loss. `map_optimizer_attributes` gives
    attributes for the name of a weight. What follows `device` is described at
    :class:`backpass.trainer.options.Options`; the order and the names of all releases are understood.
    """

    def __init__(
        self,
        model: Any,
        loss_fn: Callable[[Any, Any], Any] | None,
        model_desc: ModelDescription,
        training_optimizer_name: str,
        map_optimizer_attributes: Callable[[str], Mapping[str, Any]] | None,
        learning_rate_description: IODescription,
        device: Any,
        *positional: Any,
        **named: Any,
    ) -> None:
        options = bind_options(positional, named)
        _say_once(_notes(device, options))
        algorithm = algorithm_of(training_optimizer_name)
        self.model_desc_ = model_desc
        self.torch_model_ = model if is_module(model) else None
        self.device_ = device
        self.is_train = True
        self.global_step_ = options.global_step
        self.loss_scale_input_name = LOSS_SCALE
        self.loss_scaler_ = options.loss_scaler if options.use_mixed_precision else None
        self.session: Session | None = None
        self._options = options
        self._rate_name = learning_rate_description.name_
        settings = _settings(algorithm, map_optimizer_attributes, options)
        self._engine = self._make_engine(model, loss_fn, settings)
        if self.torch_model_ is None:
            self.session = Session(self._engine)

    def _make_engine(self, model: Any, loss_fn: Callable[[Any, Any], Any] | None, settings: Settings) -> Engine:
        inputs, outputs = _described(self.model_desc_.inputs_), _described(self.model_desc_.outputs_)
        if self.torch_model_ is not None:
            return Engine.from_torch(model, loss_of_two(loss_fn), inputs, outputs, 0, settings, binding="g1")
        if loss_fn is not None:
            warnings.warn("loss_fn is not used: the first output of an ONNX model is its loss", stacklevel=3)
        results = [description.name for description in outputs]
        return Engine.from_onnx(model_proto(model), [each.name for each in inputs], results, results[0], settings)

    # ---- steps
    def train(self) -> None:
        """Calls of the trainer are train steps from now on, as they are at first."""
        self.is_train = True

    def eval(self) -> None:
        """Calls of the trainer are eval steps from now on."""
        self.is_train = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.train_step(*args, **kwargs) if self.is_train else self.eval_step(*args, **kwargs)

    def train_step(self, *args: Any, fetches: Sequence[str] | None = None, **kwargs: Any) -> Any:
        """One step: inputs in their order or by name, then the learning rate (unless there is `get_lr_this_step`), then
        the loss scale (where mixed precision comes without a `loss_scaler`).

        Returns what is described, or the `fetches`: a tensor, or a list of them; with mixed precision and no
        `loss_scaler`, behind those of a step that ends an accumulation, whether all gradients were finite.
        """
        values, rate, scale = self._bind(args, kwargs)
        wanted = self._wanted(fetches)
        if scale is not None:
            self._engine.loss_scale = scale
        result = self._engine.train_step(values, rate, wanted)
        self.session = self.session or Session(self._engine)
        outputs = [result.outputs[name] for name in wanted or self._engine.outputs]
        if self.current_step % self._options.gradient_accumulation_steps == 0:
            self._count_update(result.all_finite)
            if self._wants_scale and wanted is None:
                outputs.append(_like(outputs[0], result.all_finite))
        return outputs[0] if len(outputs) == 1 else outputs

    def eval_step(self, *args: Any, fetches: Sequence[str] | None = None, **kwargs: Any) -> Any:
        """Outputs without dropout and with running statistics; nothing changes. Inputs that the fetches do not need,
        such as labels, may be left out."""
        values = by_name(args, kwargs, self._engine.inputs)
        wanted = self._wanted(fetches)
        results = self._engine.eval_step(values, wanted)
        self.session = self.session or Session(self._engine)
        outputs = [results[name] for name in wanted or self._engine.outputs]
        return outputs[0] if len(outputs) == 1 else outputs

    @property
    def current_step(self) -> int:
        """Train steps so far."""
        return self._engine.steps

    @property
    def _wants_scale(self) -> bool:
        """Whether the caller scales the loss, step by step."""
        return self._options.use_mixed_precision and self.loss_scaler_ is None

    def _bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[dict[str, Any], float, float | None]:
        """Inputs by name, the learning rate, and the loss scale where there is one."""
        ask, names = self._options.get_lr_this_step, list(self._engine.inputs)
        names += [] if ask else [self._rate_name]
        names += [LOSS_SCALE] if self._wants_scale else []
        values = by_name(args, kwargs, names)
        if missing := [name for name in names if name not in values and name != LOSS_SCALE]:
            text = f"train_step: got {len(values)} values, {missing} missing, expected {names}"
            hint = "; give the learning rate last or by name, or get_lr_this_step" if not ask else ""
            raise AssertionError(text + hint)
        rate = np.float32(_number(ask(self.global_step_) if ask else values.pop(self._rate_name)))  # also of a float
        scale = self.loss_scaler_.loss_scale_ if self.loss_scaler_ else values.pop(LOSS_SCALE, None)
        return values, float(rate), None if scale is None else _number(scale)

    def _wanted(self, fetches: Sequence[str] | None) -> list[str] | None:
        names = [fetches] if isinstance(fetches, str) else list(fetches or ())
        if unknown := [name for name in names if name not in self._engine.outputs]:
            raise ValueError(f"fetches: got {unknown}, expected some of {self._engine.outputs}")
        return names or None

    def _count_update(self, all_finite: bool) -> None:
        if all_finite:
            self.global_step_ += 1
        if self.loss_scaler_ is not None:
            self.loss_scaler_.update_loss_scale(all_finite)

    # ---- state
    def state_dict(self, include_optimizer_state: bool = True) -> dict[str, Any]:
        """Copies of weights, buffers and, unless told otherwise, moments and counters of the optimizer.

        Keys are those of the module, and for Adam and Lamb `Moment_1_<w>` and so on: see
        :mod:`backpass.trainer.flat_state`. Empty before the first step of a module.
        """
        if self.session is None:
            warnings.warn("state_dict: a module has no state here before its first step", stacklevel=2)
            return {}
        return self.session.state(self.torch_model_, self._counters() if include_optimizer_state else None)

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = False) -> None:
        """Takes over what `state_dict` gave, here or in the original; at once, also before the first step.

        Names that the model does not have are passed over, unless it is `strict`.
        """
        self.session = self.session or Session(self._engine)
        counters = self.session.load(self.torch_model_, state_dict, strict)
        self._restore(counters)

    def _counters(self) -> dict[str, float]:
        counters: dict[str, float] = {
            "current_step": self.current_step,
            "global_step": self.global_step_,
            "updates": self._engine.updates,
        }
        if self.loss_scaler_ is not None:
            counters |= {"loss_scale": self.loss_scaler_.loss_scale_, "stable_steps": self.loss_scaler_.stable_steps_}
        if random := self._engine.random:
            counters |= {"seed": random[0], "random_counter": random[1]}
        return counters

    def _restore(self, counters: Mapping[str, float]) -> None:
        self.global_step_ = int(counters.get("global_step", self.global_step_))
        if self.loss_scaler_ is not None:
            self.loss_scaler_.loss_scale_ = counters.get("loss_scale", self.loss_scaler_.loss_scale_)
            self.loss_scaler_.stable_steps_ = int(counters.get("stable_steps", self.loss_scaler_.stable_steps_))
        if "seed" in counters:  # that of rank 0, to which the engine of each rank adds its own
            self._engine.random = int(counters["seed"]), int(counters["random_counter"])
        if "current_step" in counters:  # gradients of an accumulation are in no state: it begins anew
            step = int(counters["current_step"])
            self._engine.steps = step - step % self._options.gradient_accumulation_steps

    def shard(self) -> tuple[int, ...]:
        """Rank and number of ranks, where each holds a part of the optimizer."""
        options = self._options
        is_split = options.deepspeed_zero_stage > 0 and options.world_size > 1
        return (options.world_rank, options.world_size) if is_split else ()

    # ---- models
    @property
    def onnx_model_(self) -> Any:
        """Forward pass and loss with the present weights, as an onnx.ModelProto; None before a module's first step."""
        return self._engine.onnx_model() if self.torch_model_ is None or self._engine.is_ready else None

    def save_as_onnx(self, path: str | os.PathLike[str]) -> None:
        """Writes forward pass and loss, with the present weights, from the first step on."""
        model = self.onnx_model_
        if model is None:
            warnings.warn("save_as_onnx: there is no model before the first step; nothing is written", stacklevel=2)
            return
        write_file(path, model.SerializeToString())

    def explain(self) -> str:
        """What was captured, what runs, and what it takes."""
        return self._engine.explain()


def _signature() -> inspect.Signature:
    """With the options by name, as help() shows them."""
    own = list(inspect.signature(ORTTrainer.__init__).parameters.values())[1:-2]
    return inspect.Signature([*own, *inspect.signature(Options).parameters.values()])


ORTTrainer.__signature__ = _signature()  # type: ignore[attr-defined]


def _settings(algorithm: str, attributes: Callable[[str], Mapping[str, Any]] | None, options: Options) -> Settings:
    after = options._extra_postprocess
    adasum = options.enable_adasum and options.world_size > 1
    return Settings(
        algorithm,
        DEFAULTS[algorithm],
        WeightAttributes(algorithm, attributes),
        accumulation_steps=options.gradient_accumulation_steps,
        clips_gradients=(options.enable_grad_norm_clip and algorithm != "sgd") or adasum,  # as the original does
        mixed_precision=options.use_mixed_precision,
        scales_loss=options.use_mixed_precision,
        frozen=tuple(options.frozen_weights),
        communicator=communicator_of(options.world_rank, options.world_size),
        zero_stage=options.deepspeed_zero_stage,
        adasum=adasum,
        postprocess=(lambda model: after(model) and None) if after else None,  # what it returns was never looked at
    )


def _notes(device: Any, options: Options) -> list[str]:
    notes = []
    if device is not None and not str(device).startswith("cpu"):
        notes.append(f"device {str(device)!r}: training runs on the CPU")
    if options.use_mixed_precision:
        notes.append("use_mixed_precision: products are computed in bfloat16, not in float16; weights stay float32")
    if options._opset_version != Options._opset_version:
        notes.append("_opset_version has no effect: models are captured in the opset that the engine runs")
    if options.optimized_model_filepath:
        notes.append("optimized_model_filepath has no effect: explain() tells what runs, save_as_onnx writes the model")
    return notes


def _say_once(notes: Sequence[str]) -> None:
    new = [note for note in notes if note not in _said]
    _said.update(new)
    if new:
        warnings.warn("ORTTrainer: " + "; ".join(new), stacklevel=3)


def _described(descriptions: Sequence[IODescription]) -> list[Description]:
    return [Description(each.name_, list(each.shape_), each.dtype_) for each in descriptions]


def _number(value: Any) -> float:
    return float(value.item() if hasattr(value, "item") else value)


def _like(output: Any, flag: bool) -> Any:
    """A bool of shape [1], of torch where outputs are."""
    if isinstance(output, np.ndarray | np.generic):
        return np.array([flag])
    return sys.modules["torch"].tensor([flag])
