"""Something that a person should know, on `reach.alert.<kind>`."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from reach.wire.whole import Count, Whole


class Alert(BaseModel):
    """One thing that is wrong, or was. `subject` is what it is about; the same kind and subject are one matter.

    Times are epoch milliseconds. `count` says how often it was seen since `first_seen`.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    kind: str = Field(min_length=1)
    severity: Literal["info", "warning", "critical"] = "warning"
    subject: str = ""
    message: str = ""
    first_seen: Whole = 0
    at: Whole = 0
    count: Count = 1
    link: str = ""
