"""backpass.utils: tables, nested data, element types, the line about memory, samplers."""

from __future__ import annotations

import collections
import json
import logging
import random
import subprocess
import sys
import textwrap
from typing import Any

import numpy as np
import pytest
import torch
from backpass import utils
from backpass.utils.data import LoadBalancingDistributedBatchSampler, LoadBalancingDistributedSampler
from backpass.utils.data.sampler import shard_wrapped_indices_for_worker
from backpass.utils.torch_io_helper import _TensorStub
from ort_training.interpreters import THEIRS, needs_original, run


# ---- tables
def test_columns_are_as_wide_as_their_widest_cell_and_two_more() -> None:
    table = utils.PTable()
    table.add_row(["a", "ON", "short"])
    row = table.add_row(["longer", "OFF", "x"])
    below = utils.PTable()
    below.add_row(["- Plan 1", "ON", "something much longer"])
    row.append_annotation_table(below)
    lines = table.get_string().splitlines()
    assert lines[0] == "a       ON   short  "
    assert lines[1] == "longer  OFF  x      "
    assert lines[2] == "- Plan 1  ON  something much longer  "
    assert utils.PTable().get_string() == ""
    with pytest.raises(AssertionError, match="got 2, expected 3"):
        table.add_row(["a", "b"])


def test_sortable_tables_and_least_widths() -> None:
    table = utils.PTable(sortable=True)
    for name in ("b", "a"):
        table.add_row([name, 1, 2])
    assert table.get_string(first_column_width=3, second_column_width=4) == "a    1  2     \nb    1  2     \n"


# ---- nested data
Pair = collections.namedtuple("Pair", ["left", "right"])


def same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return a is b
    if isinstance(a, dict):
        return type(a) is type(b) and a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return bool(a == b)


def random_nest(chance: random.Random, depth: int) -> Any:
    kind = chance.choice(["tensor", "number", "none"] if depth == 0 else ["tensor", "list", "tuple", "pair", "dict"])
    if kind == "tensor":
        return torch.zeros([chance.randint(0, 3) for _ in range(chance.randint(0, 3))])
    if kind in ("number", "none"):
        return chance.choice([1, 2.5, True, "text"]) if kind == "number" else None
    parts = [random_nest(chance, depth - 1) for _ in range(chance.randint(0, 3))]
    if kind == "pair":
        return Pair(random_nest(chance, depth - 1), random_nest(chance, depth - 1))
    return dict(zip("xyz", parts, strict=False)) if kind == "dict" else (list if kind == "list" else tuple)(parts)


@pytest.mark.filterwarnings("ignore:a constant among the data")
@pytest.mark.parametrize("seed", range(50))
def test_nested_data_comes_back_as_it_was(seed: int) -> None:
    data = random_nest(random.Random(seed), 4)
    tensors, schema = utils.extract_data_and_schema(data)
    assert same(utils.unflatten_data_using_schema(tensors, schema), data)


def test_a_schema_names_what_it_stands_for() -> None:
    with pytest.warns(UserWarning, match="a constant among the data"):
        tensors, schema = utils.extract_data_and_schema({"a": [torch.zeros(2, 3), 4, True], "b": None}, True)
    assert [t.tolist() for t in tensors[1:]] == [4, True]
    stubs = [
        _TensorStub(0, "a_0", "torch.float32", None, 2),
        _TensorStub(1, "a_1", "<class 'int'>", None, 0),
        _TensorStub(2, "a_2", "<class 'bool'>_True", None, 0),
    ]
    assert schema == {"a": stubs, "b": None}
    assert repr(stubs[0]) == "_TensorStub(tensor_idx=0,name=a_0,dtype=torch.float32,shape_dims=2)"
    assert stubs[0] != stubs[1]
    with pytest.raises(NotImplementedError, match="expected a _TensorStub"):
        assert stubs[0] == 3


def test_what_cannot_be_taken_apart_or_put_together() -> None:
    with pytest.raises(TypeError, match="got <class 'object'>"):
        utils.extract_data_and_schema([object()])
    with pytest.raises(TypeError, match="got <class 'object'>"):
        utils.unflatten_data_using_schema([], object())
    with pytest.raises(AssertionError, match=r"expected a torch.Tensor"):
        utils.unflatten_data_using_schema([3], _TensorStub(0))  # type: ignore[list-item]
    assert utils.PrimitiveType.is_primitive_type(False)
    assert not utils.PrimitiveType.is_primitive_type(np.float32(1))
    assert utils.PrimitiveType.get_primitive_dtype(1.5) == "<class 'float'>"


def test_data_of_hugging_face() -> None:
    from transformers.modeling_outputs import BaseModelOutput

    given = BaseModelOutput(last_hidden_state=torch.ones(2), hidden_states=(torch.zeros(1),))
    tensors, schema = utils.extract_data_and_schema(given)
    again = utils.unflatten_data_using_schema([t + 1 for t in tensors], schema)
    assert isinstance(again, BaseModelOutput)
    assert again.last_hidden_state.tolist() == [2, 2]
    assert given.last_hidden_state.tolist() == [1, 1]


# ---- element types
def test_element_types_by_all_names() -> None:
    code = utils.pytorch_type_to_onnx_dtype(torch.float32)
    assert int(code) == 1
    assert utils.pytorch_type_to_onnx_dtype("Float") == code
    assert utils.onnx_dtype_to_pytorch_dtype(code) is torch.float32
    assert utils.onnx_dtype_to_pytorch_dtype(16) is torch.bfloat16
    assert utils.pytorch_scalar_type_to_pytorch_dtype("Long") is torch.int64
    for ask, value in [
        (utils.pytorch_type_to_onnx_dtype, "Quaternion"),
        (utils.pytorch_type_to_onnx_dtype, torch.quint8),
        (utils.onnx_dtype_to_pytorch_dtype, 999),
        (utils.pytorch_scalar_type_to_pytorch_dtype, "Quaternion"),
    ]:
        with pytest.raises(RuntimeError, match="Unsupported dtype"):
            ask(value)


# ---- ranges and memory
def test_decorated_functions_are_as_they_were() -> None:
    @utils.nvtx_function_decorator
    def halve(x: int, by: int = 2) -> float:
        """Divides."""
        return x / by

    utils.torch_nvtx_range_push("outer")
    assert halve(3) == 1.5
    with pytest.raises(ZeroDivisionError):
        halve(1, by=0)
    utils.torch_nvtx_range_pop()
    assert (halve.__name__, halve.__doc__) == ("halve", "Divides.")


def test_a_line_about_memory(capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> None:
    utils.log_memory_usage("pre_forward", step_info="step 3")
    line = capsys.readouterr().out
    assert line.startswith("rank-0 step 3 memory (MiB) | phase: pre_forward | allocated: ")
    module = torch.nn.Linear(1024, 1024)
    module.weight.grad = torch.zeros_like(module.weight)
    with caplog.at_level(logging.INFO):
        utils.log_memory_usage("now", logger=logging.getLogger("of_mine"), module=module)
    assert caplog.messages[-1].endswith("| param: 4 | grad: 4 | buffer: 0")


def test_tables_need_no_torch() -> None:
    program = "import sys; from backpass.utils import PTable; assert 'torch' not in sys.modules; print(dir())"
    assert "PTable" in subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout


# ---- samplers
def costs_of(seed: int) -> tuple[list[int], dict[str, Any], int]:
    chance = random.Random(seed)
    data = chance.sample(range(1000), chance.randint(1, 60))
    options = {
        "world_size": chance.randint(1, 5),
        "shuffle": chance.random() < 0.7,
        "group_size": chance.choice([None, None, 1, 4, 7]),
        "seed": chance.randint(0, 9),
        "drop_last": chance.random() < 0.3,
        "random_level": chance.choice([0, 0, 0.3, 1.0]),
    }
    return data, options, chance.randint(0, 3)


@pytest.mark.parametrize("seed", range(60))
def test_processes_share_the_samples(seed: int) -> None:
    """Each sample has its turn, the first ones twice where it does not come out even, and each epoch its order."""
    data, options, epoch = costs_of(seed)
    size = options["world_size"]
    samplers = [LoadBalancingDistributedSampler(data, int, rank=rank, **options) for rank in range(size)]
    for current in (epoch, epoch + 1, epoch):
        for sampler in samplers:
            sampler.set_epoch(current)
        taken = [list(sampler) for sampler in samplers]
        assert [len(t) for t in taken] == [len(s) for s in samplers] == [len(samplers[0])] * size
        counts = collections.Counter(i for t in taken for i in t)
        if options["drop_last"]:
            assert sum(counts.values()) == len(data) // size * size
            assert set(counts.values()) <= {1}
        else:
            assert set(counts) == set(range(len(data)))
            assert sum(counts.values()) == -(-len(data) // size) * size


def test_samples_of_one_step_cost_alike() -> None:
    costs = np.random.default_rng(0).permutation(64).tolist()
    taken = [list(LoadBalancingDistributedSampler(costs, int, 4, rank)) for rank in range(4)]
    spread = [max(step) - min(step) for step in np.take(costs, taken).T.tolist()]
    assert max(spread) == 3
    steps = np.take(costs, taken[0]).tolist()
    assert steps != sorted(steps)
    sampler = LoadBalancingDistributedSampler(costs, int, 4, 0)
    assert list(sampler) == list(sampler) == taken[0]
    sampler.set_epoch(1)
    assert list(sampler) != taken[0]
    unshuffled = LoadBalancingDistributedSampler(costs, int, 4, 0, shuffle=False)
    assert np.take(costs, list(unshuffled)).tolist() == list(range(0, 64, 4))


def test_groups_stay_together_and_sorted_in_every_epoch() -> None:
    costs = [5, 3, 9, 1, 8, 2, 7, 4]
    sampler = LoadBalancingDistributedSampler(costs, int, 1, 0, group_size=4)
    orders = set()
    for epoch in range(8):
        sampler.set_epoch(epoch)
        order = list(sampler)
        orders.add(tuple(order))
        halves = {tuple(order[:4]), tuple(order[4:])}
        assert halves == {(3, 1, 0, 2), (5, 7, 6, 4)}
    assert len(orders) == 2


def test_costs_are_asked_for_once() -> None:
    asked: list[int] = []
    sampler = LoadBalancingDistributedSampler([3, 1, 2], lambda x: asked.append(x) or x, 1, 0)
    list(sampler), list(sampler)
    assert asked == [3, 1, 2]


def test_what_samplers_refuse() -> None:
    for rank in (-1, 2):
        with pytest.raises(ValueError, match="Invalid rank"):
            LoadBalancingDistributedSampler([1], int, 2, rank)
    for level in (-0.1, 1.1):
        with pytest.raises(ValueError, match="Invalid random level"):
            LoadBalancingDistributedSampler([1], int, 1, 0, random_level=level)
    with pytest.raises(ValueError, match="LoadBalancingDistributedSampler type"):
        LoadBalancingDistributedBatchSampler([1, 2], lambda indices: [indices])  # type: ignore[arg-type]
    dropping = LoadBalancingDistributedSampler([1], int, 1, 0, drop_last=True)
    with pytest.raises(ValueError, match="drop_last of sampler should be False"):
        LoadBalancingDistributedBatchSampler(dropping, lambda indices: [indices])
    assert list(LoadBalancingDistributedSampler([], int, 2, 0)) == []
    assert shard_wrapped_indices_for_worker([4, 5, 6], 1, 2) == [5, 4]


@pytest.mark.parametrize("drop_last", [False, True])
def test_batches_are_equally_many(drop_last: bool) -> None:
    lengths = np.random.default_rng(1).integers(1, 30, 50).tolist()

    def up_to_100_tokens(indices: list[int]) -> list[list[int]]:
        batches: list[list[int]] = [[]]
        for index in indices:
            if sum(lengths[i] for i in batches[-1]) + lengths[index] > 100:
                batches.append([])
            batches[-1].append(index)
        return batches

    samplers = [
        LoadBalancingDistributedBatchSampler(
            LoadBalancingDistributedSampler(lengths, int, 3, rank), up_to_100_tokens, drop_last
        )
        for rank in range(3)
    ]
    for epoch in range(3):
        for sampler in samplers:
            sampler.set_epoch(epoch)
        batches = [list(sampler) for sampler in samplers]
        assert len({len(b) for b in batches}) == 1
        assert len(batches[0]) == len(samplers[0])
        if not drop_last:
            assert {i for rank in batches for batch in rank for i in batch} == set(range(50))
    loader = torch.utils.data.DataLoader(lengths, batch_sampler=samplers[0])
    assert sum(1 for _ in loader) == len(samplers[0])


SAMPLES = """
    import json, sys
    from {package}.utils.data import LoadBalancingDistributedSampler as Sampler
    found = []
    for data, options, epoch in json.loads(sys.argv[1]):
        for rank in range(options["world_size"]):
            sampler = Sampler(data, int, rank=rank, **options)
            sampler.set_epoch(epoch)
            found.append([int(i) for i in sampler])
    print(json.dumps(found))
"""


@needs_original
def test_orders_are_those_of_the_original() -> None:
    cases = [costs_of(seed) for seed in range(40)]
    for data, options, _ in cases:
        if options["random_level"]:  # the original does not order equal costs, and chance makes some equal
            options["random_level"] = 0
        assert len(set(data)) == len(data)
    cases = [c for c in cases if len(c[0]) >= c[1]["world_size"]]  # where the original drops everything, it asserts
    theirs = run(THEIRS, "-c", textwrap.dedent(SAMPLES.format(package=THEIRS)), json.dumps(cases))
    ours = run("backpass", "-c", textwrap.dedent(SAMPLES.format(package="backpass")), json.dumps(cases))
    assert json.loads(ours) == json.loads(theirs.splitlines()[-1])
