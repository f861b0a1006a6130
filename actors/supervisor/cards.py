"""What the bucket of cards has of an instance: its card while it is there, and how and when it ended afterwards."""

from __future__ import annotations

from typing import Final, Literal

from actors.supervisor.roster import Member
from actors.supervisor.scribe import Scribe
from reach.policy.lease import Kind
from reach.wire import codec
from reach.wire.registration import CARDS, CardEntry

ENDS: Final[dict[Kind, Literal["goodbye", "lost", "expired"]]] = {
    Kind.LEFT: "goodbye",
    Kind.LOST: "lost",
    Kind.EXPIRED: "expired",
}
"""The changes of a lease that end an instance, in the bucket's words."""


def keep(scribe: Scribe, member: Member, *, ended: Kind | None = None) -> None:
    """Write an instance's entry, where it differs from what is there."""
    entry = CardEntry(
        card=member.card,
        registered_at=member.registered_ms,
        present=ended is None,
        ended_at=None if ended is None else member.ended_ms,
        ended=None if ended is None else ENDS[ended],
        server=member.server,
        connection=member.connection,
    )
    if member.kept != entry:
        member.kept = entry
        scribe.put(CARDS, member.name, codec.pack(entry.model_dump(mode="json", exclude_defaults=True)))
