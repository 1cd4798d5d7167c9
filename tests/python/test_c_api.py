"""The C interface through ctypes: every function of the header, what it gives, and what it says when misused."""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import long_runs
import numpy as np
import onnx
import pytest
from backpass import _core, artifacts
from backpass._convert import to_engine
from backpass.api import CheckpointState, Module, Optimizer
from onnx import numpy_helper, parser

HEADER = Path(__file__).parents[2] / "include/backpass/backpass.h"
LIBRARY = Path(_core.__file__).parent / "lib/libbackpass.so"


def declared() -> dict[str, tuple[str, list[str]]]:
    """Result and parameters of every function in the header."""
    text = re.sub(r"/\*.*?\*/", "", HEADER.read_text(), flags=re.S)
    found = re.findall(r"BP_API\s+([\w\s]+?[\s*]+)(bp_\w+)\(([^)]*)\);", text)
    return {
        name: (kind.strip(), [] if p.strip() == "void" else [a.strip() for a in p.split(",")])
        for kind, name, p in found
    }


def c_type(parameter: str) -> Any:
    if "*" in parameter:
        return ctypes.c_void_p
    kinds = {"size_t": ctypes.c_size_t, "int64_t": ctypes.c_int64, "float": ctypes.c_float, "double": ctypes.c_double}
    return kinds.get(parameter.split()[0], ctypes.c_int)


class Library:
    """The functions by name; anything but success raises with the message. Remembers what was called."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(str(LIBRARY))
        self.called: set[str] = set()
        for name, (kind, parameters) in declared().items():
            function = getattr(self._library, name)
            function.argtypes = [c_type(p) for p in parameters]
            function.restype = {"BpStatus": ctypes.c_int, "const char*": ctypes.c_char_p}.get(kind)

    def __getattr__(self, name: str) -> Any:
        function = getattr(self._library, f"bp_{name}")

        def call(*arguments: Any) -> Any:
            self.called.add(f"bp_{name}")
            result = function(*arguments)
            if function.restype is ctypes.c_int and result != 0:
                raise RuntimeError(f"{result}: {self._library.bp_last_error().decode()}")
            return result

        return call

    def get(self, name: str, kind: Any, *arguments: Any) -> Any:
        """The value a function writes to its last parameter."""
        value = kind()
        getattr(self, name)(*arguments, ctypes.byref(value))
        return value if kind is ctypes.c_void_p else value.value

    def tensor(self, array: np.ndarray) -> Any:
        code = {"float32": 1, "int64": 7}[array.dtype.name]
        dims = (ctypes.c_int64 * array.ndim)(*array.shape)
        return self.get("create_tensor", ctypes.c_void_p, code, dims, array.ndim, array.ctypes.data)

    def array(self, tensor: Any) -> np.ndarray:
        """A view of a float32 tensor."""
        assert self.get("tensor_dtype", ctypes.c_int, tensor) == 1
        dims, rank = ctypes.POINTER(ctypes.c_int64)(), ctypes.c_size_t()
        self.tensor_shape(tensor, ctypes.byref(dims), ctypes.byref(rank))
        shape = [dims[i] for i in range(rank.value)]
        size = self.get("tensor_size", ctypes.c_int64, tensor)
        assert size == int(np.prod(shape))
        data = self.get("tensor_data", ctypes.c_void_p, tensor)
        return np.ctypeslib.as_array(ctypes.cast(data, ctypes.POINTER(ctypes.c_float)), (size,)).reshape(shape)

    def run_with(self, name: str, session: Any, inputs: list[Any], count: int) -> list[Any]:
        given = (ctypes.c_void_p * len(inputs))(*(t.value for t in inputs))
        outputs = (ctypes.c_void_p * count)()
        getattr(self, name)(session, given, len(inputs), outputs, count)
        return [ctypes.c_void_p(o) for o in outputs]

    def names(self, kind: str, session: Any) -> list[str]:
        count = self.get(f"get_{kind}_count", ctypes.c_size_t, session)
        return [self.get(f"get_{kind}_name", ctypes.c_char_p, session, i).decode() for i in range(count)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("c")
    text = """<ir_version: 8, opset_import: ["": 17]> g (float[N, 4] x) => (float[N, 3] y)
    { h = MatMul(x, w) y = Add(h, b) }"""
    model = parser.parse_model(text)
    rng = np.random.default_rng(0)
    for name, shape in (("w", (4, 3)), ("b", 3)):
        model.graph.initializer.append(numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32), name))
    onnx.save(model, made / "forward.onnx")
    artifacts.generate_artifacts(
        model,
        requires_grad=["w"],
        frozen_params=["b"],
        loss=artifacts.LossType.CrossEntropyLoss,
        optimizer=artifacts.OptimType.AdamW,
        artifact_directory=made,
    )
    return made


X = np.random.default_rng(1).standard_normal((5, 4)).astype(np.float32)
LABELS = np.random.default_rng(1).integers(0, 3, 5)


def by_python(folder: Path, steps: int) -> tuple[list[float], float, np.ndarray]:
    state = CheckpointState.load_checkpoint(folder / "checkpoint")
    module = Module(folder / "training_model.onnx", state, folder / "eval_model.onnx")
    optimizer = Optimizer(folder / "optimizer_model.onnx", module)
    optimizer.set_learning_rate(0.125)
    losses = []
    for _ in range(steps):
        losses.append(float(module(X, LABELS)))
        optimizer.step()
        module.lazy_reset_grad()
    return losses, float(module.eval()(X, LABELS)), np.array(state.parameters["w"].data)


def load(c: Library, folder: Path, buffers: bool) -> tuple[Any, Any]:
    kinds = ("training", "eval", "optimizer")
    if not buffers:
        state = c.get("load_checkpoint", ctypes.c_void_p, os.fsencode(folder / "checkpoint"))
        paths = [os.fsencode(folder / f"{kind}_model.onnx") for kind in kinds]
        return state, c.get("create_training_session", ctypes.c_void_p, state, *paths, None)
    stored = (folder / "checkpoint").read_bytes()
    state = c.get("load_checkpoint_from_buffer", ctypes.c_void_p, stored, len(stored))
    models = [(folder / f"{kind}_model.onnx").read_bytes() for kind in kinds]
    sized = [item for model in models for item in (model, len(model))]
    return state, c.get("create_training_session_from_buffer", ctypes.c_void_p, state, *sized, None)


def train(c: Library, session: Any, steps: int) -> tuple[list[float], float]:
    inputs = [c.tensor(X), c.tensor(LABELS)]
    losses = []
    for step in range(steps):
        together = step % 2 == 1
        (loss,) = c.run_with("train_and_update" if together else "train_step", session, inputs, 1)
        losses.append(float(c.array(loss).ravel()[0]))
        c.release_tensor(loss)
        if not together:
            c.optimizer_step(session)
            c.lazy_reset_grad(session)
    (loss,) = c.run_with("eval_step", session, inputs, 1)
    evaluated = float(c.array(loss).ravel()[0])
    for tensor in (loss, *inputs):
        c.release_tensor(tensor)
    return losses, evaluated


def check_parameters(c: Library, state: Any, session: Any, trained: np.ndarray) -> None:
    count = c.get("get_parameter_count", ctypes.c_size_t, state)
    assert {c.get("get_parameter_name", ctypes.c_char_p, state, i).decode() for i in range(count)} == {"w", "b"}
    dtype, dims, rank = ctypes.c_int(), ctypes.POINTER(ctypes.c_int64)(), ctypes.c_size_t()
    c.get_parameter_type_and_shape(state, b"w", ctypes.byref(dtype), ctypes.byref(dims), ctypes.byref(rank))
    assert (dtype.value, [dims[i] for i in range(rank.value)]) == (1, [4, 3])
    view = c.get("get_parameter", ctypes.c_void_p, state, b"w")
    np.testing.assert_array_equal(c.array(view), trained)
    assert c.get("get_parameters_size", ctypes.c_int64, session, 1) == 12
    flat = np.zeros(12, np.float32)
    buffer = c.tensor(flat)
    c.copy_parameters_to_buffer(session, buffer, 1)
    np.testing.assert_array_equal(flat, trained.ravel())
    flat += 1
    c.copy_buffer_to_parameters(session, buffer, 1)
    np.testing.assert_array_equal(c.array(view), trained + 1)
    value = c.tensor(trained)
    c.update_parameter(state, b"w", value)
    np.testing.assert_array_equal(c.array(view), trained)
    for tensor in (view, buffer, value):
        c.release_tensor(tensor)


def check_properties(c: Library, state: Any, path: Path) -> None:
    c.add_property(state, b"i", 0, ctypes.byref(ctypes.c_int64(2**40)))
    c.add_property(state, b"f", 1, ctypes.byref(ctypes.c_float(0.5)))
    c.add_property(state, b"s", 2, b"text")
    c.save_checkpoint(state, os.fsencode(path), 1)
    loaded = c.get("load_checkpoint", ctypes.c_void_p, os.fsencode(path))
    kinds = [(b"i", 0, ctypes.c_int64, 2**40), (b"f", 1, ctypes.c_float, 0.5), (b"s", 2, None, b"text")]
    for name, code, kind, expected in kinds:
        found, value = ctypes.c_int(), ctypes.c_void_p()
        c.get_property(loaded, name, ctypes.byref(found), ctypes.byref(value))
        assert found.value == code
        address = value.value or 0
        assert (ctypes.string_at(address) if kind is None else kind.from_address(address).value) == expected
    c.release_checkpoint(loaded)


def check_inference(c: Library, session: Any, path: Path, trained: np.ndarray, folder: Path) -> None:
    wanted = (ctypes.c_char_p * 1)(b"y")
    c.export_model_for_inferencing(session, os.fsencode(path), wanted, 1)
    inference = c.get("create_session", ctypes.c_void_p, os.fsencode(path), None)
    assert (c.names("input", inference), c.names("output", inference)) == (["x"], ["y"])
    x = c.tensor(X)
    (y,) = c.run_with("run", inference, [x], 1)
    bias = numpy_helper.to_array(onnx.load(folder / "forward.onnx").graph.initializer[1])
    np.testing.assert_allclose(c.array(y), X @ trained + bias, rtol=1e-5, atol=1e-6)
    for tensor in (x, y):
        c.release_tensor(tensor)
    c.release_session(inference)


class SessionOptions(ctypes.Structure):
    _fields_ = (
        ("num_threads", ctypes.c_int),
        ("binding_cache", ctypes.c_int),
        ("time_limit", ctypes.c_double),
        ("cancel", ctypes.c_void_p),
        ("disabled_passes", ctypes.c_char_p),
        ("max_memory", ctypes.c_double),
        ("sparse_threshold", ctypes.c_double),
    )


def check_cancel(c: Library, folder: Path) -> None:
    """A flag stops a run that another thread has begun; the session works afterwards."""
    (folder / "loop.onnx").write_bytes(long_runs.model(long_runs.LOOP))
    flag = c.get("create_cancel_flag", ctypes.c_void_p)
    options = SessionOptions(cancel=flag)
    path = os.fsencode(folder / "loop.onnx")
    session = c.get("create_session", ctypes.c_void_p, path, ctypes.byref(options))
    count, x = np.array(long_runs.FOREVER), np.ones(4, np.float32)  # whose memory the tensors use
    inputs = [c.tensor(count), c.tensor(x)]
    timer = threading.Timer(0.1, lambda: c.set_cancel_flag(flag, 1))
    timer.start()
    with pytest.raises(RuntimeError, match=r"^4: \[\w+ '.*'\] cancelled: its cancel flag is set"):
        c.run_with("run", session, inputs, 1)
    timer.join()
    c.set_cancel_flag(flag, 0)
    c.release_cancel_flag(flag)  # the session keeps what it needs
    count[...] = 2
    (y,) = c.run_with("run", session, inputs, 1)
    np.testing.assert_array_equal(c.array(y), np.full(4, 3, np.float32))
    c.release_session(session)


def test_passes_are_switched_off_by_name(folder: Path) -> None:
    c = Library()
    (folder / "loop.onnx").write_bytes(long_runs.model(long_runs.LOOP))
    path = os.fsencode(folder / "loop.onnx")
    known = SessionOptions(disabled_passes=b"fuse_tiles, fuse_linear")
    c.release_session(c.get("create_session", ctypes.c_void_p, path, ctypes.byref(known)))
    with pytest.raises(RuntimeError, match=r"disabled_passes: got 'fuse_all'.*fuse_tiles"):
        c.get("create_session", ctypes.c_void_p, path, ctypes.byref(SessionOptions(disabled_passes=b"fuse_all")))


def test_a_time_limit(folder: Path) -> None:
    c = Library()
    (folder / "loop.onnx").write_bytes(long_runs.model(long_runs.LOOP))
    path = os.fsencode(folder / "loop.onnx")
    limited = c.get("create_session", ctypes.c_void_p, path, ctypes.byref(SessionOptions(time_limit=0.1)))
    count, x = np.array(long_runs.FOREVER), np.ones(4, np.float32)  # whose memory the tensors use
    inputs = [c.tensor(count), c.tensor(x)]
    with pytest.raises(RuntimeError, match=r"^4: \[\w+ '.*'\] time limit: got .* s, expected at most 0.1 s"):
        c.run_with("run", limited, inputs, 1)
    c.release_session(limited)


@pytest.mark.parametrize("buffers", [False, True], ids=["files", "buffers"])
def test_training_is_that_of_python_bit_for_bit(buffers: bool, folder: Path, tmp_path: Path) -> None:
    losses, evaluated, trained = by_python(folder, 5)
    c = Library()
    assert c.version().decode() == (HEADER.parents[2] / "VERSION").read_text().strip()
    assert c.last_error() is not None
    c.set_seed(1)
    state, session = load(c, folder, buffers)
    assert c.names("training_input", session) == c.names("eval_input", session) == ["x", "labels"]
    assert len(c.names("training_output", session)) == len(c.names("eval_output", session)) == 1
    c.set_learning_rate(session, 0.125)
    assert c.get("get_learning_rate", ctypes.c_float, session) == 0.125
    assert train(c, session, 5) == (losses, evaluated)
    check_parameters(c, state, session, trained)
    check_properties(c, state, tmp_path / "checkpoint")
    check_inference(c, session, tmp_path / "inference.onnx", trained, folder)
    c.register_linear_lr_scheduler(session, 10, 20, 0.5)
    c.scheduler_step(session)
    assert c.get("get_learning_rate", ctypes.c_float, session) == 0.25
    check_parallel(c, session)
    c.release_checkpoint(state)  # the session keeps what it needs
    assert len(train(c, session, 1)[0]) == 1
    c.release_training_session(session)
    check_cancel(c, tmp_path)
    other = {"bp_load_checkpoint", "bp_create_training_session"}
    unused = {f"{name}_from_buffer" for name in other} if not buffers else other - {"bp_load_checkpoint"}
    assert {name for name in declared() if name not in OF_TRAINERS} - c.called == unused


class Communicator(ctypes.Structure):
    _fields_ = (
        ("context", ctypes.c_void_p),
        ("rank", ctypes.c_int),
        ("size", ctypes.c_int),
        *((name, ctypes.c_void_p) for name in ("broadcast", "start_allreduce", "wait", "allgather", "reduce_scatter")),
    )


def check_parallel(c: Library, session: Any) -> None:
    """Two processes that have the same: gradients are added up, and their average is what each has."""
    pointer, count, number = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int
    sums = []

    @ctypes.CFUNCTYPE(number, pointer, pointer, count, number, number)
    def broadcast(_: Any, data: Any, size: int, kind: int, root: int) -> int:
        return 0

    @ctypes.CFUNCTYPE(number, pointer, pointer, count, number)
    def start_allreduce(_: Any, data: Any, size: int, kind: int) -> int:
        values = np.ctypeslib.as_array(ctypes.cast(data, ctypes.POINTER(ctypes.c_float)), (size,))
        values *= 2
        sums.append(size)
        return int(kind != 1)

    @ctypes.CFUNCTYPE(number, pointer)
    def wait(_: Any) -> int:
        return 0

    @ctypes.CFUNCTYPE(number, pointer, pointer, count, number, pointer)
    def allgather(_: Any, mine: Any, size: int, kind: int, into: Any) -> int:
        bytes_of_one = {1: 4, 7: 8}[kind] * size
        ctypes.memmove(into, mine, bytes_of_one)
        ctypes.memmove(into + bytes_of_one, mine, bytes_of_one)
        return 0

    functions = (broadcast, start_allreduce, wait, allgather)
    table = Communicator(None, 0, 2, *(ctypes.cast(f, pointer) for f in functions), None)
    c.set_communicator(session, ctypes.byref(table), None)
    c.set_exchanges(session, 0)
    train(c, session, 1)
    assert len(sums) == 1  # by the update
    c.set_exchanges(session, 1)
    c.gather_optimizer_state(session)
    LEFT_OPEN.append((functions, session))  # which goes on to call them


LEFT_OPEN: list[Any] = []
OF_TRAINERS = {"bp_get_default_settings", "bp_get_weights_of_model", *(n for n in declared() if "trainer" in n)}


class WeightSettings(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_double) for name in ("rate_scale", "alpha", "beta", "epsilon", "weight_decay")),
        *((name, ctypes.c_int) for name in ("correct_bias", "decays_after", "decays_gradient")),
        *((name, ctypes.c_double) for name in ("max_norm", "ratio_min", "ratio_max")),
    )


class NamedSettings(ctypes.Structure):
    _fields_ = (("weight", ctypes.c_char_p), ("settings", WeightSettings))


class TrainerOptions(ctypes.Structure):
    _fields_ = (
        ("algorithm", ctypes.c_int),
        ("defaults", ctypes.POINTER(WeightSettings)),
        ("by_weight", ctypes.POINTER(NamedSettings)),
        ("by_weight_count", ctypes.c_size_t),
        ("accumulation_steps", ctypes.c_int64),
        *((name, ctypes.c_int) for name in ("clips_gradients", "skips_non_finite", "scales_loss")),
        ("session", ctypes.POINTER(SessionOptions)),
        ("communicator", ctypes.c_void_p),
        ("parallel", ctypes.c_void_p),
    )


ALGORITHMS = {"adam": 0, "sgd": 1, "lamb": 2}
TRAINED = """<ir_version: 8, opset_import: ["": 17]> g (float[N, 4] x, int64[N] labels) => (float loss, float[N, 3] y)
{ h = MatMul(x, w) y = Add(h, b) loss = SoftmaxCrossEntropyLoss <reduction = "mean"> (y, labels) }"""


@pytest.fixture
def trained_model(tmp_path: Path) -> Path:
    model = parser.parse_model(TRAINED)
    rng = np.random.default_rng(0)
    for name, shape in (("w", (4, 3)), ("b", 3)):
        model.graph.initializer.append(numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32), name))
    onnx.save(model, tmp_path / "model.onnx")
    return tmp_path / "model.onnx"


def train_in_python(path: Path, algorithm: str, steps: int) -> tuple[list[float], float, np.ndarray]:
    options, defaults, other = _core.TrainerOptions(), _core.WeightSettings(), _core.WeightSettings()
    options.algorithm = algorithm
    defaults.weight_decay, defaults.max_norm = 0.1, 0.25
    other.rate_scale, other.max_norm = 0.5, 0.25
    options.defaults, options.by_weight = defaults, {"b": other}
    options.accumulation_steps, options.clips_gradients = 2, True
    state = _core.Trainer.state_of(os.fspath(path), "loss", [])
    trainer = _core.Trainer(state, options)
    program = trainer.add_model(os.fspath(path), "loss", ["loss"])
    losses = []
    for _ in range(steps):
        (loss,), *_ = trainer.train_step(program, [to_engine(X), to_engine(LABELS)], 0.125)
        losses.append(float(loss.numpy()))
    return losses, trainer.last_norm, np.array(state.parameter("w").numpy())


def by_weight(c: Library) -> tuple[WeightSettings, NamedSettings]:
    defaults, other = WeightSettings(), WeightSettings()
    for settings in (defaults, other):
        c.get_default_settings(ctypes.byref(settings))
        settings.max_norm = 0.25
    defaults.weight_decay, other.rate_scale = 0.1, 0.5
    return defaults, NamedSettings(b"b", other)


def trainer_inputs(c: Library, trainer: Any, program: int, kind: str) -> list[str]:
    count = c.get(f"trainer_get_{kind}_count", ctypes.c_size_t, trainer, program)
    return [c.get(f"trainer_get_{kind}_name", ctypes.c_char_p, trainer, program, i).decode() for i in range(count)]


@pytest.mark.parametrize("algorithm", list(ALGORITHMS))
def test_a_trainer_is_that_of_python_bit_for_bit(algorithm: str, trained_model: Path, tmp_path: Path) -> None:
    losses, norm, trained = train_in_python(trained_model, algorithm, 6)
    c, path, wanted = Library(), os.fsencode(trained_model), (ctypes.c_char_p * 1)(b"loss")
    defaults, named = by_weight(c)
    options = TrainerOptions(ALGORITHMS[algorithm], ctypes.pointer(defaults), ctypes.pointer(named), 1, 2, 1)
    state = c.get("get_weights_of_model", ctypes.c_void_p, path, b"loss", None, 0)
    trainer = c.get("create_trainer", ctypes.c_void_p, state, ctypes.byref(options))
    program = c.get("trainer_add_model", ctypes.c_size_t, trainer, path, b"loss", wanted, 1)
    other = (ctypes.c_char_p * 1)(b"y")
    evaluation = c.get("trainer_add_eval_model", ctypes.c_size_t, trainer, path, other, 1)
    assert trainer_inputs(c, trainer, program, "input") == ["x", "labels"]
    assert trainer_inputs(c, trainer, evaluation, "eval_input") == ["x"]
    tensors = [c.tensor(X), c.tensor(LABELS)]
    inputs = (ctypes.c_void_p * 2)(*(t.value for t in tensors))
    got, updates = [], []
    for _ in losses:
        outputs, result = (ctypes.c_void_p * 1)(), (ctypes.c_int * 2)()
        c.trainer_train_step(trainer, program, inputs, 2, 0.125, outputs, 1, result)
        got.append(float(c.array(ctypes.c_void_p(outputs[0]))))
        updates.append(tuple(result))
        c.release_tensor(outputs[0])
    assert got == losses
    assert updates == [(0, 1), (1, 1)] * 3
    assert c.get("trainer_get_last_norm", ctypes.c_double, trainer) == norm
    weight = c.get("get_parameter", ctypes.c_void_p, state, b"w")
    np.testing.assert_array_equal(c.array(weight), trained)
    outputs = (ctypes.c_void_p * 1)()
    c.trainer_eval_step(trainer, evaluation, inputs, 1, outputs, 1)
    assert c.array(ctypes.c_void_p(outputs[0])).shape == (5, 3)
    with pytest.raises(RuntimeError, match="expected NULL, since results are new tensors"):
        c.trainer_eval_step(trainer, evaluation, inputs, 1, outputs, 1)
    check_counters(c, trainer)
    c.release_trainer(trainer)
    c.save_checkpoint(state, os.fsencode(tmp_path / "checkpoint"), 1)
    c.release_checkpoint(state)
    assert c.called >= OF_TRAINERS


def check_counters(c: Library, trainer: Any) -> None:
    assert c.get("trainer_get_steps", ctypes.c_int64, trainer) == 6
    assert c.get("trainer_get_updates", ctypes.c_int64, trainer) == 3
    c.trainer_set_steps(trainer, 8)
    c.trainer_set_updates(trainer, 4)
    assert c.get("trainer_get_steps", ctypes.c_int64, trainer) == 8
    assert c.get("trainer_get_updates", ctypes.c_int64, trainer) == 4
    c.trainer_set_loss_scale(trainer, 16.0)
    assert c.get("trainer_get_loss_scale", ctypes.c_double, trainer) == 16
    c.trainer_drop_gradients(trainer)
    c.trainer_gather_optimizer_state(trainer)  # alone: all of it is there


MISUSED = """
import sys
sys.path.insert(0, {folder!r})
from test_c_api import Library, c_type, declared
c = Library()
for name, (kind, parameters) in declared().items():
    try:
        getattr(c, name.removeprefix("bp_"))(*(None if "*" in p else 0 for p in parameters))
    except RuntimeError as error:
        print(name, error)
    else:
        print(name, "done")
"""


@pytest.mark.parametrize("given", [[], [np.zeros(7, np.float32)], [np.zeros((), np.int64)]])
def test_a_step_refused_for_its_outputs_adds_no_gradients(given: list[np.ndarray], folder: Path) -> None:
    c = Library()
    state, session = load(c, folder, buffers=False)
    c.set_learning_rate(session, 0.125)
    c.release_tensor(*c.run_with("train_step", session, [c.tensor(X), c.tensor(LABELS)], 1))
    other = -2 * X
    inputs = (ctypes.c_void_p * 2)(c.tensor(other).value, c.tensor(LABELS).value)
    outputs = (ctypes.c_void_p * 1)(*(c.tensor(a).value for a in given))
    with pytest.raises(RuntimeError, match="output"):
        c.train_step(session, inputs, 2, outputs, len(given))
    c.optimizer_step(session)
    _, _, expected = by_python(folder, 1)
    np.testing.assert_array_equal(c.array(c.get("get_parameter", ctypes.c_void_p, state, b"w")), expected)
    c.release_training_session(session)
    c.release_checkpoint(state)


def test_nothing_given_is_an_error_and_no_crash() -> None:
    script = MISUSED.format(folder=str(Path(__file__).parent))
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, f"crashed after {done.stdout.splitlines()[-1:]}: {done.stderr[-300:]}"
    told = dict(line.split(" ", 1) for line in done.stdout.splitlines())
    assert set(told) == set(declared())
    for name, (kind, _) in declared().items():
        takes_nothing = kind != "BpStatus" or name == "bp_set_seed"
        assert told[name] == "done" if takes_nothing else re.match(r"1: .*got .*expected", told[name]), told[name]


def test_errors_carry_status_and_message(folder: Path, tmp_path: Path) -> None:
    c = Library()
    with pytest.raises(RuntimeError, match=r"^1: .*nowhere"):
        c.get("load_checkpoint", ctypes.c_void_p, os.fsencode(tmp_path / "nowhere"))
    state, session = load(c, folder, False)
    wrong = c.tensor(np.zeros((2, 9), np.float32))
    labels = c.tensor(np.zeros(2, np.int64))
    with pytest.raises(RuntimeError, match=r"^1: .*'x'.*got .*expected"):
        c.run_with("train_step", session, [wrong, labels], 1)
    with pytest.raises(RuntimeError, match=r"^1: number of inputs: got 1, expected 2"):
        c.run_with("train_step", session, [wrong], 1)
    with pytest.raises(RuntimeError, match="nothing"):
        c.get("get_parameter", ctypes.c_void_p, state, b"nothing")
    with pytest.raises(RuntimeError, match=r"^1: "):
        c.get("get_training_input_name", ctypes.c_char_p, session, 7)
    assert len(train(c, session, 2)[0]) == 2  # and the session goes on


COUNTS = """
import ctypes, sys
sys.path.insert(0, {tests!r})
from pathlib import Path
from test_c_api import LABELS, X, Library, load
c = Library()
state, session = load(c, Path({folder!r}), False)
inference = c.get("create_session", ctypes.c_void_p, {folder!r}.encode() + b"/forward.onnx", None)
dims = (ctypes.c_int64 * 2)(1, 1)
given = (ctypes.c_void_p * 2)(c.tensor(X).value, c.tensor(LABELS).value)
outputs = (ctypes.c_void_p * 1)()
calls = [
    lambda n: c.get("create_tensor", ctypes.c_void_p, 1, dims, n, None),
    lambda n: c.train_step(session, given, n, outputs, 1),
    lambda n: c.eval_step(session, given, n, outputs, 1),
    lambda n: c.run(inference, given, n, outputs, 1),
    lambda n: c.train_step(session, given, 2, outputs, n),
    lambda n: c.eval_step(session, given, 2, outputs, n),
]
for call in calls:
    for count in (10**9, 2**64 - 1):
        try:
            call(count)
        except RuntimeError as error:
            print(error)
"""


def test_counts_that_cannot_be_meant_read_no_memory(folder: Path) -> None:
    """In a process of its own: what is read beyond the end of a list ends it."""
    script = COUNTS.format(tests=str(Path(__file__).parent), folder=str(folder))
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, f"crashed after {done.stdout.splitlines()[-1:]}: {done.stderr[-300:]}"
    told = done.stdout.splitlines()
    assert len(told) == 12
    assert told[0] == "1: rank: got 1000000000, expected at most 64"
    assert all(re.match(r"1: (rank|number of (in|out)puts): got \d+, expected", line) for line in told), told


@pytest.mark.parametrize(("threads", "cache", "name"), [(-5, 0, "num_threads"), (10**6, 0, "num_threads"),
                                                        (0, -1, "binding_cache")])  # fmt: skip
def test_options_out_of_range_are_refused(threads: int, cache: int, name: str, folder: Path) -> None:
    c = Library()
    options = (ctypes.c_int * 16)(threads, cache)
    with pytest.raises(RuntimeError, match=f"^1: {name}: got .* expected"):
        c.get("create_session", ctypes.c_void_p, os.fsencode(folder / "forward.onnx"), options)
    state = c.get("load_checkpoint", ctypes.c_void_p, os.fsencode(folder / "checkpoint"))
    with pytest.raises(RuntimeError, match=f"^1: {name}: got .* expected"):
        c.get(
            "create_training_session", ctypes.c_void_p, state, os.fsencode(folder / "training_model.onnx"), None, None,
            options,
        )  # fmt: skip
    c.release_checkpoint(state)


def test_checkpoints_of_other_models_are_refused_by_name(folder: Path) -> None:
    core = _core.CheckpointState()
    core.add_parameter("other", _core.Tensor.from_array(np.zeros(3, np.float32), 1, [3]), True)
    core.add_parameter("w", _core.Tensor.from_array(np.zeros(3, np.float32), 1, [3]), True)
    content = core.to_bytes()
    c = Library()
    state = c.get("load_checkpoint_from_buffer", ctypes.c_void_p, content, len(content))
    with pytest.raises(RuntimeError) as caught:
        c.get(
            "create_training_session", ctypes.c_void_p, state, os.fsencode(folder / "training_model.onnx"), None, None,
            None,
        )  # fmt: skip
    assert "'other': it is in the checkpoint, but not in the model" in str(caught.value)
    assert "'w': got float32[3] in the checkpoint, expected float32[4,3]" in str(caught.value)
    c.release_checkpoint(state)
