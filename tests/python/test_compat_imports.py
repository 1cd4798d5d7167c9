"""Every import of the original's tests, samples and guides: it resolves, or says what to do without it."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap

import onnxruntime
import pytest
from backpass import _ort, compat
from onnxruntime.capi import _pybind_state, onnxruntime_inference_collection

RESOLVE = """
import onnxruntime
import onnxruntime.capi
import onnxruntime.capi.onnxruntime_pybind11_state as state
import onnxruntime.training.onnxblock as onnxblock
import onnxruntime.training.ortmodule as ortmodule
import torch_ort
from onnxruntime import InferenceSession, IOBinding, OrtDevice, OrtValue, RunOptions, SessionOptions, set_seed
from onnxruntime import GraphOptimizationLevel, ExecutionMode, ExecutionOrder, ModelMetadata, NodeArg, training
from onnxruntime.capi import _pybind_state as C
from onnxruntime.capi._pybind_state import get_available_providers, get_all_providers, get_device, OrtValue
from onnxruntime.capi._pybind_state import OrtValueVector, SessionIOBinding, OrtDevice, GraphOptimizationLevel
from onnxruntime.capi.onnxruntime_inference_collection import InferenceSession, IOBinding, OrtValue, Session
from onnxruntime.capi.onnxruntime_inference_collection import get_ort_device_type
from onnxruntime.capi.onnxruntime_pybind11_state import Fail, InvalidArgument, InvalidGraph, InvalidProtobuf, NoModel
from onnxruntime.capi.onnxruntime_pybind11_state import NoSuchFile, NotImplemented, RuntimeException, EPFail
from onnxruntime.capi.onnxruntime_pybind11_state import EngineError, ModelLoaded
from onnxruntime.training import ORTModule, PropagateCastOpsStrategy, api, artifacts, is_ortmodule_available
from onnxruntime.training import onnxblock, ortmodule
from onnxruntime.capi import ort_trainer
from onnxruntime.capi._pybind_state import set_cuda_device_id, set_arena_extend_strategy, ArenaExtendStrategy
from onnxruntime.capi.ort_trainer import IODescription, LossScaler, ModelDescription, ORTTrainer, generate_sample
from onnxruntime.capi.ort_trainer import load_checkpoint, save_checkpoint
from onnxruntime.experimental import ORTTrainer, ORTTrainerOptions, TrainStepInfo, amp, optim
from onnxruntime.training import ORTTrainer, ORTTrainerOptions, TrainStepInfo, TrainingParameters
from onnxruntime.training import amp, checkpoint, optim
from onnxruntime.training import _checkpoint_storage, _utils, model_desc_validation, orttrainer, orttrainer_options
from onnxruntime.training._utils import dtype_onnx_to_torch, get_device_index, static_vars
from onnxruntime.training.amp import DynamicLossScaler, LossScaler
from onnxruntime.training.amp.loss_scaler import DynamicLossScaler
from onnxruntime.training.checkpoint import experimental_load_checkpoint, experimental_state_dict
from onnxruntime.training.experimental import export_gradient_graph
from onnxruntime.training.optim import AdamConfig, AdamWMode, FP16_Optimizer, FusedAdam, LambConfig, SGDConfig
from onnxruntime.training.optim.lr_scheduler import ConstantWarmupLRScheduler, _LRScheduler
from onnxruntime.training.orttrainer_options import ORTTrainerOptions
from onnxruntime.training.ortmodule import _graph_execution_manager, _io, _utils
from onnxruntime.training.ortmodule._custom_gradient_registry import CustomGradientRegistry, register_gradient
from onnxruntime.training.ortmodule._custom_op_symbolic_registry import CustomOpSymbolicRegistry, register_symbolic
from onnxruntime.training.ortmodule.experimental.hierarchical_ortmodule import HierarchicalORTModule
from onnxruntime.training.utils import PTable, extract_data_and_schema, log_memory_usage, pytorch_type_to_onnx_dtype
from onnxruntime.training.utils.data import LoadBalancingDistributedBatchSampler, LoadBalancingDistributedSampler
from onnxruntime.training.utils.hooks import GlobalSubscriberManager, StatisticsSubscriber, inspect_activation
from onnxruntime.training.utils.hooks._subscriber_manager import SubscriberManager, no_increase_global_step
from torch_ort.optim import FP16_Optimizer, FusedAdam
from torch_ort.utils.data import LoadBalancingDistributedSampler
from onnxruntime.training.api import CheckpointState, LinearLRScheduler, Module, Optimizer
from onnxruntime.training.artifacts import LossType, OptimType, generate_artifacts
from onnxruntime.training.onnxblock import Block, ForwardBlock, TrainingBlock, base, blocks, custom_op_library
from onnxruntime.training.onnxblock import empty_base, load_checkpoint_to_model, loss, optim, save_checkpoint
from onnxruntime.training.onnxblock.blocks import Cast, InputLike, LabelEncoder, Linear, PassThrough, SequenceConstruct
from onnxruntime.training.onnxblock.loss.loss import BCEWithLogitsLoss, CrossEntropyLoss, L1Loss, MSELoss
from onnxruntime.training.onnxblock.optim.optim import AdamW, AdamWOptimizer, ClipGradNorm, SGD, SGDOptimizer
from onnxruntime.training.ortmodule import DebugOptions, LogLevel, ORTModule, _fallback, register_graph_optimizer
from onnxruntime.training.ortmodule import MINIMUM_RUNTIME_PYTORCH_VERSION_STR, ONNX_OPSET_VERSION
from onnxruntime.training.ortmodule import ORTMODULE_FALLBACK_POLICY, ORTMODULE_FALLBACK_RETRY
from onnxruntime.training.ortmodule import ORTMODULE_IS_DETERMINISTIC, ORTMODULE_TORCH_CPP_DIR, export_context
from onnxruntime.training.ortmodule import _defined_from_envvar, torch_cpp_extensions
from onnxruntime.training.ortmodule._custom_autograd_function import enable_custom_autograd_support
from onnxruntime.training.ortmodule._fallback import ORTModuleDeviceException, ORTModuleFallbackException
from onnxruntime.training.ortmodule._fallback import ORTModuleInitException, ORTModuleIOError, wrap_exception
from onnxruntime.training.ortmodule._fallback import ORTModuleONNXModelException, ORTModuleTorchModelException
from onnxruntime.training.ortmodule._fallback import _FallbackManager, _FallbackPolicy
from onnxruntime.training.ortmodule.experimental.json_config import load_from_json
from onnxruntime.training.ortmodule.graph_optimizer_registry import register_graph_optimizer
from onnxruntime.training.ortmodule.options import DebugOptions, LogLevel, _RuntimeOptions, _SaveOnnxOptions, _SkipCheck
from onnxruntime.training.ortmodule.torch_cpp_extensions import is_installed
from onnxruntime.training.ortmodule.torch_cpp_extensions.install import main
from torch_ort import DebugOptions, LogLevel, ORTModule, set_seed
from torch_ort.configure import main
from torch_ort.experimental.json_config import load_from_json
""".strip().splitlines()

DO_WITHOUT = {
    "import onnxruntime.training.ort_triton": "CPUs",
    "from onnxruntime import OrtMemoryInfo": "memory of the CPU",
    "from onnxruntime.capi._pybind_state import TrainingAgent": "explain()",
    "from onnxruntime.capi._pybind_state import SparseTensor": "dense",
    "from onnxruntime.training import ort_triton": "CPUs",
    "from onnxruntime.training.onnxblock._training_graph_utils import build_gradient_graph": "backpass.grad",
    "from onnxruntime.training.optim._modifier_registry import OptimizerModifierTypeRegistry": "FP16_Optimizer",
    "from onnxruntime.training.ortmodule import _training_manager": "explain()",
    "from onnxruntime.training.ortmodule._graph_execution_manager import GraphExecutionManager": "explain()",
    "from onnxruntime.training.ortmodule._io import parse_inputs_for_onnx_export": "explain()",
    "from onnxruntime.training.ortmodule._utils import save_tuning_results": "explain()",
    "from onnxruntime.training.ortmodule.experimental.pipe import ORTPipelineModule": "DistributedDataParallel",
    "from onnxruntime.training.ortmodule.graph_optimizers.utils import GraphMatcher": "register_graph_optimizer",
    "import onnxruntime.training.ortmodule.torch_cpp_extensions.cpu.aten_op_executor": "no extensions",
}  # fmt: skip

PROGRAM = """
    import json, sys
    import backpass.compat
    backpass.compat.install(runtime=True)
    told = {}
    for line in json.load(sys.stdin):
        try:
            exec(line, {})
            told[line] = ""
        except ImportError as error:
            told[line] = str(error) or "ImportError"
    print("TOLD", json.dumps(told))
"""


@pytest.fixture(scope="module")
def told() -> dict[str, str]:
    """What each line raised, in one process."""
    command = [sys.executable, "-c", textwrap.dedent(PROGRAM)]
    lines = json.dumps([*RESOLVE, *DO_WITHOUT])
    done = subprocess.run(command, input=lines, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found: dict[str, str] = json.loads(done.stdout.split("TOLD", 1)[1])
    return found


@pytest.mark.parametrize("line", RESOLVE)
def test_imports_of_the_original_resolve(line: str, told: dict[str, str]) -> None:
    assert told[line] == ""


@pytest.mark.parametrize("line", DO_WITHOUT)
def test_what_is_not_there_says_what_to_do_instead(line: str, told: dict[str, str]) -> None:
    assert "in Backpass" in told[line] or "backpass" in told[line]
    assert DO_WITHOUT[line] in told[line]


def test_what_is_said_to_be_absent_is_absent() -> None:
    assert not set(compat.ABSENT) & set(compat.PARTS)


# ---- Names of the runtime, compared with the one that is installed.
ABSENT_NAMES = {
    "one device": {"OrtDeviceMemoryType", "OrtDeviceVendorId", "OrtMemType", "OrtMemoryInfo", "OrtMemoryInfoDeviceType",
                   "OrtHardwareDevice", "OrtHardwareDeviceType", "OrtSyncStream", "copy_tensors", "cuda_version"},
    "one provider": {"OrtEpDevice", "OrtEpAssignedNode", "OrtEpAssignedSubgraph", "OrtEpContextData",
                     "OrtEpContextDataBuffer", "OrtExecutionProviderDevicePolicy", "get_ep_devices",
                     "register_execution_provider_library", "unregister_execution_provider_library"},
    "allocators": {"OrtAllocatorType", "OrtArenaCfg", "create_and_register_allocator",
                   "create_and_register_allocator_v2"},
    "compiled models": {"ModelCompiler", "OrtCompileApiFlags", "OrtExternalInitializerInfo"},
    "adapters": {"AdapterFormat", "LoraAdapter"},
    "sparse tensors": {"OrtSparseFormat", "SparseTensor"},
    "OpenMP's pool": {"set_global_thread_pool_sizes"},
    "what it imports": {"contextlib", "import_capi_exception", "onnxruntime_validation", "package_name", "version",
                        "capi", "training", "transformers", "quantization", "tools"},
}  # fmt: skip


def test_the_runtime_has_every_other_name() -> None:
    theirs = {name for name in dir(onnxruntime) if not name.startswith("_")}
    missing = theirs - set(dir(_ort)) - set().union(*ABSENT_NAMES.values())
    assert not missing


ABSENT_METHODS = {
    "SessionOptions": {"add_external_initializers_from_files_in_memory", "add_provider_for_devices",
                       "clear_ep_context_data_read_func", "set_ep_context_data_read_func", "set_load_cancellation_flag",
                       "set_provider_selection_policy", "set_provider_selection_policy_delegate"},
    "RunOptions": {"add_active_adapter"},
    "InferenceSession": {"create_ortvalue_from_shape_and_type", "get_input_epdevices", "get_input_memory_infos",
                         "get_output_memory_infos", "get_provider_graph_assignment_info", "get_tuning_results",
                         "release_captured_graph", "set_ep_dynamic_options", "set_tuning_results"},
    "IOBinding": set(),
    "OrtValue": {"as_sparse_tensor", "ort_value_from_sparse_tensor"},
    "OrtDevice": {"device_mem_type", "device_vendor_id"},
    "NodeArg": set(),
    "ModelMetadata": set(),
}  # fmt: skip


@pytest.mark.parametrize("kind", ABSENT_METHODS)
def test_its_classes_have_every_other_member(kind: str) -> None:
    theirs = {name for name in dir(getattr(onnxruntime, kind)) if not name.startswith("_")}
    ours = getattr(_ort, kind)
    present = set(dir(ours)) | set(vars(ours()) if kind in ("RunOptions", "ModelMetadata") else ())
    present |= set(_ort.NodeArg.__annotations__) | {"name", "shape", "type"} if kind == "NodeArg" else set()
    assert theirs - present == ABSENT_METHODS[kind] & theirs


def test_errors_have_every_name() -> None:
    theirs = {
        name for name, value in vars(_pybind_state).items() if isinstance(value, type) and issubclass(value, Exception)
    }
    newer = {"DeviceReset", "ModelLoadCanceled", "ModelRequiresCompilation", "NotFound"}  # than 1.19.2
    assert theirs - newer <= set(dir(_ort))
    assert {"InferenceSession", "IOBinding", "OrtValue"} <= set(dir(onnxruntime_inference_collection))
