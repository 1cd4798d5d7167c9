"""Batches with padding and ignored labels, drawn by a few numbers that say how much of each there is."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from padded_models import Family
from zoo import WORDS

IGNORED = -100
Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Batch:
    """`tokens` and `labels`: the shares that count. `empty`: the first sequence has no token at all. `anywhere`: labels
    stand at padded places, too. `scattered`: padding stands between tokens. `form`: of the attention mask."""

    rows: int
    length: int
    tokens: float
    labels: float
    empty: bool = False
    anywhere: bool = False
    scattered: bool = False
    form: str = "long"


CORNERS = [
    Batch(4, 20, 0.6, 0.15),
    Batch(4, 20, 1.0, 1.0),
    Batch(4, 20, 0.05, 1.0),
    Batch(3, 17, 0.5, 0.0),
    Batch(3, 17, 1.0, 0.3),
    Batch(5, 13, 0.6, 0.4, empty=True),
    Batch(5, 13, 0.4, 0.3, empty=True, anywhere=True),
    Batch(2, 24, 0.3, 0.5, anywhere=True),
    Batch(3, 20, 0.7, 1.0, scattered=True),
    Batch(3, 20, 0.0, 0.5, anywhere=True),
]
ALONE = [Batch(1, 16, 0.5, 0.5), Batch(1, 16, 0.05, 1.0), Batch(1, 16, 1.0, 0.1), Batch(1, 9, 0.6, 0.0)]


def lengths(batch: Batch) -> torch.Tensor:
    """Another for each sequence, `tokens` of all places together as nearly as that goes."""
    share = torch.rand(batch.rows) * 2 * min(batch.tokens, 1 - batch.tokens)
    share = share - share.mean() + batch.tokens
    found = (share * batch.length).round().long().clamp(1 if batch.tokens else 0, batch.length)
    if batch.empty:
        found[0] = 0
    return found


def valid_places(batch: Batch, left: bool) -> torch.Tensor:
    """bool [rows, length]: where tokens are."""
    counts = lengths(batch)[:, None]
    if batch.scattered:
        return torch.rand(batch.rows, batch.length).argsort(1).argsort(1) < counts
    places = torch.arange(batch.length)[None]
    return places >= batch.length - counts if left else places < counts


def draw_labels(batch: Batch, valid: torch.Tensor, classes: int) -> torch.Tensor:
    labels = torch.randint(0, classes, valid.shape)
    chosen = torch.rand(valid.shape) < batch.labels
    return labels.where(chosen if batch.anywhere else chosen & valid, torch.tensor(IGNORED))


def in_form(valid: torch.Tensor, form: str, causal: bool) -> torch.Tensor:
    """The attention mask of [rows, length] places in one of the ways that models take it."""
    if not form.endswith("4d"):
        return valid.to({"long": torch.long, "bool": torch.bool, "float": torch.float32}[form])
    seen = valid[:, None, None, :]
    if causal or form.startswith("square"):
        length = valid.size(1)
        every = torch.ones(length, length, dtype=torch.bool)
        seen = seen & (every.tril() if causal else every)
    return seen if "bool" in form else added(seen, form)


def added(seen: torch.Tensor, form: str) -> torch.Tensor:
    """What is added to the scores: 0 where a key is seen."""
    hidden = float("-inf") if form.startswith("infinite") else torch.finfo(torch.float32).min
    return torch.zeros(seen.shape).masked_fill(~seen, hidden)


def draw(family: Family, batch: Batch, seed: int) -> Tensors:
    """What the model of a family is called with."""
    torch.manual_seed(seed)
    return {"image": _images, "tags": _tags, "translate": _translation}.get(family.task, _text)(family.task, batch)


def _words(valid: torch.Tensor) -> torch.Tensor:
    return torch.randint(3, WORDS, valid.shape) * valid


def _text(task: str, batch: Batch) -> Tensors:
    valid = valid_places(batch, left=task == "causal_left")
    causal = task.startswith("causal")
    given = {"input_ids": _words(valid), "attention_mask": in_form(valid, batch.form, causal)}
    if task == "causal_left":
        given["position_ids"] = (valid.long().cumsum(1) - 1).clamp(0)
    labels = torch.randint(0, 2, (batch.rows,)) if task == "classify" else draw_labels(batch, valid, WORDS)
    return {**given, "labels": labels}


def _tags(_: str, batch: Batch) -> Tensors:
    """Torch's `src_key_padding_mask` is true where nothing is."""
    valid = valid_places(batch, left=False)
    mask = ~valid if batch.form == "long" else added(valid, batch.form)
    return {"input_ids": _words(valid), "attention_mask": mask, "labels": draw_labels(batch, valid, 7)}


def _translation(_: str, batch: Batch) -> Tensors:
    source = valid_places(batch, left=False)
    target = Batch(batch.rows, max(2, batch.length - 5), batch.tokens, batch.labels, False, batch.anywhere)
    valid = valid_places(target, left=False)
    return {
        "input_ids": _words(source),
        "attention_mask": in_form(source, batch.form, False),
        "decoder_attention_mask": valid.long(),
        "labels": draw_labels(target, valid, WORDS),
    }


def _images(_: str, batch: Batch) -> Tensors:
    return {"pixel_values": torch.randn(batch.rows, 3, 16, 16), "labels": torch.randint(0, 3, (batch.rows,))}
