"""Tools around training, under the names of ``onnxruntime.training.utils``: tables, nested data, element types, memory;
`backpass.utils.data` has samplers, `backpass.utils.hooks` looks into modules while they train."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from backpass.utils.ptable import PTable as PTable
    from backpass.utils.torch_io_helper import ORTModelInputOutputSchemaType as ORTModelInputOutputSchemaType
    from backpass.utils.torch_io_helper import ORTModelInputOutputType as ORTModelInputOutputType
    from backpass.utils.torch_io_helper import PrimitiveType as PrimitiveType
    from backpass.utils.torch_io_helper import extract_data_and_schema as extract_data_and_schema
    from backpass.utils.torch_io_helper import unflatten_data_using_schema as unflatten_data_using_schema
    from backpass.utils.torch_profile_utils import log_memory_usage as log_memory_usage
    from backpass.utils.torch_profile_utils import nvtx_function_decorator as nvtx_function_decorator
    from backpass.utils.torch_profile_utils import torch_nvtx_range_pop as torch_nvtx_range_pop
    from backpass.utils.torch_profile_utils import torch_nvtx_range_push as torch_nvtx_range_push
    from backpass.utils.torch_type_map import onnx_dtype_to_pytorch_dtype as onnx_dtype_to_pytorch_dtype
    from backpass.utils.torch_type_map import (
        pytorch_scalar_type_to_pytorch_dtype as pytorch_scalar_type_to_pytorch_dtype,
    )
    from backpass.utils.torch_type_map import pytorch_type_to_onnx_dtype as pytorch_type_to_onnx_dtype

_MODULE_OF = {
    "PTable": "ptable",
    "ORTModelInputOutputSchemaType": "torch_io_helper",
    "ORTModelInputOutputType": "torch_io_helper",
    "PrimitiveType": "torch_io_helper",
    "extract_data_and_schema": "torch_io_helper",
    "unflatten_data_using_schema": "torch_io_helper",
    "log_memory_usage": "torch_profile_utils",
    "nvtx_function_decorator": "torch_profile_utils",
    "torch_nvtx_range_pop": "torch_profile_utils",
    "torch_nvtx_range_push": "torch_profile_utils",
    "onnx_dtype_to_pytorch_dtype": "torch_type_map",
    "pytorch_scalar_type_to_pytorch_dtype": "torch_type_map",
    "pytorch_type_to_onnx_dtype": "torch_type_map",
}
__all__ = list(_MODULE_OF)  # imported when first used: most need torch


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'backpass.utils' has no attribute {name!r}")
    return getattr(importlib.import_module(f"backpass.utils.{_MODULE_OF[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULE_OF})
