"""What scripts look up in ``onnxruntime.capi.onnxruntime_pybind11_state``, mostly to catch errors by name."""

from backpass._ort.capi._pybind_state import *  # noqa: F403
