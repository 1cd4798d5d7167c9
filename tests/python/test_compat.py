"""compat: scripts that import onnxruntime and onnxruntime.training, in processes of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import onnx
import pytest
from backpass import _ort
from backpass.api import CheckpointState, Module
from onnx import TensorProto, helper, numpy_helper, parser
from ort_training.interpreters import ORIGINAL, needs_original

# Makes `import onnxruntime` fail as where it is not installed.
WITHOUT = """
from importlib.machinery import PathFinder
find = PathFinder.find_spec
PathFinder.find_spec = classmethod(lambda cls, name, *a: None if name.startswith("onnxruntime") else find(name, *a))
try:
    import onnxruntime
    raise SystemExit("onnxruntime is still there")
except ModuleNotFoundError:
    pass
"""


def script(text: str, folder: Path, before: str = "") -> str:
    code = before + "import backpass.compat\n" + textwrap.dedent(text)
    places = os.pathsep.join(os.path.abspath(p) for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p)
    environment = os.environ | {"PYTHONPATH": places}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "Exception ignored" not in done.stderr, done.stderr
    return done.stdout.strip()


def save_model(folder: Path) -> None:
    text = '<ir_version: 8, opset_import: ["": 17]> g (float[N, 4] x) => (float[N, 3] y) { y = MatMul(x, w) }'
    model = parser.parse_model(text)
    model.graph.initializer.append(numpy_helper.from_array(np.ones((4, 3), np.float32), "w"))
    onnx.save(model, folder / "model.onnx")


def test_training_resolves_to_backpass(tmp_path: Path) -> None:
    save_model(tmp_path)
    told = script(
        """
        import onnxruntime
        theirs = onnxruntime.InferenceSession
        backpass.compat.install()
        import onnx
        import onnxruntime.training.onnxblock as onnxblock
        from onnxruntime.training import api, artifacts, onnxblock
        from onnxruntime import training
        from onnxruntime.training.onnxblock.optim.optim import AdamWOptimizer
        import backpass.artifacts, backpass.onnxblock.optim.optim as optim
        assert artifacts is backpass.artifacts and onnxblock is backpass.onnxblock
        assert AdamWOptimizer is optim.AdamWOptimizer
        assert api is backpass.api and training.api is api and training.onnxblock is onnxblock
        assert onnxruntime.training.artifacts is artifacts
        assert onnxruntime.InferenceSession is theirs
        assert onnxblock.__name__ == "backpass.onnxblock" and onnxblock.__spec__.name == "backpass.onnxblock"
        artifacts.generate_artifacts(onnx.load("model.onnx"), requires_grad=["w"], loss=artifacts.LossType.MSELoss,
                                     optimizer=artifacts.OptimType.SGD)
        try:
            import onnxruntime.training.no_such_part
        except ModuleNotFoundError as error:
            print(error)
        try:
            from onnxruntime.training import no_such_part
        except ImportError as error:
            print(str(error).split(" from")[0])
        """,
        tmp_path,
    )
    assert told.splitlines() == [
        "No module named 'onnxruntime.training.no_such_part'",
        "cannot import name 'no_such_part'",
    ]
    assert {p.name for p in tmp_path.iterdir()} >= {"training_model.onnx", "optimizer_model.onnx", "checkpoint"}


@pytest.mark.parametrize(("before", "argument"), [("", "runtime=True"), (WITHOUT, "")], ids=["asked", "not installed"])
def test_runtime_resolves_to_backpass(tmp_path: Path, before: str, argument: str) -> None:
    save_model(tmp_path)
    told = script(
        f"""
        backpass.compat.install({argument})
        backpass.compat.install({argument})
        import numpy as np
        import onnxruntime as ort
        from onnxruntime.training import artifacts
        options = ort.SessionOptions()
        options.intra_op_num_threads = 1
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        session = ort.InferenceSession("model.onnx", options, providers=["CPUExecutionProvider"])
        x = ort.OrtValue.ortvalue_from_numpy(np.ones((2, 4), np.float32))
        (y,) = session.run_with_ort_values(["y"], {{"x": x}})
        assert y.numpy().tolist() == [[4.0] * 3] * 2
        binding = session.io_binding()
        binding.bind_cpu_input("x", np.zeros((1, 4), np.float32))
        binding.bind_output("y")
        session.run_with_iobinding(binding)
        assert binding.copy_outputs_to_cpu()[0].tolist() == [[0.0] * 3]
        print(ort.get_available_providers(), session.get_inputs()[0].shape, ort.__name__)
        """,
        tmp_path,
        before,
    )
    assert told == "['CPUExecutionProvider'] ['N', 4] backpass._ort"


# The examples in the documentation of onnxruntime.training, as they stand there.
SAMPLE = """
    from onnxruntime.training import artifacts

    # Load the forward only onnx model
    model = onnx.load(path_to_forward_only_onnx_model)

    # Generate the training artifacts
    artifacts.generate_artifacts(model,
                                 requires_grad = ["parameters", "needing", "gradients"],
                                 frozen_params = ["parameters", "not", "needing", "gradients"],
                                 loss = artifacts.LossType.CrossEntropyLoss,
                                 optimizer = artifacts.OptimType.AdamW,
                                 artifact_directory = path_to_output_artifact_directory)
"""
EXAMPLE = """
    import onnxruntime.training.onnxblock as onnxblock
    from onnxruntime.training import artifacts

    # Define a custom loss block that takes in two inputs
    # and performs a weighted average of the losses from these
    # two inputs.
    class WeightedAverageLoss(onnxblock.Block):
        def __init__(self):
            self._loss1 = onnxblock.loss.MSELoss()
            self._loss2 = onnxblock.loss.MSELoss()
            self._w1 = onnxblock.blocks.Constant(0.4)
            self._w2 = onnxblock.blocks.Constant(0.6)
            self._add = onnxblock.blocks.Add()
            self._mul = onnxblock.blocks.Mul()

        def build(self, loss_input_name1, loss_input_name2):
            # The build method defines how the block should be stacked on top of
            # loss_input_name1 and loss_input_name2

            # Returns weighted average of the two losses
            return self._add(
                self._mul(self._w1(), self._loss1(loss_input_name1, target_name="target1")),
                self._mul(self._w2(), self._loss2(loss_input_name2, target_name="target2"))
            )

    my_custom_loss = WeightedAverageLoss()

    # Load the onnx model
    model_path = "model.onnx"
    base_model = onnx.load(model_path)

    # Define the parameters that need their gradient computed
    requires_grad = ["weight1", "bias1", "weight2", "bias2"]
    frozen_params = ["weight3", "bias3"]

    # Now, we can invoke generate_artifacts with this custom loss function
    artifacts.generate_artifacts(base_model, requires_grad = requires_grad, frozen_params = frozen_params,
                                loss = my_custom_loss, optimizer = artifacts.OptimType.AdamW)
"""


FILES = {"training_model.onnx", "eval_model.onnx", "checkpoint", "optimizer_model.onnx"}
WAYS = {"compat": "backpass.compat.install()\n", "renamed": ""}


def documented(text: str, way: str) -> str:
    """The text with what it takes for granted; without compat, the module's path is ours."""
    text = textwrap.dedent(text)
    return "import onnx\n" + WAYS[way] + (text if way == "compat" else text.replace("onnxruntime.training", "backpass"))


@pytest.mark.parametrize("way", WAYS)
def test_documented_sample_runs_as_written(way: str, tmp_path: Path) -> None:
    body = "a = MatMul(x, parameters) b = Add(a, needing) c = MatMul(b, gradients) d = Add(c, more) y = Mul(d, fixed)"
    model = parser.parse_model(
        f'<ir_version: 8, opset_import: ["": 17]> g (float[N, 4] x) => (float[N, 3] y) {{ {body} }}'
    )
    shapes = {"parameters": (4, 5), "needing": 5, "gradients": (5, 3), "more": 3, "fixed": 3}
    for name, shape in shapes.items():
        model.graph.initializer.append(numpy_helper.from_array(np.ones(shape, np.float32), name))
    onnx.save(model, tmp_path / "model.onnx")
    (tmp_path / "made").mkdir()
    before = 'path_to_forward_only_onnx_model, path_to_output_artifact_directory = "model.onnx", "made"\n'
    # The sample names the same parameters as trained and as frozen, which cannot be meant: the frozen ones are ours.
    sample = SAMPLE.replace('["parameters", "not", "needing", "gradients"]', '["more", "fixed"]')
    assert script(before + documented(sample, way), tmp_path) == ""
    assert {p.name for p in (tmp_path / "made").iterdir()} == FILES
    state = CheckpointState.load_checkpoint(tmp_path / "made" / "checkpoint")
    assert {name for name, p in state.parameters if p.requires_grad} == {"parameters", "needing", "gradients"}
    assert {name for name, p in state.parameters if not p.requires_grad} == {"more", "fixed"}


@pytest.mark.parametrize("way", WAYS)
def test_documented_example_runs_as_written(way: str, tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["": 17]> g (float[N, 4] x) => (float[N, 3] output1, float[N, 2] output2)
    { output1 = Gemm(x, weight1, bias1) h = Gemm(x, weight3, bias3) output2 = Gemm(h, weight2, bias2) }"""
    model = parser.parse_model(text)
    for name, shape in (("weight1", (4, 3)), ("bias1", 3), ("weight2", (5, 2)), ("bias2", 2), ("weight3", (4, 5))):
        model.graph.initializer.append(numpy_helper.from_array(np.ones(shape, np.float32), name))
    model.graph.initializer.append(numpy_helper.from_array(np.ones(5, np.float32), "bias3"))
    onnx.save(model, tmp_path / "model.onnx")
    assert script(documented(EXAMPLE, way), tmp_path) == ""
    assert {p.name for p in tmp_path.iterdir()} == FILES | {"model.onnx"}
    state = CheckpointState.load_checkpoint(tmp_path / "checkpoint")
    module = Module(tmp_path / "training_model.onnx", state, tmp_path / "eval_model.onnx")
    assert module.input_names() == ["x", "target1", "target2"]
    x, one, two = (np.random.default_rng(0).standard_normal((6, n)).astype(np.float32) for n in (4, 3, 2))
    total = x.sum(1, keepdims=True)  # all parameters are 1
    outputs = total + np.ones(3), 5 * (total + 1) + np.ones(2)
    expected = 0.4 * np.mean((outputs[0] - one) ** 2) + 0.6 * np.mean((outputs[1] - two) ** 2)
    assert float(np.ravel(module(x, one, two))[0]) == pytest.approx(float(expected), rel=1e-5)


# What scripts for the training API do, in the words of its documentation.
TRAINING = """
    import numpy as np
    import onnx
    import onnxruntime
    from onnxruntime import InferenceSession, OrtValue
    from onnxruntime.training import artifacts
    from onnxruntime.training.api import CheckpointState, LinearLRScheduler, Module, Optimizer

    artifacts.generate_artifacts(
        onnx.load("model.onnx"), requires_grad=["w"], loss=artifacts.LossType.CrossEntropyLoss,
        optimizer=artifacts.OptimType.AdamW, additional_output_names=["y"],
    )
    state = CheckpointState.load_checkpoint("checkpoint")
    module = Module("training_model.onnx", state, "eval_model.onnx", device="cpu")
    optimizer = Optimizer("optimizer_model.onnx", module)
    scheduler = LinearLRScheduler(optimizer, 2, 30, 0.1)
    rng = np.random.default_rng(0)
    x, labels = rng.standard_normal((16, 4)).astype(np.float32), rng.integers(0, 3, 16)
    losses = []
    for step in range(20):
        module.train()
        if step % 2:
            loss, scores = module(x, labels)
        else:
            values = module(OrtValue.ortvalue_from_numpy(x), OrtValue.ortvalue_from_numpy(labels))
            assert all(isinstance(value, OrtValue) for value in values)
            loss = values[0].numpy()
        losses.append(float(loss))
        optimizer.step()
        scheduler.step()
        module.lazy_reset_grad()
    module.eval()
    losses.append(float(module(x, labels)[0]))
    assert losses[-1] < losses[2] < losses[1], losses
    flat = module.get_contiguous_parameters()
    module.copy_buffer_to_parameters(OrtValue.ortvalue_from_numpy(flat.numpy().copy()), trainable_only=True)
    CheckpointState.save_checkpoint(state, "trained", include_optimizer_state=True)
    module.export_model_for_inferencing("inference.onnx", ["y"])
    session = InferenceSession("inference.onnx", providers=["CPUExecutionProvider"])
    (scores,) = session.run(None, {"x": x})
    np.testing.assert_allclose(scores, module(x, labels)[1], rtol=1e-5, atol=1e-6)
    print(InferenceSession.__module__.split(".")[0])
"""


@pytest.mark.parametrize("runtime", [False, True])
def test_training_script_runs_as_written(runtime: bool, tmp_path: Path) -> None:
    save_model(tmp_path)
    told = script(f"backpass.compat.install(runtime={runtime})\n" + textwrap.dedent(TRAINING), tmp_path)
    assert told == ("backpass" if runtime else "onnxruntime")


# For 1.19.2, where it runs as it is: artifacts, the API, and its models in sessions of the runtime, which write to
# accumulation buffers, parameters and moments in place.
SCRIPT = """
    import json
    import numpy as np
    import onnx
    import onnxruntime
    from onnxruntime import InferenceSession, OrtValue, SessionOptions
    from onnxruntime.training import artifacts, onnxblock
    from onnxruntime.training.api import CheckpointState, Module, Optimizer

    told = {"providers": "CPUExecutionProvider" in onnxruntime.get_available_providers()}
    artifacts.generate_artifacts(
        onnx.load("model.onnx"), requires_grad=["w"], loss=artifacts.LossType.CrossEntropyLoss,
        optimizer=artifacts.OptimType.AdamW, additional_output_names=["y"],
    )
    rng = np.random.default_rng(0)
    x, labels = rng.standard_normal((16, 4)).astype(np.float32), rng.integers(0, 3, 16)

    state = CheckpointState.load_checkpoint("checkpoint")
    module = Module("training_model.onnx", state, "eval_model.onnx", device="cpu")
    optimizer = Optimizer("optimizer_model.onnx", module)
    optimizer.set_learning_rate(0.05)
    told["names"] = [module.input_names(), len(module.output_names()), module.get_parameters_size()]
    told["losses"] = []
    for step in range(8):
        told["losses"].append(float(module(x, labels)[0]))
        if step % 2:
            optimizer.step()
            module.lazy_reset_grad()
    told["w"] = np.asarray(state.parameters["w"].data).tolist()
    module.eval()
    told["evaluated"] = float(module(OrtValue.ortvalue_from_numpy(x), OrtValue.ortvalue_from_numpy(labels))[0].numpy())
    module.export_model_for_inferencing("inference.onnx", ["y"])

    options = SessionOptions()
    options.intra_op_num_threads = 1
    session = InferenceSession("inference.onnx", options, providers=["CPUExecutionProvider"])
    told["scores"] = session.run(["y"], {"x": x})[0].tolist()

    training = InferenceSession("training_model.onnx", options, providers=["CPUExecutionProvider"])
    weight, buffer = np.ones((4, 3), np.float32), np.zeros((4, 3), np.float32)
    feeds = {"x": x, "labels": labels, "w": weight, "w_grad.accumulation.buffer": buffer}
    sums = []
    for reset in (True, False, False):
        training.run(None, feeds | {"lazy_reset_grad": np.array([reset])})
        sums.append(buffer.tolist())
    told["sums"] = sums
    print("TOLD", json.dumps(told))
"""
LINE = "import backpass.compat; backpass.compat.install(runtime=True)\n"


@pytest.mark.slow
@needs_original
def test_a_script_for_the_original_tells_the_same_with_one_more_line(tmp_path: Path) -> None:
    told = []
    for python, first in ((ORIGINAL, ""), (sys.executable, LINE)):
        folder = tmp_path / Path(python).parent.parent.name
        folder.mkdir()
        save_model(folder)
        places = os.environ.get("PYTHONPATH", "") if first else ""
        environment = os.environ | {"PYTHONPATH": os.path.abspath(places) if places else ""}
        command = [python, "-c", first + textwrap.dedent(SCRIPT)]
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        told.append(json.loads(done.stdout.split("TOLD", 1)[1]))
    theirs, ours = told
    assert ours["providers"] == theirs["providers"]
    assert ours["names"] == theirs["names"]
    for key in ("losses", "w", "evaluated", "scores", "sums"):
        np.testing.assert_allclose(ours[key], theirs[key], rtol=1e-4, atol=1e-6, err_msg=key)


def test_uninstall(tmp_path: Path) -> None:
    told = script(
        """
        import onnxruntime
        version = onnxruntime.__version__
        backpass.compat.install(runtime=True)
        import onnxruntime
        assert onnxruntime.__version__ == "1.19.2"
        backpass.compat.uninstall()
        import onnxruntime
        print(onnxruntime.__version__ == version)
        """,
        tmp_path,
    )
    assert told == "True"


# ---- The runtime's small types.
def test_ort_value() -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    value = _ort.OrtValue.ortvalue_from_numpy(array)
    value.update_inplace(array + 1)
    assert array[0, 0] == 1
    assert (value.shape(), value.data_type(), value.element_type()) == ([2, 3], "tensor(float)", TensorProto.FLOAT)
    assert value.data_ptr() == array.ctypes.data
    assert value.is_tensor()
    assert np.from_dlpack(value).base is not None
    made = _ort.OrtValue.ortvalue_from_shape_and_type([2], TensorProto.INT64)
    assert made.numpy().dtype == np.int64
    with pytest.raises(RuntimeError, match="expected 'cpu'"):
        _ort.OrtValue.ortvalue_from_numpy(array, "cuda", 0)


@pytest.mark.parametrize("shape", [[1, 3], [4, 2, 3], [2, 4]])
def test_bound_outputs_have_the_shape_of_the_result(shape: list[int], tmp_path: Path) -> None:
    save_model(tmp_path)
    session = _ort.InferenceSession(str(tmp_path / "model.onnx"))
    binding = session.io_binding()
    binding.bind_cpu_input("x", np.ones((2, 4), np.float32))
    with pytest.raises(RuntimeError, match="no outputs"):
        session.run_with_iobinding(binding)
    place = _ort.OrtValue.ortvalue_from_shape_and_type(shape, np.float32)
    binding.bind_ortvalue_output("y", place)
    with pytest.raises(RuntimeError, match=r"got shape \[2, 3\]"):
        session.run_with_iobinding(binding)
    assert not place.numpy().any()


def test_options_have_fixed_names() -> None:
    with pytest.raises(AttributeError, match="intra_op_threads"):
        _ort.SessionOptions().intra_op_threads = 1  # type: ignore[attr-defined]


def test_profiles_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_model(tmp_path)
    monkeypatch.chdir(tmp_path)
    options = _ort.SessionOptions()
    options.enable_profiling = True
    options.profile_file_prefix = "trace"
    session = _ort.InferenceSession("model.onnx", options)
    session.run(None, {"x": np.ones((2, 4), np.float32)})
    name = session.end_profiling()
    assert name.startswith("trace_")
    assert json.loads((tmp_path / name).read_text())["traceEvents"]


def test_accumulation_buffers_are_updated_in_place() -> None:
    node = helper.make_node("InPlaceAccumulatorV2", ["sum", "value", "reset"], ["done"], domain="com.microsoft")
    infos = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["N"]) for n in ("sum", "value")]
    infos.append(helper.make_tensor_value_info("reset", TensorProto.BOOL, [1]))
    graph = helper.make_graph([node], "g", infos, [helper.make_tensor_value_info("done", TensorProto.BOOL, [1])])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    session = _ort.InferenceSession(helper.make_model(graph, opset_imports=opsets).SerializeToString())
    total = np.array([1, 2], np.float32)
    feeds = {"sum": total, "value": np.array([10, 20], np.float32), "reset": np.array([False])}
    assert [o.name for o in session.get_outputs()] == ["done"]
    (done,) = session.run(None, feeds)
    assert done.tolist() == [True]
    assert total.tolist() == [11, 22]
    session.run(None, feeds | {"reset": np.array([True])})
    assert total.tolist() == [10, 20]
    session.run_with_ort_values(None, {n: _ort.OrtValue.ortvalue_from_numpy(v) for n, v in feeds.items()})
    assert total.tolist() == [20, 40]
    total.flags.writeable = False
    with pytest.raises(RuntimeError, match="'sum' is updated in place"):
        session.run(None, feeds)


def test_sums_that_are_outputs_are_not_hidden() -> None:
    node = helper.make_node("InPlaceAccumulatorV2", ["sum", "value"], ["done", "total"], domain="com.microsoft")
    infos = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["N"]) for n in ("sum", "value", "total")]
    outputs = [helper.make_tensor_value_info("done", TensorProto.BOOL, [1]), infos.pop()]
    graph = helper.make_graph([node], "g", infos, outputs)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    session = _ort.InferenceSession(helper.make_model(graph, opset_imports=opsets).SerializeToString())
    assert [o.name for o in session.get_outputs()] == ["done", "total"]
    feeds = {"sum": np.ones(2, np.float32), "value": np.ones(2, np.float32)}
    assert session.run(None, feeds)[1].tolist() == feeds["sum"].tolist() == [2, 2]


@pytest.mark.parametrize("clip", [None, 1.0])
def test_optimizer_models_update_sequences_in_place(clip: float | None) -> None:
    from backpass import onnxblock

    tensors = [numpy_helper.from_array(np.zeros(n, np.float32), f"p{n}") for n in (2, 3)]
    with onnxblock.empty_base(17) as accessor:
        onnxblock.optim.SGD(clip)((tensors, []))
    session = _ort.InferenceSession(accessor.model.SerializeToString())
    parameters = [np.ones(n, np.float32) for n in (2, 3)]
    gradients = [np.full(n, 2.0, np.float32) for n in (2, 3)]
    feeds = {
        "learning_rate": np.array([0.5], np.float32),
        "step": np.array([1]),
        "params": parameters,
        "gradients": gradients,
        "first_order_moments": [np.zeros(n, np.float32) for n in (2, 3)],
    }
    (done,) = session.run(None, feeds)
    assert done.tolist() == [True]
    clipped = 2.0 if clip is None else 2.0 / (np.sqrt(20.0) + 1e-6)
    for p, g in zip(parameters, gradients, strict=True):
        np.testing.assert_allclose(g, clipped, rtol=1e-6)
        np.testing.assert_allclose(p, 1 - 0.5 * clipped, rtol=1e-6)


@pytest.mark.parametrize("argument", ["", pytest.param("runtime=True", marks=pytest.mark.slow)])
def test_trainers_are_found_where_they_were(argument: str, tmp_path: Path) -> None:
    told = script(
        f"""
        import warnings
        warnings.simplefilter("ignore")
        backpass.compat.install({argument})
        import torch
        from onnxruntime.capi.ort_trainer import IODescription, ModelDescription, ORTTrainer
        from onnxruntime.training import ORTTrainer as NewTrainer, ORTTrainerOptions, optim
        x, y = torch.ones(2, 3), torch.zeros(2, 1)

        def loss_fn(prediction, label):
            return ((prediction - label) ** 2).mean()

        module = torch.nn.Linear(3, 1)
        expected = loss_fn(module(x), y).item()
        inputs = [IODescription("x", [2, 3], torch.float32), IODescription("y", [2, 1], torch.float32)]
        outputs = [IODescription("loss", [], torch.float32), IODescription("out", [2, 1], torch.float32)]
        old = ORTTrainer(module, loss_fn, ModelDescription(inputs, outputs), "SGDOptimizer", None,
                         IODescription("lr", [1], torch.float32), "cpu")
        loss, _ = old.train_step(x, y, torch.tensor([0.1]))
        assert abs(loss.item() - expected) < 1e-5
        described = {{"inputs": [("x", [2, 3]), ("y", [2, 1])], "outputs": [("loss", [], True), ("out", [2, 1])]}}
        options = ORTTrainerOptions({{"device": {{"id": "cpu"}}}})
        new = NewTrainer(module, described, optim.SGDConfig(lr=0.1), loss_fn, options)
        again, _ = new.train_step(x, y)
        assert again.item() < loss.item()
        print(type(old).__module__.split(".")[1], type(new).__module__.split(".")[1])
        """,
        tmp_path,
    )
    assert told.splitlines()[-1] == "trainer training"
