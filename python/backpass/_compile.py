"""What the entry point ``torch_dynamo_backends`` names: loading it imports neither torch nor the rest of Backpass."""

from __future__ import annotations

from typing import Any


def backpass(graph_module: Any, example_inputs: Any, **arguments: Any) -> Any:
    """``torch.compile(model, backend="backpass")``; see `backpass.dynamo`."""
    from backpass.dynamo import backpass

    return backpass(graph_module, example_inputs, **arguments)
