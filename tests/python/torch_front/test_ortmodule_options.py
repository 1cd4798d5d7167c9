"""Options, environment variables, the start-up table, saved models, logging, fallback, graph optimizers."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import backpass
import onnx
import pytest
import torch
from backpass.ortmodule import (
    DebugOptions,
    FallbackPolicy,
    LogLevel,
    ORTModule,
    RuntimeOptions,
    optimizers,
    options,
    register_graph_optimizer,
)
from backpass.ortmodule.experimental.json_config import load_from_json
from backpass.ortmodule.fallback import (
    DEFAULT_POLICY,
    ORTModuleFallbackException,
    ORTModuleIOError,
    ORTModuleTorchModelException,
    wrap_exception,
)
from ortmodule_check import strict, wrap
from torch import nn

LOGGER = logging.getLogger("backpass.ortmodule")


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))


class Refused(nn.Module):
    """Nothing can capture this: what it does depends on numbers, at random."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.linear(x)
        if y.numpy(force=True).sum() > 0:
            return y * 2
        return y


X = torch.ones(3, 4)


# ---- options
def test_defaults_then_code_then_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ORTModule(net())._manager.options == RuntimeOptions()
    given = RuntimeOptions(onnx_opset_version=21, fallback_retry=True, enable_compute_optimizer=False)
    monkeypatch.setenv("ORTMODULE_ONNX_OPSET_VERSION", "22")
    monkeypatch.setenv("ORTMODULE_FALLBACK_POLICY", "FALLBACK_UNSUPPORTED_DATA|FALLBACK_UNSUPPORTED_DEVICE")
    monkeypatch.setenv("ORTMODULE_ENABLE_CUSTOM_AUTOGRAD", "0")
    found = ORTModule(net(), options=given)._manager.options
    assert found.onnx_opset_version == 22
    assert found.fallback_retry
    assert not found.enable_compute_optimizer
    assert not found.enable_custom_autograd_function
    assert int(found.fallback_policy) == 8 | 16
    assert given.onnx_opset_version == 21


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("ORTMODULE_ONNX_OPSET_VERSION", "new", "invalid literal"),
        ("ORTMODULE_ENABLE_CUSTOM_AUTOGRAD", "perhaps", "expected 0 or 1"),
        ("ORTMODULE_FALLBACK_POLICY", "ALWAYS", "expected names out of FALLBACK_DISABLE"),
    ],
)
def test_environment_that_cannot_be_read(name: str, text: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, text)
    with pytest.raises(ValueError, match=f"{name}: got '{text}'.*{message}"):
        ORTModule(net())


def test_options_in_the_place_of_others() -> None:
    with pytest.raises(TypeError, match=r"got RuntimeOptions as debug_options; .* options="):
        ORTModule(nn.Linear(2, 2), RuntimeOptions())  # type: ignore[arg-type]


def test_what_fails_in_torch_is_told_once(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.getLogger("torch._subclasses.fake_tensor"), "handlers", [caplog.handler])
    with pytest.raises(Exception, match="4x7 and 8x3"):
        ORTModule(nn.Linear(8, 3))(torch.randn(4, 7))
    assert not [r for r in caplog.records if "fake_tensor" in r.name]
    assert logging.getLogger("torch._subclasses.fake_tensor").isEnabledFor(logging.ERROR)


def test_wrong_options() -> None:
    with pytest.raises(ValueError, match="expected 'auto', 'always' or 'never'"):
        RuntimeOptions(dynamic_shapes="sometimes")


def test_variables_without_effect_are_reported(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("ORTMODULE_USE_TRITON", "1")
    monkeypatch.setenv("ORTMODULE_ENABLE_ZERO_STAGE3", "1")
    monkeypatch.setenv("ORTMODULE_NO_SUCH_SWITCH", "1")
    with caplog.at_level(logging.WARNING, LOGGER.name):
        ORTModule(net())
    assert "ORTMODULE_USE_TRITON=1 has no effect: Backpass runs on CPUs" in caplog.text
    assert "parameters are whole in every process" in caplog.text
    assert "ORTMODULE_NO_SUCH_SWITCH is not an environment variable of ORTModule" in caplog.text


def test_every_variable_of_the_original_is_known() -> None:
    """Those of the last release, by what becomes of them."""
    from dataclasses import fields

    honoured = {f.metadata["variable"] for f in fields(RuntimeOptions) if "variable" in f.metadata}
    original = [
        "ONNX_OPSET_VERSION",
        "LOG_LEVEL",
        "SAVE_ONNX_PATH",
        "FALLBACK_POLICY",
        "FALLBACK_RETRY",
        "SKIPCHECK_POLICY",
        "CONV_ALGO_SEARCH",
        "ENABLE_CUSTOM_AUTOGRAD",
        "ALLOW_AUTOGRAD_CHECKPOINT",
        "ENABLE_COMPUTE_OPTIMIZER",
        "ENABLE_LABEL_SPARSE_OPTIMIZER",
        "ENABLE_EMBEDDING_SPARSE_OPTIMIZER",
        "MEMORY_OPT_LEVEL",
        "MEMORY_OPT_CONFIG",
        "PRINT_INPUT_DENSITY",
        "PRINT_MEMORY_STATS",
        "CACHE_DIR",
        "DEEPCOPY_BEFORE_MODEL_EXPORT",
        "ENABLE_MEM_EFFICIENT_GRAD_MGMT",
        "ENABLE_ZERO_STAGE3",
        "USE_TRITON",
        "TRITON_CONFIG_FILE",
        "TRITON_DEBUG",
        "USE_FLASH_ATTENTION",
        "ENABLE_TUNING",
        "MAX_TUNING_DURATION_MS",
        "TUNING_RESULTS_PATH",
        "USE_EFFICIENT_ATTENTION",
        "ATEN_SDPA_FALLBACK",
        "JSON_CONFIG_PATH",
    ]
    known = honoured | set(options.WITHOUT_EFFECT) | options._ELSEWHERE
    assert {f"ORTMODULE_{name}" for name in original} <= known
    assert not honoured & set(options.WITHOUT_EFFECT)


def test_the_opset_is_the_one_asked_for() -> None:
    ours = wrap(net(), onnx_opset_version=20)
    ours(X).sum().backward()
    assert [o.version for o in ours._manager.variants[0].exported.proto.opset_import if not o.domain] == [20]


def test_old_opsets_are_raised(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORTMODULE_ONNX_OPSET_VERSION", "17")  # the original's default
    ours = wrap(net())
    assert "onnx_opset_version: got 17, expected 18 or newer" in caplog.text
    ours(X).sum().backward()
    assert [o.version for o in ours._manager.variants[0].exported.proto.opset_import if not o.domain] == [18]


def test_the_graph_is_rewritten_only_if_asked_for() -> None:
    plain = wrap(net(), enable_compute_optimizer=False)
    plain(X).sum().backward()
    rewritten = wrap(net())
    rewritten(X).sum().backward()
    assert "  0 rewrites" in plain.explain()
    assert "  0 rewrites" not in rewritten.explain()


def test_passes_are_switched_off_by_name() -> None:
    def reporting(**options: Any) -> set[str]:
        ours = wrap(net(), **options)
        ours(X).sum().backward()
        (graph,) = ours._manager.variants[0].graphs.values()
        return {report.pass_name for report in graph.session.pass_reports()}

    assert "fuse_linear" in reporting()
    assert "fuse_linear" not in reporting(disabled_passes=["fuse_linear"])


# ---- what is told
def test_table_at_the_start(caplog: pytest.LogCaptureFixture) -> None:
    ours = wrap(net())
    with caplog.at_level(logging.WARNING, LOGGER.name):
        ours(X)
        ours(X)
    tables = [r.getMessage() for r in caplog.records if "was built for" in r.getMessage()]
    assert len(tables) == 1
    for line in (
        "ORTModule(Sequential) was built for training",
        "ATen Executor        OFF  every operator runs in the engine",
        "Compute Optimizer    ON ",
        "- FLOP Reduction    ON   nothing to move in this module",
        "- Label Sparsity    OFF  no loss of this module leaves labels out",
        "- Embed Sparsity    OFF  no padding was recognised in this module",
        "Auto Fallback        OFF  failures are raised",
        "ready after",
        "Backpass 0.1.0, torch 2.13",
    ):
        assert line in tables[0], line
    with caplog.at_level(logging.WARNING, LOGGER.name):
        ours.eval()(X)
    assert "was built for inference" in caplog.text


def test_levels(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = ORTModule(net(), DebugOptions(LogLevel.INFO))
    assert LOGGER.level == logging.INFO
    ours(X)
    assert "was exported for training, with fixed dimensions" in caplog.text
    caplog.clear()
    ORTModule(net(), DebugOptions(LogLevel.ERROR))(X)
    assert "backpass.ortmodule" not in {r.name for r in caplog.records}
    monkeypatch.setenv("ORTMODULE_LOG_LEVEL", "VERBOSE")
    assert DebugOptions(LogLevel.ERROR).logging.log_level is LogLevel.VERBOSE
    monkeypatch.setenv("ORTMODULE_LOG_LEVEL", "LOUD")
    with pytest.raises(ValueError, match="got 'LOUD', expected VERBOSE"):
        DebugOptions()
    assert [level.name for level in LogLevel] == ["VERBOSE", "DEVINFO", "INFO", "WARNING", "ERROR", "FATAL"]


def test_explain_before_and_after() -> None:
    ours = wrap(net(), profile=True)
    assert "nothing exported yet" in ours.explain()
    ours(X).sum().backward()
    text = ours.explain()
    assert "export 1, training: input[3, 4]" in text
    assert "gradients of 4 tensors: 1 forward" in text
    assert "every operator runs in the engine" in text
    assert "share" in text  # the profile


# ---- saved models
def test_models_are_saved(tmp_path: Path) -> None:
    debug = DebugOptions(save_onnx=True, onnx_prefix="net", save_path=str(tmp_path))
    pointwise = (nn.Softplus(), nn.Tanh())
    ours = ORTModule(nn.Sequential(nn.Linear(4, 5), *pointwise, nn.Linear(5, 2)), debug, options=strict())
    ours(X).sum().backward()
    ours.eval()
    with torch.no_grad():
        ours(X)
    stages = ["torch_exported", "post_processed", "optimized_pre_grad", "optimized", "execution_model"]
    names = {f"net_{stage}_{mode}.onnx" for stage in stages for mode in ("training", "inference")}
    assert {p.name for p in tmp_path.iterdir()} == names - {"net_optimized_inference.onnx"}
    exported = onnx.load(tmp_path / "net_torch_exported_training.onnx")
    onnx.checker.check_model(exported)
    assert [i.name for i in exported.graph.input] == ["0.weight", "0.bias", "3.weight", "3.bias", "input"]
    trained = onnx.load(tmp_path / "net_optimized_training.onnx")
    assert "YieldOp" in {n.op_type for n in trained.graph.node}
    runs = onnx.load(tmp_path / "net_execution_model_training.onnx")
    assert "YieldOp" in {n.op_type for n in runs.graph.node}
    backpass.InferenceSession(runs.SerializeToString())  # can be loaded


def test_where_models_are_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not DebugOptions().save_onnx_models.save
    monkeypatch.setenv("ORTMODULE_SAVE_ONNX_PATH", str(tmp_path))
    saving = DebugOptions(save_onnx=True, onnx_prefix="a").save_onnx_models
    assert (saving.save, saving.name_prefix, saving.path) == (True, "a", str(tmp_path))
    monkeypatch.setenv("ORTMODULE_SAVE_ONNX_PATH", str(tmp_path / "missing"))
    with pytest.raises(OSError, match="can be written to"):
        DebugOptions(save_onnx=True, onnx_prefix="a")
    with pytest.raises(TypeError, match="onnx_prefix"):
        DebugOptions(save_onnx=True, onnx_prefix=3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="onnx_prefix"):
        DebugOptions(save_onnx=True)
    with pytest.raises(TypeError, match="LogLevel"):
        DebugOptions(log_level=3)  # type: ignore[arg-type]


# ---- fallback
def test_falling_back_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    ours = ORTModule(Refused())
    expected = ours.module(X)
    with caplog.at_level(logging.WARNING, LOGGER.name):
        for _ in range(2):
            result = ours(X)
            torch.testing.assert_close(result, expected)
    result.sum().backward()
    told = [r for r in caplog.records if "PyTorch runs the module from here on" in r.getMessage()]
    assert len(told) == 1
    assert "ORTModuleTorchModelException: capture of Refused failed" in told[0].getMessage()
    assert "Traceback" not in told[0].getMessage()
    assert "test_ortmodule_options.py:" in told[0].getMessage()
    assert "PyTorch runs the module, because of ORTModuleTorchModelException" in ours.explain()


def test_failures_are_raised_when_not_allowed() -> None:
    for policy in (
        FallbackPolicy.FALLBACK_DISABLE,
        FallbackPolicy.FALLBACK_DISABLE | DEFAULT_POLICY,
        FallbackPolicy.FALLBACK_UNSUPPORTED_DATA,
    ):
        with pytest.raises(ORTModuleTorchModelException, match="capture of Refused failed"):
            ORTModule(Refused(), options=RuntimeOptions(fallback_policy=policy))(X)
    for policy in (FallbackPolicy.FALLBACK_FORCE_TORCH_FORWARD, FallbackPolicy.FALLBACK_UNSUPPORTED_TORCH_MODEL):
        ORTModule(Refused(), options=RuntimeOptions(fallback_policy=policy))(X)


def test_trying_again(caplog: pytest.LogCaptureFixture) -> None:
    class Sometimes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor, extra: Any = None) -> torch.Tensor:
            return self.linear(x)

    ours = ORTModule(Sometimes(), options=RuntimeOptions(fallback_retry=True))
    ours(X, {1})  # a set cannot be handed over
    assert "ORTModuleIOError" in ours.explain()
    ours(X)
    assert "every operator runs in the engine" in ours.explain()
    stuck = ORTModule(Sometimes())
    stuck(X, {1})
    stuck(X)
    assert "ORTModuleIOError" in stuck.explain()


def test_exceptions_of_the_module_are_its_own() -> None:
    class Wrong(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        ORTModule(Wrong())(X)
    with pytest.raises(ORTModuleTorchModelException, match="KeyError: 'mine'") as caught:
        wrap(Wrong())(X)
    assert isinstance(caught.value.__cause__, KeyError)


def test_a_wrong_call_is_not_the_last(caplog: pytest.LogCaptureFixture) -> None:
    ours = ORTModule(nn.Linear(4, 3))
    with caplog.at_level(logging.WARNING, "backpass.ortmodule"), pytest.raises(RuntimeError, match="shapes"):
        ours(torch.ones(2, 5))
    assert "PyTorch runs the module" not in caplog.text
    ours(torch.ones(2, 4))
    assert len(ours._manager.variants) == 1
    assert ours._manager.fallback.reason is None


def test_policies() -> None:
    assert int(DEFAULT_POLICY) == 8 | 16 | 32 | 64
    assert DEFAULT_POLICY.is_set(FallbackPolicy.FALLBACK_UNSUPPORTED_DATA)
    assert not (DEFAULT_POLICY | FallbackPolicy.FALLBACK_DISABLE).is_set(FallbackPolicy.FALLBACK_UNSUPPORTED_DATA)
    wrapped = wrap_exception(ORTModuleIOError, ValueError("inner"))
    assert str(wrapped) == "inner"
    assert isinstance(wrapped.__cause__, ValueError)
    assert issubclass(ORTModuleIOError, ORTModuleFallbackException)


# ---- functions of the user's over the graph
@pytest.fixture
def registry() -> Iterator[None]:
    before = list(optimizers._registered)
    yield
    optimizers._registered[:] = before


@pytest.mark.usefixtures("registry")
def test_graph_optimizers() -> None:
    order = []

    @register_graph_optimizer(target_modules="Sequential", priority=1)
    def first(graph: onnx.GraphProto) -> None:
        order.append("first")
        for node in graph.node:
            if node.op_type == "Relu":
                node.op_type = "Tanh"

    @register_graph_optimizer(priority=5)
    def earlier(graph: onnx.GraphProto) -> None:
        order.append("earlier")

    @register_graph_optimizer(target_modules="Other")
    def never(graph: onnx.GraphProto) -> None:
        order.append("never")

    @register_graph_optimizer(devices="cuda")
    def elsewhere(graph: onnx.GraphProto) -> None:
        order.append("elsewhere")

    ours = wrap(net())
    linear, _, last = ours.module
    expected = last(torch.tanh(linear(X)))
    result = ours(X)
    torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-5)
    result.sum().backward()
    (theirs,) = torch.autograd.grad(expected.sum(), linear.weight)
    torch.testing.assert_close(linear.weight.grad, theirs, rtol=1e-4, atol=1e-5)
    assert order == ["earlier", "first"]


@pytest.mark.usefixtures("registry")
@pytest.mark.parametrize(
    ("devices", "modules", "is_registered"),
    [
        ("all", "all", True),
        ("cpu", "all", True),
        ("cpu|cuda", "all", True),
        ("cuda | CPU", "all", True),
        ("cuda|cpu:0", "all", True),
        (["cuda", "cpu"], ["Other", "Net"], True),
        ("cuda|rocm", "all", False),
        (["cuda"], "all", False),
        ("all", "Other|Net", True),
        ("all", "Other | Net", True),
        ("all", "Other|all", True),
        ("all", "Other", False),
    ],
)
def test_graph_optimizers_for_several_devices_and_modules(devices: Any, modules: Any, is_registered: bool) -> None:
    called = []

    @register_graph_optimizer(target_modules=modules, devices=devices)
    def note(graph: onnx.GraphProto) -> None:
        called.append(graph)

    optimizers.apply_graph_optimizers(onnx.ModelProto(), "Net")
    assert bool(called) == is_registered


@pytest.mark.usefixtures("registry")
def test_graph_optimizers_keep_inputs() -> None:
    @register_graph_optimizer()
    def drop(graph: onnx.GraphProto) -> None:
        del graph.input[0]

    with pytest.raises(ValueError, match="changed the graph's inputs"):
        wrap(net())(X)


# ---- options from a file
def test_options_from_json(tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "options.json"
    settings = {
        "FallbackPolicy": ["FALLBACK_DISABLE"],
        "UseStaticShape": True,
        "OnnxOpsetVersion": 21,
        "EnableCustomAutogradFunction": False,
        "SkipCheck": ["SKIP_CHECK_DEVICE"],
        "DebugOptions": {"LogLevel": "INFO", "SaveONNX": True, "ONNXPrefix": "p", "SaveONNXPath": str(tmp_path)},
    }
    path.write_text(json.dumps(settings))
    ours = ORTModule(net())
    load_from_json(ours, path)
    found = ours._manager.options
    assert found.fallback_policy == FallbackPolicy.FALLBACK_DISABLE
    assert (found.dynamic_shapes, found.onnx_opset_version) == ("never", 21)
    assert not found.enable_custom_autograd_function
    assert ours._manager.debug.save_onnx_models.name_prefix == "p"
    assert "SkipCheck has no effect" in caplog.text
    path.write_text(json.dumps({"Surprise": 1}))
    monkeypatch.setenv("ORTMODULE_JSON_CONFIG_PATH", str(path))
    with pytest.raises(ValueError, match="got 'Surprise'"):
        load_from_json(ours)
    monkeypatch.delenv("ORTMODULE_JSON_CONFIG_PATH")
    with pytest.raises(ValueError, match="ORTMODULE_JSON_CONFIG_PATH"):
        load_from_json(ours)


# ---- names of the original
def script(text: str) -> str:
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(text)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_scripts_of_the_original_resolve() -> None:
    told = script(
        """
        import backpass, sys
        assert "torch" not in sys.modules
        backpass.compat if hasattr(backpass, "compat") else None
        import backpass.compat
        backpass.compat.install()
        import onnxruntime.training
        assert "torch" not in sys.modules
        assert onnxruntime.training.is_ortmodule_available()
        from onnxruntime.training import ORTModule
        from onnxruntime.training.ortmodule import DebugOptions, LogLevel, ORTModule as Same
        from onnxruntime.training.ortmodule._fallback import _FallbackPolicy, ORTModuleIOError
        from onnxruntime.training.ortmodule.experimental.json_config import load_from_json
        from torch_ort import ORTModule as Third, DebugOptions as D
        assert ORTModule is Same is Third is backpass.ORTModule is backpass.ortmodule.ORTModule
        import torch
        model = ORTModule(torch.nn.Linear(2, 2), DebugOptions(log_level=LogLevel.ERROR))
        model(torch.ones(1, 2)).sum().backward()
        print(model.weight.grad.tolist())
        """
    )
    assert told == "[[1.0, 1.0], [1.0, 1.0]]"
