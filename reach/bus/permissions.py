"""What each role may do at the broker, and the server configuration that enforces it.

Least privilege by the table of subjects (docs: reference of subjects). The rules that carry weight:

- Control (`ctl`, but `cancel` and `credit`, and an agent's `ping`), answers to `reach.route`, cards and the routing
  table: platform only.
- An agent serves requests only inside the queue group `reach`: a plain subscriber would silence NATS's "no
  responders" answer, on which failing fast rests, so the broker refuses it.
- Replies to our own inboxes and to `_INBOX` are granted outright, which costs the server no bookkeeping;
  inboxes of another prefix are answered under `allow_responses`, with room for a stream.
- JetStream is granted request by request and stream by stream. Readers may make ephemeral consumers; making
  durable ones, and deleting or pulling from those of others, is refused.

What the broker cannot enforce, because it looks at the subject of a request only: a client may name any
subject for its reply, so an answer can be made to arrive on `ctl` (agents must judge a control message by
more than its subject); and the body of a consumer request may name a consumer that exists.

All of this is pure: from roles to subjects, and from those to text.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from reach.bus.keys import Role
from reach.errors import ConfigError

ACCOUNT = "REACH"
SYSTEM_ACCOUNT = "SYS"
QUEUE_GROUP = "reach"

BLOB_BUCKETS = ("reach_blobs_1h", "reach_blobs_24h", "reach_blobs_tasks")
READ_BUCKETS = ("reach_cards", "reach_routes", "reach_schemas")
QUOTA_BUCKET = "reach_quota"
AGENT_BUCKETS = ("reach_idempotency", "reach_state")
READ_STREAMS = ("REACH_TASK_EVENTS", "REACH_STREAMS")
WORK_STREAM = "REACH_TASKS"
RECORD_STREAM = "REACH_RECORDS"
AUDIT_STREAM = "REACH_AUDIT"

MAX_PAYLOAD_BYTES = 1024 * 1024
"""NATS's own default; what is larger goes through the blob store."""

MAX_MEMORY_STORE_BYTES = 512 * 1024 * 1024
"""Of all streams kept in memory (short ones). The server's own default is three quarters of the machine."""

LOG_FILE_BYTES = 10 * 1024 * 1024
LOG_FILES = 3


@dataclass(frozen=True, slots=True)
class ResponseLimit:
    """How many messages, over how long, may answer a request that came with a foreign inbox.

    NATS's own, one message, cuts streams off. The time is twice the longest stream's (120 s by default) and a
    little: the server remembers every such request for that long, and looks through all of them each second.
    """

    max_messages: int = 1_000_000
    ttl_s: int = 300


@dataclass(frozen=True, slots=True)
class Permissions:
    """Subjects a user may publish and subscribe to; `subject queue` allows that queue group only."""

    publish: tuple[str, ...]
    subscribe: tuple[str, ...]
    responses: ResponseLimit | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerPlan:
    """Everything the configuration of one server depends on.

    Attributes:
        name: Name of the server (letters, digits, `-`, `_`).
        host: Address to listen on.
        port: Client port; -1 lets the system choose.
        data: JetStream's folder.
        log: Log file.
        ports: Folder into which the server writes the port it got.
        max_payload_bytes: Largest message, headers counted.
        max_memory_store_bytes: Bound of all streams kept in memory.
        max_file_store_bytes: Bound of all streams kept on disk; None lets the server decide.
        sync_always: Sync the disk before each acknowledgement (about a sixth of the rate) and not each two
            minutes.
    """

    name: str
    host: str
    port: int
    data: Path
    log: Path
    ports: Path
    max_payload_bytes: int = MAX_PAYLOAD_BYTES
    max_memory_store_bytes: int = MAX_MEMORY_STORE_BYTES
    max_file_store_bytes: int | None = None
    sync_always: bool = False


def permissions(role: Role) -> Permissions | None:
    """What a role may do; None is everything in its account."""
    match role:
        case Role.PLATFORM:
            return None
        case Role.CALLER:
            return Permissions(publish=_CALLER_PUBLISH, subscribe=_CALLER_SUBSCRIBE)
        case Role.OPERATOR:
            return Permissions(
                publish=(
                    *_CALLER_PUBLISH,
                    "reach.route.>",
                    "reach.tasks.>",
                    "reach.unknowns.>",
                    *_read_stream(RECORD_STREAM),
                    *_read_stream(AUDIT_STREAM),
                ),
                subscribe=(
                    *_CALLER_SUBSCRIBE,
                    "reach.alert.>",
                    "reach.audit.>",
                    "reach.record.>",
                    "reach.heartbeat.>",
                ),
            )
        case Role.AGENT:
            return Permissions(
                publish=(*_CALLER_PUBLISH, *_AGENT_PUBLISH),
                subscribe=(*_CALLER_SUBSCRIBE, *_AGENT_SUBSCRIBE),
                responses=ResponseLimit(),
            )
        case Role.FENCER:
            return Permissions(
                publish=("$SYS.REQ.SERVER.*.KICK", "$SYS.REQ.SERVER.*.CONNZ"),
                subscribe=("$SYS.ACCOUNT.*.CONNECT", "$SYS.ACCOUNT.*.DISCONNECT", *_INBOXES),
            )


def server_config(plan: ServerPlan, public_keys: Mapping[Role, str]) -> str:
    """The whole `nats.conf` of a server with our users.

    Args:
        plan: Where and how it runs.
        public_keys: Public nkey of each role.

    Raises:
        ConfigError: a path or name cannot be written in a configuration, or a role has no key.
    """
    if missing := [role.value for role in Role if role not in public_keys]:
        raise ConfigError(f"No public key for role {', '.join(missing)}: every role needs one.")
    return "\n".join(
        [
            "# Written anew at each start; changes made here are lost.",
            f"server_name: {_quote(plan.name)}",
            f"host: {_quote(plan.host)}",
            f"port: {plan.port}",
            f"max_payload: {plan.max_payload_bytes}",
            f"log_file: {_quote(str(plan.log))}",
            f"logfile_size_limit: {LOG_FILE_BYTES}",
            f"logfile_max_num: {LOG_FILES}",
            f"ports_file_dir: {_quote(str(plan.ports))}",
            *_jetstream(plan),
            accounts_config(public_keys),
        ]
    )


def accounts_config(public_keys: Mapping[Role, str]) -> str:
    """The accounts alone: what a NATS of one's own needs in its configuration to serve Reach.

    Raises:
        ConfigError: a key cannot be written in a configuration.
    """
    system = (Role.FENCER,)
    ours = tuple(role for role in Role if role not in system and role in public_keys)
    return "\n".join(
        [
            f"system_account: {SYSTEM_ACCOUNT}",
            "accounts {",
            f"  {SYSTEM_ACCOUNT} {{",
            *_users((role, public_keys[role]) for role in system if role in public_keys),
            "  }",
            f"  {ACCOUNT} {{",
            "    jetstream: enabled",
            *_users((role, public_keys[role]) for role in ours),
            "  }",
            "}",
            "",
        ]
    )


# --------------------------------------------------------------------- JetStream, request by request


def _inspect(stream: str) -> tuple[str, ...]:
    """Look a stream up and read single messages of it."""
    return (
        f"$JS.API.STREAM.INFO.{stream}",
        f"$JS.API.STREAM.MSG.GET.{stream}",
        f"$JS.API.DIRECT.GET.{stream}",
        f"$JS.API.DIRECT.GET.{stream}.>",
    )


def _follow(stream: str) -> tuple[str, ...]:
    """Read a stream in order with ephemeral consumers, without a name, and acknowledge the flow."""
    return (
        f"$JS.API.CONSUMER.CREATE.{stream}",
        f"$JS.API.CONSUMER.INFO.{stream}.*",
        f"$JS.FC.{stream}.>",
    )


def _read_stream(stream: str) -> tuple[str, ...]:
    return (*_inspect(stream), *_follow(stream))


def _read_bucket(stream: str) -> tuple[str, ...]:
    """Read a bucket. Nobody keeps durable consumers there, so clients that name their consumers may do so."""
    return (
        *_read_stream(stream),
        f"$JS.API.CONSUMER.CREATE.{stream}.>",
        f"$JS.API.CONSUMER.DELETE.{stream}.*",
    )


def _blob_store(bucket: str) -> tuple[str, ...]:
    """Put and get objects. They end with their time: purging, which could empty the store, is not granted."""
    return (*_read_bucket(f"OBJ_{bucket}"), f"$O.{bucket}.C.>", f"$O.{bucket}.M.>")


def _work_queue(stream: str) -> tuple[str, ...]:
    """Take work from a queue and acknowledge it."""
    return (
        f"$JS.API.STREAM.INFO.{stream}",
        f"$JS.API.CONSUMER.CREATE.{stream}.>",
        f"$JS.API.CONSUMER.DURABLE.CREATE.{stream}.*",
        f"$JS.API.CONSUMER.INFO.{stream}.*",
        f"$JS.API.CONSUMER.MSG.NEXT.{stream}.*",
        f"$JS.ACK.{stream}.>",
    )


def _each(grant: Iterable[tuple[str, ...]]) -> tuple[str, ...]:
    return tuple(subject for subjects in grant for subject in subjects)


# ---------------------------------------------------------------------------------------- the grants

_INBOXES = ("reply.>", "_INBOX.>")

_CALLER_PUBLISH = (
    "cap.>",
    "all.>",
    "lane.>",
    "inst.>",
    "ctl.*.cancel",
    "ctl.*.credit",
    "reach.suspect.>",
    "reach.outcomes.>",
    "reach.permit.>",
    "reach.record.>",
    "reach.count.>",
    "reach.unknown.*",
    "task.submit.>",
    "task.event.queued.>",
    "task.event.scheduled.>",
    "task.event.cancelled.>",
    "task.input.>",
    "task.cancel.>",
    "$SRV.>",
    "$SYS.REQ.USER.INFO",
    "$JS.API.INFO",
    "$JS.API.STREAM.NAMES",
    *_each(_blob_store(bucket) for bucket in BLOB_BUCKETS),
    *_each(_read_bucket(f"KV_{bucket}") for bucket in READ_BUCKETS),
    *_inspect(f"KV_{QUOTA_BUCKET}"),
    f"$KV.{QUOTA_BUCKET}.>",
    *_each(_read_stream(stream) for stream in READ_STREAMS),
)

_CALLER_SUBSCRIBE = (*_INBOXES, "reach.gone.>", "task.event.>", "stream.>")

_AGENT_PUBLISH = (
    *_INBOXES,
    "ctl.*.ping",  # Whoever waits for a call that another instance has asks whether that one is there.
    "reach.register",
    "reach.heartbeat.>",
    "reach.goodbye.>",
    "task.event.>",
    "stream.>",
    *_work_queue(WORK_STREAM),
    *_each((*_read_bucket(f"KV_{bucket}"), f"$KV.{bucket}.>") for bucket in AGENT_BUCKETS),
)

_AGENT_SUBSCRIBE = (
    f"cap.> {QUEUE_GROUP}",
    f"lane.> {QUEUE_GROUP}",
    f"t.*.cap.> {QUEUE_GROUP}",
    "all.>",
    "inst.>",
    "ctl.>",
    "task.input.>",
    "task.cancel.>",
    "$SRV.>",
)


# ------------------------------------------------------------------------------------------ the text


def _jetstream(plan: ServerPlan) -> Iterable[str]:
    yield "jetstream {"
    yield f"  store_dir: {_quote(str(plan.data))}"
    yield f"  max_memory_store: {plan.max_memory_store_bytes}"
    if plan.max_file_store_bytes is not None:
        yield f"  max_file_store: {plan.max_file_store_bytes}"
    yield f"  sync_interval: {_quote('always' if plan.sync_always else '2m')}"
    yield "}"


def _users(users: Iterable[tuple[Role, str]]) -> Iterable[str]:
    yield "    users: ["
    for role, public_key in users:
        granted = permissions(role)
        if granted is None:
            yield f"      {{ nkey: {_quote(public_key)} }}  # {role}"
            continue
        yield f"      {{ nkey: {_quote(public_key)}  # {role}"
        yield "        permissions {"
        yield f"          publish {{ allow: [{_list(granted.publish)}] }}"
        yield f"          subscribe {{ allow: [{_list(granted.subscribe)}] }}"
        if limit := granted.responses:
            yield f'          allow_responses {{ max: {limit.max_messages}, expires: "{limit.ttl_s}s" }}'
        yield "        }"
        yield "      }"
    yield "    ]"


def _list(subjects: Iterable[str]) -> str:
    return ", ".join(_quote(subject) for subject in dict.fromkeys(subjects))


def _quote(text: str) -> str:
    if not text.isprintable():
        raise ConfigError(
            f"{text!r} cannot stand in a server configuration: it holds unprintable characters."
        )
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
