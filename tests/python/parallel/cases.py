"""Training runs, drawn at random, that one process or several can do."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
from backpass import _core, parallel
from backpass._convert import to_engine, to_numpy
from onnx import TensorProto, helper, numpy_helper

STEPS = 6
Arrays = dict[str, np.ndarray]


def network(rng: np.random.Generator, dtype: type = np.float32) -> tuple[bytes, int, int]:
    """Layers of which two biases have the same gradient, one weight is used twice, and one is only reshaped."""
    kind = TensorProto.DOUBLE if dtype == np.float64 else TensorProto.FLOAT
    sizes = [int(n) for n in rng.integers(1, 40, int(rng.integers(2, 5)))]
    nodes, weights, value = [], {}, "x"

    def weight(name: str, *shape: int) -> str:
        weights[name] = (rng.standard_normal(shape) / np.sqrt(max(1, shape[0]))).astype(dtype)
        return name

    for i, (n, m) in enumerate(itertools.pairwise(sizes)):
        nodes += [
            helper.make_node("MatMul", [value, weight(f"w{i}", n, m)], [f"p{i}"]),
            helper.make_node("Add", [weight(f"b{i}", m), weight(f"c{i}", m)], [f"bias{i}"]),
            helper.make_node("Add", [f"p{i}", f"bias{i}"], [f"h{i}"]),
            helper.make_node("Tanh", [f"h{i}"], [f"a{i}"]),
            helper.make_node("MatMul", [f"a{i}", weight(f"s{i}", m, m)], [f"q{i}"]),
            helper.make_node("MatMul", [f"q{i}", f"s{i}"], [f"r{i}"]),
            helper.make_node("Reshape", [weight(f"g{i}", 1, m), "flat"], [f"v{i}"]),
            helper.make_node("Mul", [f"r{i}", f"v{i}"], [f"o{i}"]),
        ]
        value = f"o{i}"
    nodes += [helper.make_node("SoftmaxCrossEntropyLoss", [value, "labels"], ["loss"], reduction="mean")]
    inputs = [
        helper.make_tensor_value_info("x", kind, ["batch", sizes[0]]),
        helper.make_tensor_value_info("labels", TensorProto.INT64, ["batch"]),
    ]
    constants = [numpy_helper.from_array(w, name) for name, w in weights.items()]
    constants.append(numpy_helper.from_array(np.array([-1]), "flat"))
    graph = helper.make_graph(
        nodes, "network", inputs, [helper.make_tensor_value_info("loss", kind, [])], constants
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    return model.SerializeToString(), sizes[0], sizes[-1]


def draw_settings(rng: np.random.Generator) -> _core.WeightSettings:
    own = _core.WeightSettings()
    own.rate_scale = float(rng.choice([1.0, 0.5]))
    own.weight_decay = float(rng.choice([0.0, 0.01]))
    own.max_norm = float(rng.choice([0.05, 1.0]))
    own.epsilon = 1e-4  # below it, differences of rounding would decide on the direction
    return own


def train(comm: Any, seed: int, world: int, **changes: Any) -> Arrays:
    """A run of the native trainer on this rank's share of joined batches; alone (comm None) on all of them."""
    rng = np.random.default_rng(seed)
    model, width, classes = network(rng, np.float64 if seed % 3 == 0 else np.float32)
    options = _core.TrainerOptions()
    options.algorithm = changes.get("algorithm", str(rng.choice(["sgd", "adam", "lamb"])))
    options.defaults = draw_settings(rng)
    options.by_weight = {"b0": draw_settings(rng), "w0": draw_settings(rng)}
    options.accumulation_steps = int(rng.choice([1, 2, 3]))
    options.clips_gradients = bool(rng.integers(2))
    options.skips_non_finite = bool(rng.integers(2))
    options.session.num_threads = 1
    options.parallel.bucket_bytes = int(rng.choice([1, 1000, 5000, 25 << 20]))
    options.parallel.overlaps = changes.get("overlaps", True)
    options.zero_stage = changes.get("zero_stage", 0)
    rows = int(rng.integers(1, 4))
    if comm is not None:
        options.communicator = parallel.as_communicator(comm)
    state = _core.Trainer.state_of(model, "loss")
    trainer = _core.Trainer(state, options)
    program = trainer.add_model(model, "loss", ["loss"])
    losses, norms = [], []
    for _ in range(STEPS * options.accumulation_steps):
        x = rng.standard_normal((rows * world, width)).astype(np.float64 if seed % 3 == 0 else np.float32)
        labels = rng.integers(0, classes, rows * world)
        if comm is not None:
            x, labels = (part[comm.rank * rows : (comm.rank + 1) * rows] for part in (x, labels))
        (loss,), _, _ = trainer.train_step(program, [to_engine(x), to_engine(labels)], 0.02)
        losses.append(float(to_numpy(loss)))
        norms.append(trainer.last_norm)
    trainer.gather_optimizer_state()
    found = {name: to_numpy(state.parameter(name)).copy() for name in trainer.trained}
    for group in state.optimizer_groups:
        for name, moments in group.momentums.items():
            found |= {f"{name}.{key}": to_numpy(moment).copy() for key, moment in moments.items()}
    return found | {"losses": np.array(losses), "norms": np.array(norms)}


def expect_alike(ranks: list[Arrays]) -> None:
    """Replicas, moments included, have the same bits; losses are of each rank's own data."""
    for other in ranks[1:]:
        assert other.keys() == ranks[0].keys()
        for name in ranks[0].keys() - {"losses"}:
            assert other[name].tobytes() == ranks[0][name].tobytes(), name


def expect_as_alone(ranks: list[Arrays], alone: Arrays) -> None:
    losses = np.mean([rank["losses"] for rank in ranks], 0)
    np.testing.assert_allclose(losses, alone["losses"], rtol=1e-6, atol=1e-6)
    assert ranks[0].keys() == alone.keys()
    for name in alone.keys() - {"losses"}:
        np.testing.assert_allclose(ranks[0][name], alone[name], rtol=2e-3, atol=1e-5, err_msg=name)


def expect_same_bits(some: list[Arrays], others: list[Arrays]) -> None:
    for a, b in zip(some, others, strict=True):
        for name in a:
            assert a[name].tobytes() == b[name].tobytes(), name
