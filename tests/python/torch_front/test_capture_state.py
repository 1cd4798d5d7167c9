"""What a capture switches off while it works is as it was before, whatever happens; and nothing is missing after it."""

from __future__ import annotations

import gc
import importlib

import pytest
import torch
from backpass import _collection
from backpass.torch import export_module
from ortmodule_check import wrap
from torch import nn
from torch.fx import _lazy_graph_module, config

capturing = importlib.import_module("backpass.torch.capture")  # `backpass.torch.capture` is the function in it


def switches() -> tuple[bool, bool, bool]:
    return gc.isenabled(), config.do_not_emit_stack_traces, _lazy_graph_module._use_lazy_graph_module_flag


seen: list[tuple[bool, bool, bool]] = []  # torch.export puts attributes of modules back as they were


class Watched(nn.Module):
    def __init__(self, fails: bool = False) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(4, 3), nn.InstanceNorm1d(3, track_running_stats=True)
        self.fails = fails

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        seen.append(switches())
        if self.fails:
            raise ValueError("of the module's own")
        with torch.no_grad():
            scale = self.linear.weight.sum()
        return self.norm(self.linear(x)[:, :, None].expand(-1, -1, 5) * scale)


@pytest.mark.parametrize("collects", [True, False])
@pytest.mark.parametrize("fails", [True, False])
def test_everything_is_as_it_was(collects: bool, fails: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "do_not_emit_stack_traces", False)
    module = Watched(fails)
    seen.clear()
    try:
        if not collects:
            gc.disable()
        before = switches()
        if fails:
            with pytest.raises(ValueError, match="of the module's own"):
                export_module(module, (torch.ones(2, 4),))
        else:
            export_module(module, (torch.ones(2, 4),))
        assert switches() == before == (collects, False, False)
    finally:
        gc.enable()
    assert (False, True, True) in seen


def test_nested_pauses_end_with_the_outermost() -> None:
    with _collection.without_collection():
        with _collection.without_collection():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()


def test_a_captured_graph_can_be_called() -> None:
    """Its Python code is made then."""
    module = Watched().eval()
    x = torch.randn(2, 4)
    captured = capturing.capture(module, (x,))
    state = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    given = [x if spec.kind == "user" else state[str(spec.target)] for spec in captured.inputs]
    found = captured.graph_module(*given)[-1]
    torch.testing.assert_close(found, module(x))
    assert "def forward" in captured.graph_module.code


def test_the_time_of_torch_is_told_apart() -> None:
    module = wrap(nn.Sequential(nn.Linear(4, 3), nn.ReLU()))
    module(torch.ones(2, 4)).sum().backward()
    (variant,) = module._manager.variants
    assert variant.exported.seconds.keys() == {"capture", "simplify", "export"}
    assert 0 < variant.exported.torch_seconds == variant.exported.seconds["capture"] < variant.export_seconds
    assert "captured by torch in" in str(module.explain())
    with torch.autocast("cpu", torch.bfloat16):  # which torch writes down by tracing a second time
        module(torch.ones(2, 4))
    exported = module._manager.variants[-1].exported
    assert exported.torch_seconds == pytest.approx(exported.seconds["capture"] + exported.seconds["decompose"])
