"""Cast between all pairs of element types, and every value of the small formats, against numpy and ml_dtypes."""

from __future__ import annotations

import itertools
from typing import Any

import backpass
import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

FLOATS = [np.float32, np.float64, np.float16, ml_dtypes.bfloat16]
INTEGERS = [np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64]
FLOAT8 = [ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e4m3fnuz, ml_dtypes.float8_e5m2, ml_dtypes.float8_e5m2fnuz]
TINY = [ml_dtypes.float4_e2m1fn, ml_dtypes.float6_e2m3fn, ml_dtypes.float6_e3m2fn]
SUB_BYTE = [ml_dtypes.int4, ml_dtypes.uint4, ml_dtypes.int2, ml_dtypes.uint2]
ALL = [*FLOATS, *INTEGERS, np.bool_, *FLOAT8, *TINY, *SUB_BYTE]


def name(dtype: Any) -> str:
    return np.dtype(dtype).name


def cast(x: np.ndarray, to: Any, **attrs: Any) -> np.ndarray:
    code = TensorProto.STRING if to is str else helper.np_dtype_to_tensor_dtype(np.dtype(to))
    source = TensorProto.STRING if x.dtype == object else helper.np_dtype_to_tensor_dtype(x.dtype)
    graph = helper.make_graph(
        [helper.make_node("Cast", ["x"], ["y"], to=code, **attrs)],
        "cast",
        [helper.make_tensor_value_info("x", source, x.shape)],
        [onnx.ValueInfoProto(name="y")],
    )
    return backpass.InferenceSession(helper.make_model(graph).SerializeToString()).run(None, {"x": x})[0]


def bits(x: np.ndarray) -> np.ndarray:
    """Comparable bit patterns; NaNs of one sign made equal."""
    wide = x.astype(np.float64)
    patterns = x.view(f"u{x.dtype.itemsize}").astype(np.uint64)
    return np.where(np.isnan(wide), np.uint64(2**63), patterns)


def sample(dtype: Any) -> np.ndarray:
    """Values that every type can hold a neighbour of, an odd number of them."""
    if name(dtype) == "bool":
        return np.array([True, False, True])
    values = np.array([0, 1, 2, 3, -1, -2, 5, 0.5, 1.5, -0.75, 100, 7.25, -8], np.float64)
    if np.dtype(dtype).kind in "iu" or dtype in SUB_BYTE:
        return np.trunc(values).astype(np.int64).astype(dtype)
    return values.astype(dtype)


@pytest.mark.filterwarnings("ignore:overflow encountered")
@pytest.mark.parametrize("source", ALL, ids=name)
def test_all_pairs(source: Any) -> None:
    x = sample(source)
    for target in ALL:
        wanted = x
        if target in FLOAT8:
            limit = float(ml_dtypes.finfo(target).max)
            wanted = np.clip(x.astype(np.float64), -limit, limit)
        elif name(target) == "bool":
            wanted = x.astype(np.float64) != 0
        elif np.dtype(target).kind in "iu" or target in SUB_BYTE:
            wanted = x if np.dtype(source).kind in "iu" else np.trunc(x.astype(np.float64))
            wanted = wanted.astype(np.int64)  # then low bits
        elif source in SUB_BYTE or target in TINY:
            wanted = x.astype(np.float64)
        got = cast(x, target)
        assert got.dtype == np.dtype(target)
        np.testing.assert_array_equal(
            got.astype(np.float64),
            wanted.astype(target).astype(np.float64),
            err_msg=f"{name(source)} to {name(target)}",
        )


@pytest.mark.parametrize("dtype", [*FLOAT8, *TINY, ml_dtypes.float8_e8m0fnu], ids=name)
def test_every_code_decodes(dtype: Any) -> None:
    codes = np.arange(
        2 ** (8 if np.dtype(dtype).name.startswith("float8") else int(np.dtype(dtype).name[5])), dtype=np.uint8
    )
    x = codes.view(dtype)
    np.testing.assert_array_equal(bits(cast(x, np.float32)), bits(x.astype(np.float32)))
    back = cast(cast(x, np.float64), dtype, saturate=0)
    np.testing.assert_array_equal(bits(back), bits(x))


def doubles_around(dtype: Any) -> np.ndarray:
    """Every value of the format, every midpoint, and the doubles just beside them."""
    every = np.arange(256, dtype=np.uint8).view(dtype) if dtype in FLOAT8 else np.arange(64, dtype=np.uint8).view(dtype)
    exact = every.astype(np.float64)
    exact = np.unique(exact[np.isfinite(exact)])
    points = np.concatenate(
        [exact, (exact[1:] + exact[:-1]) / 2, exact[-1:] * 1.03, exact[-1:] * 1.07, exact[:1] * 1.07]
    )
    return np.concatenate(
        [points, np.nextafter(points, np.inf), np.nextafter(points, -np.inf), [-0.0, np.inf, -np.inf, np.nan]]
    )


@pytest.mark.parametrize("source", [np.float32, np.float16, ml_dtypes.bfloat16], ids=name)
@pytest.mark.parametrize("target", [*FLOAT8, *TINY], ids=name)
@pytest.mark.parametrize("saturate", [0, 1])
def test_every_rounding(source: Any, target: Any, saturate: int) -> None:
    if source is np.float32:
        x = doubles_around(target).astype(source)
    else:
        x = np.arange(2**16, dtype=np.uint16).view(source)  # all there are
    with np.errstate(all="ignore"):
        if target in FLOAT8 and saturate:
            limit = float(ml_dtypes.finfo(target).max)
            wanted = np.clip(x.astype(np.float64), -limit, limit).astype(target)
        else:
            wanted = x.astype(np.float64).astype(target)
    np.testing.assert_array_equal(bits(cast(x, target, saturate=saturate)), bits(wanted))


@pytest.mark.parametrize("target", [*FLOAT8, *TINY], ids=name)
def test_double_goes_to_the_nearest_code(target: Any) -> None:
    """ml_dtypes rounds doubles twice (to float32 first), so the nearest value is looked up here."""
    x = doubles_around(target)
    every = np.unique(np.arange(256 if target in FLOAT8 else 64, dtype=np.uint8).view(target).astype(np.float64))
    every = every[np.isfinite(every)]
    middles = (every[1:] + every[:-1]) / 2
    x = x[(np.abs(x) <= every[-1]) & ~np.isin(x, middles)]
    np.testing.assert_array_equal(cast(x, target).astype(np.float64), every[np.searchsorted(middles, x)])


def test_double_is_rounded_once() -> None:
    # Halfway between two float16 numbers and a little more: rounding to float32 first would lose the little more.
    x = np.array(
        [1 + 2.0**-11 + 2.0**-40, 1 + 2.0**-11 - 2.0**-40, 65519.999999999, 2.0**-25 * (1 + 2.0**-40), 1e300, -1e-300]
    )
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(cast(x, np.float16), x.astype(np.float16))
    y = np.array([1 + 2.0**-8 + 2.0**-40, 1 + 2.0**-8 - 2.0**-40])
    np.testing.assert_array_equal(cast(y, ml_dtypes.bfloat16).astype(np.float64), [1 + 2.0**-7, 1.0])
    n = np.array([(2**8 + 1) * 2**50 // 2 * 2 + 1, 2**62 + 2**54 + 1, -(2**62) - 2**54 - 1], np.int64)
    np.testing.assert_array_equal(
        cast(n, ml_dtypes.bfloat16).astype(np.float64), [2.0**58 + 2.0**51, 2.0**62 + 2.0**55, -(2.0**62) - 2.0**55]
    )


@pytest.mark.parametrize(
    ("mode", "saturate", "wanted"),
    [
        # 0, 0.124, 0.25, 1.1, 1.5, 2^127, 1.75*2^127, inf, nan, 2^-127
        ("up", 1, [0, 124, 125, 128, 128, 254, 254, 254, 255, 0]),
        ("up", 0, [255, 124, 125, 128, 128, 254, 255, 255, 255, 0]),
        ("down", 1, [0, 123, 125, 127, 127, 254, 254, 254, 255, 0]),
        ("nearest", 1, [0, 124, 125, 127, 128, 254, 254, 254, 255, 0]),
        ("nearest", 0, [255, 124, 125, 127, 128, 254, 255, 255, 255, 0]),
    ],
)
def test_powers_of_two(mode: str, saturate: int, wanted: list[int]) -> None:
    values = [0, 0.124, 0.25, 1.1, 1.5, 2.0**127, 1.75 * 2.0**127, np.inf, np.nan, 2.0**-127]
    got = cast(np.array(values, np.float32), ml_dtypes.float8_e8m0fnu, round_mode=mode, saturate=saturate)
    assert got.view(np.uint8).tolist() == wanted


@pytest.mark.parametrize("source", [np.int32, np.int64, np.uint8, np.float32, np.float64], ids=name)
def test_out_of_range_keeps_low_bits(source: Any) -> None:
    x = np.array([200, 130, 255], source)
    assert cast(x, np.int8).tolist() == [-56, -126, -1]
    assert cast(np.array([-9, -8, 15, 16], np.float32), ml_dtypes.int4).astype(int).tolist() == [7, -8, -1, 0]


def test_not_representable_is_defined() -> None:
    x = np.array([np.nan, np.inf, -np.inf, 3e9, 1e20] * 30, np.float32)
    assert set(cast(x, np.int32).tolist()) == {-(2**31)}
    assert cast(x, np.int64)[:5].tolist() == [-(2**63), -(2**63), -(2**63), 3000000000, -(2**63)]
    assert cast(x, np.bool_).all()


@pytest.mark.parametrize("n", [0, 1, 7, 8, 63, 64, 65, 513, 70001])
@pytest.mark.parametrize(
    ("source", "target"),
    [*itertools.permutations([np.float32, np.float16, ml_dtypes.int4, ml_dtypes.float6_e2m3fn, np.bool_], 2)],
    ids=name,
)
def test_lengths(source: Any, target: Any, n: int) -> None:
    x = (np.arange(n) % 7).astype(np.float32).astype(source)
    np.testing.assert_array_equal(
        cast(x, target).astype(np.float32), x.astype(np.float32).astype(target).astype(np.float32)
    )


def test_numbers_to_text() -> None:
    x = np.array([0.1, 3, -0.0, 314.15926, 1e20, 1e-5, np.nan, np.inf, -np.inf], np.float32)
    assert cast(x, str).tolist() == ["0.1", "3.0", "-0.0", "314.15927", "1e+20", "1e-05", "nan", "inf", "-inf"]
    assert cast(np.array([0.1, 1 / 3]), str).tolist() == ["0.1", "0.3333333333333333"]
    assert cast(np.array([0.1, 65504], np.float16), str).tolist() == ["0.1", "65500.0"]
    assert cast(np.array([-5, 2**63 - 1]), str).tolist() == ["-5", "9223372036854775807"]
    assert cast(np.array([True, False]), str).tolist() == ["True", "False"]
    assert cast(np.array([-8, 7], ml_dtypes.int4), str).tolist() == ["-8", "7"]


def test_text_to_numbers() -> None:
    x = np.array(["3.14", " 1000 ", "1e-5", "1E8", "+INF", "inf", "-INF", "NaN", "+7"], object)
    wanted = np.array([3.14, 1000, 1e-5, 1e8, np.inf, np.inf, -np.inf, np.nan, 7])
    for dtype in FLOATS:
        with np.errstate(over="ignore"):
            np.testing.assert_array_equal(cast(x, dtype).astype(np.float64), wanted.astype(dtype).astype(np.float64))
    y = np.array(["100.5", "-3", "7"], object)
    assert cast(y, np.int32).tolist() == [100, -3, 7]
    assert cast(np.array(["18446744073709551615"], object), np.uint64).tolist() == [2**64 - 1]
    assert cast(np.array(["true", "False", "0", "2"], object), np.bool_).tolist() == [True, False, False, True]


@pytest.mark.parametrize("text", ["Hello World!", "", "1.2.3", "0x10", "--1", "1e"])
def test_text_that_is_no_number(text: str) -> None:
    for dtype in (np.float32, np.int64):
        with pytest.raises(backpass.InvalidInput, match="expected a number"):
            cast(np.array([text], object), dtype)


MERGED = {
    TensorProto.BOOL: [0, 1],
    TensorProto.INT8: [-128, -1, 0, 1, 127],
    TensorProto.UINT8: [0, 1, 127, 128, 255],
    TensorProto.INT16: [-32768, -300, -1, 0, 300, 2049, 32767],
    TensorProto.UINT16: [0, 255, 256, 2049, 65535],
    TensorProto.INT32: [-(2**31), -70000, -1, 0, 65537, 2**24 + 1, 2**31 - 1],
    TensorProto.UINT32: [0, 65537, 2**24 + 1, 2**31, 2**32 - 1],
    TensorProto.INT64: [-(2**63), -(2**31) - 1, -1, 0, 2**24 + 1, 2**53 + 1, 2**63 - 1],
    TensorProto.FLOAT16: [-65504, -2.5, -1e-7, 0, 0.5, 1.75, 100, 65504],
    TensorProto.FLOAT: [-100.5, -2.5, -1e-40, 0, 0.1, 1.0000001, 100],
    TensorProto.DOUBLE: [-100.5, -1e-300, 0, 0.1, 1 + 1e-12, 100],
}


@pytest.mark.parametrize("kind", MERGED, ids=TensorProto.DataType.Name)
def test_casts_of_casts_are_merged_only_where_nothing_changes(kind: int) -> None:
    nodes, outputs = [], []
    for between in MERGED:
        for to in MERGED:
            name = f"{between}_{to}"
            nodes += [
                helper.make_node("Cast", ["x"], [name + "a"], to=between),
                helper.make_node("Cast", [name + "a"], [name + "b"], to=to),
                helper.make_node("Concat", [name + "b", name + "b"], [name], axis=0),
            ]
            outputs.append(helper.make_tensor_value_info(name, to, None))
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", kind, ["n"])], outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9).SerializeToString()
    x = np.array(MERGED[kind]).astype(helper.tensor_dtype_to_np_dtype(kind))
    session = backpass.InferenceSession(model)
    assert any(r.pass_name == "merge_casts" for r in session.pass_reports()) or kind in (
        TensorProto.INT64,
        TensorProto.DOUBLE,
    )
    expected = backpass.InferenceSession(model, reference=True).run(None, {"x": x})
    for name, one, other in zip(outputs, session.run(None, {"x": x}), expected, strict=True):
        np.testing.assert_array_equal(one, other, err_msg=name.name)
