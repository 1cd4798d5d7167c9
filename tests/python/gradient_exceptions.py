"""Operators of ai.onnx that map floats to floats and have no gradient all the same, each with the reason."""

REASONS: dict[str, str] = {}

# Rules that no row can drive, with the file of their tests.
TESTED_ELSEWHERE: dict[str, str] = {
    "BitCast": "test_gradient_edges.py",
    "If": "test_control_flow_gradient.py",
    "OptionalGetElement": "test_sequence_gradient.py",
    "SequenceMap": "test_sequence_gradient.py",
}
