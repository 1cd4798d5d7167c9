"""Subscribers look into modules: the same numbers at the same steps, whether PyTorch or Backpass runs them."""

from __future__ import annotations

import copy
import logging
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import backpass
import pytest
import torch
from backpass.ortmodule import ORTModule
from backpass.utils.hooks import (
    GlobalSubscriberManager,
    StatisticsSubscriber,
    SubscriberBase,
    SubscriberManager,
    ZeROOffloadSubscriber,
    _InspectActivation,
    configure_ort_compatible_zero_stage3,
    inspect_activation,
    merge_activation_summary,
)
from backpass.utils.hooks._statistics_subscriber import summary
from backpass.utils.hooks._subscriber_base import RuntimeStates
from torch import nn


@pytest.fixture(autouse=True)
def unsubscribed() -> Iterator[None]:
    yield
    GlobalSubscriberManager.unsubscribe()


class Network(nn.Module):
    """Some parts, one of which changes what it is given, one that is used twice, and a dict as result."""

    def __init__(self, inspects: bool = False) -> None:
        super().__init__()
        self.inspects = inspects
        self.first = nn.Linear(4, 8)
        self.relu = nn.ReLU(inplace=True)
        self.block = nn.Sequential(nn.Linear(8, 8), nn.Tanh())
        self.head = nn.Linear(8, 3)
        self.aside = nn.Tanh()  # nothing depends on it

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        hidden = self.relu(self.first(x))
        if self.inspects:
            hidden = inspect_activation("hidden", hidden)
        logits = self.head(self.block(self.block(hidden)))
        self.aside(hidden)
        if labels is None:
            return {"logits": logits}
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def train(module: nn.Module, steps: int = 5) -> list[float]:
    optimizer = torch.optim.SGD(module.parameters(), 0.1)
    chance = torch.Generator().manual_seed(3)
    losses = []
    for _ in range(steps):
        x, labels = torch.randn(6, 4, generator=chance), torch.randint(3, (6,), generator=chance)
        loss = module(x, labels=labels)["loss"]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def subscribed_run(folder: Path, wraps: bool, **options: Any) -> tuple[list[float], nn.Module]:
    torch.manual_seed(1)
    module: nn.Module = Network(inspects=True)
    GlobalSubscriberManager.subscribe(module, [StatisticsSubscriber(str(folder), **options)])
    module = ORTModule(module) if wraps else module
    return train(module), module


NUMBER = re.compile(r"(\w+): (-?[\d.]+(?:e[-+]\d+)?|nan|inf|-inf)\b")


def statistics(folder: Path) -> dict[str, dict[str, float]]:
    """By step and file, the numbers of a run."""
    found = {}
    for path in folder.glob("step_*/*_*ward"):
        head, samples = path.read_text().split("samples(top 128): ")
        numbers = {name: float(value) for name, value in NUMBER.findall(head)}
        counts, rule = samples.splitlines()[-2:]
        assert rule == "=" * 16
        numbers |= {name: float(value) for name, value in NUMBER.findall(counts)}
        found[f"{path.parent.name}/{path.name}"] = numbers
    return found


def orders(folder: Path) -> dict[str, list[str]]:
    return {path.parent.name: path.read_text().splitlines() for path in folder.glob("step_*/order.txt")}


def assert_alike(ours: Path, theirs: Path) -> None:
    mine, expected = statistics(ours), statistics(theirs)
    assert set(mine) == set(expected)
    for name, numbers in expected.items():
        assert mine[name] == pytest.approx(numbers, rel=2e-4, abs=2e-6, nan_ok=True), name


def test_statistics_are_those_of_torch(tmp_path: Path) -> None:
    losses, _ = subscribed_run(tmp_path / "torch", wraps=False)
    again, module = subscribed_run(tmp_path / "backpass", wraps=True)
    assert again == pytest.approx(losses, rel=1e-5)
    assert GlobalSubscriberManager.get_run_context().global_states.execution_step == 5
    assert_alike(tmp_path / "backpass", tmp_path / "torch")
    assert orders(tmp_path / "backpass") == orders(tmp_path / "torch")
    assert set(orders(tmp_path / "torch")) == {f"step_{i}" for i in range(5)}
    assert "1 export(s)" in module.explain()
    names = orders(tmp_path / "torch")["step_0"]
    assert names[:3] == ["Linear_1_0th_output_forward", "ReLU_2_0th_output_forward", "hidden_forward"]
    assert names[-1] == "Linear_1_0th_output_backward"
    assert {"Network_0_0th_output_forward", "Network_0_1th_output_backward"} <= set(names)


def test_a_file_tells_what_a_tensor_is_like(tmp_path: Path) -> None:
    module = nn.Sequential(nn.Flatten(), nn.Identity())
    GlobalSubscriberManager.subscribe(module, [StatisticsSubscriber(str(tmp_path / "out"))])
    module(torch.tensor([[[1.0, -2.0], [0.0, 3.0]]]))
    lines = (tmp_path / "out/step_0/Identity_2_0th_output_forward").read_text().splitlines()
    assert lines == [
        ">>Identity_2_0th_output forward run shape: torch.Size([1, 4]) dtype: torch.float32 size: torch.Size([4]) ",
        "min: -2 max: 3, mean: 0.5, std: 2.081666 ",
        "nan: 0, inf: 0",
        "samples(top 128): [ 1., -2.,  0.,  3.]",
        "neg: 1, pos: 2, zero: 1,",
        "=" * 16,
    ]


@pytest.mark.parametrize("bucket_size", [1, 7, 2**29])
@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.bool]
)
def test_summaries_do_not_depend_on_pieces(bucket_size: int, dtype: torch.dtype) -> None:
    tensor = (torch.randn(5, 9) * 3).to(dtype)
    assert summary("t", tensor, bucket_size) == summary("t", tensor)
    found = dict(NUMBER.findall(summary("t", tensor, bucket_size).split("samples")[0]))
    assert float(found["std"]) == pytest.approx(tensor.double().std().item(), rel=1e-7)
    assert float(found["mean"]) == pytest.approx(tensor.double().mean().item(), rel=1e-7)


def test_summaries_of_odd_tensors() -> None:
    assert "min: nan max: nan, mean: nan, std: nan" in summary("t", torch.zeros(0, 3))
    assert "min: 4 max: 4, mean: 4, std: nan" in summary("t", torch.tensor(4.0))
    assert "nan: 1, inf: 2" in summary("t", torch.tensor([float("nan"), float("inf"), -float("inf"), 1.0]))
    assert "min: -1 max: 2" in summary("t", torch.tensor([2 - 1j, 0j]))


class Annotated(nn.Module):
    """Shows a tensor in the way of older releases."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        total = x + 1
        shown: Any = _InspectActivation.apply("total", None, GlobalSubscriberManager.get_run_context(), total)
        return self.linear(shown), total


@pytest.mark.parametrize("wraps", [False, True])
def test_tensors_are_shown_by_the_function_itself(wraps: bool, tmp_path: Path) -> None:
    module: nn.Module = Annotated()
    GlobalSubscriberManager.subscribe(module, [StatisticsSubscriber(str(tmp_path / "out"))])
    module = ORTModule(module) if wraps else module
    for _ in range(2):
        first, second = module(torch.randn(2, 4, requires_grad=True))
        (first.sum() + second.sum()).backward()
    outputs = ["total", "Linear_1_0th_output", "Annotated_0_0th_output", "Annotated_0_1th_output"]
    expected = {f"{name}_{way}" for name in outputs for way in ("forward", "backward")}
    for step in ("step_0", "step_1"):
        assert set(orders(tmp_path / "out")[step]) == expected


@pytest.mark.parametrize("wraps", [False, True])
def test_steps_before_and_after_are_left_alone(wraps: bool, tmp_path: Path) -> None:
    plain = train(ORTModule(build()) if wraps else build())
    losses, module = subscribed_run(tmp_path / "out", wraps, start_step=1, end_step=3)
    assert set(orders(tmp_path / "out")) == {"step_1", "step_2"}
    assert losses == pytest.approx(plain, rel=1e-6)
    if wraps:  # without, with, without; the counter and hidden stay in the graph
        assert "3 export(s)" in module.explain()


def build() -> Network:
    torch.manual_seed(1)
    return Network()


def test_statistics_by_steps_are_those_of_torch(tmp_path: Path) -> None:
    for name, wraps in (("torch", False), ("backpass", True)):
        subscribed_run(tmp_path / name, wraps, start_step=2, end_step=4)
    assert_alike(tmp_path / "backpass", tmp_path / "torch")


def test_gradients_go_with_their_forward_pass(tmp_path: Path) -> None:
    """Two forward passes, then both backward passes, the second first."""
    for name, wraps in (("torch", False), ("backpass", True)):
        module: nn.Module = build()
        GlobalSubscriberManager.subscribe(module, [StatisticsSubscriber(str(tmp_path / name))])
        module = ORTModule(module) if wraps else module
        x = torch.randn(2, 6, 4, generator=torch.Generator().manual_seed(0))
        labels = torch.arange(6) % 3
        first, second = module(x[0], labels)["loss"], module(x[1], labels)["loss"] * 3
        second.backward()
        first.backward()
    assert_alike(tmp_path / "backpass", tmp_path / "torch")


def test_batches_of_different_sizes(tmp_path: Path) -> None:
    """The third one is exported with variable dimensions."""
    for name, wraps in (("torch", False), ("backpass", True)):
        module: nn.Module = build()
        GlobalSubscriberManager.subscribe(module, [StatisticsSubscriber(str(tmp_path / name))])
        module = ORTModule(module) if wraps else module
        chance = torch.Generator().manual_seed(0)
        for size in (6, 5, 4, 7):
            labels = torch.arange(size) % 3
            module(torch.randn(size, 4, generator=chance), labels)["loss"].backward()
    assert "3 export(s)" in module.explain()
    assert_alike(tmp_path / "backpass", tmp_path / "torch")


def test_subscribing_to_an_ortmodule_and_again(tmp_path: Path) -> None:
    module = ORTModule(build())
    train(module, 2)
    for attempt in range(2):
        GlobalSubscriberManager.subscribe(module, [StatisticsSubscriber(str(tmp_path / str(attempt)))])
        train(module, 2)
        assert set(orders(tmp_path / str(attempt))) == {"step_0", "step_1"}
    assert (
        len(set(orders(tmp_path / "0")["step_0"])) == len(orders(tmp_path / "0")["step_0"]) - 6
    )  # the block runs twice
    GlobalSubscriberManager.unsubscribe()
    train(module, 1)
    assert set(orders(tmp_path / "1")) == {"step_0", "step_1"}


def test_evaluation_and_copies(tmp_path: Path) -> None:
    module = build()
    GlobalSubscriberManager.subscribe(module, [StatisticsSubscriber(str(tmp_path / "out"))])
    copied = copy.deepcopy(module)
    with torch.no_grad():
        copied.eval()(torch.randn(2, 4))
        ORTModule(module).eval()(torch.randn(2, 4))
    assert orders(tmp_path / "out")["step_0"] == orders(tmp_path / "out")["step_1"]
    assert not [name for names in orders(tmp_path / "out").values() for name in names if "backward" in name]


def test_there_is_no_warning_of_these_hooks(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    with caplog.at_level(logging.WARNING):
        subscribed_run(tmp_path / "out", wraps=True)
    assert "hooks" not in caplog.text


class Recorder(SubscriberBase):
    """Notes what it is called with, and doubles what the outermost module returns."""

    def __init__(self, start: int | None = None, end: int | None = None) -> None:
        super().__init__(start, end)
        self.calls: list[tuple[Any, ...]] = []

    def _note(self, what: str, context: RuntimeStates, module: nn.Module, *rest: Any) -> None:
        self.calls.append((what, type(module).__name__, context.global_states.module_to_module_index[module], *rest))

    def pre_forward_module_apply_impl(self, run_rtx: Any, module: Any, args: Any, kwargs: Any) -> Any:
        self._note("before", run_rtx, module, sorted(kwargs))
        return args, kwargs

    def pre_forward_tensor_apply_impl(self, run_rtx: Any, module: Any, tensor_index: int, tensor: Any) -> Any:
        self._note("in", run_rtx, module, tensor_index)
        return tensor

    def post_forward_module_apply_impl(self, run_rtx: Any, module: Any, args: Any, outputs: Any) -> Any:
        self._note("after", run_rtx, module)
        return args, outputs

    def post_forward_tensor_apply_impl(self, run_rtx: Any, module: Any, tensor_index: int, tensor: Any) -> Any:
        self._note("out", run_rtx, module, tensor_index)
        return tensor

    def post_forward_outmost_module_apply_impl(self, run_rtx: Any, module: Any, args: Any, outputs: Any) -> Any:
        self._note("end", run_rtx, module)
        return args, {name: 2 * value for name, value in outputs.items()}


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(2, 2)

    def forward(self, x: torch.Tensor, by: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"y": self.inner(x) * by}


def test_what_subscribers_are_called_with() -> None:
    module, recorder, manager = Two(), Recorder(), SubscriberManager()
    x, by = torch.ones(1, 2), torch.tensor(3.0)
    plain = module(x, by)["y"]
    manager.subscribe(module, [recorder])
    assert torch.equal(module(x, by=by)["y"], 2 * plain)
    assert recorder.calls == [
        ("before", "Two", 0, ["by"]),
        ("in", "Two", 0, 0),
        ("in", "Two", 0, 0),
        ("before", "Linear", 1, []),
        ("in", "Linear", 1, 0),
        ("after", "Linear", 1),
        ("out", "Linear", 1, 0),
        ("after", "Two", 0),
        ("out", "Two", 0, 0),
        ("end", "Two", 0),
    ]
    assert manager.get_run_context().global_states.module_index_to_depth == {0: 1, 1: 2}
    assert manager.get_subscriber(Recorder) is recorder
    with pytest.raises(RuntimeError, match=r"StatisticsSubscriber.* is not registered"):
        manager.get_subscriber(StatisticsSubscriber)


@pytest.mark.parametrize("seed", range(6))
def test_what_subscribers_compute_is_in_the_graph_of_their_steps(seed: int) -> None:
    chance = random.Random(seed)
    ranges = [(chance.choice([None, 1, 2]), chance.choice([None, 2, 3, 4])) for _ in range(2)]
    results = []
    for wraps in (False, True):
        torch.manual_seed(seed)
        module: nn.Module = Two()
        manager = SubscriberManager()
        manager.subscribe(module, [Recorder(*steps) for steps in ranges])
        module = ORTModule(module) if wraps else module
        results.append([module(torch.ones(1, 2), torch.tensor(3.0))["y"].detach() for _ in range(5)])
        assert manager.get_run_context().global_states.execution_step == 5
    torch.testing.assert_close(results[1], results[0])


def test_what_is_refused(tmp_path: Path) -> None:
    manager = SubscriberManager()
    with pytest.raises(ValueError, match=r"expected a torch.nn.Module instance"):
        manager.subscribe(3, [Recorder()])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="expected a SubscriberBase instance"):
        manager.subscribe(Two(), [3])  # type: ignore[list-item]
    with pytest.raises(RuntimeError, match="No subscribers are registered"):
        manager.subscribe(Two(), [])
    with pytest.raises(RuntimeError, match="StatisticsSubscriber is not registered"):
        inspect_activation("x", torch.ones(1))
    with pytest.raises(FileExistsError, match="already exists"):
        StatisticsSubscriber(str(tmp_path))
    with pytest.warns(UserWarning, match="already exists"):
        StatisticsSubscriber(str(tmp_path / ""), override_output_dir=True)
    assert not tmp_path.exists()
    for refused in (lambda: ZeROOffloadSubscriber(None, None), configure_ort_compatible_zero_stage3):
        with pytest.raises(backpass.Unsupported, match="DistributedDataParallel"):
            refused()


def test_two_runs_are_joined(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, wraps in (("torch", False), ("backpass", True)):
        subscribed_run(tmp_path / name, wraps)
    places = ["--pt_dir", tmp_path / "torch", "--ort_dir", tmp_path / "backpass", "--output_dir", tmp_path / "joined"]
    command = [sys.executable, "-m", "backpass.utils.hooks.merge_activation_summary", *map(str, places)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for run in ("merge_pt", "merge_ort"):
        files = sorted((tmp_path / "joined" / run).iterdir())
        assert [file.name for file in files] == [f"step_{i}_.txt" for i in range(5)]
        titles = re.findall(r"^>*(\w+) (forward|backward) run", files[0].read_text(), re.MULTILINE)
        assert [f"{name}_{way}" for name, way in titles] == orders(tmp_path / "torch")["step_0"]
    with pytest.raises(FileExistsError, match="--overwrite"):
        merge_activation_summary.main([str(p) for p in places])
    merge_activation_summary.main([*(str(p) for p in places), "--overwrite"])
