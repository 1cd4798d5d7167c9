"""PTable: rows of text, printed in columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class Row:
    """One line, and perhaps a table that explains it."""

    def __init__(self, columns: Sequence[Any]) -> None:
        self.columns = [str(column) for column in columns]
        self.annotation: PTable | None = None

    def append_annotation_table(self, ptable: PTable) -> None:
        """Shows ``ptable`` below this row, its columns under those of the table around it."""
        self.annotation = ptable


class PTable:
    """Rows of equally many columns; with ``sortable``, in the order of their first one."""

    def __init__(self, sortable: bool = False) -> None:
        self._rows: list[Row] = []
        self._sortable = sortable

    def add_row(self, columns: Sequence[Any]) -> Row:
        if self._rows and len(columns) != len(self._rows[0].columns):
            raise AssertionError(f"columns: got {len(columns)}, expected {len(self._rows[0].columns)}, as before")
        self._rows.append(Row(columns))
        return self._rows[-1]

    def get_string(self, first_column_width: int | None = None, second_column_width: int | None = None) -> str:
        """The table as text. Widths are least ones: of the first column, and of the third, where features tell what
        they do."""
        if not self._rows:
            return ""
        widths = [max(map(len, column)) for column in zip(*(row.columns for row in self._rows), strict=True)]
        for place, least in ((0, first_column_width), (2, second_column_width)):
            if least and place < len(widths):
                widths[place] = max(widths[place], least)
        rows = sorted(self._rows, key=lambda row: row.columns[0]) if self._sortable else self._rows
        return "".join(_lines(row, widths) for row in rows)


def _lines(row: Row, widths: list[int]) -> str:
    own = "".join(text.ljust(width + 2) for text, width in zip(row.columns, widths, strict=True)) + "\n"
    if row.annotation is None:
        return own
    return own + row.annotation.get_string(widths[0], widths[2] if len(widths) > 2 else None)
