"""An agent that reads invoices: bytes in, an `Invoice` out, whatever the format.

Serve it with `reach run examples.invoice_agent:agent`; call it with `reach call invoice.extract content=@march.pdf`.
The reading is plain synchronous code, so it runs in threads; a document that cannot be read ends as a failure that
says what is wrong with it, not as an answer full of gaps.
"""

import base64
import binascii
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

import reach
from examples.invoices.reader import Invoice, InvoiceUnreadable, read_invoice

agent = reach.Agent("invoice-extractor", version="1.0.0", owner="finance-platform")


def _bytes_or_base64(content: object) -> object:
    """JSON has no bytes: text is taken as base64, in either of its alphabets."""
    if not isinstance(content, str):
        return content
    try:
        return base64.b64decode(content.translate({ord("-"): "+", ord("_"): "/"}), validate=True)
    except binascii.Error:
        raise ValueError(
            "content as text must be base64; msgpack callers send the bytes themselves"
        ) from None


class Document(BaseModel):
    """What to read: the document itself, never a path to it."""

    model_config = ConfigDict(ser_json_bytes="base64")

    content: Annotated[bytes, BeforeValidator(_bytes_or_base64)] = Field(
        description="The whole file, PDF or XML, at most 20 MiB. In JSON: base64."
    )
    filename: str = Field(default="", max_length=255, description="Named in messages; nothing is opened.")


@agent.capability("invoice.extract", idempotent=True, timeout_s=20, max_concurrency=4)
def extract(document: Document) -> Invoice:
    """Read one invoice or credit note: hybrid PDF, UBL, CII, or a PDF that is only pages."""
    try:
        return read_invoice(document.content, filename=document.filename)
    except InvoiceUnreadable as unreadable:
        raise _failure(unreadable) from unreadable


def _failure(unreadable: InvoiceUnreadable) -> reach.ReachError:
    """The one place where a document's problem becomes the failure that a caller sees: other parameters are needed."""
    return reach.SchemaInvalid(f"{unreadable.problem}: {unreadable.message}")


if __name__ == "__main__":
    agent.run()
