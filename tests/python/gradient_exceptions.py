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

# Differentiable in training graphs, by a kernel, but not by backpass.grad's models of standard operators.
SCATTERED = "reads scattered elements with weights of its own; in standard operators hundreds of nodes"
WITHOUT_STANDARD_FORM: dict[str, str] = {
    "GridSample": SCATTERED,
    "MaxRoiPool": SCATTERED,
    "RoiAlign": SCATTERED,
}
