"""Modules of the artifacts API on several ranks."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import backpass
import numpy as np
import onnx
import pytest
from backpass import _core, parallel
from backpass._convert import to_engine
from backpass.api import CheckpointState, Module, Optimizer
from onnx import numpy_helper

sys.path.insert(0, str(Path(__file__).parent.parent))
import update_fuzz
from cases import network
from random_graphs import draw
from random_nodes import FAMILIES
from test_training_session import optimizer_model

ROWS = 3
CLIP = ("AdamWOptimizer", {"epsilon": 1e-4})


def clipping_model(max_norm: float) -> bytes:
    model = onnx.load_from_string(optimizer_model(*CLIP[:1], **CLIP[1]))
    clip = onnx.helper.make_node(
        "InplaceClipGradNorm", ["gradients"], ["clipped"], domain="com.microsoft", max_norm=max_norm
    )
    model.graph.node[0].input[3] = "clipped"
    model.graph.node.insert(0, clip)
    return model.SerializeToString()


class Trained:
    """A module over a drawn network, with an optimizer, and batches for it."""

    def __init__(self, seed: int, optimizer: bytes, shift: float = 0.0, **options: Any) -> None:
        self.rng = np.random.default_rng(seed)
        model, self.width, self.classes = network(self.rng)
        weights = {t.name: numpy_helper.to_array(t) for t in onnx.load_from_string(model).graph.initializer}
        names = [name for name in weights if name != "flat"]
        core = _core.CheckpointState()
        for name in names:
            core.add_parameter(name, to_engine(weights[name] + np.float32(shift)), name != "b0")
        models = _core.build_training_model(model, [n for n in names if n != "b0"], ["b0"], ["loss"])
        self.state = CheckpointState(core)
        session = _core.SessionOptions()
        for name, value in options.items():
            setattr(session, name, value)
        self.module = Module(models[0], self.state, session_options=session)
        self.optimizer = Optimizer(optimizer, self.module)
        self.optimizer.set_learning_rate(0.02)

    def batch(self, world: int) -> tuple[np.ndarray, np.ndarray]:
        rows = ROWS * world
        x = self.rng.standard_normal((rows, self.width)).astype(np.float32)
        return x, self.rng.integers(0, self.classes, rows)

    def bits(self) -> bytes:
        return b"".join(p.data.tobytes() for _, p in self.state.parameters)


def run(
    comm: Any, world: int, seed: int, optimizer: bytes, accumulates: int = 1, **how: Any
) -> tuple[list[float], bytes, Trained]:  # fmt: skip
    shift = 0.0 if comm is None else 0.1 * comm.rank  # of which nothing is left after the broadcast
    trained = Trained(seed, optimizer, shift, num_threads=1)
    shared = None if comm is None else parallel.DataParallel(trained.module, comm, **how)
    losses = []
    for _ in range(5):
        for micro in range(accumulates):
            batch = trained.batch(world)
            if shared is None:
                losses.append(float(trained.module(*batch)))
                continue
            own = [shared.shard(part) for part in batch]
            if micro + 1 < accumulates:
                with shared.no_sync():
                    losses.append(shared.mean(shared(*own)))
            else:
                losses.append(shared.mean(shared(*own)))
        trained.optimizer.step()
        trained.module.lazy_reset_grad()
    return losses, trained.bits(), trained


@pytest.mark.parametrize("optimizer", ["adamw", "clip", "sgd"])
@pytest.mark.parametrize("accumulates", [1, 3])
@pytest.mark.parametrize("stage", [0, 1])
def test_as_one_process(optimizer: str, accumulates: int, stage: int) -> None:
    model = {
        "adamw": optimizer_model(CLIP[0], **CLIP[1]),
        "clip": clipping_model(0.3),
        "sgd": optimizer_model("SGDOptimizerV2"),
    }[optimizer]
    for seed, size in ((1, 2), (2, 3)):
        alone, _, _ = run(None, size, seed, model, accumulates)
        results = [
            parallel.run_threads(
                size,
                lambda comm, seed=seed, size=size, how=how: run(
                    comm, size, seed, model, accumulates, zero_stage=stage, bucket_bytes=2000, **how
                ),
            )
            for how in ({}, {"overlap": False})
        ]
        for ranks in results:
            assert len({bits for _, bits, _ in ranks}) == 1
            np.testing.assert_allclose(ranks[0][0], alone, rtol=1e-6, atol=1e-6)
        assert results[0][0][1] == results[1][0][1]


def test_checkpoints_of_shares_go_on_with_other_numbers_of_processes(tmp_path: Path) -> None:
    """Moments of two processes, put together, are taken over by three, by one, and by sessions without ZeRO."""
    model = optimizer_model("AdamWOptimizer", epsilon=1e-4)
    path = tmp_path / "checkpoint"

    def first(comm: Any) -> None:
        _, _, trained = run(comm, 2, 4, model, zero_stage=1)
        module = parallel.DataParallel(trained.module, comm, zero_stage=1)  # once more: nothing is lost
        module.save_checkpoint(path, include_optimizer_state=True)

    parallel.run_threads(2, first)
    _, _, whole = run(None, 2, 4, model)
    joined = CheckpointState.load_checkpoint(path)
    assert joined._core.optimizer_groups[0].step == 5
    for name, moments in whole.state._core.optimizer_groups[0].momentums.items():
        for key, moment in moments.items():
            found = joined._core.optimizer_groups[0].momentums[name][key].array()
            np.testing.assert_allclose(found, moment.array(), rtol=1e-4, atol=1e-7)

    def go_on(comm: Any, stage: int) -> bytes:
        again = Trained(4, model)
        again.state = CheckpointState.load_checkpoint(path)
        again.module = Module(again.module._models[0], again.state)
        again.optimizer = Optimizer(model, again.module)
        again.optimizer.set_learning_rate(0.02)
        if comm is not None:
            parallel.DataParallel(again.module, comm, zero_stage=stage)
        again.module(*again.batch(1))  # the same everywhere: their average is each of them
        again.optimizer.step()
        return again.bits()

    plain = np.frombuffer(go_on(None, 0), np.float32)
    for stage in (0, 1):
        for other in parallel.run_threads(3, lambda comm, stage=stage: go_on(comm, stage)):
            np.testing.assert_allclose(np.frombuffer(other, np.float32), plain, rtol=1e-5, atol=1e-6)


def test_each_process_holds_its_share_of_the_moments() -> None:
    def held(comm: Any) -> tuple[int, int, int]:
        trained = Trained(1, optimizer_model(), num_threads=1)
        parallel.DataParallel(trained.module, comm, zero_stage=1)
        trained.module(*trained.batch(1))
        trained.optimizer.step()
        inside = len(trained.state._core.optimizer_groups[0].momentums)
        report = trained.module.plan(*trained.batch(1))
        return inside, report.held.optimizer_state, report.held.gradients

    for inside, moments, gradients in parallel.run_threads(4, held):
        assert inside == 0
        assert moments == 2 * gradients // 4


def test_gradients_are_averages_wherever_they_are_seen() -> None:
    def gradients(comm: Any, world: int) -> dict[str, np.ndarray]:
        trained = Trained(3, optimizer_model(), num_threads=1)
        batch = trained.batch(world)
        if comm is not None:
            shared = parallel.DataParallel(trained.module, comm, bucket_bytes=500)
            batch = tuple(shared.shard(part) for part in batch)
        trained.module(*batch)
        found = {n: p.grad.copy() for n, p in trained.state.parameters if p.requires_grad}
        if comm is not None:
            assert sum(b.size for b in shared.gradient_buckets()) >= sum(g.size for g in found.values())
            trained.module(*batch)  # added to what was averaged: twice the same
            for name, p in trained.state.parameters:
                if p.requires_grad:
                    np.testing.assert_allclose(p.grad, 2 * found[name], rtol=1e-5, atol=1e-7)
        return found

    alone = gradients(None, 3)
    for found in parallel.run_threads(3, lambda comm: gradients(comm, 3)):
        for name, gradient in alone.items():
            np.testing.assert_allclose(found[name], gradient, rtol=1e-5, atol=1e-6, err_msg=name)


def test_gradients_are_on_their_way_before_the_step_is_over() -> None:
    def steps(comm: Any) -> list[str]:
        trained = Trained(1, optimizer_model(), num_threads=1, profile=True)
        parallel.DataParallel(trained.module, comm, bucket_bytes=100)
        trained.module(*trained.batch(1))
        return [record.op for record in trained.module._session.take_profile()]

    for ops in parallel.run_threads(2, steps):
        ready = [place for place, op in enumerate(ops) if op == "BucketReady"]
        assert len(ready) > 3
        assert ready[0] < len(ops) - len(ready)  # others come behind it


def test_who_trains_something_else_is_told_on_all_ranks() -> None:
    def start(comm: Any) -> str:
        trained = Trained(1 if comm.rank == 0 else 2, optimizer_model())
        try:
            parallel.DataParallel(trained.module, comm)
        except backpass.InvalidInput as error:
            return str(error)
        return ""

    for message in parallel.run_threads(3, start):
        assert message.startswith("parallel: rank 1 trains other parameters than rank 0")


def test_a_step_that_fails_in_midst_of_an_exchange_is_the_last() -> None:
    class Failing(parallel.SingleCommunicator):
        calls = 0

        def allreduce(self, array: np.ndarray) -> None:
            Failing.calls += 1
            if Failing.calls == 2:
                raise ConnectionError("gone")

    trained = Trained(1, optimizer_model())
    parallel.DataParallel(trained.module, Failing(), bucket_bytes=100)
    batch = trained.batch(1)
    with pytest.raises(ConnectionError, match="gone"):
        trained.module(*batch)
    with pytest.raises(backpass.InvalidInput, match="no longer in step"):
        trained.module(*batch)


DROPPING = """
<ir_version: 9, opset_import: ["" : 17]>
network (float[rows, 40] x) => (float loss) <float[40, 1] w> {
  half = Constant <value = float {0.5}> ()
  on = Constant <value = bool {1}> ()
  dropped = Dropout(x, half, on)
  y = MatMul(dropped, w)
  loss = ReduceMean <keepdims = 0> (y)
}
"""


def test_random_numbers_differ_by_rank_and_go_on_from_one_checkpoint(tmp_path: Path) -> None:
    """All ranks read what rank 0 wrote, and draw on as they would have."""
    model = onnx.parser.parse_model(DROPPING)
    del model.graph.initializer[:]
    model.graph.initializer.append(numpy_helper.from_array(np.ones((40, 1), np.float32), "w"))
    models = _core.build_training_model(model.SerializeToString(), ["w"], [], ["loss"])
    x = np.arange(80, dtype=np.float32).reshape(2, 40)

    def losses(comm: Any) -> tuple[list[float], list[float]]:
        core = _core.CheckpointState()
        core.add_parameter("w", to_engine(np.ones((40, 1), np.float32)), True)
        first = parallel.DataParallel(Module(models[0], CheckpointState(core)), comm)
        first(x)
        first.save_checkpoint(tmp_path / "checkpoint")
        read = CheckpointState.load_checkpoint(tmp_path / "checkpoint")
        again = parallel.DataParallel(Module(models[0], read), comm)
        return [float(first(x)) for _ in range(3)], [float(again(x)) for _ in range(3)]

    ranks = parallel.run_threads(3, losses)
    assert all(went_on == resumed for went_on, resumed in ranks)
    assert len({went_on[0] for went_on, _ in ranks}) == 3


def test_a_batch_that_cannot_be_shared_out() -> None:
    trained = Trained(1, optimizer_model())

    class Three(parallel.SingleCommunicator):
        size = 3

        def allgather(self, mine: np.ndarray, all: np.ndarray) -> None:
            all.reshape(3, -1)[:] = mine.reshape(-1)

    shared = parallel.DataParallel(trained.module, Three())
    assert (shared.world_rank, shared.world_size) == (0, 3)
    with pytest.raises(backpass.InvalidInput, match="batch of 7 rows: cannot be shared out equally over 3 processes"):
        shared.shard(np.zeros((7, 2)))


NORMALIZED = """
<ir_version: 9, opset_import: ["" : 17]>
network (float[batch, 4] x, float[4] scale, float[4] offset, float[4] mean, float[4] variance) => (float loss) {
  y, new_mean, new_variance = BatchNormalization <training_mode = 1, momentum = 0.5> (x, scale, offset, mean, variance)
  square = Mul(y, y)
  loss = ReduceMean <keepdims = 0> (square)
}
"""


@pytest.mark.parametrize("averages", [True, False])
def test_running_statistics(averages: bool) -> None:
    """Averages over all processes; or everybody's own."""
    start = {"scale": 1.0, "offset": 0.5, "mean": 0.0, "variance": 1.0}

    def statistics(comm: Any) -> tuple[np.ndarray, np.ndarray]:
        model = onnx.parser.parse_model(NORMALIZED)
        core = _core.CheckpointState()
        for name, value in start.items():
            core.add_parameter(name, to_engine(np.full(4, value, np.float32)), name in ("scale", "offset"))
        given = [i for i in model.graph.input if i.name == "x"]
        del model.graph.input[:]
        model.graph.input.extend(given)
        for name, value in start.items():
            model.graph.initializer.append(numpy_helper.from_array(np.full(4, value, np.float32), name))
        trained = ["scale", "offset"]
        models = _core.build_training_model(model.SerializeToString(), trained, ["mean", "variance"], ["loss"])
        state = CheckpointState(core)
        module = parallel.DataParallel(Module(models[0], state), comm, average_statistics=averages)
        module(np.random.default_rng(comm.rank).standard_normal((6, 4)).astype(np.float32))
        return state.parameters["mean"].data.copy(), state.parameters["variance"].data.copy()

    ranks = parallel.run_threads(3, statistics)
    batches = [np.random.default_rng(rank).standard_normal((6, 4)).astype(np.float32) for rank in range(3)]
    means = [0.5 * b.mean(0) for b in batches]
    if averages:
        means = [np.mean(means, 0)] * 3
        assert len({mean.tobytes() + variance.tobytes() for mean, variance in ranks}) == 1
    for (mean, _), expected in zip(ranks, means, strict=True):
        np.testing.assert_allclose(mean, expected, rtol=1e-5, atol=1e-6)


def fuzzed(comm: Any, seed: int, **how: Any) -> list[bytes]:
    """Some steps of a random graph on numbers that differ by rank."""
    graph = draw(seed, FAMILIES)
    rng = np.random.default_rng([seed, 3])
    inputs = list(graph.feeds)
    parameters = sorted(n for n in inputs if rng.random() < 0.8) or [inputs[0]]
    model = update_fuzz.with_loss(graph, set(parameters))
    core = _core.CheckpointState()
    for name in parameters:
        core.add_parameter(name, to_engine(graph.feeds[name]), True)
    models = _core.build_training_model(model.SerializeToString(), parameters, [], ["loss", *graph.outputs])
    state = CheckpointState(core)
    options = _core.SessionOptions()
    options.num_threads = int(rng.integers(1, 3))
    if rng.random() < 0.3:
        options.recompute = ["cheap"]
    module = Module(models[0], state, session_options=options)
    shared = parallel.DataParallel(module, comm, bucket_bytes=int(rng.choice([1, 300, 1 << 20])), **how)
    seen = []
    for step in range(4):
        batch = [graph.feeds[n] + 0.01 * (comm.rank + step) for n in inputs if n not in parameters]
        if step == 2:
            module.lazy_reset_grad()
        results = shared(*[np.asarray(x) for x in batch])
        seen += [np.asarray(r).tobytes() for r in (results if isinstance(results, tuple) else (results,))]
        seen += [p.grad.tobytes() for _, p in state.parameters]
    return seen


def problem_of(seed: int) -> str:
    try:
        overlapping = parallel.run_threads(2, lambda comm: fuzzed(comm, seed))
        late = parallel.run_threads(2, lambda comm: fuzzed(comm, seed, overlap=False))
    except backpass.Error as error:
        return "" if "is not defined" in str(error) else f"seed {seed}: {error}"
    return "" if overlapping == late else f"seed {seed}: other bits\n{draw(seed, FAMILIES)}"


@pytest.mark.parametrize("seeds", [range(30), pytest.param(range(30, 400), marks=pytest.mark.slow)], ids=len)
def test_random_graphs_have_the_same_bits_with_and_without_overlap(seeds: range) -> None:
    problems = [problem for seed in seeds if (problem := problem_of(seed))]
    assert not problems, "\n".join(problems[:3])
