"""Rows that need not be computed: which passes may leave them out, and what is told of the batches they were found in.

A batch is looked at when its step starts (``session.densities()``); what is said here is about what was found then.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from backpass import _core
    from backpass.ortmodule.options import RuntimeOptions

LABELS = "skip_ignored_labels"
PADDING = "skip_padding"
_KINDS = {LABELS: "Label", PADDING: "Embedding"}
_NOUNS = {LABELS: "labels", PADDING: "tokens"}
_NOTHING = {LABELS: "no loss of this module leaves labels out", PADDING: "no padding was recognised in this module"}
_COLUMNS = (
    "STEP",
    "INPUT TYPE",
    "INPUT NAME",
    "PAD IDX",
    "DENSITY",
    "VALID TOKENS",
    "TOTAL TOKENS",
    "VALID TOKENS/BATCH",
)


def disabled_passes(options: RuntimeOptions) -> list[str]:
    """Those that the options switch off."""
    switches = {LABELS: options.enable_label_sparse_optimizer, PADDING: options.enable_embedding_sparse_optimizer}
    return [name for name, on in switches.items() if not on]


def note(options: RuntimeOptions, pass_name: str, session: _core.ModuleSession) -> tuple[bool, str]:
    """Whether a pass was chosen for the latest batch, and why or why not."""
    if not options.enable_compute_optimizer:
        return False, "the compute optimizer is off"
    if pass_name in (*disabled_passes(options), *options.disabled_passes):
        return False, "switched off"
    report = session.densities()
    found = [d for d in report.densities if d.pass_name == pass_name]
    if not found:
        refusals = [r.what for r in session.pass_reports() if r.pass_name == pass_name]
        return False, refusals[0] if refusals else _NOTHING[pass_name]
    return pass_name in report.chosen, f"{_share(_least(found))}; decided for each batch"


def on_and_off(report: _core.DataReport) -> list[str]:
    """A line for each input that says which rows are needed."""
    return [
        f"{_KINDS[d.pass_name]} sparsity-based optimization is {'ON' if d.pass_name in report.chosen else 'OFF'} for "
        f"{d.input} (density {d.share:.1%})"
        for d in report.densities
    ]


def table(step: int, report: _core.DataReport) -> str:
    """What the latest batch is like, under the original's headings."""
    rows = [list(_COLUMNS)]
    for d in report.densities:
        pad = "N/A" if d.ignored is None else str(d.ignored)
        each = str(list(d.per_sequence)) if d.per_sequence else "N/A"
        kind = _KINDS[d.pass_name].upper()
        rows.append([str(step), kind, d.input, pad, f"{d.share:.2%}", str(d.needed), str(d.total), each])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(f"| {' | '.join(c.ljust(w) for c, w in zip(row, widths, strict=True))} |" for row in rows)


def explained(session: _core.ModuleSession) -> list[str]:
    """What was left out because of which density, and what that saves."""
    if not session.densities().densities:
        return []
    report = session.data_report()
    lines = ["decided for each batch by its data, of the latest:"]
    for d in report.densities:
        done = "the others are left out" if d.pass_name in report.chosen else "all are computed"
        lines.append(f"  {_share(d)}, by {d.node}: {done}")
    lines += [f"  {line}" for line in _compared(report.choices)]
    return lines


def _compared(choices: Sequence[_core.ChoiceReport]) -> list[str]:
    whole = next(c for c in choices if not c.passes)
    lines = []
    for choice in choices:
        what = " and ".join(choice.passes) or "all rows"
        text = f"{what}: {choice.runs} batch(es)"
        if choice.operations:
            text += f", {choice.operations / 1e9:.3g} GF and {choice.bytes / 2**20:.3g} MiB a step"
        if choice.passes and choice.operations and whole.operations:
            text += f" instead of {whole.operations / 1e9:.3g} GF and {whole.bytes / 2**20:.3g} MiB"
        lines.append(text)
    return lines


def _least(found: Sequence[_core.RowDensity]) -> _core.RowDensity:
    return min(found, key=lambda d: d.share)


def _share(density: _core.RowDensity) -> str:
    noun = _NOUNS[density.pass_name]
    return f"{noun}: {density.share:.1%} of {density.total} rows are needed (input '{density.input}')"
