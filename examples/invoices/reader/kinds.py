"""Which document type codes (UNTDID 1001) ask for money and which give it back."""

from typing import Final

from .model import InvoiceKind

# Credit note, self-billed credit note, factored credit note, credit notes for goods, for financial adjustments,
# for metered services, and forwarder's credit note. 389 is self-billed yet an invoice.
_CREDIT_CODES: Final = frozenset({"81", "83", "261", "262", "296", "308", "381", "396", "420", "458", "532"})


def kind_of(type_code: str | None) -> InvoiceKind:
    """The kind for a type code; everything that is no credit note is an invoice."""
    return InvoiceKind.CREDIT_NOTE if type_code in _CREDIT_CODES else InvoiceKind.INVOICE
