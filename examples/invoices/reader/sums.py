"""The arithmetic of EN 16931, worked out again from the figures that the document states.

A check is made only where all its figures are stated. The standard's own sums must match to the cent; the two that
round within themselves (a tax amount, a line's quantity × price) may differ by `ROUNDING_SLACK`.
"""

from collections.abc import Iterator
from decimal import ROUND_HALF_UP, Decimal
from typing import Final

from .draft import Draft
from .model import AllowanceCharge, Check, CheckName, InvoiceLine, Severity, TaxGroup

# Peppol's rule for lines (PEPPOL-EN16931-R120) allows two cents; what holds for a line holds for a tax group.
ROUNDING_SLACK: Final = Decimal("0.02")
_CENT: Final = Decimal("0.01")
_ZERO: Final = Decimal(0)
# Categories whose basis is checked one by one: standard, zero, exempt, reverse charge, intra-community, export.
_BASIS_RULES: Final = {
    "S": "BR-S-08",
    "Z": "BR-Z-08",
    "E": "BR-E-08",
    "AE": "BR-AE-08",
    "K": "BR-IC-08",
    "G": "BR-G-08",
    "O": "BR-O-08",
}


def checks_of(draft: Draft) -> Iterator[Check]:
    """Every check that the stated figures allow, in the order of a reader's eye: lines, totals, tax, due."""
    for position, line in enumerate(draft.lines, start=1):
        yield from _line_net(line, f"line {line.id or position}")
    yield from _totals(draft)
    for group in draft.tax_groups:
        yield from _tax_group(group, draft)
    yield from _tax_and_due(draft)


def _line_net(line: InvoiceLine, subject: str) -> Iterator[Check]:
    if line.quantity is None or line.unit_price is None or line.net_amount is None or not line.price_quantity:
        return
    expected = line.quantity * line.unit_price / line.price_quantity + line.charges - line.allowances
    yield _check(
        CheckName.LINE_NET,
        "PEPPOL-EN16931-R120",
        subject,
        expected=expected,
        actual=line.net_amount,
        slack=ROUNDING_SLACK,
        severity=Severity.WARNING,
    )


def _totals(draft: Draft) -> Iterator[Check]:
    totals, entries = draft.totals, draft.allowances_charges
    nets = [line.net_amount for line in draft.lines if line.net_amount is not None]
    lines_net = totals.lines_net
    if lines_net is None and totals.net is not None:
        lines_net = totals.net + (totals.allowances or _ZERO) - (totals.charges or _ZERO)
    if nets and len(nets) == len(draft.lines) and lines_net is not None:
        yield _check(CheckName.LINES_SUM, "BR-CO-10", "lines", expected=sum(nets, _ZERO), actual=lines_net)
    if totals.allowances is not None and entries:
        amount = _sum_of(entries, charge=False)
        yield _check(
            CheckName.ALLOWANCES_SUM, "BR-CO-11", "allowances", expected=amount, actual=totals.allowances
        )
    if totals.charges is not None and entries:
        amount = _sum_of(entries, charge=True)
        yield _check(CheckName.CHARGES_SUM, "BR-CO-12", "charges", expected=amount, actual=totals.charges)
    if totals.lines_net is not None and totals.net is not None:
        expected = totals.lines_net - (totals.allowances or _ZERO) + (totals.charges or _ZERO)
        yield _check(CheckName.NET_TOTAL, "BR-CO-13", "net", expected=expected, actual=totals.net)


def _tax_group(group: TaxGroup, draft: Draft) -> Iterator[Check]:
    if group.basis is None:
        return
    subject = f"tax {group.category or ''} {'' if group.rate is None else f'{group.rate.normalize():f}'}%"
    expected = _basis_of(group, draft)
    rule = _BASIS_RULES.get(group.category or "")
    if expected is not None and rule is not None:
        yield _check(
            CheckName.TAX_BASIS, rule, subject, expected=expected, actual=group.basis, slack=ROUNDING_SLACK
        )
    if group.rate is not None:
        yield _check(
            CheckName.TAX_AMOUNT,
            "BR-CO-17",
            subject,
            expected=group.basis * group.rate / 100,
            actual=group.amount,
            slack=ROUNDING_SLACK,
            severity=Severity.WARNING,
        )


def _basis_of(group: TaxGroup, draft: Draft) -> Decimal | None:
    """What the lines and the document's allowances and charges add up to, where all of them state their tax."""
    if not draft.lines or any(line.tax_category is None or line.net_amount is None for line in draft.lines):
        return None
    key = (group.category, group.rate or _ZERO)
    lines = sum(
        (
            line.net_amount or _ZERO
            for line in draft.lines
            if (line.tax_category, line.tax_rate or _ZERO) == key
        ),
        _ZERO,
    )
    same = [
        entry for entry in draft.allowances_charges if (entry.tax_category, entry.tax_rate or _ZERO) == key
    ]
    return lines - _sum_of(same, charge=False) + _sum_of(same, charge=True)


def _tax_and_due(draft: Draft) -> Iterator[Check]:
    totals = draft.totals
    if totals.tax is not None and draft.tax_groups:
        expected = sum((group.amount for group in draft.tax_groups), _ZERO)
        yield _check(CheckName.TAX_SUM, "BR-CO-14", "tax", expected=expected, actual=totals.tax)
    if totals.net is not None and totals.total is not None:
        expected = totals.net + (totals.tax or _ZERO)
        yield _check(CheckName.GRAND_TOTAL, "BR-CO-15", "total", expected=expected, actual=totals.total)
    if totals.total is not None and totals.due is not None:
        expected = totals.total - (totals.prepaid or _ZERO) + (totals.rounding or _ZERO)
        yield _check(CheckName.AMOUNT_DUE, "BR-CO-16", "due", expected=expected, actual=totals.due)


def _sum_of(entries: list[AllowanceCharge], *, charge: bool) -> Decimal:
    return sum((entry.amount for entry in entries if entry.charge is charge), _ZERO)


def _check(
    check: CheckName,
    rule: str,
    subject: str,
    *,
    expected: Decimal,
    actual: Decimal,
    slack: Decimal = _ZERO,
    severity: Severity = Severity.ERROR,
) -> Check:
    rounded = expected.quantize(_CENT, ROUND_HALF_UP)
    return Check(
        check=check,
        rule=rule,
        subject=subject,
        expected=rounded,
        actual=actual,
        ok=abs(rounded - actual) <= slack,
        severity=severity,
    )
