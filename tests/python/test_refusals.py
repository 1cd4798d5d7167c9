"""Arguments that cannot be meant: refused where they are given, by name, with what was expected."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import backpass
import numpy as np
import onnx
import pytest
from backpass import _core, artifacts, onnxblock
from backpass.api import (
    CheckpointState,
    LinearLRScheduler,
    Module,
    Optimizer,
    export_parameters,
    import_parameters,
)
from backpass.ortmodule import RuntimeOptions
from onnx import numpy_helper, parser

TEXT = """<ir_version: 8, opset_import: ["": 17]> g (float[N, 4] x) => (float[N, 3] y)
    { h = MatMul(x, w) y = Add(h, b) }"""
X = np.zeros((2, 4), np.float32)


def model(width: int = 3, **renamed: str) -> onnx.ModelProto:
    text = TEXT.replace("3]", f"{width}]")
    for old, new in renamed.items():
        text = text.replace(f", {old})", f", {new})")
    made = parser.parse_model(text)
    for name, shape in (("w", (4, width)), ("b", (width,))):
        made.graph.initializer.append(numpy_helper.from_array(np.ones(shape, np.float32), renamed.get(name, name)))
    return made


def generate(folder: Path, source: onnx.ModelProto, trained: list[str], frozen: list[str]) -> Path:
    folder.mkdir()
    artifacts.generate_artifacts(
        source, requires_grad=trained, frozen_params=frozen, loss=artifacts.LossType.CrossEntropyLoss,
        optimizer=artifacts.OptimType.AdamW, artifact_directory=folder,
    )  # fmt: skip
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return generate(tmp_path_factory.mktemp("refusals") / "own", model(), ["w"], ["b"])


# ---- Numbers.
NUMBERS: list[tuple[str, Any, str]] = [
    ("num_threads", -5, "num_threads: got -5, expected 0 to 1024"),
    ("num_threads", 10**6, "num_threads: got 1000000, expected 0 to 1024"),
    ("binding_cache", 0, "binding_cache: got 0, expected 1 to"),
    ("binding_cache", -1, "binding_cache: got -1, expected 1 to"),
    ("max_memory", -1, "max_memory: got -1, expected a number of bytes"),
    ("max_memory", math.nan, "max_memory: got -?nan, expected a number of bytes"),
    ("max_memory", math.inf, "max_memory: got inf, expected a number of bytes"),
]


@pytest.mark.parametrize(("name", "value", "message"), NUMBERS)
def test_numbers_out_of_range(name: str, value: float, message: str, folder: Path) -> None:
    with pytest.raises(backpass.InvalidInput, match=message):
        backpass.InferenceSession(model(), **{name: value})
    options = backpass.SessionOptions(**{name: value})
    state = CheckpointState.load_checkpoint(folder / "checkpoint")
    with pytest.raises(backpass.InvalidInput, match=message):
        Module(folder / "training_model.onnx", state, session_options=options)


@pytest.mark.parametrize("value", [2**31, -(2**63), 1.5, math.nan, "2", None])
@pytest.mark.parametrize("name", ["num_threads", "binding_cache"])
def test_what_is_no_number_of_32_bits(name: str, value: Any) -> None:
    with pytest.raises(TypeError):
        backpass.SessionOptions(**{name: value})
    with pytest.raises(TypeError):
        setattr(backpass.SessionOptions(), name, value)


@pytest.mark.parametrize("value", [-5, 2000])
def test_threads_of_modules(value: int) -> None:
    with pytest.raises(ValueError, match=f"num_threads: got {value}, expected 0 to 1024"):
        RuntimeOptions(num_threads=value)


@pytest.mark.parametrize(
    ("warmup", "total", "rate"), [(-1, 5, 0.1), (1, -5, 0.1), (1, 5, math.nan), (1, 5, math.inf), (1, 5, 1e300)]
)
def test_schedules(warmup: int, total: int, rate: float, folder: Path) -> None:
    module = Module(folder / "training_model.onnx", CheckpointState.load_checkpoint(folder / "checkpoint"))
    optimizer = Optimizer(folder / "optimizer_model.onnx", module)
    with pytest.raises((backpass.InvalidInput, TypeError)):
        LinearLRScheduler(optimizer, warmup, total, rate)
    for bad in (math.nan, math.inf, -math.inf):
        with pytest.raises(backpass.InvalidInput, match="expected a finite number"):
            optimizer.set_learning_rate(bad)
    assert optimizer.get_learning_rate() == pytest.approx(0.001)


# ---- None, and objects of other kinds.
def test_objects_that_are_not_there(folder: Path, tmp_path: Path) -> None:
    state = CheckpointState.load_checkpoint(folder / "checkpoint")
    module = Module(folder / "training_model.onnx", state)
    nothing: Any = None
    cases = [
        (lambda: Optimizer(folder / "optimizer_model.onnx", nothing), "module: got NoneType, expected a Module"),
        (lambda: Optimizer(folder / "optimizer_model.onnx", nothing), "module"),
        (lambda: Module(folder / "training_model.onnx", nothing), "state: got NoneType, expected a CheckpointState"),
        (lambda: LinearLRScheduler(nothing, 1, 2, 0.1), "optimizer: got NoneType, expected a Optimizer"),
        (lambda: CheckpointState.save_checkpoint(nothing, tmp_path / "c"), "state: got NoneType"),
        (lambda: export_parameters(nothing, tmp_path / "c"), "state: got NoneType"),
        (lambda: import_parameters(nothing, tmp_path / "c"), "state: got NoneType"),
        (lambda: CheckpointState.load_checkpoint(nothing), "NoneType"),
        (lambda: CheckpointState.save_checkpoint(state, nothing), "NoneType"),
        (lambda: module.export_model_for_inferencing(nothing, ["y"]), "NoneType"),
        (lambda: backpass.InferenceSession(nothing), "NoneType"),
        (lambda: backpass.check(nothing), "NoneType"),
        (lambda: backpass.grad(nothing, ["w"]), "NoneType"),
    ]
    for call, message in cases:
        with pytest.raises(TypeError, match=message):
            call()
    for call, message in [
        (lambda: Optimizer(nothing, module), "optimizer model: got none"),
        (lambda: Module(nothing, state), "training model: got none"),
    ]:
        with pytest.raises(backpass.InvalidInput, match=message):
            call()


# ---- Names.
def test_no_names_and_strings_for_lists(folder: Path, tmp_path: Path) -> None:
    session = backpass.InferenceSession(model())
    state = CheckpointState.load_checkpoint(folder / "checkpoint")
    module = Module(folder / "training_model.onnx", state, folder / "eval_model.onnx")
    text: Any = "yy"
    cases = [
        (lambda: backpass.grad(model(), []), "wrt: got no names"),
        (lambda: backpass.grad(model(), text), r"wrt: got the string 'yy', expected a list of names, \['yy'\]"),
        (lambda: backpass.grad(model(), ["w"], text), "outputs: got the string"),
        (lambda: backpass.check(model(), text), "trainable: got the string"),
        (lambda: session.run(text, {"x": X}), "output_names: got the string"),
        (lambda: module.export_model_for_inferencing(tmp_path / "m", text), "graph_output_names: got the string"),
        (lambda: module.export_model_for_inferencing(tmp_path / "m", []), "got no output names"),
    ]
    for call, message in cases:
        with pytest.raises(backpass.InvalidInput, match=message):
            call()
    assert "wrt: got no names" in str(backpass.check(model(), []))


# ---- Feeds.
FEEDS: list[tuple[Any, str]] = [
    ({"x": object()}, "input 'x': got an object of type object, expected an array of numbers or texts"),
    ({"x": {"a": 1}}, "input 'x': got an object of type dict"),
    ({"x": np.array([1, None], object)}, "input 'x': got an array of objects, one of them of type int"),
    ({"x": np.array([b"a", 1.5], object)}, "one of them of type float"),
    ({"x": np.array(["2020-01-01"], "datetime64[D]")}, r"input 'x': got an array of datetime64\[D\], expected"),
    ({"x": [X, object()]}, "input 'x': got an object of type object"),
]


@pytest.mark.parametrize(("feeds", "message"), FEEDS)
def test_feeds_that_are_none(feeds: dict[str, Any], message: str) -> None:
    session = backpass.InferenceSession(model())
    with pytest.raises(backpass.InvalidInput, match=message):
        session.run(None, feeds)
    with pytest.raises(backpass.InvalidInput, match=message):
        session.plan(feeds)


def test_feeds_by_position_and_without_names(folder: Path) -> None:
    module = Module(folder / "training_model.onnx", CheckpointState.load_checkpoint(folder / "checkpoint"))
    with pytest.raises(backpass.InvalidInput, match="input 1: got an object of type object"):
        module(X, object())
    with pytest.raises(backpass.InvalidInput, match="buffer: got an object"):
        module.copy_buffer_to_parameters(object())
    session = backpass.InferenceSession(model())
    for feeds in ([X], X, "x", {5: X}):
        with pytest.raises(TypeError, match="feeds"):
            session.run(None, feeds)  # type: ignore[arg-type]


# ---- Tensors.
def test_tensors_whose_elements_do_not_fit() -> None:
    make = _core.Tensor
    cases = [
        (lambda: make.from_strings(["a"], [2]), r"got 1 elements, expected 2 for shape \[2\]"),
        (lambda: make.from_strings(["a"], []), None),
        (lambda: make.from_strings([], [-1]), "negative extent"),
        (lambda: make.from_strings([5], [1]), "element of type int, expected str or bytes"),  # type: ignore[list-item]
        (lambda: make.from_array(np.zeros(64, np.uint8), 8, [1]), "use from_strings"),
        (lambda: make.from_array(np.zeros(1, np.uint8), 99, [1]), "element type code: got 99"),
        (lambda: make.from_array(np.zeros(1, np.uint8), 1, [2]), "smaller than its shape"),
        (lambda: make.from_strings(["a"], [1]).numpy(), r"use strings\(\)"),
        (lambda: make.from_strings(["a"], [1]).bytes_array(), r"use strings\(\)"),
        (lambda: make.from_array(np.zeros(2, np.uint8), 22, [3]).numpy(), r"use bytes_array\(\)"),
        (lambda: make.from_array(np.zeros(2, np.float32), 1, [2]).strings(), "expected one of strings"),
    ]
    for call, message in cases:
        if message is None:
            call()
            continue
        with pytest.raises(backpass.InvalidInput, match=message):
            call()


def test_strings_that_are_not_utf_8_come_back_as_they_went() -> None:
    session = backpass.InferenceSession(parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (string[N] x) => (string[N] y) { y = Identity(x) }'))  # fmt: skip
    given = np.array([b"gr\xf6\xdfe", b"a\0b", "ü", ""], object)
    (got,) = session.run(None, {"x": given})
    assert [text.encode("utf-8", "surrogateescape") for text in got] == [b"gr\xf6\xdfe", b"a\0b", "ü".encode(), b""]
    np.testing.assert_array_equal(session.run(None, {"x": got})[0], got)


# ---- Checkpoints.
def test_checkpoints_of_other_models_are_refused_when_they_are_loaded(folder: Path, tmp_path: Path) -> None:
    """Everything that does not fit is named at once."""
    other = generate(tmp_path / "other", model(5, b="c"), ["w"], ["c"])
    state = CheckpointState.load_checkpoint(other / "checkpoint")
    with pytest.raises(backpass.InvalidInput) as caught:
        Module(folder / "training_model.onnx", state, folder / "eval_model.onnx")
    lines = str(caught.value).splitlines()
    assert lines[0] == "checkpoint: it does not fit the model; use the one made with it"
    assert "parameter 'c': it is in the checkpoint, but not in the model" in lines
    shape = "parameter 'w': got float32[4,5] in the checkpoint, expected float32[4,3] as in the {} model"
    assert shape.format("training") in lines
    assert shape.format("eval") in lines


@pytest.mark.parametrize(
    ("trained", "frozen", "messages"),
    [
        ([], ["w", "b"], ["'w': the training model has a gradient for it, but it is frozen in the checkpoint"]),
        (["b"], [], ["'w': the training model has a gradient for it, but it is not in the checkpoint"]),
        (["w", "b"], ["extra"], ["'extra': it is in the checkpoint, but not in the model"]),
    ],
    ids=["frozen", "missing", "extra"],
)
def test_parameters_that_differ(trained: list[str], frozen: list[str], messages: list[str], folder: Path) -> None:
    core = _core.CheckpointState()
    shapes = {"w": (4, 3), "b": (3,), "extra": (1,)}
    for name in (*trained, *frozen):
        core.add_parameter(name, backpass._convert.to_engine(np.zeros(shapes[name], np.float32)), name in trained)
    with pytest.raises(backpass.InvalidInput) as caught:
        Module(folder / "training_model.onnx", CheckpointState(core))
    for message in messages:
        assert message in str(caught.value)


def damaged_checkpoint(old: bytes, new: bytes) -> bytes:
    core = _core.CheckpointState()
    core.add_parameter("parametername", backpass._convert.to_engine(np.zeros(1, np.float32)), True)
    core.set_property("propertyname", "propertyvalue")
    content = core.to_bytes()
    assert old in content
    return content.replace(old, new)


@pytest.mark.parametrize(("bytes_", "shown"), [(b"\xff", "?"), (b"\0", "?")])
@pytest.mark.parametrize("what", ["parameter", "property"])
def test_names_of_checkpoints_are_text(what: str, bytes_: bytes, shown: str) -> None:
    name = f"{what}name".encode()
    content = damaged_checkpoint(name, bytes_ + name[1:])
    message = rf"{what} '\{shown}{name[1:].decode()}': got bytes that are not UTF-8"
    with pytest.raises(backpass.InvalidInput, match=message):
        CheckpointState.from_bytes(content)


def test_values_of_properties_are_text() -> None:
    with pytest.raises(backpass.InvalidInput, match="property 'propertyname': got bytes that are not UTF-8"):
        CheckpointState.from_bytes(damaged_checkpoint(b"propertyvalue", b"\xffropertyvalue"))


# ---- Text that is none.
def test_names_and_paths_with_odd_characters(tmp_path: Path) -> None:
    session = backpass.InferenceSession(model())
    with pytest.raises(backpass.InvalidInput, match=r"input 'a\?b\?' does not exist; the model takes 'x'"):
        session.run(None, {"a\0b\x1b": X})
    with pytest.raises(backpass.InvalidInput, match=r"output 'a\?b' does not exist; the model gives 'y'"):
        session.run(["a\0b"], {"x": X})
    with pytest.raises(TypeError, match="feeds: names are strings"):
        session.run(None, {"a\udce9": X})
    path = f"{tmp_path}/caf\udce9"  # how Python shows bytes of a file's name that are not UTF-8
    for load in (backpass.InferenceSession, CheckpointState.load_checkpoint):
        with pytest.raises(backpass.InvalidInput, match=r"caf\?'\] cannot open"):
            load(path)
        with pytest.raises(backpass.InvalidInput, match="''"):
            load("")


def test_graphs_are_shown_whatever_their_strings_hold() -> None:
    made = parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (string[N] x) => (string[M] y)'
        ' { y = StringNormalizer <stopwords = ["a"]> (x) }'
    )
    made.graph.node[0].attribute[0].strings[0] = b"\xff\x00\x1b"
    assert "StringNormalizer" in backpass.InferenceSession(made).graph_text()


def test_blocks_and_operators() -> None:
    with pytest.raises(backpass.InvalidInput, match="Linear: got -1 and 2 features"):
        onnxblock.blocks.Linear(-1, 2)
    with pytest.raises(backpass.InvalidInput, match="since: got -4, expected"):
        backpass.register_operator("refusals", "Op", since=-4)(lambda x: x)
