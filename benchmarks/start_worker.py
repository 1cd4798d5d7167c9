"""Starts without torch, timed in a process that has loaded nothing yet.

python benchmarks/start_worker.py import            seconds of `import numpy`, and of `import backpass` with it
python benchmarks/start_worker.py artifacts FOLDER  seconds from the import to the end of the first step, and of a later
                                                    step; the folder holds artifacts and batch.npz
"""

from __future__ import annotations

import sys
import time
from pathlib import Path


def imported() -> tuple[float, float]:
    began = time.perf_counter()
    import numpy  # noqa: F401

    of_numpy = time.perf_counter() - began
    import backpass  # noqa: F401

    return of_numpy, time.perf_counter() - began


def first_and_later(folder: Path) -> tuple[float, float]:
    began = time.perf_counter()
    import numpy as np
    from backpass.api import CheckpointState, Module, Optimizer

    state = CheckpointState.load_checkpoint(str(folder / "checkpoint"))
    module = Module(str(folder / "training_model.onnx"), state, str(folder / "eval_model.onnx"))
    optimizer = Optimizer(str(folder / "optimizer_model.onnx"), module)
    batch = list(np.load(folder / "batch.npz").values())
    times = []
    for _ in range(4):
        module(*batch)
        optimizer.step()
        module.lazy_reset_grad()
        times.append(time.perf_counter() - began)
        began = time.perf_counter()
    return times[0], min(times[1:])


if __name__ == "__main__":
    print(*(imported() if sys.argv[1] == "import" else first_and_later(Path(sys.argv[2]))))
