"""Leaving out rows changes nothing: random networks over tokens, with and without the passes that do."""

from __future__ import annotations

import os
from unittest import mock

import numpy as np
import pytest
import torch
from backpass import _core
from onnx import TensorProto, helper, numpy_helper
from token_graphs import TokenGraph, token_graph

ALWAYS = ("move_rows",)
BY_DATA = "skip_ignored_labels,skip_padding"
SEED = 7


def run(graph: TokenGraph, chosen: str, disabled: tuple[str, ...] = ()) -> tuple[list, list, list[str]]:
    """Outputs, gradients of all parameters, and what passes said."""
    options = _core.SessionOptions()
    options.disabled_passes = list(disabled)
    options.verify_passes = True
    names = list(graph.parameters)
    with mock.patch.dict(os.environ, {"BACKPASS_CHOOSE_PASSES": chosen}):
        session = _core.ModuleSession.from_bytes(graph.model, names, options, [], names)
        values = {**graph.inputs, **graph.parameters}
        outputs, pending = session.forward(
            [torch.from_numpy(values[v.name].copy()) for v in session.inputs()], True, SEED
        )
        differentiable = session.differentiable_outputs()
        seeds = [torch.ones_like(o) if d else None for o, d in zip(outputs, differentiable, strict=True)]
        return outputs, session.backward(pending, seeds), session.rewrites()


def differences(one: list, other: list) -> float:
    """Largest, of the largest number there is."""
    worst = 0.0
    for a, b in zip(one, other, strict=True):
        a = torch.zeros(1) if a is None else a
        b = torch.zeros(1) if b is None else b
        largest = max(float(b.abs().nan_to_num().max()) if b.numel() else 0.0, 1e-2)
        if bool((a.isnan() & ~b.isnan()).any()):
            return float("inf")
        # Rows that see no key are no numbers; with them out of the way, gradients may well be.
        worst = max(worst, float((a - b).abs().nan_to_num().max()) / largest if b.numel() else 0.0)
    return worst


def check(seed: int, dtype: type, bound: float) -> None:
    graph = token_graph(seed, dtype)
    outputs, gradients, _ = run(graph, "", ALWAYS)
    for chosen in ("", BY_DATA):
        found, slopes, said = run(graph, chosen)
        assert differences(found, outputs) < bound, said
        # A query that sees no key gives no number, and its gradients depend on how the mask was written.
        if not any(bool(o.isnan().any()) for o in outputs):
            assert differences(slopes, gradients) < bound, said


@pytest.mark.parametrize("seed", range(int(os.environ.get("TOKEN_GRAPHS", "120"))))
def test_left_out_rows_change_nothing(seed: int) -> None:
    check(seed, np.float64, 1e-10)


@pytest.mark.parametrize("seed", range(1000, 1020))
def test_left_out_rows_change_nothing_in_float32(seed: int) -> None:
    check(seed, np.float32, 1e-4)


def test_attention_over_no_positions() -> None:
    """Queries of no positions see keys of some through a mask: there is nothing to leave out, nor to divide by."""
    shapes = {"ids": [3, 0], "keys": [3, 2], "seen": [3, 1, 0, 2], "labels": [0]}
    kinds = {"seen": TensorProto.BOOL}
    inputs = [helper.make_tensor_value_info(n, kinds.get(n, TensorProto.INT64), s) for n, s in shapes.items()]
    constants = [numpy_helper.from_array(np.array([-1, 4]), "flat")]
    nodes = [
        helper.make_node("Gather", ["w", "ids"], ["q"]),
        helper.make_node("Gather", ["w", "keys"], ["k"]),
        helper.make_node("Attention", ["q", "k", "k", "seen"], ["y"], q_num_heads=2, kv_num_heads=2),
        helper.make_node("Reshape", ["y", "flat"], ["scores"]),
        helper.make_node("SoftmaxCrossEntropyLoss", ["scores", "labels"], ["loss"], ignore_index=-100, reduction="sum"),
    ]
    parameter = helper.make_tensor_value_info("w", TensorProto.DOUBLE, [5, 4])
    result = helper.make_tensor_value_info("loss", TensorProto.DOUBLE, [])
    graph = helper.make_graph(nodes, "g", [*inputs, parameter], [result], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10)
    values = {n: np.zeros(s, bool if n == "seen" else np.int64) for n, s in shapes.items()}
    tokens = TokenGraph(model.SerializeToString(), {"w": np.ones((5, 4))}, values)
    outputs, gradients, _ = run(tokens, BY_DATA)
    assert float(outputs[0]) == 0
    assert not gradients[0].any()
