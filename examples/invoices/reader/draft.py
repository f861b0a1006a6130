"""An invoice as the mappings fill it, before it is judged: any field may still be missing."""

from dataclasses import dataclass, field
from datetime import date

from .limits import MAX_LINES
from .model import (
    AllowanceCharge,
    Finding,
    InvoiceKind,
    InvoiceLine,
    Party,
    Severity,
    TaxGroup,
    Totals,
)
from .problems import InvoiceUnreadable, Problem


@dataclass(slots=True)
class Draft:
    """The fields of `Invoice`, all optional, and the country delivered to, which only the rules need."""

    number: str | None = None
    kind: InvoiceKind = InvoiceKind.INVOICE
    type_code: str | None = None
    issue_date: date | None = None
    due_date: date | None = None
    delivery_date: date | None = None
    period_start: date | None = None
    period_end: date | None = None
    delivery_country: str | None = None
    seller: Party | None = None
    buyer: Party | None = None
    currency: str | None = None
    profile: str | None = None
    lines: list[InvoiceLine] = field(default_factory=list)
    allowances_charges: list[AllowanceCharge] = field(default_factory=list)
    tax_groups: list[TaxGroup] = field(default_factory=list)
    totals: Totals = field(default_factory=Totals)
    findings: list[Finding] = field(default_factory=list)

    def require_invoice(self) -> None:
        """Refuse what has neither a number nor any amount, or more lines than an invoice has.

        Raises:
            InvoiceUnreadable: `NO_INVOICE_FOUND` or `TOO_LARGE`.
        """
        totals = self.totals
        if self.number is None and totals.total is None and totals.due is None and not self.lines:
            raise InvoiceUnreadable(
                Problem.NO_INVOICE_FOUND,
                "the document can be read, and neither an invoice number nor totals nor lines are in it",
            )
        if len(self.lines) > MAX_LINES:
            raise InvoiceUnreadable(
                Problem.TOO_LARGE,
                f"the invoice has {len(self.lines):,} lines; at most {MAX_LINES:,} are read",
            )


def broken_rule(rule: str, message: str) -> Finding:
    """A finding that a rule of EN 16931 is broken."""
    return Finding(code=rule, message=message, severity=Severity.ERROR)
