"""What happens once, before the first step runs: element types, checks and files that options ask for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from backpass.training._debug_graphs import save_graphs
from backpass.training._state import as_array
from backpass.training._utils import dtype_of_onnx

if TYPE_CHECKING:
    from backpass.training.orttrainer import ORTTrainer

_RTOL, _ATOL = 1e-2, 1e-6


def look_at(trainer: ORTTrainer, values: Mapping[str, Any]) -> None:
    """To be called when the engine is ready and has the state it starts from."""
    if trainer._torch_model is not None:
        _add_types(trainer, values)
        if trainer.options.debug.check_model_export:
            _check_export(trainer, values)
    paths = {name: path for name, path in vars(trainer.options.debug.graph_save_paths).items() if path}
    if paths:
        save_graphs(trainer._engine, trainer.optim_config, paths)


def _add_types(trainer: ORTTrainer, values: Mapping[str, Any]) -> None:
    description = trainer.model_desc
    for place, one in enumerate(description.inputs):
        if one.name in values:
            description.add_type_to_input_description(place, getattr(values[one.name], "dtype", None))
    types = trainer._engine.output_types()
    for place, one in enumerate(description.outputs):
        if one.name in types:
            description.add_type_to_output_description(place, dtype_of_onnx(types[one.name]))


def _check_export(trainer: ORTTrainer, values: Mapping[str, Any]) -> None:
    """What the engine computes in evaluation against what torch does."""
    import torch

    from backpass.trainer.forward_call import ForwardCall

    module: Any = trainer._torch_model
    engine = trainer._engine
    place = trainer.model_desc.loss_index
    call = ForwardCall(module, trainer.loss_fn, engine.inputs, engine.outputs, place, "g2")
    modes = [(part, part.training) for part in module.modules()]
    try:
        module.eval()
        with torch.no_grad():
            expected = call.results(values, True)
    finally:
        for part, mode in modes:
            part.training = mode
    found = engine.eval_step(values)
    for name, value in found.items():
        difference = f"check_model_export: '{name}' differs between the exported model and the module"
        np.testing.assert_allclose(as_array(value), as_array(expected[name]), _RTOL, _ATOL, err_msg=difference)
