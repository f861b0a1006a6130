"""What a governor is told of time, and what comes out of it: letters to publish, connections to end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class Moment:
    """Now: seconds since boot, and the same moment in epoch milliseconds."""

    now: float
    at_ms: int


@dataclass(frozen=True, slots=True)
class Letter:
    """Something to be published. `asks` names the kind of answer that is expected, if any."""

    subject: str
    body: dict[str, Any]
    asks: Literal["applied", "pong", "info", "here"] | None = None


@dataclass(frozen=True, slots=True)
class Fence:
    """A connection that must end: its instance does not answer, and would execute what lies in its socket."""

    instance: str
    generation: int
    server: str
    connection: int
