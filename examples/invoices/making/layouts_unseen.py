"""Layouts that the reader was not written around: drawn after it was done, and it was not changed for them."""

from typing import Final

from fpdf.enums import TableBordersLayout
from fpdf.fonts import FontFace

from examples.invoices.making.pages import blank_pdf, pdf_bytes, write

_ENGLISH_CATERING: Final = (
    ("Standing lunch, per guest", "85", "14.50", "20", "1,232.50"),
    ("Vegan platters", "6", "38.00", "20", "228.00"),
    ("Staff, hours", "18", "16.25", "20", "292.50"),
    ("Hire of glasses, crates", "9", "7.80", "20", "70.20"),
)
_GERMAN_GARDEN: Final = (
    ("Heckenschnitt, ca. 40 lfm", "6,00 Std.", "48,00", "288,00"),
    ("Grüngut abfahren", "3,00 Fuhren", "65,00", "195,00"),
    ("Rollrasen verlegen inkl. Material", "52,00 m²", "17,90", "930,80"),
)


def catering_english() -> bytes:
    """A caterer: reference block under a centred head, two dates in one row, the sums in a narrow box at the right."""
    pdf = blank_pdf("Invoice")
    write(pdf, "The Larder Collective Ltd", size=18, bold=True, align="C")
    write(pdf, "9 Tannery Row, Bristol BS1 6QH | hello@larder.example | VAT 402 7719 35", size=8, align="C")
    pdf.ln(8)
    write(pdf, "VAT INVOICE", bold=True)
    with pdf.table(col_widths=(34, 46, 34, 46), first_row_as_headings=False, borders_layout="NONE") as table:
        table.row(("Invoice no.", "LC/25/0288", "Your order", "FEST-25"))
        table.row(("Tax point", "6 October 2025", "Due by", "5 November 2025"))
        table.row(("Customer", "Avon Book Festival CIC", "Event date", "3 October 2025"))
        table.row(("", "31 Queen Square", "", ""))
        table.row(("", "Bristol BS1 4NT", "", ""))
    pdf.ln(6)
    with pdf.table(
        col_widths=(80, 18, 25, 20, 27),
        text_align=("LEFT", "CENTER", "CENTER", "CENTER", "RIGHT"),
        headings_style=FontFace(emphasis="B", color=(255, 255, 255), fill_color=(90, 60, 20)),
    ) as table:
        for cells in (("Item", "No.", "Each (£)", "VAT %", "Net (£)"), *_ENGLISH_CATERING):
            table.row(cells)
    pdf.ln(3)
    with pdf.table(
        col_widths=(30, 27),
        width=57,
        align="RIGHT",
        text_align=("LEFT", "RIGHT"),
        first_row_as_headings=False,
    ) as table:
        for pair in (("Net", "1,823.20"), ("VAT", "364.64"), ("Total £", "2,187.84"), ("Deposit", "500.00")):
            table.row(pair)
        table.row(("To pay £", "1,687.84"), style=FontFace(emphasis="B"))
    return pdf_bytes(pdf)


def gardener_german() -> bytes:
    """A gardener's plain letter: no ruled table, number and date in one line, quantity and unit in one cell."""
    pdf = blank_pdf("Rechnung")
    for line in ("Gartenbau Lindholz GmbH", "Am Anger 17", "14532 Kleinmachnow", "Tel. 033203 55 01 22"):
        write(pdf, line, bold=line.startswith("Gartenbau"))
    pdf.ln(10)
    for line in ("Hausverwaltung Seeblick GbR", "Uferallee 80", "14129 Berlin"):
        write(pdf, line)
    pdf.ln(10)
    write(pdf, "Rechnung 2025/211 vom 13.10.2025", size=12, bold=True)
    write(pdf, "Objekt Uferallee 80-84. Ausgeführt am 8.10.2025.")
    pdf.ln(4)
    with pdf.table(
        col_widths=(84, 30, 26, 30),
        text_align=("LEFT", "RIGHT", "RIGHT", "RIGHT"),
        headings_style=FontFace(emphasis="U"),
        borders_layout=TableBordersLayout.NONE,
    ) as table:
        for cells in (("Arbeiten", "Umfang", "je Einheit", "gesamt"), *_GERMAN_GARDEN):
            table.row(cells)
    pdf.ln(2)
    for label, amount in (
        ("Summe", "1.413,80"),
        ("Umsatzsteuer 19%", "268,62"),
        ("Endbetrag in Euro", "1.682,42"),
    ):
        write(pdf, f"{label}:   {amount}", align="R")
    pdf.ln(8)
    write(pdf, "Bitte überweisen Sie den Betrag bis zum 27.10.2025 (EUR).")
    write(pdf, "Steuernummer 046/112/03518 · USt-IdNr. DE312908847 · Amtsgericht Potsdam HRB 20117", size=7)
    return pdf_bytes(pdf)
