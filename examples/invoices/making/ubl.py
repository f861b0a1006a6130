"""UBL 2.1 XML, element by element in the order that the schema asks for."""

from decimal import Decimal
from typing import Any, Final

from lxml import etree

from examples.invoices.making.data import Company, Item, Sample

_CAC: Final = "urn:oasis:names:specification:ubl:schema:xsd:CommonAggregateComponents-2"
_CBC: Final = "urn:oasis:names:specification:ubl:schema:xsd:CommonBasicComponents-2"
_ROOT: Final = "urn:oasis:names:specification:ubl:schema:xsd:{}-2"


def ubl_xml(sample: Sample, *, stated_total: Decimal | None = None) -> bytes:
    """The document as UBL in UTF-8; `stated_total` puts a wrong total into it."""
    name = "CreditNote" if sample.credit else "Invoice"
    root = etree.Element(
        f"{{{_ROOT.format(name)}}}{name}", nsmap={None: _ROOT.format(name), "cac": _CAC, "cbc": _CBC}
    )
    _basic(root, "CustomizationID", sample.profile)
    _basic(root, "ProfileID", "urn:fdc:peppol.eu:2017:poacc:billing:01:1.0")
    _basic(root, "ID", sample.number)
    _basic(root, "IssueDate", sample.issued.isoformat())
    if not sample.credit:
        _basic(root, "DueDate", sample.due.isoformat())
    _basic(root, f"{name}TypeCode", "381" if sample.credit else "380")
    if sample.note:
        _basic(root, "Note", sample.note)
    _basic(root, "DocumentCurrencyCode", sample.currency)
    _basic(root, "BuyerReference", "PO-5512")
    _party(_group(root, "AccountingSupplierParty"), sample.seller)
    _party(_group(root, "AccountingCustomerParty"), sample.buyer)
    _basic(_group(root, "Delivery"), "ActualDeliveryDate", sample.delivered.isoformat())
    means = _group(root, "PaymentMeans")
    _basic(means, "PaymentMeansCode", "30")
    _basic(_group(means, "PayeeFinancialAccount"), "ID", "DE02120300000000202051")
    _tax_total(root, sample)
    _totals(root, sample, stated_total)
    for position, item in enumerate(sample.items, start=1):
        _line(_group(root, f"{name}Line"), position, item, sample)
    return bytes(etree.tostring(root, xml_declaration=True, encoding="UTF-8", pretty_print=True))


def _basic(parent: Any, name: str, text: str, **attributes: str) -> None:
    etree.SubElement(parent, f"{{{_CBC}}}{name}", attributes).text = text


def _group(parent: Any, name: str) -> Any:
    return etree.SubElement(parent, f"{{{_CAC}}}{name}")


def _money(parent: Any, name: str, amount: Decimal, sample: Sample) -> None:
    _basic(parent, name, f"{amount:.2f}", currencyID=sample.currency)


def _party(parent: Any, company: Company) -> None:
    party = _group(parent, "Party")
    _basic(party, "EndpointID", company.email, schemeID="EM")
    _basic(_group(party, "PartyName"), "Name", company.name)
    address = _group(party, "PostalAddress")
    _basic(address, "StreetName", company.street)
    _basic(address, "CityName", company.city)
    _basic(address, "PostalZone", company.postal_code)
    _basic(_group(address, "Country"), "IdentificationCode", company.country)
    tax = _group(party, "PartyTaxScheme")
    _basic(tax, "CompanyID", company.vat_id)
    _basic(_group(tax, "TaxScheme"), "ID", "VAT")
    _basic(_group(party, "PartyLegalEntity"), "RegistrationName", company.name)


def _category(parent: Any, name: str, rate: Decimal) -> None:
    category = _group(parent, name)
    _basic(category, "ID", "S" if rate else "Z")
    _basic(category, "Percent", str(rate))
    _basic(_group(category, "TaxScheme"), "ID", "VAT")


def _tax_total(root: Any, sample: Sample) -> None:
    tax_total = _group(root, "TaxTotal")
    _money(tax_total, "TaxAmount", sample.tax, sample)
    for rate, basis, amount in sample.tax_groups:
        subtotal = _group(tax_total, "TaxSubtotal")
        _money(subtotal, "TaxableAmount", basis, sample)
        _money(subtotal, "TaxAmount", amount, sample)
        _category(subtotal, "TaxCategory", rate)


def _totals(root: Any, sample: Sample, stated_total: Decimal | None) -> None:
    total = sample.total if stated_total is None else stated_total
    sums = _group(root, "LegalMonetaryTotal")
    _money(sums, "LineExtensionAmount", sample.lines_net, sample)
    _money(sums, "TaxExclusiveAmount", sample.net, sample)
    _money(sums, "TaxInclusiveAmount", total, sample)
    _money(sums, "PayableAmount", total - sample.prepaid, sample)


def _line(line: Any, position: int, item: Item, sample: Sample) -> None:
    _basic(line, "ID", str(position))
    _basic(
        line,
        "CreditedQuantity" if sample.credit else "InvoicedQuantity",
        str(item.quantity),
        unitCode=item.unit,
    )
    _money(line, "LineExtensionAmount", item.net, sample)
    product = _group(line, "Item")
    _basic(product, "Name", item.description)
    _category(product, "ClassifiedTaxCategory", item.rate)
    _basic(_group(line, "Price"), "PriceAmount", str(item.price), currencyID=sample.currency)
