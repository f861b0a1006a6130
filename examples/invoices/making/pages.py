"""The pages of the hybrid documents, by fpdf2, and the XML put inside them."""

from datetime import UTC, datetime
from typing import Final

from fpdf import FPDF
from fpdf.enums import XPos, YPos
from fpdf.fonts import FontFace

from examples.invoices.making.data import Sample

# Documents carry no clock: the same script gives the same bytes.
FIXED_TIME: Final = datetime(2025, 1, 1, tzinfo=UTC)


def blank_pdf(title: str) -> FPDF:
    """An empty A4 document without a clock, with a font that knows the euro sign."""
    pdf = FPDF(format="A4")
    pdf.core_fonts_encoding = "windows-1252"
    pdf.set_creation_date(FIXED_TIME)
    pdf.set_title(title)
    pdf.set_producer("fpdf2")
    pdf.set_margin(20)
    pdf.set_auto_page_break(auto=True, margin=20)
    pdf.set_font("helvetica", size=10)
    pdf.add_page()
    return pdf


def pdf_bytes(pdf: FPDF) -> bytes:
    """The finished document."""
    return bytes(pdf.output())


def write(pdf: FPDF, text: str, *, size: float = 10, bold: bool = False, align: str = "L") -> None:
    """A line of text, then down to the next."""
    pdf.set_font("helvetica", style="B" if bold else "", size=size)
    pdf.cell(0, size * 0.5, text, align=align, new_x=XPos.LMARGIN, new_y=YPos.NEXT)
    pdf.set_font("helvetica", size=10)


def visible_invoice(sample: Sample, *, xml: bytes | None = None, xml_name: str = "factur-x.xml") -> bytes:
    """A plain page that says what the XML says, with the XML embedded where it is given."""
    pdf = blank_pdf(sample.number)
    write(pdf, sample.seller.name, size=14, bold=True)
    write(pdf, f"{sample.seller.street}, {sample.seller.postal_code} {sample.seller.city}")
    pdf.ln(10)
    write(pdf, sample.buyer.name)
    write(pdf, sample.buyer.street)
    write(pdf, f"{sample.buyer.postal_code} {sample.buyer.city}")
    pdf.ln(10)
    write(pdf, f"Invoice {sample.number}   Date {sample.issued.isoformat()}", size=12, bold=True)
    pdf.ln(4)
    with pdf.table(col_widths=(8, 50, 14, 14, 14), headings_style=FontFace(emphasis="B")) as table:
        for cells in (("#", "Item", "Qty", "Price", sample.currency), *_rows(sample)):
            row = table.row()
            for cell in cells:
                row.cell(cell)
    pdf.ln(4)
    for label, amount in (
        ("Net", sample.net),
        ("VAT", sample.tax),
        ("Total", sample.total),
        ("Due", sample.to_pay),
    ):
        write(pdf, f"{label} {amount:.2f} {sample.currency}", align="R", bold=label == "Due")
    if xml is not None:
        pdf.embed_file(
            bytes=xml,
            basename=xml_name,
            mime_type="text/xml",
            associated_file_relationship="Alternative",
            creation_date=FIXED_TIME,
            modification_date=FIXED_TIME,
            compress=True,
        )
    return pdf_bytes(pdf)


def _rows(sample: Sample) -> list[tuple[str, ...]]:
    return [
        (str(position), item.description, f"{item.quantity}", f"{item.price}", f"{item.net:.2f}")
        for position, item in enumerate(sample.items, start=1)
    ]
