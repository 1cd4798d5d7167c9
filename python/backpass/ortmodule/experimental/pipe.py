"""ORTPipelineModule: DeepSpeed's pipeline, whose stages run in ORTModules."""

from __future__ import annotations

import importlib.metadata
from typing import Any

try:
    from deepspeed.pipe import PipelineModule  # type: ignore[import-not-found]
except ImportError as error:
    raise ImportError(
        "ORTPipelineModule needs the package deepspeed, version 0.9.0 or newer; without it, wrap the module in "
        "backpass.ORTModule and train several processes with DistributedDataParallel"
    ) from error
from torch import nn
from torch.torch_version import TorchVersion

from backpass.ortmodule.debug import DebugOptions
from backpass.ortmodule.wrapper import ORTModule

_OLDEST = "0.9.0"
if TorchVersion(importlib.metadata.version("deepspeed")) < _OLDEST:
    raise ImportError(f"deepspeed: got {importlib.metadata.version('deepspeed')}, expected {_OLDEST} or newer")


class ORTPipelineModule(PipelineModule):  # type: ignore[misc]
    """A PipelineModule with the layers of this stage in ORTModules, but for those it shares with other stages.

    It takes what a PipelineModule takes, and ``debug_options``; models are saved as ``<layer>_<onnx_prefix>``.
    """

    def __init__(self, layers: Any, *args: Any, debug_options: DebugOptions | None = None, **kwargs: Any) -> None:
        self._debug_options = debug_options
        super().__init__(layers, *args, **kwargs)

    def _build(self) -> None:
        super()._build()
        tied = set(self.tied_modules.values())
        for place, layer in enumerate(self.forward_funcs):
            if not isinstance(layer, nn.Module) or layer in tied:
                continue
            wrapped = ORTModule(layer, self._options(place + self._local_start))
            self.forward_funcs[place] = wrapped
            for name, child in list(self.named_children()):
                if child is layer:
                    self._modules[name] = wrapped

    def _options(self, layer: int) -> DebugOptions | None:
        given = self._debug_options
        if given is None or not given.save_onnx_models.save:
            return given
        saved = given.save_onnx_models
        return DebugOptions(given.logging.log_level, True, f"{layer}_{saved.name_prefix}", saved.path)
