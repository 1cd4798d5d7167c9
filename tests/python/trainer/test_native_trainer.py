"""The native train step against torch's gradients and the optimizers' arithmetic in float64, on random networks."""

import itertools
from pathlib import Path

import backpass
import numpy as np
import onnx
import pytest
import torch
from backpass import _core
from backpass._convert import to_engine, to_numpy
from onnx import TensorProto, helper, numpy_helper
from reference_optimizers import Reference

ACTIVATIONS = {"Relu": torch.relu, "Tanh": torch.tanh, "Sigmoid": torch.sigmoid}
FIELDS = ("rate_scale", "alpha", "beta", "epsilon", "weight_decay", "correct_bias", "decays_after", "max_norm",
          "ratio_min", "ratio_max")  # fmt: skip


def network(random, dtype=np.float64):
    """A multilayer perceptron with a loss, as ONNX, and the same as a function of torch."""
    sizes = [int(random.integers(1, 9)) for _ in range(int(random.integers(2, 5)))]
    acts = [str(random.choice(list(ACTIVATIONS))) for _ in sizes[1:]]
    kind = TensorProto.DOUBLE if dtype == np.float64 else TensorProto.FLOAT
    nodes, weights, value = [], {}, "x"
    for i, (n, m) in enumerate(itertools.pairwise(sizes)):
        weights[f"w{i}"] = random.standard_normal((n, m)).astype(dtype)
        weights[f"b{i}"] = random.standard_normal(m).astype(dtype)
        nodes += [
            helper.make_node("Gemm", [value, f"w{i}", f"b{i}"], [f"h{i}"], name=f"linear{i}"),
            helper.make_node(acts[i], [f"h{i}"], [f"a{i}"]),
        ]
        value = f"a{i}"
    nodes += [helper.make_node("Identity", [value], ["scores"])]
    nodes += [helper.make_node("SoftmaxCrossEntropyLoss", ["scores", "labels"], ["loss"], reduction="mean")]
    graph = helper.make_graph(
        nodes,
        "network",
        [
            helper.make_tensor_value_info("x", kind, ["batch", sizes[0]]),
            helper.make_tensor_value_info("labels", TensorProto.INT64, ["batch"]),
        ],
        [
            helper.make_tensor_value_info("loss", kind, []),
            helper.make_tensor_value_info("scores", kind, ["batch", sizes[-1]]),
        ],
        [numpy_helper.from_array(w, name) for name, w in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)

    def run(given, x, labels):
        value = x
        for i, act in enumerate(acts):
            value = ACTIVATIONS[act](value @ given[f"w{i}"] + given[f"b{i}"])
        return torch.nn.functional.cross_entropy(value, labels), value

    return model, weights, run, sizes


def batch(random, sizes, dtype=np.float64):
    rows = int(random.integers(1, 12))
    return random.standard_normal((rows, sizes[0])).astype(dtype), random.integers(0, sizes[-1], rows)


def settings(random, algorithm):
    own = _core.WeightSettings()
    own.rate_scale = float(random.choice([1.0, 0.5, 2.0]))
    own.alpha, own.beta = float(random.uniform(0.5, 0.95)), float(random.uniform(0.9, 0.999))
    own.epsilon = float(random.choice([1e-8, 1e-3]))
    own.weight_decay = 0.0 if algorithm == "sgd" else float(random.choice([0.0, 0.01, 0.1]))
    own.correct_bias = bool(random.integers(2))
    own.decays_after = bool(random.integers(2))
    own.max_norm = float(random.choice([0.1, 1.0, 1e6]))
    if random.integers(2):
        own.ratio_min, own.ratio_max = 0.1, 1.5
    return own


def options_for(random, names):
    options = _core.TrainerOptions()
    options.algorithm = str(random.choice(["sgd", "adam", "lamb"]))
    options.defaults = settings(random, options.algorithm)
    some = [name for name in names if random.integers(2)]
    options.by_weight = {name: settings(random, options.algorithm) for name in some}
    options.accumulation_steps = int(random.choice([1, 1, 2, 3]))
    options.clips_gradients = bool(random.integers(2))
    options.skips_non_finite = bool(random.integers(2))
    options.scales_loss = bool(random.integers(2))
    return options


def as_values(*arrays):
    return [to_engine(np.ascontiguousarray(a)) for a in arrays]


def gradients(run, weights, x, labels):
    given = {name: torch.tensor(w, requires_grad=True) for name, w in weights.items()}
    loss, scores = run(given, torch.from_numpy(x), torch.from_numpy(labels))
    loss.backward()
    return loss.item(), scores.detach().numpy(), {name: t.grad.numpy() for name, t in given.items()}


@pytest.mark.parametrize("seed", range(30))
def test_follows_the_reference(seed):
    random = np.random.default_rng(seed)
    model, weights, run, sizes = network(random)
    options = options_for(random, list(weights))
    state = _core.Trainer.state_of(model.SerializeToString(), "loss")
    trainer = _core.Trainer(state, options)
    trainer.loss_scale = float(random.choice([1.0, 1024.0, 3.0]))
    programs = [trainer.add_model(model.SerializeToString(), "loss", names) for names in (["loss", "scores"], ["loss"])]
    own = {n: {f: getattr(options.by_weight.get(n, options.defaults), f) for f in FIELDS} for n in weights}
    reference = Reference(options.algorithm, dict(weights), own, options.clips_gradients)
    sums, count, updates = {}, options.accumulation_steps, 0
    for step in range(7):
        x, labels = batch(random, sizes)
        chosen = int(random.integers(2))
        outputs, updated, all_finite = trainer.train_step(programs[chosen], as_values(x, labels), 0.05)
        loss, scores, found = gradients(run, reference.weights, x, labels)
        assert to_numpy(outputs[0]) == pytest.approx(loss, rel=1e-10)
        if chosen == 0:
            np.testing.assert_allclose(to_numpy(outputs[1]), scores, rtol=1e-9, atol=1e-12)
        sums = {n: sums.get(n, 0) + g for n, g in found.items()}
        assert updated == ((step + 1) % count == 0)
        assert all_finite
        if updated:
            reference.update({n: g / count for n, g in sums.items()}, 0.05)
            sums, updates = {}, updates + 1
        assert (trainer.steps, trainer.updates) == (step + 1, updates)
        for name, w in reference.weights.items():
            np.testing.assert_allclose(to_numpy(state.parameter(name)), w, rtol=1e-8, atol=1e-11)


def trained(model, options, batches, threads=1, state=None, rate=0.05):
    options.session.num_threads = threads
    state = state or _core.Trainer.state_of(model.SerializeToString(), "loss")
    trainer = _core.Trainer(state, options)
    program = trainer.add_model(model.SerializeToString(), "loss", ["loss"])
    for x, labels in batches:
        trainer.train_step(program, as_values(x, labels), rate)
    return {name: to_numpy(state.parameter(name)).copy() for name in state.parameter_names}, state


@pytest.mark.parametrize("algorithm", ["sgd", "adam", "lamb"])
@pytest.mark.parametrize("seed", range(4))
def test_same_bits_for_any_number_of_threads_and_when_resumed(algorithm, seed, tmp_path):
    random = np.random.default_rng(seed)
    model, _, _, sizes = network(random, np.float32)
    options = options_for(random, [])
    options.algorithm, options.accumulation_steps = algorithm, 2
    batches = [batch(random, sizes, np.float32) for _ in range(8)]
    whole, _ = trained(model, options, batches)
    again, _ = trained(model, options, batches, threads=2)
    _, half = trained(model, options, batches[:4])
    half.save(str(tmp_path / "half"), True)
    resumed, _ = trained(model, options, batches[4:], state=_core.CheckpointState.load(str(tmp_path / "half")))
    for name, w in whole.items():
        np.testing.assert_array_equal(again[name], w)
        np.testing.assert_array_equal(resumed[name], w)


def test_gradients_that_are_not_finite_update_nothing():
    random = np.random.default_rng(3)
    model, weights, _, sizes = network(random)
    options = _core.TrainerOptions()
    options.skips_non_finite = True
    state = _core.Trainer.state_of(model.SerializeToString(), "loss")
    trainer = _core.Trainer(state, options)
    program = trainer.add_model(model.SerializeToString(), "loss", ["loss"])
    x, labels = batch(random, sizes)
    x[0, 0] = np.nan
    _, updated, all_finite = trainer.train_step(program, as_values(x, labels), 0.1)
    assert (updated, all_finite, trainer.updates, trainer.steps) == (False, False, 0, 1)
    for name, w in weights.items():
        np.testing.assert_array_equal(to_numpy(state.parameter(name)), w)


def test_frozen_weights_stay_and_are_checked():
    model, weights, _, sizes = network(np.random.default_rng(4))
    state = _core.Trainer.state_of(model.SerializeToString(), "loss", ["w0"])
    trainer = _core.Trainer(state, _core.TrainerOptions())
    program = trainer.add_model(model.SerializeToString(), "loss", ["loss"])
    assert "w0" not in trainer.trained
    trainer.train_step(program, as_values(*batch(np.random.default_rng(0), sizes)), 0.1)
    np.testing.assert_array_equal(to_numpy(state.parameter("w0")), weights["w0"])
    with pytest.raises(backpass.InvalidInput, match="frozen weight 'nothing'"):
        _core.Trainer.state_of(model.SerializeToString(), "loss", ["nothing"])


def test_memory_of_the_caller_is_trained():
    model, weights, _, sizes = network(np.random.default_rng(5))
    mine = {name: w.copy() for name, w in weights.items()}
    state = _core.CheckpointState()
    for name, w in mine.items():
        state.share_parameter(name, to_engine(w))
    trainer = _core.Trainer(state, _core.TrainerOptions())
    program = trainer.add_model(model.SerializeToString(), "loss", ["loss"])
    trainer.train_step(program, as_values(*batch(np.random.default_rng(0), sizes)), 0.1)
    assert all(not np.array_equal(mine[name], w) for name, w in weights.items())
    elsewhere = {name: w.copy() for name, w in weights.items()}
    for name, w in elsewhere.items():
        state.share_parameter(name, to_engine(w))
    before = {name: w.copy() for name, w in mine.items()}
    trainer.train_step(program, as_values(*batch(np.random.default_rng(0), sizes)), 0.1)
    assert all(np.array_equal(mine[name], w) for name, w in before.items())
    assert all(not np.array_equal(elsewhere[name], w) for name, w in weights.items())


def test_evaluation_needs_only_what_its_outputs_need():
    model, weights, run, sizes = network(np.random.default_rng(6))
    state = _core.Trainer.state_of(model.SerializeToString(), "loss")
    trainer = _core.Trainer(state, _core.TrainerOptions())
    program = trainer.add_eval_model(model.SerializeToString(), ["scores"])
    assert [info.name for info in trainer.eval_inputs(program)] == ["x"]
    x, labels = batch(np.random.default_rng(0), sizes)
    (scores,) = trainer.eval_step(program, as_values(x))
    np.testing.assert_allclose(to_numpy(scores), gradients(run, weights, x, labels)[1], rtol=1e-9, atol=1e-12)


def test_batch_normalisation_keeps_statistics():
    random = np.random.default_rng(7)
    nodes = [
        helper.make_node("BatchNormalization", ["x", "s", "b", "mean", "var"], ["y", "", ""], training_mode=1),
        helper.make_node("ReduceMean", ["y2"], ["loss"], keepdims=0),
    ]
    nodes.insert(1, helper.make_node("Mul", ["y", "y"], ["y2"]))
    initial = {"s": np.ones(3), "b": random.standard_normal(3), "mean": np.zeros(3), "var": np.ones(3)}
    initial = {name: value.astype(np.float32) for name, value in initial.items()}
    graph = helper.make_graph(
        nodes,
        "normalised",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 3])],
        [helper.make_tensor_value_info("loss", TensorProto.FLOAT, [])],
        [numpy_helper.from_array(value, name) for name, value in initial.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    state = _core.Trainer.state_of(model.SerializeToString(), "loss")
    trainer = _core.Trainer(state, _core.TrainerOptions())
    program = trainer.add_model(model.SerializeToString(), "loss", ["loss"])
    assert sorted(trainer.trained) == ["b", "s"]
    x = random.standard_normal((4, 3)).astype(np.float32)
    trainer.train_step(program, as_values(x), 0.1)
    np.testing.assert_allclose(to_numpy(state.parameter("mean")), 0.1 * x.mean(0), rtol=1e-5, atol=1e-7)


def test_a_damaged_model_and_unknown_names_are_refused():
    model, _, _, _ = network(np.random.default_rng(8))
    state = _core.Trainer.state_of(model.SerializeToString(), "loss")
    trainer = _core.Trainer(state, _core.TrainerOptions())
    with pytest.raises(backpass.InvalidInput, match="output 'nothing' does not exist"):
        trainer.add_model(model.SerializeToString(), "loss", ["nothing"])
    with pytest.raises(backpass.InvalidInput, match="expected a scalar"):
        trainer.add_model(model.SerializeToString(), "scores", ["scores"])
    with pytest.raises(backpass.Error):
        trainer.add_model(model.SerializeToString()[:-7], "loss", ["loss"])
    with pytest.raises(backpass.InvalidInput, match="got 0, expected one of 0"):
        trainer.train_step(0, [], 0.1)


def test_outputs_are_assigned_to_parameters(tmp_path: Path):
    model, _, _, sizes = network(np.random.default_rng(9))
    model.graph.initializer.append(numpy_helper.from_array(np.zeros(sizes[-1]), "mean"))
    model.graph.node.append(helper.make_node("ReduceMean", ["scores"], ["batch_mean"], axes=[0], keepdims=0))
    model.graph.node.append(helper.make_node("Add", ["mean", "batch_mean"], ["new_mean"]))
    path = tmp_path / "model.onnx"
    onnx.save(model, path)
    state = _core.Trainer.state_of(path, "loss")
    state.share_parameter("mean", to_engine(np.zeros(sizes[-1])), False)
    trainer = _core.Trainer(state, _core.TrainerOptions())
    program = trainer.add_model(path, "loss", ["scores"], {"new_mean": "mean"})
    expected = 0
    for seed in range(3):
        (scores,), _, _ = trainer.train_step(program, as_values(*batch(np.random.default_rng(seed), sizes)), 0.1)
        expected = expected + to_numpy(scores).mean(0)
        np.testing.assert_allclose(to_numpy(state.parameter("mean")), expected, rtol=1e-12)
