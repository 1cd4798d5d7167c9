"""Valid one-node models with one thing changed, judged by onnx's checker and by `backpass.check`: what the checker
refuses must be refused here too, and what both onnx and onnxruntime take must not be.

Usage: python tests/python/nonconforming.py [--first SEED] [--count N] [--seconds S] [--onnxruntime]. Prints what is
wrong.
"""

from __future__ import annotations

import argparse
import functools
import multiprocessing
import re
import subprocess
import sys
import time
from collections.abc import Callable

import backpass
import numpy as np
import onnx
import op_case
import op_oracle
from onnx import AttributeProto, TensorProto, helper
from op_case import Row

Rng = np.random.Generator
Model = onnx.ModelProto

# What onnx's checker refuses and Backpass takes, by the checker's words.
TAKEN_ON_PURPOSE = {
    r"typestr: \w+, has unsupported type": "element types that Backpass computes in and the operator's schema lacks",
    r"Field 'shape' of 'type' is required": "an output of unknown rank, which inference finds out",
    r"Field 'type' of 'value_info' is required": "an output without a type, which inference finds out",
    r"not in allowed output sizes": "some of BatchNormalization's statistics, which until opset 9 were all or none",
    r"GroupNormalization is deprecated": "the first form of an operator, withdrawn later: files of its time have it",
    r"should be 1 when Training_mode": "running statistics as they were, which ONNX Runtime's eval models ask for",
    r"topologically sorted": "nodes in any order: they are sorted",
    r"existing shape differ|dimension .* differ|[Ii]nferred shape|[Ii]ncompatible dimensions|shape.* differ|rank":
        "declared extents that are stale: exporters leave them behind, onnxruntime warns and runs",
}  # fmt: skip


# Problems of a node's form. Contents (an axis that is too large) may be refused where others wait until they run.
ABOUT_FORM = (
    r"attribute '\w+': (not one of|got (none|an? |ints|floats|strings))|number of (in|out)puts|opset of the model|the "
    r"declared"
)


# ---- Changes. Each edits the model and returns what it did, or "" when there was nothing to change.
def misspell(m: Model, rng: Rng) -> str:
    node = m.graph.node[0]
    if not node.attribute:
        return ""
    a = node.attribute[int(rng.integers(len(node.attribute)))]
    at = int(rng.integers(len(a.name)))
    a.name = a.name[:at] + a.name[at + 1 :] if rng.random() < 0.5 else a.name + "s"
    return f"attribute {a.name}"


def other_kind(m: Model, rng: Rng) -> str:
    node = m.graph.node[0]
    if not node.attribute:
        return ""
    a = node.attribute[int(rng.integers(len(node.attribute)))]
    value = [1, 1.5, "text", [1, 2], [0.5], ["a"]][int(rng.integers(6))]
    a.CopyFrom(helper.make_attribute(a.name, value))
    return f"attribute {a.name} = {value!r}"


def drop_attribute(m: Model, rng: Rng) -> str:
    node = m.graph.node[0]
    if not node.attribute:
        return ""
    a = node.attribute.pop(int(rng.integers(len(node.attribute))))
    return f"no attribute {a.name}"


def attribute_of_another_version(m: Model, rng: Rng) -> str:
    node = m.graph.node[0]
    known = [s for s in onnx.defs.get_all_schemas_with_history() if (s.domain, s.name) == (node.domain, node.op_type)]
    taken = {a.name for a in node.attribute}
    kinds = {n: int(a.type.value) for s in known for n, a in s.attributes.items() if n not in taken}
    plain = {AttributeProto.INT: 1, AttributeProto.FLOAT: 0.5, AttributeProto.STRING: "", AttributeProto.INTS: [1, 1]}
    names = sorted(n for n, k in kinds.items() if k in plain)
    name = str(rng.choice(names)) if names else "axis_of_nothing"
    node.attribute.append(helper.make_attribute(name, plain.get(kinds.get(name, AttributeProto.INT), 1)))
    return f"attribute {name} added"


def another_opset(m: Model, rng: Rng) -> str:
    m.opset_import[0].version = int(rng.integers(1, 30))
    return f"opset {m.opset_import[0].version}"


def inputs(m: Model, rng: Rng) -> str:
    node = m.graph.node[0]
    match int(rng.integers(4)):
        case 0 if node.input:
            return f"input {node.input.pop()} dropped"
        case 1 if node.input:
            node.input.append(node.input[0])
            return "input added"
        case 2 if node.input:
            node.input[int(rng.integers(len(node.input)))] = ""
            return "input omitted"
        case 3 if node.input:
            node.input[0] = "nowhere"
            return "input of no value"
    return ""


def outputs(m: Model, rng: Rng) -> str:
    node = m.graph.node[0]
    match int(rng.integers(3)):
        case 0:
            node.output.append("more")
            return "output added"
        case 1 if len(m.graph.input):
            node.output[0] = m.graph.input[0].name
            return "output over an input"
        case 2:
            m.graph.node.append(node)
            return "the node twice"
    return ""


def declared_type(m: Model, rng: Rng) -> str:
    info = [*m.graph.output, *m.graph.input][int(rng.integers(len(m.graph.output) + len(m.graph.input)))]
    if not info.type.HasField("tensor_type"):
        return ""
    kinds = (TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.INT64, TensorProto.BOOL, TensorProto.STRING)
    info.type.tensor_type.elem_type = kinds[int(rng.integers(len(kinds)))]
    return f"{info.name} declared as {info.type.tensor_type.elem_type}"


def header(m: Model, rng: Rng) -> str:
    match int(rng.integers(4)):
        case 0:
            m.ClearField("ir_version")
            return "no ir_version"
        case 1:
            m.ir_version = 99
            return "ir_version 99"
        case 2:
            del m.opset_import[:]
            return "no opset"
        case _:
            m.graph.node[0].op_type = m.graph.node[0].op_type.lower()
            return "operator in small letters"


CHANGES: tuple[Callable[[Model, Rng], str], ...] = (
    misspell, other_kind, drop_attribute, attribute_of_another_version, another_opset, another_opset, inputs, outputs,
    declared_type, declared_type, header,
)  # fmt: skip


# ---- Judgement.
def refusal_by_onnx(model: Model) -> str:
    print("asking onnx", flush=True)
    try:
        onnx.checker.check_model(model, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as e:
        return str(e) or "refused"
    finally:
        print("asking backpass", flush=True)
    return ""


def load_in_onnxruntime(model: bytes) -> None:
    op_oracle.ort_session(onnx.ModelProto.FromString(model))


def loads_in_onnxruntime(model: Model) -> bool:
    """In a process of its own: it crashes on some."""
    context = multiprocessing.get_context("spawn")
    child = context.Process(target=load_in_onnxruntime, args=(model.SerializeToString(),))
    child.start()
    child.join()
    return child.exitcode == 0


def problem_with(model: Model, with_onnxruntime: bool) -> str:
    refusal = refusal_by_onnx(model)
    report = backpass.check(model)
    if refusal and report.ok:
        if any(re.search(words, refusal) for words in TAKEN_ON_PURPOSE):
            return ""
        return f"onnx's checker refuses it, Backpass takes it: {refusal}"
    needless = not refusal and any(re.search(ABOUT_FORM, p.text) for p in report.problems)
    if needless and with_onnxruntime and loads_in_onnxruntime(model):
        return f"onnx and onnxruntime take it, Backpass refuses it: {report}"
    return ""


def valid_model(row: Row, rng: Rng) -> Model | None:
    """A case of the row with its outputs declared; None when onnx's checker does not take it as it is."""
    opset = int(rng.choice(row.opsets))
    cases = row.cases[:6]
    model = op_case.instance(row, row.dtypes[0], cases[int(rng.integers(len(cases)))], opset).model()
    try:
        model = onnx.shape_inference.infer_shapes(model)
    except onnx.shape_inference.InferenceError:
        return None
    return None if refusal_by_onnx(model) or not backpass.check(model).ok else model


def problem_of(seed: int, with_onnxruntime: bool) -> str:
    rng = np.random.default_rng(seed)
    rows = standard_rows()
    row = rows[int(rng.integers(len(rows)))]
    model = valid_model(row, rng)
    if model is None:
        return ""
    note = CHANGES[int(rng.integers(len(CHANGES)))](model, rng)
    problem = problem_with(model, with_onnxruntime) if note else ""
    return f"{row.label}, {note}: {problem}\n{shown(model)}" if problem else ""


@functools.cache
def standard_rows() -> list[Row]:
    return [row for row in op_case.all_rows() if onnx.defs.has(row.op, row.domain)]


def shown(model: Model) -> str:
    try:
        return str(onnx.printer.to_text(model))
    except Exception:
        return str(model)


def hunt(first: int, count: int, seconds: float, with_onnxruntime: bool) -> list[str]:
    """What is wrong with the models of some seeds, each a process's work until onnx's checker crashes in it."""
    end, last, wrong = time.monotonic() + seconds, first + count, []
    while first < last and time.monotonic() < end:
        command = [sys.executable, __file__, "--first", str(first), "--count", str(last - first)]
        command += ["--seconds", str(end - time.monotonic())] + ["--onnxruntime"] * with_onnxruntime
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        lines = done.stdout.splitlines()
        wrong += [line for line in lines if not line.startswith(("asking", "seed"))]
        if done.returncode == 0:
            break
        if lines[-1:] != ["asking onnx"]:
            wrong.append(f"ended with {done.returncode} at {lines[-2:]}: {done.stderr[-2000:]}")
        first = 1 + next(int(line.split()[1]) for line in reversed(lines) if line.startswith("seed"))
    return wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--first", type=int, default=0, help="seed to start from")
    parser.add_argument("--count", type=int, default=sys.maxsize)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--onnxruntime", action="store_true", help="look for needless refusals as well")
    arguments = parser.parse_args()
    end = time.monotonic() + arguments.seconds
    for seed in range(arguments.first, arguments.first + arguments.count):
        if time.monotonic() > end:
            break
        print(f"seed {seed}")
        problem = problem_of(seed, arguments.onnxruntime)
        if problem:
            print(f"WRONG seed {seed}: {problem}", flush=True)


if __name__ == "__main__":
    main()
