"""What a new leader goes on from: the buckets of cards and routes, read whole, as just seen.

A bucket is read in batches of direct gets (one request, many answers), which needs no consumer and never waits: a
`Reading` says what to ask for and takes what comes. Then every instance that the cards show as present is there
for one lease, with the standing that the table gives it, and is asked at once whether it lives; operators'
settings, breakers and tiers go on from the table.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import Final, TypeVar

from pydantic import BaseModel

from actors.supervisor.governor import Governor
from actors.supervisor.letters import Moment
from actors.supervisor.planner import MOST_AT_ONCE
from actors.supervisor.roster import Member
from reach.bus.framing import Delivery
from reach.errors import SchemaInvalid
from reach.policy.warmup import WARM_UP
from reach.wire import codec
from reach.wire.registration import (
    INHERIT_KEY,
    ROUTES,
    CardEntry,
    InheritEntry,
    capability_of_key,
    read_message,
)
from reach.wire.route import InstanceException, RouteEntry

_log = logging.getLogger("reach.supervisor")

BATCH: Final = 5000
_STATUS_END: Final = "204"
_STATUS_NONE: Final = "404"

M = TypeVar("M", bound=BaseModel)


class Reading:
    """One bucket as it is read. `values` are the newest by key, deleted keys left out; `done` when all is there."""

    def __init__(self, bucket: str) -> None:
        self.bucket = bucket
        self.values: dict[str, bytes] = {}
        self.done = False
        self._prefix = f"$KV.{bucket}."
        self._next = 1

    @property
    def subject(self) -> str:
        """Where to ask."""
        return f"$JS.API.DIRECT.GET.KV_{self.bucket}"

    def request(self) -> bytes:
        """What to ask for next."""
        asked = {"seq": self._next, "batch": BATCH, "next_by_subj": f"{self._prefix}>"}
        return json.dumps(asked).encode()

    def take(self, delivery: Delivery) -> bool:
        """Take one answer in; whether the next request is due."""
        headers = delivery.headers or {}
        status = headers.get("Status")
        if status == _STATUS_END:
            self.done = headers.get("Nats-Num-Pending", "0") == "0"
            return not self.done
        if status is not None:  # Nothing there (404), or no such bucket (503).
            self.done = True
            return False
        self._next = int(headers.get("Nats-Sequence", "0")) + 1
        key = headers.get("Nats-Subject", "").removeprefix(self._prefix)
        if "KV-Operation" in headers or "Nats-Marker-Reason" in headers:
            self.values.pop(key, None)
        else:
            self.values[key] = delivery.data
        return False


class TakeOver:
    """A governor on its way to knowing what the buckets hold: a few capabilities at a time.

    Thousands at once take seconds, in which the leadership that is being begun would end.
    """

    def __init__(
        self, governor: Governor, *, cards: Mapping[str, bytes], routes: Mapping[str, bytes], moment: Moment
    ) -> None:
        self.governor = governor
        self._rule = routes.get(INHERIT_KEY)
        _adopt(governor, cards=cards, routes=routes, moment=moment)
        self._left = sorted({*governor.roster.capabilities, *governor.planner.entries}, reverse=True)

    def go_on(self, moment: Moment) -> bool:
        """Work the next ones out; whether that was all, and the governor may govern."""
        governor = self.governor
        for _ in range(min(MOST_AT_ONCE, len(self._left))):
            governor.planner.work_out(self._left.pop(), moment.now, moment.at_ms)
        if self._left:
            return False
        for name in governor.roster.members:
            governor.orders.assume(name)
        _tell_rule(governor, self._rule)
        governor.ask_all(moment)
        governor.look_around()
        return True


def take_over(
    governor: Governor, *, cards: Mapping[str, bytes], routes: Mapping[str, bytes], moment: Moment
) -> None:
    """Let a governor go on from what the buckets hold, at once."""
    taking = TakeOver(governor, cards=cards, routes=routes, moment=moment)
    while not taking.go_on(moment):
        pass


def _adopt(
    governor: Governor, *, cards: Mapping[str, bytes], routes: Mapping[str, bytes], moment: Moment
) -> None:
    now, at_ms = moment.now, moment.at_ms
    exceptions: dict[str, InstanceException] = {}
    for key, data in routes.items():
        if capability_of_key(key) is None:
            continue
        entry = _read(key, data, RouteEntry)
        if entry is not None:
            governor.planner.adopt(entry, now, at_ms)
            exceptions |= {one.instance: one for lane in entry.lanes for one in lane.exceptions}
    for key, data in cards.items():
        kept = _read(key, data, CardEntry)
        if kept is None or not kept.present:
            continue
        member = Member(
            kept.card,
            registered_ms=kept.registered_at,
            heard_at=now,
            server=kept.server,
            connection=kept.connection,
            kept=kept,
            unproven=True,
        )
        governor.roster.adopt(member, now=now)
        _stand(governor, member, exceptions.get(member.name), moment)


def _tell_rule(governor: Governor, told: bytes | None) -> None:
    """Write the rule of inheritance down where callers read it, unless that is what it says."""
    rule = governor.planner.inheritance
    entry = InheritEntry(mode=rule.mode.value, parents=dict(rule.parents))
    data = codec.pack(entry.model_dump(mode="json"))
    if data != told:
        governor.scribe.put(ROUTES, INHERIT_KEY, data)


def _stand(governor: Governor, member: Member, exception: InstanceException | None, moment: Moment) -> None:
    """Give an instance the standing that the table gave it; what has only to be heard again is left out."""
    if exception is None or exception.generation != member.generation:
        return
    member.state, member.changed_ms = exception.state, exception.since
    match exception.state:
        case "steered" | "fenced":
            governor.doubts.adopt(member.name, moment.now)
        case "not_ready":
            member.ready = False
        case "busy":
            member.busy = exception.reason or "busy"
        case "draining":
            member.draining = True
        case "warmup" if exception.until is not None:
            left_s = min(WARM_UP.length_s, max(0.0, (exception.until - moment.at_ms) / 1000))
            member.warm_since = moment.now - (WARM_UP.length_s - left_s)
        case _:
            return


def _read(key: str, data: bytes, model: type[M]) -> M | None:
    try:
        return read_message(codec.unpack(data), model)
    except SchemaInvalid as error:
        _log.warning("What the table holds under %s cannot be read, and is left out: %s", key, error)
        return None
