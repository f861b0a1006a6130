"""The sums below the lines: which amount is net, tax, total, paid, due.

Labels say what an amount is; arithmetic decides between candidates (of several nets and totals, those are meant for
which net + tax = total).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import product
from typing import Final

from .labels import SUMS, Sum
from .limits import MAX_SUM_CANDIDATES
from .model import AllowanceCharge, Finding, TaxGroup, Totals
from .notation import Notation, Number, plain
from .text_rows import Cell, Row

_ASIDE: Final = 4
_ZERO: Final = Decimal(0)


@dataclass(slots=True)
class Sums:
    """What was found."""

    totals: Totals = field(default_factory=Totals)
    tax_groups: list[TaxGroup] = field(default_factory=list)
    allowances_charges: list[AllowanceCharge] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Found:
    role: Sum
    amount: Decimal
    rate: Decimal | None
    basis: Decimal | None
    label: str


def sum_of_label(text: str) -> Sum | None:
    """What the words of a label call an amount, None where they name none."""
    words = plain(text)
    return next((role for role, pattern in SUMS if pattern.search(words)), None)


def read_sums(rows: Sequence[Row], taken: set[int], notation: Notation) -> Sums:
    """The sums of the document; `taken` are the rows of its lines."""
    free = [row for row in rows if row.index not in taken]
    found = [entry for index in range(len(free)) for entry in _in_row(free, index, notation)]
    return _resolve(found)


def _in_row(rows: Sequence[Row], index: int, notation: Notation) -> Iterator[_Found]:
    row = rows[index]
    numbers = notation.numbers(row.text)
    amounts = [number for number in numbers if number.money]
    if amounts:
        role, label = _label_of(row, amounts)
        if role is not None:
            rate = next((number.value for number in numbers if number.percent), None)
            basis = amounts[-2].value if role is Sum.TAX and len(amounts) > 1 else None
            yield _Found(role, amounts[-1].value, rate, basis, label)
        return
    if index + 1 < len(rows):
        yield from _from_row_below(row, rows[index + 1], notation)


def _label_of(row: Row, amounts: Sequence[Number]) -> tuple[Sum | None, str]:
    """The role by the words nearest to the left of the amount, else by the whole row's."""
    nearest = ""
    for cell in row.cells:
        if cell.start < amounts[0].start:
            words = cell.text[: amounts[0].start - cell.start] if cell.end > amounts[0].start else cell.text
            if any(letter.isalpha() for letter in words):
                nearest = words
    role = sum_of_label(nearest)
    if role is not None:
        return role, nearest.strip(" :")
    text = row.text[: amounts[0].start]
    return sum_of_label(text), " ".join(text.split()).strip(" :")


def _from_row_below(row: Row, below: Row, notation: Notation) -> Iterator[_Found]:
    """Labels side by side with their amounts beneath."""
    for cell in row.cells:
        role = sum_of_label(cell.text)
        under = below.nearest(cell, within=_ASIDE) if role is not None else None
        if role is None or under is None or any(own.gap_to(under) < cell.gap_to(under) for own in row.cells):
            continue
        amounts = [number for number in notation.numbers(under.text) if number.money]
        if len(amounts) == 1 and not _has_words(under, amounts[0]):
            yield _Found(role, amounts[0].value, None, None, cell.text.strip(" :"))


def _has_words(cell: Cell, amount: Number) -> bool:
    rest = cell.text[: amount.start] + cell.text[amount.end :]
    return sum(letter.isalpha() for letter in rest) > 3  # noqa: PLR2004 (a currency code has three)


def _resolve(found: Sequence[_Found]) -> Sums:
    by_role: dict[Sum, list[_Found]] = {role: [] for role in Sum}
    for entry in found:
        by_role[entry.role].append(entry)
    by_role = {role: entries[-MAX_SUM_CANDIDATES:] for role, entries in by_role.items()}
    sums = Sums()
    taxes = _taxes(by_role[Sum.TAX])
    net, tax, total = _consistent(by_role, taxes)
    if sum((entry.amount for entry in taxes), _ZERO) == tax:
        sums.tax_groups = [
            TaxGroup(rate=entry.rate, basis=entry.basis, amount=entry.amount) for entry in taxes
        ]
    due = by_role[Sum.DUE][-1].amount if by_role[Sum.DUE] else None
    prepaid = _prepaid(by_role[Sum.PREPAID], total, due)
    if total is None and due is not None:
        total = due + (prepaid or _ZERO)
    if due is None and total is not None:
        due = total - (prepaid or _ZERO)
    if net is None and total is not None and tax is not None:
        net = total - tax
        message = "no amount before tax is stated; it was worked out from total and tax"
        sums.findings.append(Finding(code="net_worked_out", message=message))
    sums.totals = Totals(net=net, tax=tax, total=total, prepaid=prepaid, due=due)
    _adjust(sums, by_role)
    return sums


def _prepaid(entries: Sequence[_Found], total: Decimal | None, due: Decimal | None) -> Decimal | None:
    """What was paid before: where total and rest are stated, only the amount that lies between them."""
    amounts = [abs(entry.amount) for entry in entries]
    if total is None or due is None:
        return amounts[0] if amounts else None
    return total - due if total - due in amounts else None


def _adjust(sums: Sums, by_role: dict[Sum, list[_Found]]) -> None:
    """Discounts and charges, where they lead from a subtotal to the net amount; other such words are left alone."""
    entries = [
        AllowanceCharge(charge=entry.role is Sum.CHARGE, amount=abs(entry.amount), reason=entry.label)
        for entry in (*by_role[Sum.DISCOUNT], *by_role[Sum.CHARGE])
    ]
    if not entries or sums.totals.net is None:
        return
    allowances = sum((entry.amount for entry in entries if not entry.charge), _ZERO)
    charges = sum((entry.amount for entry in entries if entry.charge), _ZERO)
    lines_net = sums.totals.net + allowances - charges
    if lines_net in [entry.amount for entry in by_role[Sum.NET]]:
        sums.allowances_charges = entries
        update = {"lines_net": lines_net, "allowances": allowances, "charges": charges}
        sums.totals = sums.totals.model_copy(update=update)


def _taxes(entries: Sequence[_Found]) -> list[_Found]:
    """One for each rate: a last one that only repeats the sum of the others is left out."""
    if len(entries) > 2 and entries[-1].amount == sum(entry.amount for entry in entries[:-1]):  # noqa: PLR2004
        return list(entries[:-1])
    seen: list[_Found] = []
    for entry in entries:
        if all((entry.rate, entry.amount) != (other.rate, other.amount) for other in seen):
            seen.append(entry)
    return seen


def _consistent(
    by_role: dict[Sum, list[_Found]], tax_entries: Sequence[_Found]
) -> tuple[Decimal | None, Decimal | None, Decimal | None]:
    """Net, tax and total that fit each other, else the last of each that is stated."""
    nets = [entry.amount for entry in reversed(by_role[Sum.NET])]
    totals = [entry.amount for entry in reversed((*by_role[Sum.DUE], *by_role[Sum.TOTAL]))]
    amounts = [entry.amount for entry in tax_entries]
    taxes = [sum(amounts, _ZERO), *amounts] if amounts else []
    for net, tax, total in product((*nets, *totals), taxes, totals):
        if net + tax == total and (net != total or not tax):
            return net, tax, total
    stated = [entry.amount for entry in by_role[Sum.TOTAL]]
    total_stated = stated[-1] if stated else None
    if not taxes and nets and total_stated is not None and nets[0] == total_stated:
        return nets[0], None, total_stated
    return (nets[0] if nets else None), (taxes[0] if taxes else None), total_stated
