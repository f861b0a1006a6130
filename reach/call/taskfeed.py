"""The events of tasks as one iterates over them: from the start or from now, of one task or of many.

`alive` tells a watcher whether silence means that nothing happens: it is True while the stream was heard within the
last seconds, by an event or by a beat (TASK-8).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from reach.bus.feed import Begin, Feed
from reach.bus.taskstream import EVENTS, entry_of
from reach.errors import SchemaInvalid
from reach.wire import names
from reach.wire.task import TaskEvent, TaskState

if TYPE_CHECKING:
    from reach.bus.feed import Arrived
    from reach.call.tasks import Tasks


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """Which events: `subjects` as NATS matches them."""

    subjects: tuple[str, ...] = ("task.event.>",)

    @classmethod
    def of(
        cls,
        *,
        state: TaskState | str | Iterable[TaskState | str] | None = None,
        capability: str | None = None,
        tenant: str | None = None,
        task_id: str | None = None,
    ) -> Filter:
        """Build a filter. `capability` may end in `.*` or `.>`: everything below.

        Raises `ValueError` for a state that there is not, `NameRefused` for a name that fits no subject.
        """
        wanted = [state] if isinstance(state, str) else list(state or ())
        states = [TaskState(one).value for one in wanted] or ["*"]
        who = "*" if tenant is None else names.token(tenant, "tenant")
        task = "*" if task_id is None else names.token(task_id, "task id")
        what = _capability(capability)
        return cls(subjects=tuple(f"task.event.{one}.{who}.{task}.{what}" for one in states))


def begin_of(since: str | int | datetime | None) -> Begin:
    """Where to begin: "now" (or None), "start", a sequence (that one included) or a time.

    Raises `ValueError`, `TypeError`.
    """
    match since:
        case None | "now":
            return Begin()
        case "start":
            return Begin(sequence=1)
        case bool():
            raise TypeError("since is 'now', 'start', a sequence or a datetime, not a truth value")
        case int():
            return Begin(sequence=since)
        case datetime():
            if since.tzinfo is None:
                raise ValueError(
                    "since needs a time zone to mean the same elsewhere: add one, such as datetime.UTC"
                )
            return Begin(time_ms=int(since.timestamp() * 1000))
        case _:
            raise ValueError(f"since is 'now', 'start', a sequence or a datetime, not {since!r}")


class TaskFeed:
    """Events in order, as `async for` takes them. Each iteration begins anew; it ends when the loop is left."""

    def __init__(self, tasks: Tasks, wanted: Filter, begin: Begin, *, until_end: bool = False) -> None:
        self._tasks = tasks
        self._wanted = wanted
        self._begin = begin
        self._until_end = until_end
        self._feed: Feed | None = None

    @property
    def alive(self) -> bool:
        """Whether the stream was heard of within the last seconds, so that silence means that nothing happens."""
        return self._feed is not None and self._feed.alive

    async def __aiter__(self) -> AsyncIterator[TaskEvent]:
        """Give events. Raises `ReachError` when there is no stream of events here."""
        tasks = self._tasks
        feed = Feed(
            tasks.connection, tasks.stream.jetstream, EVENTS, list(self._wanted.subjects), self._begin
        )
        await feed.open()
        self._feed = feed
        life = _Run()
        try:
            async for arrived in feed:
                event = _read(arrived)
                if event is None:
                    continue
                if not life.goes_on_with(event):
                    if self._until_end and arrived.position.pending == 0:
                        return
                    continue
                yield await tasks.whole(event)
                if self._until_end and event.state.is_terminal and arrived.position.pending == 0:
                    return
        finally:
            feed.close()


class _Run:
    """Leaves out submissions that came due after their task had ended, of the tasks whose ends it saw."""

    def __init__(self) -> None:
        self._ended: dict[str, int] = {}

    def goes_on_with(self, event: TaskEvent) -> bool:
        if event.state.is_terminal:
            self._ended[event.task_id] = event.run
            if len(self._ended) > _REMEMBERED:
                del self._ended[next(iter(self._ended))]
        elif event.state is TaskState.QUEUED and event.run <= self._ended.get(event.task_id, 0):
            return False
        return True


_REMEMBERED = 10_000


def _read(arrived: Arrived) -> TaskEvent | None:
    """Read an event; None for a body that is none: whoever may publish there may publish anything."""
    place: Any = arrived.position
    try:
        entry = entry_of(
            arrived.subject,
            arrived.data,
            place.stream_seq,
            place.stored_ms,
            fired="Nats-Scheduler" in arrived.headers,
        )
    except SchemaInvalid:
        return None
    entry.event.sequence = entry.sequence
    return entry.event


def _capability(pattern: str | None) -> str:
    if pattern is None:
        return ">"
    bare = pattern.removeprefix("cap.")
    for ending in (".*", ".>"):
        if bare.endswith(ending):
            return names.capability(bare.removesuffix(ending)) + ".>"
    return names.capability(bare)
