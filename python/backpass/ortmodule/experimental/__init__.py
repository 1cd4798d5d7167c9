"""What ONNX Runtime Training kept under this name."""
