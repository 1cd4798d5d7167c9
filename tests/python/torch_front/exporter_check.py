"""Runs exported models in the engine and compares with eager torch. Imports torch: import it inside tests' modules."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import backpass
import torch
from backpass.torch import ExportedModel, export_module
from torch.utils import _pytree as pytree

TOLERANCE = {
    torch.float64: (1e-9, 1e-9),
    torch.float32: (2e-5, 2e-5),
    torch.float16: (4e-3, 4e-3),
    torch.bfloat16: (3e-2, 3e-2),
}


class Function(torch.nn.Module):
    """A function as a module."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any) -> Any:
        return self.function(*args)


def flat_inputs(exported: ExportedModel, module: torch.nn.Module, args: Sequence[Any]) -> dict[str, torch.Tensor]:
    """What the ONNX graph gets for these arguments."""
    state = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    leaves = pytree.tree_leaves((tuple(args), {}))
    feeds = {}
    for spec in exported.inputs:
        value = state[spec.target] if spec.kind in ("parameter", "buffer") else leaves[spec.target]
        feeds[spec.name] = torch.as_tensor(value).detach().contiguous()
    return feeds


def assert_same(ours: torch.Tensor, eager: torch.Tensor, what: str = "value") -> None:
    assert ours.dtype == eager.dtype, f"{what}: {ours.dtype} instead of {eager.dtype}"
    assert ours.shape == eager.shape, f"{what}: {tuple(ours.shape)} instead of {tuple(eager.shape)}"
    rtol, atol = TOLERANCE.get(eager.dtype, (0, 0))
    torch.testing.assert_close(ours, eager.detach(), rtol=rtol, atol=atol, equal_nan=True, msg=lambda m: f"{what}: {m}")


def run(exported: ExportedModel, module: torch.nn.Module, args: Sequence[Any]) -> tuple[Any, dict[str, torch.Tensor]]:
    """The user's result and the updated buffers."""
    feeds = flat_inputs(exported, module, args)
    session = backpass.InferenceSession(exported.proto.SerializeToString(), num_threads=1)
    found = [torch.from_dlpack(t) for t in session.run_tensors(None, feeds)]
    leaves = []
    for slot in exported.output_template:
        if slot.source == "constant":
            leaves.append(slot.value)
        elif slot.source == "input":
            leaves.append(feeds[exported.inputs[slot.index].name])
        else:
            value = found[slot.index]
            leaves.append(int(value) if slot.symint else value)
    result = pytree.tree_unflatten(leaves, exported.out_spec)
    updates = {str(s.target): v for s, v in zip(exported.outputs, found, strict=True) if s.kind == "buffer_mutation"}
    return result, updates


def check_values(
    module: Any, args: Sequence[Any], others: Sequence[Sequence[Any]] = (), **options: Any
) -> ExportedModel:
    """Values equal eager's, on the example arguments and on others (which makes the export dynamic)."""
    module = module if isinstance(module, torch.nn.Module) else Function(module)
    exported = export_module(module, tuple(args), dynamic=bool(others), **options)
    for arguments in (args, *others):
        result, updates = run(exported, module, arguments)
        reference = copy.deepcopy(module)
        expected = reference(*copy.deepcopy(arguments))
        ours, spec = pytree.tree_flatten(result)
        theirs, other_spec = pytree.tree_flatten(expected)
        assert spec == other_spec
        for i, (mine, eager) in enumerate(zip(ours, theirs, strict=True)):
            if isinstance(eager, torch.Tensor):
                assert_same(mine, eager, f"result {i}")
            else:
                assert mine == eager
        for name, buffer in reference.named_buffers():
            if name in updates:
                assert_same(updates[name], buffer, name)
    return exported
