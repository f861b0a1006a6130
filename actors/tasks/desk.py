"""Answers what operators ask of all tasks, on `reach.tasks.<verb>`: lists, counts, callbacks, and their replay.

Only operators may ask: the lists show all tenants. An answer is a map; what cannot be answered is refused as any
request is. `list` and `hooks` give pages, the newest first; `before` of a page is where the next one begins.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from actors.tasks.book import Search
from actors.tasks.hooks import Standing
from reach.errors import SchemaInvalid, UpstreamRefusal
from reach.faults import Executed, Reason
from reach.wire import names
from reach.wire.task import DEFAULT_TENANT, TaskState

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from actors.tasks.book import Book
    from actors.tasks.courier import Courier

MOST: Final = 500
"""Rows of one page; a row is at most about 2 kB, so that a page fits one message."""


class Desk:
    """See the module."""

    def __init__(self, book: Book, courier: Courier, *, is_idempotent: Callable[[str], bool | None]) -> None:
        self._book = book
        self._courier = courier
        self._is_idempotent = is_idempotent
        self._verbs: dict[str, Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]] = {
            "list": self._list,
            "show": self._show,
            "counts": self._counts,
            "hooks": self._hooks,
            "replay": self._replay,
            "secret": self._secret,
        }

    async def answer(self, verb: str, asked: dict[str, Any]) -> dict[str, Any]:
        """Answer one question. Raises `ReachError`, `LinkDown`."""
        known = self._verbs.get(verb)
        if known is None:
            raise SchemaInvalid(
                f"reach.tasks.{verb} means nothing; right would be one of {', '.join(self._verbs)}"
            )
        return await known(asked)

    async def _list(self, asked: dict[str, Any]) -> dict[str, Any]:
        search = _search(asked)
        rows = self._book.search(search)
        more = len(rows) == search.limit
        return {
            "tasks": [row.to_map() for row in rows],
            "before": rows[-1].life.sequence if more else None,
        }

    async def _show(self, asked: dict[str, Any]) -> dict[str, Any]:
        task_id, tenant = _text(asked, "task_id"), asked.get("tenant") or DEFAULT_TENANT
        row = self._book.rows.get((tenant, task_id))
        if row is None:
            raise _none(f"there is no task {task_id} (of tenant {tenant})")
        return {
            "task": row.to_map(),
            # What decides about it when its worker is lost; None as long as no agent has said.
            "idempotent": self._is_idempotent(row.capability),
            "hooks": [one.to_map() for one in self._courier.ledger.find(task_id)],
        }

    async def _counts(self, asked: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG002 - one face for all verbs
        return {"counts": self._book.counts}

    async def _hooks(self, asked: dict[str, Any]) -> dict[str, Any]:
        limit = min(int(asked.get("limit") or 50), MOST)
        wanted = asked.get("standing")
        if wanted is not None and wanted not in set(Standing):
            raise SchemaInvalid(f"standing is one of {', '.join(Standing)}, not {wanted!r}")
        found = [
            one.to_map()
            for _, one in reversed(self._courier.ledger.entries.values())
            if wanted is None or one.standing == wanted
        ]
        return {"hooks": found[:limit], "total": len(found)}

    async def _replay(self, asked: dict[str, Any]) -> dict[str, Any]:
        name = _text(asked, "id")
        found = self._courier.ledger.find(name)
        if not found:
            raise _none(f"there is no callback {name!r}: neither a delivery nor a task with one has this id")
        done = [one.id for one in found if await self._courier.replay(one)]
        return {"replayed": done}

    async def _secret(self, asked: dict[str, Any]) -> dict[str, Any]:
        tenant = names.token(asked.get("tenant") or DEFAULT_TENANT, "tenant")
        return {"tenant": tenant, "secret": self._courier.signer.secret(tenant)}


def _search(asked: dict[str, Any]) -> Search:
    states = asked.get("states") or []
    if not isinstance(states, list) or not set(states) <= {state.value for state in TaskState}:
        raise SchemaInvalid(f"states is a list out of {', '.join(TaskState)}, not {states!r}")
    limit = asked.get("limit") or 50
    before = asked.get("before")
    if type(limit) is not int or not 0 < limit <= MOST or not (before is None or type(before) is int):
        raise SchemaInvalid(f"limit is a number from 1 to {MOST}, and before the one of the page before")
    return Search(
        states=frozenset(states),
        tenant=asked.get("tenant"),
        capability=asked.get("capability"),
        text=asked.get("text"),
        limit=limit,
        before=before,
    )


def _text(asked: dict[str, Any], name: str) -> str:
    value = asked.get(name)
    if not isinstance(value, str) or not value:
        raise SchemaInvalid(f"{name} is missing: it is a text")
    return value


def _none(message: str) -> UpstreamRefusal:
    return UpstreamRefusal(message, reason=Reason.NOT_FOUND, executed=Executed.NO)
