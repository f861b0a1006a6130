"""UN/CEFACT Cross Industry Invoice (Factur-X, ZUGFeRD 2, XRechnung) and its ancestor ZUGFeRD 1.

Both hold the same tree under different names; `_Dialect` lists the names, and one mapping reads both.
"""

from dataclasses import dataclass
from decimal import Decimal
from typing import Final

from .draft import Draft
from .kinds import kind_of
from .model import Address, AllowanceCharge, Finding, InvoiceLine, Party, Severity, TaxGroup, TaxId, Totals
from .values import Values
from .xml_node import Node

ROOT_NAME: Final = "CrossIndustryInvoice"
ZUGFERD1_ROOT_NAME: Final = "CrossIndustryDocument"

_TAX_SCHEMES: Final = {"VA": "VAT", "FC": "TAX"}
# Lines of the extended profile that group or explain others; their amounts are counted elsewhere.
_NOT_COUNTED: Final = frozenset({"GROUP", "INFORMATION"})


@dataclass(frozen=True, slots=True)
class _Dialect:
    context: str
    header: str
    transaction: str
    agreement: str
    delivery: str
    settlement: str
    header_sums: str
    line_agreement: str
    line_delivery: str
    line_settlement: str
    line_sums: str
    rate: str


_CII: Final = _Dialect(
    context="ExchangedDocumentContext",
    header="ExchangedDocument",
    transaction="SupplyChainTradeTransaction",
    agreement="ApplicableHeaderTradeAgreement",
    delivery="ApplicableHeaderTradeDelivery",
    settlement="ApplicableHeaderTradeSettlement",
    header_sums="SpecifiedTradeSettlementHeaderMonetarySummation",
    line_agreement="SpecifiedLineTradeAgreement",
    line_delivery="SpecifiedLineTradeDelivery",
    line_settlement="SpecifiedLineTradeSettlement",
    line_sums="SpecifiedTradeSettlementLineMonetarySummation",
    rate="RateApplicablePercent",
)
_ZUGFERD1: Final = _Dialect(
    context="SpecifiedExchangedDocumentContext",
    header="HeaderExchangedDocument",
    transaction="SpecifiedSupplyChainTradeTransaction",
    agreement="ApplicableSupplyChainTradeAgreement",
    delivery="ApplicableSupplyChainTradeDelivery",
    settlement="ApplicableSupplyChainTradeSettlement",
    header_sums="SpecifiedTradeSettlementMonetarySummation",
    line_agreement="SpecifiedSupplyChainTradeAgreement",
    line_delivery="SpecifiedSupplyChainTradeDelivery",
    line_settlement="SpecifiedSupplyChainTradeSettlement",
    line_sums="SpecifiedTradeSettlementMonetarySummation",
    rate="ApplicablePercent",
)


def read_cii(root: Node) -> Draft:
    """Map a CII or ZUGFeRD 1 tree to a draft invoice; what is not there stays empty."""
    names = _ZUGFERD1 if root.name == ZUGFERD1_ROOT_NAME else _CII
    return _CiiReader(root, names).read()


class _CiiReader:
    def __init__(self, root: Node, names: _Dialect) -> None:
        self._root = root
        self._names = names
        self._values = Values()

    def read(self) -> Draft:
        names, root, values = self._names, self._root, self._values
        header = names.header
        agreement = f"{names.transaction}/{names.agreement}"
        delivery = f"{names.transaction}/{names.delivery}"
        settlement = f"{names.transaction}/{names.settlement}"
        currency = root.text(f"{settlement}/InvoiceCurrencyCode")
        type_code = root.text(f"{header}/TypeCode")
        draft = Draft(
            number=root.text(f"{header}/ID"),
            kind=kind_of(type_code),
            type_code=type_code,
            issue_date=values.date(root, f"{header}/IssueDateTime/DateTimeString"),
            due_date=values.date(
                root, f"{settlement}/SpecifiedTradePaymentTerms/DueDateDateTime/DateTimeString"
            ),
            delivery_date=values.date(
                root, f"{delivery}/ActualDeliverySupplyChainEvent/OccurrenceDateTime/DateTimeString"
            ),
            period_start=values.date(
                root, f"{settlement}/BillingSpecifiedPeriod/StartDateTime/DateTimeString"
            ),
            period_end=values.date(root, f"{settlement}/BillingSpecifiedPeriod/EndDateTime/DateTimeString"),
            delivery_country=root.text(f"{delivery}/ShipToTradeParty/PostalTradeAddress/CountryID"),
            seller=_party(root.first(f"{agreement}/SellerTradeParty")),
            buyer=_party(root.first(f"{agreement}/BuyerTradeParty")),
            currency=currency,
            profile=root.text(f"{names.context}/GuidelineSpecifiedDocumentContextParameter/ID"),
            lines=self._lines(),
            allowances_charges=self._allowances_charges(root.first(settlement)),
            tax_groups=self._tax_groups(root.first(settlement)),
            totals=self._totals(root.first(f"{settlement}/{names.header_sums}"), currency),
        )
        if root.text(f"{names.context}/TestIndicator/Indicator") == "true":
            values.findings.append(
                Finding(code="test_document", message="the document says that it is only a test")
            )
        draft.findings.extend(values.findings)
        return draft

    def _lines(self) -> list[InvoiceLine]:
        items = self._root.all(f"{self._names.transaction}/IncludedSupplyChainTradeLineItem")
        lines = [self._line(item) for item in items]
        return [line for line in lines if line is not None]

    def _line(self, item: Node) -> InvoiceLine | None:
        """One position; None for a note between positions and for lines whose amounts others repeat."""
        names, values = self._names, self._values
        settlement = item.first(names.line_settlement)
        quantity = item.first(f"{names.line_delivery}/BilledQuantity")
        net = values.decimal(settlement, f"{names.line_sums}/LineTotalAmount")
        if quantity is None and net is None and item.first("SpecifiedTradeProduct") is None:
            return None
        if item.text("AssociatedDocumentLineDocument/LineStatusReasonCode") in _NOT_COUNTED:
            return None
        price = f"{names.line_agreement}/NetPriceProductTradePrice"
        allowances, charges = self._line_allowances(settlement)
        return InvoiceLine(
            id=item.text("AssociatedDocumentLineDocument/LineID"),
            description=item.text("SpecifiedTradeProduct/Name")
            or item.text("SpecifiedTradeProduct/Description")
            or item.text("AssociatedDocumentLineDocument/IncludedNote/Content")
            or "",
            quantity=values.decimal(quantity),
            unit=quantity.attribute("unitCode") if quantity else None,
            unit_price=values.decimal(item, f"{price}/ChargeAmount"),
            price_quantity=values.decimal(item, f"{price}/BasisQuantity") or Decimal(1),
            allowances=allowances,
            charges=charges,
            net_amount=net,
            tax_rate=values.decimal(settlement, f"ApplicableTradeTax/{names.rate}"),
            tax_category=settlement.text("ApplicableTradeTax/CategoryCode") if settlement else None,
        )

    def _line_allowances(self, settlement: Node | None) -> tuple[Decimal, Decimal]:
        found = self._allowances_charges(settlement)
        allowances = sum((entry.amount for entry in found if not entry.charge), Decimal(0))
        return allowances, sum((entry.amount for entry in found if entry.charge), Decimal(0))

    def _allowances_charges(self, settlement: Node | None) -> list[AllowanceCharge]:
        if settlement is None:
            return []
        values, rate = self._values, self._names.rate
        found = [
            AllowanceCharge(
                charge=node.text("ChargeIndicator/Indicator") == "true",
                amount=values.decimal(node, "ActualAmount") or Decimal(0),
                reason=node.text("Reason"),
                tax_rate=values.decimal(node, f"CategoryTradeTax/{rate}"),
                tax_category=node.text("CategoryTradeTax/CategoryCode"),
            )
            for node in settlement.all("SpecifiedTradeAllowanceCharge")
        ]
        # Freight has an element of its own; in the sums it is a charge like any other.
        found += [
            AllowanceCharge(
                charge=True,
                amount=values.decimal(node, "AppliedAmount") or Decimal(0),
                reason=node.text("Description"),
                tax_rate=values.decimal(node, f"AppliedTradeTax/{rate}"),
                tax_category=node.text("AppliedTradeTax/CategoryCode"),
            )
            for node in settlement.all("SpecifiedLogisticsServiceCharge")
        ]
        return found

    def _tax_groups(self, settlement: Node | None) -> list[TaxGroup]:
        if settlement is None:
            return []
        values = self._values
        return [
            TaxGroup(
                category=node.text("CategoryCode"),
                rate=values.decimal(node, self._names.rate),
                basis=values.decimal(node, "BasisAmount"),
                amount=values.decimal(node, "CalculatedAmount") or Decimal(0),
            )
            for node in settlement.all("ApplicableTradeTax")
        ]

    def _totals(self, sums: Node | None, currency: str | None) -> Totals:
        if sums is None:
            message = "the document has no totals (monetary summation)"
            self._values.findings.append(Finding(code="no_totals", message=message, severity=Severity.ERROR))
            return Totals()
        values = self._values
        return Totals(
            lines_net=values.decimal(sums, "LineTotalAmount"),
            allowances=values.decimal(sums, "AllowanceTotalAmount"),
            charges=values.decimal(sums, "ChargeTotalAmount"),
            net=values.decimal(sums, "TaxBasisTotalAmount"),
            tax=values.decimal(_in_currency(sums.all("TaxTotalAmount"), currency)),
            total=values.decimal(sums, "GrandTotalAmount"),
            prepaid=values.decimal(sums, "TotalPrepaidAmount"),
            rounding=values.decimal(sums, "RoundingAmount"),
            due=values.decimal(sums, "DuePayableAmount"),
        )


def _in_currency(amounts: list[Node], currency: str | None) -> Node | None:
    """The amount in the invoice's currency: tax may be stated a second time in the accounting currency."""
    for amount in amounts:
        if amount.attribute("currencyID") in (None, currency):
            return amount
    return amounts[0] if amounts else None


def _party(node: Node | None) -> Party | None:
    if node is None:
        return None
    address = node.first("PostalTradeAddress")
    tax_ids = [
        TaxId(scheme=_TAX_SCHEMES.get(entry.attribute("schemeID") or "", "TAX"), value=value)
        for entry in node.all("SpecifiedTaxRegistration/ID")
        if (value := entry.own_text())
    ]
    if legal := node.text("SpecifiedLegalOrganization/ID"):
        tax_ids.append(TaxId(scheme="LEGAL", value=legal))
    return Party(
        name=node.text("Name") or "",
        trading_name=node.text("SpecifiedLegalOrganization/TradingBusinessName"),
        tax_ids=tuple(tax_ids),
        address=_address(address) if address else Address(),
    )


def _address(node: Node) -> Address:
    lines = (node.text(name) for name in ("LineOne", "LineTwo", "LineThree"))
    return Address(
        lines=tuple(line for line in lines if line),
        postal_code=node.text("PostcodeCode"),
        city=node.text("CityName"),
        region=node.text("CountrySubDivisionName"),
        country_code=node.text("CountryID"),
    )
