"""Operators of ai.onnx that map floats to floats and have no gradient all the same, each with the reason."""

REASONS: dict[str, str] = {}
