"""Options and descriptions of the second generation: defaults, error texts, attribute objects."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch
from backpass import optim
from backpass._ort.options import SessionOptions
from backpass.training import ORTTrainerOptions, PropagateCastOpsStrategy, amp
from backpass.training import model_desc_validation as md

DEFAULTS = {
    "batch": {"gradient_accumulation_steps": 1},
    "device": {"id": "cuda", "mem_limit": 0},
    "distributed": {
        "world_rank": 0,
        "world_size": 1,
        "local_rank": 0,
        "data_parallel_size": 1,
        "horizontal_parallel_size": 1,
        "pipeline_parallel": {
            "pipeline_parallel_size": 1,
            "num_pipeline_micro_batches": 1,
            "pipeline_cut_info_string": "",
            "sliced_schema": {},
            "sliced_axes": {},
            "sliced_tensor_names": [],
        },
        "allreduce_post_accumulation": False,
        "deepspeed_zero_optimization": {"stage": 0},
        "enable_adasum": False,
    },
    "lr_scheduler": None,
    "mixed_precision": {"enabled": False, "loss_scaler": None},
    "graph_transformer": {
        "attn_dropout_recompute": False,
        "gelu_recompute": False,
        "transformer_layer_recompute": False,
        "number_recompute_layers": 0,
        "propagate_cast_ops_config": {"strategy": PropagateCastOpsStrategy.FLOOD_FILL, "level": 1, "allow": []},
    },
    "utils": {
        "frozen_weights": [],
        "grad_norm_clip": True,
        "memory_efficient_gradient": False,
        "run_symbolic_shape_infer": False,
    },
    "debug": {
        "deterministic_compute": False,
        "check_model_export": False,
        "graph_save_paths": {
            "model_after_graph_transforms_path": "",
            "model_with_gradient_graph_path": "",
            "model_with_training_graph_path": "",
            "model_with_training_graph_after_optimization_path": "",
        },
    },
    "_internal_use": {
        "enable_internal_postprocess": True,
        "extra_postprocess": None,
        "onnx_opset_version": 14,
        "enable_onnx_contrib_ops": True,
    },
    "provider_options": {},
    "session_options": None,
}


@pytest.mark.parametrize(
    "given",
    [
        {},
        None,
        {name: {} for name, value in DEFAULTS.items() if isinstance(value, dict)},
        {
            "distributed": {"pipeline_parallel": {}, "deepspeed_zero_optimization": {}},
            "debug": {"graph_save_paths": {}},
        },
    ],
)
def test_defaults(given):
    assert ORTTrainerOptions(given)._validated_opts == DEFAULTS


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"mixed_precision": {"enabled": 1}}, "{'mixed_precision': [{'enabled': ['must be of boolean type']}]}"),
        ({"unknown": 1}, "{'unknown': ['unknown field']}"),
        ({"utils": {"unknown": 1}}, "{'utils': [{'unknown': ['unknown field']}]}"),
        ({"batch": 3}, "{'batch': ['must be of dict type']}"),
        (
            {"batch": {"gradient_accumulation_steps": 0}},
            "{'batch': [{'gradient_accumulation_steps': ['min value is 1']}]}",
        ),
        (
            {"distributed": {"deepspeed_zero_optimization": {"stage": 2}}},
            "{'distributed': [{'deepspeed_zero_optimization': [{'stage': ['max value is 1']}]}]}",
        ),
        ({"lr_scheduler": "linear"}, "{'lr_scheduler': ['must be of optim._LRScheduler type']}"),
        (
            {"mixed_precision": {"loss_scaler": 3}},
            "{'mixed_precision': [{'loss_scaler': ['must be of amp.LossScaler type']}]}",
        ),
        ({"session_options": 4}, "{'session_options': ['must be of SessionOptions type']}"),
        (
            {"_internal_use": {"onnx_opset_version": 15}},
            "{'_internal_use': [{'onnx_opset_version': ['max value is 14']}]}",
        ),
    ],
)
def test_errors(given, text):
    with pytest.raises(ValueError, match="Invalid options") as error:
        ORTTrainerOptions(given)
    assert str(error.value) == f"Invalid options: {text}"


def test_attributes_can_be_written():
    given = {"batch": {"gradient_accumulation_steps": 3}, "utils": {"frozen_weights": ["a"]}}
    options = ORTTrainerOptions(given)
    assert options.batch.gradient_accumulation_steps == 3
    assert options._original_opts == given
    options.batch.gradient_accumulation_steps = 5
    options.utils.frozen_weights.append("b")
    options.utils.grad_norm_clip = False
    assert given == {"batch": {"gradient_accumulation_steps": 3}, "utils": {"frozen_weights": ["a"]}}
    copied = options._copy()
    copied.utils.frozen_weights.append("c")
    copied.debug.graph_save_paths.model_with_training_graph_path = "x"
    assert options.utils.frozen_weights == ["a", "b"]
    assert options.debug.graph_save_paths.model_with_training_graph_path == ""
    assert copied.batch.gradient_accumulation_steps == 5
    assert "gradient_accumulation_steps" in repr(options)


def test_objects_stay_what_they_are():
    session, scaler = SessionOptions(), amp.DynamicLossScaler()
    session.enable_mem_pattern = False
    schedule = optim.LinearWarmupLRScheduler(10)
    options = ORTTrainerOptions(
        {
            "session_options": session,
            "provider_options": {"EP1": {"key": "val"}},
            "lr_scheduler": schedule,
            "mixed_precision": {"enabled": True, "loss_scaler": scaler},
            "distributed": {"pipeline_parallel": {"sliced_schema": {"x": [1, 2]}, "sliced_axes": {"x": 1}}},
        }
    )
    assert options.session_options is session
    assert options._copy().session_options.enable_mem_pattern is False
    assert options._copy().lr_scheduler is schedule
    assert options._copy().mixed_precision.loss_scaler is scaler
    assert options._validated_opts["provider_options"]["EP1"]["key"] == "val"
    assert options.provider_options == {"EP1": {"key": "val"}}
    assert options.distributed.pipeline_parallel.sliced_schema == {"x": [1, 2]}


def test_spellings_of_older_releases():
    options = ORTTrainerOptions(
        {
            "utils": {"invertible_layer_norm_gradient": True},
            "graph_transformer": {"allow_layer_norm_mod_precision": True},
            "_internal_use": {"onnx_opset_version": 12},
        }
    )
    assert options.utils.invertible_layer_norm_gradient
    assert options.graph_transformer.allow_layer_norm_mod_precision
    assert ORTTrainerOptions({"distributed": {"enable_adasum": True}}).distributed.enable_adasum is True


# ---- descriptions
@pytest.mark.parametrize(
    ("given", "text"),
    [
        (
            {"inputs": [(True, [])], "outputs": [(True, [])]},
            "{'inputs': [{0: ['the first element of the tuple (aka name) must be a string']}], "
            "'outputs': [{0: ['the first element of the tuple (aka name) must be a string']}]}",
        ),
        (
            {"inputs": [("in1", None)], "outputs": [("out1", None)]},
            "{'inputs': [{0: ['the second element of the tuple (aka shape) must be a list']}], "
            "'outputs': [{0: ['the second element of the tuple (aka shape) must be a list']}]}",
        ),
        (
            {"inputs": [("in1", [])], "outputs": [("out1", [], None)]},
            "{'outputs': [{0: ['the third element of the tuple (aka is_loss) must be a boolean']}]}",
        ),
        (
            {"inputs": [("in1", [True])], "outputs": [("out1", [True])]},
            "{'inputs': [{0: ['each shape must be either a string or integer']}], "
            "'outputs': [{0: ['each shape must be either a string or integer']}]}",
        ),
        (
            {"inputs": [("in1", [])], "outputs": [("out1", [], True), ("out2", [], True)]},
            "{'outputs': [{1: ['only one is_loss can bet set to True']}]}",
        ),
        (
            {"inputz": [("in1", [])], "outputs": [("out1", [], True)]},
            "{'inputs': ['required field'], 'inputz': ['unknown field']}",
        ),
        (
            {"inputs": [("in1", [])], "outputz": [("out1", [], True)]},
            "{'outputs': ['required field'], 'outputz': ['unknown field']}",
        ),
        ({"inputs": [], "outputs": 3}, "{'inputs': ['min length is 1'], 'outputs': ['must be of list type']}"),
        (
            {"inputs": [["in1", []]], "outputs": [("out1", [], True, 1)]},
            "{'inputs': [{0: ['must be a tuple with 2 elements']}], "
            "'outputs': [{0: ['must be a tuple with 2 or 3 elements']}]}",
        ),
    ],
)
def test_descriptions_that_are_none(given, text):
    with pytest.raises(ValueError, match="Invalid model_desc") as error:
        md._ORTTrainerModelDesc(given)
    assert str(error.value) == f"Invalid model_desc: {text}"


@pytest.mark.parametrize(
    ("given", "types"),
    [
        ({"inputs": [("in0", [])], "outputs": [("out0", []), ("out1", [])]}, [torch.float32, torch.int32]),
        ({"inputs": [("in0", ["batch", 2, 3])], "outputs": [("out0", [], True)]}, [torch.int16]),
        (
            {
                "inputs": [("in0", []), ("in1", [1]), ("in2", [1000, "n"]), ("in3", ["n", "m"])],
                "outputs": [("out0", [], True), ("out1", [1], False), ("out2", [1, "n", 3])],
            },
            [torch.float32, torch.float64, torch.bool],
        ),
    ],
)
def test_descriptions(given, types):
    description = md._ORTTrainerModelDesc(given)
    rate = description.learning_rate
    assert (rate.name, rate.shape, rate.dtype) == ("__learning_rate", [1], torch.float32)
    assert all(isinstance(d, description._InputDescription) for d in description.inputs)
    assert all(isinstance(d, description._OutputDescription) for d in description.outputs)
    assert [tuple(d) for d in description.inputs] == given["inputs"]
    losses = [len(d) == 3 and d[2] for d in given["outputs"]]
    assert [tuple(d) for d in description.outputs] == [
        (*d[:2], x) for d, x in zip(given["outputs"], losses, strict=True)
    ]

    for place in range(len(description.inputs)):
        description.add_type_to_input_description(place, torch.uint8)
    for place, kind in enumerate(types):
        description.add_type_to_output_description(place, kind)
    assert all(isinstance(d, description._InputDescriptionTyped) for d in description.inputs)
    assert all(isinstance(d, description._OutputDescriptionTyped) for d in description.outputs)
    assert [d.dtype for d in description.outputs] == types
    assert description.outputs[0]._fields == ("name", "shape", "is_loss", "dtype", "dtype_amp")


def test_names_that_a_description_may_get():
    description = md._ORTTrainerModelDesc({"inputs": [("x", [])], "outputs": [("loss", [], True)]})
    assert description.all_finite is None
    description.all_finite = md.ALL_FINITE_IO_DESCRIPTION_NAME
    description.loss_scale_input = md.LOSS_SCALE_INPUT_IO_DESCRIPTION_NAME
    description.gradient_accumulation = md.GRADIENT_ACCUMULATION_IO_DESCRIPTION_NAME
    assert tuple(description.all_finite) == ("__all_finite", [1], torch.bool)
    assert tuple(description.loss_scale_input) == (md.LOSS_SCALE_INPUT_IO_DESCRIPTION_NAME, [], torch.float32)
    assert tuple(description.gradient_accumulation) == (md.GRADIENT_ACCUMULATION_IO_DESCRIPTION_NAME, [1], torch.bool)
    assert description.loss_index == 0
    with pytest.raises(AssertionError):
        description.all_finite = ""
    with pytest.raises(AssertionError):
        description.add_type_to_input_description(1, np.float32)


def test_a_description_without_a_loss():
    description = md._ORTTrainerModelDesc({"inputs": [("x", [])], "outputs": [("y", [])]})
    with pytest.raises(AssertionError) as error:
        _ = description.loss_index
    assert str(error.value) == "Only one loss output is supported (0 were specified)"


def test_what_is_missing_is_named():
    """Without cerberus the error says what to install."""
    code = """
import sys
sys.modules["cerberus"] = None
from backpass.training import ORTTrainerOptions
try:
    ORTTrainerOptions()
except ModuleNotFoundError as error:
    print(error)
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'backpass[trainer]'" in found.stdout


def test_options_without_effect_are_said_once(monkeypatch, recwarn):
    from backpass.trainer import ort_trainer
    from backpass.trainer.options import Options
    from backpass.training import _settings

    monkeypatch.setattr(_settings, "_said", set())
    given = ORTTrainerOptions({"device": {"id": "cpu"}, "_internal_use": {"onnx_opset_version": 12}})
    with pytest.warns(UserWarning, match=r"_internal_use.onnx_opset_version has no effect"):
        _settings.say_once(given)
    recwarn.clear()
    _settings.say_once(given)
    _settings.say_once(ORTTrainerOptions({"device": {"id": "cpu"}}))
    assert not recwarn
    first, second = ort_trainer._notes("cpu", Options(_opset_version=12, optimized_model_filepath="model.onnx"))
    assert "_opset_version has no effect" in first
    assert "optimized_model_filepath has no effect" in second
    assert not ort_trainer._notes("cpu", Options())


def test_the_file_of_an_optimized_model_is_not_written(monkeypatch, recwarn):
    from backpass._ort import options as session

    monkeypatch.setattr(session, "_said", [])
    given = session.SessionOptions(optimized_model_filepath="model.onnx")
    with pytest.warns(UserWarning, match=r"optimized_model_filepath has no effect"):
        given.to_engine()
    recwarn.clear()
    given.to_engine()
    assert not recwarn
