"""Children of fork: data loaders and process pools run sessions that their parent has used before, with threads."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

SECONDS = 100  # a child that waits for threads it does not have would wait for ever

START = """
    import os, signal, sys, threading
    import numpy as np
    import backpass
    from onnx import parser

    THREADS = {threads}

    def model(text):
        return parser.parse_model('<ir_version: 8, opset_import: ["": 17]> ' + text).SerializeToString()

    def session(text):
        return backpass.InferenceSession(model(text), num_threads=THREADS)

    products = session("g (float[n,n] x) => (float[n,n] y) {{ a = MatMul(x, x) b = Tanh(a) y = MatMul(b, x) }}")
    image = np.random.default_rng(0).standard_normal((4, 32, 40, 40)).astype(np.float32)
    weights = np.random.default_rng(1).standard_normal((32, 32, 3, 3)).astype(np.float32)
    convolution = session(
        "g (float[n,32,h,w] x, float[32,32,3,3] k) => (float[n,32,h2,w2] y) {{ y = Conv<pads = [1,1,1,1]>(x, k) }}"
    )

    def run():
        x = np.random.default_rng(2).standard_normal((300, 300)).astype(np.float32)
        return [products.run(None, {{"x": x}})[0], convolution.run(None, {{"x": image, "k": weights}})[0]]

    def same(a, b):
        return all(np.array_equal(i, j) for i, j in zip(a, b, strict=True))

    def in_child(work):
        child = os.fork()
        if child == 0:
            try:
                os._exit(0 if work() else 1)
            finally:
                os._exit(2)
        return os.waitpid(child, 0)[1] == 0

    wanted = run()
"""


def run(script: str, threads: int = 2) -> None:
    text = textwrap.dedent(START.format(threads=threads)) + textwrap.dedent(script)
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]),
    }
    with subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", text],
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
    ) as process:
        try:
            _, errors = process.communicate(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # children that hang as well
            raise
    assert process.returncode == 0, errors


@pytest.mark.parametrize("threads", [2, 4])
def test_sessions_of_the_parent_run_in_a_child(threads: int) -> None:
    script = """
        assert in_child(lambda: same(run(), wanted)), "child"
        assert in_child(lambda: in_child(lambda: same(run(), wanted)) and same(run(), wanted)), "grandchild"
        assert same(run(), wanted), "parent"
    """
    run(script, threads)


def test_sessions_made_in_a_child() -> None:
    run("""
        def work():
            made = session("g (float[n,n] x) => (float[n,n] y) { y = MatMul(x, x) }")
            return made.run(None, {"x": np.ones((400, 400), np.float32)})[0][0, 0] == 400
        assert in_child(work)
    """)


def test_a_child_of_another_thread() -> None:
    run("""
        results = []
        thread = threading.Thread(target=lambda: results.append(same(run(), wanted) and in_child(
            lambda: same(run(), wanted))))
        thread.start()
        thread.join()
        assert results == [True]
    """)


def test_children_while_another_thread_runs() -> None:
    run("""
        stop = threading.Event()
        def work():
            while not stop.is_set():
                products.run(None, {"x": image[0, 0]})
        thread = threading.Thread(target=work)
        thread.start()
        ok = [in_child(lambda: same(run(), wanted)) for _ in range(5)]
        stop.set()
        thread.join()
        assert all(ok), ok
    """)


def test_training_goes_on_in_a_child() -> None:
    """Forward, backward through a convolution, and the optimizer: the same bits as in the parent."""
    run("""
        from backpass import artifacts
        from backpass.api import CheckpointState, Module, Optimizer
        import onnx, pathlib, tempfile
        from onnx import numpy_helper
        network = onnx.load_from_string(model(
            "g (float[n,32,h,w] x) => (float[n,32] y) { a = Conv<pads = [1,1,1,1]>(x, k) b = Relu(a) "
            "c = GlobalAveragePool(b) d = Flatten(c) y = MatMul(d, m) }"))
        network.graph.initializer.append(numpy_helper.from_array(weights, "k"))
        network.graph.initializer.append(numpy_helper.from_array(np.eye(32, dtype=np.float32), "m"))
        folder = pathlib.Path(tempfile.mkdtemp())
        artifacts.generate_artifacts(network, requires_grad=["k", "m"], loss=artifacts.LossType.CrossEntropyLoss,
                                     optimizer=artifacts.OptimType.AdamW, artifact_directory=folder)
        options = backpass.SessionOptions()
        options.num_threads = THREADS
        state = CheckpointState.load_checkpoint(folder / "checkpoint")
        module = Module(folder / "training_model.onnx", state, session_options=options)
        optimizer = Optimizer(folder / "optimizer_model.onnx", module)
        labels = np.arange(4) % 32

        def step():
            module(image, labels)
            optimizer.step()
            module.lazy_reset_grad()
            return [np.array(state.parameters[name].data) for name in ("k", "m")]

        step()
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            os.write(write, b"".join(p.tobytes() for p in step()))
            os._exit(0)
        os.close(write)
        with os.fdopen(read, "rb") as pipe:
            found = pipe.read()
        assert os.waitpid(child, 0)[1] == 0
        assert found == b"".join(p.tobytes() for p in step())
    """)


def test_a_pool_of_forked_processes() -> None:
    run("""
        import multiprocessing
        with multiprocessing.get_context("fork").Pool(3) as pool:
            results = [task.get(60) for task in [pool.apply_async(run) for _ in range(6)]]
        assert all(same(r, wanted) for r in results)
    """)


def test_workers_of_a_data_loader() -> None:
    run("""
        import torch

        class Features(torch.utils.data.Dataset):
            def __len__(self):
                return 8
            def __getitem__(self, index):
                return torch.from_numpy(convolution.run(None, {"x": image[:1] * index, "k": weights})[0])

        torch.ones(1000, 1000) @ torch.ones(1000, 1000)
        loader = torch.utils.data.DataLoader(Features(), batch_size=2, num_workers=2, multiprocessing_context="fork",
                                             timeout=60)
        batches = list(loader)
        assert len(batches) == 4
        first = torch.stack([Features()[i] for i in (2, 3)])
        assert torch.equal(batches[1], first)
    """)


def test_a_child_of_a_program_that_trains_with_ortmodule() -> None:
    run("""
        import torch
        from backpass import ORTModule
        torch.set_num_threads(2)
        torch.manual_seed(0)
        module = ORTModule(torch.nn.Sequential(
            torch.nn.Conv2d(3, 16, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(16 * 30 * 30, 5)))
        x = torch.randn(8, 3, 32, 32)

        def step():
            module.zero_grad()
            module(x).square().mean().backward()
            return [p.grad.clone() for p in module.parameters()]

        before = step()
        assert in_child(lambda: all(torch.equal(a, b) for a, b in zip(step(), before, strict=True)))
    """)
