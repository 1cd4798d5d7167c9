"""LSTM, GRU and RNN layers stay whole."""

from __future__ import annotations

from typing import Any

import torch
from exporter_check import check, check_table, ops_of
from torch import nn

torch.manual_seed(4)


def x(*shape: int) -> torch.Tensor:
    return torch.randn(shape)


ROWS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "lstm": (nn.LSTM(3, 4), (x(5, 2, 3),)),
    "lstm with states": (nn.LSTM(3, 4, batch_first=True), (x(2, 5, 3), (x(1, 2, 4), x(1, 2, 4)))),
    "lstm, two layers, both directions": (nn.LSTM(3, 4, 2, bidirectional=True), (x(5, 2, 3),)),
    "lstm without biases": (nn.LSTM(3, 4, 2, bias=False), (x(5, 2, 3),)),
    "gru": (nn.GRU(3, 4, 2, batch_first=True, bidirectional=True), (x(2, 5, 3),)),
    "gru with a state": (nn.GRU(3, 4), (x(5, 2, 3), x(1, 2, 4))),
    "rnn": (nn.RNN(3, 4, bidirectional=True), (x(5, 2, 3),)),
    "rnn with relu": (nn.RNN(3, 4, 2, nonlinearity="relu"), (x(5, 2, 3),)),
}


def test_layers() -> None:
    ops = ops_of(check_table(ROWS))
    assert (ops["LSTM"], ops["GRU"], ops["RNN"]) == (6, 3, 3)


def test_any_batch() -> None:
    # torch.export unrolls recurrent layers to find their shapes, which fixes the length.
    class Tagger(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(9, 3)
            self.lstm = nn.LSTM(3, 4, batch_first=True, bidirectional=True)
            self.out = nn.Linear(8, 5)

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            return self.out(self.lstm(self.embedding(tokens))[0])

    check(Tagger(), (torch.randint(0, 9, (2, 5)),), [(torch.randint(0, 9, (3, 5)),)])


def test_cells_are_not_left_to_torch() -> None:
    for cell in (nn.LSTMCell(3, 4), nn.GRUCell(3, 4), nn.RNNCell(3, 4)):
        assert not check(cell, (torch.randn(2, 3),)).fallbacks
