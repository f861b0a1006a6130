"""What is kept of a call that must not be done twice: one entry a key, in the bucket `reach_idempotency`.

Whoever runs the call writes the entry before its handler starts, and again when it has ended; `nonce` is the proof of
the one run that an entry is about, so that its writer knows its own write again after a lost acknowledgement. The
parameters are kept as a digest of their content, the answer as the `Reply` itself (a large one's data in a blob).
The key is `reach.policy.dedupe`'s; an entry that was released is not there any more.

=============  ====================  ============================================================
an entry       is kept               why
=============  ====================  ============================================================
running        until it is written   nobody can tell by its age whether the call still runs; an idempotent one that
                                     is a day old, and whose owner is gone, is released: nobody has repeated it
done           24 h                  IDEM-5
done, implied  10 min                IDEM-4: by `done_at`, and by its own time in the bucket
unknown        until it is resolved  a person decides (RETRY-2)
=============  ====================  ============================================================
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Final

import msgspec
from msgspec import MsgspecError, Struct, field
from msgspec.msgpack import Decoder, Encoder
from pydantic import Field

from reach import ids
from reach.errors import SchemaInvalid
from reach.faults import Executed
from reach.wire import codec
from reach.wire.codec import refuse_ext
from reach.wire.envelope import is_blob
from reach.wire.reply import Reply
from reach.wire.whole import Whole, whole

BUCKET: Final = "reach_idempotency"
"""The bucket of entries: one key a call (40 hexadecimal digits), each an `IdempotencyEntry`."""


class EntryState(StrEnum):
    """The states of an entry. Released is one that was taken back: its key is deleted, the call may be made anew."""

    RUNNING = "running"
    DONE = "done"
    UNKNOWN = "unknown"
    RELEASED = "released"


class IdempotencyEntry(Struct, kw_only=True, omit_defaults=True, gc=False):
    """One call under its key. Times are epoch milliseconds of the broker.

    `instance` and `generation` have the call, with a lease of `lease_ttl_s`; `digest` is of its parameters' content.
    `executed` and `reply` say how it ended. For people: who asked, and `idempotency_key` as the caller chose it.
    """

    state: EntryState
    capability: str
    tenant: str
    instance: str
    generation: Whole
    digest: str
    begun_at: Whole
    nonce: Annotated[str, Field(min_length=1)] = field(default_factory=ids.new_id)
    agent_id: str | None = None
    lease_ttl_s: Annotated[float, Field(gt=0)] = 30.0
    implicit: bool = False
    idempotent: bool = False
    done_at: Whole | None = None
    executed: Executed | None = None
    reply: Reply | None = None
    cause: str | None = None
    idempotency_key: str | None = None
    message_id: str | None = None
    source: str | None = None
    session_id: str | None = None
    task_id: str | None = None
    resolved_by: str | None = None

    def to_map(self) -> dict[str, Any]:
        """Give the wire form; what has its default is left out."""
        m: dict[str, Any] = msgspec.to_builtins(self, builtin_types=(bytes,))
        return m

    def pack(self) -> bytes:
        """Encode as msgpack. Raises `NotOnTheWire`; `codec.wire_form` has given the reply's data."""
        try:
            return _encode(self)
        except (ValueError, TypeError, OverflowError):
            codec.explain({"data": None if self.reply is None else self.reply.data}, as_json=False)

    @classmethod
    def read(cls, data: bytes) -> IdempotencyEntry:
        """Read an entry in either form. Raises `SchemaInvalid` for what is none."""
        try:
            entry = _decode(data)
        except (MsgspecError, ValueError, RecursionError, SchemaInvalid):
            entry = _by_hand(data)
        reply = entry.reply
        if reply is not None and not (
            codec.has_text_keys(reply.data) and (reply.blob is None or is_blob(reply.blob))
        ):
            raise SchemaInvalid("the reply of this entry has keys that are not text, or a blob that is none")
        return entry


def _by_hand(data: bytes) -> IdempotencyEntry:
    """Read what our own decoder did not take: JSON, or numbers as other languages write them."""
    body = codec.unpack(data)
    for name in _WHOLE & body.keys():
        body[name] = whole(body[name])
    try:
        return msgspec.convert(body, IdempotencyEntry)
    except (MsgspecError, ValueError) as error:
        raise SchemaInvalid(f"this is not an entry of the bucket {BUCKET}: {error}") from None


_WHOLE: Final = frozenset({"generation", "begun_at", "done_at"})
_encode: Final = Encoder().encode
_decode: Final = Decoder(IdempotencyEntry, ext_hook=refuse_ext).decode
