"""The words beside the fields of an invoice, in the languages of Europe's larger markets.

All are matched against text in lower case without accents (`notation.plain`). Order matters where one word holds
another: `total excl. VAT` is a net amount and `total VAT` a tax before either is a total.
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


def _words(*alternatives: str) -> re.Pattern[str]:
    return re.compile(rf"(?<![a-z])(?:{'|'.join(alternatives)})")


TAX_WORD: Final = r"(?:vat|sales tax|tax|mwst|mw\.?st|ust|u\.?st|umsatzsteuer|mehrwertsteuer|tva|t\.v\.a|iva|i\.v\.a|btw|moms|gst)"

SUMS: Final = (
    (Sum.DISCOUNT, _words(r"(?:less )?discount", "rabatt", "nachlass", "remise", "rabais", "descuento", "sconto", "korting")),
    (
        Sum.PREPAID,
        _words(
            r"(?:already |amount |less )?(?:pre-?)?paid\b(?! by)", "deposit", r"down ?payment", r"(?:less )?advance payment",
            "payments? received", "anzahlung", "abschlag", "bereits (?:gezahlt|bezahlt)", "acompte", "deja (?:paye|regle|verse)",
            "anticipo", "pagado", "acconto", "aanbetaling", "reeds betaald", "adiantamento",
        ),
    ),  # fmt: skip
    (
        Sum.DUE,
        _words(
            r"(?:amount|balance|total|payment) (?:due|payable|outstanding)", r"total to pay", r"(?:please )?pay(?: this amount)?\b",
            r"due\b", "zu zahlen", "zahlbetrag", "zahlungsbetrag", "offener betrag", "restbetrag", "noch zu (?:be)?zahlen",
            "net a payer", "reste a payer", "montant a payer", "total a payer", r"montant du\b", "solde", "total a pagar",
            "importe (?:pendiente|a pagar)", "a pagar", "da pagare", "totale dovuto", "te betalen", "att betala", "at betale",
        ),
    ),  # fmt: skip
    (
        Sum.NET,
        _words(
            r"sub-? ?total", "sous-total", "subtotaal", "subtotale", "zwischensumme", r"netto", "net (?:total|amount|value|sum)",
            r"total net\b", r"total (?:amount )?(?:ex[ck]l|ex\.? |before|without|ht\b|h\.t|hors)", r"ex[ck]l", "ohne (?:mwst|ust|umsatz|mehrwert)", r"hors tax", r"montant (?:ht|hors)",
            "base imponible", "imponibile", "taxable", r"totaal excl", "summe netto", "sin iva", "goods total", r"net\b",
        ),
    ),  # fmt: skip
    (
        Sum.TOTAL,
        _words(
            "grand total", r"total (?:amount )?(?:incl|inc\.? |gross|ttc\b|t\.t\.c|toutes)", r"ttc\b", "gesamtbetrag", "rechnungsbetrag",
            "endbetrag", "gesamtsumme", "rechnungs(?:total|summe)", "bruttobetrag", "summe brutto", "brutto", r"gross (?:total|amount)", r"(?:totaal|totale|total) (?:incl|iva|con)",
            "invoice total", "importe total", "totale (?:fattura|documento)", r"gutschriftsbetrag", "credit total",
        ),
    ),  # fmt: skip
    (Sum.TAX, re.compile(rf"(?<![a-z]){TAX_WORD}(?![a-z])|(?:umsatz|mehrwert)steuer|impuesto|imposta")),
    (
        Sum.CHARGE,
        _words(
            "shipping", "delivery (?:charge|fee|cost)", "freight", "postage", "carriage", "versand", "fracht", "porto",
            "frais de (?:port|livraison)", "gastos de envio", "spese di", "trasporto", "verzendkosten", "handling",
        ),
    ),  # fmt: skip
    (Sum.TOTAL, _words(r"total\b", "totaal", "totale", "summe", "gesamt", "importe", "montant total", "suma")),
)  # fmt: skip

DATES: Final = (
    (
        DateRole.DUE,
        _words(
            r"due", "pay(?:able|ment)? (?:by|until|before|due)", "falli?g", "zahlbar", "zahlungsziel", "zahlungsfrist",
            "echeance", "date limite", "a (?:payer|regler) (?:avant|le)", "vencimiento", "vence", "scadenza", "vervaldatum",
            "te betalen (?:voor|voor het)", "uiterlijk", "forfall", "forfaldsdato", "vencimento",
        ),
    ),  # fmt: skip
    (
        DateRole.DELIVERY,
        _words(
            "deliver", "date of supply", "supply date", "service date", "date of service", "performed", "leistung", "liefer",
            "livraison", "prestation", "entrega", "consegna", "lever", "shipped",
        ),
    ),  # fmt: skip
    (DateRole.OTHER, _words("order", "bestell", "commande", "pedido", "ordine", "contract", "vertrag", "printed", "purchase", r"your\b", "auftrag")),
    (
        DateRole.ISSUE,
        _words(
            "invoice", "issue", "tax point", "rechnung", r"dat(?:e|um|a|o)\b", "facture", "emis", "fecha", "fattura", "factuur",
            "faktura", "credit", "gutschrift", "le$", "den$",
        ),
    ),  # fmt: skip
)  # fmt: skip

_NO: Final = r"(?:no|nr|num|number|nummer|numero|numer|n|#|id|ref(?:erence)?)\b\.?[ ]?[oº°]?|[#№]|n[º°]"
NUMBER_LABEL: Final = re.compile(
    rf"(?<![a-z])(?:"
    rf"(?:tax |sales |vat )?invoice[ -]?(?:{_NO})|inv\.?[ -]?(?:{_NO})|credit[ -]?(?:note|memo)[ -]?(?:{_NO})|(?:bill|document)[ -](?:{_NO})"
    rf"|rechnungs?[ .-]*(?:nummer|nr\.?)|rechnung[ ](?:{_NO})|gutschrifts?[ .-]*(?:nummer|nr\.?)|beleg[ -]?(?:nummer|nr\.?)|belegnummer"
    rf"|(?:facture|avoir)[ ]+(?:{_NO})|(?:numero|n[º°o.]?)[ ]+(?:de[ ]|d')?(?:la[ ])?(?:facture|avoir)"
    rf"|factura[ ]+(?:{_NO})|(?:numero|num\.?|n[º°o.]?)[ ]+(?:de[ ])?(?:la[ ])?factura"
    rf"|fattura[ ]+(?:{_NO})|(?:numero|n[º°o.]?)[ ]+(?:della[ ])?fattura"
    rf"|factuur[ -]?(?:nummer|nr\.?)|faktura[ -]?(?:nummer|nr\.?|no\.?)|fatura[ ]+(?:{_NO})"
    rf")"
)
TITLE: Final = re.compile(
    r"(?<![a-z])(?:(?:tax |sales |vat |pro ?forma |commercial )?invoice|credit (?:note|memo)|rechnung|gutschrift|stornorechnung"
    r"|facture|avoir|factura(?: rectificativa)?|abono|fattura|nota di credito|factuur|creditnota|creditfactuur|faktura|kreditnota|fatura)(?![a-z])"
)
CREDIT_TITLE: Final = re.compile(
    r"(?<![a-z])(?:credit (?:note|memo)|gutschrift|stornorechnung|avoir|abono|factura rectificativa|nota di credito|creditnota|creditfactuur|kreditnota)(?![a-z])"
)

SELLER_LABEL: Final = re.compile(
    r"(?:from|seller|supplier|vendor|sold by|issued by|issuer|verkaufer|lieferant|rechnungssteller|absender|von"
    r"|vendeur|emetteur|fournisseur|prestataire|vendedor|emisor|proveedor|fornitore|cedente|venditore|leverancier|afzender)(?![a-z])\s*[:]?\s*"
)
BUYER_LABEL: Final = re.compile(
    r"(?:(?:bill|billed|invoice|invoiced|sold|charge)(?:ed)? to|to|buyer|customer|client|bill-to|kaufer|kunde|rechnung an|rechnungsempfanger"
    r"|empfanger|an|client|acheteur|facture a|destinataire|adresse de facturation|cliente|comprador|facturar a|destinatario|spett\.?(?:le)?"
    r"|cessionario|klant|koper|factuur aan|factuuradres|afnemer)(?![a-z])\s*[:]?\s*"
)

COLUMNS: Final = (
    (Column.POSITION, re.compile(r"pos\.?|#|no\.?|nr\.?|item no\.?|line|ligne|linea|regel|n[º°.]")),
    (
        Column.DESCRIPTION,
        re.compile(
            r".*(?:description|item|product|service|article|details|beschreibung|bezeichnung|leistung|artikel|designation|libelle"
            r"|prestation|descripcion|concepto|producto|descrizione|omschrijving|particulars|work done|text).*"
        ),
    ),
    (Column.TAX, re.compile(rf".*(?<![a-z]){TAX_WORD}(?![a-z]).*(?:%|rate|satz)?|%")),
    (Column.DISCOUNT, re.compile(r".*(?:discount|disc\.|rabatt|remise|dto|descuento|sconto|korting).*")),
    (
        Column.PRICE,
        re.compile(r".*(?:price|rate|each|einzelpreis|e-preis|stuckpreis|preis|satz|p\.?u\.?|prix|precio|prezzo|prijs|tarief|tarif|unit cost|unitario|tarifa|pris).*"),
    ),
    (Column.QUANTITY, re.compile(r"(?:qty|quantity|qte|quantite|menge|anzahl|cant(?:idad)?|uds|q\.?ta|quantita|aantal|hours|stunden|units\b|heures|horas|ore|uren|antal)\.?.*")),
    (
        Column.AMOUNT,
        re.compile(r".*(?:amount|total|sum|value|betrag|gesamt|summe|montant|importe|totale|bedrag|totaal|netto|belop|(?<![a-z])(?:net|ht)(?![a-z])).*"),
    ),
    (Column.UNIT, re.compile(r"(?:unit|uom|einheit|unite|unidad|eenheid|um|me)\.?")),
)  # fmt: skip

CARRIED_FORWARD: Final = _words("carried forward", "brought forward", "ubertrag", "a reporter", "report(?: de)?", "suma y sigue", "riporto", "transport")

COMPANY_FORM: Final = re.compile(
    r"(?<!\w)(?:GmbH|AG|KG|OHG|e\.?K\.?|UG|SE|Ltd\.?|Limited|LLC|LLP|Inc\.?|Corp\.?|PLC|plc|S\.?A\.?S?\.?|SARL|S\.?à r\.l\.|S\.?L\.?U?\.?"
    r"|S\.?p\.?A\.?|S\.?r\.?l\.?|B\.?V\.?|N\.?V\.?|AB|A/S|ApS|AS|Oy|Oyj|Sp\. z o\.o\.|s\.r\.o\.|Lda\.?|& Co\.?|Co\.|Company|Group|Cooperative|Coop)(?!\w)"
)
# A party's block ends where other matters begin.
NOT_A_NAME: Final = re.compile(
    r"(?:.*:\s*\S.*|.*@.*|(?:https?://|www\.).*|(?:tel|phone|fax|mobile|telefon|page|seite)\b.*|[\d\W]+|.*\d{5,}.*)"
)
LOCAL_TAX_ID: Final = re.compile(r"(?:CIF|NIF|C\.I\.F\.|N\.I\.F\.)[ :.]{1,4}([A-Z]-?\d{7}[0-9A-Z]|\d{8}-?[A-Z])(?![A-Za-z0-9])")
VAT_ID: Final = re.compile(
    r"(?i:vat|ust|uid|tva|iva|nif|cif|btw|p\.?\s?iva|moms|tax)[^\n]{0,25}?(?<![A-Za-z0-9])([A-Z]{2}[ .]?[A-Z0-9]{1,3}(?:[ .]?[0-9]{2,4}){1,4}(?:[ .]?[A-Z][0-9]{2}|[A-Z])?)(?![A-Za-z0-9])"
)
