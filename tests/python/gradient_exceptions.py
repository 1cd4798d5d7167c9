"""Operators of ai.onnx that map floats to floats and have no gradient all the same, each with the reason."""

SEQUENCE = "gradients flow through tensors; sequences and optionals have none"
IS_GRADIENT = "a gradient itself, of ONNX Runtime's training graphs; differentiate the standard form instead"

REASONS: dict[str, str] = {
    "AveragePoolGrad": IS_GRADIENT,
    "ConcatFromSequence": SEQUENCE,
    "DeformConv": "its rule is not written yet; a model with it on the way to a gradient is refused by node name",
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

# Differentiable in training graphs, by a kernel, but not by backpass.grad's models of standard operators.
SCATTERED = "reads scattered elements with weights of its own; in standard operators hundreds of nodes"
WITHOUT_STANDARD_FORM: dict[str, str] = {
    "GridSample": SCATTERED,
    "MaxRoiPool": SCATTERED,
    "RoiAlign": SCATTERED,
}

# Rules that no row can drive, with the file of their tests.
TESTED_ELSEWHERE: dict[str, str] = {
    "If": "test_control_flow_gradient.py",
    **dict.fromkeys(WITHOUT_STANDARD_FORM, "test_sampling_gradient.py"),
}
