"""What the original has and Backpass has not: modules and names in modules, and what to do without them."""

from __future__ import annotations

_ORTMODULE = "onnxruntime.training.ortmodule"
_INSIDE = "it is a part of the original's inside; ORTModule.explain() tells what was exported, rewritten and run"
_NO_GPU = "Backpass runs on CPUs"
_API = "use onnxruntime.training.api, which has it for scripts"
_SCALING = "FP16_Optimizer returns what it is given; bfloat16 needs no scaled loss"
_EXTENSIONS = "Backpass needs no extensions of torch"
_FUNCTIONS = "a torch.autograd.Function is exported as one operator and called back, without being registered"
_DIFFERENTIATED = "use backpass.grad for gradients of a model, onnxblock.TrainingBlock for training models"
_SPARSE = "tensors are dense; give the session a dense one"
_ONE_PLACE = "there is the memory of the CPU alone, which needs no description"


def _names(module: str, text: str, why: str) -> dict[str, str]:
    return {f"{module}.{name}": why for name in text.split()}


ABSENT = {
    "onnxruntime.training.ort_triton": _NO_GPU,
    "onnxruntime.training.experimental.exporter": "use backpass.torch.to_onnx to export a module",
    "onnxruntime.training.experimental.gradient_graph.exporter": "use backpass.torch.to_onnx to export a module",
    "onnxruntime.training.onnxblock._training_graph_utils": _DIFFERENTIATED,
    **_names(
        "onnxruntime.training.optim",
        "_apex_amp_modifier _ds_code_store _ds_modifier _megatron_modifier _modifier _modifier_registry",
        _SCALING,
    ),
    "onnxruntime.training.optim._multi_tensor_apply": "FusedAdam works on all parameters at once by itself",
    **_names(
        _ORTMODULE,
        """_execution_agent _gradient_accumulation_manager _graph_execution_interface _graph_execution_manager_factory
        _graph_transition_manager _inference_manager _onnx_models _torch_module_factory _torch_module_interface
        _torch_module_ort _torch_module_pytorch _training_manager""",
        _INSIDE,
    ),
    f"{_ORTMODULE}._custom_autograd_function_exporter": _FUNCTIONS,
    f"{_ORTMODULE}._pythonop_helper": _FUNCTIONS,
    f"{_ORTMODULE}._mem_efficient_grad_mgmt": "gradients are handed to torch without a copy",
    f"{_ORTMODULE}._runtime_inspector": "use ORTMODULE_PRINT_MEMORY_STATS, ORTMODULE_PRINT_INPUT_DENSITY and explain()",
    f"{_ORTMODULE}._zero_stage3_compatibility": "parameters are whole in every process",
    f"{_ORTMODULE}.graph_optimizers": "attention is fused by the engine; register_graph_optimizer takes your own",
    f"{_ORTMODULE}.optimize_graph_for_aten_efficient_attention": "attention is fused by the engine",
    f"{_ORTMODULE}.torch_cpp_extensions.cpu": _EXTENSIONS,
    f"{_ORTMODULE}.torch_cpp_extensions.cuda": _EXTENSIONS,
    # "*": whatever else the module has in the original.
    f"{_ORTMODULE}._custom_gradient_registry.*": "torch differentiates its operators itself",
    f"{_ORTMODULE}._custom_op_symbolic_registry.*": "TorchScript exports nothing here; see backpass.torch.lowers",
    f"{_ORTMODULE}._graph_execution_manager.*": _INSIDE,
    f"{_ORTMODULE}._io.*": _INSIDE,
    f"{_ORTMODULE}._logger.*": "use RuntimeOptions(profile=True) and ORTModule.explain()",
    f"{_ORTMODULE}._utils.*": _INSIDE,
    "onnxruntime.training.utils.hooks._zero_offload_subscriber.*": "parameters are whole in every process",
    "onnxruntime.training.artifacts.USE_PATH_THRESHOLD": "a model of any size is given as it is, or as its path",
    **_names(
        "onnxruntime.training.onnxblock._graph_utils",
        "get_input_from_input_name get_output_from_output_name register_graph_outputs",
        "use the package onnx, or the blocks of onnxruntime.training.onnxblock",
    ),
    "onnxruntime.training.postprocess": "models need none before they are trained; _extra_postprocess takes your own",
    "onnxruntime.capi.checkpointing_utils": "load_checkpoint of onnxruntime.capi.ort_trainer finds and joins files",
}


def _at_runtime() -> dict[str, str]:
    """What else is not there when ``onnxruntime`` itself is Backpass."""
    absent = {
        **_names(
            "onnxruntime.capi._pybind_state",
            "CheckpointState LinearLRScheduler Module Optimizer Parameter load_checkpoint save_checkpoint",
            _API,
        ),
        **_names(
            "onnxruntime.capi._pybind_state",
            """GradientNodeAttributeDefinition GradientNodeDefinition register_custom_stop_gradient_edges
            register_gradient_definition""",
            "use backpass.register_gradient, or that of onnxruntime.training.ortmodule._custom_gradient_registry",
        ),
        **_names(
            "onnxruntime.capi._pybind_state",
            """GraphInfo GraphTransformerConfiguration OrtModuleGraphBuilder OrtModuleGraphBuilderConfiguration
            OrtValueCache PartialGraphExecutionState PropagateCastOpsConfiguration TrainingAgent
            TrainingGraphTransformerConfiguration SessionObjectInitializer get_model_after_loading_checkpoint
            get_optimized_model get_session_initializer get_shape_inference_function is_dlpack_uint8_tensor""",
            _INSIDE,
        ),
    }
    for text, why in {
        "OrtAllocatorType OrtArenaCfg create_and_register_allocator create_and_register_allocator_v2": _ONE_PLACE,
        "OrtMemType OrtMemoryInfo": _ONE_PLACE,
        "OrtSparseFormat SparseTensor SparseBlockSparseView SparseCooView SparseCsrView": _SPARSE,
        "cuda_version": _NO_GPU,
        "LoraAdapter AdapterFormat": "merge adapters into the weights before the model is loaded",
    }.items():
        for place in ("onnxruntime", "onnxruntime.capi._pybind_state", "onnxruntime.capi.onnxruntime_pybind11_state"):
            absent |= _names(place, text, why)
    tools = "use those of an installed onnxruntime, in a process without install(runtime=True)"
    return absent | _names("onnxruntime", "datasets quantization tools transformers", tools)


ABSENT_AT_RUNTIME = _at_runtime()
