"""Networks exported from torch by both of its exporters, against onnxruntime. `-m slow` adds the whole matrix."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import backpass
import models
import numpy as np
import onnx
import op_oracle
import pytest
from models import NETWORKS, Export, Extents, Feeds, Network

EVERYDAY = {
    "mlp": [Export("script", 14, dynamic=True)],
    "resnet18": [Export("dynamo", 18, dynamic=True)],
    "mobilenet": [Export("script", 17, dynamic=True)],
    "lstm_tagger": [Export("script", 17, dynamic=True)],
    "bert": [Export("dynamo", 20, dynamic=True), Export("script", 14, dynamic=False)],
    "gpt2": [Export("dynamo", 23, dynamic=True), Export("script", 14, dynamic=True)],
}
EXPORTERS = [("dynamo", 18), ("dynamo", 20), ("dynamo", 23), ("script", 14), ("script", 17)]
MATRIX = [Export(*exporter, dynamic) for exporter in EXPORTERS for dynamic in (True, False)]

RTOL, ATOL = 1e-4, 1e-5


def parameters(matrix: bool = False) -> Iterator[Any]:
    for name, everyday in EVERYDAY.items():
        for how in everyday:
            yield pytest.param(NETWORKS[name], how, id=f"{name}-{how}")
        for how in MATRIX if matrix else []:
            if how not in everyday:
                yield pytest.param(NETWORKS[name], how, id=f"{name}-{how}", marks=pytest.mark.slow)


every_export = pytest.mark.parametrize(("network", "how"), list(parameters(matrix=True)))
everyday_exports = pytest.mark.parametrize(("network", "how"), list(parameters()))


@functools.lru_cache(maxsize=4)
def load(network: Network, how: Export, **settings: Any) -> backpass.InferenceSession:
    return backpass.InferenceSession(models.export(network, how), **settings)


@functools.lru_cache(maxsize=4)
def judge(network: Network, how: Export) -> Any:
    return op_oracle.ort_session(onnx.load(models.export(network, how)))


def shapes(network: Network, how: Export) -> tuple[Extents, ...]:
    return network.alternatives(how.exporter) if how.dynamic else network.shapes[:1]


def examples(network: Network, how: Export) -> list[Feeds]:
    return [network.example(how.size, extents, seed) for seed, extents in enumerate(shapes(network, how))]


def assert_close(got: list[Any], expected: list[Any]) -> None:
    assert len(got) == len(expected)
    for g, e in zip(got, expected, strict=True):
        assert g.dtype == e.dtype
        np.testing.assert_allclose(g, e, rtol=RTOL, atol=ATOL)


def assert_same_bits(got: list[Any], expected: list[Any]) -> None:
    for g, e in zip(got, expected, strict=True):
        np.testing.assert_array_equal(g, e)


@every_export
def test_outputs_are_those_of_onnxruntime(network: Network, how: Export) -> None:
    session = load(network, how)
    assert [i.name for i in session.get_inputs()] == list(network.dynamic)
    assert [o.name for o in session.get_outputs()] == list(network.outputs)
    for feeds in examples(network, how):
        assert_close(session.run(None, feeds), judge(network, how).run(None, feeds))


@every_export
def test_alternating_shapes_repeat_the_same_bits(network: Network, how: Export) -> None:
    session = load(network, how)
    feeds = examples(network, how)
    first = [session.run(None, f) for f in feeds]
    for _ in range(3):
        for f, expected in zip(feeds, first, strict=True):
            assert_same_bits(session.run(None, f), expected)


@every_export
def test_number_of_threads_does_not_change_a_bit(network: Network, how: Export) -> None:
    for feeds in examples(network, how):
        alone = load(network, how, num_threads=1).run(None, feeds)
        for threads in (2, 3):
            assert_same_bits(load(network, how, num_threads=threads).run(None, feeds), alone)


@everyday_exports
def test_plan_computes_what_the_reference_does(network: Network, how: Export) -> None:
    reference = load(network, how, reference=True)
    for feeds in examples(network, how):
        expected = reference.run(None, feeds)
        assert_close(load(network, how).run(None, feeds), expected)
        assert_close(load(network, how, optimize=False).run(None, feeds), expected)


@every_export
def test_arena_is_as_small_as_it_can_be(network: Network, how: Export) -> None:
    for feeds in examples(network, how):
        plan = load(network, how).plan(feeds)
        assert 0 < plan.lower_bound_bytes <= plan.peak_bytes <= 1.1 * plan.lower_bound_bytes


@every_export
def test_every_shape_is_known_before_running(network: Network, how: Export) -> None:
    for feeds in examples(network, how):
        assert load(network, how).plan(feeds).late_steps == 0


@everyday_exports
def test_two_python_threads_share_a_session(network: Network, how: Export) -> None:
    session = load(network, how)
    feeds = examples(network, how)
    expected = [session.run(None, f) for f in feeds]

    def work(offset: int) -> None:
        for i in range(10):
            which = (i + offset) % len(feeds)
            assert_same_bits(session.run(None, feeds[which]), expected[which])

    with ThreadPoolExecutor(2) as pool:
        for future in [pool.submit(work, offset) for offset in (0, 1)]:
            future.result(timeout=120)


@everyday_exports
def test_check_finds_nothing_wrong(network: Network, how: Export) -> None:
    report = backpass.check(models.export(network, how))
    assert report.ok, str(report)
