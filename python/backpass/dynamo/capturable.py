"""Which graphs of torch.compile can be exported whole, and how they are made functions of tensors alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

Source = tuple[int, int]  # position of a tensor among the tensors, axis


class NotCapturableError(Exception):
    """Why a graph needs AOTAutograd; the text completes "because ..."."""


def check_arguments(placeholders: Sequence[torch.fx.Node], example_inputs: Sequence[Any]) -> None:
    if torch.is_autocast_enabled("cpu"):
        raise NotCapturableError("autocast is on")
    for node, value in zip(placeholders, example_inputs, strict=True):
        if isinstance(value, torch.Tensor):
            if value.device.type != "cpu" or value.layout != torch.strided or value.is_quantized:
                raise NotCapturableError(f"input {node.name} is no dense tensor on the CPU")
            if type(value) not in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer):
                if not isinstance(value, torch._subclasses.FakeTensor):
                    raise NotCapturableError(f"input {node.name} is a {type(value).__name__}")
                raise NotCapturableError(f"input {node.name} has no data yet")
            if value.dtype.is_complex:
                raise NotCapturableError(f"input {node.name} is complex")
        elif not isinstance(value, torch.SymInt | int):
            raise NotCapturableError(f"input {node.name} is a {type(value).__name__}")


# Their derivatives in torch are not those of what they compute: statistics count as constants, what
# as_strided_scatter overwrites as kept, and the distance of a point to itself has the derivative 0.
_OTHER_DERIVATIVES = {
    "_batch_norm_with_update",
    "_native_batch_norm_legit",
    "as_strided_scatter",
    "native_batch_norm",
    "native_group_norm",
    "native_layer_norm",
    "pdist",
}


def check_nodes(graph: torch.fx.Graph) -> None:
    for node in graph.nodes:
        if isinstance(node.target, torch._ops.HigherOrderOperator):
            raise NotCapturableError(f"it contains {node.target.name()}")  # type: ignore[no-untyped-call]
        name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
        if name.partition(".")[0] in _OTHER_DERIVATIVES:
            raise NotCapturableError(f"it contains {name}, whose derivative in torch is another")
        if node.target == "item" or node.target is torch.ops.aten.item.default:
            raise NotCapturableError("it reads a number out of a tensor")


def check_aliases(graph: torch.fx.Graph, placeholders: Sequence[torch.fx.Node]) -> None:
    """Results that share memory with an argument or with each other must go on doing so."""
    (end,) = (n for n in graph.nodes if n.op == "output")
    seen = {storage: n.name for n in placeholders if (storage := _storage(n)) is not None}
    for result in dict.fromkeys(end.all_input_nodes):
        storage = _storage(result)
        if storage is None:
            continue
        if storage in seen:
            raise NotCapturableError(f"result {result.name} shares memory with {seen[storage]}")
        seen[storage] = result.name


def _storage(node: torch.fx.Node) -> int | None:
    value = node.meta.get("example_value")
    if not isinstance(value, torch.Tensor):
        return None
    return int(StorageWeakRef(value.untyped_storage()).cdata)  # type: ignore[no-untyped-call]


def fixed_size(value: int | torch.SymInt) -> int | None:
    """The size, if it is always the same: of a symbol, too, that torch.compile found to be one number."""
    return value if isinstance(value, int) else value.node.maybe_as_int()


def size_sources(placeholders: Sequence[torch.fx.Node]) -> dict[int, Source | int]:
    """For each size among the arguments, the tensor and axis it can be read off; or the size itself."""
    values: list[Any] = [node.meta.get("example_value") for node in placeholders]
    known: dict[Any, Source] = {}
    for tensor, shape in enumerate(v.shape for v in values if isinstance(v, torch.Tensor)):
        for axis, extent in enumerate(shape):
            if isinstance(extent, torch.SymInt):
                known.setdefault(extent.node.expr, (tensor, axis))
    found: dict[int, Source | int] = {}
    for i, value in enumerate(values):
        if isinstance(value, torch.SymInt | int):
            size = fixed_size(value)
            source = known.get(value.node.expr) if size is None else size  # type: ignore[union-attr]
            if source is None:
                name = placeholders[i].name
                raise NotCapturableError(f"input {name} is a number that is no extent of a tensor")
            found[i] = source
    return found


def of_tensors(
    module: torch.fx.GraphModule, places: Sequence[int], sizes: dict[int, Source | int]
) -> Callable[..., Any]:
    """The graph as a function of its tensors alone, which are at these places among the arguments."""

    def call(*tensors: torch.Tensor) -> Any:
        arguments: dict[int, Any] = dict(zip(places, tensors, strict=True))
        for place, source in sizes.items():
            arguments[place] = source if isinstance(source, int) else tensors[source[0]].shape[source[1]]
        return module(*(arguments[i] for i in range(len(arguments))))

    return call


def number_places(placeholders: Sequence[torch.fx.Node]) -> list[int]:
    """Positions of arguments that were Python floats and of which the graph reads the number."""
    return [
        i
        for i, node in enumerate(placeholders)
        if getattr(node.meta.get("grapharg"), "pass_arg_as_tensor", False)
        and any(u.target == "item" for u in node.users)
    ]


def with_numbers(module: torch.fx.GraphModule, numbers: dict[int, float]) -> torch.fx.GraphModule:
    """A copy in which these arguments' numbers are constants."""
    placeholders = [n for n in module.graph.nodes if n.op == "placeholder"]
    known: dict[torch.fx.Node, Any] = {
        reading: number
        for place, number in numbers.items()
        for reading in placeholders[place].users
        if reading.target == "item"
    }
    graph = torch.fx.Graph()
    graph.output(graph.graph_copy(module.graph, known))
    return torch.fx.GraphModule(module, graph)
