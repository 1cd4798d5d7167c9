"""What goes in and comes out: nested arguments and results, constants, names, new structures and new shapes."""

from __future__ import annotations

import dataclasses
import enum
from collections import OrderedDict, UserDict, defaultdict, namedtuple
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
import torch
from backpass.ortmodule import io
from backpass.ortmodule.fallback import ORTModuleIOError, ORTModuleTorchModelException
from backpass.ortmodule.guards import Guards
from ortmodule_check import Pair, wrap
from torch import nn

Point = namedtuple("Point", "x y")


class Mode(enum.Enum):
    PLUS = 1
    MINUS = 2


@dataclasses.dataclass
class Result:
    loss: torch.Tensor
    extra: Any = None
    size: int = 0


class Nested(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Any, *rest: Any, options: Any = None, **more: Any) -> Any:
        total = self.linear(x["a"] if isinstance(x, dict | UserDict) else x)
        for member in rest:
            total = total + (member[0] * member[1][0] if isinstance(member, list | tuple) else member)
        if options is not None:
            total = total * options
        for name in sorted(more):
            total = total - (more[name].x * 2 + more[name].y if isinstance(more[name], Point) else more[name])
        return total


def t(*shape: int) -> torch.Tensor:
    return torch.randn(*(shape or (3, 4)))


ARGUMENTS: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "one": ((t(),), {}),
    "several": ((t(), t(), t()), {}),
    "mapping": (({"a": t(), "unused": t()},), {}),
    "ordered": ((OrderedDict(a=t()),), {}),
    "user mapping": ((UserDict(a=t()),), {}),
    "default mapping": ((defaultdict(list, a=t()),), {}),
    "nested": ((t(), [t(), (t(), None)], (t(), [t(), "text"])), {}),
    "keyword": ((), {"x": t(), "options": t()}),
    "further keywords": ((t(),), {"b": t(), "a": t()}),
    "named tuple": ((t(),), {"p": Point(t(), t())}),
    "float": ((t(),), {"options": 2.5}),
    "int": ((t(),), {"options": 3}),
    "bool": ((t(),), {"options": True}),
    "number of numpy": ((t(),), {"options": np.float64(1.5)}),
    "tensor of no dimension": ((t(), torch.tensor(2.0)), {}),
}


def everyday(names: Iterable[str], chosen: set[str]) -> list[Any]:
    """Each of these costs a capture; the everyday run takes some."""
    return [n if n in chosen else pytest.param(n, marks=pytest.mark.slow) for n in names]


@pytest.mark.parametrize("name", everyday(ARGUMENTS, {"user mapping", "nested", "named tuple", "float"}))
def test_arguments(name: str) -> None:
    args, kwargs = ARGUMENTS[name]
    Pair(Nested()).step(*args, **kwargs)


class Returns(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.kind = kind

    def forward(self, x: torch.Tensor) -> Any:
        y = self.linear(x)
        return {
            "tensor": y,
            "tuple": (y, y.sum()),
            "list": [y, [y * 2]],
            "dict": {"y": y, "more": {"z": y.relu()}},
            "ordered": OrderedDict(y=y, z=y * 3),
            "named tuple": Point(y, y * y),
            "dataclass": Result(y.sum(), {"y": y}, 5),
            "none": (None, y, None),
            "constants": {"y": y, "text": "text", "number": 1.5, "flag": True},
            "size": (y, x.shape[0], x.shape[0] * 2),
            "twice": (y, y),
            "input": (x, y),
            "not differentiable": (y, y > 0, y.argmax(-1), y.detach()),
            "parameter": (self.linear.weight, y),
            "loss and more": {"loss": (y * y).mean(), "logits": y, "hidden": (x + y, y)},
        }[self.kind]


KINDS = [
    "tensor",
    "tuple",
    "list",
    "dict",
    "ordered",
    "named tuple",
    "dataclass",
    "none",
    "constants",
    "size",
    "twice",
    "input",
    "not differentiable",
    "parameter",
    "loss and more",
]


@pytest.mark.parametrize("kind", everyday(KINDS, {"dataclass", "none", "size", "input", "not differentiable"}))
def test_results(kind: str) -> None:
    pair = Pair(Returns(kind))
    pair.step(t())
    if kind == "size":  # captured the third time with dimensions that vary
        for rows in (5, 7, 9, 11):
            assert pair.step(t(rows, 4))[1:] == (rows, 2 * rows)
        assert pair.exports == 3


class Cache:
    """No container that anybody registered."""

    def __init__(self, keys: list[torch.Tensor]) -> None:
        self.keys = keys
        self.kind = dict
        self.length = len(keys)

    def newest(self) -> torch.Tensor:
        return self.keys[-1]


def test_objects_in_results() -> None:
    class Caching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> dict[str, Any]:
            y = self.linear(x)
            return {"y": y, "cache": Cache([x * 2, y.tanh()])}

    module = Caching()
    x = t()
    ours, theirs = wrap(module)(x), module(x)
    assert isinstance(ours["cache"], Cache)
    assert (ours["cache"].kind, ours["cache"].length) == (dict, 2)
    torch.testing.assert_close(ours["cache"].keys, theirs["cache"].keys, rtol=1e-4, atol=1e-5)
    gradients = [torch.autograd.grad(r["cache"].newest().sum(), module.linear.weight)[0] for r in (ours, theirs)]
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-5)
    with pytest.raises(ORTModuleIOError, match="Cache"):
        wrap(Nested())(x, Cache([x]))  # forward might change it


def test_model_output_of_transformers() -> None:
    from transformers import modeling_outputs

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> Any:
            y = self.linear(x)
            return modeling_outputs.SequenceClassifierOutput(loss=(y * y).mean(), logits=y)

    result = Pair(Model()).step(t())
    assert isinstance(result, modeling_outputs.SequenceClassifierOutput)
    assert result.hidden_states is None
    assert result[0] is result.loss is result["loss"]


def test_copies_in_results_are_copies() -> None:
    class Copies(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 3)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            y = self.linear(x)
            return y, y.clone(), y, x.clone()

    ours, x = wrap(Copies()), torch.randn(2, 4)
    with torch.no_grad():
        y, copied, again, given = ours(x)
        assert y is again
        kept = [copied.clone(), x.clone()]
        y.zero_()
        given.zero_()
    torch.testing.assert_close([copied, x], kept)


def test_module_without_tensors_in_its_result() -> None:
    class Nothing(nn.Module):
        def forward(self, x: torch.Tensor) -> None:
            return None

    with pytest.raises(ORTModuleIOError, match="got none, expected a tensor"):
        wrap(Nothing())(t())


@pytest.mark.parametrize("wrong", [{1, 2}, object(), np.zeros(3)])
def test_unknown_types_are_refused(wrong: Any) -> None:
    with pytest.raises(ORTModuleIOError, match="type of an input or output: got") as caught:
        wrap(Nested())(t(), wrong)
    assert isinstance(caught.value.__cause__, TypeError)


def test_sparse_tensors_are_refused() -> None:
    with pytest.raises(ORTModuleIOError, match="layout"):
        wrap(Nested())(t().to_sparse())


def test_constants_are_part_of_the_graph() -> None:
    pair = Pair(Nested())
    x = t()
    for options, exports in ((2.0, 1), (3.0, 2), (2.0, 2), (2, 3), (None, 4), (3.0, 4)):
        pair.step(x, options=options)
        assert pair.exports == exports


def test_the_same_call_written_differently() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor | None = None) -> torch.Tensor:
            y = self.linear(a) - b
            return y if c is None else y * c

    pair = Pair(Two())
    a, b, c = t(), t(), t()
    pair.step(a, b, c)
    pair.step(a, b, c=c)
    pair.step(b=b, c=c, a=a)
    assert pair.exports == 1
    pair.step(a, b)
    assert pair.exports == 2
    with pytest.raises(Exception, match="missing 1 required positional argument"):
        pair.ours(a)


def test_keywords_without_a_name_keep_their_order() -> None:
    class Ordered(nn.Module):
        def forward(self, x: torch.Tensor, *, scale: float = 1.0, **more: torch.Tensor) -> torch.Tensor:
            return x * scale + sum(value * (i + 1) for i, value in enumerate(more.values()))

    pair = Pair(Ordered())
    a, b = torch.ones(3), torch.full((3,), 10.0)
    pair.step(t(2, 3), zebra=a, ant=b, scale=2.0)
    pair.step(t(2, 3), scale=2.0, zebra=a, ant=b)
    assert pair.exports == 1
    pair.step(t(2, 3), scale=2.0, ant=b, zebra=a)
    assert pair.exports == 2


def test_keywords_may_have_any_name() -> None:
    class Sum(nn.Module):
        def forward(self, x: torch.Tensor, **more: torch.Tensor) -> torch.Tensor:
            return x + sum(value * len(name) for name, value in more.items())

    pair = Pair(Sum())
    names = ["class", "_class", "", "_", "2nd", "x²", "größe", "a b", "a-b", "None", "self_", "args"]
    for rows in (2, 3):
        pair.step(t(rows, 3), **{name: t(rows, 3) for name in names})
    assert pair.exports == 2


def test_two_sets_of_shapes_are_exported_as_they_are_and_the_third_for_all() -> None:
    pair = Pair(Nested())
    for n, exports in ((3, 1), (3, 1), (5, 2), (3, 2), (1, 3), (17, 3), (64, 3), (5, 3)):
        pair.step(t(n, 4))
        assert pair.exports == exports, n
    assert [v.dynamic for v in pair.ours._manager.variants] == [False, False, True]
    pair.step(t(2, 6, 4))  # another rank is another graph
    assert pair.exports == 4


def test_axes_that_vary_later_are_exported_once_more() -> None:
    class Rows(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.cumsum(0) * x.shape[1]

    pair = Pair(Rows())
    shapes = (((2, 3), 1), ((4, 3), 2), ((5, 3), 3), ((7, 3), 3), ((7, 5), 4), ((8, 9), 4), ((3, 2), 4))
    for shape, exports in shapes:
        pair.step(t(*shape).requires_grad_())
        assert pair.exports == exports, shape


@pytest.mark.slow
@pytest.mark.parametrize(("option", "exports"), [("always", 1), ("never", 3)])
def test_shapes_as_asked_for(option: str, exports: int) -> None:
    pair = Pair(Nested(), dynamic_shapes=option)
    for n in (3, 5, 7, 3):
        pair.step(t(n, 4))
    assert pair.exports == exports


def test_a_wrong_call_does_not_fix_dimensions() -> None:
    ours = wrap(nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)))
    ours(t(5, 4))
    ours(t(6, 4))
    for _ in range(2):
        with pytest.raises(ORTModuleTorchModelException, match="more than 1 value per channel"):
            ours(t(1, 4))
    for count in (7, 8, 9):
        ours(t(count, 4))
    assert len(ours._manager.variants) == 3


@pytest.mark.slow
def test_dimensions_the_module_fixes() -> None:
    class Fixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = x * self.weight
            for i in range(x.shape[0]):  # written out, as often as there are rows
                y = y + x[i]
            return y

    pair = Pair(Fixed())
    for n in (2, 3, 4, 3, 2):
        pair.step(t(n, 4))


@pytest.mark.slow
def test_shapes_that_belong_together() -> None:
    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(4))

        def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            return (a * self.weight) @ b.transpose(0, 1)

    pair = Pair(Sum())
    for m, n in ((2, 2), (3, 3), (3, 5), (6, 4), (1, 5)):
        pair.step(t(m, 4), t(n, 4))


def test_broadcasting_is_not_frozen() -> None:
    """A dimension that was 1, or equal to another, when captured."""

    class Add(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(4))

        def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            return a * self.weight + b

    pair = Pair(Add())
    for a, b in (((3, 4), (3, 4)), ((5, 4), (5, 4)), ((5, 4), (1, 4)), ((1, 4), (6, 4)), ((2, 4), (2, 4))):
        pair.step(t(*a), t(*b))


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        h = x * self.weight
        if x.shape[0] > 4:
            h = h * 2
        h = h + y.sum() if x.shape[1] == y.shape[0] else h - y.sum()
        if y.shape[0] % 2 == 0:
            h = h + 1
        return h.tanh() if x.shape[0] * y.shape[0] > 40 else h


def test_branches_on_shapes_are_not_frozen() -> None:
    pair = Pair(Branching(), dynamic_shapes="always")
    for rows, columns, length in ((6, 3, 8), (7, 5, 8), (3, 3, 8), (6, 8, 8), (6, 3, 7), (6, 3, 6), (9, 3, 8)):
        pair.step(t(rows, columns, 4), t(length))
    assert pair.exports < 7


def test_guards_are_not_trusted() -> None:
    def holds(*texts: str) -> bool:
        return Guards(texts).hold({"x": (3, 4), "y": (8,)})

    assert holds()
    assert holds(
        "L['x'].size()[0] == 3", "(L['y'].size()[0] % 2) == 0", "max(1, L['x'].size()[1]) >= 4 and not (1 > 2)"
    )
    assert not holds("L['x'].size()[0] == 3", "L['x'].size()[1]*L['y'].size()[0] < 32")
    for text in (
        "__import__('os').system('true')",
        "().__class__",
        "L['x'].__class__",
        "L['z'].size()[0] == 3",
        "L['x'].size()[5] == 3",
        "1 % 0 == 0",
        "'a' == 'a'",
        "[1 for _ in (1,)]",
        "(lambda: True)()",
        "not a condition",
        "exec('1') or True",
    ):
        assert not holds(text), text


# ---- flattening by itself
def test_structures_survive_json() -> None:
    import json

    values = [
        None,
        1,
        -1.5,
        float("inf"),
        True,
        "text",
        torch.float16,
        torch.device("cpu"),
        Mode.MINUS,
        [1, (2, t())],
        {"a": t(), 3: None},
        OrderedDict(a=1),
        Point(t(), 2),
        Result(t(), [t()], 4),
        torch.Size([1, 2]),
    ]
    for value in values:
        tensors: list[torch.Tensor] = []
        structure = io.flatten(value, tensors)
        hash(structure)
        read = io.load(json.loads(json.dumps(io.dump(structure))))
        assert read == structure
        again = io.rebuild(read, iter(tensors))
        assert type(again) is type(value)
        if not tensors:
            assert again == value


def test_structures_tell_types_apart() -> None:
    keys = {io.flatten(v, []) for v in (1, 1.0, True, "1", None, [1], (1,), {"a": 1}, 0.0, -0.0)}
    assert len(keys) == 10


@pytest.mark.parametrize("kind", ["namedtuple", "sequence", "mapping", "dataclass", "enum", "pytree", "defaultdict"])
def test_files_do_not_say_what_is_called(kind: str) -> None:
    argument = {"t": [{"t": ["constant", "str", "echo"]}]}
    for name in (["os", "system"], ["subprocess", "Popen"]):
        with pytest.raises(ValueError, match=f"a {kind} of"):
            io.load(["tuple", {"t": [{"t": [kind, {"class": name}, argument, argument]}]}])


def test_local_classes_are_not_written_down() -> None:
    @dataclasses.dataclass
    class Local:
        x: int

    with pytest.raises(TypeError, match="cannot be written down"):
        io.dump(io.flatten(Local(1), []))


def test_names_of_inputs() -> None:
    ours = wrap(Nested())
    ours(t(), [t(), (t(), None)], t(), b=t(), p=Point(t(), t()))
    names = [spec.name for spec in ours._manager.variants[0].exported.inputs if spec.kind == "user"]
    assert names == ["x", "rest_0_0", "rest_0_1_0", "rest_1", "b", "p_0", "p_1"]
