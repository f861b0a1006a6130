"""The lines of an invoice among the rows of its pages.

A row is a line when its figures prove it (two of them multiply to a third), or when it stands under a heading such as
`Description  Qty  Price  Amount` and ends in money. The proof needs no heading and no knowledge of the columns' order;
the heading carries rows whose arithmetic is wrong, so that the wrongness can be said.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Final

from .labels import CARRIED_FORWARD, COLUMNS, Column, Sum
from .limits import MAX_FIELD_CHARS, MAX_FIGURES_IN_ROW
from .model import InvoiceLine
from .notation import Notation, Number, plain
from .sums import ROUNDING_SLACK
from .text_rows import Cell, Row
from .text_totals import sum_of_label

# A whole word, so that the pattern below cannot cut long words into units (nor try every way to).
_UNIT: Final = r"(?<!\w)[^\W\d_][\w.²³/]{0,9}(?![\w.²³/])"
_FIGURES_ONLY: Final = re.compile(rf"(?:[\s€$£¥₹%×x()+\-−–]|{_UNIT})*")
_WORD: Final = re.compile(r"[^\W\d_]{2,}")
_SHORT_WORD: Final = re.compile(r"[^\W\d_][^\s\d]{0,11}")
_POSITION: Final = re.compile(r"\d{1,4}[.)]?")
_AROUND_FIGURES: Final = " €$£¥₹(-−–"
_NO_CELL: Final = Cell("", 0, 0)
_CONTINUED_ROWS: Final = 4


@dataclass(frozen=True, slots=True)
class Figure:
    """A number of a row, its cell, and the word that stands behind it (`days`)."""

    number: Number
    cell: Cell
    unit: str | None

    @property
    def value(self) -> Decimal:
        """What it says."""
        return self.number.value


@dataclass(slots=True)
class Table:
    """The lines found, and the rows that they and their headings fill."""

    lines: list[InvoiceLine] = field(default_factory=list)
    rows: set[int] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class _Parts:
    """A row taken apart."""

    position: str | None
    description: str
    figures: tuple[Figure, ...]


def read_table(rows: Sequence[Row], notation: Notation) -> Table:
    """Every line of the document, in order."""
    return _TableReader(notation).read(rows)


class _TableReader:
    def __init__(self, notation: Notation) -> None:
        self._notation = notation
        self._heading: dict[Column, Cell] = {}
        self._table = Table()
        # Rows of words: those that wait for the figures of their line, and those that were put to the last line.
        self._waiting: list[str] = []
        self._continued: list[str] = []

    def read(self, rows: Sequence[Row]) -> Table:
        for row in rows:
            heading = self._heading_of(row)
            if heading:
                self._heading = heading
                self._waiting, self._continued = [], []
                self._table.rows.add(row.index)
            elif CARRIED_FORWARD.match(plain(row.text.strip())):
                self._table.rows.add(row.index)
            else:
                self._read_row(row)
        return self._table

    def _read_row(self, row: Row) -> None:
        parts = self._parts(row)
        role = sum_of_label(row.text)
        if self._heading and not parts.description and parts.figures:
            parts = replace(parts, description=self._words_above())
        line = self._proved(parts) if _WORD.search(parts.description) else None
        if line is not None and (role is None or self._heading):
            self._add(row, line)
        elif not self._heading:
            return
        elif any(figure.number.money for figure in parts.figures):
            if role in (Sum.DISCOUNT, Sum.CHARGE):
                return
            if role is not None:
                self._heading = {}
            elif _WORD.search(parts.description):
                self._add(row, self._by_heading(parts))
        elif parts.description and not (role is not None and row.after_gap):
            self._keep_words(row, parts.description)

    def _add(self, row: Row, line: InvoiceLine) -> None:
        self._table.lines.append(line)
        self._table.rows.add(row.index)
        self._waiting, self._continued = [], []

    def _keep_words(self, row: Row, words: str) -> None:
        """Words without figures say more about the line above, or after a gap begin the one below."""
        self._table.rows.add(row.index)
        if row.after_gap or self._waiting or not self._table.lines or len(self._continued) >= _CONTINUED_ROWS:
            self._waiting = [*([] if row.after_gap else self._waiting), words][-_CONTINUED_ROWS:]
            return
        self._continued.append(words)
        self._describe_last(f"{self._table.lines[-1].description} {words}")

    def _words_above(self) -> str:
        """The description of a row of figures: what waits above it, else the last row given to the line before."""
        if self._waiting or not self._continued:
            return " ".join(self._waiting)[:MAX_FIELD_CHARS]
        words = self._continued.pop()
        self._describe_last(self._table.lines[-1].description.removesuffix(f" {words}"))
        return words

    def _describe_last(self, description: str) -> None:
        update = {"description": description[:MAX_FIELD_CHARS]}
        self._table.lines[-1] = self._table.lines[-1].model_copy(update=update)

    def _heading_of(self, row: Row) -> dict[Column, Cell]:
        """The columns that a row names, empty where it is no heading."""
        if any(number.money for number in self._notation.numbers(row.text)):
            return {}
        columns: dict[Column, Cell] = {}
        for cell in row.cells:
            column = _column_of(cell.text)
            if column is not None:
                columns.setdefault(column, cell) if column is not Column.AMOUNT else columns.update(
                    {column: cell}
                )
        money = columns.keys() & {Column.AMOUNT, Column.PRICE}
        what = columns.keys() & {Column.DESCRIPTION, Column.QUANTITY}
        return columns if money and what else {}

    def _parts(self, row: Row) -> _Parts:
        words: list[str] = []
        figures: list[Figure] = []
        position = None
        for cell in row.cells:
            numbers = self._notation.numbers(cell.text)
            if not words and not figures and position is None and self._is_position(cell):
                position = cell.text.rstrip(".)")
                continue
            start = _figures_start(cell.text, numbers)
            text = cell.text[:start].strip(_AROUND_FIGURES)
            if text:
                if (
                    len(row.cells) > 1
                    and not words
                    and position is None
                    and (match := re.match(r"(\d{1,3})[.)]? (?=[^\W\d_])", text))
                ):
                    position, text = match[1], text[match.end() :]
                if words and figures and figures[-1].unit is None and _SHORT_WORD.fullmatch(text):
                    figures[-1] = replace(figures[-1], unit=text)
                else:
                    words.append(text)
            figures.extend(_figures(cell, [number for number in numbers if number.start >= start]))
        return _Parts(
            position=position, description=" ".join(words)[:MAX_FIELD_CHARS], figures=tuple(figures)
        )

    def _is_position(self, cell: Cell) -> bool:
        """A small whole number in front, unless the heading over it says that it is a quantity."""
        if _POSITION.fullmatch(cell.text) is None:
            return False
        return not self._heading or self._column_over(cell) is not self._heading.get(Column.QUANTITY)

    def _column_over(self, cell: Cell) -> Cell:
        return min(self._heading.values(), key=lambda over: (over.gap_to(cell), abs(over.end - cell.end)))

    def _proved(self, parts: _Parts) -> InvoiceLine | None:
        """The line whose quantity × price is its amount, less a discount in percent where one is stated."""
        if len(parts.figures) > MAX_FIGURES_IN_ROW:
            return None
        plain_figures = [figure for figure in parts.figures if not figure.number.percent]
        percents = [figure.value for figure in parts.figures if figure.number.percent]
        if parts.position and parts.position.isdigit() and Column.POSITION not in self._heading:
            front = Figure(Number(Decimal(parts.position), 0, 0, percent=False, money=False), _NO_CELL, None)
            plain_figures = [front, *plain_figures]
        for net, quantity, price in _triples(plain_figures):
            if not net.number.money and not price.number.money:
                continue
            for discount in (Decimal(0), *percents):
                gross = quantity.value * price.value
                if net.value and abs(gross * (100 - discount) / 100 - net.value) <= ROUNDING_SLACK:
                    taken = (
                        replace(parts, position=None)
                        if parts.position and quantity.cell is _NO_CELL
                        else parts
                    )
                    return self._line(
                        taken, quantity, price, net, allowances=gross - net.value if discount else None
                    )
        return None

    def _by_heading(self, parts: _Parts) -> InvoiceLine:
        """The line as its columns say, whether or not the figures agree."""
        figures = list(parts.figures)
        net = self._under(Column.AMOUNT, figures) or [figure for figure in figures if figure.number.money][-1]
        rest = [figure for figure in figures if figure is not net and not figure.number.percent]
        quantity = self._under(Column.QUANTITY, rest)
        price = self._under(Column.PRICE, [figure for figure in rest if figure is not quantity])
        return self._line(parts, quantity, price, net, allowances=None)

    def _under(self, column: Column, figures: Sequence[Figure]) -> Figure | None:
        """The figure that stands under a column's heading nearer than under any other."""
        heading = self._heading.get(column)
        if heading is None:
            return None
        for figure in figures:
            if self._column_over(figure.cell) is heading:
                return figure
        return None

    def _line(
        self,
        parts: _Parts,
        quantity: Figure | None,
        price: Figure | None,
        net: Figure,
        *,
        allowances: Decimal | None,
    ) -> InvoiceLine:
        used = (quantity, price, net)
        others = [figure for figure in parts.figures if all(figure is not one for one in used)]
        return InvoiceLine(
            id=parts.position,
            description=parts.description,
            quantity=quantity.value if quantity else None,
            unit=quantity.unit if quantity else None,
            unit_price=price.value if price else None,
            allowances=allowances or Decimal(0),
            net_amount=net.value,
            tax_rate=self._tax_rate(others, discounted=allowances is not None),
        )

    def _tax_rate(self, others: Sequence[Figure], *, discounted: bool) -> Decimal | None:
        under = self._under(Column.TAX, others)
        if under is not None and not under.number.money:
            return under.value
        percents = [figure.value for figure in others if figure.number.percent]
        expected = 2 if discounted else 1
        return percents[-1] if len(percents) == expected and Column.DISCOUNT not in self._heading else None


def _triples(figures: Sequence[Figure]) -> Iterator[tuple[Figure, Figure, Figure]]:
    """Amount, quantity and price in every order that reads left to right, nearest to the amount first."""
    for last in range(len(figures) - 1, 1, -1):
        for second in range(last - 1, 0, -1):
            for first in range(second - 1, -1, -1):
                # A price is money more often than a quantity is: `640.00  2  1,280.00` is a price first.
                swap = figures[first].number.money and not figures[second].number.money
                quantity, price = (second, first) if swap else (first, second)
                yield figures[last], figures[quantity], figures[price]


def _column_of(text: str) -> Column | None:
    words = plain(text).strip(" :")
    return next((column for column, pattern in COLUMNS if pattern.fullmatch(words)), None)


def _figures_start(text: str, numbers: Sequence[Number]) -> int:
    """Where the run of figures at the end of a cell begins; `len(text)` where the cell is words."""
    start = len(text)
    end = len(text)
    for number in reversed(numbers):
        if not _few_words(text[number.end : end]):
            break
        start = end = number.start
    run = [number for number in numbers if number.start >= start]
    lead = text[:start].rstrip(_AROUND_FIGURES)
    if not run or (lead and not any(number.money for number in run)):
        return len(text)
    return start


def _few_words(between: str) -> bool:
    return _FIGURES_ONLY.fullmatch(between) is not None and len(_WORD.findall(between)) <= 1


def _figures(cell: Cell, numbers: Sequence[Number]) -> Iterator[Figure]:
    for number in numbers:
        after = re.match(rf"\s?({_UNIT})", cell.text[number.end :])
        unit = after[1] if after and not number.money and not number.percent else None
        width = Cell(cell.text[number.start : number.end], cell.start + number.start, cell.start + number.end)
        yield Figure(number=number, cell=width, unit=unit)
