"""Trains artifacts for some of the steps in `batches.npz`, with whichever package is asked for.

    python train.py onnxruntime.training FOLDER CHECKPOINT FIRST END SAVED
    python train.py backpass FOLDER CHECKPOINT FIRST END SAVED

Starts from CHECKPOINT, runs steps FIRST to END - 1 with AdamW, saves the checkpoint SAVED with the optimizer's state,
and prints as JSON the losses and a loss of evaluation (null where the package cannot load its eval model). The
parameters go to SAVED.npz.
"""

import importlib
import json
import sys
from pathlib import Path

import networks
import numpy as np


def module_of(api, folder, state):
    """With the eval model if it can be had: 1.19.2 refuses its own for batch normalisation."""
    training, evaluation = str(folder / "training_model.onnx"), str(folder / "eval_model.onnx")
    try:
        return api.Module(training, state, evaluation), True
    except RuntimeError as error:
        if "BatchNormalization" not in str(error):
            raise
        return api.Module(training, state), False


def main() -> None:
    package, folder, checkpoint, saved = sys.argv[1], Path(sys.argv[2]), sys.argv[3], sys.argv[6]
    steps = range(int(sys.argv[4]), int(sys.argv[5]))
    api = importlib.import_module(f"{package}.api")
    stored = np.load(folder / "batches.npz")
    batches = [stored[str(i)] for i in range(len(stored.files))]
    state = api.CheckpointState.load_checkpoint(checkpoint)
    module, can_evaluate = module_of(api, folder, state)
    optimizer = api.Optimizer(str(folder / "optimizer_model.onnx"), module)
    optimizer.set_learning_rate(networks.LEARNING_RATE)
    losses = []
    for step in steps:
        losses.append(float(module(*(batch[step] for batch in batches))))
        optimizer.step()
        module.lazy_reset_grad()
    api.CheckpointState.save_checkpoint(state, saved, include_optimizer_state=True)
    np.savez(f"{saved}.npz", **{name: np.array(parameter.data) for name, parameter in state.parameters})
    evaluated = None
    if can_evaluate:
        module.eval()
        evaluated = float(module(*(batch[0] for batch in batches)))
    print(json.dumps({"losses": losses, "evaluated": evaluated}))


if __name__ == "__main__":
    main()
