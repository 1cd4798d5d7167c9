"""Random graphs trained in two ways: by `train_and_update`, and by a step, an update and a reset. Not a bit may differ,
in results, parameters, moments, statistics and counts; whatever the number of threads, memory allowed, and whether ways
are mixed and states saved in between.

    python tests/python/update_fuzz.py --seconds 60
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections import Counter
from typing import Any

import backpass
import numpy as np
import onnx
from backpass import _core
from backpass._convert import to_engine
from backpass.api import CheckpointState, Module, Optimizer
from onnx import TensorProto, helper, numpy_helper
from random_graphs import Drawn, draw
from random_nodes import FAMILIES
from test_training_session import optimizer_model

STEPS = 6
OPTIMIZERS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("SGDOptimizerV2", {}),
    ("AdamWOptimizer", {}),
    ("AdamWOptimizer", {"weight_decay": 0.1, "adam_mode": 1, "alpha": 0.5}),
    ("AdamWOptimizer", {"correct_bias": 0, "epsilon": 1e-3}),
)


def with_loss(graph: Drawn, parameters: set[str]) -> onnx.ModelProto:
    """The graph with some inputs stored in it, and the sum of the squares of its outputs."""
    model = graph.model()
    fed = [i for i in model.graph.input if i.name not in parameters]
    del model.graph.input[:]
    model.graph.input.extend(fed)
    for name in sorted(parameters):
        model.graph.initializer.append(numpy_helper.from_array(graph.feeds[name], name))
    terms = []
    for i, name in enumerate(graph.outputs):
        model.graph.node.append(helper.make_node("Mul", [name, name], [f"square_{i}"]))
        model.graph.node.append(helper.make_node("ReduceSum", [f"square_{i}"], [f"term_{i}"], keepdims=0))
        terms.append(f"term_{i}")
    model.graph.node.append(helper.make_node("Sum", terms, ["loss"]))
    model.graph.output.append(helper.make_tensor_value_info("loss", TensorProto.DOUBLE, []))
    return model


class Run:
    """A training run that `train_and_update` may be used in, or not."""

    def __init__(self, models: tuple[bytes, bytes], optimizer: bytes, state: bytes, **options: Any) -> None:
        self.models, self.optimizer_model = models, optimizer
        self.options = _core.SessionOptions()
        for name, value in options.items():
            setattr(self.options, name, value)
        self.load(state)

    def load(self, state: bytes) -> None:
        self.state = CheckpointState.from_bytes(state)
        self.module = Module(self.models[0], self.state, session_options=self.options)
        self.optimizer = Optimizer(self.optimizer_model, self.module)
        self.optimizer.set_learning_rate(0.03)

    def step(self, inputs: list[np.ndarray], together: bool) -> list[bytes]:
        if together:
            results = self.optimizer.train_and_update(*inputs)
        else:
            results = self.module(*inputs)
            self.optimizer.step()
            self.module.lazy_reset_grad()
        found = results if isinstance(results, tuple) else (results,)
        return [np.asarray(r).tobytes() for r in found] + [self.state.to_bytes(include_optimizer_state=True)]


def fits(run: Run, inputs: list[np.ndarray]) -> bool:
    try:
        run.optimizer.plan(*inputs)
        run.module.plan(*inputs)
    except backpass.Error as e:
        if "max_memory" not in str(e):
            raise
        return False
    return True


def difference(seed: int, graph: Drawn, refusals: Counter[str]) -> str:
    rng = np.random.default_rng([seed, 2])
    inputs = list(graph.feeds)
    parameters = {n for n in inputs if rng.random() < 0.8} or {inputs[0]}
    frozen = {n for n in parameters if rng.random() < 0.2} if len(parameters) > 1 else set()
    trained = sorted(parameters - frozen) or [sorted(parameters)[0]]
    frozen -= set(trained)
    outputs = ["loss", *(graph.outputs if rng.random() < 0.5 else [])]
    model = with_loss(graph, parameters)
    core = _core.CheckpointState()
    for name in sorted(parameters):
        core.add_parameter(name, to_engine(graph.feeds[name]), name in trained)
    try:
        models = _core.build_training_model(model.SerializeToString(), trained, sorted(frozen), outputs)
    except backpass.Error as e:  # one that reads running statistics has no form for evaluation
        if not re.search(r"BatchNormalization_\d+_[12]' is not defined", str(e)):
            raise
        refusals["no training model: running statistics are read"] += 1
        return ""
    kind, attributes = OPTIMIZERS[int(rng.integers(len(OPTIMIZERS)))]
    optimizer = optimizer_model(kind, **attributes)
    plain = Run(models, optimizer, core.to_bytes(), num_threads=1)
    fed = [graph.feeds[n] for n in inputs if n not in parameters]
    start = plain.step(fed, together=False)[-1]  # which has a seed
    plain.load(start)
    options: dict[str, Any] = {"num_threads": int(rng.integers(1, 4))}
    if rng.random() < 0.5:
        options["recompute"] = [str(rng.choice(["blocks", "cheap"]))]
    elif rng.random() < 0.5:
        options["max_memory"] = float(rng.choice([0.6, 0.8, 0.95]))
    updating = Run(models, optimizer, start, **options)
    if not fits(updating, fed):
        options["max_memory"] = 0.0
        updating = Run(models, optimizer, start, **options)
    mixed, saved = rng.random() < 0.3, rng.random() < 0.3
    why = str(updating.optimizer.plan(*fed)).rpartition("updated ")[2].strip()
    refusals[re.sub("'.*?'", "...", why)] += 1
    for step in range(STEPS):
        batch = [np.asarray(x + 0.01 * rng.standard_normal(x.shape)) for x in fed]
        wanted = plain.step(batch, together=False)
        got = updating.step(batch, together=not mixed or rng.random() < 0.6)
        if wanted != got:
            places = [i for i, (a, b) in enumerate(zip(wanted, got, strict=True)) if a != b]
            return f"step {step}, results {places} differ ({kind}, {options}, mixed {mixed}, trained {trained})"
        if saved and step == STEPS // 2:
            updating.load(got[-1])
    return ""


def problem_of(seed: int, refusals: Counter[str]) -> str:
    graph = draw(seed, FAMILIES)
    try:
        problem = difference(seed, graph, refusals)
    except backpass.Error as e:
        problem = f"{type(e).__name__}: {e}"
    return f"seed {seed}: {problem}\n{graph}" if problem else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--first", type=int, default=0, help="seed to start from")
    parser.add_argument("--seeds", type=int, nargs="*", help="these only")
    arguments = parser.parse_args()
    end = time.monotonic() + arguments.seconds
    refusals, wrong, seed = Counter[str](), 0, arguments.first
    for seed in arguments.seeds or range(arguments.first, sys.maxsize):
        if time.monotonic() > end:
            break
        if problem := problem_of(seed, refusals):
            wrong += 1
            print("WRONG", problem, flush=True)
    for why, count in refusals.most_common():
        print(f"{count:6} {why}")
    print(f"finished, {wrong} wrong, up to seed {seed}")


if __name__ == "__main__":
    main()
