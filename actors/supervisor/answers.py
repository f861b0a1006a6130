"""What comes off the bus, read (messages of ours, the leader's key, whether a write was stored), and how we answer."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeVar

from pydantic import BaseModel, ValidationError

from actors.supervisor.leader import Seen
from actors.supervisor.letters import Moment
from reach.bus.framing import Delivery
from reach.errors import NotOnTheWire, ReachError, SchemaInvalid
from reach.runtime.message import failure_of
from reach.wire import codec
from reach.wire.card import Card
from reach.wire.registration import LEADER_KEY, ROUTES, LeaderEntry, read_message
from reach.wire.reply import Failure

_log = logging.getLogger("reach.supervisor")

MOST_AT_ONCE: Final = 5000
"""Heartbeats or digests taken in by one tick: some 50 ms."""

LEADER: Final = f"$KV.{ROUTES}.{LEADER_KEY}"
LOOK: Final = f"$JS.API.DIRECT.GET.KV_{ROUTES}.{LEADER}"
EXPECTED: Final = "Nats-Expected-Last-Subject-Sequence"
GUARDED: Final = {"Nats-Expected-Last-Subject-Sequence-Subject": LEADER}
"""The leader's key on the bus, how to look at it, and the headers that guard a write by it."""

M = TypeVar("M", bound=BaseModel)
T = TypeVar("T")


def read_as(data: bytes, model: type[M]) -> M | None:
    """Read a message; None, and a word in the log, for what is none."""
    try:
        return read_message(codec.unpack(data), model)
    except SchemaInvalid as error:
        _log.warning("A message cannot be read: %s", error)
        return None


def read_batch(gathered: list[bytes], model: type[M]) -> Iterator[M]:
    """Read, and take out, what was gathered, as much as one go is good for."""
    batch = gathered[:MOST_AT_ONCE]
    del gathered[:MOST_AT_ONCE]
    return (found for data in batch if (found := read_as(data, model)) is not None)


def contained(take: Callable[[T, Moment], None], told: T, moment: Moment) -> None:
    """Have one message taken in. What goes wrong with it is logged and ends nothing: others lead no better by it."""
    try:
        take(told, moment)
    except Exception:  # noqa: BLE001 - a message that was not foreseen must not end who leads
        _log.exception("A %s was not taken in: %.500s", type(told).__name__, told)


def refusal_of(error: Exception, subject: str) -> Failure:
    """Say to whoever asked what was wrong with a request; of a fault of ours only that there was one."""
    if isinstance(error, ReachError):
        return Failure.of_error(error)
    if isinstance(error, ValueError) and not isinstance(error, ValidationError | NotOnTheWire):
        return Failure.of_error(SchemaInvalid(str(error)))
    _log.error("A request on %s failed: it was not foreseen", subject, exc_info=error)
    return failure_of(error)


def seen(delivery: Delivery) -> Seen:
    """Read what the leader's key holds. What has ended by its time, or was given up, is free."""
    headers = delivery.headers or {}
    if "Status" in headers:
        return Seen(None, 0)
    sequence = int(headers.get("Nats-Sequence", "0"))
    if "Nats-Marker-Reason" in headers or "KV-Operation" in headers:
        return Seen(None, sequence)
    try:
        return Seen(read_message(codec.unpack(delivery.data), LeaderEntry).supervisor, sequence)
    except SchemaInvalid:
        return Seen(None, sequence)


def claim(supervisor: str, term: int, at_ms: int) -> bytes:
    """Give what the leader's key holds while this one leads."""
    return codec.pack(LeaderEntry(supervisor=supervisor, term=term, at=at_ms).model_dump())


def stored(delivery: Delivery) -> int | None:
    """Give the sequence that a write was stored with; None where it was refused."""
    try:
        answer: Any = json.loads(delivery.data)
        return None if "error" in answer else int(answer["seq"])
    except (ValueError, KeyError, TypeError):
        return None


def card_of(delivery: Delivery) -> Card | None:
    """Read the card in an answer to `$SRV.INFO`; None for some other service of NATS's."""
    try:
        text = (json.loads(delivery.data).get("metadata") or {}).get("reach.card")
        return Card.model_validate_json(text) if isinstance(text, str) else None
    except (ValueError, AttributeError):
        return None


def service_of(delivery: Delivery) -> tuple[str, str] | None:
    """Read the name and the id in an answer to `$SRV.PING`: an agent's, and its instance's; None where they lack."""
    try:
        said = json.loads(delivery.data)
        name, instance = said["name"], said["id"]
    except (ValueError, KeyError, TypeError):
        return None
    ours = isinstance(name, str) and isinstance(instance, str) and instance.startswith(f"{name}-")
    return (name, instance) if ours else None


def body_of(answer: BaseModel) -> dict[str, Any]:
    """Give an answer of ours as it is sent: every field of its own, and what is as usual inside left out."""
    bare = answer.model_dump(mode="json", exclude_defaults=True)
    left_out = type(answer).model_fields.keys() - bare.keys()
    return {**answer.model_dump(mode="json", include=set(left_out)), **bare}
