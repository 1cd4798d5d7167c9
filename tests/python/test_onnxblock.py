"""Blocks: the nodes they build, names, messages; nested and custom blocks; where the original was wrong."""

from __future__ import annotations

import gc
import re
import sys
from collections.abc import Callable
from typing import Any

import backpass
import numpy as np
import onnx
import pytest
from backpass import onnxblock
from backpass.onnxblock import _graph_utils, blocks, loss, optim
from backpass.onnxblock.optim.optim import AdamWOptimizer, SGDOptimizer
from onnx import TensorProto, checker, numpy_helper, parser


def model(body: str = "y = Gemm(x, w, b)", opset: int = 17) -> onnx.ModelProto:
    """x [N, 4] -> y [N, 3], with weights w and b."""
    text = f'<ir_version: 8, opset_import: ["": {opset}]> g (float[N, 4] x) => (float[N, 3] y) {{ {body} }}'
    made = parser.parse_model(text)
    rng = np.random.default_rng(1)
    for name, shape in (("w", (4, 3)), ("b", (3,))):
        made.graph.initializer.append(numpy_helper.from_array(rng.standard_normal(shape, dtype=np.float32), name))
    return made


def built(make: Callable[[], Any], start: onnx.ModelProto | None = None) -> tuple[onnx.ModelProto, Any, list[Any]]:
    """The model, what the block returned, and the nodes it added."""
    start = start or model()
    with onnxblock.base(start) as accessor:
        result = make()
    checker.check_model(accessor.model, full_check=True)
    return accessor.model, result, list(accessor.model.graph.node[len(start.graph.node) :])


def attributes(node: onnx.NodeProto) -> dict[str, Any]:
    return {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}


def run(made: onnx.ModelProto, output: str, **feeds: np.ndarray) -> np.ndarray:
    probe = onnx.ModelProto()
    probe.CopyFrom(made)
    del probe.graph.output[:]
    probe.graph.output.append(onnx.ValueInfoProto(name=output))
    (result,) = backpass.InferenceSession(probe.SerializeToString()).run(None, feeds)
    return np.asarray(result)


X = np.random.default_rng(0).standard_normal((5, 4)).astype(np.float32)
ONE_NODE = {
    "Add": lambda: blocks.Add()("y", "b"),
    "Sub": lambda: blocks.Sub()("y", "b"),
    "Mul": lambda: blocks.Mul()("y", "b"),
    "Div": lambda: blocks.Div()("y", "b"),
    "Pow": lambda: blocks.Pow(3.0)("y"),
    "ReduceMean": lambda: blocks.ReduceMean()("y"),
    "ReduceSum": lambda: blocks.ReduceSum(keepdims=False)("y"),
    "Sigmoid": lambda: blocks.Sigmoid()("y"),
    "Log": lambda: blocks.Log()("y"),
    "Neg": lambda: blocks.Neg()("y"),
    "Abs": lambda: blocks.Abs()("y"),
    "Clip": lambda: blocks.Clip(-0.5, 0.25)("y"),
    "ReduceAllL2": lambda: blocks.ReduceAllL2()("y", "b"),
}


def expected(op: str, y: np.ndarray, b: np.ndarray) -> np.ndarray:
    """By numpy."""
    return {
        "Add": lambda: y + b,
        "Sub": lambda: y - b,
        "Mul": lambda: y * b,
        "Div": lambda: y / b,
        "Pow": lambda: y**3,
        "ReduceMean": lambda: y.mean().reshape(1, 1),
        "ReduceSum": lambda: y.sum(),
        "Sigmoid": lambda: 1 / (1 + np.exp(-y)),
        "Log": lambda: np.log(y),
        "Neg": lambda: -y,
        "Abs": lambda: np.abs(y),
        "Clip": lambda: y.clip(-0.5, 0.25),
        "ReduceAllL2": lambda: np.sqrt((y**2).sum() + (b**2).sum()),
    }[op]()


@pytest.mark.parametrize("op", ONE_NODE)
def test_block_is_one_node_and_computes(op: str) -> None:
    made, name, nodes = built(ONE_NODE[op])
    assert [n.op_type for n in nodes] == [op]
    assert re.fullmatch(rf"onnx::{op.lower()}_output::\d+", name)
    assert re.fullmatch(rf"onnx::{op}::\d+", nodes[0].name)
    assert list(nodes[0].output) == [name]
    y, b = run(made, "y", x=X), numpy_helper.to_array(made.graph.initializer[1])
    with np.errstate(invalid="ignore"):
        wanted = expected(op, y, b)
    result = run(made, name, x=X)
    assert result.shape == wanted.shape
    np.testing.assert_allclose(result, wanted, rtol=1e-5, atol=1e-6)


def test_constant() -> None:
    made, name, nodes = built(lambda: blocks.Constant(0.4)())
    assert not nodes
    assert re.fullmatch(r"onnx::initializer::\d+", name)
    added = made.graph.initializer[-1]
    assert (added.name, list(added.dims), added.data_type) == (name, [1], TensorProto.FLOAT)
    assert numpy_helper.to_array(added) == np.float32(0.4)


def test_sequence_cast_pass_through() -> None:
    _, name, (sequence,) = built(lambda: blocks.SequenceConstruct()("y", "x"))
    assert (sequence.op_type, list(sequence.input), list(sequence.output)) == ("SequenceConstruct", ["y", "x"], [name])
    _, name, (cast,) = built(lambda: blocks.Cast(TensorProto.DOUBLE)("y"))
    assert (cast.op_type, attributes(cast)) == ("Cast", {"to": TensorProto.DOUBLE})
    assert re.fullmatch(r"onnx::cast.output::\d+", name)
    _, names, nodes = built(lambda: blocks.PassThrough()("y", "x"))
    assert (names, nodes) == (("y", "x"), [])


def test_clip_with_one_limit_and_with_none() -> None:
    for limits, count in (((None, 0.25), 3), ((-0.5, None), 2), ((None, None), 1)):
        made, name, (node,) = built(lambda limits=limits: blocks.Clip(*limits)("y"))
        assert len(node.input) == count
        wanted = np.clip(run(made, "y", x=X), *(limits if any(limits) else (-np.inf, None)))
        assert np.array_equal(run(made, name, x=X), wanted)


def test_input_like() -> None:
    made, name, _ = built(lambda: blocks.InputLike("y")("other"))
    assert name == "other"
    assert made.graph.input[-1].type == made.graph.output[0].type
    _, name, _ = built(lambda: blocks.InputLike("x")())
    assert re.fullmatch(r"onnx::input::\d+", name)
    with pytest.raises(LookupError, match="'logit'"):
        built(lambda: blocks.InputLike("logit")())


def test_label_encoder_brings_its_domain() -> None:
    start = parser.parse_model('<ir_version: 8, opset_import: ["": 17]> g (int64[N] x) => (int64[N] y) {y=Identity(x)}')
    encoder = blocks.LabelEncoder(keys_int64s=[1, 2], values_int64s=[30, 40])
    made, name, (node,) = built(lambda: encoder("y"), start)
    assert node.domain == "ai.onnx.ml"
    assert attributes(node)["default_int64"] == -1
    assert run(made, name, x=np.array([2, 1, 7])).tolist() == [40, 30, -1]


def test_linear_draws_from_numpys_generator() -> None:
    np.random.seed(5)
    made, name, (node,) = built(lambda: blocks.Linear(3, 2, alpha=2.0)("y"))
    np.random.seed(5)
    w, b = np.random.randn(3, 2).astype(np.float32), np.random.randn(2).astype(np.float32)
    assert node.op_type == "Gemm"
    np.testing.assert_allclose(run(made, name, x=X), 2 * run(made, "y", x=X) @ w + b, rtol=1e-5)
    _, _, (node,) = built(lambda: blocks.Linear(3, 2, bias=False)("y"))
    assert len(node.input) == 2


# ---- Names.
def test_names_do_not_meet_those_of_the_model() -> None:
    ahead = int(_graph_utils.generate_graph_name("probe").rsplit("::")[-1])
    start = model()
    start.graph.node[0].name = f"onnx::Neg::{ahead + 2}"
    _, _, (node,) = built(lambda: blocks.Neg()("y"), start)
    assert node.name != start.graph.node[0].name


def test_numbers_are_shared_and_rise() -> None:
    _, _, nodes = built(lambda: blocks.Neg()(blocks.Abs()("y")))
    numbers = [int(part.rsplit("::")[-1]) for node in nodes for part in (node.output[0], node.name)]
    assert numbers == list(range(numbers[0], numbers[0] + 4))


# ---- Bases.
def test_base_copies_and_does_not_nest() -> None:
    start = model()
    with onnxblock.base(start) as accessor:
        assert not accessor.has_path
        blocks.Neg()("y")
        with pytest.raises(RuntimeError, match="in use already"), onnxblock.empty_base():
            pass
    assert len(start.graph.node) == 1
    assert len(accessor.model.graph.node) == 2
    with pytest.raises(RuntimeError, match="NoneType"), onnxblock.base(None):  # type: ignore[arg-type]
        pass
    with pytest.raises(ValueError, match="mine"), onnxblock.base(start):
        raise ValueError("mine")
    with onnxblock.base(start):  # the failed one was left
        pass


def test_empty_base() -> None:
    with onnxblock.empty_base(15) as accessor:
        made = accessor.model
        assert {(o.domain, o.version) for o in made.opset_import} == {("com.microsoft", 1), ("", 15)}
        assert made.ir_version == 8  # the oldest that has opset 15, so that older runtimes read it
        assert made.graph.name == "graph"
    with onnxblock.empty_base() as accessor:
        assert ("", onnx.defs.onnx_opset_version()) in {(o.domain, o.version) for o in accessor.model.opset_import}


def test_models_of_old_ir_versions() -> None:
    """Whose initializers had to be inputs as well."""
    start = model(opset=9)
    start.ir_version = 3
    for name, shape in (("w", [4, 3]), ("b", [3])):
        start.graph.input.append(onnx.helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))
    made, name, _ = built(lambda: loss.MSELoss()("y"), start)
    assert made.ir_version == 4
    target = np.zeros((5, 3), np.float32)
    np.testing.assert_allclose(run(made, name, x=X, target=target), (run(model(), "y", x=X) ** 2).mean(), rtol=1e-5)


def test_external_data_beside_the_path(tmp_path: Any) -> None:
    onnx.save(model(), tmp_path / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0)
    unloaded = onnx.load(tmp_path / "m.onnx", load_external_data=False)
    with onnxblock.base(unloaded, tmp_path / "m.onnx") as accessor:
        assert accessor.has_path
        name = blocks.Neg()("y")
    np.testing.assert_array_equal(run(accessor.model, name, x=X), -run(model(), "y", x=X))


def test_custom_op_library_says_what_to_do(tmp_path: Any) -> None:
    with pytest.raises(RuntimeError, match="does not exist"), onnxblock.custom_op_library(tmp_path / "no.so"):
        pass
    (tmp_path / "ops.so").write_bytes(b"")
    with pytest.raises(backpass.Unsupported, match=r"ModelProto\.functions"):
        onnxblock.custom_op_library(tmp_path / "ops.so").__enter__()


# ---- Calling.
def test_outside_of_a_base() -> None:
    with pytest.raises(RuntimeError, match="Neg has no model to build on: call it inside `with"):
        blocks.Neg()("y")
    used = blocks.Neg()
    built(lambda: used("y"))
    with pytest.raises(RuntimeError, match="has no model"):
        used("y")


def test_temporary_names_are_relative() -> None:
    class Own(onnxblock.Block):
        def build(self, name: str) -> str:
            return name

    Own("other.onnx")
    with pytest.raises(RuntimeError, match="without folder"):
        Own("/tmp/other.onnx")


def test_bad_models_are_refused_by_the_outermost_block() -> None:
    class Twice(onnxblock.Block):
        def build(self, name: str) -> str:
            return blocks.Add()(blocks.Neg()(name), "missing")

    with pytest.raises(checker.ValidationError, match="missing"):
        built(lambda: Twice()("y"))


class Bare(onnxblock.ForwardBlock):
    """Never calls super().__init__()."""

    def __init__(self, result: Any) -> None:
        self.result = result

    def build(self, name: str) -> Any:
        return self.result(name)


def test_forward_block_sets_outputs() -> None:
    block = Bare(lambda name: (blocks.Neg()(name), "x", name))
    with pytest.raises(RuntimeError, match="not built yet"):
        block.to_model_proto()
    with onnxblock.base(model()) as accessor:
        names = block("y")
    assert [o.name for o in block.to_model_proto().graph.output] == list(names)
    assert accessor.model == block.to_model_proto()
    for wrong, error in (
        (lambda n: "nowhere", LookupError),
        (lambda n: None, RuntimeError),
        (lambda n: 3, RuntimeError),
    ):
        with onnxblock.base(model()), pytest.raises(error):
            Bare(wrong)("y")


def test_types_behind_operators_onnx_does_not_know() -> None:
    start = model("h = Gemm(x, w, b) y = com.microsoft.Gelu(h)")
    start.opset_import.append(onnx.helper.make_opsetid("com.microsoft", 1))
    del start.graph.value_info[:]
    block = Bare(lambda name: blocks.Neg()(name))
    start.graph.output[0].name = "h"
    start.graph.output[0].ClearField("type")
    start.graph.output[0].type.CopyFrom(model().graph.output[0].type)
    with onnxblock.base(start):
        block("y")
    (output,) = block.to_model_proto().graph.output
    assert output.type.tensor_type.elem_type == TensorProto.FLOAT


def test_optimizer_blocks() -> None:
    tensors = list(model().graph.initializer)
    for block, ops, moments, attrs in (
        (optim.SGD(), ["SGDOptimizerV2"], 1, {}),
        (optim.SGD(clip_grad=optim.ClipGradNorm(2.0)), ["InplaceClipGradNorm", "SGDOptimizerV2"], 1, {"max_norm": 2.0}),
        (optim.AdamW(clip_grad=0.5), ["InplaceClipGradNorm", "AdamWOptimizer"], 2, {"max_norm": 0.5}),
        (
            optim.AdamW(False, (0.5, 0.75), 0.25, 0.125),
            ["AdamWOptimizer"],
            2,
            {"alpha": 0.5, "beta": 0.75, "epsilon": 0.25, "weight_decay": 0.125, "correct_bias": 0, "adam_mode": 1},
        ),
    ):
        with onnxblock.empty_base(17) as accessor:
            flag = block((tensors, []))
        graph = accessor.model.graph
        names = ["learning_rate", "step", "params", "gradients", "first_order_moments", "second_order_moments"]
        assert [i.name for i in graph.input] == names[: 4 + moments]
        assert [n.op_type for n in graph.node] == ops
        assert {n.domain for n in graph.node} == {"com.microsoft"}
        assert attributes(graph.node[0]) == attrs
        (output,) = graph.output
        assert output.name == flag
        assert output.type == onnx.helper.make_tensor_type_proto(TensorProto.BOOL, [1])
        assert graph.input[2].type.sequence_type.elem_type.tensor_type.elem_type == TensorProto.FLOAT
    assert isinstance(optim.AdamW()._optimizer, AdamWOptimizer)
    assert isinstance(optim.SGD()._optimizer, SGDOptimizer)
    with onnxblock.empty_base(), pytest.raises(RuntimeError, match="at least one initializer"):
        optim.AdamW()(([], tensors))


@pytest.mark.parametrize(
    "given",
    [{"clip_grad": -1.0}, {"clip_grad": np.nan}, {"betas": (1.0, 0.9)}, {"eps": -1e-8}, {"weight_decay": np.inf}],
)
def test_optimizers_refuse_numbers_that_cannot_train(given: dict[str, Any]) -> None:
    with pytest.raises(RuntimeError, match=r"expected a number in \[0, "):
        optim.AdamW(**given)


def test_losses_refuse_reductions_they_do_not_know() -> None:
    for kind in (loss.MSELoss, loss.L1Loss, loss.BCEWithLogitsLoss, loss.CrossEntropyLoss):
        with pytest.raises(RuntimeError, match=r"Reduction 'max' not supported.*'mean', 'sum', 'none'"):
            kind(reduction="max")


def test_loss_nodes() -> None:
    _, name, nodes = built(lambda: loss.MSELoss()("y"))
    assert [n.op_type for n in nodes] == ["Sub", "Pow", "ReduceMean"]
    assert re.fullmatch(r"onnx::reducemean_output::\d+", name)
    _, _, nodes = built(lambda: loss.L1Loss("sum")("y", "wanted"))
    assert [n.op_type for n in nodes] == ["Sub", "Abs", "ReduceSum"]
    assert nodes[0].input[1] == "wanted"
    made, name, (node,) = built(lambda: loss.CrossEntropyLoss()("y"))
    assert re.fullmatch(r"onnx::loss::\d+", name)
    assert attributes(node) == {"reduction": b"mean"}
    assert node.output[1].startswith("onnx::log_prob::")
    assert made.graph.input[-1] == onnx.helper.make_tensor_value_info("labels", TensorProto.INT64, ["N"])


def test_two_losses_share_a_target() -> None:
    made, _, _ = built(lambda: blocks.Add()(loss.MSELoss()("y"), loss.L1Loss()("y")))
    assert [i.name for i in made.graph.input] == ["x", "target"]


def test_cross_entropy_of_images_drops_the_axis_of_classes() -> None:
    text = '<ir_version: 8, opset_import: ["": 17]> g (float[N,5,H,7] x) => (float[N,5,H,7] y) { y = Identity(x) }'
    made, _, _ = built(lambda: loss.CrossEntropyLoss()("y"), parser.parse_model(text))
    assert made.graph.input[-1] == onnx.helper.make_tensor_value_info("labels", TensorProto.INT64, ["N", "H", 7])


def test_cross_entropy_says_what_it_needs() -> None:
    with pytest.raises(backpass.Unsupported, match="opset 12, the model has 11"):
        built(lambda: loss.CrossEntropyLoss()("y"), model(opset=11))
    with pytest.raises(backpass.InvalidInput, match="one number per class"):
        loss.CrossEntropyLoss(weight=np.ones((2, 2)))
    with pytest.raises(LookupError, match="'z'"):
        built(lambda: loss.CrossEntropyLoss()("z"))


@pytest.mark.parametrize("other", [np.zeros((3, 4), np.float32), np.zeros((4, 3))])
def test_checkpoints_of_other_models_are_not_loaded(other: np.ndarray, tmp_path: Any) -> None:
    path = tmp_path / "checkpoint"
    values = {"b": np.ones(3, np.float32), "w": other}
    onnxblock.save_checkpoint(([numpy_helper.from_array(a, n) for n, a in values.items()], []), path)
    loaded = model()
    with pytest.raises(RuntimeError, match=r"parameter 'w': got .*, expected float\[4, 3\]"):
        onnxblock.load_checkpoint_to_model(path, loaded)
    assert loaded == model()
    onnxblock.save_checkpoint(([numpy_helper.from_array(other, "v")], []), path)
    with pytest.raises(RuntimeError, match="of another model"):
        onnxblock.load_checkpoint_to_model(path, loaded)


def test_training_block_before_and_wrong_names() -> None:
    class Train(onnxblock.TrainingBlock):
        def build(self, name: str) -> str:
            return loss.MSELoss()(name)

    block = Train()
    for ask in (block.parameters, block.to_model_proto):
        with pytest.raises(RuntimeError, match="not built yet"):
            ask()
    block.requires_grad("weight")
    with onnxblock.base(model()), pytest.raises(RuntimeError, match="'weight'"):
        block("y")


@pytest.mark.parametrize("kind", [onnxblock.ForwardBlock, onnxblock.TrainingBlock])
def test_misspelt_names_are_named(kind: type[onnxblock.ForwardBlock]) -> None:
    class Misspelt(kind):  # type: ignore[misc, valid-type]
        def build(self, name: str) -> str:
            result: str = blocks.ReduceSum(keepdims=False)(blocks.Add()(name, "scorse"))
            return result

    text = '<ir_version: 8, opset_import: ["": 17]> g (float[N] x) => (float[N] scores) { scores = Exp(x) }'
    with (
        onnxblock.base(parser.parse_model(text)),
        pytest.raises(LookupError, match=r"Add .*'scorse'; close to it: scores"),
    ):
        Misspelt()("scores")


def test_nothing_is_printed_when_blocks_are_collected(monkeypatch: pytest.MonkeyPatch) -> None:
    """The original printed an ignored AttributeError for classes that do not call super().__init__()."""
    seen: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", seen.append)
    block = Bare(lambda name: name)
    del block
    gc.collect()
    assert not seen


@pytest.mark.parametrize("kind", ["standard", "engine's"])
def test_blocks_may_return_sequences(kind: str) -> None:
    """One of the standard's, whose type onnx infers, and one behind an operator that onnx does not know."""

    class Several(onnxblock.ForwardBlock):
        def build(self, name: str) -> str:
            sequence: str = blocks.SequenceConstruct()(name, name)
            if kind == "standard":
                return sequence
            clipped: str = optim.ClipGradNorm(1.0)(sequence)
            return clipped

    block = Several()
    with onnxblock.base(model()):
        block("y")
    (output,) = block.to_model_proto().graph.output
    assert output.type.sequence_type.elem_type.tensor_type.elem_type == TensorProto.FLOAT
    (both,) = backpass.InferenceSession(block.to_model_proto()).run(None, {"x": X})
    assert [value.shape for value in both] == [(5, 3), (5, 3)]


def test_types_of_outputs_that_only_the_engine_knows() -> None:
    for text, kind in (("tensor(double)", "tensor_type"), ("seq(tensor(int64))", "sequence_type")):
        assert _graph_utils._type_proto(text, None).WhichOneof("value") == kind
    assert _graph_utils._type_proto("optional(seq(tensor(bool)))", None).HasField("optional_type")
