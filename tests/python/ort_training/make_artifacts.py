"""Training artifacts of small models, made by whichever package is asked for.

    python make_artifacts.py onnxruntime.training FOLDER [MODEL ...]
    python make_artifacts.py backpass FOLDER [MODEL ...]

FOLDER/<model>/ then holds `forward.onnx`, the four artifacts, and `batches.npz`: the batches of all inputs by their
position. onnxruntime.training is onnxruntime-training-cpu 1.19.2, in an interpreter of its own (onnx 1.16.2, numpy
below 2).
"""

import argparse
import contextlib
import importlib
import os
from pathlib import Path

import networks
import numpy as np
import onnx


def make(package: str, name: str, folder: Path) -> None:
    artifacts = importlib.import_module(f"{package}.artifacts")
    folder.mkdir(parents=True, exist_ok=True)
    task = networks.task(name)
    onnx.save(task.model, folder / "forward.onnx")
    np.savez(folder / "batches.npz", **{str(i): batch for i, batch in enumerate(task.batches)})
    with open(os.devnull, "w") as quiet, contextlib.redirect_stdout(quiet):
        artifacts.generate_artifacts(
            task.model,
            requires_grad=task.trained,
            frozen_params=task.frozen,
            loss=artifacts.LossType[task.loss] if task.loss else None,
            optimizer=artifacts.OptimType.AdamW,
            artifact_directory=str(folder),
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("package")
    parser.add_argument("folder", type=Path)
    parser.add_argument("models", nargs="*", default=list(networks.MODELS))
    arguments = parser.parse_args()
    for name in arguments.models:
        make(arguments.package, name, arguments.folder / name)


if __name__ == "__main__":
    main()
