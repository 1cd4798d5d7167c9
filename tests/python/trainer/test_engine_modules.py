"""What modules an Engine takes, and what it leaves of them."""

from __future__ import annotations

import copy
import math
import threading
from collections.abc import Callable
from typing import Any

import backpass
import pytest
import torch
from backpass import InvalidInput, Unsupported, _core
from backpass._core import SessionOptions
from backpass.trainer.engine import Description, Engine, Settings
from torch import nn
from torch_loops import TorchLoop
from transformers import GPT2Config, GPT2LMHeadModel

X, LABEL = Description("x", ["batch", 4]), Description("label", ["batch"])
LOSS, OUT = Description("loss", []), Description("out", ["batch", 3])


def cross_entropy(out: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(out, label)


def engine_of(module: nn.Module, loss_fn: Any = cross_entropy, binding: str = "g1", **changes: Any) -> Engine:
    settings = Settings(**{"algorithm": "sgd", **changes})
    return Engine.from_torch(module, loss_fn, [X, LABEL], [LOSS, OUT], 0, settings, binding)


def batch(size: int = 5) -> dict[str, torch.Tensor]:
    return {"x": torch.randn(size, 4), "label": torch.randint(3, (size,))}


def compared(engine: Engine, loop: TorchLoop, steps: int = 3) -> None:
    for _ in range(steps):
        values = batch()
        found = engine.train_step(values, 0.1).outputs["loss"]
        torch.testing.assert_close(found, loop.train_step((values["x"],), values["label"], 0.1))


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


# ---- the tutorial's model
class Language(nn.Module):
    """Makes its mask when it is called first, and again when the length changes."""

    def __init__(self, tokens: int = 11, width: int = 8) -> None:
        super().__init__()
        self.mask: torch.Tensor | None = None
        self.embed = nn.Embedding(tokens, width)
        layer = nn.TransformerEncoderLayer(width, 2, 16, dropout=0.0)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.last = nn.Linear(width, tokens)

    def forward(self, src: torch.Tensor) -> torch.Tensor:
        if self.mask is None or self.mask.size(0) != len(src):
            self.mask = torch.triu(torch.full((len(src), len(src)), -math.inf), 1)
        result: torch.Tensor = self.last(self.encoder(self.embed(src) * math.sqrt(8), self.mask))
        return result


def test_ten_lengths_are_one_program() -> None:
    module = Language()
    loop = TorchLoop(copy.deepcopy(module), lambda out, label: cross_entropy(out.view(-1, 11), label), "sgd")
    engine = Engine.from_torch(
        module,
        lambda out, label: cross_entropy(out.view(-1, 11), label),
        [Description("src", ["length", "batch"]), Description("label", ["count"])],
        [LOSS, OUT],
        0,
        Settings("sgd"),
    )
    for length in range(12, 2, -1):
        src, label = torch.randint(11, (length, 3)), torch.randint(11, (3 * length,))
        found = engine.train_step({"src": src, "label": label}, 0.1).outputs["loss"]
        torch.testing.assert_close(found, loop.train_step((src,), label, 0.1))
    assert "programs: 1" in engine.explain()
    assert module.mask is None  # as it was before: what a capture puts there is nothing to compute with


def test_seed_describes_other_ranks() -> None:
    """Fixed extents, and a label of another rank than described: lengths are captured twice, then for any."""
    module, flat = Language(), lambda out, label: cross_entropy(out.view(-1, 11), label)
    loop = TorchLoop(copy.deepcopy(module), flat, "sgd")
    described = [Description("src", [6, 3], torch.float32), Description("label", [6, 3, 11])]
    engine = Engine.from_torch(module, flat, described, [LOSS, OUT], 0, Settings("sgd"))
    for length in (6, 6, 5, 4, 3):
        src, label = torch.randint(11, (length, 3)), torch.randint(11, (3 * length,))
        found = engine.train_step({"src": src, "label": label}, 0.1).outputs["loss"]
        torch.testing.assert_close(found, loop.train_step((src,), label, 0.1))
    assert "programs: 3" in engine.explain()


# ---- binding
class Reversed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, y: torch.Tensor | None = None, x: torch.Tensor | None = None) -> torch.Tensor:
        assert y is None
        result: torch.Tensor = self.linear(x)
        return result


@pytest.mark.parametrize("binding", ["g1", "g2"])
def test_arguments_by_name(binding: str) -> None:
    module = Reversed()
    engine = engine_of(module, binding=binding)
    loop = TorchLoop(nn.Sequential(copy.deepcopy(module.linear)), cross_entropy, "sgd")
    compared(engine, loop)
    torch.testing.assert_close(module.linear.weight, loop.module[0].weight)


class WithUnused(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor, unused: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.linear(x)
        return result


@pytest.mark.parametrize("binding", ["g1", "g2"])
def test_inputs_that_are_not_used(binding: str) -> None:
    engine = Engine.from_torch(
        WithUnused(), cross_entropy, [X, Description("unused", [2]), LABEL], [LOSS, OUT], 0, Settings("sgd"), binding
    )
    assert engine.train_step({**batch(), "unused": torch.zeros(2)}, 0.1).updated
    assert engine.eval_step({"x": torch.zeros(2, 4), "unused": torch.zeros(2)}, ["out"])["out"].shape == (2, 3)


@pytest.mark.parametrize("loss_fn", [lambda out: out.sum(), lambda out, label, more: out.sum()])
def test_loss_functions_take_two_arguments(loss_fn: Callable[..., Any]) -> None:
    engine = engine_of(nn.Linear(4, 3), loss_fn)
    with pytest.raises(RuntimeError, match="loss function should take two arguments - predict and label"):
        engine.train_step(batch(), 0.1)


def test_a_loss_module_is_a_loss_function() -> None:
    module = nn.Linear(4, 3)
    loop = TorchLoop(copy.deepcopy(module), cross_entropy, "sgd")
    compared(engine_of(module, nn.CrossEntropyLoss()), loop)


class OwnLoss(nn.Module):
    """Returns scores, something else, and the loss."""

    def __init__(self, first: bool) -> None:
        super().__init__()
        self.linear, self.first = nn.Linear(4, 3), first

    def forward(self, x: torch.Tensor, label: torch.Tensor) -> Any:
        out = self.linear(x)
        loss = nn.functional.cross_entropy(out, label)
        return (loss, out, out * 2) if self.first else {"out": out, "loss": loss, "more": (out, out)}


@pytest.mark.parametrize(("binding", "first"), [("g1", True), ("g2", False)])
def test_the_loss_among_the_results(binding: str, first: bool) -> None:
    module = OwnLoss(first)
    outputs = [LOSS, OUT] if first else [OUT, LOSS]
    loop = TorchLoop(nn.Sequential(copy.deepcopy(module.linear)), cross_entropy, "sgd")
    engine = Engine.from_torch(module, None, [X, LABEL], outputs, 1 - first, Settings("sgd"), binding)
    compared(engine, loop)
    assert list(engine.train_step(batch(), 0.1).outputs) == [d.name for d in outputs]
    x = torch.randn(7, 4)  # evaluated without the label, which forward takes
    torch.testing.assert_close(engine.eval_step({"x": x}, ["out"])["out"], module.linear(x).detach())
    with pytest.raises(InvalidInput, match=r"'label'.*got none"):
        engine.eval_step({"x": x})


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        out = self.linear(x)
        return out, x, out.softmax(-1)


def test_predictions_are_a_tuple() -> None:
    described = [LOSS, OUT, Description("same", ["batch", 4])]
    engine = Engine.from_torch(
        Pair(), lambda found, label: cross_entropy(found[0], label), [X, LABEL], described, 0, Settings("sgd")
    )
    values = batch()
    outputs = engine.train_step(values, 0.1).outputs
    assert list(outputs) == ["loss", "out", "same"]
    torch.testing.assert_close(outputs["same"], values["x"])
    with pytest.raises(InvalidInput, match="got 3 results, expected one for each of"):
        Engine.from_torch(
            Pair(),
            lambda found, label: cross_entropy(found[0], label),
            [X, LABEL],
            [*described, Description("b"), Description("c")],
            0,
            Settings("sgd"),
        ).train_step(values, 0.1)


def test_names_that_parameters_have() -> None:
    module = nn.Linear(4, 3)
    inputs, outputs = [Description("weight", ["batch", 4]), LABEL], [LOSS, Description("bias", ["batch", 3])]
    engine = Engine.from_torch(module, cross_entropy, inputs, outputs, 0, Settings("sgd"))
    values = batch()
    expected = module(values["x"]).detach()
    found = engine.train_step({"weight": values["x"], "label": values["label"]}, 0.1).outputs
    torch.testing.assert_close(found["bias"], expected)


# ---- modules
class Locked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lock, self.linear = threading.Lock(), nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with self.lock:
            result: torch.Tensor = self.linear(x)
            return result


def test_modules_that_cannot_be_copied() -> None:
    module = Locked()
    with pytest.raises(TypeError):
        copy.deepcopy(module)
    loop = TorchLoop(copy.deepcopy(module.linear), cross_entropy, "sgd")
    compared(engine_of(module), loop)


def test_frozen_weights() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
    module[2].bias.requires_grad_(False)
    before = copy.deepcopy(module.state_dict())
    engine = engine_of(module, frozen=["0.weight"])
    engine.train_step(batch(), 0.1)
    changed = {name for name, value in module.state_dict().items() if not torch.equal(value, before[name])}
    assert {"0.weight", "2.bias"}.isdisjoint(changed)
    assert {"2.weight", "1.weight", "1.running_mean", "1.num_batches_tracked"} <= changed
    assert engine.trained == ["0.bias", "1.weight", "1.bias", "2.weight"]
    assert list(engine.buffers()) == ["1.running_mean", "1.running_var", "1.num_batches_tracked"]
    with pytest.raises(RuntimeError, match=r"\['no'\] in frozen_weights not found in model weights\."):
        engine_of(nn.Linear(4, 3), frozen=["no"]).train_step(batch(), 0.1)


def test_parameters_without_gradients_stay() -> None:
    class Partly(Reversed):
        def __init__(self) -> None:
            super().__init__()
            self.other = nn.Linear(2, 2)

    module = Partly()
    before = module.other.weight.detach().clone()
    engine = engine_of(module, algorithm="adam", defaults={"weight_decay": 0.1})
    engine.train_step(batch(), 0.1)
    assert torch.equal(module.other.weight, before)
    assert engine.trained == ["linear.weight", "linear.bias"]
    assert "other.weight" in engine.weights()


def test_modes_are_left_and_followed() -> None:
    module = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 3))
    engine = engine_of(module)
    module.eval()
    values = batch()
    first = engine.train_step(values, 0.0).outputs["out"]  # trains whatever mode the module is in
    assert not module.training
    assert not torch.equal(first, engine.train_step(values, 0.0).outputs["out"])
    torch.testing.assert_close(engine.eval_step(values)["out"], module(values["x"]).detach())
    module.train()
    engine.train_step(values, 0.0)
    assert module.training
    assert "programs: 2" in engine.explain()
    module[1].eval()  # a part that is not to drop
    torch.testing.assert_close(engine.train_step(values, 0.0).outputs["out"], module(values["x"]).detach())


class Swish(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x * x.sigmoid()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        s = x.sigmoid()
        return gradient * (s + x * s * (1 - s))


class Custom(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.last(torch.special.i1(Swish.apply(self.first(x))))
        return result


def test_parts_that_torch_runs() -> None:
    module = Custom()
    loop = TorchLoop(copy.deepcopy(module), cross_entropy, "sgd")
    engine = engine_of(module)
    compared(engine, loop)
    assert "torch runs" in engine.explain()
    assert "Swish" in engine.explain()


def test_what_is_around_a_step_does_not_matter() -> None:
    module = nn.Linear(4, 3)
    loop = TorchLoop(copy.deepcopy(module), cross_entropy, "sgd")
    engine, around = engine_of(module), [torch.inference_mode(), torch.no_grad(), torch.autocast("cpu", torch.bfloat16)]
    for size, context in enumerate(around, 3):
        with context:
            values = batch(size)
            found = engine.train_step(values, 0.1).outputs["loss"]
        copies = {name: value.clone() for name, value in values.items()}  # autograd takes no tensors of inference mode
        torch.testing.assert_close(found.clone(), loop.train_step((copies["x"],), copies["label"], 0.1))


def test_values_of_other_kinds() -> None:
    module = nn.Linear(4, 3)
    engine, x, label = engine_of(module), torch.randn(2, 4), [2, 0]
    expected = module(x).detach()
    for given in (x.numpy(), x.tolist(), x.clone().requires_grad_(), x.t().contiguous().t()):
        out = engine.train_step({"x": given, "label": label}, 0.0).outputs["out"]
        torch.testing.assert_close(out, expected)
        assert not out.requires_grad


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: torch.jit.script(nn.Linear(4, 3)), "got one of torch.jit"),
        (lambda: nn.LazyLinear(3), "call the module once"),
        (lambda: nn.Linear(4, 3).bfloat16(), "expected float32 or float64, which optimizers update"),
        (lambda: nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3, momentum=None)), "cumulative average"),
    ],
)
def test_modules_that_are_refused(make: Callable[[], nn.Module], message: str) -> None:
    module = make()
    is_narrow = not nn.parameter.is_lazy(next(module.parameters())) and next(module.parameters()).dtype != torch.float32
    values = batch()
    values["x"] = values["x"].bfloat16() if is_narrow else values["x"]
    with pytest.raises(backpass.Error, match=message):
        engine_of(module).train_step(values, 0.1)


def test_decisions_by_data_are_refused() -> None:
    class Deciding(Reversed):
        def forward(self, x: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
            result: torch.Tensor = self.linear(x if x.sum() > 0 else -x)
            return result

    with pytest.raises(Unsupported, match="decides by the contents of tensors"):
        engine_of(Deciding()).train_step(batch(), 0.1)


def test_hooks_that_would_not_be_called_are_refused() -> None:
    module = nn.Sequential(nn.Linear(4, 3))
    module[0].register_full_backward_hook(lambda *_: None)
    with pytest.raises(Unsupported, match="backward hooks"):
        engine_of(module).train_step(batch(), 0.1)


@pytest.mark.parametrize(
    ("loss_fn", "message"),
    [
        (lambda out, label: out.sum(1), "must be a scalar"),
        (lambda out, label: (out.argmax(1) == label).sum(), "must be float types"),
    ],
)
def test_losses_that_are_none(loss_fn: Callable[..., Any], message: str) -> None:
    with pytest.raises(RuntimeError, match=message):
        engine_of(nn.Linear(4, 3), loss_fn).train_step(batch(), 0.1)


def test_arguments_that_forward_changes() -> None:
    class Doubling(Reversed):
        def forward(self, x: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
            x.mul_(2)
            result: torch.Tensor = self.linear(x)
            return result

    values = batch()
    before = values["x"].clone()
    outputs = engine_of(Doubling()).train_step(values, 0.1).outputs
    torch.testing.assert_close(values["x"], 2 * before)
    assert list(outputs) == ["loss", "out"]


def test_a_language_model_of_transformers() -> None:
    """Its weights are tied, its results a mapping, and it takes inputs by name."""
    sizes = {"n_embd": 16, "n_layer": 2, "n_head": 2, "vocab_size": 31, "bos_token_id": 0, "eos_token_id": 0}
    config = GPT2Config(**sizes, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False)
    module = GPT2LMHeadModel(config)
    twin = copy.deepcopy(module)
    inputs = [Description("input_ids", ["batch", "length"]), Description("labels", ["batch", "length"])]
    outputs = [LOSS, Description("logits", ["batch", "length", 31])]
    engine = Engine.from_torch(module, None, inputs, outputs, 0, Settings("sgd"), "g2")
    for length in (5, 6, 3):
        ids = torch.randint(31, (2, length))
        found = engine.train_step({"input_ids": ids, "labels": ids}, 0.1).outputs["loss"]
        loss = twin(input_ids=ids, labels=ids).loss
        torch.testing.assert_close(found, loss.detach())
        twin.zero_grad()
        loss.backward()
        with torch.no_grad():
            for p in twin.parameters():
                p -= 0.1 * p.grad
    for name, value in twin.state_dict().items():
        torch.testing.assert_close(module.state_dict()[name], value, rtol=1e-4, atol=1e-5)
    for length in (4, 7):
        ids = torch.randint(31, (2, length))
        logits = engine.eval_step({"input_ids": ids}, ["logits"])["logits"]
        torch.testing.assert_close(logits, module.eval()(input_ids=ids).logits.detach(), rtol=1e-4, atol=1e-5)
    assert "programs: 2" in engine.explain()


@pytest.mark.parametrize("algorithm", ["sgd", "adam", "lamb"])
def test_the_number_of_threads_changes_no_bit(algorithm: str) -> None:
    ends = []
    for threads in (1, 2, 3):
        torch.manual_seed(1)
        options = SessionOptions()
        options.num_threads = threads
        module = nn.Sequential(nn.Linear(4, 301), nn.BatchNorm1d(301), nn.Dropout(0.2), nn.ReLU(), nn.Linear(301, 3))
        engine = engine_of(module, algorithm=algorithm, clips_gradients=True, seed=3, session_options=options)
        for size in (33, 34, 1 + 2 * 17):
            engine.train_step(batch(size), 0.1)
        ends.append([t.clone() for t in module.state_dict().values()])
    assert all(torch.equal(a, b) for other in ends[1:] for a, b in zip(ends[0], other, strict=True))


# ---- tensors of the module
def test_the_module_is_trained() -> None:
    module = nn.Linear(4, 3)
    weight, place, version = module.weight, module.weight.data_ptr(), module.weight._version
    engine = engine_of(module)
    engine.train_step(batch(), 0.1)
    assert (module.weight is weight, weight.data_ptr()) == (True, place)
    assert weight._version > version
    assert engine.weights()["weight"].data_ptr() == place
    scores = module(torch.randn(2, 4, requires_grad=True))
    engine.train_step(batch(), 0.1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        scores.sum().backward()


def test_tensors_that_are_replaced_are_followed() -> None:
    module = nn.Linear(4, 3)
    loop = TorchLoop(copy.deepcopy(module), cross_entropy, "sgd")
    engine = engine_of(module)
    compared(engine, loop)
    with torch.no_grad():
        module.load_state_dict({n: v / 2 for n, v in module.state_dict().items()})
        loop.module.load_state_dict({n: v / 2 for n, v in loop.module.state_dict().items()})
    compared(engine, loop)
    with torch.no_grad():
        module.weight.data = module.weight.data.clone() + 1
        loop.module.weight += 1
        module.bias = nn.Parameter(module.bias.detach() + 1)
        loop.module.bias += 1
    compared(engine, loop)
    torch.testing.assert_close(module.weight, loop.module.weight)
    module.double()
    with pytest.raises(InvalidInput, match=r"got torch.float64 \[3, 4\], expected torch.float32 \[3, 4\] as before"):
        engine.train_step(batch(), 0.1)


def test_parts_that_are_replaced_are_followed() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3))
    engine = engine_of(module)
    engine.train_step(batch(), 0.1)
    module[1] = nn.Linear(4, 3)
    loop = TorchLoop(copy.deepcopy(module), cross_entropy, "sgd")
    compared(engine, loop)
    torch.testing.assert_close(module[1].weight, loop.module[1].weight)
    module[1] = nn.Identity()
    with pytest.raises(InvalidInput, match=r"got none with the tensors \['1.weight', '1.bias'\]"):
        engine.train_step(batch(), 0.1)


def test_parameters_that_are_not_contiguous() -> None:
    module = nn.Linear(4, 3)
    module.weight = nn.Parameter(torch.randn(4, 3).t())
    loop = TorchLoop(copy.deepcopy(module), cross_entropy, "sgd")
    compared(engine_of(module), loop)
    torch.testing.assert_close(module.weight, loop.module.weight)
    assert not module.weight.is_contiguous()


# ---- randomness
def _dropping(seed: Callable[[], None]) -> list[float]:
    torch.manual_seed(7)
    module = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 3))
    values = batch()
    seed()
    engine = engine_of(module)
    state = torch.get_rng_state()
    losses = [float(engine.train_step(values, 0.1).outputs["loss"]) for _ in range(4)]
    assert torch.equal(torch.get_rng_state(), state)
    return losses


def test_dropout_follows_torch_s_generator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_core, "is_seeded", lambda: False)  # whatever other tests of this process have set
    once = _dropping(lambda: None)
    assert once == _dropping(lambda: None)
    assert once != _dropping(lambda: torch.manual_seed(8))
    assert len(set(once)) == 4


def test_dropout_follows_set_seed() -> None:
    try:
        once = _dropping(lambda: backpass.set_seed(1))
        assert once == _dropping(lambda: backpass.set_seed(1))
        assert once != _dropping(lambda: backpass.set_seed(2))
    finally:
        backpass.set_seed(20240229)


# ---- fetches
def test_fetches() -> None:
    engine = engine_of(nn.Linear(4, 3), accumulation_steps=2)
    values = batch()
    assert list(engine.train_step(values, 0.1, ["out"]).outputs) == ["out"]
    assert engine.train_step(values, 0.1, ["loss"]).updated
    assert list(engine.train_step(values, 0.1, ["out", "loss"]).outputs) == ["out", "loss"]
    assert (engine.steps, engine.updates) == (3, 1)
    assert list(engine.eval_step({"x": values["x"]}, ["out"])) == ["out"]
    with pytest.raises(InvalidInput, match="fetches: got 'no'"):
        engine.train_step(values, 0.1, ["no"])
    with pytest.raises(InvalidInput, match=r"'label'.*got none"):
        engine.eval_step({"x": values["x"]})
