"""The order of reading: what is it, where in it is the invoice, what does it say, is that right.

`read_invoice` is one function whose body is that order.
"""

from decimal import localcontext
from pathlib import PurePath
from typing import Final

from . import cii, ubl
from .draft import Draft
from .limits import MAX_DOCUMENT_BYTES
from .model import Finding, Invoice, Party, Severity, SourceFormat
from .pdf import EmbeddedFile, embedded_xml_files, ends_like_pdf, looks_like_pdf, page_texts
from .problems import InvoiceUnreadable, Problem
from .rules import findings_of
from .sums import checks_of
from .text import read_text
from .xml_node import looks_like_xml, parse_xml

# The names that the standards give to the embedded invoice; other XML files are tried after these.
_INVOICE_FILE_NAMES: Final = ("factur-x.xml", "xrechnung.xml", "zugferd-invoice.xml")
_ROOT_NAMES: Final = frozenset(
    {cii.ROOT_NAME, cii.ZUGFERD1_ROOT_NAME, ubl.INVOICE_ROOT_NAME, ubl.CREDIT_NOTE_ROOT_NAME}
)
# Quantity × price of the longest numbers that are read: 18 digits before and after the point, each.
_DECIMAL_PRECISION: Final = 80
_ARCHIVES: Final = (
    (b"PK\x03\x04", "a ZIP archive"),
    (b"\x1f\x8b", "a gzip file"),
    (b"Rar!", "a RAR archive"),
)
_IMAGES: Final = (
    (b"\x89PNG", "a PNG image"),
    (b"\xff\xd8\xff", "a JPEG image"),
    (b"II*\x00", "a TIFF image"),
)


def read_invoice(data: bytes, *, filename: str = "") -> Invoice:
    """Read one invoice document.

    Args:
        data: the whole file: PDF or XML, at most 20 MiB.
        filename: named in messages; nothing is opened.

    Returns:
        The invoice as stated, with `checks` of its sums and `findings` about it.

    Raises:
        InvoiceUnreadable: nothing could be read; `problem` says why.
    """
    try:
        with localcontext(prec=_DECIMAL_PRECISION):
            return _read(data)
    except InvoiceUnreadable as unreadable:
        raise unreadable.named(_shown(filename)) from unreadable


def _read(data: bytes) -> Invoice:
    if not data:
        raise InvoiceUnreadable(Problem.EMPTY, "the document has no bytes")
    if len(data) > MAX_DOCUMENT_BYTES:
        raise InvoiceUnreadable(
            Problem.TOO_LARGE,
            f"the document has {len(data):,} bytes; at most {MAX_DOCUMENT_BYTES:,} are read",
        )
    if looks_like_pdf(data):
        return _read_pdf(data)
    if looks_like_xml(data):
        draft, source_format = _draft_from_xml(data, in_pdf=False)
        return _finish(draft, source_format)
    raise InvoiceUnreadable(
        Problem.UNKNOWN_FORMAT, f"the document is {_what(data)}; send a PDF, or UBL or CII XML"
    )


def _read_pdf(data: bytes) -> Invoice:
    """The embedded XML is the invoice where there is one; the pages are read where there is none."""
    findings: list[Finding] = []
    first_problem: InvoiceUnreadable | None = None
    for file in sorted(embedded_xml_files(data), key=_by_likelihood):
        try:
            draft, source_format = _draft_from_xml(file.data, in_pdf=True)
        except InvoiceUnreadable as unreadable:
            if unreadable.problem is not Problem.NO_INVOICE_FOUND:
                first_problem = first_problem or unreadable
                findings.append(_unreadable_file(file, unreadable))
            continue
        draft.findings.extend(findings)
        if not ends_like_pdf(data):
            message = "the PDF breaks off before its end marker; the embedded invoice is whole and was read"
            draft.findings.append(Finding(code=Problem.PDF_TRUNCATED, message=message))
        return _finish(draft, source_format)
    if not ends_like_pdf(data):
        raise InvoiceUnreadable(
            Problem.PDF_TRUNCATED,
            "the PDF breaks off before its end marker, so pages may be missing; send the whole",
        )
    try:
        draft = read_text(page_texts(data))
    except InvoiceUnreadable as unreadable:
        raise first_problem or unreadable from unreadable
    draft.findings.extend(findings)
    return _finish(draft, SourceFormat.PDF_TEXT)


def _draft_from_xml(data: bytes, *, in_pdf: bool) -> tuple[Draft, SourceFormat]:
    parsed = parse_xml(data)
    root = parsed.root.descend(_ROOT_NAMES)
    if root is None:
        raise InvoiceUnreadable(
            Problem.NO_INVOICE_FOUND,
            f"the XML holds <{parsed.root.name[:60]}>, which is no invoice in UBL 2 or UN/CEFACT CII",
        )
    if root.name == cii.ZUGFERD1_ROOT_NAME:
        draft, format_ = (
            cii.read_cii(root),
            SourceFormat.PDF_ZUGFERD1 if in_pdf else SourceFormat.XML_ZUGFERD1,
        )
    elif root.name == cii.ROOT_NAME:
        draft, format_ = cii.read_cii(root), SourceFormat.PDF_CII if in_pdf else SourceFormat.XML_CII
    elif root.namespace in ubl.NAMESPACES:
        draft, format_ = ubl.read_ubl(root), SourceFormat.PDF_UBL if in_pdf else SourceFormat.XML_UBL
    else:
        raise InvoiceUnreadable(
            Problem.NO_INVOICE_FOUND,
            f"the XML holds <{root.name}> of the namespace {root.namespace[:80]!r}, which is not UBL 2",
        )
    draft.require_invoice()
    draft.findings[:0] = parsed.findings
    return draft, format_


def _finish(draft: Draft, source_format: SourceFormat) -> Invoice:
    """The draft with its sums worked out again and the rules that it breaks."""
    draft.require_invoice()
    return Invoice(
        number=draft.number or "",
        kind=draft.kind,
        type_code=draft.type_code,
        issue_date=draft.issue_date,
        due_date=draft.due_date,
        delivery_date=draft.delivery_date,
        period_start=draft.period_start,
        period_end=draft.period_end,
        seller=draft.seller or Party(name=""),
        buyer=draft.buyer,
        currency=draft.currency,
        lines=tuple(draft.lines),
        allowances_charges=tuple(draft.allowances_charges),
        tax_groups=tuple(draft.tax_groups),
        totals=draft.totals,
        source_format=source_format,
        profile=draft.profile,
        checks=tuple(checks_of(draft)),
        findings=(*draft.findings, *findings_of(draft)),
    )


def _by_likelihood(file: EmbeddedFile) -> int:
    name = file.name.lower()
    return _INVOICE_FILE_NAMES.index(name) if name in _INVOICE_FILE_NAMES else len(_INVOICE_FILE_NAMES)


def _unreadable_file(file: EmbeddedFile, unreadable: InvoiceUnreadable) -> Finding:
    return Finding(
        code=unreadable.problem,
        message=f"the embedded file {_shown(file.name)} could not be read: {unreadable.message}",
        severity=Severity.ERROR,
    )


def _what(data: bytes) -> str:
    for magic, name in _ARCHIVES:
        if data.startswith(magic):
            return f"{name} (unpack it first)"
    for magic, name in _IMAGES:
        if data.startswith(magic):
            return f"{name} (it needs text recognition first)"
    return "neither PDF nor XML"


def _shown(filename: str) -> str:
    """The last part of a name, printable and short: names come from strangers too."""
    name = "".join(letter for letter in PurePath(filename.replace("\\", "/")).name if letter.isprintable())
    return name[:80]
