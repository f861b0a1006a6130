"""PDF from strangers: the files embedded in it and the text on its pages, within bounds.

pypdf does the reading. It is given small limits in place of its generous ones, and whatever it raises on damaged
input (its own errors, and the KeyErrors of structures that are not what they say) becomes one of our problems.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from typing import Final

import pypdf
from pypdf.errors import DependencyError, FileNotDecryptedError, LimitReachedError

from .limits import (
    MAX_ATTACHMENTS,
    MAX_DOCUMENT_BYTES,
    MAX_PAGE_CONTENT_BYTES,
    MAX_PAGE_OPERATIONS,
    MAX_TEXT_PAGES,
    MAX_TOTAL_CONTENT_BYTES,
    MAX_XML_BYTES,
    PDF_HEAD_BYTES,
    PDF_TAIL_BYTES,
)
from .problems import InvoiceUnreadable, Problem

# pypdf tells of every oddity in its log; what matters is in the problem. Programs that configure it still see it.
logging.getLogger("pypdf").addHandler(logging.NullHandler())

_LIMITS: Final = pypdf.get_configuration().with_overwrites(
    maximum_declared_stream_length=MAX_DOCUMENT_BYTES,
    array_based_stream_maximum_output_length=MAX_XML_BYTES,
    zlib_maximum_output_length=MAX_XML_BYTES,
    zlib_maximum_recovery_input_length=1024 * 1024,
    lzw_maximum_output_length=MAX_XML_BYTES,
    run_length_maximum_output_length=MAX_XML_BYTES,
    brotli_maximum_output_length=MAX_XML_BYTES,
    stream_filters_maximum_length=4,
    stream_decoding_work_maximum_length=4 * MAX_XML_BYTES,
    stream_parsing_work_maximum_count=MAX_PAGE_OPERATIONS,
    page_tree_maximum_entries=2_000,
    page_tree_maximum_page_entries=50_000,
    named_destinations_maximum_entries=2_000,
    xform_maximum_invocations_per_extraction=200,
    jbig2dec_binary=None,
)


@dataclass(frozen=True, slots=True)
class EmbeddedFile:
    """A file inside the PDF."""

    name: str
    data: bytes


def looks_like_pdf(data: bytes) -> bool:
    """Whether a PDF header stands where readers look for one."""
    return b"%PDF-" in data[:PDF_HEAD_BYTES]


def ends_like_pdf(data: bytes) -> bool:
    """Whether the end marker is there; where it is not, the file was cut short."""
    return b"%%EOF" in data[-PDF_TAIL_BYTES:]


def embedded_xml_files(data: bytes) -> list[EmbeddedFile]:
    """The XML files embedded in the PDF, in its own order.

    Raises:
        InvoiceUnreadable: `PDF_TRUNCATED`, `PDF_DAMAGED`, `PDF_ENCRYPTED` or `TOO_LARGE`.
    """
    with _reading(data) as reader:
        found = []
        for position, entry in enumerate(reader.attachment_list):
            if position >= MAX_ATTACHMENTS:
                break
            if entry.name.lower().endswith(".xml") or entry.subtype in ("/text/xml", "/application/xml"):
                found.append(EmbeddedFile(name=entry.name, data=bytes(entry.content)))
        return found


def page_texts(data: bytes) -> list[str]:
    """The text of each page, laid out in columns of characters as on the page.

    Pages past `MAX_TEXT_PAGES`, and pages whose drawing instructions are larger than any invoice's, give nothing.

    Raises:
        InvoiceUnreadable: `PDF_TRUNCATED`, `PDF_DAMAGED`, `PDF_ENCRYPTED` or `TOO_LARGE`.
    """
    with _reading(data) as reader:
        texts: list[str] = []
        budget = MAX_TOTAL_CONTENT_BYTES
        for page in reader.pages[:MAX_TEXT_PAGES]:
            contents = page.get_contents()
            size = len(contents.get_data()) if contents is not None else 0
            budget -= size
            if budget < 0:
                break
            if size <= MAX_PAGE_CONTENT_BYTES:
                texts.append(_page_text(page))
        return texts


def _page_text(page: pypdf.PageObject) -> str:
    """Layout mode keeps columns apart; it does not see into form objects, so plain mode is asked where it is blank."""
    laid_out = page.extract_text(extraction_mode="layout")
    return laid_out if laid_out.strip() else page.extract_text()


@contextmanager
def _reading(data: bytes) -> Iterator[pypdf.PdfReader]:
    try:
        with pypdf.apply_configuration(_LIMITS):
            reader = pypdf.PdfReader(BytesIO(data), strict=False)
            if reader.is_encrypted and not reader.decrypt(""):
                raise FileNotDecryptedError("a password is needed")
            yield reader
    except InvoiceUnreadable:
        raise
    except (FileNotDecryptedError, DependencyError) as error:
        raise InvoiceUnreadable(
            Problem.PDF_ENCRYPTED, "the PDF is protected by a password; save it without one"
        ) from error
    except LimitReachedError as error:
        raise InvoiceUnreadable(
            Problem.TOO_LARGE, "the PDF unpacks to more than an invoice holds, and was not read further"
        ) from error
    except Exception as error:  # damaged structures surface as any error whatever
        if not ends_like_pdf(data):
            raise InvoiceUnreadable(
                Problem.PDF_TRUNCATED,
                f"the PDF breaks off after {len(data):,} bytes, before its end marker; send the whole file",
            ) from error
        raise InvoiceUnreadable(
            Problem.PDF_DAMAGED, "the PDF is damaged inside; open it in a viewer and save it again"
        ) from error
