"""The streams that tasks live in, and others: made where missing, changed where that can be, verified, or refused.

`REACH_TASK_EVENTS` keeps what happened, for whoever asks later. `REACH_TASKS` is the work queue: it sources what was
queued there, under the capability's name alone, and takes what scripts publish plainly. What a living stream cannot
become (a work queue out of a log, a schedule-taker into one that is none) is told with the cure, before anything
relies on it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from nats.js import JetStreamContext, api
from nats.js.errors import APIError, NotFoundError

DAY_S: Final = 86_400.0

EVENTS_KEPT_S: Final = 7 * DAY_S
"""How long events stay: as long as the blobs of tasks, and the records of calls."""

DEDUPE_S: Final = 120.0
"""The window in which a script's `Nats-Msg-Id` counts: NATS's own default. Nothing of ours relies on it."""

REPLICAS_IN_A_CLUSTER: Final = 3
"""Copies of everything there, unless an operator says otherwise: one server may fail."""

_NAME_IN_USE: Final = 10058

ALL_QUEUED: Final = "task.event.queued.*.*.>"
ALL_WORK: Final = "task.submit.>"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """One stream as it must be. `sources` are `(stream, subjects there, subjects here)`."""

    name: str
    subjects: tuple[str, ...]
    retention: api.RetentionPolicy = api.RetentionPolicy.LIMITS
    max_age_s: float = 0.0
    schedules: bool = False
    sources: tuple[tuple[str, str, str], ...] = ()
    counters: bool = False
    """Whether each subject is a number, which messages add to (ADR-49)."""


TASK_STREAMS: Final[tuple[Stream, ...]] = (
    Stream(
        name="REACH_TASK_EVENTS",
        subjects=("task.event.>",),
        max_age_s=EVENTS_KEPT_S,
        schedules=True,
    ),
    Stream(
        name="REACH_TASKS",
        subjects=(ALL_WORK,),
        retention=api.RetentionPolicy.WORK_QUEUE,
        sources=(("REACH_TASK_EVENTS", ALL_QUEUED, ALL_WORK),),
    ),
)
"""In the order in which they are made: the queue sources the events."""

UNKNOWN_KEPT_S: Final = 30 * DAY_S
"""How long an unknown outcome, and what was said of it, stays listed."""

UNKNOWN: Final = Stream(name="REACH_UNKNOWN", subjects=("reach.unknown.>",), max_age_s=UNKNOWN_KEPT_S)
"""Calls of which nobody knows whether they were done, and what operators said of them."""

COUNTERS_KEPT_S: Final = 7 * DAY_S
"""How long a number stays that nobody adds to any more: as long as a task."""

COUNTERS: Final = Stream(
    name="REACH_COUNTERS", subjects=("reach.count.>",), max_age_s=COUNTERS_KEPT_S, counters=True
)
"""What tasks have spent. In files: a restart of the server must not give a task its budget anew."""

AUDIT_KEPT_S: Final = 365 * DAY_S
"""How long it can be read who changed what."""

AUDIT: Final = Stream(name="REACH_AUDIT", subjects=("reach.audit.>",), max_age_s=AUDIT_KEPT_S)
"""Who changed what, when and why: one entry a command."""

STREAMS: Final[tuple[Stream, ...]] = (*TASK_STREAMS, UNKNOWN, COUNTERS, AUDIT)
"""Every stream that exists from the start."""


def usual_replicas(server_info: Mapping[str, Any]) -> int:
    """Give how many copies there should be by what a server says of itself: three in a cluster of three or more.

    A cluster that does not advertise its members may be of any size: there too it is three, and whoever makes the
    streams is told when that cannot be.
    """
    if not server_info.get("cluster"):
        return 1
    members = server_info.get("connect_urls") or ()
    return REPLICAS_IN_A_CLUSTER if not members or len(members) >= REPLICAS_IN_A_CLUSTER else 1


def config(stream: Stream, *, replicas: int = 1) -> api.StreamConfig:
    """Give a stream's configuration as it is made."""
    return api.StreamConfig(
        name=stream.name,
        subjects=list(stream.subjects),
        retention=stream.retention,
        storage=api.StorageType.FILE,
        # A stream with schedules knows no other; nothing is discarded, since no number is limited.
        discard=api.DiscardPolicy.OLD,
        num_replicas=replicas,
        max_age=stream.max_age_s,
        max_msgs_per_subject=1 if stream.counters else -1,
        duplicate_window=DEDUPE_S,
        allow_direct=True,
        allow_msg_counter=stream.counters or None,
        allow_msg_ttl=stream.schedules or None,
        allow_msg_schedules=stream.schedules or None,
        sources=_sources(stream) or None,
    )


def faults(found: api.StreamConfig, stream: Stream) -> tuple[str, ...]:
    """Why an existing stream cannot be made into what it must be, in words; empty when it can."""
    reasons = []
    if (found.retention or api.RetentionPolicy.LIMITS) != stream.retention:
        reasons.append(f"its retention is {found.retention}, and must be {stream.retention.value}")
    if stream.counters != bool(found.allow_msg_counter):
        reasons.append("it does not count" if stream.counters else "it only counts")
    return (*reasons, *unwritable(found))


def unwritable(found: api.StreamConfig) -> tuple[str, ...]:
    """Why nothing of ours can be kept in an existing stream, whatever it is for, in words; empty when it can."""
    reasons = []
    if found.storage not in {None, api.StorageType.FILE}:
        reasons.append("it is kept in memory, and must be kept in files")
    if found.sealed:
        reasons.append("it is sealed")
    if found.mirror is not None:
        reasons.append("it mirrors another stream, and must be written to")
    if found.no_ack:
        reasons.append("it does not acknowledge")
    return tuple(reasons)


def corrections(found: api.StreamConfig, stream: Stream, *, replicas: int = 1) -> dict[str, Any]:
    """What to change on an existing stream; empty when it is as it should be.

    More copies than are asked for, limits, placement and descriptions are an operator's choice, and stay.
    """
    changes: dict[str, Any] = {}
    missing = [subject for subject in stream.subjects if subject not in (found.subjects or ())]
    if missing:
        changes["subjects"] = [*(found.subjects or ()), *missing]
    if (found.max_age or 0.0) != stream.max_age_s:
        changes["max_age"] = stream.max_age_s
    if stream.counters and found.max_msgs_per_subject != 1:
        changes["max_msgs_per_subject"] = 1
    if not found.allow_direct:
        changes["allow_direct"] = True
    if stream.schedules and not found.allow_msg_ttl:
        changes["allow_msg_ttl"] = True
    if stream.schedules and not found.allow_msg_schedules:
        changes["allow_msg_schedules"] = True
        changes["discard"] = api.DiscardPolicy.OLD
    if _named(found.sources) != _named(_sources(stream)):
        changes["sources"] = _sources(stream)
    if (found.num_replicas or 1) < replicas:
        changes["num_replicas"] = replicas
    return changes


async def ensure_stream(
    jetstream: JetStreamContext, stream: Stream, *, replicas: int = 1
) -> tuple[bool, tuple[str, ...]]:
    """Make or change one stream, and verify it: whether anything was done, and why it cannot be used.

    Raises `nats.js.errors.APIError` for what the server refuses.
    """
    changed = False
    try:
        found = (await jetstream.stream_info(stream.name)).config
    except NotFoundError:
        changed = True
        try:
            await jetstream.add_stream(config(stream, replicas=replicas))
        except APIError as exc:
            # Another platform was first, with other settings of its own: judge what is there now.
            if exc.err_code != _NAME_IN_USE:
                raise
        found = (await jetstream.stream_info(stream.name)).config
    if reasons := faults(found, stream):
        return changed, reasons
    if changes := corrections(found, stream, replicas=replicas):
        await jetstream.update_stream(found, **changes)
        changed = True
    return changed, await _verified(jetstream, stream)


async def _verified(jetstream: JetStreamContext, stream: Stream) -> tuple[str, ...]:
    """Ask the server which stream has each subject, and whether the sourcing is there (case 16)."""
    reasons = []
    for subject in stream.subjects:
        try:
            holder = await jetstream.find_stream_name_by_subject(subject)
        except NotFoundError:
            holder = "no stream"
        if holder != stream.name:
            reasons.append(f"{subject} is stored by {holder}")
    kept = (await jetstream.stream_info(stream.name)).config
    if _named(kept.sources) != _named(_sources(stream)):
        reasons.append("it does not source what it must: is this server older than 2.10?")
    if stream.schedules and not kept.allow_msg_schedules:
        reasons.append("it takes no schedules: is this server older than 2.12?")
    if stream.counters and not kept.allow_msg_counter:
        reasons.append("it does not count: is this server older than 2.12?")
    return tuple(reasons)


def _sources(stream: Stream) -> list[api.StreamSource]:
    return [
        api.StreamSource(name=name, subject_transforms=[api.SubjectTransform(src=there, dest=here)])
        for name, there, here in stream.sources
    ]


def _named(sources: list[api.StreamSource] | None) -> list[tuple[str, tuple[tuple[str, str], ...]]]:
    return [
        (source.name, tuple((one.src, one.dest) for one in source.subject_transforms or ()))
        for source in sources or ()
    ]
