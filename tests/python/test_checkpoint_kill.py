"""kill -9 while a checkpoint is being saved: the old or the new one loads, always."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time

import numpy as np
import pytest
from backpass._core import CheckpointState

# Every number in a state is its version: a mixture of two states shows.
SAVER = """
import sys
import numpy as np
from backpass._core import CheckpointState, OptimizerGroup, Tensor

def tensor(value, size):
    return Tensor.from_array(np.full(size, value, np.float32), 1, [size])

def state(version, external):
    s = CheckpointState()
    s.add_parameter("w", tensor(version, 100_000))
    s.add_parameter("b", tensor(version, 3))
    s.set_property("version", version)
    group = OptimizerGroup()
    group.step = version
    group.momentums = {"w": {"momentum0": tensor(version, 100_000)}}
    s.set_group(group)
    s.uses_external_data = external
    return s

path, version, kind = sys.argv[1], int(sys.argv[2]), sys.argv[3]
while True:
    external = kind == "external" or (kind == "changing" and version % 3 != 0)
    state(version, external).save(path, include_optimizer_state=True)
    print(version, flush=True)
    version += 1
"""


def version_of(path):
    """The version in the checkpoint, once everything in it is of that version."""
    state = CheckpointState.load(path)
    version = state.property("version")
    assert state.parameter_names == ["w", "b"]
    (group,) = state.optimizer_groups
    assert group.step == version
    for tensor in (state.parameter("w"), state.parameter("b"), group.momentums["w"]["momentum0"]):
        np.testing.assert_array_equal(tensor.array(), np.float32(version))
    return version


def kill_while_saving(path, version, kind, pause):
    """Returns the last version reported as saved before the process was killed."""
    command = [sys.executable, "-c", SAVER, path, str(version), kind]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as saver:
        assert saver.stdout.readline() == f"{version}\n", "the saver did not start"
        time.sleep(pause)
        saver.kill()
        reported = saver.stdout.read().split("\n")
    return max([version, *(int(line) for line in reported[:-1])])


def run(tmp_path, kind, kills):
    path = tmp_path / "c"
    moments = random.Random(kills)
    version, interrupted = 0, 0
    for _ in range(kills):
        reported = kill_while_saving(path, version, kind, moments.uniform(0, 0.05))
        found = version_of(path)
        assert reported <= found <= reported + 1, "what was reported as saved is gone"
        files = set(os.listdir(tmp_path))
        leftovers = files - {"c", "c.data"}
        interrupted += bool(leftovers)
        assert len(leftovers) <= 2, "leftovers of earlier saves were not removed"
        version = found + 1
    return interrupted


@pytest.mark.parametrize("kind", ["alone", "external", "changing"])
def test_some_kills(tmp_path, kind):
    run(tmp_path, kind, 7)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["alone", "external", "changing"])
def test_two_hundred_kills(tmp_path, kind):
    interrupted = run(tmp_path, kind, 200)
    assert interrupted > 50, "too few kills hit a save: this proves nothing"
