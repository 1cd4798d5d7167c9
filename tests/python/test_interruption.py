"""Stopping what runs: Ctrl-C, a cancel flag, a time limit; and what is left afterwards."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import Any

import backpass
import long_runs
import numpy as np
import pytest
from backpass.api import CheckpointState, Module, Optimizer
from long_runs import FOREVER, IDLE, LOOP, SCAN
from test_training_session import optimizer_model, state  # noqa: F401  # a fixture

X = np.ones(4, np.float32)
HEARD = 1.0  # seconds within which a wish to stop is heard
SLACK = 4.0  # what a machine with other work may add


def feeds(count: int) -> dict[str, np.ndarray]:
    return {"count": np.array(count), "x": X}


@pytest.mark.parametrize("reference", [False, True])
@pytest.mark.parametrize("text", [LOOP, IDLE], ids=["loop", "idle"])
def test_a_time_limit_names_the_node(text: str, reference: bool) -> None:
    session = backpass.InferenceSession(long_runs.model(text), time_limit=0.1, reference=reference)
    start = time.monotonic()
    with pytest.raises(backpass.Cancelled, match=r"^\[\w+ '.*'\] time limit: got 0\.\d+ s, expected at most 0\.1 s"):
        session.run(None, feeds(FOREVER))
    assert time.monotonic() - start < HEARD + SLACK
    (y,) = session.run(None, feeds(3))
    np.testing.assert_array_equal(y, 4 * X if text is LOOP else X)


def test_a_time_limit_inside_of_a_scan() -> None:
    session = backpass.InferenceSession(long_runs.model(SCAN), time_limit=0.05, optimize=False)
    with pytest.raises(backpass.Cancelled, match="time limit"):
        session.run(None, {"x": X, "steps": np.zeros((3_000_000, 4), np.float32)})
    session.run(None, {"x": X, "steps": np.zeros((3, 4), np.float32)})


def test_a_long_kernel_is_stopped_in_its_midst() -> None:
    """One node: nothing comes between steps."""
    session = backpass.InferenceSession(long_runs.products(1), time_limit=0.05, num_threads=2)
    big = np.ones((6000, 6000), np.float32)  # seconds
    start = time.monotonic()
    with pytest.raises(backpass.Cancelled, match=r"^\[MatMul '"):
        session.run(None, {"x": big})
    assert time.monotonic() - start < HEARD + SLACK
    (y,) = session.run(None, {"x": big[:20, :20]})
    np.testing.assert_array_equal(y, np.full((20, 20), 20, np.float32))


@pytest.mark.parametrize("limit", [-1.0, math.nan, -math.inf])
def test_a_time_limit_is_a_number_of_seconds(limit: float) -> None:
    with pytest.raises(backpass.InvalidInput, match=r"time_limit: got .*, expected a number of seconds"):
        backpass.InferenceSession(long_runs.model(LOOP), time_limit=limit)


@pytest.mark.parametrize("limit", [0.0, 1e300, math.inf])
def test_no_limit(limit: float) -> None:
    backpass.InferenceSession(long_runs.model(LOOP), time_limit=limit).run(None, feeds(2))


@pytest.mark.parametrize("threads", [1, 2])
def test_a_flag_stops_runs_of_other_threads(threads: int) -> None:
    flag = backpass.CancelFlag()
    session = backpass.InferenceSession(long_runs.model(LOOP), cancel=flag, num_threads=threads)
    raised: list[BaseException] = []

    def run() -> None:
        try:
            session.run(None, feeds(FOREVER))
        except backpass.Cancelled as error:
            raised.append(error)

    runs = [threading.Thread(target=run) for _ in range(3)]
    for thread in runs:
        thread.start()
    time.sleep(0.1)
    assert not raised
    flag.set()
    for thread in runs:
        thread.join(HEARD + SLACK)
        assert not thread.is_alive()
    assert len(raised) == 3
    assert all("cancel flag is set" in str(e) for e in raised)
    with pytest.raises(backpass.Cancelled):
        session.run(None, feeds(2))  # it stays set
    flag.clear()
    np.testing.assert_array_equal(session.run(None, feeds(2))[0], 3 * X)


def folded(**settings: Any) -> None:
    """A session whose endless loop depends on constants alone."""
    text = f"""<ir_version: 8, opset_import: ["": 17]> g () => (float[4] y)
    <int64 count = {{{FOREVER}}}, float[4] x = {{1, 1, 1, 1}}> {{
      y = Loop<body = b (int64 i, bool go, float[4] s) => (bool go_on, float[4] next)
        {{ go_on = Identity(go) next = Add(s, x) }}>(count, , x)
    }}"""
    backpass.InferenceSession(long_runs.model(text), **settings).run(None, {})


def test_folding_of_constants_is_stopped() -> None:
    """What a session computes while it is made counts as well."""
    start = time.monotonic()
    with pytest.raises(backpass.Cancelled):
        folded(time_limit=0.1)
    assert time.monotonic() - start < HEARD + SLACK


# ---- Training: nothing half-written that could be mistaken for whole.
LOOPED = """<ir_version: 8, opset_import: ["": 17]>
g (int64 count, float[4] x) => (float[1] loss) <float[4] w = {1, 2, 3, 4}, int64[1] one = {1}> {
  p = Mul(x, w)
  s = Loop<body = b (int64 i, bool go, float[4] s) => (bool go_on, float[4] next)
    { go_on = Identity(go) next = Add(s, p) }>(count, , p)
  r = ReduceSum<keepdims = 0>(s)
  loss = Reshape(r, one)
}"""


def looped(flag: backpass.CancelFlag) -> tuple[CheckpointState, Module, Optimizer]:
    core = backpass._core.CheckpointState()
    core.add_parameter("w", backpass._convert.to_engine(np.array([1, 2, 3, 4], np.float32)), True)
    model = backpass._core.build_training_model(long_runs.model(LOOPED), ["w"], [], ["loss"])[0]
    made = CheckpointState(core)
    options = backpass.SessionOptions()
    options.cancel = flag
    module = Module(model, made, session_options=options)
    return made, module, Optimizer(optimizer_model("SGDOptimizerV2"), module)


def stop_soon(flag: backpass.CancelFlag) -> threading.Timer:
    timer = threading.Timer(0.1, flag.set)
    timer.start()
    return timer


def test_a_stopped_training_step_leaves_parameters_and_refuses_its_gradients() -> None:
    flag = backpass.CancelFlag()
    kept, module, optimizer = looped(flag)
    module(np.array(2), X)
    before = np.array(kept.parameters["w"].data)
    timer = stop_soon(flag)
    with pytest.raises(backpass.Cancelled):
        module(np.array(10**8), X)  # adds to the gradients
    timer.join()
    flag.clear()
    np.testing.assert_array_equal(kept.parameters["w"].data, before)
    with pytest.raises(backpass.InvalidInput, match=r"optimizer_step: got gradients .* stopped .* lazy_reset_grad"):
        optimizer.step()
    with pytest.raises(backpass.InvalidInput, match="train_step: got gradients"):
        module(np.array(2), X)
    np.testing.assert_array_equal(kept.parameters["w"].data, before)
    module.lazy_reset_grad()
    module(np.array(2), X)
    np.testing.assert_array_equal(kept.parameters["w"].grad, 3 * X)
    optimizer.step()
    assert not np.array_equal(kept.parameters["w"].data, before)


def test_wrong_inputs_leave_gradients_as_they_were() -> None:
    kept, module, optimizer = looped(backpass.CancelFlag())
    module(np.array(2), X)
    with pytest.raises(backpass.InvalidInput):
        module(np.array(2), np.ones(5, np.float32))
    optimizer.step()
    np.testing.assert_array_equal(kept.parameters["w"].grad, 3 * X)


def test_updates_are_not_stopped() -> None:
    flag = backpass.CancelFlag()
    kept, module, optimizer = looped(flag)
    module(np.array(0), X)
    flag.set()
    optimizer.step()
    np.testing.assert_allclose(kept.parameters["w"].data, np.array([1, 2, 3, 4]) - 1e-3, rtol=1e-6)


# ---- Ctrl-C, in a process of its own.
def interrupted(script: str, tmp_path: Path) -> str:
    """Runs a script that prints `ready` and then works for ever; presses Ctrl-C half a second later. What it printed
    afterwards."""
    file = tmp_path / "script.py"
    file.write_text(textwrap.dedent(script))
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]),
    }
    process = subprocess.Popen([sys.executable, file], stdout=subprocess.PIPE, text=True, env=environment)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        time.sleep(0.5)
        pressed = time.monotonic()
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "heard\n"
        assert time.monotonic() - pressed < HEARD + SLACK
        rest = process.stdout.read()
        process.wait(60)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0
    return rest


LOOP_SCRIPT = """
    import backpass, long_runs, numpy as np
    session = backpass.InferenceSession(long_runs.model(long_runs.LOOP), {settings})
    feeds = lambda count: {{"count": np.array(count), "x": np.ones(4, np.float32)}}
    print("ready", flush=True)
    try:
        session.run(None, feeds(long_runs.FOREVER))
    except KeyboardInterrupt:
        print("heard", flush=True)
    print(session.run(None, feeds(2))[0])
"""


@pytest.mark.parametrize("settings", ["num_threads=1", "num_threads=2", "reference=True"])
def test_ctrl_c_in_a_loop(settings: str, tmp_path: Path) -> None:
    assert interrupted(LOOP_SCRIPT.format(settings=settings), tmp_path) == "[3. 3. 3. 3.]\n"


def test_ctrl_c_in_a_long_kernel(tmp_path: Path) -> None:
    script = """
        import backpass, long_runs, numpy as np
        session = backpass.InferenceSession(long_runs.products(1), num_threads=2)
        x = np.ones((8000, 8000), np.float32)
        print("ready", flush=True)
        try:
            while True:
                session.run(None, {"x": x})
        except KeyboardInterrupt:
            print("heard", flush=True)
        print(session.run(None, {"x": x[:2, :2]})[0].tolist())
    """
    assert interrupted(script, tmp_path) == "[[2.0, 2.0], [2.0, 2.0]]\n"


def test_ctrl_c_while_a_session_is_made(tmp_path: Path) -> None:
    script = """
        import backpass, test_interruption
        print("ready", flush=True)
        try:
            test_interruption.folded()
        except KeyboardInterrupt:
            print("heard", flush=True)
    """
    assert interrupted(script, tmp_path) == ""


def test_ctrl_c_leaves_runs_of_other_threads_alone(tmp_path: Path) -> None:
    script = """
        import threading, backpass, long_runs, numpy as np
        session = backpass.InferenceSession(long_runs.model(long_runs.LOOP), num_threads=2)
        results = []
        def run():
            results.append(session.run(None, {"count": np.array(300_000), "x": np.ones(4, np.float32)})[0])
        thread = threading.Thread(target=run)
        thread.start()
        print("ready", flush=True)
        try:
            threading.Event().wait()
        except KeyboardInterrupt:
            print("heard", flush=True)
        thread.join()
        print(results[0].tolist() == [300_001.0] * 4)
    """
    assert interrupted(script, tmp_path) == "True\n"


def test_a_signal_handler_may_run_a_session_between_steps_only(tmp_path: Path) -> None:
    """The buffers of a kernel under way belong to it."""
    script = """
        import signal, backpass, long_runs, numpy as np
        small = backpass.InferenceSession(long_runs.products(1))
        big = backpass.InferenceSession(long_runs.products(1), num_threads=2)
        x = np.ones((8000, 8000), np.float32)
        def handler(number, frame):
            print("heard", flush=True)
            small.run(None, {"x": x[:2, :2]})
        signal.signal(signal.SIGINT, handler)
        print("ready", flush=True)
        try:
            while True:
                big.run(None, {"x": x})
        except backpass.InvalidInput as error:
            print(error)
    """
    assert "called by a signal handler" in interrupted(script, tmp_path)


def test_ctrl_c_in_ortmodule(tmp_path: Path) -> None:
    script = """
        import torch
        from backpass import ORTModule
        class Slow(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.w = torch.nn.Parameter(torch.eye(600))
            def forward(self, x):
                for _ in range(40):
                    x = x @ self.w
                return x.sum()
        module = ORTModule(Slow())
        x = torch.ones(600, 600)
        module(x).backward()
        print("ready", flush=True)
        try:
            while True:
                module(x).backward()
        except KeyboardInterrupt:
            print("heard", flush=True)
        module.zero_grad()
        print(module(x).item())
    """
    assert interrupted(script, tmp_path) == "360000.0\n"
