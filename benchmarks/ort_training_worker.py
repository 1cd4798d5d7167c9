"""Runs in the interpreter that has onnxruntime-training 1.19.2: trains artifacts, answers each line with the times of
the steps it took and their losses."""

import sys
import time
from pathlib import Path

import numpy as np
import onnxruntime
from onnxruntime.training.api import CheckpointState, Module, Optimizer

folder, threads = Path(sys.argv[1]), int(sys.argv[2])
batch = np.load(folder / "batch.npz")
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = threads
options.log_severity_level = 4
state = CheckpointState.load_checkpoint(str(folder / "checkpoint"))
module = Module(str(folder / "training_model.onnx"), state, device="cpu", session_options=options)
optimizer = Optimizer(str(folder / "optimizer_model.onnx"), module)
for line in sys.stdin:
    times, losses = [], []
    end = time.perf_counter() + float(line)
    while time.perf_counter() < end or not times:
        began = time.perf_counter()
        losses.append(float(np.asarray(module(batch["x"], batch["y"])).ravel()[0]))
        optimizer.step()
        module.lazy_reset_grad()
        times.append(time.perf_counter() - began)
    print(*times, *losses, flush=True)
