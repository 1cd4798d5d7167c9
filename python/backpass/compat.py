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
from collections.abc import Iterator, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

from backpass._ort.absent import ABSENT, ABSENT_AT_RUNTIME

# Where parts of onnxruntime.training are found, by the names they have there. What is below them is found below these.
PARTS = {
    "onnxruntime.training": "backpass.training",
    "onnxruntime.training.artifacts": "backpass.artifacts",
    "onnxruntime.training.onnxblock": "backpass.onnxblock",
    "onnxruntime.training.api": "backpass.api",
    "onnxruntime.training.api.checkpoint_state": "backpass.api",
    "onnxruntime.training.api.lr_scheduler": "backpass.api",
    "onnxruntime.training.api.module": "backpass.api",
    "onnxruntime.training.api.optimizer": "backpass.api",
    "onnxruntime.training.experimental": "backpass._ort.experimental",
    "onnxruntime.training.experimental.gradient_graph._gradient_graph_tools": (
        "backpass._ort.experimental.gradient_graph"
    ),
    "onnxruntime.training.optim": "backpass.optim",
    "onnxruntime.training.utils": "backpass.utils",
    "onnxruntime.training.ortmodule": "backpass.ortmodule",
    "onnxruntime.training.ortmodule._custom_autograd_function": "backpass._ort.custom_autograd",
    "onnxruntime.training.ortmodule._custom_gradient_registry": "backpass._ort.gradient_registry",
    "onnxruntime.training.ortmodule._custom_op_symbolic_registry": "backpass._ort.symbolic_registry",
    "onnxruntime.training.ortmodule._fallback": "backpass.ortmodule.fallback",
    "onnxruntime.training.ortmodule._fallback_exceptions": "backpass.ortmodule.fallback",
    "onnxruntime.training.ortmodule._graph_execution_manager": "backpass._ort.ortmodule_inside",
    "onnxruntime.training.ortmodule._io": "backpass._ort.ortmodule_inside",
    "onnxruntime.training.ortmodule._logger": "backpass._ort.ortmodule_logger",
    "onnxruntime.training.ortmodule._utils": "backpass._ort.ortmodule_utils",
    "onnxruntime.training.ortmodule.experimental.json_config._load_config_from_json": (
        "backpass.ortmodule.experimental.json_config"
    ),
    "onnxruntime.training.ortmodule.experimental.hierarchical_ortmodule._hierarchical_ortmodule": (
        "backpass.ortmodule.experimental.hierarchical_ortmodule"
    ),
    "onnxruntime.training.ortmodule.experimental.pipe._ort_pipeline_module": "backpass.ortmodule.experimental.pipe",
    "onnxruntime.training.ortmodule.graph_optimizer_registry": "backpass.ortmodule.optimizers",
    "onnxruntime.training.ortmodule.ortmodule": "backpass.ortmodule.wrapper",
    "onnxruntime.training.ortmodule.torch_cpp_extensions": "backpass._ort.torch_cpp_extensions",
    # Before ORTTrainer moved to onnxruntime.training, and before it was written anew.
    "onnxruntime.experimental": "backpass.training",
    "onnxruntime.experimental.optim": "backpass.optim",
    "onnxruntime.capi.ort_trainer": "backpass.trainer",
    "onnxruntime.capi.pt_patch": "backpass._ort.capi.pt_patch",
    "onnxruntime.capi.training": "backpass.training",
    "onnxruntime.capi.training.optim": "backpass.optim",
    "torch_ort": "backpass.ortmodule",
    "torch_ort.configure": "backpass._ort.torch_cpp_extensions.install",
    "torch_ort.optim": "backpass.optim",
    "torch_ort.utils": "backpass.utils",
}
_RUNTIME = {"onnxruntime": "backpass._ort"}
# torch imports this one, which is empty nowadays, before it looks a backend up.
_COMPILE = {"torch._dynamo.backends.onnxrt": "backpass.dynamo.onnxrt"}


def install(runtime: bool = False) -> None:
    """Makes ``onnxruntime.training``, ``onnxruntime.capi.ort_trainer`` and ``torch_ort`` resolve to Backpass, for the
    rest of the process (docs/compatibility.md).

    Where no onnxruntime is installed, or with ``runtime``, ``onnxruntime`` itself too: InferenceSession, OrtValue,
    SessionOptions and what else `backpass._ort` holds. ``torch.compile`` finds the backend ``onnxrt``. Calling it
    again is harmless.
    """
    runtime = runtime or PathFinder.find_spec("onnxruntime", sys.path) is None
    uninstall()
    _forget("onnxruntime" if runtime else "onnxruntime.training")
    places, absent = PARTS | _COMPILE, ABSENT
    if runtime:
        places, absent = places | _RUNTIME, absent | ABSENT_AT_RUNTIME
    sys.meta_path.insert(0, _Finder(places, absent))
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
    def __init__(self, places: dict[str, str], absent: dict[str, str]) -> None:
        self._places, self._absent = places, absent

    def covers(self, name: str) -> bool:
        return any(name == place or name.startswith(f"{place}.") for place in self._places)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name.startswith("backpass.") and PathFinder.find_spec(name, path):
            return None
        for known in self._names_in_original(name):
            why = self._absent.get(known) or self._absent.get(f"{known.rpartition('.')[0]}.*")
            if why is not None:
                raise ModuleNotFoundError(f"{known!r} is not in Backpass: {why}", name=known)
            if known in self._places:
                return ModuleSpec(name, _Alias(self._places[known]), is_package=True)
        found = self._resolve(name)
        return ModuleSpec(name, _Alias(found), is_package=True) if found else None

    def _names_in_original(self, name: str) -> Iterator[str]:
        """``from onnxruntime.training import ort_triton`` asks for a part of the module by the name it has here."""
        yield name
        if name.startswith("backpass."):
            for place, found in self._places.items():
                if name.startswith(f"{found}."):
                    yield place + name.removeprefix(found)

    def _resolve(self, name: str) -> str | None:
        if name in self._places:
            return self._places[name]
        parent, _, child = name.rpartition(".")
        above = self._resolve(parent) if self.covers(parent) else None
        if above is None or not hasattr(importlib.import_module(above), "__path__"):
            return None
        inside = f"{above}.{child}"
        return inside if importlib.util.find_spec(inside) else None


class _Alias(Loader):
    """Gives a module of Backpass under another name: the same module, not a copy."""

    def __init__(self, name: str) -> None:
        self._name = name

    def exec_module(self, module: ModuleType) -> None:
        found = sys.modules[module.__name__] = importlib.import_module(self._name)
        if not hasattr(found, "__path__"):  # so that names it has not are asked for here, too
            found.__path__ = []
