"""Actors: private state, one bounded mailbox, handlers that run one at a time.

    class Counter(Actor):
        async def on_start(self) -> None:
            self.seen = 0

        @on("audit.>")
        def count(self, message: Message) -> None:
            self.seen += 1

        @every(10)
        def report(self) -> None:
            self.connection.publish("counter.seen", codec.pack({"seen": self.seen}))

An exception in a handler ends the actor, and its supervisor makes a fresh one (`reach.runtime.supervise`); the
message that caused it is not replayed. Nobody waits in vain: a request that finds the mailbox full is answered
`OVERLOADED` at once, one whose handler failed `HANDLER_ERROR`, and those that an ending actor leaves behind
`STALE`, not executed. Events that find no room are lost, counted and logged. A handler that meets a link that
is down (`LinkDown`) is broken off, and the actor lives on: an outage is not its failure.
"""

from __future__ import annotations

from typing import Any, ClassVar, Final

from reach.bus.connection import Connection
from reach.bus.keys import Role
from reach.clock import Clock
from reach.runtime.child import ChildSpec, Factory, Handle, Place
from reach.runtime.handlers import Every, On, handlers_of
from reach.runtime.handlers import every as every  # noqa: PLC0414 - part of this module's face
from reach.runtime.handlers import on as on  # noqa: PLC0414 - "
from reach.runtime.life import ActorLife
from reach.runtime.message import Message as Message  # noqa: PLC0414 - "
from reach.runtime.supervise import Supervision

MAILBOX_CAPACITY: Final = 1024
"""Some 10 ms of light messages; an actor that falls further behind should say so and not grow."""


class Ref:
    """A child as its parent sees it: the same across restarts."""

    __slots__ = ("_handle",)

    def __init__(self, handle: Handle) -> None:
        self._handle = handle

    @property
    def name(self) -> str:
        """Its name among its siblings."""
        return self._handle.name

    def tell(self, name: str, body: dict[str, Any] | None = None) -> bool:
        """Give it a local message; False when it is between two lives, or its mailbox has no room."""
        child = self._handle.child
        return isinstance(child, Actor) and child.tell(name, body)

    async def stop(self) -> None:
        """End it for good, in good order."""
        await self._handle.stop()


class Actor:
    """Derive, mark handlers with `@on` and `@every`, and give the class to a host (or `spawn` it).

    An instance lives once, from `on_start` to `on_stop`. Handlers may be plain or async methods. What is set
    on the class: `mailbox_capacity` (messages), and `supervision` (how the children it spawns are kept alive).
    """

    mailbox_capacity: ClassVar[int] = MAILBOX_CAPACITY
    supervision: ClassVar[Supervision] = Supervision()

    _handlers: ClassVar[tuple[On | Every, ...]] = ()
    _life: ActorLife | None = None
    _stop_asked = False
    _spawned = 0

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls._handlers = handlers_of(cls)

    # -- for the author of an actor -------------------------------------------------------------------

    async def on_start(self) -> None:
        """Prepare. Messages come only after it; an exception is a failed start."""

    async def on_stop(self) -> None:
        """Clean up, when no handler runs any more. Comes at every end, that of a failed start included."""

    @property
    def name(self) -> str:
        """Path in the tree, such as `platform/sentinel`."""
        return self._alive.place.name

    @property
    def connection(self) -> Connection:
        """The connection of the process."""
        return self._alive.place.connection

    @property
    def clock(self) -> Clock:
        """Time."""
        return self._alive.place.clock

    @property
    def dropped(self) -> int:
        """Messages that found the mailbox full, in this life."""
        return self._alive.mailbox.dropped

    async def connect(self, role: Role) -> Connection:
        """Open another connection, as `role`; close it in `on_stop`.

        Raises:
            RoleUnavailable: this process was given no credentials for the role.
            ConfigError: they are not as they must be, or were refused.
            Unreachable: nobody answers there.
        """
        return await self._alive.place.connect(role)

    def tell(self, name: str, body: dict[str, Any] | None = None, *, delay_s: float = 0.0) -> bool:
        """Put a message into this actor's own mailbox, for its handler `@on(name, local=True)`.

        Returns:
            False when there is no room for it, or the actor ends. One with a delay is judged when it is due.

        Raises:
            ValueError: there is no such handler.
        """
        return self._alive.tell(name, {} if body is None else body, delay_s=delay_s)

    async def spawn(self, factory: Factory, *, name: str | None = None) -> Ref:
        """Start a child under this actor's `supervision`, and wait until it runs.

        It stops with this actor, before `on_stop`. A child that fails past its limit fails this actor. For
        another strategy spawn a `Supervisor`, which is a child like any other.

        Raises:
            ValueError: the name is taken.
        """
        children = self._alive.family(self.supervision)
        self._spawned += 1
        made_of = getattr(factory, "__name__", "child").strip("<>").lower()
        return Ref(await children.spawn(ChildSpec(name or f"{made_of}-{self._spawned}", factory)))

    # -- for its supervisor ---------------------------------------------------------------------------

    def stop(self) -> None:
        """Ask for an end in good order: subscriptions withdrawn, the mailbox worked off, `on_stop`."""
        self._stop_asked = True
        if self._life is not None:
            self._life.stop()

    async def run(self, place: Place) -> None:
        """Live once.

        Raises:
            Exception: what `on_start`, `on_stop` or a handler raised.
            Escalated: a child failed past its limit.
            RuntimeError: it has lived before.
        """
        if self._life is not None:
            raise RuntimeError(
                f"{type(self).__name__} has lived before: an actor lives once, make a fresh one"
            )
        calls = {handler: getattr(self, handler.name) for handler in self._handlers}
        self._life = ActorLife(place, calls=calls, capacity=self.mailbox_capacity)
        if self._stop_asked:
            self._life.stop()
        await self._life.run(self.on_start, self.on_stop)

    @property
    def _alive(self) -> ActorLife:
        if self._life is None:
            raise RuntimeError(f"{type(self).__name__} does not run yet: use this from `on_start` on")
        return self._life
