"""What scripts look up in ``onnxruntime.capi._pybind_state``: all that ``onnxruntime`` itself holds."""

from backpass._ort import *  # noqa: F403
