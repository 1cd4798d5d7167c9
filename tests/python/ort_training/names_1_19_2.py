"""Names that can be imported from onnxruntime-training 1.19.2 and torch-ort, and those of ORTTrainer, which left
earlier, by module; without what these import from elsewhere."""

NAMES = {
    "onnxruntime": """
        ExecutionMode ExecutionOrder GraphOptimizationLevel IOBinding InferenceSession ModelMetadata NodeArg
        OrtAllocatorType OrtArenaCfg OrtDevice OrtMemType OrtMemoryInfo OrtSparseFormat OrtValue RunOptions
        SessionIOBinding SessionOptions SparseTensor create_and_register_allocator create_and_register_allocator_v2
        cuda_version disable_telemetry_events enable_telemetry_events get_all_providers get_available_providers
        get_build_info get_device get_version_string has_collective_ops set_default_logger_severity
        set_default_logger_verbosity set_seed
    """,
    "onnxruntime.backend": "is_compatible prepare run supports_device",
    "onnxruntime.datasets": "",
    "onnxruntime.quantization": "",
    "onnxruntime.tools": "",
    "onnxruntime.transformers": "",
    "onnxruntime.capi.checkpointing_utils": "CombineZeroCheckpoint get_checkpoint_name list_checkpoint_files",
    "onnxruntime.capi.pt_patch": "",
    "onnxruntime.training.postprocess": "run_postprocess",
    "onnxruntime.capi._pybind_state": """
        ArenaExtendStrategy CheckpointState EPFail EngineError ExecutionMode ExecutionOrder Fail GradientGraphBuilder
        GradientNodeAttributeDefinition GradientNodeDefinition GraphInfo GraphOptimizationLevel
        GraphTransformerConfiguration InferenceSession InvalidArgument InvalidGraph InvalidProtobuf LinearLRScheduler
        ModelLoaded ModelMetadata Module NoModel NoSuchFile NodeArg NotImplemented Optimizer OrtAllocatorType
        OrtArenaCfg OrtDevice OrtMemType OrtMemoryInfo OrtModuleGraphBuilder OrtModuleGraphBuilderConfiguration
        OrtSparseFormat OrtValue OrtValueCache OrtValueVector Parameter PartialGraphExecutionState
        PropagateCastOpsConfiguration PropagateCastOpsStrategy RunOptions RuntimeException SessionIOBinding
        SessionObjectInitializer SessionOptions Severity SparseBlockSparseView SparseCooView SparseCsrView
        SparseTensor TrainingAgent TrainingGraphTransformerConfiguration TrainingParameters
        clear_training_ep_instances create_and_register_allocator create_and_register_allocator_v2
        disable_telemetry_events enable_telemetry_events get_all_providers get_available_providers get_build_info
        get_default_session_options get_device get_model_after_loading_checkpoint get_optimized_model
        get_session_initializer get_shape_inference_function get_version_string has_collective_ops
        is_dlpack_uint8_tensor is_ortmodule_available is_torch_interop_default_on is_triton_enabled kNextPowerOfTwo
        kSameAsRequested load_checkpoint register_aten_op_executor register_backward_runner
        register_custom_stop_gradient_edges register_forward_runner register_gradient_definition
        register_input_alias_function register_miscellaneous_const_input register_shape_inference_function
        register_torch_autograd_function save_checkpoint set_default_logger_severity set_default_logger_verbosity
        set_seed unregister_python_functions
    """,
    "onnxruntime.capi.onnxruntime_inference_collection": """
        IOBinding InferenceSession OrtDevice OrtValue Session get_ort_device_type
    """,
    "onnxruntime.capi.ort_trainer": """
        IODescription LossScaler ModelDescription ORTTrainer generate_sample load_checkpoint save_checkpoint
    """,
    "onnxruntime.experimental": "ORTTrainer ORTTrainerOptions TrainStepInfo amp checkpoint optim",
    "onnxruntime.training": """
        ORTModule ORTTrainer ORTTrainerOptions PropagateCastOpsStrategy TrainStepInfo TrainingParameters amp artifacts
        is_ortmodule_available optim
    """,
    "onnxruntime.training._checkpoint_storage": "load save to_serialized_hex from_serialized_hex",
    "onnxruntime.training._utils": """
        dtype_onnx_to_torch dtype_torch_to_numpy get_device_index get_device_str import_module_from_file static_vars
    """,
    "onnxruntime.training.amp": "DynamicLossScaler LossScaler",
    "onnxruntime.training.amp.loss_scaler": "DynamicLossScaler LossScaler",
    "onnxruntime.training.api": "CheckpointState LinearLRScheduler Module Optimizer",
    "onnxruntime.training.api.checkpoint_state": "CheckpointState Parameter Parameters Properties",
    "onnxruntime.training.api.lr_scheduler": "LinearLRScheduler",
    "onnxruntime.training.api.module": "Module",
    "onnxruntime.training.api.optimizer": "Optimizer",
    "onnxruntime.training.artifacts": "LossType OptimType USE_PATH_THRESHOLD generate_artifacts",
    "onnxruntime.training.checkpoint": """
        aggregate_checkpoints experimental_load_checkpoint experimental_save_checkpoint experimental_state_dict
    """,
    "onnxruntime.training.experimental": "export_gradient_graph",
    "onnxruntime.training.experimental.exporter": "",
    "onnxruntime.training.experimental.gradient_graph": "",
    "onnxruntime.training.experimental.gradient_graph._gradient_graph_tools": "export_gradient_graph",
    "onnxruntime.training.model_desc_validation": "",
    "onnxruntime.training.onnxblock": """
        Block ForwardBlock TrainingBlock base custom_op_library empty_base load_checkpoint_to_model save_checkpoint
        blocks loss optim
    """,
    "onnxruntime.training.onnxblock._graph_utils": """
        generate_graph_name get_input_from_input_name get_output_from_output_name node_arg_exists
        register_graph_outputs
    """,
    "onnxruntime.training.onnxblock._training_graph_utils": """
        build_gradient_accumulation_graph build_gradient_graph get_model_parameters
    """,
    "onnxruntime.training.onnxblock.blocks": """
        Abs Add Block Cast Clip Constant Div InputLike LabelEncoder Linear Log Mul Neg PassThrough Pow ReduceAllL2
        ReduceMean ReduceSum SequenceConstruct Sigmoid Sub
    """,
    "onnxruntime.training.onnxblock.checkpoint_utils": "load_checkpoint_to_model save_checkpoint",
    "onnxruntime.training.onnxblock.loss": "BCEWithLogitsLoss CrossEntropyLoss L1Loss MSELoss",
    "onnxruntime.training.onnxblock.loss.loss": "BCEWithLogitsLoss CrossEntropyLoss L1Loss MSELoss",
    "onnxruntime.training.onnxblock.model_accessor": "ModelAccessor base custom_op_library empty_base",
    "onnxruntime.training.onnxblock.onnxblock": "ForwardBlock TrainingBlock",
    "onnxruntime.training.onnxblock.optim": "AdamW ClipGradNorm SGD",
    "onnxruntime.training.onnxblock.optim.optim": "AdamW AdamWOptimizer ClipGradNorm SGD SGDOptimizer",
    "onnxruntime.training.optim": """
        AdamConfig AdamWMode ConstantWarmupLRScheduler CosineWarmupLRScheduler FP16_Optimizer FusedAdam LambConfig
        LinearWarmupLRScheduler PolyWarmupLRScheduler SGDConfig _LRScheduler _OptimizerConfig
    """,
    "onnxruntime.training.optim._apex_amp_modifier": "ApexAMPModifier",
    "onnxruntime.training.optim._ds_code_store": "Stage1And2_DeepSpeedZeroOptimizer_0_9_2",
    "onnxruntime.training.optim._ds_modifier": "DeepSpeedZeROModifier multi_tensor_applier",
    "onnxruntime.training.optim._megatron_modifier": "LegacyMegatronLMModifier",
    "onnxruntime.training.optim._modifier": """
        FP16OptimizerModifier check_overflow check_overflow_for_grads clip_grad_norm_fp32 multi_tensor_applier
    """,
    "onnxruntime.training.optim._modifier_registry": "OptimizerModifierTypeRegistry get_full_qualified_type_name",
    "onnxruntime.training.optim._multi_tensor_apply": "MultiTensorApply",
    "onnxruntime.training.optim.config": "AdamConfig LambConfig SGDConfig _OptimizerConfig",
    "onnxruntime.training.optim.fp16_optimizer": "FP16_Optimizer",
    "onnxruntime.training.optim.fused_adam": "AdamWMode FusedAdam",
    "onnxruntime.training.optim.lr_scheduler": """
        ConstantWarmupLRScheduler CosineWarmupLRScheduler LinearWarmupLRScheduler PolyWarmupLRScheduler _LRScheduler
    """,
    "onnxruntime.training.ort_triton": """
        call_triton_by_name call_triton_by_onnx get_config register_triton_kernel register_triton_op_executor
        run_once_register_triton_op_executor
    """,
    "onnxruntime.training.ort_triton._cache": "ModuleCache PyCodeCache",
    "onnxruntime.training.ort_triton._codegen": "TritonCodegen codegen",
    "onnxruntime.training.ort_triton._common": """
        AutotuneConfigs CodeBuffer CodegenContext NodeVisitor SymbolicDSU TensorInfo TypeAndShapeInfer
    """,
    "onnxruntime.training.ort_triton._decompose": "DecomposeDispatch",
    "onnxruntime.training.ort_triton._ir": """
        ComputeNode DropoutNode ElementwiseKernelNode IONode IRNode KernelNode ModuleNode OffsetCalculator
        ReduceForLoopEnd ReduceForLoopStart ReduceKernelNode ReduceNode TensorArg
    """,
    "onnxruntime.training.ort_triton._lowering": "GraphLowering KernelIO NodeGroup lower",
    "onnxruntime.training.ort_triton._op_config": "get_supported_ops is_elementwise_node is_reduction_node",
    "onnxruntime.training.ort_triton._sorted_graph": "SortedGraph",
    "onnxruntime.training.ort_triton._sympy_utils": "extract_shape_from_symbol parse_shape sympy_dot",
    "onnxruntime.training.ort_triton._utils": """
        gen_unique_name gen_variable_name get_attribute get_reduce_info is_number may_add_brackets next_power_of_2
        sort_reduce_axes to_torch_dtype to_torch_tensor topological_sort
    """,
    "onnxruntime.training.ort_triton.kernel": """
        slice_scel slice_scel_backward triton_gemm triton_gemm_out triton_matmul triton_matmul_out
    """,
    "onnxruntime.training.ort_triton.kernel._flash_attn": """
        flash_attn_backward flash_attn_forward init_to_zero optimize_graph_for_flash_attention
    """,
    "onnxruntime.training.ort_triton.kernel._mm": "triton_gemm triton_gemm_out triton_matmul triton_matmul_out",
    "onnxruntime.training.ort_triton.kernel._slice_scel": """
        optimize_graph_for_slice_scel slice_scel slice_scel_backward
    """,
    "onnxruntime.training.ort_triton.triton_op_executor": """
        call_triton_by_name call_triton_by_onnx get_config register_triton_kernel
    """,
    "onnxruntime.training.ortmodule": """
        DebugOptions LogLevel MINIMUM_RUNTIME_PYTORCH_VERSION_STR ONNXRUNTIME_CUDA_VERSION ONNXRUNTIME_ROCM_VERSION
        ONNX_OPSET_VERSION ORTMODULE_FALLBACK_POLICY ORTMODULE_FALLBACK_RETRY ORTMODULE_IS_DETERMINISTIC
        ORTMODULE_ONNX_EXPORT_CONTEXT ORTMODULE_TORCH_CPP_DIR ORTModule ORTModuleFallbackException
        ORTModuleInitException _FallbackPolicy _defined_from_envvar export_context is_ortmodule_available
        is_torch_cpp_extensions_installed optimize_graph_for_aten_efficient_attention override_torch_cuda_manual_seed
        override_torch_manual_seed register_graph_optimizer set_seed torch_cuda_manual_seed torch_manual_seed
        wrap_exception
    """,
    "onnxruntime.training.ortmodule._custom_autograd_function": """
        Enabler custom_autograd_function_enabler enable_custom_autograd_support
    """,
    "onnxruntime.training.ortmodule._custom_autograd_function_exporter": """
        DetermisticWrapper post_process_enabling_autograd_function register_custom_function_schema_supplementary
        register_high_priority_handler
    """,
    "onnxruntime.training.ortmodule._custom_gradient_registry": """
        ATEN_SDPA_FALLBACK CustomGradientRegistry adaptive_avg_pool2d_gradient avg_pool2d_gradient diagonal_gradient
        embedding_gradient max_dim_gradient max_gradient max_pool2d_gradient min_dim_gradient min_gradient
        minmax_dim_gradient minmax_gradient native_group_norm_gradient numpy_T_gradient register_gradient
        unfold_gradient upsample_bicubic2d_gradient upsample_nearest1d_gradient upsample_nearest2d_gradient
        upsample_nearest3d_gradient
    """,
    "onnxruntime.training.ortmodule._custom_op_symbolic_registry": """
        ATEN_SDPA_FALLBACK CustomOpSymbolicRegistry adaptive_avg_pool2d argmax avg_pool2d bitwise_or
        combine_unsqueeze_and_permute_for_matmul convolution convolution_mode cross_entropy_loss diagonal
        einsum_internal einsum_pre_torch_113 einsum_torch_113 embedding get_shape_tensor_by_axes group_norm
        is_axes_contiguous layer_norm map_labels_to_output max max_pool2d min multinomial need_permute nll_loss
        numpy_T parse_equation permute_and_reshape_tensor prim_ConstantChunk register_symbolic reshape_tensor softmax
        squeeze unfold unsqueeze_and_permute_for_mul upsample_bicubic2d upsample_nearest1d upsample_nearest2d
        upsample_nearest3d wrap_custom_export_function
    """,
    "onnxruntime.training.ortmodule._execution_agent": "ExecutionAgentOutput InferenceAgent TrainingAgent",
    "onnxruntime.training.ortmodule._fallback": "_FallbackManager _FallbackPolicy",
    "onnxruntime.training.ortmodule._fallback_exceptions": """
        ORTModuleDeviceException ORTModuleFallbackException ORTModuleIOError ORTModuleInitException
        ORTModuleONNXModelException ORTModuleTorchModelException wrap_exception
    """,
    "onnxruntime.training.ortmodule._gradient_accumulation_manager": "GradientAccumulationManager",
    "onnxruntime.training.ortmodule._graph_execution_interface": "GraphExecutionInterface",
    "onnxruntime.training.ortmodule._graph_execution_manager": "GraphExecutionManager",
    "onnxruntime.training.ortmodule._graph_execution_manager_factory": "GraphExecutionManagerFactory",
    "onnxruntime.training.ortmodule._graph_transition_manager": """
        ExportedModelInfo GraphTransitionManager PostExportProcessedModelInfo
    """,
    "onnxruntime.training.ortmodule._inference_manager": "InferenceManager",
    "onnxruntime.training.ortmodule._io": """
        ModelInfoForExport SkipRetValue calculate_total_parameter_size_in_bytes can_module_be_deep_cloned
        deepcopy_model_input parse_inputs_for_onnx_export parse_outputs_for_onnx_export_and_extract_schema
    """,
    "onnxruntime.training.ortmodule._logger": """
        LogColor LogLevel ORTMODULE_LOG_LEVEL_MAP ORTModuleInitPhase SuppressLogs TimeTracker TrackTime
        TrackTimeForStaticFunction configure_ortmodule_logger ortmodule_loglevel_to_onnxruntime_c_loglevel
        ortmodule_loglevel_to_python_loglevel
    """,
    "onnxruntime.training.ortmodule._mem_efficient_grad_mgmt": """
        MEM_EFFICIENT_PARAM_TRIGGER_INPUT_NAME MEM_EFFICIENT_PARAM_TRIGGER_OUTPUT_DTYPE
        MEM_EFFICIENT_PARAM_TRIGGER_OUTPUT_SHAPE get_params_connected_to_pull_param_trigger
        post_processing_enable_mem_efficient_training
    """,
    "onnxruntime.training.ortmodule._onnx_models": "ONNXModels",
    "onnxruntime.training.ortmodule._pythonop_helper": """
        PYTHON_OP_ATTRIBUTE_FUNC_NAME PYTHON_OP_ATTRIBUTE_SAFE_RUN_MODE PYTHON_OP_ATTRIBUTE_TRAINING_MODE
        PYTHON_OP_DOMAIN PYTHON_OP_TYPE make_pythonop_node set_safe_run_mode
    """,
    "onnxruntime.training.ortmodule._runtime_inspector": """
        FlagAndPrintDensity MemoryObserver MemoryOptimizationSummary Phase RuntimeInspector
    """,
    "onnxruntime.training.ortmodule._torch_module_factory": "TorchModuleFactory",
    "onnxruntime.training.ortmodule._torch_module_interface": "TorchModuleInterface",
    "onnxruntime.training.ortmodule._torch_module_ort": "TorchModuleORT",
    "onnxruntime.training.ortmodule._torch_module_pytorch": "TorchModulePytorch",
    "onnxruntime.training.ortmodule._training_manager": "TrainingManager",
    "onnxruntime.training.ortmodule._utils": """
        check_for_name_collisions_and_bind_methods_to_ortmodule check_function_has_param
        get_device_from_module_and_inputs get_device_index get_device_str get_exception_as_string
        get_fully_qualified_class_name get_random_states get_rank get_runtime_pytorch_version
        get_state_after_deletion_of_non_ortmodule_methods get_world_size parse_os_env_skip_check_flags
        patch_ortmodule_forward_method patch_torch_module_ort_forward_method reinitialize_graph_execution_manager
        reinitialize_torch_module_ort reinitialize_training_manager save_tuning_results set_random_states
        set_tuning_results switch_backend_to_pytorch
    """,
    "onnxruntime.training.ortmodule._zero_stage3_compatibility": """
        DEEPSPEED_LINEAR_FUNCTION_NAME DEEPSPEED_POST_BACKWARD_FUNCTION_NAME DEEPSPEED_PRE_BACKWARD_FUNCTION_NAME
        STAGE3_PULL_WEIGHT_TRIGGER_NAME STAGE3_PULL_WEIGHT_TRIGGER_OUTPUT_DTYPE
        STAGE3_PULL_WEIGHT_TRIGGER_OUTPUT_SHAPE post_processing_enable_zero_stage3_compat stage3_export_context
    """,
    "onnxruntime.training.ortmodule.experimental": "",
    "onnxruntime.training.ortmodule.experimental.hierarchical_ortmodule": "HierarchicalORTModule",
    "onnxruntime.training.ortmodule.experimental.hierarchical_ortmodule._hierarchical_ortmodule": """
        HierarchicalORTModule
    """,
    "onnxruntime.training.ortmodule.experimental.json_config": "JSON_PATH_ENVIRONMENT_KEY load_from_json",
    "onnxruntime.training.ortmodule.experimental.json_config._load_config_from_json": "load_from_json",
    "onnxruntime.training.ortmodule.experimental.pipe": "ORTPipelineModule",
    "onnxruntime.training.ortmodule.experimental.pipe._ort_pipeline_module": """
        ORTPipelineModule installed_version minimum_version
    """,
    "onnxruntime.training.ortmodule.graph_optimizer_registry": "GraphOptimizerRegistry register_graph_optimizer",
    "onnxruntime.training.ortmodule.graph_optimizers": "",
    "onnxruntime.training.ortmodule.graph_optimizers._aten_attn": "optimize_graph_for_aten_efficient_attention",
    "onnxruntime.training.ortmodule.graph_optimizers.utils": """
        GraphMatcher check_attribute_value make_constant_node update_graph
    """,
    "onnxruntime.training.ortmodule.options": """
        DebugOptions _LoggingOptions _MemoryOptimizationLevel _RuntimeOptions _SaveOnnxOptions _SkipCheck
    """,
    "onnxruntime.training.ortmodule.ortmodule": "ORTModule",
    "onnxruntime.training.ortmodule.torch_cpp_extensions": "is_installed",
    "onnxruntime.training.ortmodule.torch_cpp_extensions.cpu.aten_op_executor": """
        load_aten_op_executor_cpp_extension run_once_aten_op_executor
    """,
    "onnxruntime.training.ortmodule.torch_cpp_extensions.cpu.torch_interop_utils": "clear_all_grad_fns",
    "onnxruntime.training.ortmodule.torch_cpp_extensions.cpu.torch_interop_utils.fake_ctx": "FakeContext",
    "onnxruntime.training.ortmodule.torch_cpp_extensions.install": "build_torch_cpp_extensions",
    "onnxruntime.training.orttrainer": "ORTTrainer TrainStepInfo",
    "onnxruntime.training.orttrainer_options": "ORTTrainerOptions",
    "onnxruntime.training.utils": """
        ORTModelInputOutputSchemaType ORTModelInputOutputType PTable PrimitiveType extract_data_and_schema
        log_memory_usage nvtx_function_decorator onnx_dtype_to_pytorch_dtype pytorch_scalar_type_to_pytorch_dtype
        pytorch_type_to_onnx_dtype torch_nvtx_range_pop torch_nvtx_range_push unflatten_data_using_schema
    """,
    "onnxruntime.training.utils.data": "LoadBalancingDistributedBatchSampler LoadBalancingDistributedSampler",
    "onnxruntime.training.utils.data.sampler": """
        LoadBalancingDistributedBatchSampler LoadBalancingDistributedSampler shard_wrapped_indices_for_worker
    """,
    "onnxruntime.training.utils.hooks": """
        GlobalSubscriberManager StatisticsSubscriber SubscriberManager ZeROOffloadSubscriber
        configure_ort_compatible_zero_stage3 inspect_activation _InspectActivation
    """,
    "onnxruntime.training.utils.hooks._statistics_subscriber": "StatisticsSubscriber",
    "onnxruntime.training.utils.hooks._subscriber_base": "RuntimeStates SubscriberBase",
    "onnxruntime.training.utils.hooks._subscriber_manager": """
        ORT_NO_INCREASE_GLOBAL_STEP SubscriberManager no_increase_global_step
    """,
    "onnxruntime.training.utils.hooks._zero_offload_subscriber": """
        DummyWork ORTZeROOffloadPostForwardFunction ORTZeROOffloadPreForwardFunction ZeROOffloadSubscriber
    """,
    "onnxruntime.training.utils.hooks.merge_activation_summary": "generate_summaries_per_step main parse_arguments",
    "onnxruntime.training.utils.ptable": "PTable Row",
    "onnxruntime.training.utils.torch_io_helper": """
        ORTModelInputOutputSchemaType ORTModelInputOutputType PrimitiveType extract_data_and_schema
        unflatten_data_using_schema
    """,
    "onnxruntime.training.utils.torch_profile_utils": """
        log_memory_usage nvtx_function_decorator torch_nvtx_range_pop torch_nvtx_range_push
    """,
    "onnxruntime.training.utils.torch_type_map": """
        onnx_dtype_to_pytorch_dtype pytorch_scalar_type_to_pytorch_dtype pytorch_type_to_onnx_dtype
    """,
    "torch_ort": "DebugOptions LogLevel ORTModule set_seed",
    "torch_ort.configure": "",
    "torch_ort.experimental.json_config": "load_from_json",
    "torch_ort.optim": "FP16_Optimizer FusedAdam",
    "torch_ort.utils.data": "LoadBalancingDistributedBatchSampler LoadBalancingDistributedSampler",
}
