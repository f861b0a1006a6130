"""What an agent answers to any NATS tool: the NATS service API (ADR-32), so that `nats micro ls` sees it.

`$SRV.PING`, `INFO` and `STATS`, each for everybody, by name and by instance, are answered in JSON. The
service's name is the agent id, its id the instance, its endpoints the capabilities. Until there is a
supervisor this is also how cards travel: `INFO` carries the whole card as text in its metadata. A card too
large for one message goes without its schemas, and says so.
"""

from __future__ import annotations

import datetime as dt
import json
import re
from collections.abc import Callable, Iterable
from typing import Any, Final, Protocol

from reach.bus.connection import Connection
from reach.bus.framing import Delivery
from reach.bus.subscription import Subscription
from reach.errors import ConfigError, LinkDown
from reach.wire import subjects
from reach.wire.card import CapabilityCard, Card

CARD_KEY: Final = "reach.card"
"""Metadata key of `INFO` under which the card stands, as JSON text."""

WITHOUT_KEY: Final = "reach.card.without"
"""Metadata key that names what was left out of a card that was too large."""

_ROOM: Final = 1024
_PREFIX: Final = "$SRV"
_VERBS: Final = ("PING", "INFO", "STATS")
_NUMBER: Final = re.compile(r"0|[1-9][0-9]*")
_WORDS: Final = re.compile(r"[0-9A-Za-z-]+(\.[0-9A-Za-z-]+)*")


class Counted(Protocol):
    """Figures of one capability: calls that have ended, failed ones among them, refusals, and time in work."""

    @property
    def name(self) -> str:
        """The capability."""
        ...

    @property
    def running(self) -> int:
        """Requests in work."""
        ...

    done: int
    failed: int
    refused: int
    busy_ms: float


class Service:
    """The service answers of one instance."""

    def __init__(self, connection: Connection, card: Card, *, stats: Callable[[], Iterable[Counted]]) -> None:
        """Prepare the answers. Raises `ConfigError` for a card that fits no message even without its schemas."""
        self._connection = connection
        self._card = card
        self._stats = stats
        self._subscriptions: list[Subscription] = []
        self._started = dt.datetime.now(dt.UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        self._ping = _encoded("ping", self._named())
        self._info = self._fitting_info()

    def start(self) -> None:
        """Answer from now on, across reconnects."""
        answers = {"PING": lambda: self._ping, "INFO": lambda: self._info, "STATS": self._figures}
        for verb in _VERBS:
            for subject in self._subjects(verb):
                handler = self._answering(answers[verb])
                self._subscriptions.append(self._connection.subscribe(subject, handler))

    def show(self, card: Card) -> None:
        """Answer with another card from now on. Raises `ConfigError` for one that does not fit."""
        self._card = card
        self._info = self._fitting_info()

    def stop(self) -> None:
        """Answer no more. Whoever asks now hears from the others only."""
        for subscription in self._subscriptions:
            subscription.drop()
        self._subscriptions.clear()

    def _subjects(self, verb: str) -> tuple[str, str, str]:
        name = f"{_PREFIX}.{verb}.{self._card.agent_id}"
        return f"{_PREFIX}.{verb}", name, f"{name}.{self._card.instance}"

    def _answering(self, answer: Callable[[], bytes]) -> Callable[[Delivery], None]:
        def receive(delivery: Delivery) -> None:
            if not delivery.reply:
                return
            try:
                self._connection.publish(delivery.reply, answer())
            except LinkDown:
                return  # The asker hears from us when it asks again; it waits for many answers, not for ours.

        return receive

    def _named(self, metadata: dict[str, str] | None = None) -> dict[str, Any]:
        card = self._card
        return {
            "name": card.agent_id,
            "id": card.instance,
            "version": card.version,
            "metadata": {"reach.protocol": card.protocol} if metadata is None else metadata,
        }

    def _fitting_info(self) -> bytes:
        most = self._connection.max_payload - _ROOM
        whole = self._info_with(self._card, {})
        if len(whole) <= most:
            return whole
        bare = tuple(
            one.model_copy(update={"input_schema": None, "output_schema": None})
            for one in self._card.capabilities
        )
        light = self._info_with(
            self._card.model_copy(update={"capabilities": bare}), {WITHOUT_KEY: "schemas"}
        )
        if len(light) <= most:
            return light
        raise ConfigError(
            f"the card of {self._card.agent_id} has {len(light)} bytes without its schemas, and the broker takes "
            f"{most}: split its {len(bare)} capabilities among several agents, or shorten their descriptions"
        )

    def _info_with(self, card: Card, extra: dict[str, str]) -> bytes:
        metadata = {
            CARD_KEY: card.model_dump_json(exclude_defaults=True),
            "reach.protocol": card.protocol,
            **extra,
        }
        return _encoded(
            "info",
            {
                **self._named(metadata),
                "description": card.display_name or card.agent_id,
                "endpoints": [
                    {
                        **_endpoint(one.tag),
                        "metadata": _endpoint_metadata(one),
                    }
                    for one in card.capabilities
                ],
            },
        )

    def _figures(self) -> bytes:
        return _encoded(
            "stats",
            {
                **self._named(),
                "started": self._started,
                "endpoints": [_figures_of(counted) for counted in self._stats()],
            },
        )


def _encoded(kind: str, body: dict[str, Any]) -> bytes:
    return json.dumps({"type": f"io.nats.micro.v1.{kind}_response", **body}, separators=(",", ":")).encode()


def _endpoint(capability: str) -> dict[str, Any]:
    # An endpoint's name has no dots by ADR-32; its subject says the capability as it is.
    return {
        "name": capability.replace(".", "_"),
        "subject": subjects.cap(capability),
        "queue_group": subjects.QUEUE,
    }


def _endpoint_metadata(card: CapabilityCard) -> dict[str, str]:
    told = {"reach.capability": card.tag, "reach.kind": card.kind}
    if card.description:
        told["description"] = card.description.partition("\n")[0]
    return told


def _figures_of(counted: Counted) -> dict[str, Any]:
    """Give an endpoint's statistics. ADR-32 counts every request that arrived, refused ones too."""
    spent_ns = int(counted.busy_ms * 1_000_000)
    return {
        **_endpoint(counted.name),
        "num_requests": counted.done + counted.refused,
        "num_errors": counted.failed + counted.refused,
        "last_error": "",  # What failed is in the records; an error's text has no place in a public answer.
        "processing_time": spent_ns,
        "average_processing_time": spent_ns // counted.done if counted.done else 0,
        "data": {"refused": counted.refused, "inflight": counted.running},
    }


def semver(version: str) -> str:
    """Check a semantic version (`2.3.1`, `2.3.1-rc.1+build.7`), as ADR-32 asks. Raises `ConfigError`."""
    if not isinstance(version, str):
        raise TypeError(f"a version is text such as '1.0.0', not {type(version).__name__}")
    rest, _, build = version.partition("+")
    core, dash, pre = rest.partition("-")
    numbers = core.split(".")
    ok = (
        len(numbers) == 3  # noqa: PLR2004 - major, minor, patch
        and all(_NUMBER.fullmatch(number) for number in numbers)
        and (not dash or _is_prerelease(pre))
        and ("+" not in version or _WORDS.fullmatch(build) is not None)
    )
    if not ok:
        near = _nearest_semver(core)
        hint = f"; {near!r} would be" if near else ", such as '1.0.0'"
        raise ConfigError(f"{version!r} is not a semantic version (major.minor.patch){hint}")
    return version


def _is_prerelease(text: str) -> bool:
    return _WORDS.fullmatch(text) is not None and all(
        not part.isdigit() or _NUMBER.fullmatch(part) for part in text.split(".")
    )


def _nearest_semver(core: str) -> str | None:
    numbers = re.findall(r"[0-9]+", core)[:3]
    return ".".join(str(int(number)) for number in [*numbers, "0", "0"][:3]) if numbers else None
