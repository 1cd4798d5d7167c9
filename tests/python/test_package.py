"""The package as a whole: its version and its type stub."""

import os
import subprocess
import sys
from pathlib import Path

import backpass

ROOT = Path(__file__).parents[2]


def test_version_comes_from_one_place():
    assert backpass.__version__ == (ROOT / "VERSION").read_text().strip()


def test_stub_of_native_module_is_current(tmp_path):
    stub = tmp_path / "_core.pyi"
    subprocess.run([sys.executable, "-m", "nanobind.stubgen", "-q", "-m", "backpass._core", "-o", stub], check=True)
    assert stub.read_text() == (ROOT / "python/backpass/_core.pyi").read_text(), "run `make stubs`"


def test_threads_do_not_wait_for_long_unless_the_user_says_so():
    """OpenMP reads it when it is loaded: with the package, if nobody was first."""
    ask = "import backpass, os; print(os.environ.get('GOMP_SPINCOUNT'))"
    plain = {k: v for k, v in os.environ.items() if k not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    for given, expected in (({}, "5000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "active"}, "None")):
        run = subprocess.run(
            [sys.executable, "-c", ask], env={**plain, **given}, check=True, capture_output=True, text=True
        )
        assert run.stdout.strip() == expected


def test_torch_and_the_engine_share_one_openmp():
    """Two runtimes would be two sets of threads; whoever comes first, both use one."""
    count = "print(len({line.split()[-1] for line in open('/proc/self/maps') if 'gomp' in line or 'iomp' in line}))"
    for order in ("import torch, backpass", "import backpass, torch"):
        run = subprocess.run([sys.executable, "-c", f"{order}; {count}"], check=True, capture_output=True, text=True)
        assert run.stdout.split() == ["1"], order


def test_importing_the_package_loads_little():
    """numpy with its types, and the engine: onnx and torch are loaded by whoever needs them."""
    ask = "import sys; import numpy; before = set(sys.modules); import backpass; print(*set(sys.modules) - before)"
    run = subprocess.run([sys.executable, "-c", ask], check=True, capture_output=True, text=True)
    loaded = run.stdout.split()
    foreign = ("onnx", "torch", "google", "transformers", "importlib.metadata", "asyncio", "logging")
    assert not [name for name in loaded if name.startswith(foreign)]
    ours = {name.split(".")[1] for name in loaded if name.startswith("backpass.")}
    allowed = {"_collection", "_convert", "_core", "_html", "_values", "_waiting", "custom", "gradient", "profile"}
    assert ours <= {*allowed, "session"}, "what few programs use is to be imported where it is used"
    assert len(loaded) < 40, sorted(loaded)
