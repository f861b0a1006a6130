"""Rules of EN 16931 that are no sums: what must be stated, and what a tax category demands.

A selection, not a validator: the rules whose breach changes what a person may do with the invoice (pay it, deduct its
tax). Names are the standard's, so that they can be looked up.
"""

from collections.abc import Iterator
from typing import Final

from .draft import Draft, broken_rule
from .model import Finding, Party

_INTRA_COMMUNITY: Final = "K"
_REVERSE_CHARGE: Final = "AE"
_STANDARD_RATED: Final = "S"


def findings_of(draft: Draft) -> Iterator[Finding]:
    """The rules that the draft breaks."""
    yield from _stated(draft)
    categories = {group.category for group in draft.tax_groups}
    if _INTRA_COMMUNITY in categories:
        yield from _intra_community(draft)
    if _REVERSE_CHARGE in categories and _vat_id(draft.seller) is None:
        yield broken_rule(
            "BR-AE-02", "tax is reversed to the buyer (AE), and the seller states no VAT number"
        )
    if _STANDARD_RATED in categories and not (draft.seller and draft.seller.tax_ids):
        yield broken_rule("BR-S-02", "tax is charged, and the seller states no VAT or tax number")


def _stated(draft: Draft) -> Iterator[Finding]:
    if draft.number is None:
        yield broken_rule("BR-02", "an invoice number is missing")
    if draft.issue_date is None:
        yield broken_rule("BR-03", "an issue date is missing")
    if draft.currency is None:
        yield broken_rule("BR-05", "a currency is missing")
    if draft.seller is None or not draft.seller.name:
        yield broken_rule("BR-06", "the seller's name is missing")
    if draft.buyer is None or not draft.buyer.name:
        yield broken_rule("BR-07", "the buyer's name is missing")
    if not draft.lines:
        yield Finding(
            code="no_lines", message="no lines are stated, so the totals cannot be checked against them"
        )


def _intra_community(draft: Draft) -> Iterator[Finding]:
    if _vat_id(draft.seller) is None or _vat_id(draft.buyer) is None:
        yield broken_rule(
            "BR-IC-02", "an intra-community supply (tax category K) needs the VAT numbers of seller and buyer"
        )
    if draft.delivery_date is None and draft.period_start is None and draft.period_end is None:
        yield broken_rule(
            "BR-IC-11",
            "an intra-community supply (tax category K) needs the delivery date or the invoicing period",
        )
    if draft.delivery_country is None:
        yield broken_rule(
            "BR-IC-12", "an intra-community supply (tax category K) needs the country delivered to"
        )


def _vat_id(party: Party | None) -> str | None:
    return party.vat_id if party else None
