"""An ORTModule looks like the module it wraps: parameters, names, state, attributes, methods, copies, modes, hooks."""

from __future__ import annotations

import copy
import inspect
import io
import logging
import pickle
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from backpass.ortmodule import ORTModule
from backpass.ortmodule.fallback import ORTModuleDeviceException, ORTModuleTorchModelException
from ortmodule_check import RTOL, Pair, wrap
from torch import nn


class Base(nn.Module):
    def describe(self) -> str:
        return type(self).__name__


class Net(Base):
    """Two layers with a normalisation between them."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 8)
        self.norm = nn.BatchNorm1d(8)
        self.second = nn.Linear(8, 3)
        self.scale = 2.0
        self.register_buffer("shift", torch.full((3,), 0.25))

    def forward(self, x: torch.Tensor, *, bias: torch.Tensor | None = None) -> torch.Tensor:
        """Scores."""
        y = self.second(torch.relu(self.norm(self.first(x)))) * self.scale + self.shift
        return y if bias is None else y + bias

    def predict(self, x: torch.Tensor) -> torch.Tensor:
        return self(x).argmax(-1)

    def describe(self) -> str:
        return super().describe() + " of " + str(len(self(torch.zeros(2, 6))))


@pytest.fixture
def x() -> torch.Tensor:
    return torch.randn(5, 6)


def test_parameters_and_names() -> None:
    net = Net()
    ours = wrap(net)
    assert dict(ours.named_parameters()).keys() == dict(net.named_parameters()).keys()
    assert all(a is b for a, b in zip(ours.parameters(), net.parameters(), strict=True))
    assert [n for n, _ in ours.named_buffers()] == [n for n, _ in net.named_buffers()]
    assert [n for n, _ in ours.named_modules()] == ["", "first", "norm", "second"]
    assert [n for n, _ in ours.named_children()] == ["first", "norm", "second"]
    assert list(ours.state_dict()) == list(net.state_dict())
    assert ours.get_parameter("first.weight") is net.first.weight
    assert ours.get_submodule("norm") is net.norm
    assert ours.module is net
    assert isinstance(ours, nn.Module)
    assert "Net(" in repr(ours)


def test_state_goes_both_ways(x: torch.Tensor) -> None:
    net, other = Net(), Net()
    ours = wrap(net)
    ours.load_state_dict(other.state_dict())
    file = io.BytesIO()
    torch.save(ours.state_dict(), file)
    file.seek(0)
    third = Net()
    third.load_state_dict(torch.load(file))
    torch.testing.assert_close(third.eval()(x), other.eval()(x))
    torch.testing.assert_close(ours.eval()(x), other(x), rtol=1e-4, atol=1e-5)


def test_signature_and_documentation() -> None:
    ours = wrap(Net())
    assert inspect.signature(ours.forward) == inspect.signature(Net().forward)
    assert ours.forward.__doc__ == "Scores."


def test_training_and_evaluation(x: torch.Tensor) -> None:
    pair = Pair(Net())
    pair.step(x)
    for module in (pair.ours, pair.eager):
        assert module.eval() is module
        assert not module.training
        assert not module.norm.training
    pair.step(x)  # gradients flow in evaluation, too
    for module in (pair.ours, pair.eager):
        module.train()
        module.norm.eval()  # only this one: its statistics are used and stay
    pair.step(x)
    assert pair.exports == 3
    pair.ours.norm.train()
    pair.eager.norm.train()
    pair.step(x)
    assert pair.exports == 3


@pytest.mark.slow
def test_wrapping_a_module_in_evaluation_mode(x: torch.Tensor) -> None:
    net = Net().eval()
    ours = wrap(net)
    assert not ours.training
    with torch.no_grad():
        torch.testing.assert_close(ours(x), net(x), rtol=1e-4, atol=1e-5)


def test_types_can_change(x: torch.Tensor) -> None:
    pair = Pair(Net())
    pair.step(x)
    assert pair.ours.to(torch.float64) is pair.ours
    pair.eager.double()
    pair.eager.zero_grad()
    pair.ours.zero_grad()
    assert next(pair.ours.parameters()).dtype == torch.float64
    assert pair.step(x.double()).dtype == torch.float64
    pair.ours.float()
    pair.eager.float()
    pair.ours.zero_grad()
    pair.eager.zero_grad()
    pair.step(x)
    assert pair.exports == 2


def test_other_devices_are_refused(x: torch.Tensor) -> None:
    ours = wrap(Net())
    ours(x)
    with pytest.raises(ORTModuleDeviceException, match="got meta, expected cpu"):
        ours(x.to("meta"))
    ours.to("meta")
    with pytest.raises(ORTModuleDeviceException, match="got meta, expected cpu"):
        ours(x)


def test_attributes_both_ways(x: torch.Tensor) -> None:
    pair = Pair(Net())
    assert pair.ours.scale == 2.0
    pair.step(x)
    pair.ours.scale = 0.5  # part of the graph: seen, and exported again
    pair.eager.scale = 0.5
    assert pair.ours.module.scale == 0.5
    pair.step(x)
    pair.ours.module.scale = 2.0
    pair.eager.scale = 2.0
    pair.step(x)
    assert pair.exports == 2  # the first one was kept
    pair.ours.new_attribute = [1]
    assert pair.ours.module.new_attribute == [1]
    del pair.ours.new_attribute
    assert not hasattr(pair.ours, "new_attribute")
    with pytest.raises(AttributeError, match="no_such_thing"):
        pair.ours.no_such_thing  # noqa: B018
    assert "predict" in dir(pair.ours)


def test_new_parameters_and_parts_are_seen(x: torch.Tensor) -> None:
    pair = Pair(Net())
    pair.step(x)
    weight = torch.randn(8, 6)
    for module in (pair.ours, pair.eager):
        module.first.weight = nn.Parameter(weight.clone())
        module.zero_grad()
    pair.step(x)
    assert pair.exports == 1  # the same graph with other tensors
    part = nn.Sequential(nn.Linear(8, 4), nn.Tanh(), nn.Linear(4, 3))
    for module in (pair.ours, pair.eager):
        module.second = copy.deepcopy(part)
        module.zero_grad()
    pair.step(x)
    assert pair.exports == 2


@pytest.mark.parametrize("inner", [True, False])
def test_lazy_parameters(inner: bool, x: torch.Tensor, caplog: pytest.LogCaptureFixture) -> None:
    def make() -> nn.Module:
        return nn.Sequential(nn.LazyLinear(4), nn.LazyBatchNorm1d()) if inner else nn.LazyLinear(4)

    pair = Pair(nn.Identity())
    pair.eager, pair.ours = make(), wrap(make())  # torch does not copy them
    with pytest.raises(TypeError):
        pair.ours(x, x)  # a wrong call is not the first one
    torch.manual_seed(0)
    first = pair.ours(x)
    torch.manual_seed(0)
    torch.testing.assert_close(first, pair.eager(x))
    assert "PyTorch runs this one, Backpass the next" in caplog.text
    assert pair.exports == 0
    for _ in range(2):
        pair.step(x)
    assert pair.exports == 1


@pytest.mark.slow
def test_unregistered_tensors_are_seen(x: torch.Tensor) -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.factor = torch.tensor([2.0])
            self.linear = nn.Linear(6, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.linear(x) * self.factor

    pair = Pair(Scaled())
    pair.step(x)
    for module in (pair.ours, pair.eager):
        module.factor.mul_(3)
    pair.step(x)
    for module in (pair.ours, pair.eager):
        module.factor = torch.tensor([5.0])
    pair.step(x)


def test_attributes_that_forward_fills(caplog: pytest.LogCaptureFixture) -> None:
    class Fills(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(6, 6)
            self.positions: torch.Tensor | None = None
            self.seen: list[torch.Tensor] = []

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if self.positions is None:
                self.positions = torch.arange(6.0)
            self.last = self.linear(x) * self.positions
            self.seen.append(self.last)
            return self.last * 2

    pair = Pair(Fills())
    with caplog.at_level(logging.WARNING, "backpass.ortmodule"):
        pair.step(torch.randn(2, 6))
    for name in ("positions", "last", "seen"):
        assert f"forward of Fills leaves tensors in its attribute {name}" in caplog.text
    net = pair.ours.module
    assert net.positions is None
    assert net.seen == []
    assert not hasattr(net, "last")
    pair.step(torch.randn(3, 6))  # exported again, for variable shapes
    torch.testing.assert_close(net(torch.ones(2, 6)), pair.eager(torch.ones(2, 6)))


def test_methods_reach_the_accelerated_forward(x: torch.Tensor) -> None:
    net = Net().eval()
    ours = wrap(net)
    assert torch.equal(ours.predict(x), net.predict(x))
    assert len(ours._manager.variants) == 1
    assert ours.predict.__self__ is ours
    assert ours.describe() == "Net of 2"  # it uses super()
    assert len(ours._manager.variants) == 2
    assert "forward" not in vars(net)


def test_methods_may_ask_for_their_class(x: torch.Tensor) -> None:
    class Asking(Net):
        extra = 1

        def by_type(self, x: torch.Tensor) -> torch.Tensor:
            return self(x) + type(self).extra

        def by_attribute(self, x: torch.Tensor) -> torch.Tensor:
            return self(x) + self.__class__.extra

        def within(self, x: torch.Tensor) -> torch.Tensor:
            return sum(self(x) for _ in range(2) if isinstance(self, Net))

        def around(self, x: torch.Tensor) -> torch.Tensor:
            return self.by_type(x) + self(x)

    net = Asking().eval()
    ours = wrap(net)
    for name in ("by_type", "by_attribute", "within", "around"):
        torch.testing.assert_close(getattr(ours, name)(x), getattr(net, name)(x))
    assert len(ours._manager.variants) == 1
    assert sum(graph.spent.forwards for graph in ours._manager.variants[0].graphs.values()) == 6
    assert "forward" not in vars(net)


def test_methods_leave_forward_of_the_object(x: torch.Tensor) -> None:
    net = Net().eval()
    own = net.forward = lambda x: net.first(x) + 1  # type: ignore[method-assign]
    ours = wrap(net)
    ours.describe()
    assert vars(net)["forward"] is own
    torch.testing.assert_close(ours(x), own(x))


def test_methods_in_several_threads(x: torch.Tensor) -> None:
    class Asking(Net):
        def by_type(self, x: torch.Tensor) -> torch.Tensor:
            return self(x) if type(self) is Asking else x

    net = Asking().eval()
    ours = wrap(net)
    expected = net(x)
    ours(x)

    def work(_: int) -> bool:
        return all(torch.allclose(ours.by_type(x), expected, atol=1e-5) for _ in range(50))

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(4)))
    assert "forward" not in vars(net)


@pytest.mark.slow
def test_generate_of_transformers() -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    net = GPT2LMHeadModel(GPT2Config(n_layer=1, n_head=2, n_embd=16, vocab_size=50, n_positions=32)).eval()
    ours = wrap(net)
    words = torch.randint(1, 50, (2, 5))
    how = {"max_new_tokens": 6, "do_sample": False, "use_cache": False, "pad_token_id": 0}
    assert torch.equal(ours.generate(words, **how), net.generate(words, **how))
    # Each word is another length: the first two are captured as they are, the third for all that follow.
    assert [v.dynamic for v in ours._manager.variants] == [False, False, True]
    assert torch.equal(ours.generate(words[:, :3], **how), net.generate(words[:, :3], **how))
    assert len(ours._manager.variants) == 3
    relaxed = ORTModule(net)
    how["use_cache"] = True  # an object that forward changes: PyTorch runs the module
    assert torch.equal(relaxed.generate(words, **how), net.generate(words, **how))


def test_decorated_methods_may_use_super(x: torch.Tensor) -> None:
    class Decorated(Net):
        @torch.no_grad()
        def predict(self, x: torch.Tensor) -> torch.Tensor:
            return super().predict(x) + 1

    net = Decorated().eval()
    ours = wrap(net)
    assert torch.equal(ours.predict(x), net.predict(x))
    assert len(ours._manager.variants) == 1


def test_training_as_an_attribute() -> None:
    ours = wrap(Net())
    ours.training = False
    assert not ours.training
    assert not ours.module.training
    assert ours.first.training


def test_hooks_around_state() -> None:
    ours = wrap(Net())
    seen: list[str] = []
    ours.register_state_dict_pre_hook(lambda *_: seen.append("before saving"))
    ours.register_state_dict_post_hook(lambda *_: seen.append("after saving"))
    ours.register_load_state_dict_pre_hook(lambda *_: seen.append("before loading"))
    ours.register_load_state_dict_post_hook(lambda *_: seen.append("after loading"))
    ours.load_state_dict(ours.state_dict())
    expected = ["before saving", "after saving", "before loading", "after loading"]
    assert seen == expected
    around = nn.Sequential(ours)
    around.load_state_dict(around.state_dict())
    assert seen == expected * 2


def test_extra_state_within_another_module() -> None:
    class Counted(Net):
        count = 0

        def get_extra_state(self) -> Any:
            return {"count": self.count}

        def set_extra_state(self, state: Any) -> None:
            self.count = state["count"]

    net = Counted()
    around = nn.Sequential(wrap(net))
    net.count = 3
    state = around.state_dict()
    net.count = 0
    around.load_state_dict(state)
    assert net.count == 3


def test_names_that_are_hidden_are_told(caplog: pytest.LogCaptureFixture) -> None:
    class Explained(Net):
        def explain(self) -> str:
            return "mine"

    with caplog.at_level(logging.WARNING, "backpass.ortmodule"):
        ours = ORTModule(Explained())
    assert "Explained.explain is hidden by ORTModule.explain" in caplog.text
    assert ours.module.explain() == "mine"


@pytest.mark.parametrize("how", ["pickle", "deepcopy", pytest.param("save", marks=pytest.mark.slow)])
def test_copies(how: str, x: torch.Tensor) -> None:
    ours = wrap(Net())
    ours(x).sum().backward()
    if how == "pickle":
        other = pickle.loads(pickle.dumps(ours))
    elif how == "deepcopy":
        other = copy.deepcopy(ours)
    else:
        file = io.BytesIO()
        torch.save(ours, file)
        file.seek(0)
        other = torch.load(file, weights_only=False)
    assert type(other) is ORTModule
    assert other.first.weight is other.module.first.weight
    assert other.first.weight is not ours.first.weight
    torch.testing.assert_close(other.eval()(x), ours.eval()(x))
    assert ours.train().training
    assert not other.training
    assert other._manager.options == ours._manager.options


def test_hooks_on_the_wrapper(x: torch.Tensor) -> None:
    ours = wrap(Net())
    seen: list[Any] = []
    ours.register_forward_pre_hook(lambda module, args: seen.append(("before", module is ours, len(args))))
    ours.register_forward_hook(lambda module, args, result: seen.append(("after", tuple(result.shape))))
    ours.register_full_backward_hook(lambda module, gi, go: seen.append(("backward", tuple(go[0].shape))))
    handle = ours.first.weight.register_hook(lambda gradient: seen.append(("gradient", tuple(gradient.shape))))
    ours(x.requires_grad_()).sum().backward()
    assert seen == [("before", True, 1), ("after", (5, 3)), ("gradient", (8, 6)), ("backward", (5, 3))] or seen == [
        ("before", True, 1),
        ("after", (5, 3)),
        ("backward", (5, 3)),
        ("gradient", (8, 6)),
    ]
    handle.remove()


def test_hooks_inside(x: torch.Tensor, caplog: pytest.LogCaptureFixture) -> None:
    pair = Pair(Net())
    for module in (pair.ours, pair.eager):
        module.first.register_forward_hook(lambda module, args, result: result * 2)
    with caplog.at_level(logging.WARNING, "backpass.ortmodule"):
        pair.step(x)
    assert "forward hooks of Linear are captured" in caplog.text
    ours = wrap(Net())
    ours.first.register_full_backward_hook(lambda *_: None)
    with pytest.raises(ORTModuleTorchModelException, match="backward hooks of Linear"):
        ours(x)


def test_sparse_gradients_are_dense_and_told(caplog: pytest.LogCaptureFixture) -> None:
    ours = wrap(nn.Embedding(5, 3, sparse=True))
    with caplog.at_level(logging.WARNING, "backpass.ortmodule"):
        ours(torch.tensor([1, 2, 1])).sum().backward()
    assert "Embedding(sparse=True): its gradient is dense here" in caplog.text
    assert ours.weight.grad.sum().item() == 9


@pytest.mark.parametrize("wrong", [3, Net, lambda x: x])
def test_only_modules(wrong: Any) -> None:
    with pytest.raises(ORTModuleTorchModelException) as caught:
        ORTModule(wrong)
    assert isinstance(caught.value.__cause__, TypeError)


def test_what_cannot_be_done_says_so() -> None:
    ours = wrap(Net())
    with pytest.raises(ORTModuleTorchModelException) as caught:
        ours.add_module("third", nn.Linear(1, 1))
    assert isinstance(caught.value.__cause__, NotImplementedError)
    with pytest.raises(ORTModuleTorchModelException, match="DistributedDataParallel"):
        ours._replicate_for_data_parallel()
    with pytest.raises(ORTModuleTorchModelException, match="needs no other"):
        ORTModule(ours)


def test_functional_calls(x: torch.Tensor) -> None:
    net = Net().eval()
    ours = wrap(net)
    other = {name: torch.randn_like(p) for name, p in net.named_parameters()}
    expected = torch.func.functional_call(net, other, (x,))
    torch.testing.assert_close(torch.func.functional_call(ours, other, (x,)), expected, rtol=1e-4, atol=1e-4)


def test_optimizers_and_initialisers() -> None:
    pair = Pair(Net())
    x = torch.randn(64, 6)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.001, momentum=0.9) for m in (pair.ours, pair.eager)]
    for _ in range(4):
        for optimizer in optimizers:
            optimizer.zero_grad()
        pair.step(x)
        for optimizer in optimizers:
            optimizer.step()
    pair.compare()

    def zero(module: nn.Module) -> None:
        if isinstance(module, nn.Linear):
            nn.init.zeros_(module.bias)

    assert pair.ours.apply(zero) is pair.ours
    assert not pair.ours.first.bias.any()
    pair.ours.requires_grad_(False)
    assert not any(p.requires_grad for p in pair.ours.module.parameters())


class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, w)
        return x @ w.t()

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x, w = ctx.saved_tensors
        return g @ w.to(g.dtype), g.t() @ x.to(g.dtype)


class FullProduct(torch.autograd.Function):
    @staticmethod
    @torch.amp.custom_fwd(device_type="cpu", cast_inputs=torch.float32)
    def forward(ctx: Any, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, w)
        return x @ w.t()

    @staticmethod
    @torch.amp.custom_bwd(device_type="cpu")
    def backward(ctx: Any, g: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x, w = ctx.saved_tensors
        return g @ w, g.t() @ x


class Casting(nn.Module):
    """Calls a function, with autocast on, off, or as it is around the module."""

    def __init__(self, function: Any, inside: bool | None) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)
        self.function = function
        self.inside = inside

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.inside is None:
            return self.function.apply(self.layer(x), self.layer.weight)
        with torch.autocast("cpu", torch.bfloat16, enabled=self.inside):
            return self.function.apply(x, self.layer.weight)


@pytest.mark.parametrize("around", [True, False])
@pytest.mark.parametrize("inside", [True, False, None])
@pytest.mark.parametrize("function", [Product, FullProduct])
def test_functions_see_autocast(function: Any, inside: bool | None, around: bool, x: torch.Tensor) -> None:
    pair = Pair(Casting(function, inside))
    for rows in (5, 3):
        given = x[:rows].detach().requires_grad_()
        results = []
        for module in (pair.ours, pair.eager):
            with torch.autocast("cpu", torch.bfloat16, enabled=around):
                results.append(module(given))
            results[-1].float().square().sum().backward()
        torch.testing.assert_close(*results)
        # torch rounds the layer's weight gradient to bfloat16 before it becomes float32; ours is not rounded.
        pair.compare(2**-8 if around and inside is None else RTOL)


@pytest.mark.parametrize("backend", ["eager", "backpass"])
def test_torch_compile_sees_the_module(backend: str, x: torch.Tensor) -> None:
    import backpass.dynamo  # noqa: F401  # registers its backend

    pair = Pair(Net())
    pair.step(x)  # a graph that exists changes nothing
    torch._dynamo.reset()
    compiled = torch.compile(pair.ours, backend=backend, fullgraph=True)
    for rows in (5, 4):
        result, expected = compiled(x[:rows]), pair.eager(x[:rows])
        torch.testing.assert_close(result, expected)
        result.square().sum().backward()
        expected.square().sum().backward()
        pair.compare()
    assert pair.exports == 1
    pair.step(x)
