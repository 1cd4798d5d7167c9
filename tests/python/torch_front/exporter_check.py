"""Runs exported models in the engine and compares with eager torch. Imports torch: import it inside tests' modules."""

from __future__ import annotations

import copy
from collections import Counter
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


class Table(torch.nn.Module):
    """Many small functions and modules as one: each row is (callable, arguments). One export serves them all."""

    def __init__(self, rows: dict[str, tuple[Any, Sequence[Any]]]) -> None:
        super().__init__()
        calls = {name: row[0] for name, row in rows.items()}
        self.parts = torch.nn.ModuleList(c if isinstance(c, torch.nn.Module) else Function(c) for c in calls.values())
        self.names = list(calls)

    def forward(self, rows: dict[str, Sequence[Any]]) -> dict[str, Any]:
        return {name: part(*rows[name]) for name, part in zip(self.names, self.parts, strict=True)}


def check_table(rows: dict[str, tuple[Any, Sequence[Any]]], **options: Any) -> ExportedModel:
    """`check` of all rows in one export."""
    return check(Table(rows), ({name: tuple(row[1]) for name, row in rows.items()},), **options)


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


def difference(ours: torch.Tensor, eager: torch.Tensor, what: str) -> list[str]:
    """Nothing, or what differs."""
    if ours.dtype != eager.dtype or ours.shape != eager.shape:
        return [f"{what}: {ours.dtype} {tuple(ours.shape)} instead of {eager.dtype} {tuple(eager.shape)}"]
    rtol, atol = TOLERANCE.get(eager.dtype, (0, 0))
    try:
        torch.testing.assert_close(ours, eager.detach(), rtol=rtol, atol=atol, equal_nan=True)
    except AssertionError as error:
        return [f"{what}: {error}"]
    return []


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


def gradients(
    exported: ExportedModel, module: torch.nn.Module, args: Sequence[Any], seeds: Sequence[torch.Tensor | None]
) -> dict[str, torch.Tensor]:
    """Gradients of all float inputs for these gradients of the user's results, by the engine's own rules."""
    feeds = flat_inputs(exported, module, args)
    wrt = [s.name for s in exported.inputs if s.kind != "buffer" and feeds[s.name].is_floating_point()]
    arriving: dict[str, torch.Tensor] = {}
    for slot, seed in zip(exported.output_template, seeds, strict=True):
        if seed is not None and slot.source == "output":
            name = exported.outputs[slot.index].name
            arriving[name] = arriving[name] + seed if name in arriving else seed
    if not wrt or not arriving:
        return {}
    model = backpass.grad(exported.proto, wrt, list(arriving), seeds=True, standard_only=False)
    session = backpass.InferenceSession(model.SerializeToString(), num_threads=1)
    feeds |= {f"{name}_grad": seed for name, seed in arriving.items()}
    known = {i.name for i in model.graph.input}
    found = session.run_tensors([f"{n}_grad" for n in wrt], {k: v for k, v in feeds.items() if k in known})
    return {name: torch.from_dlpack(value) for name, value in zip(wrt, found, strict=True)}


def eager_gradients(
    module: torch.nn.Module, args: Sequence[Any], seeds: Sequence[torch.Tensor | None], names: Sequence[Any]
) -> list[torch.Tensor]:
    """What torch's autograd finds for parameters (by name) and arguments (by position); zeros where nothing flows."""
    module = copy.deepcopy(module)
    leaves, spec = pytree.tree_flatten(tuple(args))
    leaves = [v.detach().clone().requires_grad_(v.is_floating_point()) if _tensor(v) else v for v in leaves]
    state = dict(module.named_parameters())
    inputs = [state[n] if isinstance(n, str) else leaves[n] for n in names]
    results = pytree.tree_leaves(module(*pytree.tree_unflatten(leaves, spec)))
    used = [(r, s) for r, s in zip(results, seeds, strict=True) if s is not None and r.requires_grad]
    if not used:
        return [torch.zeros_like(i) for i in inputs]
    outputs, arriving = zip(*used, strict=True)
    found = torch.autograd.grad(outputs, inputs, arriving, allow_unused=True)
    return [torch.zeros_like(i) if g is None else g for g, i in zip(found, inputs, strict=True)]


def _tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def check(module: Any, args: Sequence[Any], others: Sequence[Sequence[Any]] = (), **options: Any) -> ExportedModel:
    """Values and gradients equal eager's, on the example arguments and on others (which makes the export dynamic)."""
    module = module if isinstance(module, torch.nn.Module) else Function(module)
    exported = check_values(module, args, others, **options)
    generator = torch.Generator().manual_seed(7)
    for arguments in (args, *others):
        with torch.no_grad():
            results = pytree.tree_leaves(copy.deepcopy(module)(*copy.deepcopy(arguments)))
        seeds = [
            torch.randn(r.shape, generator=generator, dtype=torch.float64).to(r.dtype)
            if _tensor(r) and r.is_floating_point()
            else None
            for r in results
        ]
        if not any(s is not None for s in seeds):
            return exported
        sources = [slot.source for slot in exported.output_template]
        seeds = [None if where == "input" else s for s, where in zip(seeds, sources, strict=True)]
        ours = gradients(exported, module, arguments, seeds)
        specs = [s for s in exported.inputs if s.name in ours]
        theirs = eager_gradients(module, arguments, seeds, [s.target for s in specs])
        problems = []
        for spec, eager in zip(specs, theirs, strict=True):
            problems += difference(ours[spec.name], eager, f"gradient of {spec.name}")
        assert not problems, "\n".join(problems)
    return exported


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
        theirs, other_spec = pytree.tree_flatten_with_path(expected)
        assert spec == other_spec
        problems = []
        for mine, (path, eager) in zip(ours, theirs, strict=True):
            if isinstance(eager, torch.Tensor):
                problems += difference(mine, eager, f"result {pytree.keystr(path)}")
            else:
                assert mine == eager
        assert not problems, "\n".join(problems)
        before = dict(module.named_buffers())
        for name, buffer in reference.named_buffers():
            changed = not torch.equal(buffer, before[name])
            assert name in updates or not changed, f"{name} changes in eager, not in the exported model"
            if name in updates:
                found = difference(updates[name], buffer, name)
                assert not found, found
    return exported


def ops_of(exported: ExportedModel) -> Counter[str]:
    """How often each operator occurs."""
    return Counter(node.op_type for node in exported.proto.graph.node)
