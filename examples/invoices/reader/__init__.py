"""Reads real-format invoices into one model and says what is wrong with them.

Hybrid PDF (Factur-X, ZUGFeRD 1 and 2), UN/CEFACT CII (XRechnung among it), UBL 2.1 invoices and credit
notes, and PDF pages that hold text only. What is readable is read, and what is wrong with it is said in
`Invoice.checks` and `Invoice.findings`; what is not readable raises `InvoiceUnreadable` with a problem code.
Nothing here knows of a bus: `examples/invoice_agent.py` serves it.
"""

from .model import (
    Address,
    AllowanceCharge,
    Check,
    CheckName,
    Finding,
    Invoice,
    InvoiceKind,
    InvoiceLine,
    Party,
    Severity,
    SourceFormat,
    TaxGroup,
    TaxId,
    Totals,
)
from .problems import InvoiceUnreadable, Problem
from .read import read_invoice

__all__ = [
    "Address",
    "AllowanceCharge",
    "Check",
    "CheckName",
    "Finding",
    "Invoice",
    "InvoiceKind",
    "InvoiceLine",
    "InvoiceUnreadable",
    "Party",
    "Problem",
    "Severity",
    "SourceFormat",
    "TaxGroup",
    "TaxId",
    "Totals",
    "read_invoice",
]
