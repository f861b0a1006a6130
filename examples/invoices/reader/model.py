"""What is read from an invoice: one model for all formats, after the terms of EN 16931.

Money, quantities and rates are `Decimal` and travel as text in JSON; a float never touches them. A field that
the document does not state is None, never a guess; what had to be assumed is said in `findings`.
"""

from datetime import date
from decimal import Decimal
from enum import StrEnum
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, computed_field

Amount = Annotated[Decimal, Field(allow_inf_nan=False)]


class InvoiceKind(StrEnum):
    """Whether the amounts are asked for or given back; both are stated as positive numbers."""

    INVOICE = "invoice"
    CREDIT_NOTE = "credit_note"


class SourceFormat(StrEnum):
    """What was read, and where it was found."""

    PDF_CII = "pdf_cii"
    PDF_ZUGFERD1 = "pdf_zugferd1"
    PDF_UBL = "pdf_ubl"
    PDF_TEXT = "pdf_text"
    XML_CII = "xml_cii"
    XML_ZUGFERD1 = "xml_zugferd1"
    XML_UBL = "xml_ubl"


class Severity(StrEnum):
    """`error`: the document breaks a rule of its standard. `warning`: worth a person's look."""

    ERROR = "error"
    WARNING = "warning"


class CheckName(StrEnum):
    """The sums that are worked out again."""

    LINE_NET = "line_net"
    LINES_SUM = "lines_sum"
    ALLOWANCES_SUM = "allowances_sum"
    CHARGES_SUM = "charges_sum"
    NET_TOTAL = "net_total"
    TAX_BASIS = "tax_basis"
    TAX_AMOUNT = "tax_amount"
    TAX_SUM = "tax_sum"
    GRAND_TOTAL = "grand_total"
    AMOUNT_DUE = "amount_due"


class Frozen(BaseModel):
    """Values: compared by content and never changed."""

    model_config = ConfigDict(frozen=True)


class Address(Frozen):
    """A postal address; `lines` are street and what stands beside it."""

    lines: tuple[str, ...] = ()
    postal_code: str | None = None
    city: str | None = None
    region: str | None = None
    country_code: str | None = None


class TaxId(Frozen):
    """A number by which an authority knows the party; `scheme` is `VAT`, `TAX` (local) or `LEGAL` (register)."""

    scheme: str
    value: str


class Party(Frozen):
    """The seller or the buyer. `name` is the legal name where the format tells it from the trading name."""

    name: str
    trading_name: str | None = None
    tax_ids: tuple[TaxId, ...] = ()
    address: Address = Address()

    @property
    def vat_id(self) -> str | None:
        """The VAT number, where one is stated."""
        return next((tax_id.value for tax_id in self.tax_ids if tax_id.scheme == "VAT"), None)


class InvoiceLine(Frozen):
    """One position. `unit` is the document's own word or code (UN/ECE Recommendation 20 in XML).

    `net_amount` = `quantity` × `unit_price` / `price_quantity` + `charges` - `allowances`, rounded.
    """

    id: str | None = None
    description: str
    quantity: Amount | None = None
    unit: str | None = None
    unit_price: Amount | None = None
    price_quantity: Amount = Decimal(1)
    allowances: Amount = Decimal(0)
    charges: Amount = Decimal(0)
    net_amount: Amount | None = None
    tax_rate: Amount | None = None
    tax_category: str | None = None


class AllowanceCharge(Frozen):
    """A discount (`charge` false) or a surcharge on the whole document; `amount` is positive either way."""

    charge: bool
    amount: Amount
    reason: str | None = None
    tax_rate: Amount | None = None
    tax_category: str | None = None


class TaxGroup(Frozen):
    """The tax of one category and rate; `rate` is in percent."""

    category: str | None = None
    rate: Amount | None = None
    basis: Amount | None = None
    amount: Amount


class Totals(Frozen):
    """The sums as the document states them.

    `net` = `lines_net` - `allowances` + `charges`; `total` = `net` + `tax`; `due` = `total` - `prepaid` + `rounding`.
    """

    lines_net: Amount | None = None
    allowances: Amount | None = None
    charges: Amount | None = None
    net: Amount | None = None
    tax: Amount | None = None
    total: Amount | None = None
    prepaid: Amount | None = None
    rounding: Amount | None = None
    due: Amount | None = None


class Check(Frozen):
    """One sum worked out again: `expected` follows from the other figures, `actual` is what is stated.

    `rule` is the standard's rule (`BR-CO-10`), `subject` what was checked (`line 3`).
    """

    check: CheckName
    rule: str
    subject: str
    expected: Amount
    actual: Amount
    ok: bool
    severity: Severity = Severity.ERROR


class Finding(Frozen):
    """Something that a person should know: `code` is a rule of EN 16931 (`BR-IC-11`) or a word of this reader."""

    code: str
    message: str
    severity: Severity = Severity.WARNING


class Invoice(Frozen):
    """One invoice or credit note as read, with what was found wrong."""

    number: str
    kind: InvoiceKind = InvoiceKind.INVOICE
    type_code: str | None = None
    issue_date: date | None = None
    due_date: date | None = None
    delivery_date: date | None = None
    period_start: date | None = None
    period_end: date | None = None
    seller: Party
    buyer: Party | None = None
    currency: str | None = None
    lines: tuple[InvoiceLine, ...] = ()
    allowances_charges: tuple[AllowanceCharge, ...] = ()
    tax_groups: tuple[TaxGroup, ...] = ()
    totals: Totals = Totals()
    source_format: SourceFormat
    profile: str | None = None
    checks: tuple[Check, ...] = ()
    findings: tuple[Finding, ...] = ()

    @computed_field  # type: ignore[prop-decorator]
    @property
    def valid(self) -> bool:
        """False where a check or a finding of severity `error` says that a rule of the standard is broken."""
        failed = any(not check.ok and check.severity is Severity.ERROR for check in self.checks)
        return not failed and all(finding.severity is not Severity.ERROR for finding in self.findings)

    @computed_field  # type: ignore[prop-decorator]
    @property
    def warnings(self) -> tuple[str, ...]:
        """The findings and the failed checks as sentences."""
        failed = tuple(
            f"{check.subject}: {check.check} should be {check.expected} and is {check.actual} ({check.rule})"
            for check in self.checks
            if not check.ok
        )
        return tuple(f"{finding.code}: {finding.message}" for finding in self.findings) + failed
