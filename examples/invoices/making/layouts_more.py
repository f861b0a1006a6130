"""More invoices that are pages and nothing else, drawn to try the reader; what they showed was mended in it."""

from typing import Final

from fpdf import FPDF
from fpdf.enums import TableBordersLayout, XPos, YPos
from fpdf.fonts import FontFace

from examples.invoices.making.pages import FIXED_TIME, blank_pdf, pdf_bytes, write

_SPANISH_PARTS: Final = (
    ("FR-220", "Pastillas de freno delanteras", "2", "34,80", "10%", "62,64"),
    ("AC-10W40", "Aceite 10W40, bidón 5 l", "1", "41,25", "", "41,25"),
    ("MO-01", "Mano de obra, horas de taller", "3,5", "46,00", "", "161,00"),
)
_ENGLISH_HOURS: Final = (
    ("2025-09-02", "Workshop with the product team", "6.00", "125.00", "750.00"),
    ("2025-09-04", "Wireframes, first round", "11.50", "125.00", "1,437.50"),
    ("2025-09-11", "Usability test, five sessions", "8.00", "140.00", "1,120.00"),
    ("2025-09-12", "Travel, Cork return", "1.00", "62.40", "62.40"),
)
_AUSTRIAN_PRINT: Final = (
    ("5.000 Stk.", "Folder DIN lang, 6-seitig", "0,084", "420,00"),
    ("250 Stk.", "Plakate A2, wetterfest", "2,36", "590,00"),
    ("1 Pausch.", "Druckdatenprüfung", "45,00", "45,00"),
)
_FRENCH_TRANSLATION: Final = (
    ("Traduction allemand-français, notice technique", "12 400", "0,11", "1 364,00"),
    ("Relecture", "12 400", "0,03", "372,00"),
)


def workshop_spanish() -> bytes:
    """A garage: part numbers in front, a discount column, base and tax and total side by side in a last table."""
    pdf = blank_pdf("Factura")
    write(pdf, "Motos Peñalara S.L.", size=15, bold=True, align="R")
    write(pdf, "Calle del Roble 27 - 28023 Madrid - NIF B86541236", size=8, align="R")
    pdf.ln(4)
    write(pdf, "FACTURA", size=13, bold=True)
    with pdf.table(col_widths=(30, 50), width=80, align="LEFT", first_row_as_headings=False) as table:
        for pair in (("Número", "T-25/0619"), ("Fecha", "15/09/2025"), ("Matrícula", "4411 LKZ")):
            table.row(pair)
    pdf.ln(4)
    write(pdf, "Facturar a", bold=True)
    for line in ("Mensajería Rayo Verde S.A.", "Avenida de la Sierra 102", "28034 Madrid", "NIF A79120043"):
        write(pdf, line)
    pdf.ln(6)
    headings = ("Ref.", "Descripción", "Uds.", "Precio", "Dto.", "Importe")
    with pdf.table(
        col_widths=(25, 72, 16, 22, 16, 24),
        text_align=("LEFT", "LEFT", "RIGHT", "RIGHT", "RIGHT", "RIGHT"),
        headings_style=FontFace(emphasis="B"),
        borders_layout=TableBordersLayout.SINGLE_TOP_LINE,
    ) as table:
        for cells in (headings, *_SPANISH_PARTS):
            table.row(cells)
    pdf.ln(8)
    with pdf.table(col_widths=(1, 1, 1), text_align="CENTER", headings_style=FontFace(emphasis="B")) as table:
        table.row(("Base imponible", "IVA 21%", "Total factura"))
        table.row(("264,89 €", "55,63 €", "320,52 €"))
    pdf.ln(6)
    write(pdf, "Forma de pago: transferencia. Vencimiento: 15/10/2025", size=9)
    return pdf_bytes(pdf)


def studio_english() -> bytes:
    """A designer's hours on a landscape page: a dark band with the number, days in front of the lines."""
    pdf = FPDF(orientation="landscape", format="A4")
    _prepare(pdf, "Invoice")
    pdf.set_fill_color(40, 40, 60)
    pdf.rect(0, 0, 297, 24, style="F")
    pdf.set_text_color(255, 255, 255)
    pdf.set_xy(20, 8)
    pdf.set_font("helvetica", size=16)
    pdf.cell(120, 8, "Copper Lantern Design Ltd")
    pdf.cell(0, 8, "Invoice No. CL-0092", align="R", new_x=XPos.LMARGIN, new_y=YPos.NEXT)
    pdf.set_text_color(0, 0, 0)
    pdf.set_fill_color(255, 255, 255)
    pdf.ln(10)
    pdf.set_font("helvetica", size=10)
    left = "Prepared for\nMossgrove Cycles Ltd\n12 Canal Walk\nDublin D02 XY45"
    right = "Issued: 15 September 2025\nPayment due: 29 September 2025\nVAT No. IE3456789FA\nAmount due: EUR 4,144.98"
    top = pdf.get_y()
    pdf.multi_cell(100, 5, left)
    pdf.set_xy(180, top)
    pdf.multi_cell(97, 5, right)
    pdf.ln(12)
    with pdf.table(
        col_widths=(28, 120, 22, 25, 30),
        text_align=("LEFT", "LEFT", "RIGHT", "RIGHT", "RIGHT"),
        headings_style=FontFace(emphasis="B"),
        borders_layout=TableBordersLayout.NONE,
    ) as table:
        for cells in (("Day", "Work done", "Hours", "Rate", "Amount"), *_ENGLISH_HOURS):
            table.row(cells)
    pdf.ln(6)
    for label, amount in (("Net amount", "3,369.90"), ("VAT at 23%", "775.08"), ("Total EUR", "4,144.98")):
        pdf.cell(195, 6, label, align="R")
        pdf.cell(30, 6, amount, align="R", new_x=XPos.LMARGIN, new_y=YPos.NEXT)
    return pdf_bytes(pdf)


def printer_austrian() -> bytes:
    """A print shop: number and day in a sentence, units in front, the sums as rows of the table."""
    pdf = blank_pdf("Rechnung")
    write(pdf, "Druckerei Hochkar KG", size=17, bold=True, align="C")
    write(pdf, "Mühlbachgasse 6, 3300 Amstetten, UID: ATU61234509", size=8, align="C")
    pdf.ln(10)
    for line in ("An", "Tourismusverband Ötscherland", "Hauptplatz 1", "3295 Lackenhof"):
        write(pdf, line)
    pdf.ln(8)
    write(pdf, "Rechnung Nr. 25-1107", size=13, bold=True)
    write(pdf, "Amstetten, am 7. Oktober 2025, Leistungszeitraum September 2025")
    pdf.ln(4)
    with pdf.table(
        col_widths=(28, 82, 30, 30),
        text_align=("RIGHT", "LEFT", "RIGHT", "RIGHT"),
        headings_style=FontFace(emphasis="B"),
    ) as table:
        table.row(("Menge", "Artikel", "Preis", "Summe EUR"))
        for cells in _AUSTRIAN_PRINT:
            table.row(cells)
        for label, amount in (
            ("Summe netto", "1.055,00"),
            ("20 % USt", "211,00"),
            ("Summe brutto", "1.266,00"),
        ):
            table.row(("", label, "", amount))
    pdf.ln(4)
    write(pdf, "Zahlbar innerhalb von 14 Tagen, spätestens am 21.10.2025, ohne Abzug.")
    return pdf_bytes(pdf)


def translator_french() -> bytes:
    """A translator: the customer above on the right, tax not charged, the total in the middle of the page."""
    pdf = blank_pdf("Facture")
    write(pdf, "Lingua Verde EURL", size=14, bold=True)
    write(pdf, "5 place du Marché, 67000 Strasbourg")
    write(pdf, "SIRET 812 345 678 00017")
    for line in ("Destinataire", "Pompes Vogel SA", "ZI des Genêts", "68100 Mulhouse"):
        write(pdf, line, align="R", bold=line == "Destinataire")
    pdf.ln(6)
    write(pdf, "Facture no 2025-47", size=12, bold=True)
    write(pdf, "Strasbourg, le 20 octobre 2025 - à régler avant le 19 novembre 2025")
    pdf.ln(4)
    with pdf.table(
        col_widths=(80, 26, 28, 30),
        text_align=("LEFT", "RIGHT", "RIGHT", "RIGHT"),
        headings_style=FontFace(emphasis="B"),
        borders_layout=TableBordersLayout.INTERNAL,
    ) as table:
        for cells in (("Objet", "Mots", "Tarif (€)", "Total (€)"), *_FRENCH_TRANSLATION):
            table.row(cells)
    pdf.ln(6)
    write(pdf, "Total à payer : 1 736,00 €", size=12, bold=True, align="C")
    write(pdf, "TVA non applicable, article 293 B du CGI", align="C")
    return pdf_bytes(pdf)


def _prepare(pdf: FPDF, title: str) -> None:
    pdf.core_fonts_encoding = "windows-1252"
    pdf.set_creation_date(FIXED_TIME)
    pdf.set_title(title)
    pdf.set_producer("fpdf2")
    pdf.set_margin(20)
    pdf.set_font("helvetica", size=10)
    pdf.add_page()
