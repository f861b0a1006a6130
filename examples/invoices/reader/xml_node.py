"""XML from strangers: parsed without document types, entities or network, and read by local names.

Encodings are decided here and not by the XML library, because real invoices declare wrong ones: a declaration
that does not fit the bytes is overruled where the bytes are beyond doubt UTF-8, and that is said; where they
are not, nothing is guessed.
"""

import codecs
import re
from dataclasses import dataclass
from typing import Final

from lxml import etree

from .limits import MAX_FIELD_CHARS, MAX_XML_BYTES, MAX_XML_ELEMENTS
from .model import Finding
from .problems import InvoiceUnreadable, Problem

_DECLARATION: Final = re.compile(r"\A<\?xml\s[^>]{0,300}?\?>")
_DECLARED_ENCODING: Final = re.compile(rb"""\A<\?xml\s[^>]{0,200}?encoding\s*=\s*["']([^"'>]{1,60})["']""")
_BYTE_ORDER_MARKS: Final = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
# What invoices are written in. Python knows stranger codecs (zlib, punycode), which have no business here.
_TEXT_ENCODINGS: Final = re.compile(
    r"utf-?8|utf-?16(-?[lb]e)?|us-?ascii|iso-?8859-?\d{1,2}|latin-?1|(windows|cp)-?125\d"
)


class Node:
    """An element, read by local names: `node.text("SellerTradeParty/Name")` in whatever namespace."""

    __slots__ = ("_element",)

    def __init__(self, element: etree._Element) -> None:
        self._element = element

    @property
    def name(self) -> str:
        """The local name."""
        return str(etree.QName(self._element).localname)

    @property
    def namespace(self) -> str:
        """The namespace's address, empty where there is none."""
        return str(etree.QName(self._element).namespace or "")

    def attribute(self, name: str) -> str | None:
        """The attribute's value without outer blanks, or None."""
        value = self._element.get(name)
        return None if value is None else str(value).strip()[:MAX_FIELD_CHARS]

    def all(self, path: str) -> list["Node"]:
        """Every element at the path of local names below this one, in document order."""
        return [Node(found) for found in self._element.findall(_any_namespace(path))]

    def first(self, path: str) -> "Node | None":
        """The first element at the path, or None."""
        found = self._element.find(_any_namespace(path))
        return None if found is None else Node(found)

    def own_text(self) -> str | None:
        """This element's text with blanks and line breaks folded into single spaces; None where there is none."""
        return " ".join(str(self._element.text or "").split())[:MAX_FIELD_CHARS] or None

    def text(self, path: str) -> str | None:
        """The folded text of the first element at the path that has some, or None."""
        return next((text for node in self.all(path) if (text := node.own_text())), None)

    def descend(self, names: frozenset[str]) -> "Node | None":
        """This element or the first one anywhere below whose local name is among `names`."""
        wildcards = [f"{{*}}{name}" for name in sorted(names)]
        found = next(self._element.iter(*wildcards), None)
        return None if found is None else Node(found)


@dataclass(frozen=True, slots=True)
class ParsedXml:
    """The root, and what was odd about the bytes."""

    root: Node
    findings: tuple[Finding, ...]


def looks_like_xml(data: bytes) -> bool:
    """Whether the bytes begin as XML does, whatever follows."""
    if any(data.startswith(mark) for mark, _ in _BYTE_ORDER_MARKS[1:]):
        return True
    return data.removeprefix(codecs.BOM_UTF8).lstrip()[:1] == b"<" or data[:2] in (b"<\x00", b"\x00<")


def parse_xml(data: bytes) -> ParsedXml:
    """Parse a document that may be hostile.

    Raises:
        InvoiceUnreadable: `TOO_LARGE`, `XML_ENCODING`, `XML_FORBIDDEN` (a document type) or `XML_MALFORMED`.
    """
    if len(data) > MAX_XML_BYTES:
        raise InvoiceUnreadable(
            Problem.TOO_LARGE,
            f"the XML has {len(data):,} bytes; at most {MAX_XML_BYTES:,} are read",
        )
    text, findings = _decode(data)
    text = _DECLARATION.sub("", text.removeprefix("\ufeff").lstrip(), count=1)
    if _has_document_type(text):
        raise InvoiceUnreadable(
            Problem.XML_FORBIDDEN,
            "the XML has a document type declaration (<!DOCTYPE), which can name files and entities; "
            "invoices have none: send it without",
        )
    parser = etree.XMLParser(
        resolve_entities=False,
        load_dtd=False,
        dtd_validation=False,
        no_network=True,
        huge_tree=False,
        remove_comments=True,
        remove_pis=True,
        encoding="utf-8",
    )
    try:
        root = etree.fromstring(text.encode("utf-8", "surrogatepass"), parser)
    except etree.XMLSyntaxError as error:
        raise InvoiceUnreadable(
            Problem.XML_MALFORMED, f"the XML is not well-formed: {str(error)[:200]}"
        ) from error
    elements = sum(1 for _ in root.iter())
    if elements > MAX_XML_ELEMENTS:
        raise InvoiceUnreadable(
            Problem.TOO_LARGE, f"the XML has {elements:,} elements; at most {MAX_XML_ELEMENTS:,} are read"
        )
    return ParsedXml(Node(root), findings)


def _any_namespace(path: str) -> str:
    return "/".join(f"{{*}}{step}" for step in path.split("/"))


def _decode(data: bytes) -> tuple[str, tuple[Finding, ...]]:
    """The text, by byte order mark, else by declaration, else as UTF-8: each strictly."""
    for mark, encoding in _BYTE_ORDER_MARKS:
        if data.startswith(mark):
            return _strictly(data[len(mark) :], encoding), ()
    if data[:2] in (b"<\x00", b"\x00<"):
        return _strictly(data, "utf-16-le" if data[:1] == b"<" else "utf-16-be"), ()
    match = _DECLARED_ENCODING.match(data.lstrip())
    if match is None:
        return _strictly(data, "utf-8"), ()
    declared = match.group(1).decode("ascii", "replace")
    known = _TEXT_ENCODINGS.fullmatch(declared.lower()) is not None
    # The declaration was just read as ASCII, so the document cannot be in a 16-bit encoding.
    fits = known and "16" not in declared
    if fits and declared.lower().replace("-", "") == "utf8":
        return _strictly(data, "utf-8"), ()
    try:
        as_utf8 = data.decode("utf-8")
    except UnicodeDecodeError:
        if not fits:
            raise InvoiceUnreadable(
                Problem.XML_ENCODING,
                f"the XML declares the encoding {declared!r}, which no reader knows, and its bytes are not UTF-8; "
                "save it as UTF-8 and declare that",
            ) from None
        return _strictly(data, declared), ()
    if fits and data.isascii():
        return as_utf8, ()
    # Bytes beyond ASCII that decode as UTF-8 are UTF-8: other encodings hit its patterns only by design.
    finding = Finding(
        code="xml_encoding",
        message=f"the XML declares the encoding {declared!r} and is UTF-8; it was read as UTF-8",
    )
    return as_utf8, (finding,)


def _strictly(data: bytes, encoding: str) -> str:
    try:
        return data.decode(encoding)
    except (UnicodeDecodeError, LookupError) as error:
        where = f" at byte {error.start:,}" if isinstance(error, UnicodeDecodeError) else ""
        raise InvoiceUnreadable(
            Problem.XML_ENCODING,
            f"the XML says that it is {encoding}, and its bytes are not{where}; "
            "nothing was guessed: save it in the encoding that it declares",
        ) from error


def _has_document_type(text: str) -> bool:
    """Whether `<!DOCTYPE` stands before the root element; comments may mention it. Linear in the text."""
    at = 0
    while True:
        while at < len(text) and text[at].isspace():
            at += 1
        if text.startswith("<!--", at):
            end, width = text.find("-->", at + 4), 3
        elif text.startswith("<?", at):
            end, width = text.find("?>", at + 2), 2
        else:
            return text.startswith("<!DOCTYPE", at)
        if end < 0:
            return False
        at = end + width
