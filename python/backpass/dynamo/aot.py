"""AOT mode: torch's AOTAutograd makes a forward and a backward graph of aten operators, the engine runs each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._dynamo.backends.common import aot_autograd
from torch._functorch._aot_autograd import graph_compile
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch.nn.attention import SDPBackend, sdpa_kernel

from backpass.dynamo.graph import compile_graph
from backpass.dynamo.options import CompileOptions
from backpass.dynamo.report import CompileRecord
from backpass.torch.surroundings import replaced
from backpass.torch.table import aot_decompositions, core_decompositions


def compile_aot(
    module: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    options: CompileOptions,
    record: CompileRecord,
    note: str = "",
) -> Callable[..., Any]:
    """``note`` is why forward capture was not possible, for the reports."""

    def compiler(kind: str) -> Callable[..., Any]:
        return lambda graph, _: compile_graph(graph, kind, options, record, note)

    backend = aot_autograd(
        fw_compiler=compiler("forward"),
        bw_compiler=compiler("backward"),
        inference_compiler=compiler("inference"),
        partition_fn=min_cut_rematerialization_partition,
        decompositions=core_decompositions() if options.exporter == "torch" else aot_decompositions(),
    )
    with (
        sdpa_kernel([SDPBackend.MATH]),  # attention as matrix products and softmax, which are differentiated exactly
        # The engine writes to nothing that was saved, so a later call may retain_graph where the first did not.
        replaced(graph_compile, "collect_bw_donated_buffer_idxs", lambda *_, **__: []),
    ):
        compiled: Callable[..., Any] = backend(module, example_inputs)
        return compiled
