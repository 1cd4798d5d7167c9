"""install: scripts written for ``onnxruntime.training`` run on Backpass.

```
import backpass.compat

backpass.compat.install()
from onnxruntime.training import artifacts  # is backpass.artifacts

torch.compile(model, backend="onnxrt")  # is backend="backpass"
```
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

# Where parts of onnxruntime.training are found. What is not listed does not exist in Backpass.
PARTS = {
    "onnxruntime.training": "backpass._ort.training",
    "onnxruntime.training.artifacts": "backpass.artifacts",
    "onnxruntime.training.onnxblock": "backpass.onnxblock",
    "onnxruntime.training.api": "backpass.api",
    "onnxruntime.training.ortmodule": "backpass.ortmodule",
    "onnxruntime.training.ortmodule._fallback": "backpass.ortmodule.fallback",
    "onnxruntime.training.ortmodule._custom_autograd_function": "backpass._ort.custom_autograd",
    "onnxruntime.training.ortmodule.graph_optimizer_registry": "backpass.ortmodule.optimizers",
    "onnxruntime.training.ortmodule.torch_cpp_extensions": "backpass._ort.torch_cpp_extensions",
    "torch_ort": "backpass.ortmodule",
    "torch_ort.configure": "backpass._ort.torch_cpp_extensions.install",
}
_TRAINER = "the old ORTTrainer is not there; use artifacts and onnxruntime.training.api, or ORTModule"
_INSIDE = "it is a part of the original's inside"
# What the original has and Backpass has not, and what to do without it. Parts of these neither.
ABSENT = {
    "onnxruntime.capi.ort_trainer": _TRAINER,
    "onnxruntime.training.amp": "train in float32 or bfloat16, which need no scaled loss",
    "onnxruntime.training.checkpoint": _TRAINER,
    "onnxruntime.training.experimental": "backpass.grad gives the gradient of any ONNX model",
    "onnxruntime.training.model_desc_validation": _TRAINER,
    "onnxruntime.training.optim": "use torch.optim.AdamW; artifacts have onnxruntime.training.onnxblock.optim",
    "onnxruntime.training.ort_triton": "Backpass runs on CPUs",
    "onnxruntime.training.orttrainer": _TRAINER,
    "onnxruntime.training.orttrainer_options": _TRAINER,
    "onnxruntime.training.ortmodule._custom_gradient_registry": "use backpass.register_gradient",
    "onnxruntime.training.ortmodule._custom_op_symbolic_registry": "use backpass.register_operator",
    "onnxruntime.training.ortmodule._graph_execution_manager": _INSIDE,
    "onnxruntime.training.ortmodule._graph_execution_manager_factory": _INSIDE,
    "onnxruntime.training.ortmodule._io": _INSIDE,
    "onnxruntime.training.ortmodule._utils": _INSIDE,
    "onnxruntime.training.ortmodule.experimental.hierarchical_ortmodule": "ORTModule leaves to torch what it must",
    "onnxruntime.training.ortmodule.experimental.pipe": "pipelines of DeepSpeed are not supported",
    "onnxruntime.training.utils": "samplers and hooks of torch do the same",
    "torch_ort.optim": "use torch.optim.AdamW",
    "torch_ort.utils": "samplers of torch do the same",
}
_RUNTIME = {"onnxruntime": "backpass._ort"}
# torch imports this one, which is empty nowadays, before it looks a backend up.
_COMPILE = {"torch._dynamo.backends.onnxrt": "backpass.dynamo.onnxrt"}


def install(runtime: bool = False) -> None:
    """Makes ``onnxruntime.training`` (artifacts, onnxblock, api, ortmodule) and ``torch_ort`` resolve to Backpass, for
    the rest of the process.

    Where no onnxruntime is installed, or with ``runtime``, ``onnxruntime`` itself too: InferenceSession, OrtValue,
    SessionOptions and what else `backpass._ort` holds. ``torch.compile`` finds the backend ``onnxrt``. Calling it
    again is harmless.
    """
    runtime = runtime or PathFinder.find_spec("onnxruntime", sys.path) is None
    uninstall()
    _forget("onnxruntime" if runtime else "onnxruntime.training")
    sys.meta_path.insert(0, _Finder(PARTS | _COMPILE | (_RUNTIME if runtime else {})))
    if "torch._dynamo.backends.registry" in sys.modules:
        importlib.import_module("backpass.dynamo.onnxrt").register()
    if "onnxruntime" in sys.modules:  # otherwise `onnxruntime.training` as an attribute would be the old one
        importlib.import_module("onnxruntime.training")


def uninstall() -> None:
    """Undoes `install`: later imports find what is installed. Modules that were imported stay as they are."""
    finders = [finder for finder in sys.meta_path if isinstance(finder, _Finder)]
    for finder in finders:
        sys.meta_path.remove(finder)
        for name, module in list(sys.modules.items()):
            if finder.covers(name) and getattr(module, "__name__", "").startswith("backpass"):
                _forget(name)
    if "backpass.dynamo.onnxrt" in sys.modules:
        sys.modules["backpass.dynamo.onnxrt"].unregister()


def _forget(name: str) -> None:
    """Takes a module and those below it out of the tables that ``import`` looks at."""
    for known in [k for k in sys.modules if k == name or k.startswith(f"{name}.")]:
        del sys.modules[known]
    parent, _, child = name.rpartition(".")
    if parent in sys.modules:
        vars(sys.modules[parent]).pop(child, None)


class _Finder(MetaPathFinder):
    def __init__(self, places: dict[str, str]) -> None:
        self._places = places

    def covers(self, name: str) -> bool:
        return any(name == place or name.startswith(f"{place}.") for place in self._places)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        _refuse_absent(name)
        found = self._resolve(name)
        return ModuleSpec(name, _Alias(found), is_package=True) if found else None

    def _resolve(self, name: str) -> str | None:
        if name in self._places:
            return self._places[name]
        parent, _, child = name.rpartition(".")
        above = self._resolve(parent) if self.covers(parent) else None
        if above is None or not hasattr(importlib.import_module(above), "__path__"):
            return None
        inside = f"{above}.{child}"
        return inside if importlib.util.find_spec(inside) else None


def _refuse_absent(name: str) -> None:
    """``from onnxruntime.training import optim`` asks for the part of the module by the name it has here."""
    for place in ("onnxruntime.training.ortmodule", "onnxruntime.training"):
        name = name.replace(f"{PARTS[place]}.", f"{place}.", 1)
    if name in ABSENT:
        raise ModuleNotFoundError(f"No module named {name!r} in Backpass: {ABSENT[name]}", name=name)


class _Alias(Loader):
    """Gives a module of Backpass under another name: the same module, not a copy."""

    def __init__(self, name: str) -> None:
        self._name = name

    def exec_module(self, module: ModuleType) -> None:
        sys.modules[module.__name__] = importlib.import_module(self._name)
