"""Operators of ai.onnx that map floats to floats and have no gradient all the same, each with the reason."""

REASONS: dict[str, str] = {}

# Rules that no row can drive, with the file of their tests.
TESTED_ELSEWHERE: dict[str, str] = {
    "BitCast": "test_gradient_edges.py",
    "If": "test_control_flow_gradient.py",
    "OptionalGetElement": "test_sequence_gradient.py",
    "SequenceMap": "test_sequence_gradient.py",
}

# Rows whose further float inputs differences cannot judge where the row has them, with the reason.
NOT_JUDGED: dict[str, str] = {
    "BitCast": "float64 has other widths than the row's types",
    "Dropout": "the ratio decides which elements are dropped; test_gradient_edges.py has its gradient",
    "LabelEncoder-floats": "keys are float32",
    "MaxRoiPool": "the first number of a rectangle is an index, the others are rounded",
    "MelWeightMatrix": "edges lie at the ends of what is allowed",
    "OneHot": "the depth is an extent",
    "Pow-constant": "powers of negative numbers",
    "Range-fed": "all three inputs are of one type",
    "Range-half": "the extent changes",
    "ReduceMax-large": "too many elements: some are nearly the largest",
    "Resize": "scales at which extents change; Resize-scales has others",
    "Resize-10": "scales at which extents change; Resize-scales has others",
    "Resize-antialias": "extents in float32; Resize-scales has others",
    "Resize-crop": "rectangles that end where the image does; Resize-places has others",
    "Resize-older": "scales at which extents change; Resize-scales has others",
    "Resize-types": "scales at which extents change; Resize-scales has others",
    "RoiAlign": "samples that lie on elements; RoiAlign-corners has others",
    "RoiAlign-10": "samples that lie on elements; RoiAlign-corners has others",
    "TopK-ties": "ties",
    "Upsample": "scales at which extents change; Resize-scales has others",
    "com.microsoft.BiasSoftmaxDropout": "the ratio decides which elements are dropped",
    "com.microsoft.BitmaskDropout": "the ratio decides which elements are dropped",
    "com.microsoft.FakeQuant": "gradients go straight through the rounding, as its definition says",
    "com.microsoft.MixedPrecisionScale": "results are float16",
}
