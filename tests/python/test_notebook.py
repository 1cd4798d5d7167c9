"""What people see and pass around: options by keyword, what objects say of themselves, pickling, bytes, gradients."""

from __future__ import annotations

import copy
import pickle
import re
import warnings
from pathlib import Path
from typing import Any

import backpass
import numpy as np
import onnx
import pytest
import torch
from backpass import artifacts
from backpass._core import SessionOptions
from backpass.api import CheckpointState, LinearLRScheduler, Module, Optimizer
from backpass.ortmodule import ORTModule
from onnx import external_data_helper, numpy_helper, parser

RNG = np.random.default_rng(0)
X = RNG.standard_normal((5, 4)).astype(np.float32)
LABELS = RNG.integers(0, 3, 5)
TEXT = """<ir_version: 8, opset_import: ["": 17]> g (float[N, 4] x) => (float[N, 3] y)
    { h = MatMul(x, w) y = Add(h, b) }"""


def model() -> onnx.ModelProto:
    made = parser.parse_model(TEXT)
    rng = np.random.default_rng(1)
    for name, shape in (("w", (4, 3)), ("b", 3)):
        made.graph.initializer.append(numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32), name))
    return made


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("artifacts")
    artifacts.generate_artifacts(
        model(), requires_grad=["w"], frozen_params=["b"], loss=artifacts.LossType.CrossEntropyLoss,
        optimizer=artifacts.OptimType.AdamW, artifact_directory=made,
    )  # fmt: skip
    return made


@pytest.fixture
def run(folder: Path) -> tuple[CheckpointState, Module, Optimizer, LinearLRScheduler]:
    """A run after two steps."""
    state = CheckpointState.load_checkpoint(folder / "checkpoint")
    module = Module(folder / "training_model.onnx", state, folder / "eval_model.onnx")
    optimizer = Optimizer(folder / "optimizer_model.onnx", module)
    scheduler = LinearLRScheduler(optimizer, 2, 10, 0.1)
    for _ in range(2):
        module(X, LABELS)
        optimizer.step()
        scheduler.step()
        module.lazy_reset_grad()
    return state, module, optimizer, scheduler


# ---- Options.
def test_options_are_keywords() -> None:
    options = SessionOptions(profile=True, num_threads=1)
    assert options.profile
    shown = "SessionOptions(binding_cache=16, cancel=None, disabled_passes=[], max_memory=0.0, num_threads=1, opti"
    assert repr(options).startswith(shown)
    session = backpass.InferenceSession(model(), options)
    session.run(None, {"x": X})
    assert session.take_profile().steps
    with pytest.raises(TypeError):
        SessionOptions(profil=True)  # type: ignore[call-arg]
    for again in (copy.copy(options), copy.deepcopy(options), pickle.loads(pickle.dumps(options))):
        assert repr(again) == repr(options)
        assert again is not options


def test_providers_are_accepted_with_a_note() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        backpass.InferenceSession(model(), providers=["CPUExecutionProvider"])
    with pytest.warns(UserWarning, match="got CUDAExecutionProvider; ignored, Backpass runs on the CPU") as caught:
        backpass.InferenceSession(model(), providers=["CUDAExecutionProvider", "CPUExecutionProvider"])
    assert len(caught) == 1
    assert caught[0].filename == __file__


# ---- What objects say of themselves.
def test_sessions_show_what_they_take_and_give(tmp_path: Path) -> None:
    proto = model()
    session = backpass.InferenceSession(proto)
    size = proto.ByteSize()
    wanted = f"InferenceSession({size} bytes, inputs=[x: tensor(float)[N,4]], outputs=[y: tensor(float)[N,3]])"
    assert repr(session) == wanted
    onnx.save(proto, tmp_path / "m.onnx")
    path = tmp_path / "m.onnx"
    assert repr(backpass.InferenceSession(path)).startswith(f"InferenceSession('{path}', inputs=")


def test_what_trains_shows_where_it_is(run: Any) -> None:
    state, module, optimizer, scheduler = run
    state.properties["epoch"] = 3
    assert repr(state) == (
        "CheckpointState(2 parameters, 1 of them trained, 15 elements, 'group0' at step 2, properties={'epoch': 3})"
    )
    assert repr(module) == (
        "Module(training, inputs=[x: tensor(float)[N,4], labels: tensor(int64)[N]], "
        f"outputs=[{module.output_names()[0]}: tensor(float)[]], 2 parameters)"
    )
    assert repr(module.eval()).startswith("Module(eval, ")
    assert repr(optimizer) == "Optimizer(learning_rate=0.1, 2 steps done)"
    assert repr(scheduler) == "LinearLRScheduler(warmup_step_count=2, total_step_count=10, initial_lr=0.1)"
    assert repr(state.parameters["w"]) == "Parameter(name=w, requires_grad=True)"
    assert repr(backpass._convert.to_engine(X)) == "Tensor(float32[5,4])"


def public_objects(run: Any) -> dict[str, Any]:
    session = backpass.InferenceSession(model(), profile=True)
    session.run(None, {"x": X})
    request = backpass._core.GradientRequest()
    state = run[0]
    objects = [session, session.get_inputs()[0], session._session.inputs()[0], session.plan({"x": X}), *run, request,
               session.take_profile(), backpass.check(model()), state.parameters, state.properties,
               state._core.resume, *state._core.optimizer_groups, SessionOptions(),
               run[1].get_contiguous_parameters(), session.run_tensors(None, {"x": X})[0]]  # fmt: skip
    return {type(o).__module__ + "." + type(o).__name__: o for o in objects}


def test_nothing_shows_an_address(run: Any) -> None:
    bare = [name for name, value in public_objects(run).items() if re.search(r" at 0x[0-9a-f]+>|object>$", repr(value))]
    assert bare == []


def test_every_public_class_shows_itself() -> None:
    places = (backpass, backpass.api, backpass.custom)
    classes = {value for place in places for name, value in vars(place).items()
               if isinstance(value, type) and value.__module__.startswith("backpass") and name[0] != "_"}  # fmt: skip
    assert not [kind.__name__ for kind in classes if kind.__repr__ is object.__repr__]


def test_flags_show_whether_they_are_set() -> None:
    flag = backpass.CancelFlag()
    assert repr(flag) == "CancelFlag(clear)"
    flag.set()
    assert repr(flag) == "CancelFlag(set)"


def test_values_of_gradient_rules_are_shown() -> None:
    shown: list[Any] = []

    def rule(g: Any) -> list[Any]:
        shown.extend([g.x(), repr(g.x()), repr(g)])
        return [g.dy()]

    backpass.register_operator("notebook", "Same")(lambda x: x)
    backpass.register_gradient("notebook", "Same")(rule)
    source = TEXT.replace('["": 17]', '["": 17, "notebook": 1]').replace("MatMul(x, w)", "notebook.Same(x)")
    backpass.grad(parser.parse_model(source.replace("Add(h, b)", "Identity(h)").replace("3]", "4]")), ["x"])
    assert shown[1:] == ["Value(float32, shape=(N, 4))", "GradientGraph([notebook.Same 'h'], attributes={})"]
    assert repr(shown[0]) == "Value(of unknown type)"  # the rule is over


def test_reports_are_shown_by_notebooks() -> None:
    session = backpass.InferenceSession(model(), profile=True)
    session.run(None, {"x": X})
    wrong = parser.parse_model(TEXT.replace("MatMul(x, w)", "Frobnicate<a = 1>(x)"))
    wrapped = ORTModule(torch.nn.Linear(4, 3))
    reports = {
        "plan": (session.plan({"x": X}), "arena: "),
        "profile": (session.take_profile(), "<td style"),
        "check": (backpass.check(wrong), "<td style"),
        "no problem": (backpass.check(model()), "no problems"),
        "explain": (wrapped.explain(), "ORTModule(Linear)"),
    }
    for name, (report, part) in reports.items():
        shown = report._repr_html_()
        assert part in shown, name
        assert "<script" not in shown
    assert "'&lt;b&gt;'" in backpass._html.text("'<b>'").replace("&#x27;", "'")


# ---- Pickling, and bytes.
def test_sessions_are_pickled_with_their_weights(tmp_path: Path) -> None:
    proto = model()
    expected = backpass.InferenceSession(proto).run(None, {"x": X})[0]
    external_data_helper.convert_model_to_external_data(proto, location="weights", size_threshold=0)
    onnx.save(proto, tmp_path / "m.onnx")
    session = backpass.InferenceSession(tmp_path / "m.onnx", num_threads=1)
    packed = pickle.dumps(session)
    content = session.to_bytes()
    (tmp_path / "m.onnx").unlink()
    (tmp_path / "weights").unlink()
    again = pickle.loads(packed)
    assert repr(again._options) == repr(session._options)
    for restored in (again, backpass.InferenceSession(content), backpass.InferenceSession(bytearray(content))):
        np.testing.assert_array_equal(restored.run(None, {"x": X})[0], expected)
    onnx.save(parser.parse_model(TEXT.replace("w)", "x)")), tmp_path / "m.onnx")
    with pytest.raises(backpass.InvalidInput, match="was changed after"):
        pickle.dumps(session)


def test_runs_are_pickled_and_go_on_the_same(run: Any) -> None:
    state, module, _, _ = run
    state.properties["epoch"] = 3
    copies = pickle.loads(pickle.dumps(run))
    assert copies[0].properties["epoch"] == 3
    assert copies[1]._state is copies[0]
    losses = []
    for _, own, optimizer, scheduler in (run, copies):
        for _ in range(3):
            losses.append(float(own(X, LABELS)))
            optimizer.step()
            scheduler.step()
            own.lazy_reset_grad()
    assert losses[:3] == losses[3:]
    np.testing.assert_array_equal(state.parameters["w"].data, copies[0].parameters["w"].data)
    assert not pickle.loads(pickle.dumps(module.eval())).training


def test_states_go_to_bytes_and_back(run: Any, tmp_path: Path) -> None:
    state = run[0]
    again = CheckpointState.from_bytes(state.to_bytes(include_optimizer_state=True))
    assert again._core.optimizer_groups[0].step == 2
    assert CheckpointState.from_bytes(state.to_bytes())._core.optimizer_groups == []
    CheckpointState.save_checkpoint(state, tmp_path / "c", include_optimizer_state=True)
    assert (tmp_path / "c").read_bytes() == state.to_bytes(include_optimizer_state=True)
    np.testing.assert_array_equal(again.parameters["w"].data, state.parameters["w"].data)
    again.parameters["w"].data[:] = 0
    assert state.parameters["w"].data.any()


# ---- Gradients can be set; parameters come as an OrtValue.
def test_gradients_can_be_set(run: Any) -> None:
    state, module, optimizer, _ = run
    parameter = state.parameters["w"]
    module(X, LABELS)
    clipped = np.clip(parameter.grad, -0.01, 0.01)
    parameter.grad = clipped
    np.testing.assert_array_equal(parameter.grad, clipped)
    before = parameter.data.copy()
    parameter.grad = None
    assert not parameter.grad.any()
    parameter.grad = torch.ones(4, 3)
    optimizer.step()
    assert (parameter.data < before).all()
    shapes = r"float32\[2, 3\], expected float32\[4, 3\]"
    parameter.grad = list(clipped)
    np.testing.assert_array_equal(parameter.grad, clipped)
    for value, message in ((clipped[:2], shapes), (clipped.astype(float), "float64"), ([[1.0]], "float64")):
        with pytest.raises(backpass.InvalidInput, match=message):
            parameter.grad = value
    with pytest.raises(backpass.InvalidInput, match="'b': has no gradient to set: it is frozen"):
        state.parameters["b"].grad = np.zeros(3, np.float32)


def test_gradients_need_a_module(folder: Path) -> None:
    state = CheckpointState.load_checkpoint(folder / "checkpoint")
    with pytest.raises(backpass.InvalidInput, match="belongs to no Module yet"):
        state.parameters["w"].grad = np.zeros((4, 3), np.float32)


def test_contiguous_parameters_answer_as_an_ort_value(run: Any) -> None:
    module = run[1]
    flat = module.get_contiguous_parameters()
    assert (flat.shape(), flat.data_type(), flat.element_type()) == ([15], "tensor(float)", 1)
    assert flat.device_name() == "cpu"
    assert flat.is_tensor()
    assert flat.has_value()
    assert flat.data_ptr() == flat.numpy().ctypes.data
    np.testing.assert_array_equal(np.from_dlpack(flat), flat.numpy())
    np.testing.assert_array_equal(np.asarray(flat), flat.numpy())
    assert torch.from_dlpack(flat).shape == (15,)
    flat.update_inplace(np.zeros(15, np.float32))
    module.copy_buffer_to_parameters(flat, trainable_only=False)
    assert not module.get_contiguous_parameters().numpy().any()
