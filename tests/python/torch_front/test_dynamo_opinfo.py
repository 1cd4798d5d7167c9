"""torch's table of operators through the compile backend: a fixed spread every day, all of it as a slow test."""

from __future__ import annotations

import opinfo
import pytest

# One operator per family, each of which must run without calling back into torch. Lowerings have tests of their own
# (test_exporter_*.py, test_lowered_gradients.py): what is looked for here is what torch makes of an operator before.
NAMES = """
addmm cat cumsum div.no_rounding_mode index_put masked_fill max.reduction_with_dim nn.functional.adaptive_avg_pool2d
nn.functional.batch_norm nn.functional.conv2d nn.functional.cross_entropy nn.functional.embedding
nn.functional.layer_norm nn.functional.max_pool2d scatter_reduce.amax slice_scatter softmax sort std unfold
"""
SPREAD = NAMES.split()


@pytest.mark.parametrize("name", SPREAD)
def test_operator_is_eagers_and_native(name: str) -> None:
    found = [op for op in opinfo.float32_operators() if opinfo.full_name(op) == name]
    assert len(found) == 1
    (outcome,) = opinfo.run(found, opinfo.backpass_backend("aot"), 1)
    assert outcome.status == "passed", outcome.message
    assert outcome.native, dict(outcome.fallbacks)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["aot", "auto"])
def test_all_operators(mode: str, capsys: pytest.CaptureFixture[str]) -> None:
    outcomes = list(opinfo.run(opinfo.float32_operators(), opinfo.backpass_backend(mode), 3))
    with capsys.disabled():
        print(f"\n{mode}: {opinfo.summary(outcomes)}")
    failed = [f"{o.name}: {o.message}" for o in outcomes if o.status == "failed"]
    assert not failed, "\n".join(failed)
    assert sum(o.native for o in outcomes) >= 450


def test_harness_notices_wrong_results() -> None:
    """1 % off in the forward or the backward graph fails; a backend that raises fails."""
    import torch
    from backpass.dynamo import make_aot_ort

    (softmax,) = (op for op in opinfo.float32_operators() if opinfo.full_name(op) == "softmax")
    calls = []

    def spoiled(only: int):
        def transform(model):
            from onnx import helper, numpy_helper

            calls.append(model)
            if len(calls) % 2 != only:
                return
            output = model.graph.output[0].name
            for node in model.graph.node:
                node.output[:] = ["exact" if name == output else name for name in node.output]
            factor = numpy_helper.from_array(torch.tensor(1.01).numpy(), "factor")
            model.graph.initializer.append(factor)
            model.graph.node.append(helper.make_node("Mul", ["exact", "factor"], [output]))

        return transform

    for only in (0, 1):
        calls.clear()
        compile, record = make_aot_ort(pre_ort_model_transforms=[spoiled(only)])
        backend = opinfo.Backend(
            compile, record.clear, lambda record=record: (len(record.graphs), opinfo.collections.Counter())
        )
        (outcome,) = opinfo.run([softmax], backend, 2)
        assert outcome.status == "failed", only
