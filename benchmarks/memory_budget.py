"""Training steps of PyTorch modules within memory budgets: planned peak and processor time for shares of what
they would take.

python benchmarks/memory_budget.py                        the networks of torch_networks.py, taking turns within a run;
                                                          where a share cannot be had, the least that can
python benchmarks/memory_budget.py --networks gpt2 --shares 0.5 0.33 --turns 3
"""

from __future__ import annotations

import argparse
import copy
import logging
import statistics
import time
import warnings
from typing import Any

import torch
from backpass import InvalidInput, ORTModule
from backpass.ortmodule import RuntimeOptions
from torch_networks import NETWORKS, bert, make

DEFAULT = ["bert_classify", "bert_masked", "gpt2", "tutorial", "resnet18", "unet", "bert_deep"]
NETWORKS["bert_deep"] = lambda p: bert(False, p, 12, 512, 8, 128)
SHARES = [1 / 2, 1 / 3, 1 / 5]


class Trained:
    """One network within one budget."""

    def __init__(self, network: str, share: float, threads: int, dropout: float) -> None:
        module, self.inputs = make(network, dropout)
        self.module = ORTModule(copy.deepcopy(module), options=RuntimeOptions(max_memory=share, num_threads=threads))
        self.share = share
        self.times: list[float] = []
        self.step()

    def step(self) -> float:
        began = time.process_time()  # of all threads: other programs do not count
        torch.manual_seed(1)
        self.module(*self.inputs).backward()
        self.module.zero_grad()
        return time.process_time() - began

    def chosen(self) -> str:
        (variant,) = self.module._manager.variants
        session = next(iter(variant.graphs.values())).session
        lines = [r.what for r in session.pass_reports() if r.pass_name == "recompute"]
        seconds = {t.pass_name: t.seconds for t in session.pass_times()}.get("recompute", 0)
        return f"{lines[0]}; decided in {seconds:.2f} s" if lines else "nothing is made again"

    def turn(self, steps: int) -> None:
        self.step()
        self.times += [self.step() for _ in range(steps)]


def compare(network: str, shares: list[float], arguments: Any) -> None:
    plain = Trained(network, 0, arguments.threads, arguments.dropout)
    rivals = [plain]
    for share in shares:
        try:
            rivals.append(Trained(network, share, arguments.threads, arguments.dropout))
        except InvalidInput as error:
            print(f"{network:14} {share:5.2f}  {error}", flush=True)
            least = float(str(error).split("expected at least ")[1].split(";")[0])
            if least < 1 and all(rival.share != least for rival in rivals):
                rivals.append(Trained(network, least, arguments.threads, arguments.dropout))
    for turn in range(arguments.turns):
        for rival in rivals if turn % 2 == 0 else reversed(rivals):
            rival.turn(arguments.steps)
    base = statistics.median(plain.times)
    for rival in rivals:
        spent = statistics.median(rival.times)
        print(
            f"{network:14} {rival.share or 1:5.2f}  {1e3 * spent:8.1f} ms  {spent / base:5.2f}  {rival.chosen()}",
            flush=True,
        )


def main() -> None:
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    parser = argparse.ArgumentParser()
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=DEFAULT)
    parser.add_argument("--shares", nargs="+", type=float, default=SHARES)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--steps", type=int, default=3)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    for network in arguments.networks:
        compare(network, arguments.shares, arguments)


if __name__ == "__main__":
    main()
