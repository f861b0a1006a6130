"""What an agent answers to NATS tools (ADR-32), asked over a real server."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reach.bus.connection import Connection
from reach.bus.keys import Role
from reach.errors import ConfigError
from reach.runtime.service import CARD_KEY, WITHOUT_KEY, Service, semver
from reach.wire.card import CapabilityCard, Card

SCHEMAS = Path(__file__).parent / "adr32"


@dataclass
class Figures:
    name: str
    done: int = 0
    failed: int = 0
    refused: int = 0
    busy_ms: float = 0.0
    running: int = 0


def card_of(instance: str = "reader-aaaaaaaa", **options: Any) -> Card:
    return Card(
        agent_id="reader",
        instance=instance,
        generation=17,
        version="2.3.1",
        capabilities=(
            CapabilityCard(
                tag="invoice.extract",
                description="Reads an invoice.\nAnd more.",
                input_schema={"type": "object", "properties": {"file_url": {"type": "string"}}},
            ),
            CapabilityCard(tag="ping", kind="stream"),
        ),
        **options,
    )


@asynccontextmanager
async def served(system: Any, card: Card, figures: list[Figures] | None = None) -> AsyncIterator[Service]:
    async with system.connection(Role.AGENT) as connection:
        service = Service(connection, card, stats=lambda: figures or [])
        service.start()
        await connection.flush()
        yield service


async def ask(connection: Connection, subject: str) -> list[dict[str, Any]]:
    answers = connection.request_many(subject, b"", timeout_s=2.0, stall_s=0.2)
    return [json.loads(answer) async for answer in answers]


def validate(kind: str, answer: dict[str, Any]) -> None:
    schema = json.loads((SCHEMAS / f"{kind}_response.json").read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(answer, schema, cls=jsonschema.Draft202012Validator)


@pytest.mark.parametrize("kind", ["ping", "info", "stats"])
async def test_answers_validate_against_the_schemas_of_adr_32(system: Any, kind: str) -> None:
    """`$SRV.PING`, `INFO`, `STATS`, to everybody, by name and by instance, answer as ADR-32 says."""
    verb = kind.upper()
    figures = [Figures("invoice.extract", 4, 1, 2, 10.0), Figures("ping")]
    async with served(system, card_of(), figures), system.connection() as caller:
        for subject in (f"$SRV.{verb}", f"$SRV.{verb}.reader", f"$SRV.{verb}.reader.reader-aaaaaaaa"):
            [answer] = await ask(caller, subject)
            validate(kind, answer)
            assert (answer["name"], answer["id"], answer["version"]) == ("reader", "reader-aaaaaaaa", "2.3.1")
        assert await ask(caller, f"$SRV.{verb}.other") == []
        assert await ask(caller, f"$SRV.{verb}.reader.reader-bbbbbbbb") == []


async def test_info_names_the_capabilities_and_carries_the_card(system: Any) -> None:
    """Endpoints are the capabilities; the whole card stands in the metadata, as text."""
    card = card_of(region="south", labels={"tier": "gold"})
    async with served(system, card), system.connection() as caller:
        [info] = await ask(caller, "$SRV.INFO.reader")
    assert [(e["name"], e["subject"], e["queue_group"]) for e in info["endpoints"]] == [
        ("invoice_extract", "cap.invoice.extract", "reach"),
        ("ping", "cap.ping", "reach"),
    ]
    assert info["endpoints"][0]["metadata"] == {
        "reach.capability": "invoice.extract",
        "reach.kind": "request",
        "description": "Reads an invoice.",
    }
    assert Card.model_validate_json(info["metadata"][CARD_KEY]) == card


async def test_stats_count_what_arrived_and_what_went_wrong(system: Any) -> None:
    """Refused requests count as requests and errors; the mean is over those that were worked on."""
    async with (
        served(system, card_of(), [Figures("invoice.extract", 4, 1, 2, 10.0)]),
        system.connection() as caller,
    ):
        [stats] = await ask(caller, "$SRV.STATS.reader")
    [endpoint] = stats["endpoints"]
    assert endpoint == {
        "name": "invoice_extract",
        "subject": "cap.invoice.extract",
        "queue_group": "reach",
        "num_requests": 6,
        "num_errors": 3,
        "last_error": "",
        "processing_time": 10_000_000,
        "average_processing_time": 2_500_000,
        "data": {"refused": 2, "inflight": 0},
    }


async def test_every_instance_answers(system: Any) -> None:
    """Service subjects have no queue group: two instances give two answers; a stopped one gives none."""
    other = card_of("reader-bbbbbbbb")
    async with served(system, card_of()), served(system, other) as second, system.connection() as caller:
        both = await ask(caller, "$SRV.PING.reader")
        second.stop()
        one = await ask(caller, "$SRV.PING.reader")
    assert sorted(answer["id"] for answer in both) == ["reader-aaaaaaaa", "reader-bbbbbbbb"]
    assert [answer["id"] for answer in one] == ["reader-aaaaaaaa"]


async def test_answers_come_back_after_a_restart_of_the_server(own_system: Any, until: Any) -> None:
    """The subscriptions are durable."""
    async with own_system.connection(Role.AGENT) as agent:
        Service(agent, card_of(), stats=list).start()
        await asyncio.to_thread(own_system.restart)
        await until(lambda: agent.epoch == 2 and agent.connected)
        await agent.flush()
        async with own_system.connection() as caller:
            [answer] = await ask(caller, "$SRV.PING")
    assert answer["id"] == "reader-aaaaaaaa"


async def test_a_card_too_large_for_a_message_goes_without_schemas(system: Any) -> None:
    """The flag says what is missing; what is left is a whole card."""
    wide = {"type": "object", "properties": {f"field_{n}": {"type": "string"} for n in range(40_000)}}
    card = Card(
        agent_id="reader",
        instance="reader-aaaaaaaa",
        generation=1,
        capabilities=(CapabilityCard(tag="invoice.extract", idempotent=True, input_schema=wide),),
    )
    async with served(system, card), system.connection() as caller:
        [info] = await ask(caller, "$SRV.INFO.reader")
    assert info["metadata"][WITHOUT_KEY] == "schemas"
    light = Card.model_validate_json(info["metadata"][CARD_KEY])
    assert (light.capabilities[0].idempotent, light.capabilities[0].input_schema) == (True, None)


async def test_a_card_that_fits_no_message_is_refused_at_start(system: Any) -> None:
    """A thousand capabilities with long descriptions are several agents."""
    many = tuple(CapabilityCard(tag=f"c{n}", description="long " * 400) for n in range(1_000))
    card = Card(agent_id="reader", instance="reader-aaaaaaaa", generation=1, capabilities=many)
    async with system.connection(Role.AGENT) as connection:
        with pytest.raises(ConfigError, match="split its 1000 capabilities among several agents"):
            Service(connection, card, stats=list)


@pytest.mark.parametrize(
    "version",
    [
        "0.0.0",
        "2.3.1",
        "10.20.30",
        "1.0.0-rc.1",
        "1.0.0-0.3.7",
        "1.0.0+build.7",
        "1.0.0-a-b.c+001",
        "1.0.0--",
    ],
)
def test_semantic_versions_pass(version: str) -> None:
    """ADR-32 wants SemVer; what is one passes unchanged."""
    assert semver(version) == version


@pytest.mark.parametrize(
    ("version", "near"),
    [
        ("2.3", "2.3.0"),
        ("v2.3.1", "2.3.1"),
        ("1", "1.0.0"),
        ("01.2.3", "1.2.3"),
        ("2026.11.30.2", "2026.11.30"),
        ("1.0.0-", "1.0.0"),
        ("1.0.0-01", "1.0.0"),
        ("1.0.0+", "1.0.0"),
        ("1.0.0+a_b", "1.0.0"),
        ("1.0.0\n", "1.0.0"),
        ("latest", "1.0.0"),
        ("", "1.0.0"),
        ("١.٢.٣", "1.0.0"),
    ],
)
def test_other_versions_are_refused_with_the_nearest(version: str, near: str) -> None:
    """The refusal names a version that would do."""
    with pytest.raises(ConfigError) as caught:
        semver(version)
    assert repr(near) in str(caught.value)


@given(st.text(alphabet="0123456789.-+abv", max_size=12))
def test_versions_are_judged_as_the_schema_judges(version: str) -> None:
    """Whatever passes is what the ADR's own pattern takes."""
    schema = json.loads((SCHEMAS / "ping_response.json").read_text(encoding="utf-8"))
    try:
        semver(version)
    except ConfigError:
        return
    jsonschema.validate(version, schema["$defs"]["semver"])
