"""Writes the sample documents and what is known about them: `python -m examples.invoices.make_samples [folder]`.

The samples are committed; this is how they came about, and how to change them. What is known (`expected.json`) comes
from what the documents were made of, never from the reader.
"""

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Final

from examples.invoices.making import data, layouts, layouts_more, layouts_unseen
from examples.invoices.making.cii import cii_xml
from examples.invoices.making.data import Sample
from examples.invoices.making.joined import join
from examples.invoices.making.pages import visible_invoice
from examples.invoices.making.ubl import ubl_xml
from examples.invoices.making.zugferd1 import zugferd1_xml

FOLDER: Final = Path(__file__).parent / "samples"
# Past the first pages, before the cross-reference table: what a broken upload looks like.
_TRUNCATED_BYTES: Final = 9_000
_WRONG_TOTAL: Final = Decimal("1109.80")


@dataclass(frozen=True, slots=True)
class Known:
    """What is known about a document. Amounts are text, as in the JSON that programs exchange."""

    number: str
    supplier: str
    currency: str
    net: str
    total: str
    due: str
    lines: int
    kind: str = "invoice"
    valid: bool = True
    unseen_layout: bool = False


def _known(sample: Sample, *, total: Decimal | None = None) -> Known:
    stated = sample.total if total is None else total
    return Known(
        number=sample.number,
        supplier=sample.seller.name,
        currency=sample.currency,
        net=f"{sample.net:.2f}",
        total=f"{stated:.2f}",
        due=f"{stated - sample.prepaid:.2f}",
        lines=len(sample.items),
        kind="credit_note" if sample.credit else "invoice",
        valid=total is None,
    )


def _hybrid(sample: Sample) -> bytes:
    return visible_invoice(sample, xml=cii_xml(sample))


def _joined_by_facturx(sample: Sample) -> bytes:
    return join(visible_invoice(sample), cii_xml(sample), language="fr-FR")


def _wrongly_declared(sample: Sample) -> bytes:
    """UTF-8 that says it is something that no reader knows: Windows programs write this."""
    return cii_xml(sample).replace(b"utf-8", b"ANSI", 1)


_FROM_DATA: Final[dict[str, tuple[Callable[[Sample], bytes], Sample]]] = {
    "facturx_simple.pdf": (_hybrid, data.FACTURX_SIMPLE),
    "facturx_discounts.pdf": (_joined_by_facturx, data.FACTURX_DISCOUNTS),
    "facturx_multipage.pdf": (_hybrid, data.FACTURX_MULTIPAGE),
    "zugferd1_comfort.pdf": (
        lambda sample: visible_invoice(sample, xml=zugferd1_xml(sample), xml_name="ZUGFeRD-invoice.xml"),
        data.ZUGFERD1,
    ),
    "cii_xrechnung.xml": (cii_xml, data.CII_XRECHNUNG),
    "cii_wrong_encoding.xml": (_wrongly_declared, data.CII_ENCODING),
    "ubl_invoice.xml": (ubl_xml, data.UBL_INVOICE),
    "ubl_credit_note.xml": (ubl_xml, data.UBL_CREDIT_NOTE),
}
_PAGES_ONLY: Final[dict[str, tuple[Callable[[], bytes], Known]]] = {
    "text_services_english.pdf": (
        layouts.services_english,
        Known("TB-3308", "Tarn & Beck Networks Ltd", "GBP", "3556.00", "4267.20", "3267.20", 4),
    ),
    "text_goods_german.pdf": (
        layouts.goods_german,
        Known("2025-0783", "Etikett & Druck Weber GmbH", "EUR", "2213.60", "2634.18", "2634.18", 3),
    ),
    "text_craftsman_french.pdf": (
        layouts.craftsman_french,
        Known("2025-F-118", "Toitures Delmas SARL", "EUR", "8162.90", "8979.19", "6479.19", 4),
    ),
    "text_hosting_dutch.pdf": (
        layouts.hosting_dutch,
        Known("PW-77120", "Polderweb Hosting B.V.", "EUR", "451.30", "540.31", "540.31", 4),
    ),
    "text_returns_irish.pdf": (
        layouts.returns_irish,
        Known(
            "SC-00417", "Shannon Packaging Ltd", "EUR", "160.20", "197.05", "197.05", 3, kind="credit_note"
        ),
    ),
    "text_workshop_spanish.pdf": (
        layouts_more.workshop_spanish,
        Known("T-25/0619", "Motos Peñalara S.L.", "EUR", "264.89", "320.52", "320.52", 3),
    ),
    "text_studio_english.pdf": (
        layouts_more.studio_english,
        Known("CL-0092", "Copper Lantern Design Ltd", "EUR", "3369.90", "4144.98", "4144.98", 4),
    ),
    "text_printer_austrian.pdf": (
        layouts_more.printer_austrian,
        Known("25-1107", "Druckerei Hochkar KG", "EUR", "1055.00", "1266.00", "1266.00", 3),
    ),
    "text_translator_french.pdf": (
        layouts_more.translator_french,
        Known("2025-47", "Lingua Verde EURL", "EUR", "1736.00", "1736.00", "1736.00", 2),
    ),
    "text_catering_english.pdf": (
        layouts_unseen.catering_english,
        Known(
            "LC/25/0288",
            "The Larder Collective Ltd",
            "GBP",
            "1823.20",
            "2187.84",
            "1687.84",
            4,
            unseen_layout=True,
        ),
    ),
    "text_gardener_german.pdf": (
        layouts_unseen.gardener_german,
        Known(
            "2025/211",
            "Gartenbau Lindholz GmbH",
            "EUR",
            "1413.80",
            "1682.42",
            "1682.42",
            3,
            unseen_layout=True,
        ),
    ),
}


def make_documents() -> dict[str, bytes]:
    """Every sample document by its file name."""
    documents = {name: make(sample) for name, (make, sample) in _FROM_DATA.items()}
    documents |= {name: make() for name, (make, _) in _PAGES_ONLY.items()}
    documents["ubl_wrong_total.xml"] = ubl_xml(data.UBL_WRONG_TOTALS, stated_total=_WRONG_TOTAL)
    documents["damaged_truncated.pdf"] = documents["facturx_multipage.pdf"][:_TRUNCATED_BYTES]
    return documents


def known_facts() -> dict[str, dict[str, object]]:
    """What is known about each document; `problem` for the one that cannot be read."""
    known = {name: _known(sample) for name, (_, sample) in _FROM_DATA.items()}
    known |= {name: facts for name, (_, facts) in _PAGES_ONLY.items()}
    known["ubl_wrong_total.xml"] = _known(data.UBL_WRONG_TOTALS, total=_WRONG_TOTAL)
    facts: dict[str, dict[str, object]] = {name: _as_json(entry) for name, entry in known.items()}
    facts["damaged_truncated.pdf"] = {"problem": "pdf_truncated"}
    return dict(sorted(facts.items()))


def _as_json(known: Known) -> dict[str, object]:
    return {name: getattr(known, name) for name in Known.__dataclass_fields__}


def write_samples(folder: Path) -> None:
    """Write all documents and `expected.json` into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in make_documents().items():
        (folder / name).write_bytes(content)
    facts = json.dumps(known_facts(), indent=2, ensure_ascii=False)
    (folder / "expected.json").write_text(facts + "\n", encoding="utf-8")


if __name__ == "__main__":
    write_samples(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER)
