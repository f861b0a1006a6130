"""What the sample documents say. Companies, numbers and addresses are made up."""

from dataclasses import dataclass, field
from datetime import date
from decimal import ROUND_HALF_UP, Decimal
from typing import Final

_CENT: Final = Decimal("0.01")
_ZERO: Final = Decimal(0)


def cents(amount: Decimal) -> Decimal:
    """Rounded as money is."""
    return amount.quantize(_CENT, ROUND_HALF_UP)


@dataclass(frozen=True, slots=True)
class Company:
    """A made-up company."""

    name: str
    street: str
    postal_code: str
    city: str
    country: str
    vat_id: str
    email: str = "billing@example.com"


@dataclass(frozen=True, slots=True)
class Item:
    """One line: `unit` is a code of UN/ECE Recommendation 20, `rate` in percent."""

    description: str
    quantity: Decimal
    unit: str
    price: Decimal
    rate: Decimal

    @property
    def net(self) -> Decimal:
        """Quantity × price, rounded."""
        return cents(self.quantity * self.price)


@dataclass(frozen=True, slots=True)
class Adjustment:
    """A discount or a charge on the whole document."""

    charge: bool
    amount: Decimal
    reason: str
    rate: Decimal


@dataclass(frozen=True, slots=True)
class Sample:
    """One document, with its sums worked out from the lines."""

    number: str
    issued: date
    due: date
    delivered: date
    seller: Company
    buyer: Company
    currency: str
    items: tuple[Item, ...]
    adjustments: tuple[Adjustment, ...] = ()
    prepaid: Decimal = _ZERO
    credit: bool = False
    note: str = ""
    category: str = "S"
    exemption: str = ""
    profile: str = "urn:cen.eu:en16931:2017"
    fields: dict[str, str] = field(default_factory=dict)

    @property
    def lines_net(self) -> Decimal:
        """The sum of the lines."""
        return sum((item.net for item in self.items), _ZERO)

    def adjusted(self, *, charge: bool) -> Decimal:
        """The sum of all discounts, or of all charges."""
        return sum((entry.amount for entry in self.adjustments if entry.charge is charge), _ZERO)

    @property
    def net(self) -> Decimal:
        """Before tax."""
        return self.lines_net - self.adjusted(charge=False) + self.adjusted(charge=True)

    @property
    def tax_groups(self) -> list[tuple[Decimal, Decimal, Decimal]]:
        """Rate, basis and tax for each rate, highest rate first."""
        rates = sorted({item.rate for item in self.items}, reverse=True)
        return [(rate, self._basis(rate), cents(self._basis(rate) * rate / 100)) for rate in rates]

    @property
    def tax(self) -> Decimal:
        """The sum of the taxes."""
        return sum((amount for _, _, amount in self.tax_groups), cents(_ZERO))

    @property
    def total(self) -> Decimal:
        """With tax."""
        return self.net + self.tax

    @property
    def to_pay(self) -> Decimal:
        """What is left to pay."""
        return self.total - self.prepaid

    def _basis(self, rate: Decimal) -> Decimal:
        lines = sum((item.net for item in self.items if item.rate == rate), _ZERO)
        signed = (
            entry.amount if entry.charge else -entry.amount
            for entry in self.adjustments
            if entry.rate == rate
        )
        return lines + sum(signed, _ZERO)


def item(description: str, quantity: str, unit: str, price: str, rate: str) -> Item:  # noqa: D103 (a shorthand)
    return Item(description, Decimal(quantity), unit, Decimal(price), Decimal(rate))


NORDLICHT: Final = Company(
    "Nordlicht Bürobedarf GmbH",
    "Speicherweg 12",
    "20457",
    "Hamburg",
    "DE",
    "DE811234567",
    "rechnung@nordlicht.example",
)
HAFENKONTOR: Final = Company("Hafenkontor Logistik AG", "Am Kai 4", "28217", "Bremen", "DE", "DE822345678")
BOIS_CLAIR: Final = Company(
    "Atelier Bois Clair SARL", "8 rue des Tilleuls", "69003", "Lyon", "FR", "FR40123456824"
)
MAISON_HAUTE: Final = Company(
    "Maison Haute SAS", "21 quai du Port", "13002", "Marseille", "FR", "FR83404833048"
)
QUARRY: Final = Company(
    "Quarry & Finch Supplies Ltd", "14 Mill Lane", "LS1 4AP", "Leeds", "GB", "GB123456789"
)
HARROWGATE: Final = Company(
    "Harrowgate Schools Trust", "2 Station Road", "HG1 1TX", "Harrogate", "GB", "GB987654321"
)
FJALLVIND: Final = Company(
    "Fjällvind Energi AB", "Norra Vallgatan 9", "21125", "Malmö", "SE", "SE556677889901"
)
OSTERLEN: Final = Company(
    "Österlens Mejeri AB", "Storgatan 33", "27231", "Simrishamn", "SE", "SE556611223301"
)
KRONBERG: Final = Company(
    "Kronberg Messtechnik GmbH", "Talstraße 7", "70188", "Stuttgart", "DE", "DE833456789"
)
STADTWERKE: Final = Company(
    "Stadtwerke Altenfurt", "Rathausplatz 1", "90475", "Altenfurt", "DE", "DE844567890"
)

FACTURX_SIMPLE: Final = Sample(
    number="NB-2025-0417",
    issued=date(2025, 3, 14),
    due=date(2025, 4, 13),
    delivered=date(2025, 3, 12),
    seller=NORDLICHT,
    buyer=HAFENKONTOR,
    currency="EUR",
    items=(
        item("Kopierpapier A4, 500 Blatt", "40", "XPK", "4.35", "19"),
        item("Ordner breit, grau", "25", "H87", "2.19", "19"),
        item("Fachbuch Zollrecht", "2", "H87", "68.00", "7"),
    ),
    note="Vielen Dank für Ihren Auftrag.",
)
FACTURX_DISCOUNTS: Final = Sample(
    number="FA-2025-00962",
    issued=date(2025, 5, 6),
    due=date(2025, 6, 5),
    delivered=date(2025, 5, 2),
    seller=BOIS_CLAIR,
    buyer=MAISON_HAUTE,
    currency="EUR",
    items=(
        item("Table en chêne massif 180 cm", "2", "H87", "845.00", "20"),
        item("Chaise bistrot", "8", "H87", "96.50", "20"),
        item("Huile d'entretien 1 l", "3", "LTR", "24.90", "20"),
        item("Livre « Le bois et la main »", "4", "H87", "32.00", "5.5"),
    ),
    adjustments=(
        Adjustment(charge=False, amount=Decimal("126.83"), reason="Remise fidélité 5 %", rate=Decimal(20)),
        Adjustment(charge=True, amount=Decimal("85.00"), reason="Livraison et montage", rate=Decimal(20)),
    ),
    prepaid=Decimal("900.00"),
    note="Acompte reçu le 22 avril 2025.",
)
_PARTS: Final = ("Sensor", "Kabel", "Gehäuse", "Klemme", "Netzteil", "Adapter", "Halter", "Dichtung")
FACTURX_MULTIPAGE: Final = Sample(
    number="KM-10442",
    issued=date(2025, 6, 30),
    due=date(2025, 7, 30),
    delivered=date(2025, 6, 30),
    seller=KRONBERG,
    buyer=STADTWERKE,
    currency="EUR",
    items=tuple(
        item(
            f"{_PARTS[n % len(_PARTS)]} Typ {100 + n * 7}",
            str(1 + n % 9),
            "H87",
            f"{3 + n * 1.25:.2f}",
            "7" if n % 11 == 10 else "19",  # noqa: PLR2004 (every eleventh is a manual, at the reduced rate)
        )
        for n in range(68)
    ),
    note="Sammelrechnung Juni 2025.",
)
ZUGFERD1: Final = Sample(
    number="RG 2014/118",
    issued=date(2014, 11, 3),
    due=date(2014, 12, 3),
    delivered=date(2014, 10, 30),
    seller=KRONBERG,
    buyer=HAFENKONTOR,
    currency="EUR",
    items=(
        item("Waage bis 30 kg, geeicht", "3", "C62", "214.50", "19"),
        item("Eichschein", "3", "C62", "38.00", "19"),
    ),
    adjustments=(Adjustment(charge=True, amount=Decimal("14.80"), reason="Versand", rate=Decimal(19)),),
)
CII_XRECHNUNG: Final = Sample(
    number="KM-10467",
    issued=date(2025, 7, 9),
    due=date(2025, 8, 8),
    delivered=date(2025, 7, 4),
    seller=KRONBERG,
    buyer=STADTWERKE,
    currency="EUR",
    items=(
        item("Durchflussmesser DN 80", "4", "H87", "1249.00", "19"),
        item("Inbetriebnahme vor Ort", "6.5", "HUR", "112.00", "19"),
    ),
    profile="urn:cen.eu:en16931:2017#compliant#urn:xeinkauf.de:kosit:xrechnung_3.0",
)
CII_ENCODING: Final = Sample(
    number="BC-7731",
    issued=date(2025, 2, 18),
    due=date(2025, 3, 20),
    delivered=date(2025, 2, 17),
    seller=BOIS_CLAIR,
    buyer=MAISON_HAUTE,
    currency="EUR",
    items=(item("Étagère en frêne", "5", "H87", "139.00", "20"),),
)
UBL_INVOICE: Final = Sample(
    number="2025-30118",
    issued=date(2025, 4, 1),
    due=date(2025, 5, 1),
    delivered=date(2025, 3, 31),
    seller=FJALLVIND,
    buyer=OSTERLEN,
    currency="SEK",
    items=(
        item("Vindkraft mars", "18450", "KWH", "0.8725", "25"),
        item("Nätavgift", "1", "MON", "1240.00", "25"),
        item("Mätarbyte", "2", "HUR", "695.00", "25"),
    ),
    profile="urn:cen.eu:en16931:2017#compliant#urn:fdc:peppol.eu:2017:poacc:billing:3.0",
)
UBL_CREDIT_NOTE: Final = Sample(
    number="CN-0093",
    issued=date(2025, 5, 19),
    due=date(2025, 5, 19),
    delivered=date(2025, 5, 12),
    seller=QUARRY,
    buyer=HARROWGATE,
    currency="GBP",
    items=(
        item("Whiteboard 120 × 90 cm, returned", "3", "H87", "58.40", "20"),
        item("Exercise books, returned", "120", "H87", "0.85", "0"),
    ),
    credit=True,
    note="Credit for goods returned on 12 May 2025, invoice QF-20811.",
)
UBL_WRONG_TOTALS: Final = Sample(
    number="QF-20877",
    issued=date(2025, 6, 2),
    due=date(2025, 7, 2),
    delivered=date(2025, 5, 30),
    seller=QUARRY,
    buyer=HARROWGATE,
    currency="GBP",
    items=(
        item("Stackable chair, blue", "30", "H87", "24.50", "20"),
        item("Trolley for chairs", "1", "H87", "189.00", "20"),
    ),
)
