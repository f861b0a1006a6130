"""The words beside the fields of an invoice, in the languages of Europe's larger markets.

All are matched against text in lower case without accents (`notation.plain`). Order matters where one word holds
another: `total excl. VAT` is a net amount and `total VAT` a tax before either is a total. In the lists below `;` parts
alternatives, each a pattern.
"""

import re
from enum import StrEnum
from typing import Final


class Sum(StrEnum):
    """What an amount below the lines is."""

    DISCOUNT = "discount"
    CHARGE = "charge"
    PREPAID = "prepaid"
    DUE = "due"
    NET = "net"
    TOTAL = "total"
    TAX = "tax"


class DateRole(StrEnum):
    """What a date is."""

    ISSUE = "issue"
    DUE = "due"
    DELIVERY = "delivery"
    OTHER = "other"


class Column(StrEnum):
    """What a column of the lines holds."""

    POSITION = "position"
    DESCRIPTION = "description"
    QUANTITY = "quantity"
    UNIT = "unit"
    PRICE = "price"
    TAX = "tax"
    DISCOUNT = "discount"
    AMOUNT = "amount"


def _alternatives(listed: str) -> str:
    return "|".join(entry.strip() for entry in listed.split(";"))


def _at_word_start(listed: str) -> re.Pattern[str]:
    return re.compile(rf"(?<![a-z])(?:{_alternatives(listed)})")


def _as_word(listed: str) -> re.Pattern[str]:
    return re.compile(rf"(?<![a-z])(?:{_alternatives(listed)})(?![a-z])")


def _as_label(listed: str) -> re.Pattern[str]:
    return re.compile(rf"(?:{_alternatives(listed)})(?![a-z])\s*:?\s*")


def _somewhere(listed: str) -> re.Pattern[str]:
    return re.compile(rf".*(?:{_alternatives(listed)}).*")


_TAX: Final = r"""vat; sales tax; tax; mwst; mw\.?st; ust; u\.?st; umsatzsteuer; mehrwertsteuer; tva; t\.v\.a; iva;
    i\.v\.a; btw; moms; gst"""

SUMS: Final = (
    (
        Sum.DISCOUNT,
        _at_word_start("(?:less )?discount; rabatt; nachlass; remise; rabais; descuento; sconto; korting"),
    ),
    (
        Sum.PREPAID,
        _at_word_start(
            r"""(?:already |amount |less )?(?:pre-?)?paid\b(?! by); deposit; down ?payment;
            (?:less )?advance payment; payments? received; anzahlung; abschlags(?:zahlung|rechnung);
            bereits (?:gezahlt|bezahlt); acompte; deja (?:paye|regle|verse); anticipo; pagado; acconto;
            aanbetaling; reeds betaald; adiantamento"""
        ),
    ),
    (
        Sum.DUE,
        _at_word_start(
            r"""(?:amount|balance|total|payment) (?:due|payable|outstanding); total to pay;
            (?:please )?pay(?: this amount)?\b; due\b; zu zahlen; zahlbetrag; zahlungsbetrag; offener betrag;
            restbetrag; noch zu (?:be)?zahlen; net a payer; reste a payer; montant a payer; total a payer;
            montant du\b; solde; total a pagar; importe (?:pendiente|a pagar); a pagar; da pagare;
            totale dovuto; te betalen; att betala; at betale"""
        ),
    ),
    (
        Sum.NET,
        _at_word_start(
            r"""sub-? ?total; sous-total; subtotaal; subtotale; zwischensumme; netto;
            net (?:total|amount|value|sum); total net\b;
            total (?:amount )?(?:ex[ck]l|ex\.? |before|without|ht\b|h\.t|hors); ex[ck]l;
            ohne (?:mwst|ust|umsatz|mehrwert); hors tax; montant (?:ht|hors); base imponible; imponibile;
            taxable; totaal excl; summe netto; sin iva; goods total; net\b"""
        ),
    ),
    (
        Sum.TOTAL,
        _at_word_start(
            r"""grand total; total (?:amount )?(?:incl|inc\.? |gross|ttc\b|t\.t\.c|toutes); ttc\b; gesamtbetrag;
            rechnungsbetrag; endbetrag; gesamtsumme; rechnungs(?:total|summe); bruttobetrag; summe brutto;
            brutto; gross (?:total|amount); (?:totaal|totale|total) (?:incl|iva|con); invoice total;
            importe total; totale (?:fattura|documento); gutschriftsbetrag; credit total"""
        ),
    ),
    (Sum.TAX, re.compile(rf"{_as_word(_TAX).pattern}|(?:umsatz|mehrwert)steuer|impuesto|imposta")),
    (
        Sum.CHARGE,
        _at_word_start(
            r"""shipping; delivery (?:charge|fee|cost); freight; postage; carriage; versand; fracht; porto;
            frais de (?:port|livraison); gastos de envio; spese di; trasporto; verzendkosten; handling"""
        ),
    ),
    (Sum.TOTAL, _at_word_start(r"total\b; totaal; totale; summe; gesamt; importe; montant total; suma")),
)

DATES: Final = (
    (
        DateRole.DUE,
        _at_word_start(
            """due; pay(?:able|ment)? (?:by|until|before|due); falli?g; zahlbar; zahlungsziel; zahlungsfrist;
            echeance; date limite; a (?:payer|regler) (?:avant|le); vencimiento; vence; scadenza; vervaldatum;
            te betalen voor; uiterlijk; forfall; forfaldsdato; vencimento"""
        ),
    ),
    (
        DateRole.DELIVERY,
        _at_word_start(
            """deliver; date of supply; supply date; service date; date of service; performed; leistung; liefer;
            livraison; prestation; entrega; consegna; lever; shipped"""
        ),
    ),
    (
        DateRole.OTHER,
        _at_word_start(
            r"""order; bestell; commande; pedido; ordine; contract; vertrag; printed; purchase; your\b; auftrag"""
        ),
    ),
    (
        DateRole.ISSUE,
        _at_word_start(
            r"""invoice; issue; tax point; rechnung; dat(?:e|um|a|o)\b; facture; emis; fecha; fattura; factuur;
            faktura; credit; gutschrift; le$; den$"""
        ),
    ),
)

_NO: Final = r"(?:(?:no|nr|num|number|nummer|numero|numer|n|#|id|ref(?:erence)?)\b\.?[ ]?[oº°]?|[#№]|n[º°])"
_N: Final = r"(?:numero|num\.?|n[º°o.]?)"
NUMBER_LABEL: Final = _at_word_start(
    rf"""(?:tax |sales |vat )?invoice[ -]?{_NO}; inv\.?[ -]?{_NO}; credit[ -]?(?:note|memo)[ -]?{_NO};
    (?:bill|document)[ -]{_NO}; rechnungs?[ .-]*(?:nummer|nr\.?); rechnung[ ]{_NO};
    gutschrifts?[ .-]*(?:nummer|nr\.?); beleg[ -]?(?:nummer|nr\.?); (?:facture|avoir)[ ]+{_NO};
    {_N}[ ]+(?:de[ ]|d')?(?:la[ ])?(?:facture|avoir); factura[ ]+{_NO}; {_N}[ ]+(?:de[ ])?(?:la[ ])?factura;
    fattura[ ]+{_NO}; {_N}[ ]+(?:della[ ])?fattura; factuur[ -]?(?:nummer|nr\.?);
    faktura[ -]?(?:nummer|nr\.?|no\.?); fatura[ ]+{_NO}"""
)
# Names a number only beside or under the title.
BARE_NUMBER_LABEL: Final = _as_label(r"number; no\.?; nummer; nr\.?; numero; num\.?; n[º°]; numer")
_CREDIT_TITLES: Final = r"""credit (?:note|memo); gutschrift; stornorechnung; avoir; abono; factura rectificativa;
    nota di credito; creditnota; creditfactuur; kreditnota"""
CREDIT_TITLE: Final = _as_word(_CREDIT_TITLES)
TITLE: Final = _as_word(
    rf"""{_CREDIT_TITLES}; (?:tax |sales |vat |pro ?forma |commercial )?invoice; rechnung; facture; factura; fattura;
    factuur; faktura; fatura"""
)

SELLER_LABEL: Final = _as_label(
    r"""from; seller; supplier; vendor; sold by; issued by; issuer; verkaufer; lieferant; rechnungssteller; absender;
    von; vendeur; emetteur; fournisseur; prestataire; vendedor; emisor; proveedor; fornitore; cedente; venditore;
    leverancier; afzender"""
)
BUYER_LABEL: Final = _as_label(
    r"""(?:bill|billed|invoice|invoiced|sold|charge)(?:ed)? to; (?:prepared |invoice )?for; to;
    buyer; customer; client; bill-to; kaufer; kunde;
    rechnung an; rechnungsempfanger; empfanger; an; acheteur; facture a; destinataire; adresse de facturation; cliente;
    comprador; facturar a; destinatario; spett\.?(?:le)?; cessionario; klant; koper; factuur aan; factuuradres;
    afnemer"""
)

_QUANTITY: Final = r"""qty; quantity; qte; quantite; menge; anzahl; cant(?:idad)?; uds; q\.?ta; quantita; aantal; hours;
    stunden; units\b; heures; horas; ore; uren; antal"""
COLUMNS: Final = (
    (Column.POSITION, re.compile(r"pos\.?|#|no\.?|nr\.?|item no\.?|line|ligne|linea|regel|n[º°.]")),
    (
        Column.DESCRIPTION,
        _somewhere(
            """description; item; product; service; article; details; beschreibung; bezeichnung; leistung; artikel;
            designation; libelle; prestation; descripcion; concepto; producto; descrizione; omschrijving; particulars;
            work done; text"""
        ),
    ),
    (Column.TAX, re.compile(rf".*{_as_word(_TAX).pattern}.*|%")),
    (Column.DISCOUNT, _somewhere(r"discount; disc\.; rabatt; remise; dto; descuento; sconto; korting")),
    (
        Column.PRICE,
        _somewhere(
            r"""price; rate; each; preis; satz; p\.?u\.?; prix; precio; prezzo; prijs; tarief; tarif; unit cost;
            unitario; tarifa; pris"""
        ),
    ),
    (
        Column.QUANTITY,
        re.compile(f"{_at_word_start(_QUANTITY).pattern}.*"),
    ),
    (
        Column.AMOUNT,
        _somewhere(
            """amount; total; sum; value; betrag; gesamt; summe; montant; importe; totale; bedrag; totaal; netto; belop;
            (?<![a-z])(?:net|ht)(?![a-z])"""
        ),
    ),
    (Column.UNIT, re.compile(r"(?:unit|uom|einheit|unite|unidad|eenheid|um|me)\.?")),
)

CARRIED_FORWARD: Final = _at_word_start(
    r"carried forward; brought forward; ubertrag; a reporter; report(?: de)?; suma y sigue; riporto; transport"
)

COMPANY_FORM: Final = re.compile(
    r"(?<!\w)(?:GmbH|AG|KG|OHG|e\.?K\.?|UG|SE|Ltd\.?|Limited|LLC|LLP|Inc\.?|Corp\.?|PLC|plc|S\.?A\.?S?\.?|SARL"
    r"|S\.?à r\.l\.|S\.?L\.?U?\.?|S\.?p\.?A\.?|S\.?r\.?l\.?|B\.?V\.?|N\.?V\.?|AB|A/S|ApS|AS|Oy|Oyj|Sp\. z o\.o\."
    r"|s\.r\.o\.|Lda\.?|& Co\.?|Co\.|Company|Group|Cooperative|Coop)(?!\w)"
)
# A party's name is no pair of label and value, no address of the net, no number, no town with its code.
NOT_A_NAME: Final = re.compile(
    r".*:\s*\S.*|.*@.*|(?:https?://|www\.).*|(?:tel|phone|fax|mobile|telefon|page|seite)\b.*"
    r"|n[o.]?[°º.]+\s?\S*\d.*|[\d\W]+|.*\d{5,}.*"
)
LOCAL_TAX_ID: Final = re.compile(
    r"(?:CIF|NIF|C\.I\.F\.|N\.I\.F\.)[ :.]{1,4}([A-Z]-?\d{7}[0-9A-Z]|\d{8}-?[A-Z])(?![A-Za-z0-9])"
)
VAT_ID: Final = re.compile(
    r"(?i:vat|ust|uid|tva|iva|nif|cif|btw|p\.?\s?iva|moms|tax)[^\n]{0,25}?(?<![A-Za-z0-9])"
    r"([A-Z]{2}[ .]?[A-Z0-9]{1,3}(?:[ .]?[0-9]{2,4}){1,4}(?:[ .]?[A-Z][0-9]{2}|[A-Z])?)(?![A-Za-z0-9])"
)
