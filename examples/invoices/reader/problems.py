"""Why a document could not be read: a code for machines and a message for people.

A wrong document that can be read is no problem here: it is read, and its faults stand in the invoice.
"""

from enum import StrEnum


class Problem(StrEnum):
    """The reasons for which no invoice can be given back."""

    EMPTY = "empty"
    TOO_LARGE = "too_large"
    UNKNOWN_FORMAT = "unknown_format"
    PDF_TRUNCATED = "pdf_truncated"
    PDF_DAMAGED = "pdf_damaged"
    PDF_ENCRYPTED = "pdf_encrypted"
    PDF_NO_TEXT = "pdf_no_text"
    XML_ENCODING = "xml_encoding"
    XML_MALFORMED = "xml_malformed"
    XML_FORBIDDEN = "xml_forbidden"
    NO_INVOICE_FOUND = "no_invoice_found"


class InvoiceUnreadable(Exception):
    """No invoice can be read from the document.

    Attributes:
        problem: what is wrong, for a program.
        message: what is wrong and what would be right, for a person; safe to show, quotes nothing but names.
    """

    def __init__(self, problem: Problem, message: str) -> None:
        super().__init__(message)
        self.problem = problem
        self.message = message

    def named(self, filename: str) -> "InvoiceUnreadable":
        """The same with the document's name before the message."""
        return InvoiceUnreadable(self.problem, f"{filename}: {self.message}") if filename else self
