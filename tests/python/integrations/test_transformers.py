"""backpass.integrations.transformers.Trainer beside transformers' own: same losses, same files, same habits."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from backpass.integrations.transformers import Trainer
from backpass.optim import FusedAdam
from backpass.ortmodule import FallbackPolicy, ORTModule, RuntimeOptions
from conftest import bert, classified, continued, gpt2

STRICT = RuntimeOptions(fallback_policy=FallbackPolicy.FALLBACK_DISABLE)
MODELS: dict[str, tuple[Callable[..., Any], Callable[[int], Any]]] = {
    "bert": (bert, classified),
    "gpt2": (gpt2, continued),
}
EVERYDAY: dict[str, dict[str, Any]] = {
    "plain": {},
    "accumulation": {"gradient_accumulation_steps": 3, "num_train_epochs": 1, "max_steps": -1},  # the last one is short
}
MORE: dict[str, dict[str, Any]] = {
    "schedule": {"lr_scheduler_type": "cosine", "warmup_steps": 2, "weight_decay": 0.1, "optim": "adamw_torch"},
    "clipping": {"max_grad_norm": 0.05},
    "no_clipping": {"max_grad_norm": 0.0},
    "checkpointing": {"gradient_checkpointing": True},
    "smoothing": {"label_smoothing_factor": 0.1},
    "sgd": {"optim": "sgd", "learning_rate": 0.5},
}


def trained(kind: type[Any], model: Any, arguments: Any, data: Callable[[int], Any], **more: Any) -> Any:
    options = {"runtime_options": STRICT} if kind is Trainer else {}
    trainer = kind(model=model, args=arguments, train_dataset=data(14), eval_dataset=data(6), **options, **more)
    trainer.train()
    return trainer


def column(trainer: Any, name: str) -> list[float]:
    return [float(row[name]) for row in trainer.state.log_history if name in row]


def assert_alike(ours: Any, theirs: Any, rtol: float = 2e-5) -> None:
    assert len(column(theirs, "loss")) >= 3
    for name in ("loss", "grad_norm", "learning_rate", "eval_loss"):
        np.testing.assert_allclose(column(ours, name), column(theirs, name), rtol=rtol, err_msg=name)
    for (name, a), (_, b) in zip(ours.model.named_parameters(), theirs.model.named_parameters(), strict=True):
        # where a gradient is next to nothing, Adam divides noise by noise
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3, msg=name)


def compare(model: str, settings: dict[str, Any], arguments: Callable[..., Any], **more: Any) -> tuple[Any, Any]:
    make, data = MODELS[model]
    ours = trained(Trainer, make(), arguments("ours", **settings), data, **more)
    theirs = trained(transformers.Trainer, make(), arguments("theirs", **settings), data, **more)
    assert_alike(ours, theirs)
    return ours, theirs


@pytest.mark.parametrize("settings", EVERYDAY)
@pytest.mark.parametrize("model", MODELS)
def test_losses_are_those_of_transformers(model: str, settings: str, arguments: Callable[..., Any]) -> None:
    compare(model, {**EVERYDAY[settings], "eval_strategy": "steps", "eval_steps": 2}, arguments)


@pytest.mark.slow
@pytest.mark.parametrize("settings", MORE)
@pytest.mark.parametrize("model", MODELS)
def test_losses_are_those_of_transformers_whatever_the_arguments(
    model: str, settings: str, arguments: Callable[..., Any]
) -> None:
    compare(model, {**MORE[settings], "eval_strategy": "epoch"}, arguments)


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
def test_mixed_precision(model: str, arguments: Callable[..., Any]) -> None:
    make, data = MODELS[model]
    ours, theirs = (
        trained(kind, make(), arguments(kind.__module__, bf16=True), data) for kind in (Trainer, transformers.Trainer)
    )
    exact = trained(transformers.Trainer, make(), arguments("exact"), data)
    gap = np.abs(np.array(column(theirs, "loss")) - column(exact, "loss")).max()
    assert 0 < gap < 0.02  # what 8 bits of mantissa do
    np.testing.assert_allclose(column(ours, "loss"), column(exact, "loss"), atol=4 * gap)
    assert all(p.dtype == torch.float32 for p in ours.model.parameters())
    assert "forward" not in vars(ours.model)  # mixed precision applies to what the trainer calls


# ---- the model is the user's
class Noted(transformers.TrainerCallback):
    def __init__(self) -> None:
        self.seen: set[int] = set()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.seen.add(id(kwargs["model"]))


def test_the_model_stays_what_it_was(arguments: Callable[..., Any], caplog: pytest.LogCaptureFixture) -> None:
    model, noted = gpt2(), Noted()
    before = set(vars(model))
    trainer = Trainer(model=model, args=arguments("a"), train_dataset=continued(8), callbacks=[noted])
    assert trainer.explain() == "nothing has run yet: train, evaluate or predict first"
    with caplog.at_level(logging.INFO, "backpass"):
        trainer.train()
    assert "every operator runs in the engine" in trainer.explain()
    assert trainer.explain() in caplog.text
    assert trainer.model is model
    assert noted.seen == {id(model)}
    assert set(vars(model)) == before
    assert isinstance(trainer.model_wrapped, ORTModule)
    assert trainer.accelerator.unwrap_model(trainer.model) is model
    words = trainer.model.generate(torch.tensor([[5, 6, 7]]), max_new_tokens=3, do_sample=False)
    assert words.shape[1] > 3


def test_predictions_with_labels_and_without(arguments: Callable[..., Any]) -> None:
    def accuracy(found: Any) -> dict[str, float]:
        return {"accuracy": float((found.predictions.argmax(-1) == found.label_ids).mean())}

    ours, theirs = compare("bert", {}, arguments, compute_metrics=accuracy)
    a, b = (trainer.predict(classified(5)) for trainer in (ours, theirs))
    np.testing.assert_allclose(a.predictions, b.predictions, rtol=1e-3, atol=1e-4)
    assert a.metrics["test_accuracy"] == b.metrics["test_accuracy"]
    assert a.metrics["test_loss"] == pytest.approx(b.metrics["test_loss"], rel=1e-4)
    bare = [{k: v for k, v in row.items() if k != "labels"} for row in classified(5)]
    np.testing.assert_allclose(ours.predict(bare).predictions, a.predictions, rtol=1e-5, atol=1e-6)
    assert "inference: input_ids[2, 8], attention_mask[2, 8]\n" in ours.explain()


def test_a_loss_of_ones_own(arguments: Callable[..., Any]) -> None:
    def loss(outputs: Any, labels: torch.Tensor, num_items_in_batch: torch.Tensor | None = None) -> torch.Tensor:
        return torch.nn.functional.multi_margin_loss(outputs.logits, labels, reduction="sum") / num_items_in_batch

    compare("bert", {"gradient_accumulation_steps": 2, "max_steps": 3}, arguments, compute_loss_func=loss)


def test_evaluating_before_training_and_training_twice(arguments: Callable[..., Any]) -> None:
    results = []
    for kind in (Trainer, transformers.Trainer):
        trainer = kind(model=bert(), args=arguments(kind.__module__), train_dataset=classified(8))
        before = trainer.evaluate(classified(4))["eval_loss"]
        trainer.train()
        trainer.train()
        results.append([before, trainer.evaluate(classified(4))["eval_loss"], *column(trainer, "loss")])
    np.testing.assert_allclose(*results, rtol=2e-5)


@pytest.mark.slow
def test_texts_of_different_lengths(arguments: Callable[..., Any]) -> None:
    def cut(rows: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
        longest = max(int(row["attention_mask"].sum()) for row in rows)
        return {name: torch.stack([row[name][:longest] for row in rows]) for name in rows[0]}

    ours, _ = compare("gpt2", {"max_steps": 12}, arguments, data_collator=cut)
    assert len(ours._accelerated._manager.variants) <= 4


@pytest.mark.slow
def test_models_that_are_made_for_each_training(arguments: Callable[..., Any]) -> None:
    results = []
    for kind in (Trainer, transformers.Trainer):
        trainer = kind(model_init=lambda trial: bert(), args=arguments(kind.__module__), train_dataset=classified(8))
        losses = []
        for _ in range(2):
            trainer.train()
            losses.append(column(trainer, "loss"))
        assert losses[0] == losses[1]
        results.append(losses[0])
    np.testing.assert_allclose(*results, rtol=2e-5)


# ---- files
def files(folder: Path) -> set[str]:
    return {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()}


def test_checkpoint_and_resume(arguments: Callable[..., Any], tmp_path: Path) -> None:
    """With dropout, so that random numbers have to go on, too."""
    settings = {"max_steps": 6, "save_strategy": "steps", "save_steps": 3, "gradient_accumulation_steps": 2}
    straight = trained(Trainer, bert(0.1), arguments("ours", **settings), classified)
    resumed = Trainer(model=bert(0.1), args=arguments("again", **settings), train_dataset=classified(14))
    with torch.no_grad():
        for weight in resumed.model.parameters():
            weight.zero_()
    resumed.train(resume_from_checkpoint=str(tmp_path / "ours" / "checkpoint-3"))
    assert column(resumed, "loss") == column(straight, "loss")
    wanted = straight.model.state_dict()
    assert all(torch.equal(value, wanted[name]) for name, value in resumed.model.state_dict().items())


def test_files_are_those_of_transformers(arguments: Callable[..., Any], tmp_path: Path) -> None:
    settings = {"max_steps": 4, "save_strategy": "steps", "save_steps": 2}
    ours, theirs = compare("gpt2", settings, arguments)
    assert len(ours._accelerated._manager.variants) == 1  # saving changes nothing that was captured
    for trainer, name in ((ours, "a"), (theirs, "b")):
        trainer.save_model(str(tmp_path / name))
    for a, b in (("ours", "theirs"), ("a", "b")):
        assert files(tmp_path / a) == files(tmp_path / b)
    kind = transformers.GPT2LMHeadModel
    for place in (tmp_path / "a", tmp_path / "ours" / "checkpoint-4"):
        loaded, info = kind.from_pretrained(place, output_loading_info=True)
        assert not info["missing_keys"]
        assert not info["unexpected_keys"]
        saved = ours.model.state_dict()
        assert all(torch.equal(value, saved[name]) for name, value in loaded.state_dict().items())
    going_on = transformers.Trainer(model=gpt2(), args=arguments("on", **settings), train_dataset=continued(14))
    going_on.train(resume_from_checkpoint=str(tmp_path / "ours" / "checkpoint-2"))
    np.testing.assert_allclose(column(going_on, "loss"), column(theirs, "loss"), rtol=2e-5)


@pytest.mark.slow
def test_the_best_model_is_loaded_at_the_end(arguments: Callable[..., Any]) -> None:
    settings = {
        "max_steps": 6, "save_strategy": "steps", "save_steps": 2, "eval_strategy": "steps", "eval_steps": 2,
        "load_best_model_at_end": True, "metric_for_best_model": "eval_loss",
    }  # fmt: skip
    ours, theirs = compare("bert", settings, arguments)
    assert Path(ours.state.best_model_checkpoint).name == Path(theirs.state.best_model_checkpoint).name
    best = min(column(ours, "eval_loss"))
    assert ours.evaluate()["eval_loss"] == pytest.approx(best, rel=1e-6)


# ---- what it offers beside, and what it refuses
def test_the_fused_optimizer_is_asked_for_by_an_argument(arguments: Callable[..., Any], tmp_path: Path) -> None:
    make, data = MODELS["bert"]
    settings = {"weight_decay": 0.1, "adam_beta1": 0.8, "adam_epsilon": 1e-6, "save_strategy": "steps", "save_steps": 2}
    ours = trained(Trainer, make(), arguments("ours", optim_args="fused=backpass", **settings), data)
    theirs = trained(transformers.Trainer, make(), arguments("theirs", **settings), data)
    assert isinstance(ours.optimizer.optimizer, FusedAdam)
    assert_alike(ours, theirs, rtol=2e-4)  # another Adam rounds otherwise, and divides by what may be next to nothing
    resumed = Trainer(model=make(), args=ours.args, train_dataset=data(14))
    resumed.train(resume_from_checkpoint=str(tmp_path / "ours" / "checkpoint-2"))
    assert column(resumed, "loss") == column(ours, "loss")
    with pytest.raises(ValueError, match="got optim='sgd', expected 'adamw_torch'"):
        trained(Trainer, make(), arguments("x", optim="sgd", optim_args="fused=backpass"), data)


def test_what_cannot_be_done_is_said_at_once(arguments: Callable[..., Any]) -> None:
    with pytest.raises(ValueError, match="got an ORTModule, expected the model inside it"):
        Trainer(model=ORTModule(bert()), args=arguments("a"))
    compiled = arguments("a")
    compiled.torch_compile = True
    with pytest.raises(ValueError, match="got torch_compile=True"):
        Trainer(model=bert(), args=compiled)


@pytest.mark.slow
def test_two_processes(tmp_path: Path) -> None:
    records = []
    for kind in ("ours", "plain"):
        folder = tmp_path / kind
        folder.mkdir()
        script = Path(__file__).parent / "distributed_trainer.py"
        launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        environment["PYTHONPATH"] = os.pathsep.join([str(script.parents[1]), os.environ.get("PYTHONPATH", "")])
        done = subprocess.run(
            [*launch, script, folder, kind], capture_output=True, text=True, env=environment, timeout=300
        )
        assert done.returncode == 0, done.stdout + done.stderr
        records.append(json.loads((folder / "record.json").read_text()))
    ours, theirs = records
    assert ours["is_one"]
    assert ours["wrapped"] == "DistributedDataParallel"
    np.testing.assert_allclose(ours["losses"], theirs["losses"], rtol=2e-5)
    assert ours["eval"] == pytest.approx(theirs["eval"], rel=2e-5)
