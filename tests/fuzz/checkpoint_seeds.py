"""Write the seed corpus of checkpoint_fuzz: one small checkpoint of every kind.

Usage: python tests/fuzz/checkpoint_seeds.py FOLDER
"""

import argparse
from pathlib import Path

import numpy as np
from backpass._core import CheckpointState, OptimizerGroup, Tensor

TYPES = {"float32": 1, "uint8": 2, "int64": 7, "bool": 9, "float16": 10, "float64": 11}


def tensor(dtype: str, *shape: int) -> Tensor:
    return Tensor.from_array(np.ones(shape, dtype), TYPES[dtype], list(shape))


def full_state() -> CheckpointState:
    state = CheckpointState()
    for i, dtype in enumerate(TYPES):
        state.add_parameter(f"p{i}", tensor(dtype, *[2] * (i % 3)), requires_grad=i % 2 == 0)
    group = OptimizerGroup()
    group.step = 3
    group.momentums = {"p0": {"momentum0": tensor("float32"), "momentum1": tensor("float32")}}
    state.set_group(group)
    for name, value in {"i": 1, "f": 0.5, "s": "text"}.items():
        state.set_property(name, value)
    resume = state.resume
    resume.learning_rate, resume.seed, resume.random_counter = 0.1, 1, 2
    resume.scheduler, resume.scheduler_state = "linear", {"total": 10}
    return state


def nominal_state() -> CheckpointState:
    state = CheckpointState()
    state.add_nominal("w", TYPES["float32"])
    state.add_nominal("frozen", TYPES["int64"], requires_grad=False)
    return state


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    full = full_state()
    (folder / "empty").write_bytes(CheckpointState().to_bytes())
    (folder / "full").write_bytes(full.to_bytes(include_optimizer_state=True))
    (folder / "parameters").write_bytes(full.to_bytes())
    (folder / "nominal").write_bytes(nominal_state().to_bytes())
    full.uses_external_data = True
    full.add_parameter("large", tensor("float64", 16))
    full.save(folder / "external")
    (folder / "external.data").unlink()


if __name__ == "__main__":
    main()
