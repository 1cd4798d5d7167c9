"""Runs a task of tasks.py on several processes, by gloo or MPI."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

TASKS = Path(__file__).with_name("tasks.py")
BACKENDS = ["gloo", "mpi"]


@dataclass
class Ended:
    """A process, or all of mpirun's together."""

    code: int
    output: str


def launch(
    backend: str, size: int, task: str, folder: Path, *arguments: object, check: bool = True, timeout: float = 120,
    mpirun: tuple[str, ...] = (),
) -> list[Ended]:  # fmt: skip
    """`task` of tasks.py gets a communicator, the folder and the arguments, all of them strings."""
    call = [sys.executable, str(TASKS), backend, str(size), task, str(folder), *map(str, arguments)]
    places = os.pathsep.join([str(TASKS.parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = dict(os.environ, OMP_NUM_THREADS="1", BACKPASS_VERIFY_PASSES="0", PYTHONPATH=places)
    if backend == "mpi":
        if shutil.which("mpirun") is None or importlib.util.find_spec("mpi4py") is None:
            pytest.skip("mpirun or mpi4py is not installed")
        environment |= {"OMPI_MCA_rmaps_base_oversubscribe": "1", "OMPI_MCA_btl": "self,vader"}
        root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
        commands = [["mpirun", *root, "--bind-to", "none", *mpirun, "-n", str(size), *call]]
        environments = [environment]
    else:
        commands = [call] * size
        environments = [environment | {"RANK": str(rank)} for rank in range(size)]
    processes = [
        subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for command, env in zip(commands, environments, strict=True)
    ]
    try:
        outputs = [process.communicate(timeout=timeout)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    ended = [Ended(process.returncode, output) for process, output in zip(processes, outputs, strict=True)]
    if check:
        for one in ended:
            assert one.code == 0, one.output
    return ended


def results(folder: Path, size: int, begin: str = "") -> list[dict[str, Any]]:
    """What each rank saved."""
    return [dict(np.load(folder / f"{begin}{rank}.npz")) for rank in range(size)]
