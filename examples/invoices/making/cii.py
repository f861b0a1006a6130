"""CII XML (Factur-X EN 16931, XRechnung), written by drafthorse and checked against the schema that it ships."""

from decimal import Decimal
from typing import Any

from drafthorse.models.accounting import ApplicableTradeTax, CategoryTradeTax, TradeAllowanceCharge
from drafthorse.models.document import Document
from drafthorse.models.note import IncludedNote
from drafthorse.models.party import TaxRegistration
from drafthorse.models.payment import PaymentMeans, PaymentTerms
from drafthorse.models.tradelines import LineItem

from examples.invoices.making.data import Adjustment, Company, Item, Sample


def cii_xml(sample: Sample) -> bytes:
    """The document as CII in UTF-8, valid against the Factur-X EN 16931 schema."""
    document = Document()
    document.context.guideline_parameter.id = sample.profile
    document.header.id = sample.number
    document.header.type_code = "381" if sample.credit else "380"
    document.header.issue_date_time = sample.issued
    if sample.note:
        note = IncludedNote()
        note.content = sample.note
        document.header.notes.add(note)
    _party(document.trade.agreement.seller, sample.seller)
    _party(document.trade.agreement.buyer, sample.buyer)
    if "xrechnung" in sample.profile:
        document.trade.agreement.buyer_reference = "04011000-12345-34"
    document.trade.delivery.event.occurrence = sample.delivered
    for position, line in enumerate(sample.items, start=1):
        document.trade.items.add(_item(position, line, sample))
    _settlement(document.trade.settlement, sample)
    return bytes(document.serialize(schema="FACTUR-X_EN16931"))


def _party(party: Any, company: Company) -> None:
    party.name = company.name
    party.address.postcode = company.postal_code
    party.address.line_one = company.street
    party.address.city_name = company.city
    party.address.country_id = company.country
    party.electronic_address.uri_ID = ("EM", company.email)
    party.tax_registrations.add(TaxRegistration(id=("VA", company.vat_id)))


def _item(position: int, line: Item, sample: Sample) -> LineItem:
    entry = LineItem()
    entry.document.line_id = str(position)
    entry.product.name = line.description
    entry.agreement.net.amount = line.price
    entry.delivery.billed_quantity = (line.quantity, line.unit)
    entry.settlement.trade_tax.type_code = "VAT"
    entry.settlement.trade_tax.category_code = sample.category
    entry.settlement.trade_tax.rate_applicable_percent = line.rate
    entry.settlement.monetary_summation.total_amount = line.net
    return entry


def _settlement(settlement: Any, sample: Sample) -> None:
    settlement.currency_code = sample.currency
    means = PaymentMeans(type_code="58")
    means.payee_account.iban = "DE02120300000000202051"
    settlement.payment_means.add(means)
    for rate, basis, amount in sample.tax_groups:
        tax = ApplicableTradeTax()
        tax.calculated_amount, tax.basis_amount, tax.rate_applicable_percent = amount, basis, rate
        tax.type_code, tax.category_code = "VAT", sample.category
        settlement.trade_tax.add(tax)
    for adjustment in sample.adjustments:
        settlement.allowance_charge.add(_adjustment(adjustment, sample))
    terms = PaymentTerms(due=sample.due)
    settlement.terms.add(terms)
    sums = settlement.monetary_summation
    sums.line_total = sample.lines_net
    sums.charge_total = sample.adjusted(charge=True)
    sums.allowance_total = sample.adjusted(charge=False)
    sums.tax_basis_total = sample.net
    sums.tax_total = (sample.tax, sample.currency)
    sums.grand_total = sample.total
    if sample.prepaid:
        sums.prepaid_total = sample.prepaid
    sums.due_amount = sample.to_pay


def _adjustment(adjustment: Adjustment, sample: Sample) -> TradeAllowanceCharge:
    entry = TradeAllowanceCharge()
    entry.indicator = adjustment.charge
    entry.actual_amount = Decimal(adjustment.amount)
    entry.reason = adjustment.reason
    tax = CategoryTradeTax()
    tax.type_code, tax.category_code, tax.rate_applicable_percent = "VAT", sample.category, adjustment.rate
    entry.trade_tax.add(tax)
    return entry
