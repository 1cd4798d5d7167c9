"""Malformed and hostile input is refused with the right kind of error and a message that helps; nothing crashes."""

from __future__ import annotations

from pathlib import Path

import backpass
import hostile
import numpy as np
import onnx
import pytest
from backpass import _core
from backpass.api import CheckpointState, Module
from hostile.case import Case, parse


def ids(cases: list[Case]) -> list[str]:
    return [case.name for case in cases]


def assert_says(message: str, case: Case) -> None:
    missing = [part for part in case.says if part not in message]
    assert not missing, f"not in the message: {missing}\n{message}"


@pytest.mark.parametrize("case", hostile.LOAD_CASES, ids=ids(hostile.LOAD_CASES))
def test_refused_when_loaded(case: Case, tmp_path: Path) -> None:
    model = case.make(tmp_path)
    with pytest.raises(backpass.Error) as caught:
        backpass.InferenceSession(model)
    assert type(caught.value) is case.kind, caught.value
    assert_says(str(caught.value), case)
    report = backpass.check(model)
    assert not report.ok
    assert_says(str(report), case)
    assert report.problems[0].kind == ("invalid" if case.kind is backpass.InvalidInput else "unsupported")


@pytest.mark.parametrize("case", hostile.RUN_CASES, ids=ids(hostile.RUN_CASES))
@pytest.mark.parametrize("reference", [False, True], ids=["planned", "reference"])
def test_refused_when_run(case: Case, reference: bool, tmp_path: Path) -> None:
    model = case.make(tmp_path)
    assert backpass.check(model).ok
    session = backpass.InferenceSession(model, reference=reference)
    for _ in range(2):  # a failed run leaves the session as it was
        with pytest.raises(backpass.Error) as caught:
            session.run(None, case.feeds)
        assert type(caught.value) is case.kind, caught.value
        assert_says(str(caught.value), case)


def test_table_is_large_enough_and_names_are_unique() -> None:
    names = ids([*hostile.LOAD_CASES, *hostile.RUN_CASES])
    assert len(names) == len(set(names)) >= 40


def test_problems_are_reported_together() -> None:
    model = parse("""(float[2,3] x, float[4] z) => (y) {
        [first] a = MatMul(x, x)
        [second] b = Frobnicate(x)
        [third] c = Add(x, z)
        [fourth] d = Softmax <axis = 9> (x)
        [fifth] y = Relu(x, x) }""")
    report = backpass.check(model)
    assert [p.node for p in report.problems] == ["first", "second", "third", "fourth", "fifth"]
    assert [p.kind for p in report.problems] == ["invalid", "unsupported", "invalid", "invalid", "invalid"]
    assert str(report).startswith("5 problem")
    with pytest.raises(backpass.InvalidInput) as caught:  # a session says them all, too
        backpass.InferenceSession(model.SerializeToString())
    assert all(f"'{p.node}'" in str(caught.value) for p in report.problems)


def test_problems_with_names_are_reported_together() -> None:
    report = backpass.check(
        parse("""(float[2] x, float[2] x) => (y, gone) {
        [first] y = Add(x, nowhere)
        [second] y = Add(x, nothing) }""")
    )
    text = str(report)
    assert len(report) == 5, text
    for part in ("'x' is declared twice", "'nowhere'", "'nothing'", "'y' is already defined", "'gone'"):
        assert part in text


def test_message_of_unsupported_alone_is_unsupported() -> None:
    model = parse("(float[2] x) => (y, z) { [one] y = Frobnicate(x) [two] z = Quux(x) }")
    with pytest.raises(backpass.Unsupported, match=r"(?s)'one'.*'two'"):
        backpass.InferenceSession(model.SerializeToString())


def test_memory_that_is_not_there_is_asked_for_by_name() -> None:
    """The plan knows what takes most of it; a run fails before anything is computed."""
    session = backpass.InferenceSession(
        parse("""(float[n] x) => (y) <int64[2] s = {17592186044416, 1}> {
            [small] t = Neg(x) [big] h = Expand(t, s) [next] w = Softmax <axis = 0> (h) [r] y = ReduceMax(w) }""")
    )
    with pytest.raises(backpass.InvalidInput) as caught:
        session.run(None, {"x": np.ones(1, np.float32)})
    message = str(caught.value)
    assert "[Expand 'big'] out of memory: a run was to take " in message
    assert f"{2**46} of them for its result 'h' float32[{2**44},1]" in message


def test_session_works_after_refusing_a_feed() -> None:
    session = backpass.InferenceSession(parse("(float[n] x) => (y) { y = Neg(x) }"))
    with pytest.raises(backpass.InvalidInput):
        session.run(None, {"x": np.ones((2, 2), np.float32)})
    np.testing.assert_array_equal(session.run(None, {"x": np.ones(2, np.float32)})[0], [-1, -1])


def test_unknown_output_is_named() -> None:
    session = backpass.InferenceSession(parse("(float[n] x) => (y) { y = Neg(x) }"))
    with pytest.raises(backpass.InvalidInput, match="output 'q' does not exist; the model gives 'y'"):
        session.run(["q"], {"x": np.ones(2, np.float32)})


def test_unknown_option_is_named() -> None:
    with pytest.raises(TypeError, match="threads"):
        backpass.InferenceSession(parse("(float[n] x) => (y) { y = Neg(x) }"), threads=2)


LAYOUTS = {
    "transposed": np.arange(6, dtype=np.float32).reshape(3, 2).T,
    "strided": np.arange(24, dtype=np.float32).reshape(4, 6)[::2, ::2],
    "reversed": np.arange(6, dtype=np.float32).reshape(2, 3)[::-1, ::-1],
    "broadcast": np.broadcast_to(np.float32(3), (2, 3)),
    "big-endian": np.arange(6, dtype=">f4").reshape(2, 3),
    "unaligned": np.frombuffer(bytes(1) + np.arange(6, dtype=np.float32).tobytes(), np.uint8)[1:].view(np.float32)
    .reshape(2, 3),
    "read-only": np.frombuffer(np.arange(6, dtype=np.float32).tobytes(), np.float32).reshape(2, 3),
}  # fmt: skip


@pytest.mark.parametrize("layout", LAYOUTS)
def test_any_memory_layout_is_taken(layout: str) -> None:
    session = backpass.InferenceSession(parse("(float[2,3] x) => (y) { y = Neg(x) }"))
    array = LAYOUTS[layout]
    np.testing.assert_array_equal(session.run(None, {"x": array})[0], -array)


def test_endless_loop_that_nobody_reads_is_left_out() -> None:
    model = parse("""(float[1] x) => (y)
        <int64 n = {9223372036854775807}, bool c = {1}> {
        [loop] z = Loop (n, c, x) <body = b (int64 i, bool k, float[1] v) => (kk, w) {
            kk = Identity(k)  w = Neg(v) }>
        y = Relu(x) }""")
    session = backpass.InferenceSession(model)
    assert session.run(None, {"x": np.float32([-1])})[0].tolist() == [0]


def test_not_a_number_stays_one() -> None:
    model = parse("(float[3] x) => (m, s, c, k) { m = ReduceMax(x) s = Softmax(x) c = Clip(x) k = Relu(x) }")
    outputs = backpass.InferenceSession(model).run(None, {"x": np.float32([1, np.nan, 3])})
    assert all(np.isnan(o).any() for o in outputs)


INT_MIN = np.iinfo(np.int64).min


def test_integer_division_by_zero_is_zero_and_overflow_wraps() -> None:
    """Both end the process on most machines when left to the processor."""
    session = backpass.InferenceSession(parse("(int64[3] x, int64[3] z) => (y) { y = Div(x, z) }"))
    feeds = {"x": np.array([7, 0, INT_MIN]), "z": np.array([0, 0, -1])}
    assert session.run(None, feeds)[0].tolist() == [0, 0, INT_MIN]


def test_integer_remainder_of_zero_does_not_crash() -> None:
    session = backpass.InferenceSession(parse("(int64[3] x, int64[3] z) => (y) { y = Mod(x, z) }"))
    feeds = {"x": np.array([7, 0, INT_MIN]), "z": np.array([0, 0, -1])}
    assert session.run(None, feeds)[0].tolist()[2] == 0


WRONG = {
    "too new": ("(float[2] x) => (float[2] y) { y = Relu(x) }", "opset of the default domain: got 81"),
    "two problems": (
        "(float[2,3] x) => (y) { [a] t = MatMul(x, x) [b] y = Frobnicate(t) }",
        "2 problems:\n[MatMul 'a']",
    ),
}
WAYS_IN = {
    "inference": backpass.InferenceSession,
    "gradient": lambda model: backpass.grad(model, ["x"]),
    "training": lambda model: Module(str(model), CheckpointState(_core.CheckpointState())),
}


@pytest.mark.parametrize("way", WAYS_IN)
@pytest.mark.parametrize("wrong", WRONG)
def test_errors_name_the_file(wrong: str, way: str, tmp_path: Path) -> None:
    text, message = WRONG[wrong]
    model = parse(text)
    if wrong == "too new":
        model.opset_import[0].version = 81
    path = tmp_path / "model.onnx"
    onnx.save(model, path)
    with pytest.raises(backpass.Error) as caught:
        WAYS_IN[way](path)
    assert str(caught.value).startswith(f"[file '{path}'] {message}")
