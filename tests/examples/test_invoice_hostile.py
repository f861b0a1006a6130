"""Documents that are broken, wrong or meant to harm: each ends in an invoice or in a stated problem, soon.

The agent gives a document 20 s; every test here has that as its limit and takes a fraction of it.
"""

import random
import zlib
from pathlib import Path

import pytest
from fpdf import FPDF
from hypothesis import given, settings
from hypothesis import strategies as st

from examples.invoices import make_samples
from examples.invoices.making.data import UBL_INVOICE
from examples.invoices.making.pages import FIXED_TIME, visible_invoice
from examples.invoices.making.ubl import ubl_xml
from examples.invoices.reader import Invoice, InvoiceUnreadable, Problem, SourceFormat, read_invoice
from examples.invoices.reader.limits import MAX_DOCUMENT_BYTES, MAX_XML_BYTES

pytestmark = pytest.mark.timeout(20)

XML = ubl_xml(UBL_INVOICE)
DOCUMENTS = {
    path.name: path.read_bytes() for path in sorted(make_samples.FOLDER.iterdir()) if path.suffix != ".json"
}


def problem_of(data: bytes) -> Problem:
    with pytest.raises(InvoiceUnreadable) as refused:
        read_invoice(data)
    return refused.value.problem


def reads_or_says(data: bytes) -> Invoice | Problem:
    """What comes of a document: any exception but ours goes through and fails the test."""
    try:
        return read_invoice(data)
    except InvoiceUnreadable as unreadable:
        return unreadable.problem


def pdf_of(*objects: bytes) -> bytes:
    """A PDF of the given objects, the first of which is its catalogue."""
    out = bytearray(b"%PDF-1.7\n")
    offsets = []
    for number, content in enumerate(objects, start=1):
        offsets.append(len(out))
        out += b"%d 0 obj\n%s\nendobj\n" % (number, content)
    table = len(out)
    out += b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1)
    out += b"".join(b"%010d 00000 n \n" % offset for offset in offsets)
    out += b"trailer\n<</Size %d/Root 1 0 R>>\nstartxref\n%d\n%%%%EOF\n" % (len(objects) + 1, table)
    return bytes(out)


def stream(data: bytes, *, entries: bytes = b"") -> bytes:
    return b"<<%s/Length %d>>\nstream\n%s\nendstream" % (entries, len(data), data)


def page_with(content: bytes, *, entries: bytes = b"") -> bytes:
    font = b"<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>"
    return pdf_of(
        b"<</Type/Catalog/Pages 2 0 R>>",
        b"<</Type/Pages/Kids[3 0 R]/Count 1>>",
        b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 600 800]/Contents 4 0 R/Resources<</Font<</F1 %s>>>>>>"
        % font,
        stream(content, entries=entries),
    )


def with_embedded(data: bytes, *, name: bytes = b"factur-x.xml") -> bytes:
    """A PDF without pages that embeds deflated data."""
    return pdf_of(
        b"<</Type/Catalog/Pages 2 0 R/Names<</EmbeddedFiles<</Names[(%s) 3 0 R]>>>>>>" % name,
        b"<</Type/Pages/Kids[]/Count 0>>",
        b"<</Type/Filespec/F(%s)/EF<</F 4 0 R>>>>" % name,
        stream(data, entries=b"/Type/EmbeddedFile/Filter/FlateDecode"),
    )


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        pytest.param(b"", Problem.EMPTY, id="empty"),
        pytest.param(b" \n\t", Problem.UNKNOWN_FORMAT, id="blanks"),
        pytest.param(b"PK\x03\x04 and more", Problem.UNKNOWN_FORMAT, id="zip"),
        pytest.param(b"\x89PNG\r\n", Problem.UNKNOWN_FORMAT, id="png"),
        pytest.param(b"Dear customer, you owe us 5 euros.", Problem.UNKNOWN_FORMAT, id="text"),
        pytest.param(bytes(10_000_000), Problem.UNKNOWN_FORMAT, id="zeros"),
        pytest.param(random.Random(7).randbytes(10_000_000), Problem.UNKNOWN_FORMAT, id="random"),
        pytest.param(
            b"%PDF-1.7\n" + random.Random(8).randbytes(10_000_000), Problem.PDF_TRUNCATED, id="pdf random"
        ),
        pytest.param(
            b"%PDF-1.7\n" + random.Random(9).randbytes(10_000_000) + b"\n%%EOF\n",
            Problem.PDF_DAMAGED,
            id="pdf random ended",
        ),
        pytest.param(bytes(MAX_DOCUMENT_BYTES + 1), Problem.TOO_LARGE, id="too many bytes"),
        pytest.param(b"<a>" + b" " * MAX_XML_BYTES + b"</a>", Problem.TOO_LARGE, id="too much xml"),
        pytest.param(b"<a/>" * 2, Problem.XML_MALFORMED, id="two roots"),
        pytest.param(b"<a>" * 100_000 + b"</a>" * 100_000, Problem.XML_MALFORMED, id="too deep"),
        pytest.param(b"<a>" + b"<b/>" * 300_000 + b"</a>", Problem.TOO_LARGE, id="too many elements"),
        pytest.param(b"<html><body>Invoice</body></html>", Problem.NO_INVOICE_FOUND, id="html"),
        pytest.param(b"<Invoice><ID>1</ID></Invoice>", Problem.NO_INVOICE_FOUND, id="no namespace"),
        pytest.param(XML[:2_000], Problem.XML_MALFORMED, id="xml cut"),
        pytest.param(page_with(b""), Problem.PDF_NO_TEXT, id="blank page"),
        pytest.param(
            page_with(b"BT /F1 12 Tf 50 700 Td (Minutes of the meeting) Tj ET"),
            Problem.NO_INVOICE_FOUND,
            id="minutes",
        ),
    ],
)
def test_what_is_no_invoice_is_refused_with_its_problem(data: bytes, problem: Problem) -> None:
    """Each kind of unreadable document has a problem of its own."""
    assert problem_of(data) == problem


def test_billion_laughs_is_refused_unexpanded() -> None:
    """Entities that would grow to gigabytes are refused by their document type, before parsing."""
    entities = "".join(f'<!ENTITY l{level} "{f"&l{level - 1};" * 10}">' for level in range(1, 12))
    bomb = f'<?xml version="1.0"?><!-- hello --><!DOCTYPE i [<!ENTITY l0 "ha">{entities}]><Invoice>&l11;</Invoice>'
    assert problem_of(bomb.encode()) == Problem.XML_FORBIDDEN


def test_external_entities_are_refused_unread(tmp_path: Path) -> None:
    """An entity that names a file is refused, and the file's content is nowhere in the answer."""
    secret = tmp_path / "secret.txt"
    secret.write_text("hush-4711")
    attack = f'<!DOCTYPE i [<!ENTITY x SYSTEM "{secret.as_uri()}">]><Invoice><ID>&x;</ID></Invoice>'
    with pytest.raises(InvoiceUnreadable) as refused:
        read_invoice(attack.encode())
    assert (refused.value.problem, "hush" in str(refused.value)) == (Problem.XML_FORBIDDEN, False)


def test_a_document_type_in_utf16_is_refused_too() -> None:
    """The check is made on the text, whatever its encoding."""
    assert problem_of('<!DOCTYPE a [<!ENTITY x "y">]><a>&x;</a>'.encode("utf-16")) == Problem.XML_FORBIDDEN


@pytest.mark.parametrize("size", [50_000_000, 400_000_000])
def test_a_stream_that_unpacks_to_hundreds_of_megabytes_is_left_packed(size: int) -> None:
    """Zip bombs in a page and in an embedded file stop at the limit, not at the end of memory."""
    packer = zlib.compressobj(9)
    bomb = b"".join(
        [packer.compress(b"<a>"), *(packer.compress(bytes(1_000_000)) for _ in range(size // 1_000_000))]
    )
    bomb += packer.flush()
    assert len(bomb) < 1_000_000
    assert problem_of(page_with(bomb, entries=b"/Filter/FlateDecode")) == Problem.TOO_LARGE
    assert problem_of(with_embedded(bomb)) == Problem.TOO_LARGE


@pytest.mark.parametrize(
    "content",
    [
        b"BT /F1 10 Tf 1 0 0 1 9 9 Tm (a) Tj ET\n" * 50_000,
        b"q " * 100_000,
        b"[" * 100_000,
        b"BT /F1 10 Tf 1 0 0 1 9e30 9 Tm (Invoice 1) Tj 1 0 0 1 -9e30 -9e30 Tm (total 5.00) Tj ET",
        b"".join(b"BT /F1 9 Tf 1 0 0 1 %d 0 Tm (1.00) Tj ET\n" % column for column in range(9_000)),
    ],
    ids=["many operations", "nested states", "nested arrays", "far away", "a row of 9,000 figures"],
)
def test_pages_that_are_a_lot_of_work_end_soon(content: bytes) -> None:
    """Operations, nesting, distances and figures beyond any invoice's are bounded."""
    assert isinstance(reads_or_says(page_with(content)), Invoice | Problem)


def test_a_page_tree_that_contains_itself_is_damaged() -> None:
    """A loop among the pages ends."""
    loop = pdf_of(b"<</Type/Catalog/Pages 2 0 R>>", b"<</Type/Pages/Kids[2 0 R 2 0 R]/Count 2>>")
    assert problem_of(loop) == Problem.PDF_DAMAGED


def test_a_protected_pdf_asks_for_one_without_a_password() -> None:
    """An encrypted file is told apart from a damaged one."""
    pdf = FPDF()
    pdf.set_creation_date(FIXED_TIME)
    pdf.set_encryption(owner_password="owner", user_password="user")
    pdf.add_page()
    pdf.set_font("helvetica", size=10)
    pdf.cell(text="Invoice 1")
    assert problem_of(bytes(pdf.output())) == Problem.PDF_ENCRYPTED


def test_numbers_that_would_fill_memory_are_no_numbers() -> None:
    """`1e999999999` is left out and said; the rest is read."""
    invoice = read_invoice(XML.replace(b">23409.54<", b">1e999999999<", 1))
    assert (invoice.number, invoice.totals.total) == ("2025-30118", None)
    assert [finding.code for finding in invoice.findings] == ["not_a_number"]


def test_long_numbers_are_summed_exactly() -> None:
    """Eighteen digits before and after the point are neither rounded nor an error."""
    long = b"999999999999999999.999999999999999999"
    invoice = read_invoice(
        XML.replace(b">18450<", b">" + long + b"<", 1).replace(b">0.8725<", b">" + long + b"<", 1)
    )
    assert str(invoice.checks[0].expected) == "9" * 35 + "8.00"


def test_an_impossible_date_is_left_out_and_said() -> None:
    """The 31st of February is no date; the invoice is read without it and breaks the rule that asks for one."""
    invoice = read_invoice(XML.replace(b"2025-04-01", b"2025-02-31", 1))
    assert (invoice.issue_date, [finding.code for finding in invoice.findings]) == (
        None,
        ["not_a_date", "BR-03"],
    )


@pytest.mark.parametrize(
    ("declared", "actual", "warned"),
    [
        ("UTF-8", "utf-8", False),
        ("UTF-8", "utf-8-sig", False),
        ("UTF-16", "utf-16", False),
        ("ISO-8859-1", "iso-8859-1", False),
        ("windows-1252", "cp1252", False),
        ("ISO-8859-1", "utf-8", True),
        ("UTF-16", "utf-8", True),
        ("UTF-8-W/O-BOM", "utf-8", True),
    ],
)
def test_encodings_are_read_when_they_leave_no_doubt(declared: str, actual: str, *, warned: bool) -> None:
    """Right declarations are followed; wrong ones are overruled where the bytes are UTF-8, and that is said."""
    text = XML.decode().replace("UTF-8", declared, 1)
    invoice = read_invoice(text.encode(actual))
    assert (invoice.seller.name, [finding.code for finding in invoice.findings]) == (
        "Fjällvind Energi AB",
        [Problem.XML_ENCODING] * warned,
    )


@pytest.mark.parametrize(("declared", "actual"), [("UTF-8", "iso-8859-1"), ("KLINGON", "iso-8859-1")])
def test_encodings_in_doubt_are_not_guessed(declared: str, actual: str) -> None:
    """Bytes that are neither what is declared nor UTF-8 are refused: a guess would change names."""
    assert problem_of(XML.decode().replace("UTF-8", declared, 1).encode(actual)) == Problem.XML_ENCODING


def test_ubl_inside_a_pdf_is_read() -> None:
    """The embedded file need not be CII, nor have a name of the standards'."""
    invoice = read_invoice(visible_invoice(UBL_INVOICE, xml=XML, xml_name="invoice-data.xml"))
    assert (invoice.number, invoice.source_format) == ("2025-30118", SourceFormat.PDF_UBL)


def test_an_unreadable_embedded_file_falls_back_to_the_pages_and_is_said() -> None:
    """Where the XML inside is broken, the words are read and the finding is an error."""
    invoice = read_invoice(visible_invoice(UBL_INVOICE, xml=XML[:2_000]))
    assert (invoice.number, invoice.source_format, invoice.valid) == (
        "2025-30118",
        SourceFormat.PDF_TEXT,
        False,
    )
    assert Problem.XML_MALFORMED in {finding.code for finding in invoice.findings}


def test_the_name_of_a_file_is_shown_short_and_printable() -> None:
    """Names come from strangers: no path, no control characters, no thousand letters in a message."""
    with pytest.raises(InvoiceUnreadable) as refused:
        read_invoice(b"", filename="../../etc/\x1b[31m" + "a" * 500 + ".pdf")
    assert refused.value.message == "[31m" + "a" * 76 + ": the document has no bytes"


@given(st.binary(max_size=400))
@settings(max_examples=150, deadline=None)
def test_random_bytes_never_crash(data: bytes) -> None:
    """Random bytes, bare and behind the heads of both formats, end in a problem."""
    for head in (b"", b"%PDF-1.4\n", b"<?xml version='1.0'?>", b"<Invoice>"):
        assert isinstance(reads_or_says(head + data), Problem)


@given(
    st.sampled_from(sorted(DOCUMENTS)),
    st.integers(0, 2**32),
    st.sampled_from(["cut", "change", "drop", "double"]),
)
@settings(max_examples=150, deadline=None)
def test_mutated_documents_never_crash(name: str, seed: int, kind: str) -> None:
    """Real documents that were cut, changed, thinned or doubled somewhere give an invoice or a problem."""
    chance = random.Random(seed)
    data = bytearray(DOCUMENTS[name])
    at = chance.randrange(len(data))
    length = chance.randrange(1, 300)
    if kind == "cut":
        del data[at:]
    elif kind == "change":
        for _ in range(chance.randrange(1, 25)):
            data[chance.randrange(len(data))] = chance.randrange(256)
    elif kind == "drop":
        del data[at : at + length]
    else:
        data[at:at] = data[at : at + length]
    assert isinstance(reads_or_says(bytes(data)), Invoice | Problem)
