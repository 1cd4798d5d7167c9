"""ORTModule: a torch module whose forward and backward passes run in Backpass."""

from __future__ import annotations

import contextlib
import functools
import inspect
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from backpass._html import Report
from backpass.ortmodule import features
from backpass.ortmodule.debug import DebugOptions
from backpass.ortmodule.fallback import ORTModuleFallbackException, ORTModuleTorchModelException, refusal
from backpass.ortmodule.manager import Manager
from backpass.ortmodule.options import RuntimeOptions
from backpass.ortmodule.tree import is_seen
from backpass.profile import Profile
from backpass.torch.flat import share_members

# Hooks around state_dict and load_state_dict: one list for both, wherever they are registered and whoever calls them.
_STATE_HOOKS = (
    "_state_dict_hooks",
    "_state_dict_pre_hooks",
    "_load_state_dict_pre_hooks",
    "_load_state_dict_post_hooks",
)
# Names by which a method asks for the class of its object.
_CLASS_QUESTIONS = {"type", "isinstance", "issubclass", "__class__"}
# Kept by the wrapper itself; every other attribute is the module's.
_OWN = {"_original", "_manager", "_debug_options", "_given_options", "forward", *vars(nn.Module())}


def _of_original(name: str) -> Any:
    """A method of nn.Module that is the original's."""

    @functools.wraps(getattr(nn.Module, name))
    def method(self: ORTModule, *args: Any, **kwargs: Any) -> Any:
        return getattr(self._original, name)(*args, **kwargs)

    return method


class ORTModule(nn.Module):
    """Wraps a module; use it as you would use the module.

    Parameters, buffers and their names are the module's own, so optimizers, checkpoints and DistributedDataParallel
    need not know. Attributes are read from and written to the module; its methods see the wrapper as ``self``, or, if
    they look at its class, the module, whose forward then is the accelerated one. ``module`` is the original.

    The first call with inputs of some structure captures the module (`explain` tells what came of it); later calls run
    the graph, forward now and backward when torch's autograd asks for it. Results are those of the module; where the
    engine cannot give them, PyTorch runs the module, which is logged, or the failure is raised: see
    ``RuntimeOptions.fallback_policy``.
    """

    _original: nn.Module
    _manager: Manager
    _debug_options: DebugOptions
    _given_options: RuntimeOptions | None

    def __init__(
        self,
        module: nn.Module,
        debug_options: DebugOptions | None = None,
        *,
        options: RuntimeOptions | None = None,
    ) -> None:
        if not isinstance(debug_options, DebugOptions | None):
            given = type(debug_options).__name__
            raise TypeError(f"ORTModule: got {given} as debug_options; RuntimeOptions are named: options=...")
        refused = _refused(module)
        super().__init__()
        vars(self)["_original"] = module
        vars(self)["_debug_options"] = debug_options or DebugOptions()
        vars(self)["_given_options"] = options
        self._start()
        if refused is not None:
            self._manager.fallback.check(refused)
            self._manager.fallback.retry = False
            self._manager.fallback.take_over(refused)

    def _start(self) -> None:
        """Takes the original's tables for its own and begins without exports."""
        share_members(self, self._original)
        vars(self).update({table: getattr(self._original, table) for table in _STATE_HOOKS})
        vars(self)["training"] = self._original.training
        vars(self)["_manager"] = Manager(self._original, self._debug_options, self._given_options)
        if type(self).forward is ORTModule.forward:
            vars(self)["forward"] = types.MethodType(_with_signature(self._original), self)
        for name in _collisions(type(self._original)):
            self._manager.logger.warning(
                "%s.%s is hidden by ORTModule.%s; reach it through .module", type(self._original).__name__, name, name
            )

    # ---- running
    __call__: Callable[..., Any] = nn.Module.__call__  # nn.Module's is another while any thread traces

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The accelerated forward; that of an object has the signature of its module's."""
        return vars(self)["_manager"].run(args, kwargs)

    def explain(self) -> str:
        """What was exported, what torch still runs and its share of the time, what was rewritten."""
        return Report(features.explain(self._manager))

    def take_profile(self) -> Profile:
        """Steps of forward and backward passes since the last call, with what limits them; needs
        ``RuntimeOptions(profile=True)``."""
        return features.take_profile(self._manager)

    @property
    def module(self) -> nn.Module:
        """The module as it was given."""
        original: nn.Module = vars(self)["_original"]
        return original

    # ---- attributes, both ways
    def __getattr__(self, name: str) -> Any:
        if "_original" not in vars(self):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        original = vars(self)["_original"]
        found = getattr(original, name)
        if isinstance(found, types.MethodType) and found.__self__ is original:
            return self._bound(found)
        return found

    def _bound(self, method: types.MethodType) -> Callable[..., Any]:
        """A method of the module's that reaches the accelerated forward when it calls ``self``."""
        code = getattr(inspect.unwrap(method.__func__), "__code__", None)  # decorators hide what is inside them
        if code is not None and not _asks_for_class(code):
            return types.MethodType(method.__func__, self)

        @functools.wraps(method)  # it uses super() or looks at its class, which is the original's
        def redirected(*args: Any, **kwargs: Any) -> Any:
            with self._redirected():
                return method(*args, **kwargs)

        return redirected

    @contextlib.contextmanager
    def _redirected(self) -> Iterator[None]:
        """Within, calls of the original run in Backpass."""
        attributes = vars(self._original)
        if isinstance(attributes.get("forward"), _Redirect):  # by another thread; when that ends, torch runs the rest
            yield
            return
        redirect = _Redirect(self)
        redirect.own = attributes.get("forward")
        attributes["forward"] = redirect
        try:
            yield
        finally:
            redirect.is_over = True
            redirect.step_aside()

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "training" and "_original" in vars(self):
            self._original.training = value
        if name in _OWN or "_original" not in vars(self):
            super().__setattr__(name, value)
            return
        setattr(self._original, name, value)
        if not is_seen(value):
            self._manager.forget()

    def __delattr__(self, name: str) -> None:
        if name in vars(self):
            super().__delattr__(name)
        else:
            delattr(self._original, name)
            self._manager.forget()

    def __dir__(self) -> list[str]:
        return sorted({*object.__dir__(self), *dir(self._original)})

    # ---- what nn.Module does by walking through modules starts at the original
    def train(self, mode: bool = True) -> ORTModule:
        self._original.train(mode)
        vars(self)["training"] = mode
        return self

    def apply(self, fn: Callable[[nn.Module], None]) -> ORTModule:
        self._original.apply(fn)
        return self

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> ORTModule:
        self._original._apply(fn, recurse)  # type: ignore[no-untyped-call]
        return self

    named_modules = _of_original("named_modules")
    state_dict = _of_original("state_dict")
    load_state_dict = _of_original("load_state_dict")
    _save_to_state_dict = _of_original("_save_to_state_dict")  # a module around calls these two
    _load_from_state_dict = _of_original("_load_from_state_dict")
    get_submodule = _of_original("get_submodule")
    register_buffer = _of_original("register_buffer")
    register_parameter = _of_original("register_parameter")

    def add_module(self, name: str, module: nn.Module | None) -> None:
        text = "add_module on an ORTModule: add it to the module before wrapping it"
        raise refusal(ORTModuleTorchModelException, text, NotImplementedError)

    def _replicate_for_data_parallel(self) -> Any:
        text = "torch.nn.DataParallel of an ORTModule: use torch.nn.parallel.DistributedDataParallel"
        raise refusal(ORTModuleTorchModelException, text, NotImplementedError)

    def __repr__(self) -> str:
        inner = repr(self._original).replace("\n", "\n  ")
        return f"ORTModule(\n  {inner}\n)"

    # ---- copies know the module and the options; they export for themselves
    def __getstate__(self) -> dict[str, Any]:
        shared = (
            "_manager",
            "forward",
            "_parameters",
            "_buffers",
            "_modules",
            "_non_persistent_buffers_set",
            *_STATE_HOOKS,
        )
        return {name: value for name, value in vars(self).items() if name not in shared}

    def __setstate__(self, state: dict[str, Any]) -> None:
        nn.Module.__init__(self)
        vars(self).update(state)
        self._start()


def _with_signature(module: nn.Module) -> Any:
    """`ORTModule.forward` as a function that shows the parameters of the module's own."""

    @functools.wraps(module.forward)
    def forward(self: ORTModule, *args: Any, **kwargs: Any) -> Any:
        return vars(self)["_manager"].run(args, kwargs)

    with contextlib.suppress(TypeError, ValueError):  # what is compiled has none
        me = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
        own = inspect.signature(module.forward)
        forward.__signature__ = own.replace(parameters=[me, *own.parameters.values()])  # type: ignore[attr-defined]
    return forward


class _Redirect:
    """What ``forward`` of the original is while one of its methods runs."""

    def __init__(self, wrapper: ORTModule) -> None:
        self._wrapper = wrapper

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(self._wrapper.forward)

    own: Any = None  #: what was there before; None for the class's
    is_over = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.step_aside()  # a capture calls the original's own
        try:
            return vars(self._wrapper)["_manager"].run(args, kwargs)
        finally:
            if not self.is_over:
                vars(self._wrapper._original)["forward"] = self

    def step_aside(self) -> None:
        attributes = vars(self._wrapper._original)
        attributes.pop("forward", None)
        if self.own is not None:
            attributes["forward"] = self.own


def _asks_for_class(code: types.CodeType) -> bool:
    """Whether a method, or a function inside it, uses super() or looks at the class of something."""
    if "__class__" in code.co_freevars or not _CLASS_QUESTIONS.isdisjoint(code.co_names):
        return True
    return any(_asks_for_class(inner) for inner in code.co_consts if isinstance(inner, types.CodeType))


def _refused(module: Any) -> ORTModuleFallbackException | None:
    """Why torch has to run this module, where the policy lets it. Raises where nobody can."""
    if isinstance(module, ORTModule):
        raise _unusable("got an ORTModule, which needs no other around it")
    if not isinstance(module, nn.Module):
        raise _unusable(f"got {type(module).__name__}, expected a torch.nn.Module")
    if isinstance(module, nn.parallel.DataParallel):
        return _unusable("got a DataParallel, expected the module inside it")
    if isinstance(module, torch.jit.ScriptModule):
        return _unusable("got a ScriptModule, expected the module it was made of")
    return None


def _unusable(problem: str) -> ORTModuleFallbackException:
    return refusal(ORTModuleTorchModelException, f"ORTModule(module): {problem}", TypeError)


def _collisions(kind: type[nn.Module]) -> list[str]:
    """Names the user's class defines and the wrapper hides."""
    hidden = {name for name in vars(ORTModule) if not name.startswith("_") and not hasattr(nn.Module, name)}
    mine = {name for base in kind.__mro__ if base not in nn.Module.__mro__ for name in vars(base)}
    return sorted(hidden & mine)
