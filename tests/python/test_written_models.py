"""Whatever Backpass writes is a valid ONNX model: onnx's checker says so."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import backend_cases
import backpass
import gradient_check
import numpy as np
import onnx
import op_case
import pytest
from backpass import api, artifacts
from onnx import TensorProto, helper, parser

FLOATS = {TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BFLOAT16}
OPSETS = range(13, 29)


def passes(model: onnx.ModelProto) -> bool:
    try:
        onnx.checker.check_model(model, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError):
        return False
    return True


def judged(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy in which ONNX Runtime's own operators of the default domain (MaxPoolGrad, SimplifiedLayerNormalization, as
    its training runtime wants them) are of its domain: the checker knows all of the default one, and not these."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for node in copy.graph.node:
        if node.domain == "" and not onnx.defs.has(node.op_type):
            assert ("", node.op_type) in gradient_check.declared(), node.op_type
            node.domain = "com.microsoft"
    if "com.microsoft" not in {o.domain for o in copy.opset_import}:
        copy.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    return copy


def problem_with(model: onnx.ModelProto) -> str:
    """What is wrong with its gradient models; nothing where there are none."""
    wrt = [i.name for i in model.graph.input if i.type.tensor_type.elem_type in FLOATS]
    full_check = passes(model)
    for standard_only in (True, False):
        try:
            made = backpass.grad(model, wrt, standard_only=standard_only)
        except (backpass.Unsupported, backpass.InvalidInput):  # no derivative, or no floats come out
            return ""
        try:
            onnx.checker.check_model(judged(made), full_check=full_check and standard_only)
        except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as e:
            return f"{'standard' if standard_only else 'fused'}: {str(e).splitlines()[0]}"
    return ""


def backend_models(every: int) -> Iterator[tuple[str, onnx.ModelProto]]:
    names = [name for kind in backend_cases.KINDS for name in backend_cases.names(kind)]
    for name in names[::every]:
        yield name, backend_cases.model_of(name)


def with_declared_outputs(model: onnx.ModelProto) -> onnx.ModelProto:
    try:
        return onnx.shape_inference.infer_shapes(model)
    except onnx.shape_inference.InferenceError:
        return model


def row_models(opset: int) -> Iterator[tuple[str, onnx.ModelProto]]:
    """The rows that name differentiable inputs, where the standard has them at this opset."""
    for row in op_case.all_rows():
        if not row.grad or row.domain or not onnx.defs.has(row.op, opset, row.domain):
            continue
        model = op_case.instance(row, row.dtypes[0], row.grad_cases[0], opset).model()
        model = with_declared_outputs(model)
        if passes(model):
            yield f"{row.label} at opset {opset}", model


def assert_valid(models: Iterator[tuple[str, onnx.ModelProto]]) -> None:
    problems = {name: problem_with(model) for name, model in models}
    wrong = [f"{name}: {problem}" for name, problem in problems.items() if problem]
    assert not wrong, f"{len(wrong)} of {len(problems)}:\n" + "\n".join(wrong)
    assert problems


def test_gradients_of_some_backend_cases() -> None:
    assert_valid(backend_models(every=25))


@pytest.mark.slow
def test_gradients_of_all_backend_cases() -> None:
    assert_valid(backend_models(every=1))


@pytest.mark.parametrize("opset", [pytest.param(v, marks=[] if v == 17 else pytest.mark.slow) for v in OPSETS])
def test_gradients_of_rows(opset: int) -> None:
    assert_valid(row_models(opset))


CAST_LIKE = """<ir_version: 8, opset_import: ["" : %d]> g (float[N,2] x, %s like) => (%s y)
{ a = CastLike(x, like)  y = Mul(a, a) }"""


@pytest.mark.parametrize("opset", [v for v in OPSETS if v >= 15])
@pytest.mark.parametrize("kind", ["double", "float", "float16"])
def test_gradient_of_cast_like(opset: int, kind: str) -> None:
    model = parser.parse_model(CAST_LIKE % (opset, f"{kind}[1]", f"{kind}[N,2]"))
    for seeds in (False, True):
        onnx.checker.check_model(backpass.grad(model, ["x"], seeds=seeds), full_check=True)


def training_model(opset: int) -> onnx.ModelProto:
    rng = np.random.default_rng(3)
    nodes = [
        helper.make_node("CastLike", ["x", "w"], ["narrow"]),
        helper.make_node("MatMul", ["narrow", "w"], ["product"]),
        helper.make_node("Dropout", ["product", "ratio", "training"], ["dropped"]),
        helper.make_node("CastLike", ["dropped", "x"], ["wide"]),
        helper.make_node("Softmax", ["wide"], ["y"]),
    ]
    constants = {"w": rng.standard_normal((4, 3)).astype("f"), "ratio": np.float32(0.1), "training": np.array(True)}
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 3])],
        [onnx.numpy_helper.from_array(np.asarray(v), k) for k, v in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


@pytest.mark.parametrize("opset", [15, 17, 19, 21, 24])
def test_artifacts_and_the_exported_model(opset: int, tmp_path: Path) -> None:
    artifacts.generate_artifacts(
        training_model(opset), requires_grad=["w"], loss=artifacts.LossType.CrossEntropyLoss,
        optimizer=artifacts.OptimType.AdamW, artifact_directory=tmp_path,
    )  # fmt: skip
    for name in ("training_model.onnx", "eval_model.onnx", "optimizer_model.onnx"):
        onnx.checker.check_model(judged(onnx.load(tmp_path / name)))
    state = api.CheckpointState.load_checkpoint(tmp_path / "checkpoint")
    module = api.Module(tmp_path / "training_model.onnx", state, tmp_path / "eval_model.onnx")
    module.export_model_for_inferencing(tmp_path / "inference.onnx", ["y"])
    onnx.checker.check_model(onnx.load(tmp_path / "inference.onnx"), full_check=True)
