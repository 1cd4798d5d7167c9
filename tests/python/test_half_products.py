"""Products of 16-bit floats: against float64 with bounds that follow from the roundings, on every way a processor may
take them, with any number of threads; and a small model trained in bfloat16 against torch's autocast."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
import torch
from backpass import InferenceSession, ORTModule
from half_products import SHAPES, Case, check_pieces, check_rounding, check_shape
from torch import nn


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_against_float64(shape: tuple[int, int, int]) -> None:
    check_shape(shape)


def test_rounding() -> None:
    check_rounding()


@pytest.mark.parametrize("instruction_set", ["sse4", "avx2", "avx512"])
def test_lesser_machines(instruction_set: str) -> None:
    """None of them multiplies bfloat16."""
    program = (
        "import half_products as t\nt.check_rounding()\nt.check_pieces()\nfor s in t.SHAPES[1:4]: t.check_shape(s)"
    )
    env = {**os.environ, "BACKPASS_MAX_ISA": instruction_set}
    command, here = [sys.executable, "-c", program], Path(__file__).parent
    done = subprocess.run(command, cwd=here, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


def test_many_pieces_and_threads() -> None:
    """Large enough for several pieces of C, uneven ones at both ends, for several packings of B and parts of k."""
    check_pieces()


def test_sums_are_taken_as_they_are() -> None:
    """A Cast behind the product becomes part of it: nothing is rounded in between."""
    case = Case(33, 17, 65, widened=True)
    session = InferenceSession(case.model())
    assert [node.op_type for node in onnx.load_from_string(session.execution_model()).graph.node] == ["Linear"]
    whole = Case(33, 17, 65).run()
    assert (case.run().astype(ml_dtypes.bfloat16) == whole).all()
    assert not (case.run() == whole.astype(np.float32)).all()


class Words(nn.Module):
    """A language model whose head has classes enough to be worked on in blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(2500, 48)
        self.layer = nn.TransformerEncoderLayer(48, 4, 96, dropout=0.0, batch_first=True)
        self.head = nn.Linear(48, 2500)

    def forward(self, words: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        scores = self.head(self.layer(self.embedding(words)))
        return nn.functional.cross_entropy(scores.flatten(0, 1), labels.flatten())


def curve(wrap: Any, narrow: bool, steps: int) -> np.ndarray:
    torch.manual_seed(0)
    module = Words()
    words, labels = torch.randint(0, 2500, (2, 8, 25))
    labels[labels % 5 == 0] = -100
    trained, optimizer = wrap(module), torch.optim.SGD(module.parameters(), lr=0.5)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=narrow):
            loss = trained(words, labels)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return np.array(losses)


def test_training_follows_autocast() -> None:
    """Twenty steps: as far from float32 as torch's autocast is, and the loss falls as it does there."""
    exact, theirs, ours = curve(lambda m: m, False, 20), curve(lambda m: m, True, 20), curve(ORTModule, True, 20)
    assert exact[-1] < 0.9 * exact[0]
    noise = max(2 * np.abs(theirs - exact).max(), 2.0**-8 * exact.max())
    assert np.abs(ours - exact).max() <= noise, (exact, theirs, ours)
