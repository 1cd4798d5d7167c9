"""LSTM, GRU and RNN: one ONNX node per layer and, for two directions, for both."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from backpass.torch.builder import GraphBuilder, NoLoweringError, Value
from backpass.torch.dispatch import lowers
from backpass.torch.lowerings import common
from backpass.torch.lowerings.movement.shape import joined
from backpass.torch.lowerings.random import dropped

aten = torch.ops.aten

# Where ONNX's gates are among torch's: torch has i f g o and r z n, ONNX i o f c and z r h.
_GATES = {"LSTM": (0, 3, 1, 2), "GRU": (1, 0, 2), "RNN": (0,)}


class Layers:
    """What torch's arguments say, and the weights as ONNX wants them."""

    def __init__(
        self, b: GraphBuilder, op: str, weights: Sequence[Value], has_biases: bool, layers: int, bidirectional: bool
    ) -> None:
        self.b, self.op, self.directions = b, op, 2 if bidirectional else 1
        each = 4 if has_biases else 2
        if len(weights) != layers * self.directions * each:
            raise NoLoweringError("projections")
        self.groups = [weights[i : i + each] for i in range(0, len(weights), each)]
        self.hidden = b.shape_of(self.groups[0][1])[1]

    def reordered(self, weight: Value) -> Value:
        """The gates in ONNX's order, with an axis for the direction."""
        order = _GATES[self.op]
        if len(order) == 1:
            return common.unsqueeze(self.b, weight, 0)
        parts = self.b.op("Split", weight, self.b.sizes([self.hidden] * len(order)), axis=0, outputs=len(order))
        return common.unsqueeze(self.b, self.b.op("Concat", *(parts[i] for i in order), axis=0, shape=weight.shape), 0)

    def stacked(self, layer: int, index: int) -> Value:
        """Weight `index` of all directions of a layer."""
        groups = self.groups[layer * self.directions : (layer + 1) * self.directions]
        return joined(self.b, [self.reordered(g[index]) for g in groups], 0)

    def biases(self, layer: int) -> Value | None:
        if len(self.groups[0]) == 2:
            return None
        return self.b.op("Concat", self.stacked(layer, 2), self.stacked(layer, 3), axis=1)


def states(b: GraphBuilder, state: Value, layers: int, directions: int) -> Sequence[Value]:
    """[layers * directions, N, H] for each layer."""
    if layers == 1:
        return [state]
    return b.op("Split", state, b.constant([directions] * layers), axis=0, outputs=layers)


def run(
    b: GraphBuilder,
    op: str,
    x: Value,
    initial: Sequence[Value],
    setup: Layers,
    layers: int,
    dropout: float,
    batch_first: bool,
    **attributes: Any,
) -> tuple[Value, ...]:
    """All layers; the sequence and the last states of each."""
    if x.rank != 3:
        raise NoLoweringError("a sequence without a batch axis")
    if batch_first:
        x = common.transpose(b, x, [1, 0, 2])
    shape, directions = b.shape_of(x), setup.directions
    first = [states(b, s, layers, directions) for s in initial]
    last: list[list[Value]] = [[] for _ in initial]
    width = setup.hidden * directions
    for layer in range(layers):
        weights = [setup.stacked(layer, 0), setup.stacked(layer, 1), setup.biases(layer), None]
        y, *ends = b.op(
            op,
            x,
            *weights,
            *(s[layer] for s in first),
            outputs=1 + len(initial),
            hidden_size=setup.hidden,
            direction="bidirectional" if directions == 2 else "forward",
            **attributes,
        )
        for kept, end in zip(last, ends, strict=True):
            kept.append(end)
        if directions == 2:  # [T, 2, N, H] to [T, N, 2 H]
            x = common.reshape(b, b.op("Transpose", y, perm=[0, 2, 1, 3]), (*shape[:2], width))
        else:
            x = b.op("Squeeze", y, b.constant([1]), shape=(*shape[:2], width))
        if dropout and layer < layers - 1:
            x = dropped(b, x, dropout)[0]
    ends = [joined(b, kept, 0) for kept in last]
    return (common.transpose(b, x, [1, 0, 2]) if batch_first else x), *ends


def _recurrent(kind: str, activation: str | None = None, **attributes: Any) -> Any:
    """The lowering of one kind of layer; only an LSTM has two states."""

    def lower(
        b: GraphBuilder,
        node: fx.Node,
        x: Value,
        states: Value | Sequence[Value],
        weights: Sequence[Value],
        has_biases: bool,
        layers: int,
        dropout: float,
        train: bool,
        bidirectional: bool,
        batch_first: bool,
    ) -> tuple[Value, ...]:
        setup = Layers(b, kind, weights, has_biases, layers, bidirectional)
        more = {} if activation is None else {"activations": [activation] * setup.directions}
        given = [states] if isinstance(states, Value) else states
        rate = dropout if train else 0.0
        return run(b, kind, x, given, setup, layers, rate, batch_first, **attributes, **more)

    return lower


lowers(aten.lstm.input)(_recurrent("LSTM"))
lowers(aten.gru.input)(_recurrent("GRU", linear_before_reset=1))
lowers(aten.rnn_tanh.input)(_recurrent("RNN", "Tanh"))
lowers(aten.rnn_relu.input)(_recurrent("RNN", "Relu"))
