"""A hybrid joined by the factur-x library, which puts XML into a PDF that somebody else made."""

import re
from typing import Final

import facturx

from examples.invoices.making.pages import FIXED_TIME

# The library stamps the clock into the file (a colon may be escaped); the stamps are set back, digit for digit.
_PDF_TIME: Final = re.compile(rb"(D:|D\\072)\d{14}")
_XMP_TIME: Final = re.compile(rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d")


def join(pdf: bytes, xml: bytes, *, language: str) -> bytes:
    """The PDF with the XML inside as `factur-x.xml`, checked against the schema that the library ships."""
    joined = bytes(
        facturx.generate_from_binary(pdf, xml, flavor="factur-x", lang=language, xmp_compression=False)
    )
    joined = _PDF_TIME.sub(rb"\g<1>" + f"{FIXED_TIME:%Y%m%d%H%M%S}".encode(), joined)
    return _XMP_TIME.sub(f"{FIXED_TIME:%Y-%m-%dT%H:%M:%S}".encode(), joined)
