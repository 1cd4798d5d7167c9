"""Training whose updates are combined by Adasum, against trainers that are brought together by numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from backpass import _core, parallel
from backpass._convert import to_engine, to_numpy
from cases import network

ROWS, STEPS = 3, 4


class Run:
    """A trainer of one rank, on data of its own."""

    def __init__(self, seed: int, rank: int, comm: Any, algorithm: str, **changes: Any) -> None:
        dtype = np.float64 if seed % 2 == 0 else np.float32
        model, self.width, self.classes = network(np.random.default_rng(seed), dtype)
        self.dtype, self.rng = dtype, np.random.default_rng((seed, rank))
        options = _core.TrainerOptions()
        options.algorithm = algorithm
        options.session.num_threads = 1
        for name, value in changes.items():
            setattr(options, name, value)
        if comm is not None:
            options.communicator = parallel.as_communicator(comm)
            options.parallel.adasum = True
            options.parallel.bucket_bytes = [1, 3000, 25 << 20][seed % 3]
        self.state = _core.Trainer.state_of(model, "loss")
        self.trainer = _core.Trainer(self.state, options)
        self.program = self.trainer.add_model(model, "loss", ["loss"])
        self.accumulation = options.accumulation_steps

    def update(self, spoil: bool = False) -> bool:
        for _ in range(self.accumulation):
            x = self.rng.standard_normal((ROWS, self.width)).astype(self.dtype)
            labels = self.rng.integers(0, self.classes, ROWS)
            inputs = [to_engine(x * np.inf if spoil else x), to_engine(labels)]
            _, updated, _ = self.trainer.train_step(self.program, inputs, 0.05)
        return updated

    def weights(self) -> dict[str, np.ndarray]:
        return {name: to_numpy(self.state.parameter(name)).copy() for name in self.trainer.trained}

    def set(self, weights: dict[str, np.ndarray]) -> None:
        for name, value in weights.items():
            to_numpy(self.state.parameter(name))[...] = value


def pair(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    dot = (a * b).sum()
    return a * (1 - dot / (2 * (a * a).sum() or 1)) + b * (1 - dot / (2 * (b * b).sum() or 1))


def tree(parts: list[np.ndarray]) -> np.ndarray:
    while len(parts) > 1:
        parts = [pair(*parts[i : i + 2]) if i + 1 < len(parts) else parts[i] for i in range(0, len(parts), 2)]
    return parts[0]


def by_numpy(size: int, seed: int, algorithm: str, **changes: Any) -> dict[str, np.ndarray]:
    runs = [Run(seed, rank, None, algorithm, **changes) for rank in range(size)]
    for _ in range(STEPS):
        before = runs[0].weights()
        for run in runs:
            run.update()
        after = [run.weights() for run in runs]
        for name, old in before.items():
            change = tree([(a[name].astype(np.float64) - old) for a in after])
            before[name] = (old + change).astype(old.dtype)
        for run in runs:
            run.set(before)
    return before


@pytest.mark.parametrize("algorithm", ["sgd", "adam", "lamb"])
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_as_by_numpy(size: int, algorithm: str) -> None:
    for seed in range(3):
        changes = {"accumulation_steps": 1 + seed, "clips_gradients": bool(seed % 2)}

        def work(comm: Any, seed: int = seed, changes: Any = changes) -> dict[str, np.ndarray]:
            run = Run(seed, comm.rank, comm, algorithm, **changes)
            for _ in range(STEPS):
                assert run.update()
            return run.weights()

        found = parallel.run_threads(size, work)
        wanted = by_numpy(size, seed, algorithm, **changes)
        tolerance = 1e-9 if seed % 2 == 0 else 2e-4
        for weights in found:
            for name, value in wanted.items():
                assert weights[name].tobytes() == found[0][name].tobytes()
                np.testing.assert_allclose(weights[name], value, rtol=tolerance, atol=tolerance, err_msg=name)


def test_nobody_updates_when_one_has_gradients_that_are_not_finite() -> None:
    def work(comm: Any) -> tuple[list[bool], dict[str, np.ndarray]]:
        run = Run(1, comm.rank, comm, "sgd", skips_non_finite=True)
        return [run.update(), run.update(spoil=comm.rank == 1), run.update()], run.weights()

    found = parallel.run_threads(3, work)
    for updated, weights in found:
        assert updated == [True, False, True]
        for name, value in weights.items():
            assert np.isfinite(value).all()
            assert value.tobytes() == found[0][1][name].tobytes()


def test_refusals() -> None:
    options = _core.ParallelOptions()
    options.adasum, options.zero_stage = True, 1

    def work(comm: Any) -> None:
        run = Run(0, 0, None, "sgd")
        mine = _core.TrainerOptions()
        mine.communicator, mine.parallel = parallel.as_communicator(comm), options
        _core.Trainer(run.state, mine).add_model(network(np.random.default_rng(0), np.float64)[0], "loss", ["loss"])

    with pytest.raises(_core.InvalidInput, match="adasum: got it together with zero_stage 1"):
        parallel.run_threads(2, work)


def test_both_generations_of_orttrainer_ask_for_it() -> None:
    from backpass.optim import SGDConfig
    from backpass.trainer import options as first
    from backpass.trainer import ort_trainer
    from backpass.trainer.settings import trainer_options
    from backpass.training import ORTTrainerOptions
    from backpass.training._settings import engine_settings

    def asked(world: dict[str, int], wanted: bool) -> None:
        distributed = {**world, "enable_adasum": True}
        described = ORTTrainerOptions({"device": {"id": "cpu"}, "distributed": distributed})
        for settings in (
            engine_settings(SGDConfig(), described),
            ort_trainer._settings("sgd", None, first.Options(enable_adasum=True, **world)),
        ):
            options = trainer_options(settings, [])
            assert (options.parallel.adasum, options.clips_gradients) == (wanted, wanted)

    parallel.run_threads(2, lambda comm: asked({"world_rank": comm.rank, "world_size": comm.size}, True))
    asked({}, False)
