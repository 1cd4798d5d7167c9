"""What scripts look up in ``onnxruntime.capi.onnxruntime_inference_collection``."""

from backpass._ort.binding import IOBinding
from backpass._ort.session import InferenceSession
from backpass._values import OrtDevice, OrtValue, on_cpu

__all__ = ["IOBinding", "InferenceSession", "OrtDevice", "OrtValue", "Session", "get_ort_device_type"]

Session = InferenceSession


def get_ort_device_type(device_type: str, device_index: int = 0) -> int:
    """The number of a device: there is the CPU."""
    on_cpu(device_type)
    return OrtDevice.cpu()
