"""What scripts look up in ``onnxruntime.capi.onnxruntime_pybind11_state``, mostly to catch errors by name."""

from backpass._ort import *  # noqa: F403
