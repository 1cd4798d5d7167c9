"""Indices of embeddings: torch refuses a negative one, which ONNX's Gather would count from the end."""

from __future__ import annotations

from typing import Any

import backpass
import numpy as np
import onnx
import pytest
import torch
from backpass import IODescription, ModelDescription, ORTModule, ORTTrainer
from backpass.torch import to_onnx
from onnx import TensorProto, helper
from torch import nn

ROWS = 7
GOOD, NEGATIVE, BEYOND = torch.tensor([[0, 3], [6, 2]]), torch.tensor([[0, 3], [-1, 2]]), torch.tensor([[0, 7], [1, 2]])
SAYS = r"\[Gather '.*'\] index at position {}: got {}, expected one in \[0, 7\)"


class Words(nn.Module):
    def __init__(self, padding_idx: int | None = None, scale: float | None = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.scale = nn.Embedding(ROWS, 4, padding_idx), scale

    def forward(self, index: torch.Tensor) -> torch.Tensor:
        if self.scale is not None:  # what is selected from is computed: selections move in front of that
            return nn.functional.embedding(index, self.table.weight * self.scale).tanh()
        return self.table(index).tanh()


class Chosen(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, ROWS))

    def forward(self, index: torch.Tensor) -> torch.Tensor:
        return self.weight.index_select(1, index.reshape(-1)) * 2


MODULES: dict[str, Any] = {
    "embedding": Words,
    "with padding": lambda: Words(padding_idx=2),
    "of what is computed": lambda: Words(scale=0.5),
    "index_select": Chosen,
}
FRONTS: dict[str, Any] = {
    "ORTModule": ORTModule,
    "torch.compile": lambda module: torch.compile(module, backend="backpass"),
}


@pytest.mark.parametrize("front", FRONTS)
@pytest.mark.parametrize("module", MODULES)
def test_an_index_out_of_range_is_refused(module: str, front: str) -> None:
    torch._dynamo.reset()
    run = FRONTS[front](MODULES[module]())
    run(GOOD).sum().backward()
    for index, says in ((NEGATIVE, SAYS.format(2, -1)), (BEYOND, SAYS.format(1, 7))):
        with pytest.raises(backpass.InvalidInput, match=says):
            run(index)
    with pytest.raises(backpass.InvalidInput, match=SAYS.format(0, -7)):
        run(torch.full((1,), -7))  # one axis: such selections are moved
    with torch.no_grad(), pytest.raises(backpass.InvalidInput, match=SAYS.format(2, -1)):
        run(NEGATIVE)
    assert torch.isfinite(run(GOOD)).all()


@pytest.mark.parametrize("padding_idx", [None, 2, -1])
def test_gradients_are_torchs(padding_idx: int | None) -> None:
    index = torch.tensor([[2, 6, 2], [0, 6, 6]])
    plain, ours = Words(padding_idx), Words(padding_idx)
    weights = torch.randn(2, 3, 4)
    (plain(index) * weights).sum().backward()
    (ORTModule(ours)(index) * weights).sum().backward()
    torch.testing.assert_close(ours.table.weight.grad, plain.table.weight.grad)
    if padding_idx is not None:
        assert not ours.table.weight.grad[padding_idx].any()


def trainer_of(module: nn.Module) -> ORTTrainer:
    description = ModelDescription(
        [IODescription("index", ["batch", 2]), IODescription("label", ["batch", 2, 4])],
        [IODescription("loss", []), IODescription("values", ["batch", 2, 4])],
    )
    loss = lambda values, label: nn.functional.mse_loss(values, label)  # noqa: E731
    return ORTTrainer(module, loss, description, "SGDOptimizer", None, IODescription("rate", [1]), "cpu")


def test_a_step_that_is_refused_trains_nothing() -> None:
    module, rate, label = Words(), torch.tensor([0.1]), torch.zeros(2, 2, 4)
    trainer = trainer_of(module)
    trainer.train_step(GOOD, label, rate)
    before = module.table.weight.detach().clone()
    for index, says in ((NEGATIVE, SAYS.format(2, -1)), (BEYOND, SAYS.format(1, 7))):
        with pytest.raises(backpass.InvalidInput, match=says):
            trainer.train_step(index, label, rate)
        with pytest.raises(backpass.InvalidInput, match=says):
            trainer.eval_step(index, label)
    assert torch.equal(module.table.weight.detach(), before)


def test_models_for_others_are_plain_onnx(tmp_path: Any) -> None:
    module = Words()
    trainer = trainer_of(module)
    trainer.train_step(GOOD, torch.zeros(2, 2, 4), torch.tensor([0.1]))
    trainer.save_as_onnx(str(tmp_path / "trained.onnx"))
    for model in (onnx.load(tmp_path / "trained.onnx"), to_onnx(module, (GOOD,))):
        gathers = [node for node in model.graph.node if node.op_type == "Gather"]
        assert [[a.name for a in node.attribute] for node in gathers] == [["axis"]]


def test_an_onnx_model_counts_from_the_end() -> None:
    table = np.arange(12, dtype=np.float32).reshape(4, 3)
    graph = helper.make_graph(
        [helper.make_node("Gather", ["table", "index"], ["y"])],
        "rows",
        [helper.make_tensor_value_info("index", TensorProto.INT64, ["n"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 3])],
        [onnx.numpy_helper.from_array(table, "table")],
    )
    session = backpass.InferenceSession(helper.make_model(graph).SerializeToString())
    np.testing.assert_array_equal(session.run(None, {"index": np.array([-1, 0])})[0], table[[-1, 0]])
