"""ZUGFeRD 1 XML (comfort profile, 2014), which drafthorse no longer writes: a template filled and escaped by hand."""

from datetime import date
from decimal import Decimal
from typing import Final
from xml.sax.saxutils import escape

from examples.invoices.making.data import Adjustment, Company, Item, Sample

_DOCUMENT: Final = """<?xml version="1.0" encoding="UTF-8"?>
<rsm:CrossIndustryDocument xmlns:rsm="urn:ferd:CrossIndustryDocument:invoice:1p0"
 xmlns:ram="urn:un:unece:uncefact:data:standard:ReusableAggregateBusinessInformationEntity:12"
 xmlns:udt="urn:un:unece:uncefact:data:standard:UnqualifiedDataType:15">
<rsm:SpecifiedExchangedDocumentContext>
<ram:GuidelineSpecifiedDocumentContextParameter><ram:ID>urn:ferd:CrossIndustryDocument:invoice:1p0:comfort</ram:ID>\
</ram:GuidelineSpecifiedDocumentContextParameter>
</rsm:SpecifiedExchangedDocumentContext>
<rsm:HeaderExchangedDocument><ram:ID>{number}</ram:ID><ram:Name>RECHNUNG</ram:Name><ram:TypeCode>380</ram:TypeCode>
<ram:IssueDateTime>{issued}</ram:IssueDateTime></rsm:HeaderExchangedDocument>
<rsm:SpecifiedSupplyChainTradeTransaction>
<ram:ApplicableSupplyChainTradeAgreement>
<ram:SellerTradeParty>{seller}</ram:SellerTradeParty>
<ram:BuyerTradeParty>{buyer}</ram:BuyerTradeParty>
</ram:ApplicableSupplyChainTradeAgreement>
<ram:ApplicableSupplyChainTradeDelivery><ram:ActualDeliverySupplyChainEvent>
<ram:OccurrenceDateTime>{delivered}</ram:OccurrenceDateTime>
</ram:ActualDeliverySupplyChainEvent></ram:ApplicableSupplyChainTradeDelivery>
<ram:ApplicableSupplyChainTradeSettlement>
<ram:InvoiceCurrencyCode>{currency}</ram:InvoiceCurrencyCode>
{taxes}
{charges}
<ram:SpecifiedTradePaymentTerms><ram:Description>30 Tage netto</ram:Description>
<ram:DueDateDateTime>{due}</ram:DueDateDateTime></ram:SpecifiedTradePaymentTerms>
<ram:SpecifiedTradeSettlementMonetarySummation>
{sums}
</ram:SpecifiedTradeSettlementMonetarySummation>
</ram:ApplicableSupplyChainTradeSettlement>
{lines}
</rsm:SpecifiedSupplyChainTradeTransaction>
</rsm:CrossIndustryDocument>
"""


def zugferd1_xml(sample: Sample) -> bytes:
    """The document in UTF-8; its charges are freight, which this version keeps apart from other charges."""
    sums = (
        ("LineTotalAmount", sample.lines_net),
        ("ChargeTotalAmount", sample.adjusted(charge=True)),
        ("AllowanceTotalAmount", Decimal("0.00")),
        ("TaxBasisTotalAmount", sample.net),
        ("TaxTotalAmount", sample.tax),
        ("GrandTotalAmount", sample.total),
        ("DuePayableAmount", sample.to_pay),
    )
    return _DOCUMENT.format(
        number=escape(sample.number),
        issued=_day(sample.issued),
        due=_day(sample.due),
        delivered=_day(sample.delivered),
        seller=_party(sample.seller),
        buyer=_party(sample.buyer),
        currency=sample.currency,
        taxes="\n".join(_tax(*group, sample) for group in sample.tax_groups),
        charges="\n".join(_freight(entry, sample) for entry in sample.adjustments),
        sums="\n".join(_money(name, amount, sample) for name, amount in sums),
        lines="\n".join(_line(position, item, sample) for position, item in enumerate(sample.items, start=1)),
    ).encode()


def _day(day: date) -> str:
    return f'<udt:DateTimeString format="102">{day:%Y%m%d}</udt:DateTimeString>'


def _money(name: str, amount: Decimal, sample: Sample) -> str:
    return f'<ram:{name} currencyID="{sample.currency}">{amount}</ram:{name}>'


def _party(company: Company) -> str:
    return (
        f"<ram:Name>{escape(company.name)}</ram:Name><ram:PostalTradeAddress>"
        f"<ram:PostcodeCode>{company.postal_code}</ram:PostcodeCode><ram:LineOne>{escape(company.street)}</ram:LineOne>"
        f"<ram:CityName>{escape(company.city)}</ram:CityName><ram:CountryID>{company.country}</ram:CountryID>"
        f"</ram:PostalTradeAddress><ram:SpecifiedTaxRegistration>"
        f'<ram:ID schemeID="VA">{company.vat_id}</ram:ID></ram:SpecifiedTaxRegistration>'
    )


def _rate(rate: Decimal, name: str) -> str:
    return (
        f"<ram:{name}><ram:TypeCode>VAT</ram:TypeCode><ram:CategoryCode>S</ram:CategoryCode>"
        f"<ram:ApplicablePercent>{rate}</ram:ApplicablePercent></ram:{name}>"
    )


def _tax(rate: Decimal, basis: Decimal, amount: Decimal, sample: Sample) -> str:
    return (
        f"<ram:ApplicableTradeTax>{_money('CalculatedAmount', amount, sample)}<ram:TypeCode>VAT</ram:TypeCode>"
        f"{_money('BasisAmount', basis, sample)}<ram:CategoryCode>S</ram:CategoryCode>"
        f"<ram:ApplicablePercent>{rate}</ram:ApplicablePercent></ram:ApplicableTradeTax>"
    )


def _freight(entry: Adjustment, sample: Sample) -> str:
    return (
        f"<ram:SpecifiedLogisticsServiceCharge><ram:Description>{escape(entry.reason)}</ram:Description>"
        f"{_money('AppliedAmount', entry.amount, sample)}{_rate(entry.rate, 'AppliedTradeTax')}"
        "</ram:SpecifiedLogisticsServiceCharge>"
    )


def _line(position: int, item: Item, sample: Sample) -> str:
    return (
        "<ram:IncludedSupplyChainTradeLineItem><ram:AssociatedDocumentLineDocument>"
        f"<ram:LineID>{position}</ram:LineID></ram:AssociatedDocumentLineDocument>"
        "<ram:SpecifiedSupplyChainTradeAgreement><ram:NetPriceProductTradePrice>"
        f"{_money('ChargeAmount', item.price, sample)}</ram:NetPriceProductTradePrice>"
        "</ram:SpecifiedSupplyChainTradeAgreement><ram:SpecifiedSupplyChainTradeDelivery>"
        f'<ram:BilledQuantity unitCode="{item.unit}">{item.quantity}</ram:BilledQuantity>'
        "</ram:SpecifiedSupplyChainTradeDelivery><ram:SpecifiedSupplyChainTradeSettlement>"
        f"{_rate(item.rate, 'ApplicableTradeTax')}<ram:SpecifiedTradeSettlementMonetarySummation>"
        f"{_money('LineTotalAmount', item.net, sample)}</ram:SpecifiedTradeSettlementMonetarySummation>"
        "</ram:SpecifiedSupplyChainTradeSettlement><ram:SpecifiedTradeProduct>"
        f"<ram:Name>{escape(item.description)}</ram:Name></ram:SpecifiedTradeProduct>"
        "</ram:IncludedSupplyChainTradeLineItem>"
    )
