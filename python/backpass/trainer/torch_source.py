"""TorchSource: models of an Engine that are captured from a torch module."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import onnx
import torch
from torch import nn

import backpass._needs_onnx
import backpass._needs_torch  # noqa: F401
from backpass import _core
from backpass._core import InvalidInput, Unsupported
from backpass.ortmodule.conditions import Checks, without_traces
from backpass.ortmodule.fallback import ORTModuleFallbackException
from backpass.torch.capture import one_at_a_time
from backpass.torch.convert import keep_running_statistics
from backpass.trainer import torch_capture
from backpass.trainer.arguments import Description
from backpass.trainer.forward_call import ForwardCall
from backpass.trainer.module_look import ModuleLook, SharedTensors
from backpass.trainer.onnx_names import embed, remove_dead_nodes, without_marks, without_weights
from backpass.trainer.source import Capture, Fetches

if TYPE_CHECKING:
    from backpass.trainer.settings import Settings

_FIXED_CAPTURES = 2  # before extents that were seen to vary may: many programs have two shapes, the last batch's


@dataclass
class _Family:
    """Captures that differ in shapes alone."""

    seen: list[dict[str, tuple[int, ...]]] = field(default_factory=list)
    captures: list[Capture] = field(default_factory=list)
    only_fixed: bool = False


class TorchSource:
    """A module and perhaps a loss function. The module's tensors are what is trained."""

    def __init__(
        self,
        module: nn.Module,
        loss_fn: Callable[[Any, Any], Any] | None,
        inputs: Sequence[Description],
        outputs: Sequence[Description],
        loss_index: int,
        settings: Settings,
        binding: str,
    ) -> None:
        self.module, self.settings = module, settings
        self.inputs, self.outputs = [d.name for d in inputs], [d.name for d in outputs]
        self.loss = self.outputs[loss_index]
        self._descriptions = {d.name: d for d in inputs}
        self._loss_fn, self._loss_index, self._binding = loss_fn, loss_index, binding
        self._call: ForwardCall | None = None
        self._look = ModuleLook(module)
        self._shared_tensors: SharedTensors | None = None
        self._checks = Checks(logging.getLogger("backpass.trainer"))
        self._families: dict[Hashable, _Family] = {}
        self._examples: dict[str, tuple[torch.dtype, tuple[int, ...]]] = {}

    @property
    def _shared(self) -> SharedTensors:
        assert self._shared_tensors is not None, "an Engine makes the state first"
        return self._shared_tensors

    # ---- state
    def make_state(self) -> Any:
        if isinstance(self.module, torch.jit.ScriptModule):
            raise Unsupported(
                "module: got one of torch.jit, expected one in Python; give the one that it was made from"
            )
        self._call = ForwardCall(self.module, self._loss_fn, self.inputs, self.outputs, self._loss_index, self._binding)
        self._shared_tensors = SharedTensors(self.module, self.settings.frozen)
        state = self._shared.make_state()
        seed = self.settings.seed
        if seed is None and not _core.is_seeded():  # as torch's generator is now, which goes on as if nothing had been
            drawing = torch.Generator().set_state(torch.get_rng_state())
            seed = int(torch.empty((), dtype=torch.int64).random_(generator=drawing))
        if seed is not None:
            state.resume.seed, state.resume.random_counter = seed, 0
        return state

    def refresh(self, state: Any) -> None:
        self._shared.refresh(state, self._look.now())

    def weights(self, state: Any) -> dict[str, Any]:
        return {name: p.detach() for name, p in self.module.named_parameters(remove_duplicate=False)}

    def buffers(self, state: Any) -> dict[str, Any]:
        kept = self.module.state_dict(keep_vars=True)
        found = dict(self.module.named_buffers(remove_duplicate=False))
        return {name: found[name].detach() for name in kept if name in found}

    def copy_in(self, values: Mapping[str, Any], state: Any) -> None:
        own = {**self.buffers(state), **self.weights(state)}
        given = {name: torch.as_tensor(value) for name, value in values.items()}
        with torch.no_grad():
            for name, value in given.items():
                own[name].copy_(value)

    # ---- steps
    def key(self, values: Mapping[str, Any], training: bool, fetches: Fetches) -> tuple[Hashable, Mapping[str, Any]]:
        tensors = {name: _tensor(values[name]) for name in self.inputs if values.get(name) is not None}
        kinds = tuple([(name, t.dtype, t.shape) for name, t in tensors.items()])
        return (self._look.state(training), training, fetches, kinds, torch.get_default_dtype()), tensors

    def _family(self, tensors: Mapping[str, Any], training: bool) -> _Family:
        kinds = tuple([(name, t.dtype, t.dim()) for name, t in tensors.items()])
        key = self._look.state(training), training, kinds, torch.get_default_dtype()
        return self._families.setdefault(key, _Family())

    def fits(self, capture: Capture, tensors: Mapping[str, Any], training: bool, fetches: Fetches) -> bool:
        known = self._family(tensors, training).captures
        if not any(c is capture for c in known) or capture.outputs != self._wanted(fetches, capture.written):
            return False
        return bool(capture.details.fits(self._shapes(tensors, training)))

    def _shapes(self, tensors: Mapping[str, torch.Tensor], training: bool) -> dict[str, tuple[int, ...]]:
        return {name: tuple(t.shape) for name, t in self._given(tensors, training).items()}

    def _given(self, tensors: Mapping[str, torch.Tensor], training: bool) -> dict[str, torch.Tensor]:
        """What a capture is made by: an input that is left out is forward's, and may still not be needed."""
        if self._loss_fn is not None or training or len(tensors) == len(self.inputs):
            return dict(tensors)
        return {n: tensors[n] if n in tensors else self._stand_in(n, tensors) for n in self.inputs}

    def _wanted(self, fetches: Fetches, written: Iterable[str] = ()) -> list[str]:
        for name in fetches or ():
            if name not in self.outputs:
                raise InvalidInput(f"fetches: got '{name}', expected some of {self.outputs}")
        return [*(self.outputs if fetches is None else fetches), *written]

    def capture(self, tensors: Mapping[str, Any], training: bool, fetches: Fetches, state: Any) -> Capture:
        family, wanted = self._family(tensors, training), self._wanted(fetches)
        self._examples |= {name: (t.dtype, tuple(t.shape)) for name, t in tensors.items()}
        shapes = self._shapes(tensors, training)
        for known in family.captures:
            if set(wanted) <= set(known.details.outputs) and known.details.fits(shapes):
                made = replace(known, outputs=self._wanted(fetches, known.written))
                break
        else:
            made = self._postprocessed(self._captured(family, tensors, training, fetches), state)
        family.captures.append(made)
        return made

    def _captured(
        self, family: _Family, tensors: Mapping[str, torch.Tensor], training: bool, fetches: Fetches
    ) -> Capture:
        request = self._request(tensors, training, fetches)
        self._check(request.tensors.values())
        seen = [*family.seen, {name: tuple(t.shape) for name, t in request.tensors.items()}]
        request.varying = {} if family.only_fixed else self._varying(seen, request.tensors)
        begin, number = time.perf_counter(), self._look.state(training)
        with one_at_a_time, self._look.mode(training), without_traces(self._look.now(), _untold):
            made = torch_capture.capture(request, self._shared.names)
        self._look.settle(training, number)
        family.seen = seen
        family.only_fixed = family.only_fixed or (bool(request.varying) and not made.details.dynamic)
        made.about.append(f"captured in {time.perf_counter() - begin:.2f} s")
        return made

    def _postprocessed(self, capture: Capture, state: Any) -> Capture:
        """Users see weights as initializers, under their names."""
        change = self.settings.postprocess
        if change is None:
            return capture
        model = embed(onnx.load_from_string(capture.model), _protos(state), self.inputs)
        changed = change(model)
        bare = without_weights(model if changed is None else changed, state.parameter_names)
        return replace(capture, model=bare.SerializeToString())

    def _check(self, tensors: Iterable[torch.Tensor]) -> None:
        """Refuses what a graph would get wrong."""
        try:
            self._checks(SimpleNamespace(tree=self._look.now(), tensors=tensors))  # type: ignore[arg-type]
        except ORTModuleFallbackException as error:
            raise Unsupported(str(error)) from error

    def _request(self, tensors: Mapping[str, torch.Tensor], training: bool, fetches: Fetches) -> torch_capture.Request:
        """All outputs that these values suffice for, whatever is fetched: another program may want others."""
        call, wanted = self._call, self._wanted(fetches)
        assert call is not None
        whole = call.label is None or call.label in tensors
        if not whole and (training or self.loss in wanted):
            raise InvalidInput(f"input '{call.label}': got none, expected the label, which '{self.loss}' needs")
        return torch_capture.Request(
            module=self.module,
            call=call,
            tensors=self._given(tensors, training),
            wanted=wanted,
            outputs=[name for name in self.outputs if whole or name != self.loss],
            loss=self.loss,
            training=training,
            whole=whole,
            settings=self.settings,
            shapes={name: d.shape for name, d in self._descriptions.items()},
        )

    def _stand_in(self, name: str, tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """For an input that is left out: what is fetched does not need it, but to capture the module does."""
        description = self._descriptions[name]
        dtype, shape = self._examples.get(name, (None, None))
        known: dict[str, int] = {}
        for other, tensor in tensors.items():
            described = self._descriptions[other].shape or ()
            known |= {str(s): tensor.shape[i] for i, s in enumerate(described) if i < tensor.dim()}
        if shape is None or len(shape) == len(description.shape or ()):
            shape = tuple(known.get(str(s), 1) if isinstance(s, str) else s for s in description.shape or ())
        if dtype is None:
            dtype = description.dtype if isinstance(description.dtype, torch.dtype) else torch.get_default_dtype()
        return torch.zeros(shape, dtype=dtype)

    def _varying(
        self, seen: Sequence[Mapping[str, tuple[int, ...]]], tensors: Mapping[str, torch.Tensor]
    ) -> dict[str, list[int]]:
        """For each input the axes that are described as varying, and, after some captures, those that did."""
        varying = {n: set(self._descriptions[n].varying(t.dim())) for n, t in tensors.items()}
        if len(seen) > _FIXED_CAPTURES:
            for name, axes in varying.items():
                extents = zip(*[shapes[name] for shapes in seen], strict=True)
                axes.update(axis for axis, found in enumerate(extents) if len(set(found)) > 1)
        return {name: sorted(axes) for name, axes in varying.items() if axes}

    def feeds(self, names: Sequence[str], capture: Capture, tensors: Mapping[str, Any]) -> list[Any]:
        described = capture.details.described
        try:
            return _core.tensors_from_torch([tensors[described[name]] for name in names])
        except KeyError as missing:
            raise InvalidInput(f"input {missing}: got none, expected a tensor: {capture.outputs} need it") from None

    def results(self, capture: Capture, results: Sequence[Any], values: Mapping[str, Any]) -> dict[str, Any]:
        found = dict(zip(capture.outputs, _core.tensors_to_torch(list(results)), strict=True))
        for output, name in capture.written.items():
            value = found.pop(output)
            if isinstance(values[name], torch.Tensor):
                with torch.no_grad():
                    values[name].copy_(value)
        return found

    def after_step(self, capture: Capture, updated: bool) -> None:
        self._shared.after_step([*(self._shared.trained if updated else ()), *capture.assigned.values()])

    def session_options(self, options: Any) -> Any:
        options.num_threads = options.num_threads or torch.get_num_threads()
        return options

    # ---- what there is
    def onnx_model(self, state: Any, training: bool) -> onnx.ModelProto:
        if not self._examples:
            raise RuntimeError("ONNX model: got a module that has not been captured yet, expected a step before")
        found = [c for f in self._families.values() for c in f.captures if c.training == training]
        chosen = next((c for c in found if c.details.outputs == self.outputs), None)
        if chosen is None:
            example = {n: torch.zeros(s, dtype=t) for n, (t, s) in self._examples.items()}
            chosen = self.capture(example, training, None, state)
        return self.whole_model(chosen, state)

    def whole_model(self, capture: Capture, state: Any) -> onnx.ModelProto:
        """A capture with the present weights, and without what only the engine needs."""
        weights = _protos(state)
        model = without_marks(embed(onnx.load_from_string(capture.model), weights, self.inputs))
        kept = {v.name: v for v in model.graph.output}
        outputs = [kept[capture.name(name)] for name in self.outputs]
        del model.graph.output[:]
        model.graph.output.extend(outputs)
        remove_dead_nodes(model.graph)
        keep_running_statistics(model, capture.details.exported.builder.running_statistics, weights)
        return model

    def described(self) -> str:
        count = sum(p.numel() for p in self.module.parameters())
        return f"{type(self.module).__name__} of torch, {count} parameters, which are trained where the module has them"


def _tensor(value: Any) -> torch.Tensor:
    return value if isinstance(value, torch.Tensor) else torch.as_tensor(value)


def _protos(state: Any) -> dict[str, onnx.TensorProto]:
    return {name: _proto(name, state.parameter(name)) for name in state.parameter_names}


def _proto(name: str, tensor: Any) -> onnx.TensorProto:
    return onnx.TensorProto(
        name=name, data_type=tensor.dtype, dims=tensor.shape, raw_data=tensor.bytes_array().tobytes()
    )


def _untold(text: str) -> None:
    """Attributes that hold tensors of a capture are put back without a word."""
