"""What is said to one instance, on `ctl.<instance>.<verb>`.

Callers may `cancel` a call and give a stream `credit`; `ping` and `drain` come from the platform.
`drain` carries `(term, revision)`, and an instance ignores a pair lower than one it has seen: a delayed
order of a former leader changes nothing.
"""

from __future__ import annotations

from enum import StrEnum

from pydantic import BaseModel, ConfigDict, Field


class Verb(StrEnum):
    """The last token of a control subject."""

    PING = "ping"
    DRAIN = "drain"
    CANCEL = "cancel"
    CREDIT = "credit"


class _Message(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class Cancel(_Message):
    """The caller of `message_id` has left: stop its handler. Unknown and finished ids are ignored.

    `attempt` says which of its attempts is meant; a later one at the same instance goes on.
    """

    message_id: str = Field(min_length=1)
    attempt: int | None = Field(default=None, ge=1)


class Credit(_Message):
    """The reader of a stream takes `bytes` more than it was granted before."""

    stream_id: str = Field(min_length=1)
    bytes: int = Field(gt=0)


class Ping(_Message):
    """Are you there, and is your loop running? `at` is the asker's epoch milliseconds, handed back."""

    at: int = Field(default=0, ge=0)


class Pong(_Message):
    """The answer to `Ping`."""

    instance: str
    generation: int = Field(ge=0)
    at: int = Field(default=0, ge=0)
    ready: bool = True
    inflight: int = Field(default=0, ge=0)


class Drain(_Message):
    """Take no new work, finish what you have within `timeout_s` (else your own setting), and stop."""

    term: int = Field(default=0, ge=0)
    revision: int = Field(default=0, ge=0)
    timeout_s: float | None = Field(default=None, gt=0)
    generation: int = Field(default=0, ge=0)
    secret: str = ""
