"""Manager: decides for each call of an ORTModule which exported graph runs, and makes those that are missing."""

from __future__ import annotations

import contextlib
import functools
import inspect
import time
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from backpass import _core
from backpass._collection import without_collection
from backpass.ortmodule import density, features, io, memory
from backpass.ortmodule.alternatives import WAYS, Alternatives
from backpass.ortmodule.cache import ExportCache
from backpass.ortmodule.conditions import Checks, proper_parameters, undisturbed, without_traces
from backpass.ortmodule.debug import DebugOptions, make_logger
from backpass.ortmodule.fallback import (
    FallbackManager,
    ORTModuleFallbackException,
    ORTModuleIOError,
    ORTModuleONNXModelException,
    ORTModuleTorchModelException,
    refusal,
    wrap_exception,
)
from backpass.ortmodule.optimizers import apply_graph_optimizers
from backpass.ortmodule.options import RuntimeOptions, from_environment
from backpass.ortmodule.tree import ModuleTree
from backpass.ortmodule.variant import Call, FlatCall, Shapes, TypesInForce, Variant, types_in_force
from backpass.torch.capture import one_at_a_time
from backpass.torch.exporter import export_module
from backpass.torch.flat import FlatModule, varying_axes
from backpass.torch.model import ExportedModel
from backpass.torch.runtime import EngineGraph

_KNOWN_LIMIT = 1024  # combinations of shapes that are found at once
_MANY_EXPORTS = 8
_LAZY = "%s has parameters that get their shapes by the first call: PyTorch runs this one, Backpass the next"
# Captures with variable dimensions take some times as long. Many programs have two shapes: the last batch is smaller.
_FIXED_EXPORTS = 2


@dataclass
class _Family:
    """Exports of one module state and input structure, for different shapes."""

    seen: list[Shapes] = field(default_factory=list)  # that were exported for
    dynamic: list[Variant] = field(default_factory=list)
    no_dynamic: bool = False

    def varying(self, every: bool) -> list[list[int]]:
        """For each tensor the axes that were not always the same, or `every` one."""
        by_axis = [list(zip(*shapes, strict=True)) for shapes in zip(*self.seen, strict=True)]
        return [[i for i, extents in enumerate(axes) if every or len(set(extents)) > 1] for axes in by_axis]


class Manager:
    """Everything behind ``forward`` of an ORTModule."""

    def __init__(self, module: nn.Module, debug: DebugOptions, options: RuntimeOptions | None) -> None:
        self.module, self.name = module, type(module).__name__
        self.debug = debug
        self.logger = make_logger(debug.logging.log_level)
        self.options = from_environment(options, self.logger)
        self.fallback = FallbackManager(self.options.fallback_policy, self.options.fallback_retry, self.logger)
        self.cache = ExportCache(self.options.cache_dir, self.logger)
        self.variants: list[Variant] = []
        self.reported: set[bool] = set()  # modes whose table was shown
        self._signature: inspect.Signature | None = None
        with contextlib.suppress(TypeError, ValueError):  # compiled
            self._signature = inspect.signature(module.forward)
        self._spelling = functools.cache(functools.partial(_spelling, self._signature))
        self._tree: ModuleTree | None = None
        self._state = 0
        self._states: dict[Any, int] = {}
        self._families: dict[Any, _Family] = {}
        self._known: dict[Any, Variant] = {}
        self._recent: dict[Any, tuple[io.Structure, Variant]] = {}  # by a shorter key, of calls with tensors alone
        self._refusing = _Refusing(self.name)
        self._checks = Checks(self.logger)
        self._decides = False  # by the contents of tensors: known after the first capture

    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What the module returns for these arguments."""
        if torch.compiler.is_dynamo_compiling() or self.fallback.is_active:  # torch.compile wants what the module does
            return self.module(*args, **kwargs)
        try:
            with one_at_a_time:  # while another thread traces, modules are not what they seem
                if torch.compiler.is_compiling():
                    return self.module(*args, **kwargs)
                with self._refusing:
                    tree = self._look()
                    found = None if tree.is_lazy else self._found(tree, args, kwargs)
                if found is None:
                    self._tree = None
                    self.logger.warning(_LAZY, self.name)
                    return self.module(*args, **kwargs)
                call, variant = found
                feeds = variant.feeds_for(call)
            try:
                return self._answer(variant, feeds, call)
            except RuntimeError:
                self._checks(call)  # parameters may have been moved meanwhile: a better message
                if not tree.retyped():
                    raise
                self._tree = None
            return self.run(args, kwargs)
        except ORTModuleFallbackException as error:
            self.fallback.check(error)
            refused = error
        result = self.module(*args, **kwargs)  # where it raises, too, the call was wrong, and the next one may be right
        self.fallback.take_over(refused)
        return result

    def export(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Makes the graph for these arguments, without running it; raises where that cannot be done."""
        with one_at_a_time, self._refusing:
            self._found(self._look(), args, kwargs)

    def _answer(self, variant: Variant, feeds: list[torch.Tensor], call: Call) -> Any:
        try:
            if variant.alternatives is not None:
                return variant.alternatives.run(call)
            return variant.answer(feeds, call)
        except ORTModuleFallbackException:
            raise
        except Exception as error:
            if not variant.exported.python_ops or self.fallback.policy.is_disabled() or call.tree.retyped():
                raise
            # A function of the user's may depend on what is no argument of it; if torch can run it, torch does.
            text = f"a function that {self.name} calls: {type(error).__name__}: {error}"
            raise wrap_exception(ORTModuleTorchModelException, error, text) from error

    def _variant(self, call: Call) -> Variant:
        """The graph for these arguments."""
        key = (self._state, call.arguments, call.kinds, call.shapes)
        variant = self._known.get(key)
        if variant is None:
            with without_collection():
                self._known[key] = variant = self._find(call)
            _keep_latest(self._known)
        return variant

    def forget(self) -> None:
        """The module was changed in a way that cannot be seen: everything is exported again."""
        self._tree = None
        self._states.clear()
        self._families.clear()
        self._known.clear()
        self._recent.clear()

    def _look(self) -> ModuleTree:
        if self._tree is None or not self._tree.unchanged():
            self._tree = ModuleTree(self.module)
            self._state = self._states.setdefault(self._tree.key, len(self._states))
        return self._tree

    def _found(self, tree: ModuleTree, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Call, Variant]:
        """The call as the graphs see it, and the graph for it."""
        if kwargs:  # the same call, however it is written
            moved, rest = self._spelling(len(args), tuple(kwargs))
            args, kwargs = (*args, *[kwargs[name] for name in moved]), {name: kwargs[name] for name in rest}
        in_force = types_in_force()
        plain = None if kwargs else _core.kinds_of(args)
        if plain is None:
            call = _taken_apart(tree, args, kwargs, in_force)
            return call, self._variant(call)
        key = (self._state, plain, in_force)
        recent = self._recent.get(key)
        if recent is None:
            call = _taken_apart(tree, args, kwargs, in_force)
            self._recent[key] = recent = call.arguments, self._variant(call)
            _keep_latest(self._recent)
            return call, recent[1]
        return Call(tree, recent[0], list(args), in_force), recent[1]

    def _find(self, call: Call) -> Variant:
        kind = (self._state, call.arguments, call.kinds, tuple(map(len, call.shapes)))
        family = self._families.setdefault(kind, _Family())
        for variant in family.dynamic:
            if variant.fits(call.shapes):
                return variant
        self._checks(call)
        wish = self.options.dynamic_shapes
        family.seen.append(call.shapes)
        dynamic = wish == "always" or (wish == "auto" and len(family.seen) > _FIXED_EXPORTS)
        try:
            variant = self._export(call, dynamic and not family.no_dynamic, family)
        except BaseException:
            family.seen.pop()  # the call was wrong, perhaps
            raise
        if variant.dynamic:
            family.dynamic.append(variant)
        if variant.decides:

            def capture(call: Call) -> Variant:
                with one_at_a_time:
                    self._note(made := self._export(call, variant.dynamic, family))
                return made

            variant.alternatives = Alternatives(variant, capture, self.name)
        self._note(variant)
        return variant

    def _note(self, variant: Variant) -> None:
        self.variants.append(variant)
        if len(self.variants) == _MANY_EXPORTS:
            self.logger.warning(
                "%s was exported %d times: what changes from call to call (attributes, Python numbers among the "
                "arguments, shapes the module needs fixed) is part of the graph; tensors are not. explain() lists them",
                self.name,
                _MANY_EXPORTS,
            )

    def _export(self, call: Call, dynamic: bool, family: _Family) -> Variant:
        begin = time.perf_counter()
        varying = family.varying(every=self.options.dynamic_shapes == "always") if dynamic else None
        key = self.cache.key(self, call, varying)
        variant = self.cache.load(key, self, call.arguments, dynamic)
        if variant is None:
            try:
                variant = self._captured(call, varying)
            except ORTModuleTorchModelException as error:
                if not dynamic:
                    raise
                variant = self._export(call, False, family)  # where that fails, the call was wrong
                family.no_dynamic = True
                self.logger.warning(
                    "%s cannot be captured with variable dimensions; each new set of shapes is exported by itself: %s",
                    self.name,
                    error,
                )
                return variant
            self.cache.store(key, variant)
        variant.export_seconds = time.perf_counter() - begin
        self.logger.info(
            "%s was %s for %s, with %s dimensions, in %.2f s",
            self.name,
            "found in the cache" if variant.from_cache else "exported",
            "training" if variant.training else "inference",
            "variable" if dynamic else "fixed",
            variant.export_seconds,
        )
        return variant

    def _captured(self, call: Call, varying: list[list[int]] | None) -> Variant:
        names = self.input_names(call.arguments)
        function = FlatCall(self.module, call.arguments)
        tree = call.tree
        with undisturbed() as drawn, proper_parameters(tree), without_traces(tree, self._checks.tell):
            with self._refusing:
                exported = export_module(
                    FlatModule(self.module, function, names),
                    tuple(t.detach() for t in call.tensors),
                    dynamic_shapes=None if varying is None else varying_axes(names, varying),
                    target_opset=self.options.onnx_opset_version,
                    draft=self._decides,
                )
            by_chance = drawn()
        self._checks.check_export(self.module, exported)
        if exported.python_ops and not self.options.enable_custom_autograd_function:
            text = (
                f"autograd functions: got {', '.join(exported.python_ops)}, but enable_custom_autograd_function is off"
            )
            raise refusal(ORTModuleTorchModelException, text)
        if self._tree is tree and not tree.unchanged():  # forward itself sets attributes: take them as they are now
            self._tree = ModuleTree(self.module)
            self._states[self._tree.key] = self._state
        if exported.draft:
            self._decides = True
            self._checks.tell(
                f"{self.name} decides by the contents of tensors what to compute: what it decides is "
                f"checked in every call, and each way that is met is a graph of its own, up to {WAYS} of them"
            )
        if by_chance:
            self._checks.tell(
                f"{self.name} draws random numbers from Python or numpy; the graph holds what it drew "
                "when it was captured. Draw them with torch, and compute with the tensors"
            )
        return self.variant(exported, call.arguments, function.result, varying is not None)

    def variant(self, exported: ExportedModel, arguments: io.Structure, result: io.Structure, dynamic: bool) -> Variant:
        names = self.input_names(arguments)
        training = self.module.training
        return Variant(exported, self._build, result=result, training=training, dynamic=dynamic, names=names)

    def input_names(self, arguments: io.Structure) -> list[str]:
        """Names of the tensors among the arguments: parameters of ``forward``, with positions and keys below them."""
        (_, args), (_, keys, values) = arguments[1]
        parameters = list(self._signature.parameters.values()) if self._signature is not None else []
        positional = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        rest = next((p.name for p in parameters if p.kind is p.VAR_POSITIONAL), "args")
        names: list[str] = []
        for i, argument in enumerate(args):
            over = i - len(positional)
            names += io.leaf_names(argument, positional[i] if over < 0 else f"{rest}_{over}")
        for key, value in zip(keys, values, strict=True):
            names += io.leaf_names(value, key)
        return io.unique_names(names)

    @without_collection()
    def _build(self, variant: Variant, requires_grad: list[str]) -> EngineGraph:
        begin = time.perf_counter()
        save = functools.partial(self.debug.save_onnx_models.write, training=variant.training)
        model = variant.exported.proto
        save(model, "torch_exported")
        save(model, "post_processed")
        model = apply_graph_optimizers(model, self.name)
        save(model, "optimized_pre_grad")
        options = _core.SessionOptions()
        options.num_threads = self.options.num_threads or torch.get_num_threads()
        options.optimize = self.options.enable_compute_optimizer
        options.profile = self.options.profile
        options.disabled_passes = [*self.options.disabled_passes, *density.disabled_passes(self.options)]
        options.sparse_threshold = self.options.sparse_threshold
        options.max_memory = self.options.max_memory
        options.recompute = memory.recomputed(self.options)
        try:
            graph = variant.load(model, requires_grad, options)
        except _core.InternalBug:
            raise
        except _core.Error as error:
            raise wrap_exception(ORTModuleONNXModelException, error) from error
        for spec in variant.lost_gradients(graph):
            raise refusal(
                ORTModuleIOError,
                f"argument {spec.target}: forward changes it in place, to a value that has gradients; return the new "
                "value instead, or detach() it",
                NotImplementedError,
            )
        if self.options.print_memory_stats:
            graph.watch = memory.MemoryStats(graph, self.logger)
        if requires_grad:
            save(graph.session.training_model, "optimized")
        save(graph.session.execution_model, "execution_model")
        variant.build_seconds += time.perf_counter() - begin
        graph.looked = features.Looks(self, variant, graph)
        return graph


class _Refusing:
    """A module that cannot even be looked at (torch.jit) is one that cannot be captured."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: Any, error: BaseException | None, trace: Any) -> None:
        if not isinstance(error, Exception) or isinstance(error, ORTModuleFallbackException | _core.InternalBug):
            return
        if isinstance(error, _core.Error):
            raise wrap_exception(ORTModuleONNXModelException, error) from error
        text = f"capture of {self._name} failed: {type(error).__name__}: {error}"
        raise wrap_exception(ORTModuleTorchModelException, error, text) from error


def _taken_apart(tree: ModuleTree, args: tuple[Any, ...], kwargs: dict[str, Any], in_force: TypesInForce) -> Call:
    tensors: list[torch.Tensor] = []
    return Call(tree, ("tuple", (io.flatten(args, tensors), io.flatten(kwargs, tensors))), tensors, in_force)


def _keep_latest(known: dict[Any, Any]) -> None:
    if len(known) > _KNOWN_LIMIT:
        del known[next(iter(known))]


def _spelling(signature: inspect.Signature | None, count: int, names: tuple[str, ...]) -> tuple[Any, Any]:
    """Of arguments given by name after `count` others: which come next by position, and in what order the rest."""
    try:
        bound = (signature or inspect.Signature()).bind(*[None] * count, **{name: name for name in names})
    except TypeError:  # the module says what is wrong with the call
        return (), names
    return bound.args[count:], bound.kwargs
