"""Loads a model whose weights lie in a large external file: how long, and how much memory grows.

The file is sparse, so it takes no room on the disk. Each engine gets a process of its own: `python large_model.py
<engine> <model>` prints one JSON line.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

ENGINES = ("Backpass", "onnxruntime")
WIDTH = 4096


@dataclass(frozen=True)
class Result:
    engine: str
    load_seconds: float
    first_run_seconds: float
    after_load: int  # bytes of resident memory more than before
    after_run: int
    private_after_run: int


def compare(gigabytes: float) -> list[Result]:
    with tempfile.TemporaryDirectory() as folder:
        model = make(Path(folder), gigabytes)
        return [_in_fresh_process(engine, model) for engine in ENGINES]


def make(folder: Path, gigabytes: float) -> Path:
    """A chain of square matrix products over `gigabytes` of float32 weights."""
    matrix_bytes = WIDTH * WIDTH * 4
    layers = max(1, round(gigabytes * 2**30 / matrix_bytes))
    with (folder / "weights.bin").open("wb") as file:
        file.truncate(layers * matrix_bytes)
        for i in range(layers):  # all different: equal weights could be kept once
            file.seek(i * matrix_bytes)
            file.write(np.float32(i + 1).tobytes())
    weights = [_weight(f"w{i}", i * matrix_bytes, matrix_bytes) for i in range(layers)]
    nodes = [helper.make_node("MatMul", [f"x{i}", f"w{i}"], [f"x{i + 1}"], name=f"layer{i}") for i in range(layers)]
    row = ["batch", WIDTH]
    graph = helper.make_graph(
        nodes,
        "large",
        [helper.make_tensor_value_info("x0", TensorProto.FLOAT, row)],
        [helper.make_tensor_value_info(f"x{layers}", TensorProto.FLOAT, row)],
        weights,
    )
    path = folder / "model.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def _weight(name: str, offset: int, length: int) -> TensorProto:
    tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=[WIDTH, WIDTH])
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in {"location": "weights.bin", "offset": offset, "length": length}.items():
        tensor.external_data.add(key=key, value=str(value))
    return tensor


def _in_fresh_process(engine: str, model: Path) -> Result:
    done = subprocess.run([sys.executable, __file__, engine, model], check=True, capture_output=True, text=True)
    return Result(engine, **json.loads(done.stdout.splitlines()[-1]))


# ---- In the child.
def _open(engine: str, model: str) -> Any:
    if engine == "Backpass":
        import backpass

        return lambda: backpass.InferenceSession(model)
    import onnxruntime as ort

    return lambda: ort.InferenceSession(model, providers=["CPUExecutionProvider"])


def _memory(field: str) -> int:
    """Bytes, from Linux: VmRSS is everything resident, RssAnon what is not a file's."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:"))


def _measure(engine: str, model: str) -> dict[str, Any]:
    load = _open(engine, model)
    resident, private = _memory("VmRSS"), _memory("RssAnon")
    start = time.perf_counter()
    session = load()
    loaded = time.perf_counter()
    after_load = _memory("VmRSS") - resident
    began = time.perf_counter()
    session.run(None, {"x0": np.zeros((1, WIDTH), np.float32)})
    return {
        "load_seconds": loaded - start,
        "first_run_seconds": time.perf_counter() - began,
        "after_load": after_load,
        "after_run": _memory("VmRSS") - resident,
        "private_after_run": _memory("RssAnon") - private,
    }


if __name__ == "__main__":
    print(json.dumps(_measure(sys.argv[1], sys.argv[2])))
