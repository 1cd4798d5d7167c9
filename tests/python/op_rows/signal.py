"""Fourier transforms and windows."""

from __future__ import annotations

import numpy as np
from op_case import REALS, Row, case, const

SPECTRA = {"float32": (1e-4, 2e-5), "float64": (1e-11, 1e-12)}

ROWS = [
    Row(
        "DFT",
        [
            case((2, 10, 1)),
            case((2, 12, 2), const(7), const(1)),
            case((3, 16, 2, 1), None, const(-3)),
            case((1, 37, 2), inverse=1),
            case((2, 11, 1), onesided=1),
            case((2, 6, 2), onesided=1, inverse=1),
            case((1, 5, 1), const(1)),
            case((1, 97, 1), const(128), onesided=1),
        ],
        dtypes=REALS,
        tol=SPECTRA,
        grad=[0],
        bench=case((64, 1024, 2)),
    ),
    Row(
        "DFT", [case((2, 10, 1)), case((2, 4, 12, 2), axis=2, inverse=1)], tol=SPECTRA, opset=17, name="DFT-attributes"
    ),
    Row(
        "STFT",
        [
            case((2, 50, 1), const(7), None, const(16)),
            case((2, 50, 1), const(7), (13,)),
            case((1, 40, 2), const(5), (12,), const(12), onesided=0),
            case((1, 20, 1), const(3)),
        ],
        dtypes=REALS,
        tol=SPECTRA,
        grad=[0, 2],
        # onnx's shape inference takes onesided to be 0 when it is not stated
        grad_inputs=[
            case((2, 50, 1), const(7), None, const(16), onesided=1),
            case((2, 50, 1), const(7), (13,), onesided=1),
            case((1, 40, 2), const(5), (12,), const(12), onesided=0),
        ],
    ),
    *(
        Row(
            op,
            [case(const(10)), case(const(7), output_datatype=11), case(const(5), periodic=0), case(const(np.int32(8)))],
            tol={"float32": (1e-5, 1e-6)},
            opset=17,
        )
        for op in ("HannWindow", "HammingWindow", "BlackmanWindow")
    ),
    Row(
        "MelWeightMatrix",
        [
            case(const(8), const(16), const(8192), const(0.0, "float32"), const(4096.0, "float32")),
            case(
                const(5), const(101), const(16000), const(80.0, "float32"), const(7600.0, "float32"), output_datatype=11
            ),
        ],
        opset=17,
    ),
]
