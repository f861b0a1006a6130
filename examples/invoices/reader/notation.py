"""Numbers, dates and currencies as people write them on paper.

`1.234,56`, `1,234.56`, `1 234,56` and `1'234.56` are one number. Which sign parts the decimals is decided once for a
document, from the amounts that leave no doubt; so is whether `03/04/2025` is in April or (in the US) in March.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import Final

_CODES: Final = (
    *(
        "EUR",
        "USD",
        "GBP",
        "CHF",
        "SEK",
        "NOK",
        "DKK",
        "PLN",
        "CZK",
        "HUF",
        "RON",
        "BGN",
        "ISK",
        "JPY",
        "CNY",
        "CAD",
    ),
    *("AUD", "NZD", "INR", "BRL", "MXN", "ZAR", "TRY", "SGD", "HKD", "KRW", "ILS", "AED"),
)
_CODE: Final = re.compile(rf"(?<![A-Za-z])({'|'.join(_CODES)})(?![A-Za-z])")
_SYMBOLS: Final = {
    "€": "EUR",
    "£": "GBP",
    "$": "USD",
    "¥": "JPY",
    "₹": "INR",
    "zł": "PLN",
    "Kč": "CZK",
    "Fr.": "CHF",
}

_SPACES: Final = " \u00a0\u202f\u2009"
_NUMBER: Final = re.compile(
    rf"\d{{1,3}}(?:[{_SPACES}]\d{{3}})+[.,]\d{{2}}(?!\d)"  # 1 234,56
    r"|\d{1,3}(?:([.,'’])\d{3})(?:\1\d{3})*(?:[.,]\d{1,4})?(?!\d)"  # 1.234,56  1'234
    r"|\d{1,15}(?:[.,]\d{1,6})?"
)
_GROUPED_ALONE: Final = re.compile(rf"\d{{1,3}}(?:[{_SPACES}]\d{{3}})+")
_MINUS: Final = "-−–"
_MONEY_AROUND: Final = re.compile(rf"(?:{'|'.join(re.escape(sign) for sign in _SYMBOLS)}|{'|'.join(_CODES)})")
_MINUS_CURRENCY: Final = re.compile(rf"(?<!\w)[{_MINUS}]\s?(?:{_MONEY_AROUND.pattern})\s?$")
_GOES_ON: Final = re.compile(r"[^\W\d_]{1,2}\d|[/_]\w|-\w|\.\d")
_DECIMALS: Final = re.compile(r"[.,]\d{2}$")

_ISO_DATE: Final = re.compile(r"(?<!\d)(\d{4})[-/.](\d{2})[-/.](\d{2})(?!\d)")
_NUMERIC_DATE: Final = re.compile(
    r"(?<![\d.,/-])(\d{1,2})\s?([./-])\s?(\d{1,2})\s?\2\s?(\d{4}|\d{2})(?![\d/-])"
)
_DAY_MONTH: Final = re.compile(
    r"(?<!\d)(\d{1,2})(?:st|nd|rd|th|er|º|\.)?\s+(?:of\s+|de\s+)?([^\W\d_]{3,12})\.?,?\s+(?:de\s+)?(\d{4})(?!\d)"
)
_MONTH_DAY: Final = re.compile(r"([^\W\d_]{3,12})\.?\s+(\d{1,2})(?:st|nd|rd|th)?,?\s+(\d{4})(?!\d)")
_SHORT_DATE: Final = re.compile(r"(?<!\d)(\d{1,2})[- ]([^\W\d_]{3,4})\.?[- ](\d{4}|\d{2})(?!\d)")
# The first letters of the months in English, German, French, Spanish, Italian, Dutch, Portuguese and Scandinavian.
_MONTHS: Final = {
    letters: number
    for number, words in enumerate(
        (
            "jan ene gen",
            "feb fev",
            "mar mrt maa",
            "apr avr abr",
            "may mai maj mei mag",
            "jun juin giu",
            "jul juil lug",
            "aug aou ago",
            "sep set",
            "oct okt ott out",
            "nov",
            "dec dez dic des",
        ),
        start=1,
    )
    for letters in words.split()
}


def plain(text: str) -> str:
    """Lower case without accents, letter for letter: positions stay those of `text`."""
    return "".join(unicodedata.normalize("NFKD", letter)[0] for letter in text).lower()


@dataclass(frozen=True, slots=True)
class Number:
    """A number found in a text, `[start, end)`; `money` where a currency stands by it or it has two decimals."""

    value: Decimal
    start: int
    end: int
    percent: bool
    money: bool


@dataclass(frozen=True, slots=True)
class Notation:
    """How one document writes."""

    decimal_comma: bool
    month_first: bool
    currency: str | None

    @classmethod
    def of(cls, text: str) -> "Notation":
        """Decide from the whole document."""
        commas = len(re.findall(r"\d,\d{2}(?![\d,.])", text))
        points = len(re.findall(r"\d\.\d{2}(?![\d,.])", text))
        currency = _currency(text)
        return cls(decimal_comma=commas > points, month_first=currency == "USD", currency=currency)

    def numbers(self, text: str) -> list[Number]:
        """The free-standing numbers of a row, left to right: no dates and no parts of words or references."""
        if _GROUPED_ALONE.fullmatch(text):  # `12 400` is one number only where nothing else stands by it
            return [Number(self.decimal(text), 0, len(text), percent=False, money=False)]
        blanked = text
        for _, start, end in self._dates_at(text):
            blanked = blanked[:start] + "#" * (end - start) + blanked[end:]
        found = []
        for match in _NUMBER.finditer(blanked):
            number = self._number(blanked, match)
            if number is not None:
                found.append(number)
        return found

    def dates(self, text: str) -> list[tuple[date, int, int]]:
        """The dates of a row and where they stand, left to right."""
        return sorted(self._dates_at(text), key=lambda found: found[1])

    def decimal(self, digits: str) -> Decimal:
        """The value of a number as `_NUMBER` finds it."""
        digits = "".join(letter for letter in digits if letter not in f"{_SPACES}'’")
        last = max(digits.rfind(","), digits.rfind("."))
        if last < 0:
            return Decimal(digits)
        sign, tail = digits[last], digits[last + 1 :]
        other = "." if sign == "," else ","
        grouping = digits.count(sign) > 1 or (
            len(tail) == 3 and other not in digits and (sign == ",") is not self.decimal_comma  # noqa: PLR2004
        )
        if grouping:
            return Decimal(digits.replace(sign, "").replace(other, "."))
        return Decimal(digits[:last].replace(other, "") + "." + tail)

    def _number(self, text: str, match: re.Match[str]) -> Number | None:
        before, after = text[: match.start()], text[match.end() :]
        if _part_of_word(before, after):
            return None
        near = before[-6:] + " " + after[:5]
        by_currency = _MONEY_AROUND.search(near) is not None
        percent = re.match(r"\s?%", after) is not None
        decimals = _DECIMALS.search(match.group()) is not None
        value = self.decimal(match.group())
        return Number(
            value=-value if _negative(before, after, decimals=decimals) else value,
            start=match.start(),
            end=match.end(),
            percent=percent,
            money=not percent and (decimals or by_currency),
        )

    def _dates_at(self, text: str) -> Iterator[tuple[date, int, int]]:
        taken: list[tuple[int, int]] = []
        for pattern, order in (
            (_ISO_DATE, "ymd"),
            (_NUMERIC_DATE, "numeric"),
            (_DAY_MONTH, "dMy"),
            (_MONTH_DAY, "Mdy"),
            (_SHORT_DATE, "dMy"),
        ):
            for match in pattern.finditer(text):
                if any(start < match.end() and match.start() < end for start, end in taken):
                    continue
                day = self._date(match, order)
                if day is not None:
                    taken.append(match.span())
                    yield day, match.start(), match.end()

    def _date(self, match: re.Match[str], order: str) -> date | None:
        parts = [part for part in match.groups() if part not in "./-"]
        if order == "ymd":
            year, month, day = (int(part) for part in parts)
        elif order == "numeric":
            first, second, year = (int(part) for part in parts)
            swap = self.month_first and "/" in match.groups()
            day, month = (second, first) if (swap and first <= 12) or second > 12 else (first, second)  # noqa: PLR2004
        else:
            name = parts[1] if order == "dMy" else parts[0]
            found = _month(name)
            if found is None:
                return None
            day, month, year = int(parts[0] if order == "dMy" else parts[1]), found, int(parts[2])
        try:
            return date(year + 2000 if year < 100 else year, month, day)  # noqa: PLR2004
        except ValueError:
            return None


def _part_of_word(before: str, after: str) -> bool:
    """Whether a number is a piece of a reference (`NB-2025/04`), a word (`CAT6A`) or a date that was blanked."""
    lead = before[-1:]
    glued = lead.isalnum() and _MONEY_AROUND.search(before[-4:]) is None
    dashed = lead != "" and lead in _MINUS and before[-2:-1].isalnum()
    inside = lead != "" and lead in "./_#"
    return glued or dashed or inside or _GOES_ON.match(after) is not None


def _negative(before: str, after: str, *, decimals: bool) -> bool:
    """`-5,00`, `- € 5,00`, `(5.00)` and `5,00-`."""
    lead = before[-1:]
    if lead == "(":
        return re.match(r"\s?\)", after) is not None
    across = _MINUS_CURRENCY.search(before[-8:]) is not None
    trailing = decimals and re.match(rf"\s?[{_MINUS}](?:\s|$)", after) is not None
    return (lead != "" and lead in _MINUS) or across or trailing


def _month(name: str) -> int | None:
    letters = plain(name)
    return _MONTHS.get(letters[:4]) or _MONTHS.get(letters[:3])


def _currency(text: str) -> str | None:
    codes = Counter(_CODE.findall(text))
    if codes:
        return str(codes.most_common(1)[0][0])
    symbols = Counter({code: text.count(symbol) for symbol, code in _SYMBOLS.items() if symbol in text})
    return symbols.most_common(1)[0][0] if symbols else None
