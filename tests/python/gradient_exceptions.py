"""Operators of ai.onnx that map floats to floats and have no gradient all the same, each with the reason."""

SEQUENCE = "gradients flow through tensors; sequences and optionals have none"
IS_GRADIENT = "a gradient itself, of ONNX Runtime's training graphs; differentiate the standard form instead"

REASONS: dict[str, str] = {
    "AveragePoolGrad": IS_GRADIENT,
    "ConcatFromSequence": SEQUENCE,
    "MaxPoolGrad": IS_GRADIENT,
    "Optional": SEQUENCE,
    "OptionalGetElement": SEQUENCE,
    "SequenceAt": SEQUENCE,
    "SequenceConstruct": SEQUENCE,
    "SequenceErase": SEQUENCE,
    "SequenceInsert": SEQUENCE,
    "SequenceMap": SEQUENCE,
    "SparseSoftmaxCrossEntropyGrad": IS_GRADIENT,
    "SplitToSequence": SEQUENCE,
}

# Rules that no row can drive, with the file of their tests.
TESTED_ELSEWHERE: dict[str, str] = {
    "If": "test_control_flow_gradient.py",
}
