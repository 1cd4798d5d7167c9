"""What an Engine says of itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from backpass.trainer.settings import Settings
    from backpass.trainer.source import Capture


def explanation(
    settings: Settings,
    source: str,
    captures: Sequence[Capture],
    plan: Any,
    reports: Sequence[Sequence[Any]],
) -> str:
    """Lines: the model, what the settings mean, the programs, the plan of a step."""
    lines = [source, *_meanings(settings)]
    lines += ["", f"programs: {len(captures)}" + ("" if captures else ", the first step makes one")]
    lines += [f"  {_kind(c)} -> {', '.join(c.outputs)}: {'; '.join(c.about)}" for c in captures]
    for found in reports[-1:]:  # of the latest training program
        lines += _rewritten(found)
    if plan is not None:
        size, least = plan.peak_bytes / 2**20, plan.lower_bound_bytes / 2**20
        lines.append(f"a step: {plan.steps} nodes, at its peak {size:.3f} MiB beside weights, {least:.3f} at least")
    return "\n".join(lines)


def _rewritten(reports: Sequence[Any]) -> list[str]:
    """Passes and how often they did something, then how weights are updated."""
    counts = Counter(report.pass_name for report in reports if report.pass_name != _STEP)
    lines = [f"rewritten: {', '.join(f'{name} {count}' for name, count in counts.items()) or 'nothing'}"]
    return lines + [f"{r.what}: {r.why}" for r in reports if r.pass_name == _STEP]


_STEP = "train_step"


def _kind(capture: Capture) -> str:
    return "train" if capture.training else "eval"


_MIXED = "bfloat16 for matrix products, convolutions and attention; float32 for weights, their updates and the loss"
_SCALED = "gradients are of the loss times it, and divided by it; an update that is not finite is left out"


def _meanings(settings: Settings) -> list[str]:
    lines = [f"optimizer: {settings.algorithm}, {_fields(settings.defaults)}"]
    n = settings.accumulation_steps
    if n > 1:
        lines.append(
            f"accumulation: one update per {n} steps, by the mean of their gradients, which are added up as they arise"
        )
    if settings.clips_gradients:
        lines.append("clipping: by the norm of all gradients together, after accumulation; g * max_norm / norm")
    if settings.mixed_precision:
        lines.append(f"mixed precision: {_MIXED}")
    if settings.scales_loss:
        lines.append(f"loss scale: {_SCALED}")
    if settings.frozen:
        lines.append(f"frozen: {', '.join(settings.frozen)}")
    return lines


def _fields(fields: Any) -> str:
    return ", ".join(f"{name} {value}" for name, value in fields.items()) or "default settings"
