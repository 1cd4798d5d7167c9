"""Reports as notebooks show them."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence


class Report(str):
    """A text of several lines, which Python and notebooks show as it is."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return text(self)


def text(content: str) -> str:
    """Lines as they are, in columns."""
    return f'<pre style="line-height: 1.25">{html.escape(content)}</pre>'


def table(header: Sequence[str], rows: Iterable[Sequence[object]], below: str = "") -> str:
    """A table, numbers to the right, and a line below it."""
    head = "".join(f"<th>{html.escape(name)}</th>" for name in header)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    end = f"<p>{html.escape(below)}</p>" if below else ""
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{end}"


def _cell(value: object) -> str:
    side = "right" if isinstance(value, int | float) else "left"
    shown = f"{value:,.1f}" if isinstance(value, float) else str(value)
    return f'<td style="text-align: {side}">{html.escape(shown)}</td>'
