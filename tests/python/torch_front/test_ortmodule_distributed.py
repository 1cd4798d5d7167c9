"""DistributedDataParallel around an ORTModule: two processes, gradients as without it."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 16)
        self.norm = nn.BatchNorm1d(16)
        self.last = nn.Linear(16, 3)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        logits = self.last(torch.tanh(self.norm(self.first(x))))
        return nn.functional.cross_entropy(logits, labels)


def worker(rank: int, folder: str) -> None:
    from end_of_gloo import end_process
    from ortmodule_check import wrap

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    torch.manual_seed(0)
    net = Net()
    models = [DistributedDataParallel(wrap(copy.deepcopy(net))), DistributedDataParallel(copy.deepcopy(net))]
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9) for m in models]
    torch.manual_seed(rank + 1)  # each process its own data
    rounds = []
    for step in range(3):
        x, labels = torch.randn(5 + step, 6), torch.randint(0, 3, (5 + step,))
        for model, optimizer in zip(models, optimizers, strict=True):
            optimizer.zero_grad()
            if step == 1:
                with model.no_sync():  # accumulates without talking
                    model(x[:3], labels[:3]).backward()
            model(x, labels).backward()
        rounds.append([{n: p.grad.clone() for n, p in m.module.named_parameters()} for m in models])
        for optimizer in optimizers:
            optimizer.step()
    buffers = [dict(m.module.named_buffers()) for m in models]
    torch.save((rounds, buffers), Path(folder) / f"rank{rank}.pt")
    end_process()


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[list, list]]:
    folder = tmp_path_factory.mktemp("ddp")
    mp.spawn(worker, (str(folder),), nprocs=2)
    return [torch.load(folder / f"rank{rank}.pt") for rank in range(2)]


def test_gradients_are_those_of_the_module_without(results: list[tuple[list, list]]) -> None:
    for rounds, buffers in results:
        for ours, theirs in rounds:
            assert list(ours) == list(theirs)
            for name, expected in theirs.items():
                torch.testing.assert_close(
                    ours[name], expected, rtol=1e-4, atol=1e-5, msg=lambda m, n=name: f"{n}: {m}"
                )
        for name, expected in buffers[1].items():
            torch.testing.assert_close(buffers[0][name], expected, rtol=1e-4, atol=1e-5)


def test_processes_agree(results: list[tuple[list, list]]) -> None:
    for one, other in zip(results[0][0], results[1][0], strict=True):
        for name, gradient in one[0].items():
            assert torch.equal(gradient, other[0][name]), name
