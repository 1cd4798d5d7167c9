"""generate_artifacts: the files, every check before the first of them, and what a failure leaves behind."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import backpass
import numpy as np
import onnx
import pytest
from backpass import _staging, _weights, artifacts, cli, onnxblock
from backpass.api import CheckpointState
from backpass.artifacts import LossType, OptimType, generate_artifacts
from onnx import numpy_helper, parser

RNG = np.random.default_rng(2)
SHAPES = {"w1": (4, 8), "b1": (8,), "w2": (8, 3), "b2": (3,), "v": (8, 2), "unused_by_training": (1,)}
BODY = "h = Gemm(x, w1, b1) r = Tanh(h) s = Mul(r, unused_by_training) y = Gemm(s, w2, b2)"


def model(body: str = BODY, outputs: str = "float[N, 3] y", opset: int = 17) -> onnx.ModelProto:
    text = f'<ir_version: 8, opset_import: ["": {opset}]> g (float[N, 4] x) => ({outputs}) {{ {body} }}'
    made = parser.parse_model(text)
    used = {name for node in made.graph.node for name in node.input}
    for name, shape in SHAPES.items():
        if name in used:
            values = np.random.default_rng(len(name)).standard_normal(shape).astype(np.float32)
            made.graph.initializer.append(numpy_helper.from_array(values, name))
    return made


TWO = BODY + " z = MatMul(s, v)"
TWO_OUTPUTS = "float[N, 3] y, float[N, 2] z"
TRAINED = ["b2", "w1", "w2"]  # not in the order of the initializers
NAMES = {"training_model.onnx", "eval_model.onnx", "checkpoint", "optimizer_model.onnx"}


def names(infos: Any) -> list[str]:
    return [info.name for info in infos]


def generate(folder: Path, source: Any = None, **options: Any) -> None:
    settings: dict[str, Any] = {
        "requires_grad": TRAINED,
        "frozen_params": ["b1"],
        "loss": LossType.CrossEntropyLoss,
        "optimizer": OptimType.AdamW,
        "artifact_directory": folder,
    }
    generate_artifacts(model() if source is None else source, **(settings | options))


def files(folder: Path) -> set[str]:
    return set(os.listdir(folder))


def test_enums() -> None:
    assert {k.name: k.value for k in LossType} == {
        "MSELoss": 1, "CrossEntropyLoss": 2, "BCEWithLogitsLoss": 3, "L1Loss": 4,
    }  # fmt: skip
    assert {k.name: k.value for k in OptimType} == {"AdamW": 1, "SGD": 2}


# ---- What is written.
def test_files_and_their_layout(tmp_path: Path) -> None:
    generate(tmp_path, additional_output_names=["y", "h"], nominal_checkpoint=True)
    assert files(tmp_path) == NAMES | {"nominal_checkpoint"}
    training, evaluation, optimizer = (
        onnx.load(tmp_path / f"{kind}_model.onnx") for kind in ("training", "eval", "optimizer")
    )
    parameters = ["w1", "b1", "w2", "b2"]
    trained = ["w1", "w2", "b2"]
    buffers = [f"{name}_grad.accumulation.buffer" for name in trained]
    assert names(training.graph.input) == ["x", "labels", *parameters, *buffers, "lazy_reset_grad"]
    assert names(training.graph.output)[1:] == ["y", "h", *(f"{name}_grad.accumulation.out" for name in trained)]
    assert names(training.graph.node)[-3:] == ["GradientAccumulator3", "GradientAccumulator4", "GradientAccumulator5"]
    assert names(evaluation.graph.input) == ["x", "labels", *parameters]
    assert names(evaluation.graph.output) == names(training.graph.output)[:3]
    assert names(evaluation.graph.initializer) == ["unused_by_training"]
    assert names(optimizer.graph.input)[:4] == ["learning_rate", "step", "params", "gradients"]
    assert [(o.domain, o.version) for o in optimizer.opset_import] == [("com.microsoft", 1), ("", 17)]
    for made in (training, evaluation, optimizer):
        onnx.checker.check_model(made, full_check=True)


def test_checkpoint_holds_the_parameters(tmp_path: Path) -> None:
    generate(tmp_path, nominal_checkpoint=True)
    zeroed = model()
    for tensor in zeroed.graph.initializer:
        tensor.CopyFrom(numpy_helper.from_array(np.zeros_like(numpy_helper.to_array(tensor)), tensor.name))
    onnxblock.load_checkpoint_to_model(tmp_path / "checkpoint", zeroed)
    for new, old in zip(zeroed.graph.initializer, model().graph.initializer, strict=True):
        wanted = numpy_helper.to_array(old)
        assert np.array_equal(numpy_helper.to_array(new), wanted * (old.name != "unused_by_training"))
    with pytest.raises(RuntimeError, match="nominal"):
        onnxblock.load_checkpoint_to_model(tmp_path / "nominal_checkpoint", zeroed)
    assert (tmp_path / "nominal_checkpoint").stat().st_size < (tmp_path / "checkpoint").stat().st_size


def test_save_checkpoint_refuses(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="got None"):
        onnxblock.save_checkpoint(None, tmp_path / "c")
    tensor = numpy_helper.from_array(np.zeros(1, np.float32), "twice")
    with pytest.raises(RuntimeError, match="twice"):
        onnxblock.save_checkpoint(([tensor], [tensor]), tmp_path / "c")
    assert not files(tmp_path)


def test_prefix_and_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    generate(None, prefix="small_", optimizer=None)  # type: ignore[arg-type]
    assert files(tmp_path) == {"small_training_model.onnx", "small_eval_model.onnx", "small_checkpoint"}
    (tmp_path / "sub").mkdir()
    generate(None, prefix="sub/", optimizer=OptimType.SGD)  # type: ignore[arg-type]
    assert files(tmp_path / "sub") == NAMES


def test_nothing_to_train(tmp_path: Path) -> None:
    generate(tmp_path, requires_grad=None, frozen_params=None, optimizer=None)
    training = onnx.load(tmp_path / "training_model.onnx")
    assert names(training.graph.input) == ["x", "labels", "lazy_reset_grad"]
    with pytest.raises(RuntimeError, match="at least one initializer"):
        generate(tmp_path, requires_grad=None)


def test_frozen_names_that_the_model_does_not_have_are_ignored_with_one_warning(tmp_path: Path) -> None:
    """As in the original: its notebooks freeze everything torch calls a parameter, also what the export folded."""
    absent = [f"folded.{i}" for i in range(25)]
    with pytest.warns(UserWarning, match="ignored") as caught:
        generate(tmp_path, frozen_params=["b1", *absent, "y"])
    assert len(caught) == 1
    assert "folded.0, folded.1" in str(caught[0].message)
    assert "and 6 more" in str(caught[0].message)
    state = CheckpointState.load_checkpoint(tmp_path / "checkpoint")
    assert [name for name, p in state.parameters if not p.requires_grad] == ["b1"]
    with pytest.raises(RuntimeError, match=r"'folded\.0'"):
        generate(tmp_path, requires_grad=["w1", "folded.0"])


def test_gradient_of_an_input(tmp_path: Path) -> None:
    generate(tmp_path, requires_grad=["x", "w1"])
    training = onnx.load(tmp_path / "training_model.onnx")
    assert "x_grad.accumulation.buffer" in names(training.graph.input)
    zeroed = model()
    onnxblock.load_checkpoint_to_model(tmp_path / "checkpoint", zeroed)


def test_no_loss_takes_the_first_output(tmp_path: Path) -> None:
    source = model(BODY + " loss = ReduceMean<keepdims = 0>(y)", "float loss, float[N, 3] y")
    generate(tmp_path, source, loss=None)
    assert names(onnx.load(tmp_path / "eval_model.onnx").graph.output) == ["loss", "y"]
    with pytest.raises(RuntimeError, match="scalar"):
        generate(tmp_path, loss=None)


class WeightedAverageLoss(onnxblock.Block):
    """As in the documentation of the original: without super().__init__()."""

    def __init__(self) -> None:
        self._loss1 = onnxblock.loss.MSELoss()
        self._loss2 = onnxblock.loss.MSELoss()
        self._w1 = onnxblock.blocks.Constant(0.4)
        self._w2 = onnxblock.blocks.Constant(0.6)
        self._add = onnxblock.blocks.Add()
        self._mul = onnxblock.blocks.Mul()

    def build(self, loss_input_name1: str, loss_input_name2: str) -> Any:
        return self._add(
            self._mul(self._w1(), self._loss1(loss_input_name1, target_name="target1")),
            self._mul(self._w2(), self._loss2(loss_input_name2, target_name="target2")),
        )


def test_custom_loss_over_two_outputs(tmp_path: Path) -> None:
    generate(tmp_path, model(TWO, TWO_OUTPUTS), loss=WeightedAverageLoss(), requires_grad=["w1", "v"])
    assert files(tmp_path) == NAMES
    evaluation = onnx.load(tmp_path / "eval_model.onnx")
    assert names(evaluation.graph.input)[:3] == ["x", "target1", "target2"]
    feeds = {"x": RNG.standard_normal((5, 4)), "target1": RNG.random((5, 3)), "target2": RNG.random((5, 2))}
    feeds = {name: value.astype(np.float32) for name, value in feeds.items()}
    y, z = backpass.InferenceSession(model(TWO, TWO_OUTPUTS).SerializeToString()).run(None, {"x": feeds["x"]})
    weights = {t.name: numpy_helper.to_array(t) for t in model(TWO, TWO_OUTPUTS).graph.initializer}
    feeds |= {n: weights[n] for n in names(evaluation.graph.input) if n in weights}
    (value,) = backpass.InferenceSession(evaluation.SerializeToString()).run(None, feeds)
    wanted = 0.4 * np.mean((y - feeds["target1"]) ** 2) + 0.6 * np.mean((z - feeds["target2"]) ** 2)
    np.testing.assert_allclose(value.item(), wanted, rtol=1e-5)


def test_loss_input_names(tmp_path: Path) -> None:
    two = model(TWO, TWO_OUTPUTS)
    with pytest.raises(RuntimeError, match=r"got 2 \(y, z\).*loss_input_names"):
        generate(tmp_path, two)
    generate(tmp_path, two, loss_input_names=["y"])
    hidden = model(BODY + " p = Softmax(y)", "float[N, 3] p")
    generate(tmp_path, hidden, loss_input_names=["y"], additional_output_names=["p"])
    assert names(onnx.load(tmp_path / "eval_model.onnx").graph.output)[1] == "p"


def test_running_statistics_are_parameters(tmp_path: Path) -> None:
    source = model("n = BatchNormalization<training_mode = 1>(x, g, o, m, s) y = Gemm(n, w1, b1)", "float[N, 8] y")
    del source.graph.node[0].output[1:]
    source.graph.node[0].output.extend(["m2", "s2"])
    for name, value in (("g", 1), ("o", 0), ("m", 0), ("s", 1)):
        source.graph.initializer.append(numpy_helper.from_array(np.full(4, value, np.float32), name))
    generate(tmp_path, source, requires_grad=["w1", "b1", "g", "o"], frozen_params=None)
    evaluation = onnx.load(tmp_path / "eval_model.onnx")
    assert names(evaluation.graph.input)[2:] == ["w1", "b1", "g", "o", "m", "s"]


# ---- Models as files.
def test_path_with_external_data(tmp_path: Path) -> None:
    onnx.save(model(), tmp_path / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0)
    (tmp_path / "out").mkdir()
    generate(tmp_path / "out", str(tmp_path / "m.onnx"))
    generate(tmp_path / "out", tmp_path / "m.onnx", prefix="again_")
    loaded = model()
    onnxblock.load_checkpoint_to_model(tmp_path / "out" / "checkpoint", loaded)
    assert loaded == model()
    unloaded = onnx.load(tmp_path / "m.onnx", load_external_data=False)
    with pytest.raises(RuntimeError, match=r"'w1'.*give the path of the file"):
        generate(tmp_path, unloaded)


def test_weights_beyond_the_limit_stay_in_their_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    onnx.save(model(), tmp_path / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0)
    small, large = tmp_path / "small", tmp_path / "large"
    for folder in (small, large):
        folder.mkdir()
    generate(small, tmp_path / "m.onnx")
    monkeypatch.setattr(_weights, "LIMIT", _weights._ROOM + onnx.load(tmp_path / "m.onnx", None, False).ByteSize() + 8)
    generate(large, tmp_path / "m.onnx")
    for kind in ("training", "eval"):
        one, other = (onnx.load(folder / f"{kind}_model.onnx").graph for folder in (small, large))
        assert names(one.input) == names(other.input)
        assert [n.op_type for n in one.node] == [n.op_type for n in other.node]
        assert names(one.output)[1:] == names(other.output)[1:]
    assert (small / "checkpoint").read_bytes() == (large / "checkpoint").read_bytes()
    with pytest.raises(RuntimeError, match="name them in frozen_params"):
        generate(large, tmp_path / "m.onnx", requires_grad=["b2"], frozen_params=None)


def test_models_in_memory_have_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_weights, "LIMIT", 100)
    with pytest.raises(RuntimeError, match="expected at most 100; save it"):
        generate(tmp_path)


# ---- Checks.
WRONG: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"source": 5}, RuntimeError, "model: got int"),
    ({"source": "nowhere.onnx"}, FileNotFoundError, "nowhere.onnx"),
    ({"requires_grad": ["unused_by_trainin"]}, RuntimeError, "; close to it: unused_by_training"),
    ({"requires_grad": ["nowhere"]}, RuntimeError, "requires_grad: no value of the model is called 'nowhere'"),
    ({"requires_grad": ["h"]}, RuntimeError, "'h': got the output of Gemm '', expected an initializer or an input"),
    ({"requires_grad": "w1"}, RuntimeError, "requires_grad: got 'w1', expected a list"),
    ({"frozen_params": ["w1", "b1"]}, RuntimeError, "in frozen_params: w1"),
    ({"loss": "MSELoss"}, RuntimeError, "loss: got 'MSELoss'"),
    ({"loss": WeightedAverageLoss}, RuntimeError, r"did you mean WeightedAverageLoss\(\)"),
    ({"optimizer": "AdamW"}, TypeError, "optimizer: got 'AdamW'"),
    ({"optimizer": onnxblock.optim.SGD}, TypeError, r"did you mean SGD\(\)"),
    ({"additional_output_names": "y"}, RuntimeError, "additional_output_names: got 'y', expected a list"),
    ({"additional_output_names": ["why"]}, LookupError, "'why'"),
    ({"loss_input_names": ["why"]}, LookupError, "'why'"),
    ({"prefix": 3}, TypeError, "prefix"),
    ({"prefix": "missing/"}, FileNotFoundError, "missing"),
    ({"artifact_directory": "missing"}, FileNotFoundError, "missing"),
    ({"ort_format": True}, backpass.Unsupported, "convert_onnx_models_to_ort"),
    ({"custom_op_library": "missing.so"}, RuntimeError, "does not exist"),
    ({"custom_op_library": __file__}, backpass.Unsupported, r"ModelProto\.functions"),
]


@pytest.mark.parametrize(("options", "error", "message"), WRONG, ids=lambda v: str(v)[:40])
def test_checks_come_before_files(
    options: dict[str, Any], error: type[Exception], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The original had written three files before it looked at the optimizer."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error, match=message):
        generate(tmp_path, **options)
    assert not files(tmp_path)


# ---- Failures.
def contents(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in files(folder)}


@pytest.mark.parametrize("after", range(4))
def test_failed_moves_are_taken_back(after: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    generate(tmp_path, optimizer=None)
    before = contents(tmp_path)
    done = []
    real = os.replace

    def replace(source: Any, target: Any) -> None:
        if len(done) == after:
            done.append(target)
            raise OSError(errno.EIO, "disk on fire")
        done.append(target)
        real(source, target)

    monkeypatch.setattr(_staging.os, "replace", replace)
    with pytest.raises(OSError, match="disk on fire"):
        generate(tmp_path, model(opset=18), loss=LossType.MSELoss)
    assert contents(tmp_path) == before


def test_full_disk_leaves_old_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    generate(tmp_path)
    before = contents(tmp_path)

    def full(parameters: Any, path: Path, nominal_checkpoint: bool = False) -> None:
        path.write_bytes(b"half a check")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(artifacts.onnxblock, "save_checkpoint", full)
    with pytest.raises(OSError, match="No space"):
        generate(tmp_path, loss=LossType.MSELoss)
    assert contents(tmp_path) == before


# ---- Command line.
def test_command_line(tmp_path: Path) -> None:
    onnx.save(model(), tmp_path / "model.onnx")
    (tmp_path / "out").mkdir()
    command = [
        sys.executable,
        "-m",
        "backpass",
        "artifacts",
        str(tmp_path / "model.onnx"),
        "--out",
        str(tmp_path / "out"),
    ]
    options = ["--loss", "CrossEntropyLoss", "--optimizer", "AdamW", "--requires-grad", "[wb]?", "--frozen", "b*"]
    done = subprocess.run([*command, *options], check=True, capture_output=True, text=True)
    assert "2 parameters to train, 2 frozen" in done.stdout
    assert files(tmp_path / "out") == NAMES
    evaluation = onnx.load(tmp_path / "out" / "eval_model.onnx")
    assert names(evaluation.graph.input) == ["x", "labels", "w1", "b1", "w2", "b2"]
    for wrong, message in (("q*", "pattern 'q*'"), ("w9", "'w9'")):
        failed = subprocess.run(
            [*command, "--loss", "MSELoss", "--requires-grad", wrong], capture_output=True, text=True
        )
        assert failed.returncode == 1
        assert failed.stderr.startswith("backpass: ")
        assert message in failed.stderr
        assert "Traceback" not in failed.stderr


def test_command_line_on_files_that_are_no_models(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "junk.onnx").write_bytes(b"\xff\xfejunk")
    broken = model("y = NoSuchOperator(x)")
    onnx.save(broken, tmp_path / "broken.onnx")
    for name in ("junk.onnx", "broken.onnx", "missing.onnx"):
        assert cli.main(["artifacts", str(tmp_path / name), "--loss", "MSELoss", "--out", str(tmp_path)]) == 1
        assert capsys.readouterr().err.startswith("backpass: ")
    assert files(tmp_path) == {"junk.onnx", "broken.onnx"}


def test_command_line_checks_models(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx.save(model(), tmp_path / "good.onnx")
    assert cli.main(["check", str(tmp_path / "good.onnx")]) == 0
    assert cli.main(["check", str(tmp_path / "good.onnx"), "--trainable", "*"]) == 0
    assert capsys.readouterr().out.splitlines() == ["no problems"] * 2
    flawed = BODY.replace("Tanh(h)", "NoSuchOperator(h)").replace("Mul(r", "AnotherOne(r")
    onnx.save(model(flawed), tmp_path / "broken.onnx")
    assert cli.main(["check", str(tmp_path / "broken.onnx")]) == 1
    told = capsys.readouterr().out
    assert "2 problem(s)" in told
    assert "NoSuchOperator" in told
    assert "AnotherOne" in told
    assert cli.main(["check", str(tmp_path / "good.onnx"), "--trainable", "q*"]) == 1
    assert "pattern 'q*'" in capsys.readouterr().err
    for arguments, message in ((["good.onnx", "--trainable", "w9"], "'w9'"), (["missing.onnx"], "No such file")):
        assert cli.main(["check", str(tmp_path / arguments[0]), *arguments[1:]]) == 1
        assert message in capsys.readouterr().out
