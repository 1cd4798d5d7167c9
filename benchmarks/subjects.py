"""The networks that are timed, exported in a process of their own: torch brings a second OpenMP runtime, which must not
share the process that is timed."""

from __future__ import annotations

import itertools
import multiprocessing
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parent.parent / "tests" / "python"
NAMES = ("mlp", "resnet18", "mobilenet", "lstm_tagger", "bert", "gpt2")
OPSETS = {"script": 17, "dynamo": 20}
NEW_SHAPES = 5


@dataclass(frozen=True)
class Subject:
    name: str
    path: Path
    extents: str
    feeds: dict[str, Any]
    others: list[dict[str, Any]]  # feeds of other extents, for the cost of meeting a new shape


def subjects(names: list[str], size: str, exporter: str) -> list[Subject]:
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return list(pool.map(_subject, names, itertools.repeat(size), itertools.repeat(exporter)))


def _subject(name: str, size: str, exporter: str) -> Subject:
    sys.path.insert(0, str(TESTS))
    import models

    network = models.NETWORKS[name]
    extents = network.bench if size == "bench" else network.shapes[0]
    path = models.export(network, models.Export(exporter, OPSETS[exporter], dynamic=True, size=size), extents)
    symbols = next(iter(network.symbols(exporter).values())).values()
    others = [replace(extents, **{s: getattr(extents, s) + n for s in symbols}) for n in range(1, NEW_SHAPES + 1)]
    shape = " x ".join(str(getattr(extents, s)) for s in next(iter(network.dynamic.values())).values())
    return Subject(name, path, shape, network.example(size, extents), [network.example(size, e) for e in others])
