"""The agent's handler, called as a function: what goes in, what comes out, and how it fails."""

import base64
import json
from typing import Any

import pytest
from pydantic import ValidationError

import reach
from examples.invoice_agent import Document, agent, extract
from examples.invoices.make_samples import FOLDER
from examples.invoices.reader import Invoice

SAMPLE = (FOLDER / "facturx_simple.pdf").read_bytes()


def test_the_agent_serves_the_capability() -> None:
    """The agent of the demonstration is `invoice-extractor` and serves `invoice.extract`."""
    assert repr(agent) == "<Agent invoice-extractor 1.0.0: invoice.extract>"


def test_a_document_becomes_an_invoice() -> None:
    """Bytes in, the model out, and the answer is plain JSON with amounts as text."""
    invoice = extract(Document(content=SAMPLE, filename="march.pdf"))
    answer = json.loads(invoice.model_dump_json())
    assert (answer["number"], answer["seller"]["name"], answer["totals"]["total"], answer["valid"]) == (
        "NB-2025-0417",
        "Nordlicht Bürobedarf GmbH",
        "417.73",
        True,
    )
    assert Invoice.model_validate(answer) == invoice


def test_json_callers_send_base64() -> None:
    """JSON carries the document as base64, and the parameters survive the way there and back."""
    document = Document.model_validate(
        {"content": base64.b64encode(SAMPLE).decode(), "filename": "march.pdf"}
    )
    assert document == Document(content=SAMPLE, filename="march.pdf")
    assert Document.model_validate_json(document.model_dump_json()) == document


def test_text_that_is_no_base64_is_refused_with_what_would_be_right() -> None:
    """A path or plain text in `content` is refused before anything is read."""
    with pytest.raises(ValidationError, match="must be base64; msgpack callers send the bytes themselves"):
        Document.model_validate({"content": "/home/me/march.pdf"})


def test_a_document_that_cannot_be_read_is_the_callers_to_mend() -> None:
    """The failure is SCHEMA_INVALID/SCHEMA, nothing was executed, and the message begins with the problem."""
    with pytest.raises(reach.SchemaInvalid) as failed:
        extract(Document(content=(FOLDER / "damaged_truncated.pdf").read_bytes(), filename="march.pdf"))
    failure = failed.value
    assert (failure.code, failure.reason, failure.executed, failure.advice) == (
        reach.Code.SCHEMA_INVALID,
        reach.Reason.SCHEMA,
        reach.Executed.NO,
        reach.Advice.FIX_PARAMS,
    )
    assert failure.message.startswith("pdf_truncated: march.pdf: the PDF breaks off after")


async def test_over_the_bus_documents_come_back_as_invoices_or_failures(
    reach_agent: Any, reach_bus: reach.Bus
) -> None:
    """Served and called for real: bytes and base64 are read, and a damaged document is a structured failure."""
    await reach_agent(agent)
    for content in (SAMPLE, base64.b64encode(SAMPLE).decode()):
        reply = await reach_bus.request("invoice.extract", {"content": content, "filename": "march.pdf"})
        assert Invoice.model_validate(reply.unwrap()) == extract(Document(content=SAMPLE))
    damaged = (FOLDER / "damaged_truncated.pdf").read_bytes()
    reply = await reach_bus.request("invoice.extract", {"content": damaged, "filename": "march.pdf"})
    assert reply.error is not None
    assert (reply.error.code, reply.error.reason, reply.error.executed, reply.error.advice) == (
        "SCHEMA_INVALID",
        "SCHEMA",
        "no",
        "fix_params",
    )
    assert reply.error.message.startswith("pdf_truncated: march.pdf: the PDF breaks off after")
