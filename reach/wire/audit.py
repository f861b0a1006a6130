"""Who did what, on `reach.audit.<tenant>`: one entry for each thing that somebody asked of the platform."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from reach.wire.whole import Whole


class AuditEntry(BaseModel):
    """One act. `who` is who asked, as they named themselves to a connection that may ask; `why` is their reason.

    `before` and `after` say in words what was changed, `outcome` what became of it. `at` is epoch milliseconds.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    at: Whole
    who: str = Field(min_length=1)
    what: str = Field(min_length=1)
    target: str = ""
    why: str = ""
    dry_run: bool = False
    outcome: Literal["done", "refused", "shown"] = "done"
    message: str = ""
    before: str = ""
    after: str = ""
    writer: str = ""
