"""Under which key a call is remembered, so that it is not done twice (IDEM-1, IDEM-4).

A caller's own key counts within its tenant and capability. Where it gave none, a call inside a task to a capability
that is not idempotent has one by itself: the same parameters again, in the same session and task, are the same write.
That key is hashed apart from those that callers choose, and holds for ten minutes after the first was done; while it
is under way it holds without end (in-progress never expires). What the store does with keys is not decided here.

======================  ===========  =====================================
what                    number       where it comes from
======================  ===========  =====================================
window of implicit      10 min       IDEM-4
results are kept        24 h         IDEM-5
a key                   160 bits     ours: BLAKE2b, as 40 digits; fits a
                                     key of a NATS bucket
======================  ===========  =====================================
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

WINDOW_S: Final = 600.0
KEPT_S: Final = 86_400.0
KEY_BYTES: Final = 20

NOTICE_EN: Final = "This was already done in this task; the first result is given again."
NOTICE_ZH: Final = "该操作已在本任务中执行过；此处返回的是第一次的结果。"

_EXPLICIT: Final = b"reach.idem/1"
_IMPLICIT: Final = b"reach.dedupe/1"


@dataclass(frozen=True, slots=True)
class Key:
    """Under what a call is remembered; `implicit` where its caller gave no key."""

    text: str
    implicit: bool


def key_of(
    *,
    tenant: str,
    capability: str,
    idempotency_key: str | None,
    idempotent: bool,
    session_id: str | None,
    task_id: str | None,
    fingerprint: str | None,
    dedupe: bool = True,
) -> Key | None:
    """Give the key of a call, None for one that is not remembered.

    `fingerprint` is the digest of its parameters (`reach.policy.fingerprint.digest`), needed for an implicit key only
    (see `may_be_implicit`); `dedupe=False` is a call's, or a capability's, wish to have none.

    Raises:
        ValueError: the caller's key is empty, or an implicit one is due and there is no fingerprint.
    """
    if idempotency_key is not None:
        return Key(explicit_key(tenant, idempotency_key, capability), implicit=False)
    if not may_be_implicit(idempotency_key, idempotent=idempotent, task_id=task_id, dedupe=dedupe):
        return None
    if not fingerprint or task_id is None:
        raise ValueError("an implicit key needs the fingerprint of the parameters: give their digest")
    return Key(implicit_key(tenant, session_id, task_id, capability, fingerprint), implicit=True)


def may_be_implicit(
    idempotency_key: str | None, *, idempotent: bool, task_id: str | None, dedupe: bool
) -> bool:
    """Whether a call has a key by itself, so that its parameters must be digested (IDEM-4)."""
    return dedupe and idempotency_key is None and not idempotent and bool(task_id)


def explicit_key(tenant: str, request_id: str, capability: str) -> str:
    """Hash what a caller chose (IDEM-1): 40 hexadecimal digits. Raises `ValueError` for an empty `request_id`."""
    if not request_id:
        raise ValueError("an idempotency key is not empty: leave it out for a call that has none")
    return _hash(_EXPLICIT, tenant, request_id, capability)


def implicit_key(tenant: str, session_id: str | None, task_id: str, capability: str, fingerprint: str) -> str:
    """Hash what makes two calls of one task the same write (IDEM-4): 40 hexadecimal digits."""
    return _hash(_IMPLICIT, tenant, session_id, task_id, capability, fingerprint)


def still_holds(*, implicit: bool, done_at: float | None, now: float) -> bool:
    """Whether an entry still stands for a call that comes `now`, in seconds of the clock that wrote `done_at`.

    `done_at` is None while the first is under way: then it holds, however long that takes.
    """
    return done_at is None or now - done_at < (WINDOW_S if implicit else KEPT_S)


def notice(language: str = "en") -> str:
    """Give the sentence beside a result that is given again; English where `language` is not Chinese."""
    return NOTICE_ZH if language.lower().startswith("zh") else NOTICE_EN


def _hash(person: bytes, *parts: str | None) -> str:
    """Hash parts so that no two lists of them look alike: each with its length, and nothing is not empty."""
    hashed = blake2b(digest_size=KEY_BYTES, person=person)
    for part in parts:
        data = b"" if part is None else part.encode(errors="surrogatepass")
        hashed.update(b"-" if part is None else b"%d:" % len(data))
        hashed.update(data)
    return hashed.hexdigest()
