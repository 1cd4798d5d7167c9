"""Training on a device from artifacts: CheckpointState, Module, Optimizer, LinearLRScheduler.

The names and meanings are those of ``onnxruntime.training.api``::

    state = CheckpointState.load_checkpoint("checkpoint")
    module = Module("training_model.onnx", state, "eval_model.onnx")
    optimizer = Optimizer("optimizer_model.onnx", module)
    loss = module(x, labels)
    optimizer.step()
    module.lazy_reset_grad()

The last three are one call of ours, which needs no memory for all gradients at a time::

    loss = optimizer.train_and_update(x, labels)

Threads may share all of these: calls about one state take turns.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from backpass import _core
from backpass._convert import is_ort_value, to_engine, to_input, to_numpy
from backpass._values import OrtValue
from backpass.profile import Profile
from backpass.session import listed, name_list, serialized, whole_path

Source = str | os.PathLike[str] | bytes

__all__ = [
    "CheckpointState",
    "LinearLRScheduler",
    "Module",
    "Optimizer",
    "Parameter",
    "Parameters",
    "Properties",
    "export_parameters",
    "import_parameters",
]


class Parameter:
    """One parameter of a checkpoint state. ``data`` is a view: what training writes shows up in it."""

    def __init__(self, state: CheckpointState, name: str) -> None:
        self._state = state
        self._name = name

    @property
    def name(self) -> str:
        return self._name

    @property
    def data(self) -> np.ndarray[Any, Any]:
        view: np.ndarray[Any, Any] = to_numpy(self._state._core.parameter(self._name))
        return view

    @data.setter
    def data(self, value: np.ndarray[Any, Any]) -> None:
        with self._state._lock:
            self._state._core.set_parameter(self._name, to_engine(np.asarray(value)))

    @property
    def requires_grad(self) -> bool:
        return self._state._core.requires_grad(self._name)

    @property
    def grad(self) -> np.ndarray[Any, Any] | None:
        """What was accumulated since the last reset; None when frozen, before there is a Module, and after
        ``Optimizer.train_and_update``, which keeps no gradients.
        """
        module = self._state._module()
        if module is None:
            return None
        with self._state._lock:
            found = module._session.gradient(self._name)
        return None if found is None else to_numpy(found)

    @grad.setter
    def grad(self, value: np.ndarray[Any, Any] | None) -> None:
        """Copies values of the same type and shape, which the next update uses; None stands for zeros."""
        with self._state._lock:
            own = self.grad
            if own is None:
                why = "its state belongs to no Module yet"
                if self._state._module():
                    why = "train_and_update keeps none" if self.requires_grad else "it is frozen"
                raise _core.InvalidInput(f"parameter {self._name!r}: has no gradient to set: {why}")
            given = np.zeros_like(own) if value is None else _array(value)
            if given.dtype != own.dtype or given.shape != own.shape:
                shown = f"{given.dtype}{list(given.shape)}, expected {own.dtype}{list(own.shape)}"
                raise _core.InvalidInput(f"gradient of parameter {self._name!r}: got {shown}")
            np.copyto(own, given)

    def __repr__(self) -> str:
        return f"Parameter(name={self._name}, requires_grad={self.requires_grad})"


class Parameters:
    """The parameters of a state by name; iteration gives (name, Parameter), sorted."""

    def __init__(self, state: CheckpointState) -> None:
        self._state = state

    def __getitem__(self, name: str) -> Parameter:
        self._require_data()
        if name not in self:
            raise KeyError(f"parameter {name!r} is not in the checkpoint state")
        return Parameter(self._state, name)

    def __setitem__(self, name: str, value: np.ndarray[Any, Any]) -> None:
        self[name].data = value

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self._state._core.has_parameter(name)

    def __len__(self) -> int:
        return len(self._state._core.parameter_names)

    def __iter__(self) -> Iterator[tuple[str, Parameter]]:
        self._require_data()
        for name in sorted(self._state._core.parameter_names):
            yield name, Parameter(self._state, name)

    def __repr__(self) -> str:
        return f"Parameters({sorted(self._state._core.parameter_names)})"

    def _require_data(self) -> None:
        if self._state._core.is_nominal:
            raise _core.InvalidInput(
                "parameters: got a nominal checkpoint state, expected one with data; "
                "call Module.copy_buffer_to_parameters(buffer, trainable_only=False) first"
            )


class Properties:
    """Numbers and texts kept with the parameters; iteration gives (name, value), sorted."""

    def __init__(self, state: CheckpointState) -> None:
        self._state = state

    def __getitem__(self, name: str) -> int | float | str:
        if name not in self:
            raise KeyError(f"property {name!r} is not in the checkpoint state")
        return self._state._core.property(name)

    def __setitem__(self, name: str, value: int | float | str) -> None:
        with self._state._lock:
            if isinstance(value, bool | np.bool_ | np.integer):
                value = int(value)
            elif isinstance(value, np.floating):
                value = float(value)
            if not isinstance(value, int | float | str):
                raise TypeError(f"property {name!r}: got {type(value).__name__}, expected int, float or str")
            self._state._core.set_property(name, value)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self._state._core.has_property(name)

    def __len__(self) -> int:
        return len(self._state._core.properties)

    def __iter__(self) -> Iterator[tuple[str, int | float | str]]:
        return iter(sorted(self._state._core.properties.items()))

    def __repr__(self) -> str:
        return f"Properties({dict(iter(self))})"


class CheckpointState:
    """Parameters, optimizer state and properties of a training run."""

    def __init__(self, state: _core.CheckpointState) -> None:
        if not isinstance(state, _core.CheckpointState):
            raise TypeError(
                f"got {type(state).__name__}, expected a loaded state; use CheckpointState.load_checkpoint(path)"
            )
        self._core = state
        self._owner: weakref.ref[Module] | None = None
        # Lets one thread at a time at the state, and at the sessions that work on it.
        self._lock = threading.RLock()  # a custom operator may ask about the state while a step calls it
        self.parameters = Parameters(self)
        self.properties = Properties(self)

    @classmethod
    def load_checkpoint(cls, checkpoint_uri: str | os.PathLike[str]) -> CheckpointState:
        return cls(_core.CheckpointState.load(os.fspath(checkpoint_uri)))

    @classmethod
    def save_checkpoint(
        cls, state: CheckpointState, checkpoint_uri: str | os.PathLike[str], include_optimizer_state: bool = False
    ) -> None:
        """Replaces the file as a whole: the previous one stays intact whatever happens before."""
        _require(state, CheckpointState, "state")
        with state._lock:
            state._core.save(os.fspath(checkpoint_uri), include_optimizer_state)

    @classmethod
    def from_bytes(cls, content: bytes) -> CheckpointState:
        """What ``to_bytes`` gave, or a checkpoint file without a second one for its data."""
        return cls(_core.CheckpointState.load_bytes(bytes(content)))

    def to_bytes(self, include_optimizer_state: bool = False) -> bytes:
        """What ``save_checkpoint`` writes, at most 2 GiB of it."""
        with self._lock:
            return self._core.to_bytes(include_optimizer_state)

    def __reduce__(self) -> tuple[Any, ...]:
        return CheckpointState.from_bytes, (self.to_bytes(include_optimizer_state=True),)

    def __repr__(self) -> str:
        names = self._core.parameter_names
        trained = sum(self._core.requires_grad(name) for name in names)
        size = "without data" if self._core.is_nominal else f"{self._core.parameter_count(False)} elements"
        parts = [f"{len(names)} parameters", f"{trained} of them trained", size]
        parts += [f"{group.name!r} at step {group.step}" for group in self._core.optimizer_groups]
        parts += ["half updated"] if self._core.is_half_updated else []
        return f"CheckpointState({', '.join(parts)}, properties={dict(iter(self.properties))})"

    def _module(self) -> Module | None:
        return None if self._owner is None else self._owner()


class Module:
    """A training model, and an eval model if there is one, over the parameters of a state."""

    def __init__(
        self,
        train_model_uri: Source,
        state: CheckpointState,
        eval_model_uri: Source | None = None,
        device: str = "cpu",
        session_options: Any = None,
    ) -> None:
        if device.split(":")[0] != "cpu":
            raise _core.Unsupported(f"device: got {device!r}, expected 'cpu'")
        _require(state, CheckpointState, "state")
        self._options = _engine_options(session_options)
        self.training = True
        self._state = state
        self._models = _source(train_model_uri, "training model"), _source(eval_model_uri)
        self._session = _core.TrainingSession(state._core, *self._models, self._options)
        state._owner = weakref.ref(self)

    def __call__(self, *inputs: Any) -> Any:
        """One training step (forward, backward, accumulation) or evaluation, by the mode the module is in.

        Inputs by position, as ``input_names()``; None leaves an optional one out. The result is an array, or a tuple;
        of tensors when all inputs are `Tensor`, of OrtValues when all are OrtValues.
        """
        with self._state._lock:
            return self._run(self._session.train_step if self.training else self._session.eval_step, inputs)

    def _run(self, step: Callable[[list[Any]], list[Any]], inputs: Sequence[Any]) -> Any:
        results = step(_numbered(inputs))
        given = [value for value in inputs if value is not None]
        converted = [_like(given, value) for value in results]
        return converted[0] if len(converted) == 1 else tuple(converted)

    def train(self, mode: bool = True) -> Module:
        self.training = mode
        return self

    def eval(self) -> Module:
        return self.train(False)

    def lazy_reset_grad(self) -> None:
        """The next training step overwrites the gradients instead of adding to them."""
        with self._state._lock:
            self._session.lazy_reset_grad()

    def get_parameters_size(self, trainable_only: bool = True) -> int:
        return self._session.parameters_size(trainable_only)

    def get_contiguous_parameters(self, trainable_only: bool = False) -> OrtValue:
        """All parameters one after the other, as an OrtValue, which numpy and torch take through DLPack too."""
        with self._state._lock:
            return OrtValue(to_numpy(self._session.contiguous_parameters(trainable_only)))

    def copy_buffer_to_parameters(self, buffer: Any, trainable_only: bool = True) -> None:
        with self._state._lock:
            self._session.copy_to_parameters(to_input("buffer", buffer), trainable_only)

    def export_model_for_inferencing(
        self, inference_model_uri: str | os.PathLike[str], graph_output_names: list[str]
    ) -> None:
        """Writes the eval model with the present parameters, cut down to what the named outputs need."""
        with self._state._lock:
            names = name_list("graph_output_names", graph_output_names)
            self._session.export_model_for_inferencing(os.fspath(inference_model_uri), names)

    def export_model_for_training(self, training_model_uri: str | os.PathLike[str]) -> None:
        """Writes the training model with everything left out that need not be computed.

        Same inputs, outputs and parameters; the checkpoint, eval and optimizer model go on as they are. Rows without a
        label and padding are found in every step, so that it is right for all data. Only Backpass can run it.
        """
        with self._state._lock:
            self._session.export_model_for_training(os.fspath(training_model_uri))

    def input_names(self) -> list[str]:
        return [info.name for info in self._session.inputs(self.training)]

    def output_names(self) -> list[str]:
        return [info.name for info in self._session.outputs(self.training)]

    def plan(self, *inputs: Any) -> _core.PlanReport:
        """What a training step runs for these inputs, or inputs of these shapes where they are tuples: steps, fusions,
        exact peak bytes, and what is held beside. Printable.
        """
        with self._state._lock:
            return self._session.plan(self._planned(inputs))

    def _planned(self, inputs: Sequence[Any]) -> list[Any]:
        codes = [info.dtype for info in self._session.inputs(True)][: len(inputs)]
        codes += [1] * (len(inputs) - len(codes))  # too many: the engine says so
        return _numbered(inputs, codes)

    def pass_reports(self) -> list[_core.Report]:
        """What was folded, merged and fused, and what the backward pass makes again to stay within ``max_memory``."""
        with self._state._lock:
            return self._session.pass_reports()

    def data_report(self) -> _core.DataReport:
        """What the latest batch is like (shares of rows with a label, of tokens that are no padding), which passes that
        was worth, how often others were, and what a step takes with them.
        """
        with self._state._lock:
            return self._session.data_report()

    def execution_model(self) -> bytes:
        """The training model after rewriting, before it is laid out for running: an ONNX model for InferenceSession.

        Parameters are inputs; gradients, and new values of statistics, follow the outputs.
        """
        with self._state._lock:
            return self._session.execution_model()

    def take_profile(self) -> Profile:
        """Steps run since the last call; needs SessionOptions with ``profile``."""
        with self._state._lock:
            return Profile(self._session.take_profile())

    def __repr__(self) -> str:
        mode = "training" if self.training else "eval"
        if not self.training and not self._session.has_eval_model:
            return "Module(eval, without an eval model)"
        inputs, outputs = (listed(infos) for infos in (
            self._session.inputs(self.training), self._session.outputs(self.training)))  # fmt: skip
        return f"Module({mode}, inputs=[{inputs}], outputs=[{outputs}], {len(self._state.parameters)} parameters)"

    def __reduce__(self) -> tuple[Any, ...]:
        """Gradients that were accumulated are left behind: the first step overwrites them."""
        return _restored_module, (*map(_whole, self._models), self._state, self._options, self.training)


def _restored_module(
    training: bytes, evaluation: bytes | None, state: CheckpointState, options: Any, mode: bool
) -> Module:
    return Module(training, state, evaluation, session_options=options).train(mode)


class Optimizer:
    """Updates the trainable parameters of a module."""

    def __init__(self, optimizer_uri: Source, module: Module) -> None:
        _require(module, Module, "module")
        self._module = module
        self._state = module._state
        self._model = _source(optimizer_uri, "optimizer model")
        with self._state._lock:
            module._session.add_optimizer(self._model)

    def step(self) -> None:
        with self._state._lock:
            self._module._session.optimizer_step()

    def train_and_update(self, *inputs: Any) -> Any:
        """A training step of the module, ``step()`` and the module's ``lazy_reset_grad()``, to the same bits.

        Each parameter is updated as soon as its gradient is complete, so that there is no memory for all gradients at a
        time: ``Parameter.grad`` is None afterwards. Where they are needed together, because some were added up before
        or the optimizer clips by their norm, the steps are done one after the other; ``plan`` says so. Inputs and
        results are those of calling the module.
        """
        with self._state._lock:
            if not self._module.training:
                raise _core.InvalidInput("train_and_update: got a module in eval mode; call its train() first")
            return self._module._run(self._module._session.train_and_update, inputs)

    def plan(self, *inputs: Any) -> _core.PlanReport:
        """What ``train_and_update`` runs, as ``Module.plan`` says it of a training step."""
        with self._state._lock:
            return self._module._session.plan_update(self._module._planned(inputs))

    def set_learning_rate(self, learning_rate: float) -> None:
        try:
            rate = float(learning_rate)
        except (TypeError, ValueError):
            raise _core.InvalidInput(
                f"learning rate: got {learning_rate!r}, expected a finite number, 0 or more"
            ) from None
        with self._state._lock:
            self._module._session.learning_rate = rate

    def get_learning_rate(self) -> float:
        return self._module._session.learning_rate

    def __repr__(self) -> str:
        session = self._module._session
        return f"Optimizer(learning_rate={session.learning_rate:g}, {session.optimizer_steps} steps done)"

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored_optimizer, (_whole(self._model), self._module, self.get_learning_rate())


def _restored_optimizer(model: bytes, module: Module, learning_rate: float) -> Optimizer:
    optimizer = Optimizer(model, module)
    optimizer.set_learning_rate(learning_rate)
    return optimizer


class LinearLRScheduler:
    """The learning rate grows from 0 over ``warmup_step_count`` updates, then falls to 0 at ``total_step_count``."""

    def __init__(self, optimizer: Optimizer, warmup_step_count: int, total_step_count: int, initial_lr: float) -> None:
        _require(optimizer, Optimizer, "optimizer")
        self._settings = warmup_step_count, total_step_count, initial_lr
        self._optimizer = optimizer
        self._state = optimizer._state
        with self._state._lock:
            optimizer._module._session.register_linear_scheduler(warmup_step_count, total_step_count, initial_lr)

    def step(self) -> None:
        """To be called after each Optimizer.step()."""
        with self._state._lock:
            self._optimizer._module._session.scheduler_step()

    def __repr__(self) -> str:
        warmup, total, rate = self._settings
        return f"LinearLRScheduler(warmup_step_count={warmup}, total_step_count={total}, initial_lr={rate:g})"

    def __reduce__(self) -> tuple[Any, ...]:
        return LinearLRScheduler, (self._optimizer, *self._settings)


def export_parameters(state: CheckpointState, path: str | os.PathLike[str]) -> None:
    """Writes all parameters to a safetensors file, which replaces the previous one as a whole."""
    _require(state, CheckpointState, "state")
    with state._lock:
        _core.export_parameters(state._core, os.fspath(path))


def import_parameters(state: CheckpointState, path: str | os.PathLike[str]) -> None:
    """Sets parameters from a safetensors file. All or none: names, types and shapes are checked first."""
    _require(state, CheckpointState, "state")
    with state._lock:
        _core.import_parameters(state._core, os.fspath(path))


def _engine_options(options: Any) -> _core.SessionOptions:
    """Options of Backpass, of `backpass.compat`, or of onnxruntime, of which the number of threads is followed."""
    if options is None or isinstance(options, _core.SessionOptions):
        return options or _core.SessionOptions()
    if hasattr(options, "to_engine"):
        found: _core.SessionOptions = options.to_engine()
        return found
    if not hasattr(options, "intra_op_num_threads"):
        raise TypeError(f"session_options: got {type(options).__name__}, expected SessionOptions")
    made = _core.SessionOptions()
    made.num_threads = options.intra_op_num_threads
    return made


def _array(value: Any) -> np.ndarray[Any, Any]:
    """Of whatever inputs may be; nested lists are arrays, not sequences of tensors."""
    found: np.ndarray[Any, Any] = to_numpy(to_engine(np.asarray(value) if isinstance(value, list) else value))
    return found


def _like(inputs: list[Any], result: _core.Tensor) -> Any:
    if inputs and all(isinstance(value, _core.Tensor) for value in inputs):
        return result
    if inputs and all(is_ort_value(value) for value in inputs):
        return type(inputs[0]).ortvalue_from_numpy(to_numpy(result))
    return to_numpy(result)


def _require(value: Any, kind: type, what: str) -> None:
    if not isinstance(value, kind):
        raise TypeError(f"{what}: got {type(value).__name__}, expected a {kind.__name__}")


def _numbered(inputs: Sequence[Any], codes: Sequence[int] | None = None) -> list[Any]:
    return [to_input(f"input {i}", value, None if codes is None else codes[i]) for i, value in enumerate(inputs)]


def _source(model: Source | None, needed: str = "") -> Any:
    """Bytes, or a whole path; None for none, unless it is ``needed``."""
    if model is None and needed:
        raise _core.InvalidInput(f"{needed}: got none, expected a file or its bytes")
    if model is None:
        return None
    content = serialized(model)
    return whole_path(model) if content is None else content


def _whole(model: str | bytes | None) -> bytes | None:
    """The model, with its weights, for another process."""
    return _core.model_bytes(model) if isinstance(model, str) else model
