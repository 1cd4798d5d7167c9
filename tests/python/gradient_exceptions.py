"""Operators of ai.onnx that map floats to floats and have no gradient all the same, each with the reason."""

IS_GRADIENT = "a gradient itself, of ONNX Runtime's training graphs; differentiate the standard form instead"

REASONS: dict[str, str] = {
    "AveragePoolGrad": IS_GRADIENT,
    "MaxPoolGrad": IS_GRADIENT,
    "SparseSoftmaxCrossEntropyGrad": IS_GRADIENT,
}

# Rules that no row can drive, with the file of their tests.
TESTED_ELSEWHERE: dict[str, str] = {
    "If": "test_control_flow_gradient.py",
    **dict.fromkeys(
        (
            "ConcatFromSequence",
            "Optional",
            "OptionalGetElement",
            "SequenceAt",
            "SequenceConstruct",
            "SequenceErase",
            "SequenceInsert",
            "SequenceMap",
            "SplitToSequence",
        ),
        "test_sequence_gradient.py",
    ),
}
