"""The rows of a page as cells with the columns that they fill.

pypdf lays a page out in characters, so that what stands apart on paper stands at least two blanks apart here.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from .limits import MAX_ROW_CHARS, MAX_ROWS, MAX_TEXT_CHARS

_CELL: Final = re.compile(r"\S+(?: \S+)*")


@dataclass(frozen=True, slots=True)
class Cell:
    """A run of text without wide gaps, filling the columns `[start, end)`."""

    text: str
    start: int
    end: int

    def gap_to(self, other: "Cell") -> int:
        """How many columns lie between the two; 0 where they overlap."""
        return max(0, other.start - self.end, self.start - other.end)


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a page, never blank; `after_gap` where a blank one or a new page comes before it."""

    index: int
    text: str
    cells: tuple[Cell, ...]
    after_gap: bool

    def nearest(self, cell: Cell, *, within: int) -> Cell | None:
        """The cell that stands under (or over) another one, at most `within` columns aside."""
        best = min(self.cells, key=lambda own: (own.gap_to(cell), abs(own.start - cell.start)), default=None)
        return best if best is not None and best.gap_to(cell) <= within else None


def rows_of(pages: Iterable[str]) -> list[Row]:
    """The rows of all pages, top to bottom, without blank ones and without what is past the limits."""
    rows: list[Row] = []
    budget = MAX_TEXT_CHARS
    for page in pages:
        after_gap = True
        for line in page.splitlines():
            text = "".join(
                letter if letter.isprintable() else " " for letter in line[:MAX_ROW_CHARS]
            ).rstrip()
            if not text:
                after_gap = True
                continue
            cells = tuple(Cell(match.group(), match.start(), match.end()) for match in _CELL.finditer(text))
            budget -= sum(len(cell.text) for cell in cells)
            if len(rows) == MAX_ROWS or budget < 0:
                return rows
            rows.append(Row(index=len(rows), text=text, cells=cells, after_gap=after_gap))
            after_gap = False
    return rows
