"""UBL 2.1 Invoice and CreditNote, which differ in a handful of names only."""

from decimal import Decimal
from typing import Final

from .draft import Draft
from .kinds import kind_of
from .model import (
    Address,
    AllowanceCharge,
    Finding,
    InvoiceKind,
    InvoiceLine,
    Party,
    Severity,
    TaxGroup,
    TaxId,
    Totals,
)
from .values import Values
from .xml_node import Node

INVOICE_ROOT_NAME: Final = "Invoice"
CREDIT_NOTE_ROOT_NAME: Final = "CreditNote"
NAMESPACES: Final = frozenset(
    {
        "urn:oasis:names:specification:ubl:schema:xsd:Invoice-2",
        "urn:oasis:names:specification:ubl:schema:xsd:CreditNote-2",
    }
)


def read_ubl(root: Node) -> Draft:
    """Map a UBL tree to a draft invoice; what is not there stays empty."""
    return _UblReader(root).read()


class _UblReader:
    def __init__(self, root: Node) -> None:
        self._root = root
        self._credits = root.name == CREDIT_NOTE_ROOT_NAME
        self._values = Values()

    def read(self) -> Draft:
        root, values = self._root, self._values
        currency = root.text("DocumentCurrencyCode")
        type_code = root.text("CreditNoteTypeCode" if self._credits else "InvoiceTypeCode")
        tax_totals = root.all("TaxTotal")
        draft = Draft(
            number=root.text("ID"),
            kind=InvoiceKind.CREDIT_NOTE if self._credits else kind_of(type_code),
            type_code=type_code,
            issue_date=values.date(root, "IssueDate"),
            due_date=values.date(root, "DueDate") or values.date(root, "PaymentMeans/PaymentDueDate"),
            delivery_date=values.date(root, "Delivery/ActualDeliveryDate"),
            period_start=values.date(root, "InvoicePeriod/StartDate"),
            period_end=values.date(root, "InvoicePeriod/EndDate"),
            delivery_country=root.text("Delivery/DeliveryLocation/Address/Country/IdentificationCode"),
            seller=_party(root.first("AccountingSupplierParty/Party")),
            buyer=_party(root.first("AccountingCustomerParty/Party")),
            currency=currency,
            profile=root.text("CustomizationID"),
            lines=[
                self._line(node) for node in root.all("CreditNoteLine" if self._credits else "InvoiceLine")
            ],
            allowances_charges=self._allowances_charges(root),
            tax_groups=self._tax_groups(_in_currency(tax_totals, currency)),
            totals=self._totals(_in_currency(tax_totals, currency)),
        )
        draft.findings.extend(values.findings)
        return draft

    def _line(self, node: Node) -> InvoiceLine:
        values = self._values
        quantity = node.first("CreditedQuantity" if self._credits else "InvoicedQuantity")
        entries = self._allowances_charges(node)
        return InvoiceLine(
            id=node.text("ID"),
            description=node.text("Item/Name") or node.text("Item/Description") or node.text("Note") or "",
            quantity=values.decimal(quantity),
            unit=quantity.attribute("unitCode") if quantity else None,
            unit_price=values.decimal(node, "Price/PriceAmount"),
            price_quantity=values.decimal(node, "Price/BaseQuantity") or Decimal(1),
            allowances=sum((entry.amount for entry in entries if not entry.charge), Decimal(0)),
            charges=sum((entry.amount for entry in entries if entry.charge), Decimal(0)),
            net_amount=values.decimal(node, "LineExtensionAmount"),
            tax_rate=values.decimal(node, "Item/ClassifiedTaxCategory/Percent"),
            tax_category=node.text("Item/ClassifiedTaxCategory/ID"),
        )

    def _allowances_charges(self, parent: Node) -> list[AllowanceCharge]:
        values = self._values
        return [
            AllowanceCharge(
                charge=node.text("ChargeIndicator") == "true",
                amount=values.decimal(node, "Amount") or Decimal(0),
                reason=node.text("AllowanceChargeReason"),
                tax_rate=values.decimal(node, "TaxCategory/Percent"),
                tax_category=node.text("TaxCategory/ID"),
            )
            for node in parent.all("AllowanceCharge")
        ]

    def _tax_groups(self, tax_total: Node | None) -> list[TaxGroup]:
        if tax_total is None:
            return []
        values = self._values
        return [
            TaxGroup(
                category=node.text("TaxCategory/ID"),
                rate=values.decimal(node, "TaxCategory/Percent"),
                basis=values.decimal(node, "TaxableAmount"),
                amount=values.decimal(node, "TaxAmount") or Decimal(0),
            )
            for node in tax_total.all("TaxSubtotal")
        ]

    def _totals(self, tax_total: Node | None) -> Totals:
        values = self._values
        sums = self._root.first("LegalMonetaryTotal")
        if sums is None:
            message = "the document has no totals (LegalMonetaryTotal)"
            values.findings.append(Finding(code="no_totals", message=message, severity=Severity.ERROR))
            return Totals()
        return Totals(
            lines_net=values.decimal(sums, "LineExtensionAmount"),
            allowances=values.decimal(sums, "AllowanceTotalAmount"),
            charges=values.decimal(sums, "ChargeTotalAmount"),
            net=values.decimal(sums, "TaxExclusiveAmount"),
            tax=values.decimal(tax_total, "TaxAmount"),
            total=values.decimal(sums, "TaxInclusiveAmount"),
            prepaid=values.decimal(sums, "PrepaidAmount"),
            rounding=values.decimal(sums, "PayableRoundingAmount"),
            due=values.decimal(sums, "PayableAmount"),
        )


def _in_currency(tax_totals: list[Node], currency: str | None) -> Node | None:
    """The tax total in the invoice's currency: it may be stated a second time in the accounting currency."""
    for tax_total in tax_totals:
        amount = tax_total.first("TaxAmount")
        if amount is not None and amount.attribute("currencyID") in (None, currency):
            return tax_total
    return tax_totals[0] if tax_totals else None


def _party(node: Node | None) -> Party | None:
    if node is None:
        return None
    legal_name, trading_name = node.text("PartyLegalEntity/RegistrationName"), node.text("PartyName/Name")
    tax_ids = [
        TaxId(scheme="VAT" if scheme.text("TaxScheme/ID") == "VAT" else "TAX", value=value)
        for scheme in node.all("PartyTaxScheme")
        if (value := scheme.text("CompanyID"))
    ]
    if legal := node.text("PartyLegalEntity/CompanyID"):
        tax_ids.append(TaxId(scheme="LEGAL", value=legal))
    address = node.first("PostalAddress")
    return Party(
        name=legal_name or trading_name or "",
        trading_name=trading_name if trading_name != (legal_name or trading_name) else None,
        tax_ids=tuple(tax_ids),
        address=_address(address) if address else Address(),
    )


def _address(node: Node) -> Address:
    lines = (node.text(name) for name in ("StreetName", "AdditionalStreetName", "AddressLine/Line"))
    return Address(
        lines=tuple(line for line in lines if line),
        postal_code=node.text("PostalZone"),
        city=node.text("CityName"),
        region=node.text("CountrySubentity"),
        country_code=node.text("Country/IdentificationCode"),
    )
