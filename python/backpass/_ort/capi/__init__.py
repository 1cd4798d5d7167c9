"""What ``onnxruntime.capi`` holds: other names for parts of `backpass._ort`."""
