"""Random graphs with collective operators among nodes that passes like to fuse, merge, fold, move and drop.

    python collective_fuzz.py 500          # seeds 0 to 499

Every graph runs on two or three ranks, with all passes and node by node (`reference`). Each rank must talk to others
in the same order, about tensors of the same sizes, and compute the same.
"""

from __future__ import annotations

import dataclasses
import sys
from collections import Counter
from typing import Any

import backpass
import numpy as np
import onnx
from choices import Choices
from onnx import helper, numpy_helper
from ranks import Rank, on_ranks

MS = "com.microsoft"
ROWS, COLUMNS = 6, 4
UNARY = ("Tanh", "Relu", "Sigmoid", "Neg", "Identity", "Abs", "Softplus")
BINARY = ("Add", "Mul", "Sub", "Max")
COLLECTIVES = ("NcclAllReduce", "AllReduce", "MegatronG", "AllGather", "AllToAll", "AdasumAllReduce", "NcclAllGather",
               "NcclReduceScatter")  # fmt: skip


@dataclasses.dataclass
class Drawn(Choices):
    """Float tensors of ROWS x COLUMNS, and nodes over them."""

    size: int
    values: list[str] = dataclasses.field(default_factory=lambda: ["x", "y"])
    nodes: list[onnx.NodeProto] = dataclasses.field(default_factory=list)
    constants: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)

    def pick(self) -> str:
        return self.values[-1 - min(int(self.rng.exponential(2.5)), len(self.values) - 1)]

    def constant(self, value: Any) -> str:
        name = f"c{len(self.constants)}"
        self.constants[name] = np.asarray(value)
        return name

    def node(self, op: str, inputs: list[str], outputs: int = 1, domain: str = "", **attrs: Any) -> list[str]:
        names = [f"v{len(self.nodes)}_{k}" for k in range(outputs)]
        self.nodes.append(helper.make_node(op, inputs, names, name=f"n{len(self.nodes)}", domain=domain, **attrs))
        return names

    def add(self) -> None:
        kind = self.rng.random()
        if kind < 0.3:
            self.values += self.node(self.choice(UNARY), [self.pick()])
        elif kind < 0.5:
            self.values += self.node(self.choice(BINARY), [self.pick(), self.pick()])
        elif kind < 0.7:
            self.add_other()
        else:
            self.add_collective()

    def add_other(self) -> None:
        kind = self.number(0, 5)
        x = self.pick()
        if kind == 0:
            weight = self.constant(self.rng.standard_normal((COLUMNS, COLUMNS)) / 2)
            self.values += self.node("MatMul", [x, weight])
        elif kind == 1:
            (total,) = self.node("ReduceSum", [x, self.constant([1])], keepdims=1)
            self.values += self.node("Sub", [x, total])
        elif kind == 2:
            turned = self.node("Transpose", self.node("Transpose", [x], perm=[1, 0]), perm=[1, 0])
            self.values += turned
        elif kind == 3:
            self.values += self.node("Gather", [x, self.constant(self.rng.permutation(ROWS))], axis=0)
        elif kind == 4:  # computed from constants alone
            self.values += self.node("Tanh", [self.constant(self.rng.standard_normal((ROWS, COLUMNS)))])
        else:
            self.add_found_size(x)

    def add_found_size(self, x: str) -> None:
        """An extent that data decide, and back."""
        (places,) = self.node("NonZero", self.node("Greater", [x, self.constant(0.1)]))
        (found,) = self.node("GatherND", [x, *self.node("Transpose", [places], perm=[1, 0])])
        (total,) = self.node("ReduceSum", [found], keepdims=0)
        self.values += self.node("Add", [self.pick(), total])

    def add_collective(self) -> None:
        op = self.choice(COLLECTIVES)
        count = 1 if op == "MegatronG" else self.number(1, 2)
        inputs = [self.pick() for _ in range(count)]
        attrs = {"group_size": self.size} if op in ("AllGather", "AllToAll") else {}
        if op == "AllGather":
            attrs["axis"] = 0
        found = self.node(op, inputs, count, MS, **attrs)
        if op == "AllGather":
            found = [self.node("Slice", [f, self.constant([0]), self.constant([ROWS])])[0] for f in found]
        if self.coin(0.8):  # else nobody reads it
            self.values += [self.node("Mul", [f, self.constant(0.5)])[0] if self.coin() else f for f in found]


def draw(seed: int) -> tuple[bytes, int]:
    rng = np.random.default_rng(seed)
    drawn = Drawn(rng, size=int(rng.choice([2, 3])))
    for _ in range(drawn.number(3, 18)):
        drawn.add()
    outputs = list(dict.fromkeys([drawn.values[-1], *(drawn.pick() for _ in range(drawn.number(0, 2)))]))
    outputs = [o for o in outputs if o not in ("x", "y")] or drawn.node("Add", ["x", "y"])
    shape = ["n" if drawn.coin() else ROWS, COLUMNS]
    graph = helper.make_graph(
        drawn.nodes,
        "g",
        [helper.make_tensor_value_info(n, onnx.TensorProto.DOUBLE, shape) for n in ("x", "y")],
        [onnx.ValueInfoProto(name=o) for o in outputs],
        [numpy_helper.from_array(v, n) for n, v in drawn.constants.items()],
    )
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid(MS, 1)]
    return bytes(helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()), drawn.size


def runs(model: bytes, size: int, seed: int, **options: Any) -> list[tuple[list[Any], list[Any]]]:
    """Per rank: what it asked of its communicator, and results."""

    def work(rank: Rank) -> tuple[list[Any], list[Any]]:
        rng = np.random.default_rng((seed, rank.rank))
        fed = {name: rng.standard_normal((ROWS, COLUMNS)) for name in ("x", "y")}
        session = backpass.InferenceSession(model, num_threads=1, **options)
        results = [session.run(None, fed) for _ in range(2)]
        return rank.log, results[-1]

    return on_ranks(size, work)


def difference(model: bytes, size: int, seed: int, **options: Any) -> str:
    wanted = runs(model, size, seed, reference=True)
    found = runs(model, size, seed, **options)
    for rank, ((log, results), (wanted_log, wanted_results)) in enumerate(zip(found, wanted, strict=True)):
        if log != wanted_log:
            return f"rank {rank} asked for {log}, not for {wanted_log}"
        for a, b in zip(results, wanted_results, strict=True):
            if not np.allclose(a, b, rtol=1e-9, atol=1e-9, equal_nan=True):
                return f"rank {rank} computed something else"
    return ""


def with_gradients(model: bytes) -> bytes | None:
    """The same with gradients of both inputs; None where an operator has none."""
    try:
        return bytes(backpass.grad(model, wrt=["x", "y"], standard_only=False).SerializeToString())
    except backpass.Error:
        return None


def problem_of(seed: int) -> str:
    model, size = draw(seed)
    found = difference(model, size, seed)
    gradients = with_gradients(model)
    if not found and gradients is not None:
        found = difference(gradients, size, seed)
    return found and f"seed {seed}: {found}"


def main() -> None:
    counts: Counter[str] = Counter()
    for seed in range(int(sys.argv[1])):
        found = problem_of(seed)
        counts["different" if found else "the same"] += 1
        if found:
            print(found)
    print(dict(counts))


if __name__ == "__main__":
    main()
