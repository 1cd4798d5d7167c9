"""The export cache: the next process finds what was exported, and nothing it should not find."""

from __future__ import annotations

import enum
import json
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import MethodType, SimpleNamespace
from typing import Any

import cached_network
import numpy as np
import pytest
import torch
from backpass.ortmodule.description import NoKeyError
from backpass.ortmodule.fingerprint import fingerprint
from backpass.ortmodule.tree import ModuleTree
from ortmodule_check import wrap
from torch import nn

NETWORK = Path(__file__).with_name("cached_network.py")


def start(folder: Path, *arguments: str, network: Path = NETWORK, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(network), *(arguments or ("2",))],
        env={**os.environ, "ORTMODULE_CACHE_DIR": str(folder), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen[str]) -> dict[str, Any]:
    out, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    result: dict[str, Any] = json.loads(out.splitlines()[-1])
    return result


def files(folder: Path) -> dict[str, int]:
    return {ending: len(list(folder.glob(f"*.{ending}"))) for ending in ("onnx", "json", "part")}


@pytest.mark.slow
def test_the_second_process_finds_the_export(tmp_path: Path) -> None:
    """Also when two start at once, with other weights, and with functions of the user's."""
    arguments = ("2", "function=true", "dropout=0.5")
    first, other = start(tmp_path, *arguments), start(tmp_path, *arguments)
    made = finish(first)
    assert finish(other)["losses"] == made["losses"]
    assert files(tmp_path)["json"] == 1
    assert files(tmp_path)["part"] == 0
    second = finish(start(tmp_path, *arguments))
    assert second["cached"] == [True]
    assert second["losses"] == made["losses"]
    assert made["tracing"]
    assert not second["tracing"], "what captures modules takes a while to load, and has nothing to do here"
    reweighted = finish(start(tmp_path, *arguments, "weights=5"))
    assert reweighted["cached"] == [True]
    assert reweighted["losses"] != made["losses"]
    assert not any("ignored" in text for text in second["told"])


KEYS_OF_FAMILIES = """
import json, sys
sys.path.insert(0, sys.argv[1])
import zoo
from backpass.ortmodule import ORTModule, RuntimeOptions
keys = {}
for family in zoo.FAMILIES:
    module, inputs = zoo.make(family)
    manager = ORTModule(module, options=RuntimeOptions(cache_dir="unused"))._manager
    keys[family] = manager.cache.key(manager, manager._call(manager._look(), inputs, {}), False)
print(json.dumps(keys))
"""


@pytest.mark.slow
def test_families_are_found_by_every_process() -> None:
    """Objects of transformers hold what differs from process to process, such as Python's hashes."""
    runs = [
        subprocess.Popen(
            [sys.executable, "-c", KEYS_OF_FAMILIES, str(NETWORK.parent)], stdout=subprocess.PIPE, text=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
        )
        for seed in ("1", "2")
    ]  # fmt: skip
    one, other = (json.loads(run.communicate(timeout=300)[0].splitlines()[-1]) for run in runs)
    assert len(one) > 30
    assert None not in one.values()
    assert {family for family, key in one.items() if other[family] != key} == set()


class Small(nn.Module):
    def __init__(self, factor: float = 2.0) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.factor = factor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) * self.factor


@pytest.mark.slow
def test_what_an_export_depends_on(tmp_path: Path) -> None:
    """Each of these needs an export of its own; the weights do not."""
    x = torch.ones(3, 4)

    def came_from_cache(module: nn.Module, *args: Any, **options: Any) -> bool:
        ours = wrap(module, cache_dir=str(tmp_path), **options)
        ours(*(args or (x,)))
        return bool(ours._manager.variants[-1].from_cache)

    assert not came_from_cache(Small())
    assert came_from_cache(Small())  # other weights
    assert not came_from_cache(Small(3.0))
    assert not came_from_cache(Small().eval())
    assert not came_from_cache(Small().double(), x.double())
    assert not came_from_cache(Small(), torch.ones(2, 4))
    assert not came_from_cache(Small(), onnx_opset_version=22)
    assert not came_from_cache(Small(), dynamic_shapes="always")
    with torch.autocast("cpu", torch.bfloat16):
        assert not came_from_cache(Small())
    wider = Small()
    wider.linear = nn.Linear(4, 5)
    assert not came_from_cache(wider)
    assert came_from_cache(Small())
    frozen = Small().requires_grad_(False)
    assert came_from_cache(frozen)  # which gradients are wanted is decided later


@pytest.mark.slow
def test_code_that_changed_is_exported_again(tmp_path: Path) -> None:
    network = tmp_path / "network.py"
    shutil.copy(NETWORK, network)
    cache = tmp_path / "cache"
    made = finish(start(cache, "1", network=network))
    network.write_text(NETWORK.read_text().replace("FACTOR = 2.0", "FACTOR = 3.0"))
    changed = finish(start(cache, "1", network=network))
    assert changed["cached"] == [False]
    assert changed["losses"] != made["losses"]


def test_entries_that_are_damaged_or_foreign(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def run() -> bool:
        caplog.clear()
        with caplog.at_level(logging.WARNING, "backpass.ortmodule"):
            torch.manual_seed(0)
            ours = wrap(Small(), cache_dir=str(tmp_path))
            expected = ours.module(torch.ones(3, 4))
            torch.testing.assert_close(ours(torch.ones(3, 4)), expected)
        return bool(ours._manager.variants[0].from_cache)

    def told() -> int:
        return sum("is ignored" in r.getMessage() for r in caplog.records)

    assert not run()
    (entry,) = tmp_path.glob("*.json")
    (model,) = tmp_path.glob("*.onnx")
    text, data = entry.read_text(), model.read_bytes()
    foreign = json.dumps({**json.loads(text), "key": "something else"})
    broken = json.dumps({**json.loads(text), "inputs": "none"})
    for content, bytes_ in (
        ("[1, 2", data),
        (foreign, data),
        (broken, data),
        (text, data[:-1] + bytes([data[-1] ^ 1])),
    ):
        entry.write_text(content)
        model.write_bytes(bytes_)
        assert not run()
        assert told() == 1
        assert run()  # it was replaced
        assert told() == 0
    model.unlink()
    assert not run()
    assert told() == 0


def test_a_folder_that_cannot_be_written(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "backpass.ortmodule"):
        wrap(Small(), cache_dir="/proc/cache")(torch.ones(3, 4))  # nobody may write there, not even root
    assert "could not be cached" in caplog.text


def test_a_folder_that_is_a_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    with caplog.at_level(logging.WARNING, "backpass.ortmodule"):
        wrap(Small(), cache_dir=str(tmp_path / "file"))(torch.ones(3, 4))
    assert "could not be cached" in caplog.text


# ---- the key by itself
def key(module: nn.Module) -> str:
    return fingerprint(module, ModuleTree(module), ())


def test_attributes_in_the_key() -> None:
    def with_attribute(value: Any) -> nn.Module:
        module = Small()
        module.extra = value
        return module

    values = [
        None,
        1,
        "1",
        [1],
        (1,),
        {"a": 1},
        {"a": [2]},
        torch.ones(2),
        torch.zeros(2),
        torch.ones(2, dtype=torch.int64),
        torch.nn.functional.relu,
        torch.nn.functional.gelu,
        lambda x: x + 1,
        lambda x: x + 2,
        lambda x, y=1: x + y,
        lambda x, y=2: x + y,
        lambda x: [x + 1 for _ in x],
        lambda x: [x + 2 for _ in x],
        partial(torch.nn.functional.leaky_relu, negative_slope=0.1),
        partial(torch.nn.functional.leaky_relu, negative_slope=0.2),
        slice(1, 2),
        SimpleNamespace(a=1),
        SimpleNamespace(a=2),
        1.0,
        Level.LOW,
        Level.HIGH,
        np.float32(1),
        np.ones(2),
        [nn.LeakyReLU(0.1)],
        [nn.LeakyReLU(0.2)],
        Times(1).act,
        Times(2).act,
        Times(1),
    ]
    keys = [key(with_attribute(value)) for value in values]
    assert len(set(keys)) == len(values)
    assert keys == [key(with_attribute(value)) for value in values]


class Level(enum.Enum):
    LOW = 1
    HIGH = 2


class Times:
    __slots__ = ("factor",)

    def __init__(self, factor: float) -> None:
        self.factor = factor

    def act(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.factor


def times(factor: float) -> Callable[[Any], Any]:
    """A decorator of forward."""

    def decorate(forward: Any) -> Any:
        return lambda self, x: forward(self, x) * factor

    return decorate


SETTINGS = SimpleNamespace(factor=1.0, others=logging.getLogger("others"))


def in_a_closure(factor: float) -> nn.Module:
    class Local(nn.Linear):
        def forward(self, input: torch.Tensor) -> torch.Tensor:
            return super().forward(input) * factor

    return Local(2, 2)


def by_a_decorator(factor: float) -> nn.Module:
    class Local(nn.Linear):
        @times(factor)
        def forward(self, input: torch.Tensor) -> torch.Tensor:
            return super().forward(input)

    return Local(2, 2)


def of_the_class(factor: float) -> nn.Module:
    class Local(nn.Linear):
        kept = factor

        def forward(self, input: torch.Tensor) -> torch.Tensor:
            return super().forward(input) * self.kept

    return Local(2, 2)


def as_a_default(factor: float) -> nn.Module:
    class Local(nn.Linear):
        def forward(self, input: torch.Tensor, by: float = factor) -> torch.Tensor:
            return super().forward(input) * by

    return Local(2, 2)


def put_in_place(factor: float) -> nn.Module:
    module = nn.Linear(2, 2)
    module.forward = MethodType(lambda self, x: x * factor, module)  # type: ignore[method-assign]
    return nn.Sequential(module)


def in_a_global(factor: float) -> nn.Module:
    class Local(nn.Linear):
        def forward(self, input: torch.Tensor) -> torch.Tensor:
            return super().forward(input) * SETTINGS.factor

    SETTINGS.factor = factor
    return Local(2, 2)


def in_another_module(factor: float) -> nn.Module:
    class Local(nn.Linear):
        def forward(self, input: torch.Tensor) -> torch.Tensor:
            return super().forward(input) * cached_network.FACTOR

    cached_network.FACTOR = factor
    return Local(2, 2)


@pytest.mark.parametrize(
    "made",
    [in_a_closure, by_a_decorator, of_the_class, as_a_default, put_in_place, in_a_global, in_another_module],
)
def test_a_number_is_in_the_key_wherever_it_is(made: Callable[[float], nn.Module]) -> None:
    assert key(made(2.0)) != key(made(3.0))
    assert key(made(2.0)) == key(made(2.0))


FACTORS = {"second": 2.0}


def second(x: torch.Tensor) -> torch.Tensor:
    return x * FACTORS["second"]


class Scaled(nn.Linear):
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return second(super().forward(input))


def test_globals_in_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    before = key(Scaled(2, 2))
    monkeypatch.setitem(FACTORS, "second", 3.0)
    assert key(Scaled(2, 2)) != before
    monkeypatch.setitem(FACTORS, "second", 2.0)
    assert key(Scaled(2, 2)) == before


def test_hooks_have_no_key() -> None:
    module = Small()
    next(module.children()).register_forward_hook(lambda module, args, result: result * 2)
    with pytest.raises(NoKeyError, match="has hooks"):
        key(module)


def test_the_default_type_decides() -> None:
    class Ones(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * torch.ones(3)

    ours = wrap(Ones())
    assert ours(torch.arange(3)).dtype == torch.float32
    torch.set_default_dtype(torch.float64)
    try:
        assert ours(torch.arange(3)).dtype == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


def test_ties_are_in_the_key() -> None:
    def pair(tied: bool) -> nn.Module:
        module = nn.ModuleList([nn.Linear(3, 3), nn.Linear(3, 3)])
        if tied:
            module[1].weight = module[0].weight
        return module

    assert key(pair(True)) != key(pair(False))
    assert key(pair(True)) == key(pair(True))


@pytest.mark.slow
def test_classes_without_a_file_have_no_key() -> None:
    code = """
import torch
from torch import nn
from backpass.ortmodule.description import NoKeyError
from backpass.ortmodule.fingerprint import fingerprint
from backpass.ortmodule.tree import ModuleTree
class Typed(nn.Module):
    pass
try:
    fingerprint(Typed(), ModuleTree(Typed()), ())
except NoKeyError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "typed in" in done.stdout
    assert issubclass(NoKeyError, Exception)
