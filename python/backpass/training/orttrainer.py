"""ORTTrainer of the second generation: a train step in one call, over a torch module or an ONNX model.

    trainer = ORTTrainer(model, model_desc, optim.AdamConfig(lr=1e-3), loss_fn, options)
    loss, output = trainer.train_step(data, target)

The module that is given is the one that is trained: its parameters and the trainer's are the same memory.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from backpass._atomic_file import write_file
from backpass.optim._require import require
from backpass.optim.config import _OptimizerConfig
from backpass.profile import Profile
from backpass.trainer.checkpoint import naming_files
from backpass.trainer.engine import Engine
from backpass.training import _checkpoint_storage, checkpoint
from backpass.training._argument_checks import check_arguments, is_module
from backpass.training._binding import bound, chosen, described
from backpass.training._first_step import look_at
from backpass.training._onnx_description import add_types, check_names
from backpass.training._session import TrainingSession
from backpass.training._settings import engine_settings, own_options, say_once
from backpass.training._state import check_keys, check_optimizer, options_state, to_pytorch_format, warn_of_missing
from backpass.training._state_check import check_form
from backpass.training.model_desc_validation import _ORTTrainerModelDesc
from backpass.training.orttrainer_options import ORTTrainerOptions
from backpass.training.train_step_info import TrainStepInfo

if TYPE_CHECKING:
    import onnx

__all__ = ["ORTTrainer", "ORTTrainerOptions", "TrainStepInfo"]


class ORTTrainer:
    """Trains a torch module or an ONNX model.

    ``model_desc``: ``{"inputs": [(name, shape)], "outputs": [(name, shape[, is_loss])]}``, inputs in the order of the
    call, the label last; extents that vary have names. ``loss_fn`` takes a prediction and a label; without one the
    output that is described as the loss is. ``options`` are copied: the caller's may serve other trainers.
    """

    def __init__(
        self,
        model: Any,
        model_desc: Mapping[str, Any],
        optim_config: _OptimizerConfig,
        loss_fn: Callable[[Any, Any], Any] | None = None,
        options: ORTTrainerOptions | None = None,
    ) -> None:
        check_arguments(model, model_desc, optim_config, loss_fn, options)
        from_torch = is_module(model)
        self.model_desc = _ORTTrainerModelDesc(model_desc)
        self.optim_config = optim_config
        self.loss_fn = loss_fn
        self.options = own_options(options)
        self._train_step_info = TrainStepInfo(optim_config)
        self._torch_model = model if from_torch else None
        self._training_session: Any = None
        self._load_state_dict: partial[None] | None = None
        self._without_moments: list[str] = []
        self._had_step = False
        self._onnx_snapshot: Any = None
        say_once(self.options)
        self._engine = self._from_module(model) if from_torch else self._from_onnx(model)

    def _from_module(self, module: Any) -> Engine:
        inputs, outputs = described(self.model_desc.inputs), described(self.model_desc.outputs)
        settings = engine_settings(self.optim_config, self.options)
        place = self.model_desc.loss_index
        return Engine.from_torch(module, self.loss_fn, inputs, outputs, place, settings, binding="g2")

    def _from_onnx(self, model: onnx.ModelProto) -> Engine:
        check_names(model, self.model_desc)
        add_types(model, self.model_desc)
        self._onnx_snapshot = type(model)()
        self._onnx_snapshot.CopyFrom(model)
        settings = engine_settings(self.optim_config, self.options)
        inputs, outputs = self.model_desc.inputs, self.model_desc.outputs
        loss = outputs[self.model_desc.loss_index].name
        engine = Engine.from_onnx(model, [d.name for d in inputs], [d.name for d in outputs], loss, settings)
        self._start(engine)
        return engine

    # ---- steps
    def train_step(self, *args: Any, **kwargs: Any) -> Any:
        """Forward pass, loss, backward pass and, when an accumulation is complete, the update.

        Inputs by position or by name; a single list is a list of inputs. Returns what is described, or what
        ``_train_step_info.fetches`` names, in that order: a tensor, or a list of them.
        """
        info, outputs = self._train_step_info, self._engine.outputs
        values, fetches = self._prepare(args, kwargs, training=True)
        result = self._engine.train_step(values, self._rate(), fetches or None)
        info.step += 1
        info.optimization_step += result.updated
        info.all_finite = bool(result.all_finite)
        return _returned([result.outputs[name] for name in fetches or outputs])

    def eval_step(self, *args: Any, **kwargs: Any) -> Any:
        """Outputs without dropout and with running statistics, in the order they are described in; nothing changes.

        Inputs that the fetches do not need, such as labels, may be left out.
        """
        values, fetches = self._prepare(args, kwargs, training=False)
        found = self._engine.eval_step(values, fetches or None)
        return _returned([found[name] for name in self._engine.outputs if name in found])

    def _prepare(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], training: bool
    ) -> tuple[dict[str, Any], list[str]]:
        """Values by name and names to fetch, for an engine that is ready for them: with the state that was waiting."""
        fetches = chosen(self._train_step_info.fetches, self._engine.outputs)
        values = bound(args, kwargs, self.model_desc.inputs, may_miss=bool(fetches))
        if self._training_session is None:
            self._engine.prepare(values, training, fetches or None)
            self._start(self._engine)
        if self._load_state_dict is not None:
            self._load_state_dict()
            self._load_state_dict = None
        if training and self._without_moments:
            self._check_moments(values, fetches)
        if not self._had_step and len(values) == len(self.model_desc.inputs):
            look_at(self, values)
            self._had_step = True
        if self.options.mixed_precision.loss_scaler is not None:
            self._engine.loss_scale = self.options.mixed_precision.loss_scaler.loss_scale
        return values, fetches

    def _rate(self) -> float:
        """In float32, which is what the first generation is given: both have the same bits."""
        scheduler = self.options.lr_scheduler
        rate = scheduler._step(self._train_step_info)[0] if scheduler else self.optim_config.lr
        return float(np.float32(rate))

    def _start(self, engine: Engine) -> None:
        """From now on there is a state."""
        self._training_session = TrainingSession(engine)
        trained, frozen = set(engine.trained), self.options.utils.frozen_weights
        fixed = [name for name in {**engine.weights(), **engine.buffers()} if name not in trained]
        self.options.utils.frozen_weights = list(dict.fromkeys([*frozen, *fixed]))

    # ---- state
    def state_dict(self, pytorch_format: bool = False) -> dict[str, Any]:
        """Copies of weights, buffers, optimizer and counters as nested dicts of arrays: see `backpass.training._state`.

        ``pytorch_format``: weights and buffers alone, flat, as torch tensors. Before the first step of a module there
        is nothing but what waits to be loaded.
        """
        session = self._training_session
        if not session:
            warnings.warn(
                "ONNX Runtime training session is not initialized yet. "
                "Please run train_step or eval_step at least once before calling ORTTrainer.state_dict().",
                UserWarning,
                stacklevel=2,
            )
            return self._load_state_dict.args[0] if self._load_state_dict else {}
        model = {kind: dict(weights) for kind, weights in session.get_model_state().items()}
        if frozen := self._frozen_state():
            model["full_precision"] = {**frozen, **model.get("full_precision", {})}
        if pytorch_format:
            return to_pytorch_format({"model": model})
        state = {"model": model, "optimizer": session.get_optimizer_state()}
        state["trainer_options"] = options_state(self.options, self.optim_config.name)
        state["train_step_info"] = self._info_state()
        if self._is_sharded():
            state["partition_info"] = session.get_partition_info_map()
        return state

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True) -> None:
        """Takes over what `state_dict` gave; before the first step of a module, when that comes.

        ``strict``: RuntimeError where weights or entries of the optimizer are missing or are not the model's.
        """
        check_form(state_dict)
        check_optimizer(self.optim_config.name, state_dict)
        if not self._training_session:
            self._load_state_dict = partial(self._load_state_dict_now, state_dict, strict=strict)
            return
        self._load_state_dict_now(state_dict, strict=strict)

    def _load_state_dict_now(self, state_dict: Mapping[str, Any], strict: bool) -> None:
        """All of it is checked before any of it is loaded."""
        warn_of_missing(state_dict)
        weights, optimizer = state_dict.get("model", {}).get("full_precision", {}), state_dict.get("optimizer", {})
        is_own = isinstance(self._training_session, TrainingSession)
        missing: list[str] = []
        if strict:
            missing = check_keys(self.state_dict(), state_dict, self._engine.unreached if is_own else ())
        if is_own:
            self._training_session.check(weights, optimizer)
        self._update_onnx_model_initializers(weights)
        self._init_session(optimizer)
        self._load_info(state_dict.get("train_step_info", {}))
        self._without_moments = missing

    def _check_moments(self, values: Mapping[str, Any], fetches: list[str]) -> None:
        """RuntimeError where a state that was loaded has no moments of a weight that turns out to be trained: after
        evaluations alone nobody knows which are."""
        self._engine.prepare(values, True, fetches or None)
        if missing := [name for name in self._without_moments if name in self._engine.trained]:
            raise RuntimeError(f"Missing keys: {', '.join(missing)} in state_dict[optimizer]")
        self._without_moments = []

    def _update_onnx_model_initializers(self, weights: Mapping[str, Any]) -> None:
        self._training_session.load_weights(weights)
        self._onnx_snapshot = None

    def _init_session(self, optimizer_state: Mapping[str, Any]) -> None:
        self._training_session.load_optimizer(optimizer_state)

    def _load_info(self, counters: Mapping[str, Any]) -> None:
        """Counters, from which schedules and random numbers go on. An accumulation that was not finished begins anew:
        its gradients are in no state."""
        info, scaler = self._train_step_info, self.options.mixed_precision.loss_scaler
        info.step = int(counters.get("step", info.step))
        info.optimization_step = int(counters.get("optimization_step", info.optimization_step))
        if scaler is not None and "loss_scale" in counters:
            scaler.loss_scale = float(counters["loss_scale"])
        if not isinstance(self._training_session, TrainingSession):
            return
        self._engine.steps = info.step - info.step % self.options.batch.gradient_accumulation_steps
        if "seed" in counters:  # that of rank 0, to which the engine of each rank adds its own
            self._engine.random = int(counters["seed"]), int(counters["random_counter"])

    def _frozen_state(self) -> dict[str, Any]:
        if isinstance(self._training_session, TrainingSession):
            return self._training_session.frozen()
        import onnx

        names = self.options.utils.frozen_weights
        given = self._onnx_model.graph.initializer  # of a model that was put in place of the trainer's own
        return {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in given if tensor.name in names}

    def _info_state(self) -> dict[str, Any]:
        info, scaler = self._train_step_info, self.options.mixed_precision.loss_scaler
        counters: dict[str, Any] = {"optimization_step": info.optimization_step, "step": info.step}
        if scaler is not None:
            counters["loss_scale"] = scaler.loss_scale
        if isinstance(self._training_session, TrainingSession) and (random := self._engine.random):
            counters |= {"seed": random[0], "random_counter": random[1]}
        return counters

    def _is_sharded(self) -> bool:
        distributed = self.options.distributed
        return bool(distributed.deepspeed_zero_optimization.stage) or distributed.horizontal_parallel_size > 1

    # ---- files
    def save_checkpoint(
        self, path: str, user_dict: Mapping[str, Any] | None = None, include_optimizer_states: bool = True
    ) -> None:
        """Writes the state to an HDF5 file that must not exist, and ``user_dict`` with it: numbers, text, lists, dicts,
        arrays and tensors. With ZeRO, each rank writes its part of the optimizer, to a file of its own."""
        state, distributed = dict(self.state_dict()), self.options.distributed
        if not include_optimizer_states:
            state.pop("optimizer", None)
        if distributed.deepspeed_zero_optimization.stage and distributed.world_size > 1:
            state = checkpoint.shard_of(state, distributed.world_rank, distributed.world_size)
        if user_dict:
            state["user_dict"] = _checkpoint_storage.to_serialized_hex(user_dict)
        _checkpoint_storage.save(state, path)

    def load_checkpoint(self, *paths: str, strict: bool = True, allow_pickle: bool = False) -> Any:
        """Loads the state from a file, or from those of all ranks, and returns the ``user_dict``, or None.

        ``allow_pickle``: for files of the original, which pickles the user_dict; only from where you trust.
        """
        with naming_files(paths):
            state = self._read_checkpoint(paths)
            user_dict = None
            if "user_dict" in state:
                user_dict = _checkpoint_storage.from_serialized_hex(state["user_dict"], allow_pickle)
            self.load_state_dict(state, strict=strict)
        return user_dict

    def _read_checkpoint(self, paths: Sequence[str]) -> dict[str, Any]:
        saved = checkpoint.options_of(paths[0])
        if saved["zero_stage"] > 0 or saved["horizontal_parallel_size"] > 1:
            return checkpoint.aggregate_checkpoints(paths, pytorch_format=False)
        require(len(paths) == 1, f"load_checkpoint: got {len(paths)} files, expected one: the first is not sharded")
        return dict(_checkpoint_storage.load(paths[0]))

    def save_as_onnx(self, path: str) -> None:
        """Writes forward pass and loss with the present weights, from the first step on; nothing before."""
        require(isinstance(path, str), f"'path' must be a string, not {type(path).__name__}")
        folder, name = os.path.split(path)
        if self._training_session is None:
            warnings.warn("save_as_onnx: there is no model before the first step; nothing is written", stacklevel=2)
        elif not name or (folder and not os.path.isdir(folder)):
            warnings.warn(f"save_as_onnx: got {path!r}, expected a name in a folder that exists", stacklevel=2)
        else:
            self._onnx_snapshot = self._engine.onnx_model()
            write_file(path, self._onnx_snapshot.SerializeToString())

    # ---- what there is
    @property
    def _onnx_model(self) -> Any:
        """Forward pass and loss with the weights of the moment it was first asked for, or last saved."""
        if self._onnx_snapshot is None and isinstance(self._training_session, TrainingSession):
            self._onnx_snapshot = self._engine.onnx_model()
        return self._onnx_snapshot

    @_onnx_model.setter
    def _onnx_model(self, model: Any) -> None:
        self._onnx_snapshot = model

    def explain(self) -> str:
        """What was captured, what runs, and what it takes."""
        return self._engine.explain()

    def take_profile(self) -> Profile:
        """Steps since the last call, with what limits them; needs SessionOptions with ``profile``."""
        return self._engine.take_profile()


def _returned(outputs: list[Any]) -> Any:
    return outputs[0] if len(outputs) == 1 else outputs
