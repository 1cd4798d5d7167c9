"""examples/getting_started: text as numbers, both trainings, the picture of their courses."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")
SAMPLE = Path(__file__).parents[2] / "examples" / "getting_started"
ARTICLES = [f"Word{n}\n\n   The quick ({n}) fox's word; it jumps over {{dog {n % 7}}}." for n in range(2000)]


@pytest.fixture
def text(tmp_path: Path) -> Path:
    (tmp_path / "text").write_text("\n\n".join(ARTICLES))
    return tmp_path / "text"


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(SAMPLE))


def run(script: str, folder: Path, *arguments: str) -> str:
    common = (f"--text={folder / 'text'}", f"--folder={folder}", "--threads=1", "--evaluate-batches=2")
    command = [sys.executable, SAMPLE / script, *common, *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_words_are_told_apart() -> None:
    from corpus import tokenize

    said = "It's (see {C++}) the x86-64, 3.5 times \u201cfaster\u201d -- isn't it?\n"
    assert tokenize(said) == ["it", "'s", "(", "see", "c", ")", "the", "x86-64", ",", "3.5", "times", "faster", "isn",
                              "'t", "it", "?"]  # fmt: skip


def test_vocabulary_holds_the_most_frequent(text: Path) -> None:
    from corpus import load

    known = load(10, text).vocabulary
    assert len(known) == 10
    assert known.words[:2] == ["<unk>", "<eos>"]
    assert {"the", "quick", "fox"} < set(load(40, text).vocabulary.words)
    assert known.numbers(["<eos>", "never seen"]) == [1, 0]


def test_articles_are_held_out(text: Path) -> None:
    from corpus import load

    found = load(10_000, text)
    words = [found.vocabulary.words[n] for n in found.valid.tolist()]
    assert [w for w in words if w.startswith("word") and w != "word"] == [f"word{n}" for n in range(0, 2000, 20)]
    assert words.count("<eos>") == 2 * 100
    assert len(found.train) == 19 * len(found.valid)


def test_batches_cover_the_text_in_columns() -> None:
    import torch
    from corpus import batches, batchify

    columns = batchify(torch.arange(83), 4)
    assert columns.shape == (20, 4)
    assert columns[:, 1].tolist() == list(range(20, 40))
    pieces = list(batches(columns, 6))
    assert [tokens[0, 0].item() for tokens, _ in pieces] == [0, 6, 12]
    for tokens, targets in pieces:
        assert tokens.shape == (6, 4)
        assert (targets.view(6, 4) == tokens + 1).all()


def test_model_sees_no_later_word() -> None:
    import torch

    from model import TransformerModel

    torch.manual_seed(0)
    model = TransformerModel(50, dropout=0.2).eval()
    tokens = torch.randint(0, 50, (9, 3))
    changed = tokens.clone()
    changed[6:] = 0
    with torch.no_grad():
        first, second, shorter = model(tokens), model(changed), model(tokens[:4])
    assert first.shape == (9, 3, 50)
    torch.testing.assert_close(first[:6], second[:6])
    torch.testing.assert_close(first[:4], shorter)
    assert {name for name, _ in model.named_buffers()} == {"pos_encoder.pe"}


def test_too_short_a_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text").write_text(ARTICLES[0])
    command = [sys.executable, SAMPLE / "train.py", f"--text={tmp_path / 'text'}"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 1
    assert "text is too short: a batch takes 20 columns of 35 words and one" in done.stderr


@pytest.mark.slow  # the loop and the text are those of compare.py, which a test below runs every day
def test_torch_learns(text: Path) -> None:
    said = run("train.py", text.parent, "--steps=24", "--vocabulary=60", "--lr=1", "--evaluate-every=12")
    assert re.search(r"text: [\d,]+ words to train with", said)
    record = json.loads((text.parent / "torch.json").read_text())
    assert len(record["losses"]) == len(record["seconds"]) == 24
    assert [step for step, _, _ in record["valid"]] == [12, 24]
    assert np.mean(record["losses"][-4:]) < 0.7 * record["losses"][0]


def test_picture_has_both_courses_twice() -> None:
    from compare import Record, figure, perplexity

    course = Record([3.0, 2.0, 1.0], [0.5, 0.6, 0.8], [(2, 0.6, 2.5), (3, 0.8, 1.5)])
    np.testing.assert_allclose(perplexity(course), np.exp([3, 2.5, 2]))
    assert course.step_time() == pytest.approx(0.15)
    by_step, by_second = figure({"torch": course, "ORTTrainer": course}, "title").axes
    assert [line.get_xdata().tolist() for line in by_step.lines[:2]] == [[1, 2, 3], [2, 3]]
    assert [list(line.get_xdata()) for line in by_second.lines[:2]] == [[0.5, 0.6, 0.8], [0.6, 0.8]]
    np.testing.assert_allclose(by_second.lines[1].get_ydata(), np.exp([2.5, 1.5]))
    assert len(by_step.lines) == len(by_second.lines) == 4


def test_both_compute_the_same_losses_without_dropout(text: Path) -> None:
    said = run("compare.py", text.parent, "--steps=6", "--vocabulary=60", "--dropout=0", "--evaluate-every=3")
    ours, torchs = (json.loads((text.parent / f"{n}.json").read_text()) for n in ("ORTTrainer", "torch"))
    np.testing.assert_allclose(ours["losses"], torchs["losses"], rtol=1e-4)
    np.testing.assert_allclose(np.array(ours["valid"])[:, 2], np.array(torchs["valid"])[:, 2], rtol=1e-4)
    assert "largest difference between losses of the same step" in said
    assert (text.parent / "perplexity.png").read_bytes().startswith(b"\x89PNG")


def test_no_more_is_read_of_libraries_than_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import corpus

    parsed = []
    monkeypatch.setattr(corpus, "FOLDOC", Path("nowhere"))
    monkeypatch.setattr(corpus, "_documented", lambda path: parsed.append(path) or ["ten words " * 5])
    found = corpus.load(10, folder=tmp_path, words=95)
    assert len(parsed) == 10
    assert len(found.train) + len(found.valid) > 95
