"""Whether the gradient of a row's operator is right: each function returns what is wrong, "" when nothing is.

The judges are independent of the rules: finite differences of the forward run, torch's autograd, onnxruntime running
the gradient model.
"""

from __future__ import annotations

import dataclasses
import functools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import backpass
import judges
import numpy as np
import onnx
import op_case
import op_oracle
from gradient_exceptions import REASONS
from op_case import Case, Const, Instance, Row
from unpacked import names_of, parts_of, unpacked

Arrays = dict[str, np.ndarray]
LARGE = 600  # elements; larger sets are left to the forward checks


# ---- Which operators have a gradient.
@functools.cache
def declared() -> dict[tuple[str, str], dict[str, Any]]:
    return {(op["domain"], op["name"]): op for op in backpass.ops()}


def gradient_class(op: Mapping[str, Any]) -> str:
    """ "differentiable", "flat" (piecewise constant, or floats do not reach floats), "exception" or "missing"."""
    if op["gradient"] in ("rule", "fused") or (op["gradient"] == "expansion" and op["name"] not in REASONS):
        return "differentiable"
    if op["gradient"] == "flat" or not maps_floats_to_floats(op):
        return "flat"
    return "exception" if op["name"] in REASONS and op["domain"] == "" else "missing"


def summary() -> str:
    """How many operators of ai.onnx are in each class."""
    count = Counter(gradient_class(op) for op in backpass.ops() if op["domain"] == "")
    return (
        f"gradients: {count['differentiable']} operators differentiable, {count['flat']} piecewise constant, "
        f"{count['exception']} without derivative"
    )


def maps_floats_to_floats(op: Mapping[str, Any]) -> bool:
    if not onnx.defs.has(op["name"], op["domain"]):
        return True
    schema = onnx.defs.get_schema(op["name"], op["domain"])
    return _any_float(schema.inputs) and _any_float(schema.outputs)


def _any_float(formals: Sequence[Any]) -> bool:
    return any("tensor(float)" in t for formal in formals for t in formal.types)


# ---- One case of a row with what is needed to differentiate it.
@dataclasses.dataclass
class Subject:
    """An instance whose differentiable inputs are fed, never constants, and the gradients that arrive at its
    outputs."""

    item: Instance
    wrt: list[str]
    seeds: Arrays
    forward: list[np.ndarray]

    @property
    def feeds(self) -> Arrays:
        return {**self.item.feeds, **self.seeds}

    def gradient_model(self, dynamic: bool = False, standard_only: bool = True) -> onnx.ModelProto:
        model = self.item.model(dynamic=dynamic)
        return backpass.grad(model, self.wrt, seeds=True, standard_only=standard_only)

    def gradients(self, **options: bool) -> list[np.ndarray]:
        return self.run(self.gradient_model(**options))

    def run(self, model: onnx.ModelProto) -> list[np.ndarray]:
        return backpass.InferenceSession(model.SerializeToString()).run(None, self.feeds)[-len(self.wrt) :]

    @functools.cached_property
    def session(self) -> Any:
        return backpass.InferenceSession(self.item.model().SerializeToString())

    @functools.cached_property
    def outputs(self) -> list[str]:
        return [v.name for v in self.item.model().graph.output]


def subject(row: Row, case: Case, dtype: str) -> Subject | None:
    """None when the case has no floats to differentiate, or some that are not finite."""
    item = op_case.instance(row, dtype, case, row.opsets[0])
    wrt = [i for i in row.grad or () if i < len(item.values) and all(map(_is_float, parts_of(item.values[i])))]
    if not wrt or not all(np.isfinite(op_case.widen(v)).all() for i in wrt for v in parts_of(item.values[i])):
        return None
    values, inputs = list(item.values), list(case.inputs)
    for i in wrt:
        if dtype == "float64":
            wide = [v.astype(np.float64) for v in parts_of(values[i])]
            values[i] = wide if isinstance(values[i], list) else wide[0]
        if isinstance(inputs[i], Const):
            inputs[i] = values[i]
    item = unpacked(Instance(row, dtype, Case(tuple(inputs), case.attrs), item.opset, values))
    found = Subject(item, [name for i in wrt for name in names_of(f"x{i}", values[i])], {}, [])
    found.forward = found.session.run(None, item.feeds)
    rng = np.random.default_rng(7)
    for name, y in zip(found.outputs, found.forward, strict=True):
        if _is_float(y):
            found.seeds[f"{name}_grad"] = rng.standard_normal(y.shape).astype(y.dtype)
    return found if found.seeds else None


def _is_float(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.dtype.name in op_case.FLOATS


def chosen(row: Row, dtype: str, limit: int | None) -> Iterator[Subject]:
    """The first few cases that can be differentiated, the first empty and the first scalar one among them."""
    small = [c for c in row.grad_cases if _elements(c) <= LARGE] or row.grad_cases[:1]
    first = [next((c for c in small if test(c)), None) for test in (_has_empty, _has_scalar)]
    ordered = [c for c in (small[0], *first) if c is not None] + small
    found = 0
    for case in dict.fromkeys(ordered):
        if limit is not None and found >= limit:
            return
        one = subject(row, case, dtype)
        if one is not None and (not found or sum(y.size for y in one.forward if _is_float(y)) <= LARGE):
            found += 1
            yield one


def _shapes(case: Case) -> list[tuple[int, ...]]:
    return [v.shape for i in case.inputs for v in parts_of(i) if isinstance(v, (op_case.Data, np.ndarray))]


def _elements(case: Case) -> int:
    return sum(int(np.prod(s)) for s in _shapes(case))


def _has_empty(case: Case) -> bool:
    return any(0 in s for s in _shapes(case))


def _has_scalar(case: Case) -> bool:
    return any(s == () for s in _shapes(case)[:1])


# ---- The judges.
def close(got: np.ndarray, want: np.ndarray, tolerance: float, what: str) -> str:
    """Within `tolerance` of the largest element: sums are as exact as their largest part."""
    if got.shape != want.shape or got.dtype != want.dtype:
        return f"{what}: got {op_case.describe(got)}, expected {op_case.describe(want)}"
    a, b = np.asarray(got, np.float64), np.asarray(want, np.float64)
    scale = 1 + float(np.max(np.abs(b), initial=0.0))
    wrong = ~(np.abs(a - b) <= tolerance * scale)
    if not wrong.any():
        return ""
    at = tuple(int(i) for i in np.argwhere(wrong)[0])
    return f"{what}: got {a[at]!r} at {list(at)}, expected {b[at]!r} ({int(wrong.sum())} of {a.size} differ)"


def all_close(names: Sequence[str], got: Sequence[Any], want: Sequence[Any], tolerance: float, what: str) -> str:
    problems = (close(g, w, tolerance, f"{what}, gradient of {n}") for n, g, w in zip(names, got, want, strict=True))
    return next(filter(None, problems), "")


def finite_differences(
    run: Callable[[Arrays], list[np.ndarray]],
    feeds: Arrays,
    wrt: Sequence[str],
    seeds: Sequence[np.ndarray],
    gradients: Sequence[np.ndarray],
) -> str:
    """<seeds, run(x + t d)> differentiated by t, for three directions d per input, against <gradient, d>."""
    rng = np.random.default_rng(11)
    double = all(v.dtype == np.float64 for v in (*(feeds[name] for name in wrt), *run(feeds)))
    step, tolerance = (2e-5, 1e-6) if double else (2e-2, 1e-2)
    rounding = np.finfo(np.float64 if double else np.float32).eps / step

    def value(name: str, direction: np.ndarray, t: float) -> tuple[float, float]:
        moved = (feeds[name] + t * direction).astype(feeds[name].dtype)
        products = [s * np.asarray(y, np.float64) for s, y in zip(seeds, run({**feeds, name: moved}), strict=True)]
        return float(sum(p.sum() for p in products)), float(sum(np.abs(p).sum() for p in products))

    for name, gradient in zip(wrt, gradients, strict=True):
        for _ in range(min(3, gradient.size)):
            d = np.asarray(rng.standard_normal(gradient.shape))
            parts = gradient * d
            near, size = value(name, d, step)
            slope = near - value(name, d, -step)[0]
            far = value(name, d, 2 * step)[0] - value(name, d, -2 * step)[0]
            wanted = (8 * slope - far) / (12 * step)
            size += float(np.abs(gradient * feeds[name]).sum())  # what is lost where x + t d is rounded
            allowed = tolerance * (float(np.abs(parts).sum()) + abs(wanted)) + 8 * rounding * size + 1e-10
            if not abs(float(parts.sum()) - wanted) <= allowed:
                return (f"gradient of {name} along a direction is {float(parts.sum())!r}, finite differences give "
                        f"{wanted!r} (allowed {allowed:.1e})")  # fmt: skip
    return ""


def against_differences(s: Subject, gradients: Sequence[np.ndarray]) -> str:
    wanted = [name for name, y in zip(s.outputs, s.forward, strict=True) if _is_float(y)]
    seeds = [np.asarray(v, np.float64) for v in s.seeds.values()]
    return finite_differences(lambda f: s.session.run(wanted, f), s.item.feeds, s.wrt, seeds, gradients)


def torch_unable(s: Subject) -> str:
    """Why torch cannot judge this case; "" when it can."""
    if s.item.row.torch is False:
        return "torch=False in the row"
    if op_oracle.torch_function(s.item.row) is None:
        return "no function given"
    if any(s.feeds[name].size for name in s.wrt):
        return ""
    try:
        torch_run(s)
    except (IndexError, RuntimeError):  # it refuses some reductions
        return "no elements"
    return ""


def torch_run(s: Subject) -> tuple[list[Any], list[Any]]:
    """The inputs to differentiate by, and the outputs."""
    import torch

    function = op_oracle.torch_function(s.item.row)
    assert function is not None
    tensors = [None if v is None else torch.from_numpy(np.array(v)) for v in s.item.values]
    inputs = [tensors[int(name[1:])] for name in s.wrt]
    for tensor in inputs:
        tensor.requires_grad_()
    result = function(*tensors, **s.item.case.attrs)
    return inputs, list(result) if isinstance(result, (list, tuple)) else [result]


def against_torch(s: Subject, gradients: Sequence[np.ndarray]) -> str:
    unable = torch_unable(s)
    if unable:
        return judges.pass_over("torch", unable)
    import torch

    inputs, outputs = torch_run(s)
    pairs = [(outputs[int(k[1:].split("_")[0])], torch.from_numpy(v)) for k, v in s.seeds.items()]
    pairs = [(y, seed) for y, seed in pairs if y.requires_grad]
    if not pairs:
        return "torch: the function cannot be differentiated; set torch=False or another one"
    found = torch.autograd.grad([y for y, _ in pairs], inputs, [d.to(y.dtype) for y, d in pairs], allow_unused=True)
    wanted = [(torch.zeros_like(x) if f is None else f).numpy() for f, x in zip(found, inputs, strict=True)]
    tolerance = 1e-9 if s.item.dtype == "float64" else 1e-4
    return all_close(s.wrt, gradients, wanted, max(tolerance, 10 * s.item.row.tolerance(s.item.dtype)[0]), "torch")


def onnxruntime_unable(s: Subject) -> str:
    """Why onnxruntime, which judges float32, cannot judge this case; "" when it can. What it cannot run forward, or
    runs otherwise (extents that scales round), it need not run backward."""
    import onnxruntime.capi.onnxruntime_pybind11_state as ort_errors

    try:
        session = op_oracle.ort_session(s.item.model())
    except ort_errors.NotImplemented:
        return "no kernel"
    except Exception:
        return "model refused"
    try:
        forward = session.run(None, s.item.feeds)
    except Exception:
        return "inputs refused"
    near = onnxruntime_tolerance(s)
    floats = [(a, b) for a, b in zip(forward, s.forward, strict=True) if _is_float(b)]
    same = all(a.shape == b.shape and np.allclose(a, b, near, near, equal_nan=True) for a, b in floats)
    return "" if same else "computed otherwise"


def onnxruntime_tolerance(s: Subject) -> float:
    return max(2e-4, 10 * s.item.row.tolerance("float32")[0])


def against_onnxruntime(s: Subject, gradients: Sequence[np.ndarray]) -> str:
    unable = onnxruntime_unable(s)
    if unable:
        return judges.pass_over("onnxruntime", unable)
    model = s.gradient_model()
    try:
        found = op_oracle.ort_session(model).run(None, s.feeds)
    except Exception as e:
        return f"onnxruntime refuses the gradient model: {str(e).splitlines()[0][:300]}"
    return all_close(s.wrt, found[-len(s.wrt) :], gradients, onnxruntime_tolerance(s), "onnxruntime")


def second_derivative(s: Subject) -> str:
    model = s.gradient_model()
    names = [o.name for o in model.graph.output][-len(s.wrt) :]
    twice = backpass.grad(model, s.wrt, outputs=names, seeds=True)
    check_model(twice, s)
    session = backpass.InferenceSession(model.SerializeToString())
    first = session.run(names, s.feeds)
    rng = np.random.default_rng(13)
    seeds = [np.asarray(rng.standard_normal(v.shape)) for v in first]
    feeds = {**s.feeds, **{f"{n}_grad": v.astype(f.dtype) for n, v, f in zip(names, seeds, first, strict=True)}}
    kept = {i.name for i in twice.graph.input}
    found = backpass.InferenceSession(twice.SerializeToString()).run(
        None, {k: v for k, v in feeds.items() if k in kept}
    )
    problem = finite_differences(lambda f: session.run(names, f), s.feeds, s.wrt, seeds, found[-len(s.wrt) :])
    return f"second derivative: {problem}" if problem else ""


def with_symbols(s: Subject, gradients: Sequence[np.ndarray]) -> str:
    return all_close(s.wrt, s.gradients(dynamic=True), gradients, _same(s.item.dtype), "with symbolic extents")


def fused(s: Subject, gradients: Sequence[np.ndarray]) -> str:
    return all_close(s.wrt, s.gradients(standard_only=False), gradients, _same(s.item.dtype), "fused")


def _same(dtype: str) -> float:
    return {"float64": 1e-11, "float32": 5e-5, "float16": 2e-2, "bfloat16": 8e-2}[dtype]


def well_formed(s: Subject) -> str:
    model = s.gradient_model()
    is_of_standard = s.item.row.domain == "" and onnx.defs.has(s.item.row.op)
    own = {s.item.row.domain} if is_of_standard else {s.item.row.domain, "com.microsoft"}  # what the forward node is
    foreign = {n.domain for n in model.graph.node} - {"", "ai.onnx", *own}
    if foreign:
        return f"operators of {sorted(foreign)} in a model of standard operators"
    unable = checker_unable(s)
    if unable:
        judges.pass_over("onnx's checker", unable)
    check_model(model, s, full_check=not unable)
    return ""


def checker_unable(s: Subject) -> str:
    """Why onnx's checker cannot judge the gradient model in full, types and shapes included; "" when it can."""
    if s.item.row.domain:
        return "other domain"
    if not onnx.defs.has(s.item.row.op):
        return "unknown operator"
    return "" if _is_standard(s) else "forward model refused"


def check_model(model: onnx.ModelProto, s: Subject, full_check: bool = False) -> None:
    """Some of ONNX Runtime's operators live in the default domain, where onnx's checker knows all and not these."""
    if s.item.row.domain or onnx.defs.has(s.item.row.op):
        onnx.checker.check_model(model, full_check=full_check)


def _is_standard(s: Subject) -> bool:
    """False for element types that Backpass has and the standard has not (float64 in RotaryEmbedding), and where
    onnx's shape inference refuses what the standard allows (ellipses of different ranks in Einsum)."""
    model = s.item.model()
    for output, y in zip(model.graph.output, s.forward, strict=True):
        if not output.HasField("type"):  # rows leave it to inference, the checker wants to see it
            output.type.CopyFrom(op_case.type_of(y))
    try:
        onnx.checker.check_model(model, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError):
        return False
    return True
