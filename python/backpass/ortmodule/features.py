"""What is on and off, told when a module is first built, and ``explain``: what was exported and where time goes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

import backpass
from backpass.ortmodule import density, memory
from backpass.profile import Profile
from backpass.torch import callbacks

if TYPE_CHECKING:
    from backpass.ortmodule.manager import Manager
    from backpass.ortmodule.options import RuntimeOptions
    from backpass.ortmodule.variant import Variant
    from backpass.torch.runtime import EngineGraph

_MOVES = ("move_rows", "move_slices")


def rows(manager: Manager, variant: Variant, graph: EngineGraph) -> list[tuple[str, bool, str]]:
    """Feature, whether it is on, and a note. What is not built is off, whatever the switches say."""
    options, exported = manager.options, variant.exported
    raised = options.fallback_policy.is_disabled()
    functions, left = len(exported.python_ops), ", ".join(sorted({f.op for f in exported.fallbacks}))
    called = f"{functions} torch.autograd.Function(s) called back" if functions else "none in this module"
    kept = options.cache_dir or "set ORTMODULE_CACHE_DIR to keep exports for the next start"
    return [
        ("ATen Executor", bool(left), f"left to torch: {left}" if left else "every operator runs in the engine"),
        ("Cast Propagation", False, "the engine runs the casts that a model has"),
        ("Custom Function", options.enable_custom_autograd_function, called),
        ("Memory Optimizer", *memory.note(options)),
        ("Compute Optimizer", options.enable_compute_optimizer, "rewrites are listed by explain()"),
        (" - FLOP Reduction", *_moved(options, graph)),
        (" - Label Sparsity", *density.note(options, density.LABELS, graph.session)),
        (" - Embed Sparsity", *density.note(options, density.PADDING, graph.session)),
        ("Export Cache", bool(options.cache_dir), kept),
        ("Variable Shapes", variant.dynamic, _shapes_note(manager, variant)),
        ("Auto Fallback", not raised, "failures are raised" if raised else str(options.fallback_policy.name)),
        ("ZeRO Stage3 Support", False, "parameters are whole in every process"),
    ]


def _moved(options: RuntimeOptions, graph: EngineGraph) -> tuple[bool, str]:
    """Whether selections of rows and slices move to where they save most, and how many did."""
    if not options.enable_compute_optimizer:
        return False, "the compute optimizer is off"
    if set(_MOVES) <= set(options.disabled_passes):
        return False, "switched off"
    count = sum(r.pass_name in _MOVES and r.bytes_saved != 0 for r in graph.session.pass_reports())
    return True, f"{count} selection(s) of rows and slices moved" if count else "nothing to move in this module"


def _shapes_note(manager: Manager, variant: Variant) -> str:
    if variant.dynamic:
        return "new shapes need no export"
    if manager.options.dynamic_shapes == "auto":
        return "the third set of shapes is exported for all that vary like it"
    return "each set of shapes is exported by itself"


def table(manager: Manager, variant: Variant, graph: EngineGraph) -> str:
    """The start-up table, once a graph has run."""
    mode = "training" if variant.training else "inference"
    found = rows(manager, variant, graph)
    width = max(len(name) for name, _, _ in found)
    lines = [f"ORTModule({manager.name}) was built for {mode}"]
    lines += [f"  {name:<{width}}  {'ON ' if on else 'OFF'}  {note}" for name, on, note in found]
    source = "read from the cache" if variant.from_cache else _split(variant)
    export, build = variant.export_seconds, variant.build_seconds
    lines.append(f"  ready after {export + build:.2f} s: export {export:.2f} s ({source}), build {build:.2f} s")
    lines.append(f"  Backpass {backpass.__version__}, torch {torch.__version__}")
    return "\n".join(lines)


def _split(variant: Variant) -> str:
    """What of the export is torch's own time, and what is ours."""
    of_torch = variant.exported.torch_seconds
    return f"captured by torch in {of_torch:.2f} s, the rest {variant.export_seconds - of_torch:.2f} s"


class Looks:
    """Tells what was found in the batches of a graph: after the first with the start-up table, which comes once for
    training and once for inference; after each one where that is asked for."""

    def __init__(self, manager: Manager, variant: Variant, graph: EngineGraph) -> None:
        self._manager, self._variant, self._graph = manager, variant, graph
        self._built = graph.session.densities().build_seconds  # before the first batch
        self._step = 0

    def __call__(self) -> None:
        manager, session = self._manager, self._graph.session
        if self._step == 0:
            self._first()
        if not manager.options.print_input_density:
            self._graph.looked = None
        elif (report := session.densities()).densities:
            manager.logger.warning("%s", density.table(self._step, report))
        self._step += 1

    def _first(self) -> None:
        manager, variant, report = self._manager, self._variant, self._graph.session.densities()
        variant.build_seconds += report.build_seconds - self._built
        for line in density.on_and_off(report):
            manager.logger.info("%s", line)
        if variant.training not in manager.reported:
            manager.reported.add(variant.training)
            manager.logger.warning("%s", table(manager, variant, self._graph))


def explain(manager: Manager) -> str:
    """Everything that was exported and built for a module, and where its time went."""
    name = manager.name
    if manager.fallback.reason is not None:
        why = manager.fallback.reason
        return f"ORTModule({name}): PyTorch runs the module, because of {type(why).__name__}: {why}"
    if not manager.variants:
        return f"ORTModule({name}): nothing exported yet; call it once"
    parts = [f"ORTModule({name}): {len(manager.variants)} export(s)"]
    for number, variant in enumerate(manager.variants, 1):
        parts += _explained(number, variant)
    return "\n".join(parts)


def _explained(number: int, variant: Variant) -> list[str]:
    exported = variant.exported
    shapes = ", ".join(f"{s.name}{list(s.shape)}" for s in exported.inputs if s.kind == "user")
    mode = "training" if variant.training else "inference"
    came = "from the cache" if variant.from_cache else _split(variant)
    graphs = list(dict.fromkeys(variant.graphs.values()))
    seconds = sum(g.spent.seconds for g in graphs)
    lines = [
        f"export {number}, {mode}: {shapes}",
        f"  {len(exported.proto.graph.node)} nodes, exported in {variant.export_seconds:.2f} s ({came}), "
        f"built {len(graphs)} time(s) in {variant.build_seconds:.2f} s",
    ]
    for graph in graphs:
        spent = graph.spent
        lines.append(
            f"  gradients of {len(graph.requires_grad)} tensors: {spent.forwards} forward {spent.forward_seconds:.3f} "
            f"s, {spent.backwards} backward {spent.backward_seconds:.3f} s"
        )
    lines += _handed_over(variant, seconds)
    for graph in graphs:
        lines += [f"  {line}" for line in density.explained(graph.session)]
        rewrites = graph.session.rewrites()
        lines.append(f"  {len(rewrites)} rewrites{':' if rewrites else ''}")
        lines += [f"    {line}" for line in rewrites]
        profile = Profile(graph.session.take_profile())
        if profile.steps:
            lines += [f"    {line}" for line in profile.table().splitlines()]
    return lines


def take_profile(manager: Manager) -> Profile:
    """Steps of all graphs since the last call, or since ``explain``."""
    graphs = dict.fromkeys(graph for variant in manager.variants for graph in variant.graphs.values())
    return Profile([step for graph in graphs for step in graph.session.take_profile()])


def _handed_over(variant: Variant, seconds: float) -> list[str]:
    """Nodes that torch runs, with their share of the time of the graphs they are in."""
    functions = [n for n in variant.exported.proto.graph.node if n.op_type == "PythonOp"]
    if not variant.exported.fallbacks and not functions:
        return ["  every operator runs in the engine"]
    nodes = {n.name for n in functions} | {n.name for n in variant.exported.proto.graph.node if n.op_type == "ATen"}
    lines = []
    for used in callbacks.usage():
        if used.node in nodes or any(used.node.startswith(f"{n}_Grad") for n in nodes):
            share = f"{used.seconds / seconds:.1%} of the time" if seconds else "not run yet"
            lines.append(f"  torch runs {used.op} {used.target} '{used.node}': {used.calls} calls, {share}")
    lines += [f"  left to torch: {fallback}" for fallback in variant.exported.fallbacks]
    return lines
