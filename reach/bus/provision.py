"""The buckets and streams that exist from the start: made where missing, and verified before they are relied on.

A publish to a subject that no stream covers is not refused, it times out; a bucket that exists with other
rules fails later and elsewhere. So the platform makes what is missing, puts right what may be changed on a
living bucket, refuses what cannot, and then asks the server which stream has each subject. Doing it again
changes nothing.

What an operator may choose (replicas, placement, size limits, compression, a description) is left as it is
found.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from nats.errors import TimeoutError as NatsTimeout
from nats.js import JetStreamContext, api
from nats.js.errors import APIError, NotFoundError, ServiceUnavailableError

from reach.bus.streams import STREAMS, Stream, ensure_stream, unwritable
from reach.errors import ConfigError

HOUR_S = 3600.0
DAY_S = 24 * HOUR_S

TASK_BLOB_TTL_S = 7 * DAY_S
"""As long as records and finished tasks are kept."""

CARD_HISTORY = 16
"""Versions of a card that stay readable after an instance's death."""

MARKER_TTL_S = 1.0
"""How long the marker of an expired key stays: the least the server takes."""

_NAME_IN_USE = 10058
_SUBJECT_OVERLAP = 10065
_OUT_OF_STORAGE = frozenset({10023, 10028, 10047})


@dataclass(frozen=True, slots=True, kw_only=True)
class Store:
    """One bucket as the stream that carries it.

    Attributes:
        bucket: Name people use.
        stream: Name of the stream behind it.
        subjects: What it must cover.
        ttl_s: Age at which an entry ends; None keeps entries.
        history: Versions kept of each subject; -1 is all.
        message_ttl: Whether single entries may have a time of their own.
        marker_ttl_s: Whether an entry that ended by its time leaves a marker for so long.
    """

    bucket: str
    stream: str
    subjects: tuple[str, ...]
    ttl_s: float | None = None
    history: int = -1
    message_ttl: bool = False
    marker_ttl_s: float | None = None
    is_kv: bool = False


def kv(bucket: str, *, history: int = 1, marker_ttl_s: float | None = None) -> Store:
    """A key-value bucket, laid out as every NATS client expects it."""
    return Store(
        bucket=bucket,
        stream=f"KV_{bucket}",
        subjects=(f"$KV.{bucket}.>",),
        history=history,
        message_ttl=True,
        marker_ttl_s=marker_ttl_s,
        is_kv=True,
    )


def blobs(bucket: str, *, ttl_s: float) -> Store:
    """An object store whose objects end by themselves."""
    return Store(
        bucket=bucket,
        stream=f"OBJ_{bucket}",
        subjects=(f"$O.{bucket}.C.>", f"$O.{bucket}.M.>"),
        ttl_s=ttl_s,
    )


STORES: tuple[Store, ...] = (
    blobs("reach_blobs_1h", ttl_s=HOUR_S),
    blobs("reach_blobs_24h", ttl_s=DAY_S),
    blobs("reach_blobs_tasks", ttl_s=TASK_BLOB_TTL_S),
    kv("reach_cards", history=CARD_HISTORY),
    kv("reach_routes", marker_ttl_s=MARKER_TTL_S),
    kv("reach_schemas"),
    kv("reach_idempotency", marker_ttl_s=MARKER_TTL_S),
    kv("reach_state"),
    # What all callers together have taken of their limits; each entry ends by itself.
    kv("reach_quota"),
    # The ledger of callbacks: kept for longer than the events that it is about.
    replace(kv("reach_webhooks"), ttl_s=TASK_BLOB_TTL_S + DAY_S),
)
"""Everything that exists before the first call."""


async def provision(
    jetstream: JetStreamContext,
    *,
    stores: Sequence[Store] = STORES,
    streams: Sequence[Stream] = STREAMS,
    replicas: int = 1,
) -> tuple[str, ...]:
    """Make, put right and verify the stores and streams.

    Args:
        jetstream: Of a connection that may do so: role platform.
        stores: Buckets that must exist.
        streams: Streams that must exist.
        replicas: Copies in a cluster, of what is made here; streams that have fewer get so many.

    Returns:
        Names of the buckets and streams that were made or changed; empty when all was as it should be.

    Raises:
        ConfigError: JetStream is off or full, or a bucket or stream exists that cannot serve; says which, why,
        and the cure.
    """
    changed: list[str] = []
    for store in stores:
        try:
            if await _ensure(jetstream, store, replicas=replicas):
                changed.append(store.bucket)
            await _verify(jetstream, store)
        except APIError as exc:
            raise ConfigError(_explain(exc, f"Bucket {store.bucket}", store.subjects)) from exc
        except NatsTimeout as exc:
            raise ConfigError(_silent(f"bucket {store.bucket}")) from exc
    for stream in streams:
        try:
            done, reasons = await ensure_stream(jetstream, stream, replicas=replicas)
        except APIError as exc:
            raise ConfigError(_explain(exc, f"Stream {stream.name}", stream.subjects)) from exc
        except NatsTimeout as exc:
            raise ConfigError(_silent(f"stream {stream.name}")) from exc
        if reasons:
            raise ConfigError(_unusable(f"Stream {stream.name}", stream.name, reasons))
        if done:
            changed.append(stream.name)
    return tuple(changed)


def covers(pattern: str, subject: str) -> bool:
    """Whether every subject that `subject` matches is matched by `pattern` (both may hold wildcards)."""
    wanted, given = subject.split("."), pattern.split(".")
    for index, part in enumerate(given):
        if part == ">":
            return index < len(wanted)
        if index >= len(wanted) or wanted[index] == ">":
            return False
        if part not in {"*", wanted[index]}:
            return False
    return len(given) == len(wanted)


def faults(found: api.StreamConfig, store: Store) -> tuple[str, ...]:
    """Why an existing stream cannot carry the store, in words; empty when it can, or can be made to."""
    reasons = [
        f"it does not cover {subject}"
        for subject in store.subjects
        if not any(covers(pattern, subject) for pattern in found.subjects or ())
    ]
    if found.retention not in {None, api.RetentionPolicy.LIMITS}:
        reasons.append(f"its retention is {found.retention}, and must be limits")
    return (*reasons, *unwritable(found))


def corrections(found: api.StreamConfig, store: Store) -> dict[str, object]:
    """What to change on an existing stream; empty when it is as it should be."""
    wanted: dict[str, object] = {
        "max_age": store.ttl_s or 0.0,
        "max_msgs_per_subject": store.history,
        "allow_rollup_hdrs": True,
        "allow_direct": True,
    }
    if store.message_ttl:
        wanted["allow_msg_ttl"] = True
    if store.marker_ttl_s is not None:
        wanted["subject_delete_marker_ttl"] = store.marker_ttl_s
    return {name: value for name, value in wanted.items() if (getattr(found, name) or _unset(value)) != value}


def _unset(value: object) -> object:
    """What an absent field means beside a wanted value."""
    return False if isinstance(value, bool) else 0.0


async def _ensure(jetstream: JetStreamContext, store: Store, *, replicas: int) -> bool:
    """Whether anything had to be made or changed."""
    try:
        found = (await jetstream.stream_info(store.stream)).config
    except NotFoundError:
        try:
            await jetstream.add_stream(_config(store, replicas=replicas))
        except APIError as exc:
            # Another platform was first, with other settings of its own: judge what is there now.
            if exc.err_code != _NAME_IN_USE:
                raise
            found = (await jetstream.stream_info(store.stream)).config
        else:
            return True
    if reasons := faults(found, store):
        raise ConfigError(_incompatible(store, reasons))
    if changes := corrections(found, store):
        await jetstream.update_stream(found, **changes)
        return True
    return False


def _config(store: Store, *, replicas: int) -> api.StreamConfig:
    return api.StreamConfig(
        name=store.stream,
        subjects=list(store.subjects),
        retention=api.RetentionPolicy.LIMITS,
        storage=api.StorageType.FILE,
        discard=api.DiscardPolicy.NEW,
        num_replicas=replicas,
        max_age=store.ttl_s,
        max_msgs_per_subject=store.history,
        allow_rollup_hdrs=True,
        allow_direct=True,
        deny_delete=store.is_kv,
        allow_msg_ttl=store.message_ttl or None,
        subject_delete_marker_ttl=store.marker_ttl_s,
    )


async def _verify(jetstream: JetStreamContext, store: Store) -> None:
    """Ask the server which stream has each subject."""
    for subject in store.subjects:
        try:
            holder = await jetstream.find_stream_name_by_subject(subject)
        except NotFoundError:
            holder = "no stream"
        if holder != store.stream:
            raise ConfigError(_incompatible(store, [f"{subject} is stored by {holder}"]))


def _incompatible(store: Store, reasons: Iterable[str]) -> str:
    return _unusable(f"Bucket {store.bucket} (stream {store.stream})", store.stream, reasons)


def _unusable(what: str, stream: str, reasons: Iterable[str]) -> str:
    return (
        f"{what} cannot be used: {'; '.join(reasons)}. "
        f"If nothing needs it, remove it with `nats stream rm {stream}` and start again; "
        "else use another NATS account."
    )


def _silent(what: str) -> str:
    # What the broker refuses a role is never answered.
    return (
        f"JetStream did not answer about {what}. Right would be a login that may manage "
        "streams: role platform (its key is in the state folder), or a user of a NATS of your own."
    )


def _explain(exc: APIError, what: str, subjects: Sequence[str]) -> str:
    if exc.err_code == _SUBJECT_OVERLAP:
        return (
            f"{what} cannot be made: another stream already stores {', '.join(subjects)}. "
            f"Find it with `nats stream ls --subject '{subjects[0]}'`, and remove it, "
            "or use another account."
        )
    if exc.err_code in _OUT_OF_STORAGE:
        return (
            f"{what} cannot be made: JetStream has no room ({exc.description}). "
            "Make room on the disk of its store, or raise max_file_store."
        )
    if isinstance(exc, ServiceUnavailableError):
        return (
            f"JetStream is not there ({exc.description or 'off, or not enabled for this account'}). "
            "Right would be a server with JetStream on, and an account that may use it."
        )
    return f"{what} cannot be made: {exc.description} ({exc.err_code})."
