"""Invoices that are pages and nothing else: no XML inside, each in a layout and language of its own.

The reader was written beside the first two (`services_english`, `goods_german`). The layouts in `layouts_unseen` were
drawn afterwards, and the reader was not changed for them.
"""

from typing import Final

from fpdf import FPDF
from fpdf.enums import XPos, YPos

from examples.invoices.making.pages import blank_pdf, pdf_bytes, write

_SERVICES: Final = (
    ("Site survey, two days", "2", "days", "640.00", "1,280.00"),
    ("Network cabling, CAT 6A", "320", "m", "3.85", "1,232.00"),
    ("Patch panel 24 port", "3", "pcs", "118.00", "354.00"),
    ("Commissioning and test report", "7.5", "h", "92.00", "690.00"),
)
_GOODS: Final = (
    ("1", "Etiketten 70 x 37 mm, weiß", "24", "Rolle", "11,90", "285,60"),
    ("2", "Thermodrucker ZD-420", "2", "Stück", "389,00", "778,00"),
    ("3", "Wartung Drucker, jährlich", "1", "pausch.", "1.150,00", "1.150,00"),
)


def services_english() -> bytes:
    """A British service invoice: label and value in pairs at the right, a ruled table, totals below it."""
    pdf = blank_pdf("Invoice TB-3308")
    _at(pdf, 20, 20, "Tarn & Beck Networks Ltd", size=16, bold=True)
    _at(pdf, 150, 20, "INVOICE", size=16, bold=True)
    for line, text in enumerate(("Unit 5, Fellside Park", "Kendal LA9 6NS", "VAT No: GB 365 8741 29")):
        _at(pdf, 20, 28 + line * 5, text)
    for line, (label, value) in enumerate(
        (("Invoice number:", "TB-3308"), ("Invoice date:", "17 June 2025"), ("Due date:", "17 July 2025"))
    ):
        _at(pdf, 130, 32 + line * 5, label)
        _at(pdf, 165, 32 + line * 5, value)
    for line, text in enumerate(("Bill to:", "Lakeland Dairies plc", "Kirkby Works", "Penrith CA11 9EH")):
        _at(pdf, 20, 55 + line * 5, text, bold=line == 0)
    columns = ((20, "Description", "L"), (105, "Qty", "R"), (120, "Unit", "L"), (150, "Unit price", "R"), (185, "Amount", "R"))
    _row(pdf, 88, columns, bold=True)
    for line, cells in enumerate(_SERVICES):
        _row(pdf, 96 + line * 7, [(x, cell, align) for (x, _, align), cell in zip(columns, cells, strict=True)])
    for line, (label, amount) in enumerate(
        (("Subtotal", "£3,556.00"), ("VAT 20%", "£711.20"), ("Total", "£4,267.20"), ("Paid on account", "-£1,000.00"), ("Amount due", "£3,267.20"))
    ):
        _row(pdf, 132 + line * 6, ((130, label, "L"), (185, amount, "R")), bold=label in ("Total", "Amount due"))
    _at(pdf, 20, 175, "Please pay by bank transfer: sort code 20-00-00, account 55779911.")
    return pdf_bytes(pdf)


def goods_german() -> bytes:
    """A German letter: sender line over the address window, positions numbered, amounts with decimal comma."""
    pdf = blank_pdf("Rechnung")
    _at(pdf, 20, 45, "Etikett & Druck Weber GmbH · Gewerbering 3 · 86154 Augsburg", size=7)
    for line, text in enumerate(("Molkerei Alpenblick eG", "Bergstraße 41", "87527 Sonthofen")):
        _at(pdf, 20, 52 + line * 5, text)
    for line, (label, value) in enumerate(
        (("Rechnungsnummer", "2025-0783"), ("Rechnungsdatum", "28.05.2025"), ("Lieferdatum", "26.05.2025"), ("Kundennummer", "11804"))
    ):
        _at(pdf, 130, 52 + line * 5, label)
        _at(pdf, 168, 52 + line * 5, value)
    _at(pdf, 20, 90, "Rechnung", size=16, bold=True)
    _at(pdf, 20, 99, "Vielen Dank für Ihre Bestellung. Wir berechnen Ihnen wie folgt:")
    columns = (
        (20, "Pos.", "L"),
        (32, "Bezeichnung", "L"),
        (118, "Menge", "R"),
        (122, "Einheit", "L"),
        (160, "Einzelpreis", "R"),
        (188, "Betrag EUR", "R"),
    )
    _row(pdf, 108, columns, bold=True)
    for line, cells in enumerate(_GOODS):
        _row(pdf, 116 + line * 7, [(x, cell, align) for (x, _, align), cell in zip(columns, cells, strict=True)])
    for line, (label, amount) in enumerate(
        (("Nettobetrag", "2.213,60"), ("zzgl. 19 % MwSt.", "420,58"), ("Rechnungsbetrag", "2.634,18"))
    ):
        _row(pdf, 142 + line * 6, ((125, label, "L"), (188, f"{amount} €", "R")), bold=line == 2)  # noqa: PLR2004
    write(pdf, "")
    _at(pdf, 20, 168, "Zahlbar ohne Abzug bis 27.06.2025.")
    _at(pdf, 20, 270, "Etikett & Druck Weber GmbH · USt-IdNr. DE266778899 · IBAN DE02 1203 0000 0000 2020 51", size=7)
    return pdf_bytes(pdf)


def _at(pdf: FPDF, x: float, y: float, text: str, *, size: float = 10, bold: bool = False) -> None:  # noqa: PLR0913
    pdf.set_font("helvetica", style="B" if bold else "", size=size)
    pdf.set_xy(x, y)
    pdf.cell(0, 5, text, new_x=XPos.LMARGIN, new_y=YPos.NEXT)


def _row(pdf: FPDF, y: float, cells: object, *, bold: bool = False) -> None:
    """Cells at fixed places; `R` cells end at their x."""
    pdf.set_font("helvetica", style="B" if bold else "", size=10)
    for x, text, align in cells:  # type: ignore[attr-defined]
        width = pdf.get_string_width(text) + 2
        pdf.set_xy(x - width if align == "R" else x, y)
        pdf.cell(width, 5, text)
