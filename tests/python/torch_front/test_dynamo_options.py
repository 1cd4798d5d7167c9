"""Options, registration, dumps and helpers of the torch.compile backend."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import backpass
import onnx
import pytest
import torch
from backpass.dynamo import CompileOptions, dump_onnx, make_aot_ort, train_loop

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    torch.manual_seed(5)
    return


def run_python(code: str, *paths: Path) -> str:
    """In a process of its own: what torch registers stays for good."""
    path = os.pathsep.join(
        [*map(str, paths), str(Path(backpass.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=os.environ | {"PYTHONPATH": path}
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_torch_finds_the_backend_by_its_entry_point(tmp_path: Path) -> None:
    entries = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["torch_dynamo_backends"]
    info = tmp_path / "backpass_under_test-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: backpass-under-test\nVersion: 1\n")
    lines = "\n".join(f"{name} = {target}" for name, target in entries.items())
    (info / "entry_points.txt").write_text(f"[torch_dynamo_backends]\n{lines}\n")
    code = """
import sys, torch
f = torch.compile(lambda x: torch.sin(x) + 1, backend="backpass", options={"mode": "aot"})
assert "backpass.dynamo" not in sys.modules
torch.testing.assert_close(f(torch.ones(3)), torch.sin(torch.ones(3)) + 1)
from backpass.dynamo import record
print(record().execution_count)
"""
    assert run_python(code, tmp_path).split() == ["1"]


@pytest.mark.parametrize(
    "first",
    [
        "pass",
        *(pytest.param(f"import torch._dynamo as d; {c}", marks=pytest.mark.slow) for c in ("d", "d.list_backends()")),
    ],
)
def test_the_old_name_after_install(first: str) -> None:
    code = f"""
{first}
import backpass.compat, sys
assert "torch" in sys.modules or {first!r} == "pass"
backpass.compat.install()
import torch
torch.compile(lambda x: x * 2, backend="onnxrt")(torch.ones(2))
from backpass.dynamo import record
print(record().execution_count)
backpass.compat.uninstall()
torch._dynamo.reset()
try:
    torch.compile(lambda x: x * 3, backend="onnxrt")(torch.ones(2))
except Exception as e:
    print(type(e).__name__)
"""
    assert run_python(code).split() == ["1", "InvalidBackend"]


def test_importing_backpass_does_not_import_torch() -> None:
    assert run_python("import backpass, backpass.compat, sys; print('torch' in sys.modules)").strip() == "False"


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"mode": "fast"}, "mode: got 'fast', expected one of auto, forward, aot"),
        ({"exporter": "tf"}, "exporter: got 'tf'"),
        ({"modus": "aot"}, "options: got 'modus', expected some of"),
        ({"exporter": "torch", "mode": "forward"}, "torch.onnx.export exports no training graphs"),
    ],
)
def test_wrong_options_are_named(options: dict[str, str], text: str) -> None:
    with pytest.raises(backpass.InvalidInput, match=text):
        CompileOptions.of(options)


def test_names_of_the_original_are_understood() -> None:
    session = backpass.SessionOptions()
    made = CompileOptions.of({"ort_session_options": session, "use_aot_autograd": True, "preallocate_output": True})
    assert made.session_options is session
    assert made.mode == "aot"
    assert made.preallocate_output


@pytest.mark.parametrize(("switch", "exporter"), [("1", "backpass"), ("0", "torch")])
def test_the_environment_selects_the_exporter(
    switch: str, exporter: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ONNXRT_CHANGE_REWRITER", switch)
    backend, record = make_aot_ort()
    x = torch.randn(3, 4, requires_grad=True)
    with dump_onnx("m", folder=tmp_path):
        y = torch.compile(lambda x: torch.tanh(x @ x.T), backend=backend)(x)
        y.sum().backward()
    torch.testing.assert_close(y, torch.tanh(x @ x.T))
    (wanted,) = torch.autograd.grad(torch.tanh(x @ x.T).sum(), x)
    torch.testing.assert_close(x.grad, wanted)
    assert [g.reason for g in record.graphs] == ["", ""]
    producers = {onnx.load(p).producer_name for p in tmp_path.glob("*.onnx")}
    assert producers == {"backpass" if exporter == "backpass" else "pytorch"}


def test_torchs_exporter_may_not_train_batch_norm(caplog: pytest.LogCaptureFixture) -> None:
    """torch.onnx would silently write down the inference form."""
    backend, record = make_aot_ort(exporter="torch")
    net = torch.nn.BatchNorm1d(3)
    x = torch.randn(6, 3)
    torch.testing.assert_close(torch.compile(net, backend=backend)(x), torch.nn.BatchNorm1d(3)(x))
    assert "torch.onnx exports it as in inference" in record.graphs[0].reason
    assert "run by torch" in caplog.text


@pytest.mark.parametrize("mode", ["aot", "forward"])
@pytest.mark.parametrize("in_place", [True, False])
def test_transforms_see_every_model(mode: str, in_place: bool) -> None:
    """x + 1 becomes x - 1, in place or as a new model."""

    def subtract(model: onnx.ModelProto) -> onnx.ModelProto | None:
        if not in_place:
            copy = onnx.ModelProto()
            copy.CopyFrom(model)
            model = copy
        for node in model.graph.node:
            if node.op_type == "Add":
                node.op_type = "Sub"
        return None if in_place else model

    backend, _ = make_aot_ort(mode=mode, pre_ort_model_transforms=[subtract])
    got = torch.compile(lambda x: x + 1, backend=backend)(torch.zeros(2))
    torch.testing.assert_close(got, -torch.ones(2))


@pytest.mark.parametrize("mode", ["aot", "forward"])
def test_baseline_comparison_notices_a_wrong_model(mode: str) -> None:
    def wrong(model: onnx.ModelProto) -> None:
        model.graph.node[0].op_type = "Cos"

    x = torch.ones(3)
    right, _ = make_aot_ort(mode=mode, assert_allclose_to_baseline=True)
    torch.testing.assert_close(torch.compile(lambda x: x.sin(), backend=right)(x), x.sin())
    torch._dynamo.reset()
    backend, _ = make_aot_ort(mode=mode, assert_allclose_to_baseline=True, pre_ort_model_transforms=[wrong])
    with pytest.raises(AssertionError, match="not close"):
        torch.compile(lambda x: x.sin(), backend=backend)(x)


def test_dump_writes_models_and_graphs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "old.onnx").touch()
    monkeypatch.setenv("ONNXRT_DUMP_PATH", "before")
    backend, record = make_aot_ort()
    net = torch.nn.Linear(3, 2)
    with dump_onnx("llama", folder=tmp_path / "d", clean=True):
        train_loop(torch.compile(net, backend=backend), torch.ones(4, 3))
    assert os.environ["ONNXRT_DUMP_PATH"] == "before"
    assert sorted(p.name for p in (tmp_path / "d").iterdir()) == [
        f"llama{i}.{e}" for i in (0, 1) for e in ("onnx", "txt")
    ]
    assert [g.dump for g in record.graphs] == [tmp_path / "d" / f"llama{i}.onnx" for i in (0, 1)]
    model = onnx.load(tmp_path / "d" / "llama0.onnx")
    onnx.checker.check_model(model)
    assert any(n.op_type in ("Gemm", "MatMul") for n in model.graph.node)
    assert "aten.addmm" in (tmp_path / "d" / "llama0.txt").read_text()


def test_outputs_allocated_beforehand() -> None:
    backend, _ = make_aot_ort(preallocate_output=True)
    x = torch.randn(3, 5)
    compiled = torch.compile(lambda x: (x.exp(), x.sum(0)), backend=backend)
    first, second = compiled(x), compiled(x + 1)
    torch.testing.assert_close(first[0], x.exp())
    torch.testing.assert_close(second[1], (x + 1).sum(0))


def test_train_loop_learns() -> None:
    net = torch.nn.Linear(4, 3)
    x, wanted = torch.randn(16, 4), torch.randn(16, 3)
    backend, record = make_aot_ort()
    compiled = torch.compile(net, backend=backend)

    def loss(outputs: torch.Tensor, args: tuple[torch.Tensor, ...]) -> torch.Tensor:
        return torch.nn.functional.mse_loss(outputs, wanted)

    optimizer = torch.optim.SGD(net.parameters(), lr=0.3)
    first, _ = train_loop(compiled, x, loss_fn=loss, optimizer=optimizer)
    last, gradients = train_loop(compiled, x, loss_fn=loss, optimizer=optimizer, steps=20)
    assert last < first
    assert [g.shape for g in gradients if g is not None] == [p.shape for p in net.parameters()]
    assert record.execution_count == 42


def test_reports_say_what_torch_runs() -> None:
    backend, record = make_aot_ort()
    x = torch.tensor([3.0, 1.0, 2.0])
    torch.compile(lambda x: torch.special.zeta(x, x) + 1, backend=backend)(x)
    assert any("special_zeta" in name for name in record.graphs[0].fallbacks) or record.graphs[0].reason
    assert "special_zeta" in str(record)


def test_nodes_are_called_as_in_the_fx_graph() -> None:
    """A dumped model can be read beside its text."""
    seen: list[str] = []
    backend, _ = make_aot_ort(pre_ort_model_transforms=[lambda m: seen.extend(n.name for n in m.graph.node)])
    torch.compile(lambda x: torch.sin(x), backend=backend)(torch.ones(2))
    assert seen == ["sin"]


@pytest.mark.slow
@pytest.mark.parametrize("exporter", ["backpass", "torch"])
def test_example_trains_a_llama(exporter: str, tmp_path: Path) -> None:
    command = [
        sys.executable,
        ROOT / "examples" / "llama_compile.py",
        "--folder",
        tmp_path / "d",
        "--exporter",
        exporter,
    ]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"HF_HUB_OFFLINE": "1"})
    assert done.returncode == 0, done.stdout + done.stderr
    assert "exported model: ['dort-llama-ort0.onnx', 'dort-llama-ort1.onnx']" in done.stdout
    assert "2 of 2 graphs run in the engine alone" in done.stdout
    (difference,) = re.findall(r"differ by at most (\S+)", done.stdout)
    assert float(difference) < 1e-5


@pytest.mark.parametrize("mode", ["forward", "aot"])
def test_baseline_comparison_says_that_random_numbers_differ(mode: str) -> None:
    backend, _ = make_aot_ort(mode=mode, assert_allclose_to_baseline=True)
    with pytest.raises(AssertionError, match="draws random numbers"):
        torch.compile(lambda x: torch.nn.functional.dropout(x, 0.5), backend=backend)(torch.ones(100))


@pytest.mark.parametrize(("switch", "exporter"), [("true", "backpass"), ("False", "torch")])
def test_rewriter_switch_in_words(switch: str, exporter: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONNXRT_CHANGE_REWRITER", switch)
    assert CompileOptions.of(None).exporter == exporter


def test_rewriter_switch_that_is_neither(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONNXRT_CHANGE_REWRITER", "maybe")
    with pytest.raises(backpass.InvalidInput, match="ONNXRT_CHANGE_REWRITER: got 'maybe', expected one of 1, 0"):
        CompileOptions.of(None)
