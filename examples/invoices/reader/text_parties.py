"""Who sells and who buys, from the blocks of words on the first page.

A label (`Bill to`) says it outright. Without one, the seller is the company at the head of the page (or in the small
sender line over the address window), and the buyer the next block that ends in a town with its postal code.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from .labels import (
    BUYER_LABEL,
    COMPANY_FORM,
    LOCAL_TAX_ID,
    NOT_A_NAME,
    NUMBER_LABEL,
    SELLER_LABEL,
    TITLE,
    VAT_ID,
)
from .model import Address, Party, TaxId
from .notation import plain
from .text_rows import Cell, Row

_BLOCK_ROWS: Final = 7
_SENDER_LINE: Final = re.compile(r"\s*[·•|∙–]\s*|\s+[-*]\s+|,\s+")
_STREET: Final = re.compile(r"^\d+[a-z]?\s|\s\d+\s?[a-zA-Z]?$")
_SENDER_PARTS: Final = 3
# How many columns aside of its label a block may begin.
_SLANT: Final = 4
_TOWN: Final = re.compile(
    r"(?:(?P<country>[A-Z]{1,2})[- ])?(?P<code>\d{3} \d{2}|\d{4,5}(?: [A-Z]{2})?)[ ,]+(?P<town>[^\W\d_][^\d]{1,40})"
    r"|(?P<uktown>[^\W\d_][^\d,]{1,40}),? (?P<ukcode>[A-Z]{1,2}\d[A-Z\d]? ?\d[A-Z]{2})"
    r"|(?P<ustown>[^\W\d_][^\d,]{1,40}), (?P<state>[A-Z]{2}) (?P<uscode>\d{5}(?:-\d{4})?)"
)
_COUNTRIES: Final = {
    word: code
    for code, words in {
        "AT": "austria osterreich",
        "BE": "belgium belgique belgie belgien",
        "CH": "switzerland schweiz suisse svizzera",
        "DE": "germany deutschland allemagne alemania",
        "DK": "denmark danmark",
        "ES": "spain espana",
        "FR": "france frankreich francia",
        "GB": "united-kingdom uk england scotland wales",
        "IE": "ireland",
        "IT": "italy italia italien",
        "NL": "netherlands nederland niederlande pays-bas",
        "PT": "portugal",
        "SE": "sweden sverige",
        "US": "usa united-states",
    }.items()
    for word in words.split()
}


@dataclass(frozen=True, slots=True)
class _Block:
    """Words one below another, in one column."""

    name: str
    rest: tuple[str, ...]
    rows: tuple[int, ...]
    column: Cell

    def holds(self, row: Row, cell: Cell) -> bool:
        """Whether a cell is part of this block: in its rows, and begins in its column."""
        return row.index in self.rows and abs(cell.start - self.column.start) <= self._width()

    def _width(self) -> int:
        return max(len(line) for line in (self.name, *self.rest, self.column.text))


def read_parties(rows: Sequence[Row], taken: set[int]) -> tuple[Party | None, Party | None]:
    """Seller and buyer, each None where nothing looks like one; `taken` are the rows of the lines."""
    head = rows[: min(taken, default=len(rows))]
    buyer = _labelled(head, BUYER_LABEL)
    seller = _labelled(head, SELLER_LABEL) or _sender_line(head) or _head_of_page(head, buyer)
    if buyer is None:
        buyer = _address_block(head, seller)
    seller_ids, buyer_ids = _tax_ids(rows, seller, buyer)
    return _party(seller, seller_ids), _party(buyer, buyer_ids)


def _labelled(rows: Sequence[Row], label: re.Pattern[str]) -> _Block | None:
    for index, row in enumerate(rows):
        for cell in row.cells:
            match = label.match(plain(cell.text))
            if match is None:
                continue
            rest = cell.text[match.end() :].strip()
            alone = not rest
            colon = ":" in match.group()
            if alone or (colon and _is_name(rest)):
                block = _block_below(rows, index, cell, first=rest)
                if block is not None:
                    return block
    return None


def _block_below(rows: Sequence[Row], index: int, cell: Cell, *, first: str) -> _Block | None:
    """The words under a cell, down to a gap, another label, or something that is no part of an address."""
    words = [first] if first else []
    used = [rows[index].index]
    for row in rows[index + 1 : index + 1 + _BLOCK_ROWS]:
        if row.after_gap and len(words) > 1:
            break
        under = row.nearest(cell, within=0)
        if under is None or abs(under.start - cell.start) > len(cell.text) + _SLANT:
            if words:
                break
            continue
        if _ends_block(under.text, words):
            break
        words.append(under.text)
        used.append(row.index)
    return _Block(words[0], tuple(words[1:]), tuple(used), cell) if words and _is_name(words[0]) else None


def _ends_block(text: str, words: Sequence[str]) -> bool:
    letters = plain(text)
    if NUMBER_LABEL.match(letters) or TITLE.fullmatch(letters.strip()):
        return True
    return bool(words) and any(pattern.fullmatch(letters) for pattern in (BUYER_LABEL, SELLER_LABEL))


def _sender_line(rows: Sequence[Row]) -> _Block | None:
    """`Company · Street 1 · 12345 Town` in one small line."""
    for row in rows:
        for cell in row.cells:
            parts = [part.strip(" ,") for part in _SENDER_LINE.split(cell.text) if part.strip(" ,")]
            named = len(parts) >= _SENDER_PARTS and _is_name(parts[0]) and not _STREET.search(parts[0])
            if named and any(_TOWN.fullmatch(part) for part in parts):
                return _Block(parts[0], tuple(parts[1:]), (row.index,), cell)
    return None


def _head_of_page(rows: Sequence[Row], buyer: _Block | None) -> _Block | None:
    """The first name on the page that has a company's form, else the first name."""
    candidates = [
        (index, cell)
        for index, row in enumerate(rows)
        for cell in row.cells
        if _is_name(cell.text) and not (buyer and buyer.holds(row, cell))
    ]
    before_buyer = [
        (index, cell) for index, cell in candidates if buyer is None or rows[index].index <= buyer.rows[0]
    ]
    companies = [
        (index, cell) for index, cell in [*before_buyer, *candidates] if COMPANY_FORM.search(cell.text)
    ]
    for index, cell in [*companies, *candidates][:1]:
        block = _block_below(rows, index, cell, first=cell.text)
        # What stands under a name at the head of a page is its address only where a town is in it.
        return block if block and _has_town(block) else _Block(cell.text, (), (rows[index].index,), cell)
    return None


def _has_town(block: _Block) -> bool:
    return any(_TOWN.fullmatch(part) for line in block.rest for part in _apart(line))


def _address_block(rows: Sequence[Row], seller: _Block | None) -> _Block | None:
    """The first block that ends in a town and is not the seller's."""
    for index, row in enumerate(rows):
        for cell in row.cells:
            if not _is_name(cell.text) or (seller and (seller.holds(row, cell) or cell.text == seller.name)):
                continue
            block = _block_below(rows, index, cell, first=cell.text)
            if block and any(_TOWN.fullmatch(line) for line in block.rest[:4]):
                return block
    return None


def _is_name(text: str) -> bool:
    letters = plain(text).strip()
    if NOT_A_NAME.fullmatch(letters) or sum(letter.isalpha() for letter in letters) < 3:  # noqa: PLR2004
        return False
    if _TOWN.fullmatch(text) or NUMBER_LABEL.search(letters):
        return False
    return TITLE.match(letters) is None or COMPANY_FORM.search(text) is not None


def _tax_ids(rows: Sequence[Row], seller: _Block | None, buyer: _Block | None) -> tuple[list[str], list[str]]:
    """VAT numbers: those within the buyer's block are the buyer's, the first of the others is the seller's."""
    sellers: list[str] = []
    buyers: list[str] = []
    for row in rows:
        for match in (*VAT_ID.finditer(row.text), *LOCAL_TAX_ID.finditer(row.text)):
            value = re.sub(r"[ .]", "", match[1])
            in_buyer = buyer is not None and buyer.holds(row, Cell(value, match.start(), match.end()))
            if in_buyer or (sellers and value not in sellers and buyer is not None and not buyers):
                buyers.append(value)
            elif not sellers:
                sellers.append(value)
    return (sellers if seller else []), buyers


def _party(block: _Block | None, tax_ids: Sequence[str]) -> Party | None:
    if block is None:
        return None
    return Party(
        name=block.name.strip(" ,:"),
        tax_ids=tuple(TaxId(scheme="VAT", value=value) for value in tax_ids),
        address=_address(block.rest),
    )


def _address(lines: Sequence[str]) -> Address:
    """Street and town: the town is the last line that looks like one (`1180 Orchard Road` does, and is none)."""
    lines = [part for line in lines for part in _apart(line)]
    towns = [(position, match) for position, line in enumerate(lines) if (match := _TOWN.fullmatch(line))]
    position, town = towns[-1] if towns else (2, None)
    street = tuple(
        line for line in lines[:position] if not NOT_A_NAME.fullmatch(plain(line)) or line[:1].isdigit()
    )
    if town is None:
        return Address(lines=street)
    after = plain(lines[position + 1]).strip().replace(" ", "-") if position + 1 < len(lines) else ""
    return Address(
        lines=street,
        postal_code=town["code"] or town["ukcode"] or town["uscode"],
        city=(town["town"] or town["uktown"] or town["ustown"]).strip(" ,"),
        region=town["state"],
        country_code=_COUNTRIES.get(after, "GB" if town["ukcode"] else None),
    )


def _apart(line: str) -> list[str]:
    """`Street 1, 12345 Town` as two lines."""
    parts = [part.strip() for part in _SENDER_LINE.split(line) if part.strip()]
    return (
        parts
        if not _TOWN.fullmatch(line) and any(_TOWN.fullmatch(part) for part in parts)
        else [line.strip()]
    )
