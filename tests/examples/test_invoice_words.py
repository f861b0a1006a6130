"""What people write on paper: numbers, dates and rows that prove to be lines."""

from datetime import date
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples.invoices.reader import InvoiceKind, InvoiceUnreadable, Problem
from examples.invoices.reader.notation import Notation
from examples.invoices.reader.text import read_text

WRITTEN = {"point": (",", "."), "comma": (".", ","), "space": ("\u00a0", ","), "apostrophe": ("'", ".")}


@given(st.integers(0, 999_999_999_999), st.sampled_from(sorted(WRITTEN)), st.booleans())
def test_an_amount_is_read_as_it_was_written(cents: int, style: str, negative: bool) -> None:
    """Whatever parts thousands and decimals, the value is the same to the cent, sign included."""
    thousands, point = WRITTEN[style]
    amount = Decimal(cents) / 100
    text = f"{amount:,.2f}".replace(",", "T").replace(".", point).replace("T", thousands)
    found = Notation.of(text).numbers(f"-{text}" if negative else text)
    assert [(number.value, number.money) for number in found] == [(-amount if negative else amount, True)]


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("NB-2025/0417", []),
        ("CAT6A cable", []),
        ("on 12.03.2025 and 2025-03-12", []),
        ("VAT 20 % of 100.00", ["20", "100.00"]),
        ("(45.00)", ["-45.00"]),
        ("45.00- EUR", ["-45.00"]),
        ("- € 45.00", ["-45.00"]),
        ("€1,000 and £2", ["1000", "2"]),
        ("12 400", ["12400"]),
        ("2  640.00", ["2", "640.00"]),
    ],
)
def test_numbers_stand_free(text: str, values: list[str]) -> None:
    """References, words and dates hold no numbers; signs come before, after or as brackets."""
    notation = Notation(decimal_comma=False, month_first=False, currency=None)
    assert [str(number.value) for number in notation.numbers(text)] == values


@pytest.mark.parametrize(
    ("text", "day"),
    [
        ("2025-03-04", date(2025, 3, 4)),
        ("04.03.2025", date(2025, 3, 4)),
        ("4/3/25", date(2025, 3, 4)),
        ("4 March 2025", date(2025, 3, 4)),
        ("March 4th, 2025", date(2025, 3, 4)),
        ("4. März 2025", date(2025, 3, 4)),
        ("4 août 2025", date(2025, 8, 4)),
        ("4 de enero de 2025", date(2025, 1, 4)),
        ("31/02/2025", None),
    ],
)
def test_dates_are_read_in_several_languages(text: str, day: date | None) -> None:
    """Days come in numbers and words; one that is in no calendar is none."""
    notation = Notation(decimal_comma=False, month_first=False, currency="EUR")
    assert [found for found, _, _ in notation.dates(text)] == ([] if day is None else [day])


def test_american_dates_begin_with_the_month() -> None:
    """A document in US dollars writes the month first, unless the number can be no month."""
    notation = Notation.of("Total $12.00")
    assert [found for found, _, _ in notation.dates("03/04/2025 and 25/04/2025")] == [
        date(2025, 3, 4),
        date(2025, 4, 25),
    ]


def page(*rows: str) -> list[str]:
    return ["\n".join(rows)]


HEAD = ("Tallow Lane Bakery Ltd", "", "Invoice number  TL-5", "Date  1 May 2025", "")


def test_a_row_that_multiplies_needs_no_heading() -> None:
    """Quantity × price = amount proves a line, in either order of the two, with the words where they may be."""
    draft = read_text(
        page(*HEAD, "Rye loaf   12   3.20   38.40", "2.50   Roll   40   100.00", "", "Total GBP   138.40")
    )
    assert [(line.description, line.quantity, line.unit_price) for line in draft.lines] == [
        ("Rye loaf", Decimal(12), Decimal("3.20")),
        ("Roll", Decimal(40), Decimal("2.50")),
    ]


def test_a_row_under_a_heading_is_a_line_even_when_it_is_wrong() -> None:
    """Where the figures disagree the columns decide, so that the check can fail."""
    draft = read_text(
        page(
            *HEAD,
            "Description          Qty     Price    Amount",
            "Rye loaf              12      3.20     39.40",
            "Total GBP                              39.40",
        )
    )
    assert [(line.quantity, line.unit_price, line.net_amount) for line in draft.lines] == [
        (Decimal(12), Decimal("3.20"), Decimal("39.40"))
    ]


def test_words_under_a_line_belong_to_it() -> None:
    """A description may run over several rows."""
    draft = read_text(
        page(
            *HEAD,
            "Description          Qty     Price    Amount",
            "Rye loaf              12      3.20     38.40",
            "sliced",
            "Total GBP                              38.40",
        )
    )
    assert [line.description for line in draft.lines] == ["Rye loaf sliced"]


def test_of_several_totals_those_count_that_fit() -> None:
    """Subtotal, discount and net lead to the total by arithmetic, not by place."""
    draft = read_text(
        page(
            *HEAD,
            "Subtotal  200.00",
            "Discount  20.00",
            "Net total  180.00",
            "VAT 20%  36.00",
            "Total  216.00",
        )
    )
    totals = draft.totals
    assert (totals.lines_net, totals.allowances, totals.net, totals.tax, totals.total, totals.due) == (
        Decimal("200.00"),
        Decimal("20.00"),
        Decimal("180.00"),
        Decimal("36.00"),
        Decimal("216.00"),
        Decimal("216.00"),
    )


@pytest.mark.parametrize("title", ["CREDIT NOTE", "Gutschrift", "Avoir", "Nota di credito", "Creditnota"])
def test_a_credit_note_is_told_by_its_title(title: str) -> None:
    """The first title on the page says what the document is."""
    draft = read_text(page("Tallow Lane Bakery Ltd", f"{title} 17", "Total EUR 12.00"))
    assert (draft.kind, draft.number) == (InvoiceKind.CREDIT_NOTE, "17")


def test_words_without_an_invoice_are_refused() -> None:
    """Text with amounts, but neither number nor title nor total, is no invoice."""
    with pytest.raises(InvoiceUnreadable) as refused:
        read_text(page("Menu", "Soup  4.50", "Bread  2.00"))
    assert refused.value.problem is Problem.NO_INVOICE_FOUND
