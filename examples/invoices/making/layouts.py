"""Invoices that are pages and nothing else: no XML inside, each in a layout and language of its own.

The reader's heuristics were written with these at hand; `layouts_unseen` has some that were drawn after it.
"""

from typing import Final

from fpdf import FPDF
from fpdf.enums import TableBordersLayout, XPos, YPos
from fpdf.fonts import FontFace

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

_FRENCH_WORK: Final = (
    ("Dépose de l'ancienne toiture", "1", "forfait", "1 450,00 €", "1 450,00 €"),
    ("Fourniture et pose de tuiles terre cuite", "86", "m²", "54,90 €", "4 721,40 €"),
    ("Gouttières zinc, développé 33", "24,5", "ml", "47,00 €", "1 151,50 €"),
    ("Évacuation des gravats", "3", "benne", "280,00 €", "840,00 €"),
)
_DUTCH_HOSTING: Final = (
    ("Beheerde server, juli 2025\n8 cores, 32 GB geheugen", "1", "189,00", "21%", "189,00"),
    ("Back-up per TB", "6", "12,50", "21%", "75,00"),
    ("Domeinnamen\nverlenging voor een jaar", "14", "9,95", "21%", "139,30"),
    ("Handboek beheer, gedrukt", "2", "24,00", "9%", "48,00"),
)
_IRISH_RETURNS: Final = (
    ("4", "Euro pallet, heat treated", "11.20", "44.80"),
    ("12", "Stretch film 500 mm", "6.45", "77.40"),
    ("1", "Carriage refunded", "38.00", "38.00"),
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
    columns = (
        (20, "Description", "L"),
        (105, "Qty", "R"),
        (120, "Unit", "L"),
        (150, "Unit price", "R"),
        (185, "Amount", "R"),
    )
    _row(pdf, 88, columns, bold=True)
    for line, cells in enumerate(_SERVICES):
        _row(
            pdf, 96 + line * 7, [(x, cell, align) for (x, _, align), cell in zip(columns, cells, strict=True)]
        )
    for line, (label, amount) in enumerate(
        (
            ("Subtotal", "£3,556.00"),
            ("VAT 20%", "£711.20"),
            ("Total", "£4,267.20"),
            ("Paid on account", "-£1,000.00"),
            ("Amount due", "£3,267.20"),
        )
    ):
        _row(
            pdf,
            132 + line * 6,
            ((130, label, "L"), (185, amount, "R")),
            bold=label in ("Total", "Amount due"),
        )
    _at(pdf, 20, 175, "Please pay by bank transfer: sort code 20-00-00, account 55779911.")
    return pdf_bytes(pdf)


def goods_german() -> bytes:
    """A German letter: sender line over the address window, positions numbered, amounts with decimal comma."""
    pdf = blank_pdf("Rechnung")
    _at(pdf, 20, 45, "Etikett & Druck Weber GmbH · Gewerbering 3 · 86154 Augsburg", size=7)
    for line, text in enumerate(("Molkerei Alpenblick eG", "Bergstraße 41", "87527 Sonthofen")):
        _at(pdf, 20, 52 + line * 5, text)
    for line, (label, value) in enumerate(
        (
            ("Rechnungsnummer", "2025-0783"),
            ("Rechnungsdatum", "28.05.2025"),
            ("Lieferdatum", "26.05.2025"),
            ("Kundennummer", "11804"),
        )
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
        _row(
            pdf,
            116 + line * 7,
            [(x, cell, align) for (x, _, align), cell in zip(columns, cells, strict=True)],
        )
    for line, (label, amount) in enumerate(
        (("Nettobetrag", "2.213,60"), ("zzgl. 19 % MwSt.", "420,58"), ("Rechnungsbetrag", "2.634,18"))
    ):
        _row(pdf, 142 + line * 6, ((125, label, "L"), (188, f"{amount} €", "R")), bold=line == 2)  # noqa: PLR2004
    write(pdf, "")
    _at(pdf, 20, 168, "Zahlbar ohne Abzug bis 27.06.2025.")
    _at(
        pdf,
        20,
        270,
        "Etikett & Druck Weber GmbH · USt-IdNr. DE266778899 · IBAN DE02 1203 0000 0000 2020 51",
        size=7,
    )
    return pdf_bytes(pdf)


def craftsman_french() -> bytes:
    """A roofer's invoice: parties in boxes side by side, a table with rules, what is left to pay in a box."""
    pdf = blank_pdf("Facture 2025-F-118")
    write(pdf, "FACTURE", size=20, bold=True, align="C")
    write(pdf, "N° 2025-F-118 du 4 septembre 2025", align="C")
    pdf.ln(8)
    with pdf.table(col_widths=(1, 1), first_row_as_headings=False, line_height=6) as table:
        row = table.row()
        row.cell("Toitures Delmas SARL\n17 chemin des Ardoises\n49000 Angers\nTVA FR62388214497")
        row.cell("Client :\nCopropriété Les Acacias\n3 allée des Acacias\n49100 Angers")
    pdf.ln(6)
    write(pdf, "Échéance : 4 octobre 2025")
    pdf.ln(4)
    headings = ("Désignation", "Quantité", "Unité", "P.U. HT", "Montant HT")
    with pdf.table(
        col_widths=(75, 20, 20, 28, 30),
        text_align=("LEFT", "RIGHT", "LEFT", "RIGHT", "RIGHT"),
        headings_style=FontFace(emphasis="B", fill_color=(225, 225, 225)),
        borders_layout=TableBordersLayout.MINIMAL,
    ) as table:
        for cells in (headings, *_FRENCH_WORK):
            table.row(cells)
    pdf.ln(4)
    for label, amount in (
        ("Total HT", "8 162,90 €"),
        ("TVA 10 %", "816,29 €"),
        ("Total TTC", "8 979,19 €"),
        ("Acompte versé", "2 500,00 €"),
        ("Reste à payer", "6 479,19 €"),
    ):
        write(pdf, f"{label} : {amount}", align="R", bold=label == "Reste à payer")
    pdf.ln(10)
    write(pdf, "Assurance décennale n° 44 118 203. Pas d'escompte pour paiement anticipé.", size=8)
    return pdf_bytes(pdf)


def hosting_dutch() -> bytes:
    """A hosting invoice: a strip with number, dates and the amount to pay above everything, two tax rates below."""
    pdf = blank_pdf("Factuur")
    write(pdf, "Polderweb Hosting B.V.", size=18, bold=True)
    write(pdf, "Dijkstraat 210, 8011 XV Zwolle  -  KvK 05088123  -  btw NL853746291B01", size=8)
    pdf.ln(6)
    with pdf.table(
        col_widths=(1, 1, 1, 1), text_align="CENTER", headings_style=FontFace(emphasis="B")
    ) as table:
        table.row(("Factuurnummer", "Factuurdatum", "Vervaldatum", "Te betalen"))
        table.row(("PW-77120", "01-07-2025", "15-07-2025", "€ 540,31"))
    pdf.ln(8)
    write(pdf, "Factuuradres", bold=True)
    for line in ("Stichting Museum de Sluis", "Havenkade 2", "8271 BL IJsselmuiden"):
        write(pdf, line)
    pdf.ln(8)
    with pdf.table(
        col_widths=(80, 18, 25, 18, 28),
        text_align=("LEFT", "CENTER", "RIGHT", "CENTER", "RIGHT"),
        headings_style=FontFace(emphasis="B"),
        borders_layout=TableBordersLayout.HORIZONTAL_LINES,
    ) as table:
        for cells in (("Omschrijving", "Aantal", "Stukprijs", "Btw", "Bedrag"), *_DUTCH_HOSTING):
            table.row(cells)
    pdf.ln(4)
    for label, amount in (
        ("Subtotaal", "€ 451,30"),
        ("Btw 21% over € 403,30", "€ 84,69"),
        ("Btw 9% over € 48,00", "€ 4,32"),
        ("Totaal", "€ 540,31"),
    ):
        write(pdf, f"{label}      {amount}", align="R")
    return pdf_bytes(pdf)


def returns_irish() -> bytes:
    """A credit note: letterhead on the right, quantities in front, the sums on the left."""
    pdf = blank_pdf("Credit note")
    for line in ("Shannon Packaging Ltd", "Raheen Business Park", "Limerick", "VAT reg. IE6388047V"):
        write(pdf, line, align="R", bold=line.startswith("Shannon"))
    pdf.ln(6)
    write(pdf, "CREDIT NOTE SC-00417", size=15, bold=True)
    write(pdf, "Date of issue 22 August 2025")
    pdf.ln(4)
    write(pdf, "Customer:")
    for line in ("Burren Smokehouse Foods DAC", "Kincora Road", "Lisdoonvarna"):
        write(pdf, line)
    pdf.ln(6)
    with pdf.table(
        col_widths=(15, 90, 25, 30),
        text_align=("RIGHT", "LEFT", "RIGHT", "RIGHT"),
        headings_style=FontFace(emphasis="B"),
        borders_layout=TableBordersLayout.NONE,
    ) as table:
        for cells in (("Qty", "Goods returned", "Each", "Value EUR"), *_IRISH_RETURNS):
            table.row(cells)
    pdf.ln(6)
    for label, amount in (("Goods total", "160.20"), ("VAT @ 23%", "36.85"), ("Total credited", "197.05")):
        write(pdf, f"{label:<22}{amount}")
    return pdf_bytes(pdf)


def _at(pdf: FPDF, x: float, y: float, text: str, *, size: float = 10, bold: bool = False) -> None:
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
