"""Damages one-node models at random and says whether the engine keeps its promises about them: planned execution and
the reference interpreter refuse the same models, give the same results for the others, and blame only the model.

Usage: python tests/python/mutation.py ROWS_FILE... [--count N] [--seed S]. Prints what is wrong, a case per paragraph;
the last line of an unfinished output names the case that crashed.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import backend_cases
import backpass
import numpy as np
import onnx
import op_case
from onnx import AttributeProto, helper, numpy_helper
from op_case import Const, Row

Rng = np.random.Generator
# Small numbers that are wrong in most places, and numbers no machine has the memory for. Nothing in between: a mutation
# that is legal must stay cheap.
INTEGERS = (-(2**63), -(2**40), -7, -3, -2, -1, 0, 1, 2, 3, 5, 2**50, 2**63 - 1)
FLOATS = (0.0, -1.0, 0.5, 3.0, float("nan"), float("inf"), -1e30)
DTYPES = ("float32", "float64", "float16", "bfloat16", "int64", "int32", "int8", "uint8", "bool", "complex64", "object")
RANDOM = {"Bernoulli", "Dropout", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "BiasDropout",
          "RandomUniformLike", "DropoutGrad", "BiasDropoutGrad", "BitmaskDropout", "BitmaskBiasDropout",
          "BitmaskDropoutGrad", "BiasSoftmaxDropout", "SoftmaxDropoutGrad"}  # fmt: skip


class Damaged:
    """A model under change: the values of the node's inputs, which of them are stored in the model, and the node."""

    def __init__(self, row: Row, rng: Rng) -> None:
        opset = int(rng.choice(row.opsets))
        dtype = str(rng.choice(row.dtypes if opset == row.opsets[0] else row.dtypes[:1]))
        small = [
            c for c in row.cases if all(getattr(i, "shape", ()) == () or np.prod(i.shape) < 3000 for i in c.inputs)
        ]
        cases = small or row.cases
        self.item = op_case.instance(row, dtype, cases[int(rng.integers(len(cases)))], opset)
        self.values = list(self.item.values)
        self.stored = [isinstance(spec, Const) for spec in self.item.case.inputs]
        model = self.item.model()
        self.node = model.graph.node[0]
        self.model = model
        self.declared = str(rng.choice(["numbers", "symbols", "nothing"], p=[0.5, 0.3, 0.2]))
        self.notes: list[str] = []

    def arrays(self) -> list[int]:
        return [i for i, v in enumerate(self.values) if isinstance(v, np.ndarray)]

    def build(self) -> tuple[bytes, dict[str, Any]]:
        names = ["" if v is None else f"x{i}" for i, v in enumerate(self.values)]
        del self.node.input[:]
        self.node.input.extend(names)
        graph = self.model.graph
        del graph.input[:], graph.initializer[:]
        feeds = {}
        for i, v in enumerate(self.values):
            if v is None:
                continue
            if self.stored[i] and isinstance(v, np.ndarray):
                graph.initializer.append(numpy_helper.from_array(v, f"x{i}"))
                continue
            feeds[f"x{i}"] = v
            declared = op_case.type_of(v, f"x{i}" if self.declared == "symbols" else "")
            if self.declared == "nothing" and declared.HasField("tensor_type"):
                declared.tensor_type.ClearField("shape")
            graph.input.append(helper.make_value_info(f"x{i}", declared))
        return self.model.SerializeToString(), feeds

    def __str__(self) -> str:
        inputs = ", ".join(
            "-"
            if v is None
            else op_case.describe(v) + (f"={v.tolist()}" if _is_small(v) else "") + "c" * self.stored[i]
            for i, v in enumerate(self.values)
        )
        attrs = {a.name: _shown(a) for a in self.node.attribute}
        return (f"{self.node.domain}.{self.node.op_type}-{self.item.opset}({inputs}) {attrs} declared by "
                f"{self.declared}; {'; '.join(self.notes)}")  # fmt: skip


def _is_small(v: Any) -> bool:
    return isinstance(v, np.ndarray) and v.size <= 8 and v.dtype.kind in "iub"


def _shown(a: AttributeProto) -> Any:
    return "..." if a.type in (AttributeProto.GRAPH, AttributeProto.TENSOR) else helper.get_attribute_value(a)


# ---- Mutations. Each changes one thing and returns what it did, or "" when there was nothing to change.
def change_dtype(d: Damaged, rng: Rng) -> str:
    if not d.arrays():
        return ""
    i = int(rng.choice(d.arrays()))
    dtype = str(rng.choice(DTYPES))
    value = d.values[i]
    if dtype == "object":
        d.values[i] = np.array([str(v) for v in value.ravel()], object).reshape(value.shape)
    else:
        if value.dtype.kind in "OU":
            value = np.zeros(value.shape)
        with np.errstate(all="ignore"):
            d.values[i] = (value.real if value.dtype.kind == "c" else value).astype(dtype)
    return f"input {i} as {dtype}"


def change_shape(d: Damaged, rng: Rng) -> str:
    if not d.arrays():
        return ""
    i = int(rng.choice(d.arrays()))
    shape = list(d.values[i].shape)
    match int(rng.integers(4)):
        case 0:
            shape.insert(int(rng.integers(len(shape) + 1)), int(rng.choice([1, 2, 0])))
        case 1 if shape:
            shape.pop(int(rng.integers(len(shape))))
        case 2 if shape:
            shape[int(rng.integers(len(shape)))] = int(rng.choice([0, 1, 2, 5]))
        case _:
            shape = []
    d.values[i] = (
        np.resize(d.values[i], shape)
        if d.values[i].size
        else np.full(shape, "" if d.values[i].dtype == object else 0, d.values[i].dtype)
    )
    return f"input {i} with extents {shape}"


def change_contents(d: Damaged, rng: Rng) -> str:
    candidates = [i for i in d.arrays() if d.values[i].dtype.kind in "iuf" and d.values[i].size]
    integers = [i for i in candidates if d.values[i].dtype.kind in "iu"]
    if not candidates:
        return ""
    i = int(rng.choice(integers or candidates))
    value = d.values[i] = d.values[i].copy()
    with np.errstate(all="ignore"):
        number = np.array(rng.choice(INTEGERS if value.dtype.kind in "iu" else FLOATS)).astype(value.dtype)
    value.flat[int(rng.integers(value.size))] = number
    return f"input {i} holds {number}"


def change_place(d: Damaged, rng: Rng) -> str:
    if not d.arrays():
        return ""
    i = int(rng.choice(d.arrays()))
    d.stored[i] = not d.stored[i]
    return f"input {i} {'stored' if d.stored[i] else 'fed'}"


def change_count(d: Damaged, rng: Rng) -> str:
    match int(rng.integers(3)):
        case 0 if d.values:
            d.values.pop()
            d.stored.pop()
            return "last input dropped"
        case 1 if d.values:
            i = int(rng.integers(len(d.values)))
            d.values[i] = None
            return f"input {i} omitted"
        case _ if d.arrays():
            d.values.append(d.values[int(rng.choice(d.arrays()))])
            d.stored.append(False)
            return "input added"
    return ""


def change_attribute(d: Damaged, rng: Rng) -> str:
    present = [a for a in d.node.attribute if a.type not in (AttributeProto.GRAPH, AttributeProto.GRAPHS)]
    if not present or rng.random() < 0.3:
        return invent_attribute(d, rng)
    attribute = present[int(rng.integers(len(present)))]
    name = attribute.name
    if rng.random() < 0.1:
        d.node.attribute.remove(attribute)
        return f"no {name}"
    value = _other_value(attribute, rng)
    d.node.attribute.remove(attribute)
    d.node.attribute.append(value)
    return f"{name} = {_shown(value)}"


def invent_attribute(d: Damaged, rng: Rng) -> str:
    """Sets an attribute that the operator has and the row does not use."""
    if not onnx.defs.has(d.node.op_type, d.node.domain):
        return ""
    opset = d.item.opset if d.node.domain == "" else onnx.defs.get_schema(d.node.op_type, d.node.domain).since_version
    attributes = onnx.defs.get_schema(d.node.op_type, opset, d.node.domain).attributes
    taken = {a.name for a in d.node.attribute}
    free = sorted(n for n, a in attributes.items() if n not in taken and int(a.type.value) != AttributeProto.GRAPH)
    if not free:
        return ""
    name = str(rng.choice(free))
    made = AttributeProto(name=name, type=int(attributes[name].type.value))
    d.node.attribute.append(_other_value(made, rng))
    return f"new {name} = {_shown(d.node.attribute[-1])}"


def _other_value(attribute: AttributeProto, rng: Rng) -> AttributeProto:
    if rng.random() < 0.05:
        return helper.make_attribute(attribute.name, [1.5, "text", [1, 2], [0.5]][int(rng.integers(4))])
    made = AttributeProto()
    made.CopyFrom(attribute)
    match attribute.type:
        case AttributeProto.INT:
            made.i = int(rng.choice(INTEGERS))
        case AttributeProto.FLOAT:
            made.f = float(rng.choice(FLOATS))
        case AttributeProto.STRING:
            made.s = [b"", b"sideways", b"linear", b"SAME_UPPER", b"max"][int(rng.integers(5))]
        case AttributeProto.INTS:
            _change_list(made.ints, INTEGERS, rng)
        case AttributeProto.FLOATS:
            _change_list(made.floats, FLOATS, rng)
        case AttributeProto.STRINGS:
            _change_list(made.strings, (b"", b"Tanh", b"x"), rng)
        case AttributeProto.TENSOR:
            shape = [(), (0,), (1,), (3,), (2, 2)][int(rng.integers(5))]
            made.t.CopyFrom(numpy_helper.from_array(np.ones(shape, str(rng.choice(DTYPES[:3] + DTYPES[4:8])))))
    return made


def _change_list(items: Any, choices: tuple[Any, ...], rng: Rng) -> None:
    pick = choices[int(rng.integers(len(choices)))]
    kind = int(rng.integers(4))
    if kind == 0 or len(items) == 0:
        items.append(pick)
    elif kind == 1:
        items.pop()
    else:
        items[int(rng.integers(len(items)))] = pick


MUTATIONS: tuple[Callable[[Damaged, Rng], str], ...] = (
    change_dtype, change_shape, change_contents, change_place, change_count, change_attribute,
)  # fmt: skip


def damaged(row: Row, rng: Rng) -> Damaged:
    d = Damaged(row, rng)
    for _ in range(1 + int(rng.integers(3))):
        d.notes.append(MUTATIONS[int(rng.integers(len(MUTATIONS)))](d, rng))
    if d.node.op_type == "Loop":
        give_end(d)
    return d


def give_end(d: Damaged) -> None:
    """With a large count or none, and a condition that the damage keeps true, a loop is legal and never ends."""
    longest = 7
    if d.values and d.values[0] is None:
        d.values[0] = np.array(longest)
        d.stored[0] = False
    elif d.values and d.values[0].dtype.kind in "iu":
        d.values[0] = np.asarray(np.minimum(d.values[0], longest), d.values[0].dtype)


# ---- Judgement.
def outcome(model: bytes, feeds: dict[str, Any], reference: bool) -> list[Any] | Exception:
    try:
        return backpass.InferenceSession(model, reference=reference).run(None, feeds)
    except Exception as e:
        return e


def problem_with(d: Damaged) -> str:
    """What is wrong with how the engine treats this model, or nothing."""
    model, feeds = d.build()
    plan, plain = outcome(model, feeds, reference=False), outcome(model, feeds, reference=True)
    for result in (plan, plain):
        if isinstance(result, Exception) and not isinstance(result, backpass.InvalidInput | backpass.Unsupported):
            return f"{type(result).__name__}: {result}"
    if isinstance(plan, Exception) or isinstance(plain, Exception):
        if type(plan) is type(plain):
            return "" if str(plan).startswith("[") or "input '" in str(plan) else f"message without a place: {plan}"
        return f"planned: {_brief(plan)}\n    reference: {_brief(plain)}"
    compare_values = d.node.op_type not in RANDOM
    # Roundings differ where a plan fuses; types and shapes never do.
    return backend_cases.compare_all(plan, plain, 1e-4, 1e-5, values=compare_values)


def _brief(result: Any) -> str:
    if isinstance(result, Exception):
        return f"{type(result).__name__}: {result}"
    return f"gave {[op_case.describe(v) if isinstance(v, np.ndarray | list) else v for v in result]}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", help="modules of op_rows")
    parser.add_argument("--op", help="rows of this operator only")
    parser.add_argument("--count", type=int, default=20, help="models per row")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    sys.path.insert(0, str(Path(__file__).parent))
    wrong = 0
    for file in arguments.files:
        for row in importlib.import_module(f"op_rows.{file}").ROWS:
            if arguments.op not in (None, row.op):
                continue
            rng = np.random.default_rng([arguments.seed, *row.label.encode()])
            for _ in range(arguments.count):
                d = damaged(row, rng)
                print(f"trying {d}", flush=True)
                problem = problem_with(d)
                if problem:
                    wrong += 1
                    print(f"WRONG {d}\n    {problem}", flush=True)
    print(f"finished, {wrong} wrong")


if __name__ == "__main__":
    main()
