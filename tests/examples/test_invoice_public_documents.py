"""Thirteen public documents, read as a person reads them.

The expected values were taken from the documents' XML by eye. The folder lies beside the checkout and is not part of
the project; without it these tests are skipped.
"""

from decimal import Decimal
from pathlib import Path

import pytest

from examples.invoices.reader import (
    CheckName,
    Invoice,
    InvoiceKind,
    InvoiceUnreadable,
    Problem,
    Severity,
    SourceFormat,
    read_invoice,
)

FOLDER = Path(__file__).resolve().parents[3] / "shared" / "invoices"
pytestmark = pytest.mark.skipif(
    not FOLDER.is_dir(), reason="the public documents are not beside this checkout"
)

# number, seller, currency, net, total, due, lines
READABLE = {
    "cii_negative_payment_due.xml": ("471102", "Lieferant GmbH", "EUR", "473.00", "529.87", "-529.87", 2),
    "cii_public_transport.xml": ("E2018092011804", "Verkehrsbetriebe GmbH", "EUR", "8.41", "9.00", "9.00", 1),
    "cii_xrechnung_simple.xml": ("471102", "Lieferant GmbH", "EUR", "473.00", "529.87", "529.87", 2),
    "facturx_en16931_credit_note.pdf": ("471102", "Lieferant GmbH", "EUR", "473.00", "529.87", "529.87", 2),
    "facturx_en16931_discounts.pdf": ("471102", "Lieferant GmbH", "EUR", "193.77", "215.07", "165.07", 4),
    "facturx_en16931_simple.pdf": ("471102", "Lieferant GmbH", "EUR", "473.00", "529.87", "529.87", 2),
    "facturx_fr_intra_eu_reported_invalid.pdf": (
        "FA-2017-0008",
        "Au bon moulin",
        "EUR",
        "2076.76",
        "2076.76",
        "1453.76",
        3,
    ),
    "facturx_invalid_xml_encoding.pdf": (
        "RE-20201121/508",
        "Bei Spiel GmbH",
        "EUR",
        "496.00",
        "571.04",
        "571.04",
        3,
    ),
    "ubl_credit_note.xml": ("018304 / 28865", "My Supplier Company", "EUR", "100.11", "100.11", "100.11", 1),
    "ubl_intra_eu.xml": ("47110818", "Global Supplies Ltd.", "EUR", "2000.00", "2000.00", "2000.00", 2),
    "ubl_rent.xml": ("9314110911/00/M/00/N", "MUSTER-Autovermietung", "EUR", "286.52", "340.96", "340.96", 6),
    "zugferd_v1_comfort_discounts.pdf": ("471102", "Lieferant GmbH", "EUR", "193.83", "215.14", "165.14", 4),
}
FORMATS = {
    "cii": SourceFormat.XML_CII,
    "facturx": SourceFormat.PDF_CII,
    "ubl": SourceFormat.XML_UBL,
    "zugferd": SourceFormat.PDF_ZUGFERD1,
}


def read(name: str) -> Invoice:
    return read_invoice((FOLDER / name).read_bytes(), filename=name)


def test_every_document_of_the_folder_is_covered() -> None:
    """The folder holds the twelve readable documents, the one cut short, and nothing that no test reads."""
    documents = {path.name for path in FOLDER.iterdir() if path.suffix in {".pdf", ".xml"}}
    assert documents == {*READABLE, "truncated.pdf"}


@pytest.mark.parametrize("name", sorted(READABLE))
def test_a_public_document_reads_as_it_says(name: str) -> None:
    """Number, seller, currency, net, total, amount due and line count are those of the document."""
    invoice = read(name)
    assert (
        invoice.number,
        invoice.seller.name,
        invoice.currency,
        f"{invoice.totals.net:.2f}",
        f"{invoice.totals.total:.2f}",
        f"{invoice.totals.due:.2f}",
        len(invoice.lines),
    ) == READABLE[name]
    assert invoice.source_format is FORMATS[name.partition("_")[0]]


@pytest.mark.parametrize("name", sorted(set(READABLE) - {"facturx_fr_intra_eu_reported_invalid.pdf"}))
def test_a_right_document_breaks_no_rule(name: str) -> None:
    """Nothing is held against a document whose sums and statements follow the standard."""
    assert read(name).valid is True


def test_the_document_reported_invalid_says_why() -> None:
    """The intra-Community invoice without a delivery date breaks BR-IC-11; a line that does not multiply is told."""
    invoice = read("facturx_fr_intra_eu_reported_invalid.pdf")
    assert invoice.valid is False
    assert [(finding.code, finding.severity) for finding in invoice.findings] == [
        ("BR-IC-11", Severity.ERROR)
    ]
    assert [
        (check.check, check.subject, check.expected, check.actual) for check in invoice.checks if not check.ok
    ] == [(CheckName.LINE_NET, "line 1", Decimal("32.80"), Decimal("32.76"))]


def test_the_document_with_the_wrong_encoding_is_read_and_says_so() -> None:
    """XML that declares UTF-8-W/O-BOM is read as the UTF-8 that it is, letters and all, and a warning tells it."""
    invoice = read("facturx_invalid_xml_encoding.pdf")
    assert [finding.code for finding in invoice.findings] == [Problem.XML_ENCODING]
    assert "UTF-8-W/O-BOM" in invoice.findings[0].message
    assert invoice.lines[2].description == "Hot air „heiße Luft“ (litres)"


def test_the_document_cut_short_is_refused_with_the_reason() -> None:
    """A PDF that ends in the middle is `pdf_truncated`, with its length and what to do."""
    with pytest.raises(InvoiceUnreadable) as refused:
        read("truncated.pdf")
    assert refused.value.problem is Problem.PDF_TRUNCATED
    assert refused.value.message == (
        "truncated.pdf: the PDF breaks off after 60,000 bytes, before its end marker; send the whole file"
    )


def test_a_note_between_lines_is_no_line() -> None:
    """ZUGFeRD 1 states a remark as a line item of its own; four positions are four lines, and freight is a charge."""
    invoice = read("zugferd_v1_comfort_discounts.pdf")
    assert [line.id for line in invoice.lines] == ["1", "2", "3", "4"]
    assert [(entry.charge, entry.amount) for entry in invoice.allowances_charges] == [
        (False, Decimal("1.00")),
        (False, Decimal("13.73")),
        (True, Decimal("5.80")),
    ]
    assert [(check.subject, check.expected, check.actual) for check in invoice.checks if not check.ok] == [
        ("line 4", Decimal("55.40"), Decimal("55.46"))
    ]


def test_the_kind_is_what_the_type_code_says() -> None:
    """A UBL credit note is one; the self-billed invoice (389) under a credit note's file name is an invoice."""
    assert read("ubl_credit_note.xml").kind is InvoiceKind.CREDIT_NOTE
    assert read("facturx_en16931_credit_note.pdf").kind is InvoiceKind.INVOICE
