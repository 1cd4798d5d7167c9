"""What is around ORTModule in the original: parts that are wrapped by themselves, gradients as graphs and as lists of
nodes, registries, pipelines, settings."""

from __future__ import annotations

import copy
import importlib
import os
import random
import subprocess
import sys
import types
import warnings
from pathlib import Path
from typing import Any

import backpass
import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from backpass._ort import gradient_registry, ortmodule_logger, ortmodule_names, ortmodule_utils, symbolic_registry
from backpass._ort.capi import _pybind_state
from backpass._ort.custom_autograd import custom_autograd_function_enabler, enable_custom_autograd_support
from backpass._ort.experimental import export_gradient_graph
from backpass._ort.gradient_builder import GradientGraphBuilder
from backpass._ort.training_parameters import TrainingParameters
from backpass.ortmodule import DebugOptions, LogLevel, ORTModule, optimizers
from backpass.ortmodule.experimental.hierarchical_ortmodule import HierarchicalORTModule
from backpass.ortmodule.options import _MemoryOptimizationLevel, _SkipCheck
from onnx import TensorProto, helper
from torch import nn


# ---- gradients as a graph
def classifier(chance: random.Random) -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    width, classes = chance.randint(1, 9), chance.randint(2, 4)
    layers: list[nn.Module] = [nn.Linear(5, width, bias=chance.random() < 0.5)]
    layers += chance.sample([nn.ReLU(), nn.Tanh(), nn.LayerNorm(width), nn.BatchNorm1d(width)], 2)
    layers.append(nn.Linear(width, classes))
    if chance.random() < 0.5:
        layers[0].requires_grad_(False)
    return nn.Sequential(*layers), torch.randn(6, 5), torch.randint(classes, (6,))


@pytest.mark.parametrize("seed", range(6))
def test_a_gradient_graph_runs_anywhere(seed: int, tmp_path: Path) -> None:
    model, x, labels = classifier(random.Random(seed))
    model.eval()
    loss_fn = nn.CrossEntropyLoss()
    before = copy.deepcopy(model.state_dict())
    export_gradient_graph(model, loss_fn, x, labels, tmp_path / "gradients.onnx")
    assert not any(part.training for part in model.modules())
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    written = onnx.load(tmp_path / "gradients.onnx")
    onnx.checker.check_model(written, full_check=True)
    parameters = dict(model.named_parameters())
    wanted = [name for name, parameter in parameters.items() if parameter.requires_grad]
    assert [i.name for i in written.graph.input] == ["input", "labels", *parameters]
    assert [o.name for o in written.graph.output] == ["output", "loss", *(f"{name}_grad" for name in wanted)]
    session = onnxruntime.InferenceSession(written.SerializeToString())
    for batch in (6, 3):
        feeds = {"input": x[:batch].numpy(), "labels": labels[:batch].numpy()}
        found = session.run(None, feeds | {name: p.detach().numpy() for name, p in parameters.items()})
        trained = copy.deepcopy(model).train()
        output = trained(x[:batch])
        loss = loss_fn(output, labels[:batch])
        gradients = torch.autograd.grad(loss, [p for p in trained.parameters() if p.requires_grad])
        for mine, theirs in zip(found, (output, loss, *gradients), strict=True):
            np.testing.assert_allclose(mine, theirs.detach().numpy(), rtol=1e-4, atol=1e-5)


def test_a_builder_of_gradients(tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["": 17]> g (float[3] x, float[3] w) => (float[3] y, float loss)
              { y = Mul(x, w) loss = ReduceSum<keepdims = 0>(y) }"""
    builder = GradientGraphBuilder(onnx.parser.parse_model(text).SerializeToString(), {"loss"}, {"w"}, "loss")
    with pytest.raises(backpass.InvalidInput, match=r"expected build\(\)"):
        builder.get_model()
    builder.build()
    builder.save(tmp_path / "built.onnx")
    x = np.array([1, 2, 3], np.float32)
    found = backpass.InferenceSession(tmp_path / "built.onnx").run(["y", "loss", "w_grad"], {"x": x, "w": 2 * x})
    assert [v.tolist() for v in found] == [[2, 8, 18], 28, [1, 2, 3]]
    with pytest.raises(backpass.InvalidInput, match="expected the loss"):
        GradientGraphBuilder(b"", {"y"}, {"w"}, "loss")


# ---- gradients as lists of nodes
def cube(x: np.ndarray) -> np.ndarray:
    return x**3


def model_of(op: str) -> bytes:
    node = helper.make_node(op, ["x"], ["y"], domain="list.of.nodes")
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n"]) for name in ("x", "y")]
    graph = helper.make_graph([node], "g", infos[:1], infos[1:])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("list.of.nodes", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()


@pytest.fixture
def operator() -> Any:
    backpass.register_operator("list.of.nodes", "Cube")(cube)
    yield "Cube"
    backpass.custom.unregister("list.of.nodes", "Cube")


def test_gradients_that_are_lists_of_nodes(operator: str) -> None:
    @gradient_registry.register_gradient("list.of.nodes", operator)
    def cube_gradient() -> list[Any]:
        return [
            ("Constant", [], ["three"], {"value": {"value": 3, "dtype": "IElemType(0)", "is_tensor": True}}),
            (("Mul", ""), ["I(0)", "I(0)"], ["square"]),
            ("Mul", ["three", "square"], ["slope"]),
            ("Mul", ["slope", "GO(0)"], ["GI(0)"]),
        ]

    assert cube_gradient()
    x = np.array([1, -2, 3], np.float32)
    run = lambda: backpass.InferenceSession(backpass.grad(model_of(operator), ["x"], standard_only=False)).run(  # noqa: E731
        ["x_grad"], {"x": x}
    )
    assert run()[0].tolist() == [3, 12, 27]
    gradient_registry.CustomGradientRegistry.register_custom_stop_gradient_edges([0], "list.of.nodes", operator)
    gradient_registry.CustomGradientRegistry.register_all()
    assert run()[0].tolist() == [0, 0, 0]
    gradient_registry.CustomGradientRegistry._STOP_GRADIENT_EDGES.clear()


def test_a_list_of_nodes_that_asks_for_what_is_not_there(operator: str) -> None:
    gradient_registry.register_gradient("list.of.nodes", operator)(lambda: [("Neg", ["unknown"], ["GI(0)"])])
    with pytest.raises(backpass.InvalidInput, match=r"got input 'unknown', expected GO\(i\)"):
        backpass.grad(model_of(operator), ["x"], standard_only=False)


def test_what_is_registered_for_operators_of_torch_is_kept() -> None:
    with pytest.warns(UserWarning, match="torch differentiates its operators itself"):
        gradient_registry.register_gradient("org.pytorch.aten", "ATen", "selu", "")(list)
    assert gradient_registry.CustomGradientRegistry._GRADIENTS.pop("org.pytorch.aten::ATen::selu::") == []
    with pytest.warns(UserWarning, match=r"backpass\.torch\.lowers"):
        symbolic_registry.register_symbolic("selu", "aten", need_node=True)(lambda g, node, x: (node, x))
    kept = symbolic_registry.CustomOpSymbolicRegistry._SYMBOLICS.pop("aten::selu")
    assert kept(types.SimpleNamespace(original_node="node"), 3) == ("node", 3)
    for versions in ({"torch_version_start": "99"}, {"torch_version_end": "1.8"}):
        symbolic_registry.register_symbolic("selu", "aten", **versions)(lambda g, x: x)
    assert not symbolic_registry.CustomOpSymbolicRegistry._SYMBOLICS


# ---- functions that change graphs
def test_the_registry_of_graph_optimizers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(optimizers, "_registered", [])
    order: list[str] = []
    for name, (modules, devices, priority) in {
        "second": ("Net|Other", "cpu|cuda", 0),
        "first": ("all", "all", 3),
        "elsewhere": ("all", "cuda", 9),
        "of another": ("Other", "all", 9),
    }.items():
        optimizers.GraphOptimizerRegistry.register(
            modules, devices, priority, lambda graph, name=name: order.append(name)
        )
    optimizers.GraphOptimizerRegistry.optimize_all("Net", "cpu", onnx.GraphProto())
    assert order == ["first", "second"]
    optimizers.GraphOptimizerRegistry.optimize_all("Net", "cuda", onnx.GraphProto())
    assert order[2:] == ["elsewhere", "first", "second"]


# ---- parts that are wrapped by themselves
class Stubborn(nn.Module):
    """Has a hook for its backward pass, which only torch would call."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)
        self.register_full_backward_hook(lambda module, inputs, outputs: None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.inner(self.inner(x)))


class Whole(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(2)])
        self.stubborn = Stubborn()
        self.unused = nn.Linear(4, 4)
        self.head = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(self.stubborn(x))


def steps(module: nn.Module, count: int = 3) -> list[float]:
    optimizer = torch.optim.SGD(module.parameters(), 0.1)
    chance = torch.Generator().manual_seed(0)
    losses = []
    for _ in range(count):
        loss = module(torch.randn(5, 4, generator=chance)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_the_largest_parts_are_wrapped() -> None:
    theirs = Whole()
    wrapped = copy.deepcopy(theirs)
    ours = HierarchicalORTModule(wrapped, DebugOptions(LogLevel.WARNING))
    random_state = torch.get_rng_state()
    with pytest.warns(UserWarning, match="Wrapped module") as told:
        losses = steps(ours)
    assert torch.equal(torch.get_rng_state(), random_state)
    assert losses == pytest.approx(steps(theirs), rel=1e-5)
    assert all(isinstance(block, ORTModule) for block in wrapped.blocks)
    assert isinstance(wrapped.head, ORTModule)
    assert isinstance(wrapped.stubborn.inner, ORTModule)
    assert type(wrapped.stubborn) is Stubborn
    assert type(wrapped.unused) is nn.Linear
    texts = [str(warning.message) for warning in told]
    assert any("Stubborn is not wrapped" in text for text in texts)
    assert any("Linear is not wrapped: forward was not called" in text for text in texts)
    names = {name.removeprefix("_original_module.") for name in ours.state_dict()}
    assert names == set(theirs.state_dict())
    for name, value in ours.state_dict().items():
        torch.testing.assert_close(value, theirs.state_dict()[name.removeprefix("_original_module.")])


def test_what_can_be_exported_is_wrapped_as_a_whole_and_in_silence() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    ours = HierarchicalORTModule(module)
    x = torch.randn(2, 4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.testing.assert_close(ours(x), module(x))
    assert isinstance(ours._original_module, ORTModule)
    assert ours._original_module.module is module


# ---- pipelines
PIPELINE = """
import torch
from torch import nn

class PipelineModule(nn.Module):
    def __init__(self, layers, num_stages=None, loss_fn=None):
        super().__init__()
        self._layers, self._local_start, self.forward_funcs = layers, 0, []
        self.tied_modules = nn.ModuleDict({"tied": layers[2]})
        self._build()

    def _build(self):
        for place, layer in enumerate(self._layers):
            self.forward_funcs.append(layer)
            if isinstance(layer, nn.Module):
                self.add_module(str(place), layer)

    def forward(self, x):
        for function in self.forward_funcs:
            x = function(x)
        return x
"""


def test_stages_of_a_pipeline(tmp_path: Path) -> None:
    (tmp_path / "deepspeed" / "pipe").mkdir(parents=True)
    (tmp_path / "deepspeed" / "__init__.py").write_text("")
    (tmp_path / "deepspeed" / "pipe" / "__init__.py").write_text(PIPELINE)
    (tmp_path / "deepspeed-0.14.0.dist-info").mkdir()
    (tmp_path / "deepspeed-0.14.0.dist-info" / "METADATA").write_text("Name: deepspeed\nVersion: 0.14.0\n")
    program = """
import os, torch
from torch import nn
from backpass.ortmodule import DebugOptions, ORTModule
from backpass.ortmodule.experimental.pipe import ORTPipelineModule
layers = [nn.Linear(3, 3), torch.relu, nn.Linear(3, 3), nn.Sequential(nn.Linear(3, 2))]
options = DebugOptions(save_onnx=True, onnx_prefix="mine")
pipeline = ORTPipelineModule(layers, num_stages=1, debug_options=options)
assert [isinstance(f, ORTModule) for f in pipeline.forward_funcs] == [True, False, False, True]
x = torch.ones(2, 3)
torch.testing.assert_close(pipeline(x), layers[3](layers[2](torch.relu(layers[0](x)))))
assert set(pipeline.state_dict()) >= {"0.weight", "2.weight", "3.0.bias"}
saved = {name.partition("_mine_")[0] for name in os.listdir() if name.endswith(".onnx")}
assert saved == {"0", "3"}, saved
"""
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    places = os.pathsep.join([str(tmp_path), *(os.path.abspath(place) for place in given if place)])
    environment = os.environ | {"PYTHONPATH": places}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_a_pipeline_needs_deepspeed() -> None:
    with pytest.raises(ImportError, match="needs the package deepspeed"):
        importlib.import_module("backpass.ortmodule.experimental.pipe")


# ---- settings and switches
def test_options_as_they_were_given() -> None:
    options = DebugOptions(LogLevel.INFO, config={"anything": 1})
    assert (options.log_level, options.save_onnx, options.onnx_prefix) == (LogLevel.INFO, False, "")
    checks = _SkipCheck.SKIP_CHECK_DEVICE | _SkipCheck.SKIP_CHECK_EXECUTION_AGENT
    assert checks.is_set(_SkipCheck.SKIP_CHECK_DEVICE)
    assert not checks.is_set(_SkipCheck.SKIP_CHECK_BUILD_GRADIENT)
    disabled = checks | _SkipCheck.SKIP_CHECK_DISABLED
    assert disabled.is_disabled()
    assert not disabled.is_set(_SkipCheck.SKIP_CHECK_DEVICE)


def test_settings_of_the_old_trainer() -> None:
    given = TrainingParameters()
    assert (given.loss_scale, given.lr_params_feed_name, given.world_size) == (0.0, "Learning_Rate", 1)
    given.weights_to_train = {"w"}
    assert TrainingParameters().weights_to_train == set()
    with pytest.raises(AttributeError):
        given.no_such_setting = 1  # type: ignore[attr-defined]


def test_strategies_are_flags() -> None:
    strategy = _pybind_state.PropagateCastOpsStrategy
    assert [(s.name, int(s)) for s in (strategy.NONE, strategy.INSERT_AND_REDUCE, strategy.FLOOD_FILL)] == [
        ("NONE", 0),
        ("INSERT_AND_REDUCE", 1),
        ("FLOOD_FILL", 2),
    ]
    assert strategy.NONE | strategy.FLOOD_FILL == strategy.FLOOD_FILL
    assert strategy.INSERT_AND_REDUCE & strategy.FLOOD_FILL == strategy.NONE
    assert strategy.NONE != strategy.FLOOD_FILL
    assert list(_MemoryOptimizationLevel.__members__) == [
        "USER_SPECIFIED",
        "TRANSFORMER_LAYERWISE_RECOMPUTE",
        "TRANSFORMER_LAYERWISE_RECOMPUTE_WITH_COMPROMISE",
    ]


def test_switches_of_gpus_are_accepted() -> None:
    assert _pybind_state.set_cuda_device_id(0) is None
    assert _pybind_state.set_arena_extend_strategy(_pybind_state.ArenaExtendStrategy.kSameAsRequested) is None
    assert _pybind_state.set_cuda_mem_limit.__name__ == "set_cuda_mem_limit"
    assert int(_pybind_state.kSameAsRequested) == 1
    assert _pybind_state.is_torch_interop_default_on()
    assert not _pybind_state.is_triton_enabled()
    assert _pybind_state.is_ortmodule_available()
    assert isinstance(_pybind_state.get_default_session_options(), _pybind_state.SessionOptions)


def test_the_switch_for_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORTMODULE_ENABLE_CUSTOM_AUTOGRAD", "1")
    enable_custom_autograd_support(False)
    assert not custom_autograd_function_enabler.state
    assert ORTModule(nn.Linear(1, 1))._manager.options.enable_custom_autograd_function is False
    enable_custom_autograd_support()
    assert custom_autograd_function_enabler.state
    assert custom_autograd_function_enabler.already_enabled


def test_names_at_the_top_of_ortmodule() -> None:
    assert ortmodule_names.ONNXRUNTIME_CUDA_VERSION is None
    assert ortmodule_names.is_torch_cpp_extensions_installed("anywhere")
    drawn = [(ortmodule_names.override_torch_manual_seed(7), torch.rand(1))[1] for _ in range(2)]
    assert torch.equal(*drawn)
    ortmodule_names.override_torch_cuda_manual_seed(7)
    with ortmodule_names.export_context():
        assert not ortmodule_names.ORTMODULE_ONNX_EXPORT_CONTEXT[0]


def test_small_helpers(monkeypatch: pytest.MonkeyPatch) -> None:
    before = ortmodule_utils.get_random_states()
    first = (random.random(), np.random.rand(), torch.rand(1).item())
    ortmodule_utils.set_random_states(before)
    assert (random.random(), np.random.rand(), torch.rand(1).item()) == first
    assert [ortmodule_utils.get_device_str(d) for d in ("cpu", "cuda", "cuda:1", 2, torch.device("cpu"))] == [
        "cpu",
        "cuda:0",
        "cuda:1",
        "cuda:2",
        "cpu",
    ]
    assert [ortmodule_utils.get_device_index(d) for d in ("cpu", "cuda:1", 2)] == [0, 1, 2]
    assert ortmodule_utils.get_device_from_module_and_inputs(nn.Identity(), (3,), {}).type == "cpu"
    monkeypatch.setenv("FLAGS", "A|B")
    assert ortmodule_utils.parse_os_env_skip_check_flags("FLAGS") == ["A", "B"]
    assert "ValueError: no" in ortmodule_utils.get_exception_as_string(ValueError("no"))
    assert ortmodule_utils.get_runtime_pytorch_version() >= "2.0"
    assert ortmodule_utils.check_function_has_param(lambda x: x, "x")
    assert ortmodule_utils.get_fully_qualified_class_name(int) == "int"
    assert ortmodule_utils.get_fully_qualified_class_name(nn.Linear) == "torch.nn.modules.linear.Linear"
    assert (ortmodule_utils.get_rank(), ortmodule_utils.get_world_size()) == (0, 1)
    assert ortmodule_logger.ortmodule_loglevel_to_python_loglevel(LogLevel.ERROR) == 40
    assert ortmodule_logger.ortmodule_loglevel_to_onnxruntime_c_loglevel(LogLevel.FATAL) == 4


def test_nothing_to_build() -> None:
    command = [sys.executable, "-m", "backpass._ort.torch_cpp_extensions.install"]
    assert "nothing to build" in subprocess.run(command, capture_output=True, text=True).stdout
