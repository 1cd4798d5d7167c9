"""Engine: the native train step over a torch module or an ONNX model, which both faces of ORTTrainer use.

    engine = Engine.from_torch(module, loss_fn, inputs, outputs, 0, Settings("adam"))
    result = engine.train_step({"x": x, "label": y}, rate=1e-3)
    result.outputs["loss"]

A step is one call of the engine: forward pass, loss, backward pass, accumulation, clipping, update. A torch module is
captured by the values of the first step; its own parameters are what is trained.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from backpass import _core
from backpass.profile import Profile
from backpass.trainer.arguments import Description
from backpass.trainer.learned import Learned
from backpass.trainer.report import explanation
from backpass.trainer.settings import Settings, trainer_options
from backpass.trainer.source import Capture, Source

if TYPE_CHECKING:
    import onnx

__all__ = ["Description", "Engine", "Settings", "StepResult"]


@dataclass
class StepResult:
    """What a train step gives."""

    outputs: dict[str, Any]
    """By described name: of the fetches, in their order, or all."""
    updated: bool
    """Whether weights changed: not in the middle of an accumulation, nor when gradients were not finite."""
    all_finite: bool
    """Whether all gradients were finite, where that was looked at."""


@dataclass
class _Program:
    """A model that the native trainer has taken."""

    number: int
    capture: Capture
    inputs: list[str]


class Engine(Learned):
    """Trains one model. Not for several threads at a time."""

    def __init__(self, source: Source, settings: Settings) -> None:
        super().__init__(source)
        self.settings = settings
        self._trains = True  #: there are weights to train
        self._programs: dict[Hashable, _Program] = {}
        self._latest: tuple[_Program, bool, list[Any]] | None = None  #: with whether it trains, and what it ran on

    @classmethod
    def from_onnx(
        cls, model: onnx.ModelProto, inputs: Sequence[str], outputs: Sequence[str], loss: str, settings: Settings
    ) -> Engine:
        """For a model with the loss among its outputs. Its float initializers are trained, unless frozen. Needs no
        torch. The native trainer is made at once."""
        from backpass.trainer.onnx_source import OnnxSource

        engine = cls(OnnxSource(model, list(inputs), list(outputs), loss, settings), settings)
        engine.start()
        return engine

    @classmethod
    def from_torch(
        cls,
        module: Any,
        loss_fn: Callable[[Any, Any], Any] | None,
        inputs: Sequence[Description],
        outputs: Sequence[Description],
        loss_index: int,
        settings: Settings,
        binding: str = "g1",
    ) -> Engine:
        """For a torch module, captured by the values of the first step.

        ``inputs`` in the order of the call, the label last where there is a ``loss_fn(prediction, label)``; ``outputs``
        name what forward returns, or the loss and then predictions. ``binding``: "g1" calls forward by position unless
        the described names are some of its parameters in another order; "g2" binds by name.
        """
        from backpass.trainer.torch_source import TorchSource

        return cls(TorchSource(module, loss_fn, inputs, outputs, loss_index, settings, binding), settings)

    # ---- steps
    def train_step(self, values: Mapping[str, Any], rate: float, fetches: Sequence[str] | None = None) -> StepResult:
        """One step on values by described name. ``fetches``: only these outputs, in this order, which may save time and
        memory; accumulation and update are as without."""
        program, feeds = self._ready(values, True, fetches)
        results, updated, all_finite = self._run(program, feeds, float(rate))
        self._latest = program, True, feeds
        self._source.after_step(program.capture, updated)
        return StepResult(self._source.results(program.capture, results, values), updated, all_finite)

    def eval_step(self, values: Mapping[str, Any], fetches: Sequence[str] | None = None) -> dict[str, Any]:
        """Outputs in evaluation: no dropout, running statistics; nothing changes. Values that the fetches do not need
        may be left out."""
        program, feeds = self._ready(values, False, fetches)
        results = self._trainer.eval_step(program.number, feeds)
        self._latest = program, False, feeds
        return self._source.results(program.capture, results, values)

    def prepare(self, values: Mapping[str, Any], training: bool = True, fetches: Sequence[str] | None = None) -> None:
        """All that a step on such values would do before it runs."""
        program, feeds = self._ready(values, training, fetches)
        self._latest = program, training, feeds

    # ---- what it is
    @property
    def is_ready(self) -> bool:
        """Whether there is a model: for a torch module, from the first step (or prepare) on."""
        return bool(self._programs)

    @property
    def inputs(self) -> list[str]:
        """Described names."""
        return self._source.inputs

    @property
    def outputs(self) -> list[str]:
        """Described names."""
        return self._source.outputs

    @property
    def loss(self) -> str:
        return self._source.loss

    def output_types(self) -> dict[str, int]:
        """ONNX codes of element types of outputs, as far as known: those of train steps, else of eval steps."""
        found: dict[str, int] = {}
        for program in sorted(self._programs.values(), key=lambda p: p.capture.training):
            found |= program.capture.types
        return found

    def onnx_model(self, training: bool = True) -> onnx.ModelProto:
        """Forward pass and loss with the present weights as initializers; inputs and outputs as described.

        ``training``: dropout and batch normalisation as in a train step; else as in an eval step. RuntimeError before
        the first step of a torch module.
        """
        return self._source.onnx_model(self._started_state(), training)

    def plan(self) -> Any:
        """The plan of the latest step, with its peak of memory; None before the first."""
        if self._latest is None or not self._latest[1] or not self._trains:
            return None
        return self._trainer.plan(self._latest[0].number, self._latest[2])

    def explain(self) -> str:
        """What was exported, what runs, what it takes, and what the settings mean here."""
        programs = list({id(p): p for p in self._programs.values()}.values())
        captures = [p.capture for p in programs]
        reports = [self._trainer.pass_reports(p.number) for p in programs if p.capture.training and self._trains]
        return explanation(self.settings, self._source.described(), captures, self.plan(), reports)

    def take_profile(self) -> Profile:
        """Steps of all programs since the last call."""
        numbers = dict.fromkeys(program.number for program in self._programs.values())
        return Profile([step for number in numbers for step in self._trainer.take_profile(number)])

    def start(self) -> Any:
        """The native trainer, made if it is the first time. RuntimeError for names in the settings that the model
        does not have."""
        if self._trainer is None:
            state = self._source.make_state()
            known = set(state.parameter_names)
            if unknown := [name for name in self.settings.named if name not in known]:
                raise RuntimeError(f"{unknown} in params of the optimizer not found in model weights.")
            trained = [name for name in state.parameter_names if state.requires_grad(name)]
            options, self._trains = trainer_options(self.settings, trained), bool(trained)
            options.session = self._source.session_options(options.session)
            self._trainer, self._state = _core.Trainer(state, options), state
        return self._trainer

    # ---- inside
    def _run(self, program: _Program, feeds: list[Any], rate: float) -> tuple[list[Any], bool, bool]:
        """A train step; of a model without weights to train the forward pass."""
        if self._trains:
            found: tuple[list[Any], bool, bool] = self._trainer.train_step(program.number, feeds, rate)
            return found
        self._trainer.steps += 1
        return self._trainer.eval_step(program.number, feeds), False, True

    def _ready(
        self, values: Mapping[str, Any], training: bool, fetches: Sequence[str] | None
    ) -> tuple[_Program, list[Any]]:
        """The program for these values, captured if it is the first time, and what it is called with."""
        state = self._started_state()
        wanted = tuple(fetches) if fetches is not None else None
        key, tensors = self._source.key(values, training, wanted)
        program = self._programs.get(key)
        if program is None:
            program = self._programs[key] = self._add(tensors, training, wanted, state)
        return program, self._source.feeds(program.inputs, program.capture, tensors)

    def _add(self, tensors: Mapping[str, Any], training: bool, fetches: tuple[str, ...] | None, state: Any) -> _Program:
        for known in self._programs.values():
            if self._source.fits(known.capture, tensors, training, fetches):
                return known
        capture = self._source.capture(tensors, training, fetches, state)
        trainer, outputs = self.start(), [capture.name(name) for name in capture.outputs]
        if training and self._trains:
            number = trainer.add_model(capture.model, capture.name(capture.loss), outputs, capture.assigned)
            infos = trainer.inputs(number)
        else:
            number = trainer.add_eval_model(capture.model, outputs, capture.to_inference)
            infos = trainer.eval_inputs(number)
        return _Program(number, capture, [info.name for info in infos])
