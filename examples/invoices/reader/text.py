"""An invoice that is only words on pages: what the heuristics of `text_*` find, put together.

What was read this way is a reading, not a document's own statement, and a finding says so. Where the words hold no
invoice, that is said instead of inventing one.
"""

import re
from collections.abc import Sequence
from datetime import date
from typing import Final

from .draft import Draft
from .labels import BARE_NUMBER_LABEL, CREDIT_TITLE, DATES, NUMBER_LABEL, TITLE, DateRole
from .model import Finding, InvoiceKind, InvoiceLine, Totals
from .notation import Notation, plain
from .problems import InvoiceUnreadable, Problem
from .text_parties import read_parties
from .text_rows import Cell, Row, rows_of
from .text_table import read_table
from .text_totals import read_sums

_REFERENCE: Final = re.compile(r"[:#.\s]*([A-Za-z0-9][A-Za-z0-9/_.\-]*)")
_REFERENCE_AFTER_TITLE: Final = re.compile(
    r"[:#\s]*(?:n[o°ºr]?\.?\s*)?([A-Za-z0-9/_.\-]*\d[A-Za-z0-9/_.\-]*)"
    r"(?:\s*$|\s+(?:of|from|dated|vom|du|del|van|d\.d\.)\s)"
)
_NO: Final = re.compile(r"(?:N|n|No|no|Nr|nr)[°º.]+\s?")
_ASIDE: Final = 6
_ROWS_BELOW: Final = 2


def read_text(pages: Sequence[str]) -> Draft:
    """Read an invoice from the text of its pages.

    Raises:
        InvoiceUnreadable: `PDF_NO_TEXT` (a scan), `NO_INVOICE_FOUND`.
    """
    rows = rows_of(pages)
    if not rows:
        raise InvoiceUnreadable(
            Problem.PDF_NO_TEXT,
            "the PDF has no text and no embedded invoice; if it is a scan, run text recognition on it first",
        )
    text = "\n".join(row.text for row in rows)
    notation = Notation.of(text)
    table = read_table(rows, notation)
    sums = read_sums(rows, table.rows, notation)
    seller, buyer = read_parties(rows, table.rows)
    dates = _dates(rows, notation)
    number = _number(rows)
    if sums.totals.total is None or (number is None and not TITLE.search(plain(text))):
        raise InvoiceUnreadable(
            Problem.NO_INVOICE_FOUND,
            "the PDF has text, and no invoice was recognised in it (a number or title, and a total)",
        )
    totals, total_findings = _untaxed(table.lines, sums.totals)
    lines, line_findings = _without_tax(table.lines, totals)
    note = "read from the words on the page by heuristics, as no XML is embedded: compare it with the page"
    return Draft(
        number=number,
        kind=InvoiceKind.CREDIT_NOTE if CREDIT_TITLE.search(plain(_headline(rows))) else InvoiceKind.INVOICE,
        issue_date=dates.get(DateRole.ISSUE),
        due_date=dates.get(DateRole.DUE),
        delivery_date=dates.get(DateRole.DELIVERY),
        seller=seller,
        buyer=buyer,
        currency=notation.currency,
        lines=lines,
        allowances_charges=sums.allowances_charges,
        tax_groups=sums.tax_groups,
        totals=totals,
        findings=[
            Finding(code="read_from_text", message=note),
            *sums.findings,
            *total_findings,
            *line_findings,
        ],
    )


def _untaxed(lines: Sequence[InvoiceLine], totals: Totals) -> tuple[Totals, list[Finding]]:
    """Where no tax is stated and the lines add up to the total, that is the net amount too."""
    amounts = [line.net_amount for line in lines if line.net_amount is not None]
    if totals.net is not None or totals.tax is not None or not amounts or sum(amounts) != totals.total:
        return totals, []
    message = "no tax is stated and the lines add up to the total, which was taken as the net amount"
    return totals.model_copy(update={"net": totals.total}), [Finding(code="net_worked_out", message=message)]


def _without_tax(lines: Sequence[InvoiceLine], totals: Totals) -> tuple[list[InvoiceLine], list[Finding]]:
    """Lines that add up to the total state their amounts with tax: no net amounts, which is said."""
    amounts = [line.net_amount for line in lines if line.net_amount is not None]
    if not amounts or totals.net is None or totals.net == totals.total or sum(amounts) != totals.total:
        return list(lines), []
    message = "the lines state their amounts with tax, so their net amounts are not known"
    return (
        [line.model_copy(update={"net_amount": None}) for line in lines],
        [Finding(code="lines_with_tax", message=message)],
    )


def _headline(rows: Sequence[Row]) -> str:
    """The first row that names the kind of document."""
    return next((row.text for row in rows if TITLE.search(plain(row.text))), "")


def _number(rows: Sequence[Row]) -> str | None:
    """The invoice number: behind its label, beside it, beneath it, or behind the title."""
    for index, row in enumerate(rows):
        for position, cell in enumerate(row.cells):
            for match in NUMBER_LABEL.finditer(plain(cell.text)):
                candidates = [
                    cell.text[match.end() :],
                    *(other.text for other in row.cells[position + 1 : position + 2]),
                    *(under.text for under in _beneath(rows, index, cell)),
                ]
                found = next((number for text in candidates if (number := _reference(text))), None)
                if found:
                    return found
    for row in rows:
        for cell in row.cells:
            title = TITLE.search(plain(cell.text))
            reference = _REFERENCE_AFTER_TITLE.match(cell.text[title.end() :]) if title else None
            if reference:
                return reference[1].strip(".-")
    return _number_under_title(rows)


def _number_under_title(rows: Sequence[Row]) -> str | None:
    """`N° 118 du 4 mai` or `Number  118` beside the title or in one of the rows after it."""
    title = next((index for index, row in enumerate(rows) if TITLE.search(plain(row.text))), None)
    if title is None:
        return None
    for row in rows[title : title + 1 + _ROWS_BELOW]:
        for position, cell in enumerate(row.cells):
            sign = _NO.match(cell.text)
            number = _reference(cell.text[sign.end() :]) if sign else None
            if number is None and BARE_NUMBER_LABEL.fullmatch(plain(cell.text)) and row.cells[position + 1 :]:
                number = _reference(row.cells[position + 1].text)
            if number:
                return number
    return None


def _beneath(rows: Sequence[Row], index: int, cell: Cell) -> list[Cell]:
    below = rows[index + 1 : index + 1 + _ROWS_BELOW]
    return [under for row in below if (under := row.nearest(cell, within=_ASIDE)) is not None]


def _reference(text: str) -> str | None:
    """A reference at the start of a text: one word with a digit that is no date."""
    match = _REFERENCE.match(text)
    if match is None or not any(letter.isdigit() for letter in match[1]):
        return None
    if re.fullmatch(r"\d{1,2}[./-]\d{1,2}[./-]\d{2,4}|\d{4}-\d{2}-\d{2}", match[1]):
        return None
    return match[1].rstrip(".-/_")


def _dates(rows: Sequence[Row], notation: Notation) -> dict[DateRole, date]:
    """The dates by what stands before, beside or above them; the first of each role counts."""
    found: dict[DateRole, date] = {}
    unlabelled: list[date] = []
    for index, row in enumerate(rows):
        for day, start, _ in notation.dates(row.text):
            role = _role(rows, index, start)
            if role is None:
                unlabelled.append(day)
            else:
                found.setdefault(role, day)
    if DateRole.ISSUE not in found and unlabelled:
        found[DateRole.ISSUE] = unlabelled[0]
    return found


def _role(rows: Sequence[Row], index: int, start: int) -> DateRole | None:
    row = rows[index]
    before = [cell for cell in row.cells if cell.start < start]
    labels = [cell.text[: start - cell.start] if cell.end > start else cell.text for cell in before[-1:]]
    labels += [cell.text for cell in before[-2:-1]]
    at = Cell("", start, start + 10)
    labels += [
        over.text
        for row_above in rows[max(0, index - 1) : index]
        if (over := row_above.nearest(at, within=_ASIDE))
    ]
    for label in labels:
        words = plain(label).strip(" :")
        role = next((role for role, pattern in DATES if pattern.search(words)), None)
        if role is not None:
            return role
    return None
