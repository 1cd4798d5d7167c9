"""What no judge of op_rows/ can judge is counted, and may only become less: judges.py, unjudged.toml."""

from __future__ import annotations

from collections import Counter
from typing import Any

import gradient_check
import judges
import op_case
from gradient_exceptions import NOT_JUDGED
from test_gradients import EVERYDAY_CASES, ROWS, further_floats, judged_in
from test_ops import DRAWN


def is_ours(s: Any) -> bool:
    """An operator of the engine's own that torch judges: who knows ONNX alone is not asked about it."""
    return s.item.row.domain == "backpass" and not gradient_check.torch_unable(s)


class Census:
    """Asks every judge about every case it would be shown on an everyday run, whichever tests are run now."""

    def __init__(self) -> None:
        self.counts: judges.Counts = Counter()
        self.rows: dict[tuple[str, str], list[str]] = {}
        for row in op_case.all_rows():
            self._note("the oracle", DRAWN if row.oracle == "random" else "", row, len(row.cases))
            listed = len(further_floats(row)) if row.label in NOT_JUDGED else 0
            self._note("differences", "listed in gradient_exceptions.py", row, listed)
        for row in ROWS:
            for s in gradient_check.chosen(row, judged_in(row), EVERYDAY_CASES):
                self._note("torch", gradient_check.torch_unable(s), row)
                if not is_ours(s):
                    self._note("onnx's checker", gradient_check.checker_unable(s), row)
            for s in gradient_check.chosen(row, "float32", EVERYDAY_CASES // 2):
                if not is_ours(s):
                    self._note("onnxruntime", gradient_check.onnxruntime_unable(s), row)

    def _note(self, judge: str, reason: str, row: op_case.Row, cases: int = 1) -> None:
        if not reason or not cases:
            return
        self.counts[judge, reason] += cases
        labels = self.rows.setdefault((judge, reason), [])
        if row.label not in labels:
            labels.append(row.label)


def test_no_more_cases_go_unjudged() -> None:
    census = Census()
    problems = judges.differences(census.counts, judges.recorded(), census.rows)
    assert not problems, "\n".join(problems)


def test_the_count_may_only_fall() -> None:
    key, other = ("torch", "no elements"), ("onnxruntime", "no kernel")
    allowed = Counter({key: 3})
    assert not judges.differences(Counter({key: 3}), allowed, {})
    (risen,) = judges.differences(Counter({key: 4}), allowed, {key: ["Relu", "Sum"]})
    assert risen == (
        "torch passes over 4 cases (no elements), at most 3 are allowed; let it judge the new one, among: Relu, Sum"
    )
    (fallen,) = judges.differences(Counter({key: 2}), allowed, {})
    assert fallen == "torch passes over only 2 cases (no elements): lower the 3 in unjudged.toml"
    (new,) = judges.differences(Counter({key: 3, other: 1}), allowed, {other: ["Swish"]})
    assert new.startswith("onnxruntime passes over 1 cases (no kernel), at most 0")


def test_workers_hand_over_what_they_passed_over(monkeypatch: Any) -> None:
    monkeypatch.setattr(judges, "passed_over", Counter())
    assert judges.pass_over("torch", "no elements") == ""
    judges.pass_over("torch", "no elements")
    sent = judges.to_wire(judges.passed_over)
    both = judges.from_wire(sent) + judges.from_wire([["torch", "no elements", 1], ["onnxruntime", "no kernel", 2]])
    assert judges.summary(both) == ["not judged by onnxruntime: 2 no kernel", "not judged by torch: 3 no elements"]
