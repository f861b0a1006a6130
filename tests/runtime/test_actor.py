"""Actors on a real bus: one handler at a time, bounded, supervised, and nobody waits in vain."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any, ClassVar

import anyio
import pytest

from reach.bus.connection import Connection
from reach.bus.embedded import EmbeddedServer
from reach.bus.keys import Role
from reach.clock import SYSTEM, Clock
from reach.errors import NotExecuted, RateLimited
from reach.ids import new_id
from reach.policy.restart import Backoff, Intensity
from reach.runtime.actor import Actor, Message, every, on
from reach.runtime.child import ChildSpec, Place
from reach.runtime.supervise import Supervision, Supervisor
from reach.testing.clock import ManualClock
from reach.wire import codec

QUICK = Supervision(intensity=Intensity(3), backoff=Backoff(base_s=0.01, cap_s=0.01))
Until = Callable[..., Any]


@pytest.fixture
async def bus(system: Any) -> AsyncIterator[Connection]:
    """Hold the connection that the actors run on."""
    async with system.connection(Role.PLATFORM) as connection:
        yield connection


@pytest.fixture
async def outside(system: Any) -> AsyncIterator[Connection]:
    """Hold the connection of somebody else."""
    async with system.connection(Role.PLATFORM) as connection:
        yield connection


@pytest.fixture
def subject() -> str:
    """Name a subject that no other test uses."""
    return f"test.{new_id()}"


@asynccontextmanager
async def hosted(
    factory: Callable[[], Actor],
    bus: Connection,
    *,
    clock: Clock = SYSTEM,
    supervision: Supervision = QUICK,
) -> AsyncIterator[Supervisor]:
    """Run one actor under a supervisor until the block ends."""
    started = asyncio.Event()
    supervisor = Supervisor([ChildSpec("it", factory)], supervision=supervision)
    place = Place(name="test", connection=bus, clock=clock, connect=refuse_role, started=started.set)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(supervisor.run, place)
        with anyio.fail_after(5):
            await started.wait()
        yield supervisor
        supervisor.stop()


async def refuse_role(role: Role) -> Connection:
    raise AssertionError(role)


async def ask(connection: Connection, subject: str, body: dict[str, Any]) -> dict[str, Any]:
    return codec.unpack(await connection.request(subject, codec.pack(body), timeout_s=5))


async def test_a_request_is_answered_in_kind(bus: Connection, outside: Connection, subject: str) -> None:
    """JSON is answered as JSON, msgpack as msgpack, and an empty request, as people's tools send it, as JSON."""

    class Echo(Actor):
        @on(f"{subject}.*")
        async def echo(self, message: Message) -> None:
            message.reply({"subject": message.subject, "body": message.body})

    async with hosted(Echo, bus):
        bodies = [b'{"a":1}', codec.pack({"a": 1}), b""]
        answers = [await outside.request(f"{subject}.x", body, timeout_s=5) for body in bodies]
    assert [True, False, True] == [codec.is_json(answer) for answer in answers]
    expected = {"subject": f"{subject}.x", "body": {"a": 1}}
    assert [expected, expected, expected | {"body": {}}] == [codec.unpack(answer) for answer in answers]


async def test_handlers_run_one_at_a_time_and_in_order(
    bus: Connection, outside: Connection, subject: str, until: Until
) -> None:
    """State is private because nothing else runs in the actor while a handler waits; order is that of arrival."""
    seen: list[tuple[str, int]] = []

    class Slow(Actor):
        @on(subject)
        async def slow(self, message: Message) -> None:
            seen.append(("begin", message.body["n"]))
            await asyncio.sleep(0.005)
            seen.append(("end", message.body["n"]))

    async with hosted(Slow, bus):
        for n in range(4):
            outside.publish(subject, codec.pack({"n": n}))
        await until(lambda: len(seen) == 8)
    assert [(word, n) for n in range(4) for word in ("begin", "end")] == seen


async def test_a_full_mailbox_answers_requests_at_once_and_drops_events(
    bus: Connection, outside: Connection, subject: str, until: Until, caplog: pytest.LogCaptureFixture
) -> None:
    """Case 2: beyond its capacity a request is OVERLOADED without waiting; an event is lost, counted and logged."""
    gate = asyncio.Event()
    actors: list[Actor] = []

    class Busy(Actor):
        mailbox_capacity = 2

        async def on_start(self) -> None:
            actors.append(self)

        @on(subject)
        async def work(self, message: Message) -> None:
            await gate.wait()
            if message.is_request:
                message.reply({"done": message.body["n"]})

    async with hosted(Busy, bus):
        async with anyio.create_task_group() as tasks:
            answers: dict[int, dict[str, Any]] = {}

            async def call(n: int) -> None:
                answers[n] = await ask(outside, subject, {"n": n})

            for n in range(3):  # One at work, two in the mailbox.
                tasks.start_soon(call, n)
                await outside.flush()
                await bus.flush()
            refused = await ask(outside, subject, {"n": 3})
            assert {} == answers
            outside.publish(subject, codec.pack({"n": 4}))
            await until(lambda: actors[0].dropped == 2)
            gate.set()
        error = refused["error"]
        assert (False, "OVERLOADED", "no", True) == (
            refused["ok"],
            error["reason"],
            error["executed"],
            error["retryable"],
        )
        limit = {"name": "mailbox", "owner": "test/it", "used": 2, "allowed": 2, "resets_in_ms": 100}
        assert (limit, 100) == (error["limit"], error["retry_after_ms"])
        assert {n: {"done": n} for n in range(3)} == answers
    assert 1 == caplog.text.count("test/it cannot keep up: its mailbox of 2 is full")


async def test_a_failing_handler_is_answered_for_and_the_actor_begun_anew(
    bus: Connection, outside: Connection, subject: str, caplog: pytest.LogCaptureFixture, until: Until
) -> None:
    """LIFE-9: the caller learns that the code failed, not its words; a fresh actor takes over; nothing is replayed."""
    lives: list[int] = []

    class Fragile(Actor):
        async def on_start(self) -> None:
            lives.append(0)

        async def on_stop(self) -> None:
            lives.append(-1)

        @on(subject)
        async def work(self, message: Message) -> None:
            lives[-1] += 1
            if message.body.get("break"):
                raise ValueError("password=hunter2")
            message.reply({"seen": lives[-1]})

    async with hosted(Fragile, bus) as supervisor:
        await ask(outside, subject, {})
        failed = await ask(outside, subject, {"break": True})
        await until(lambda: len(lives) == 3 and supervisor.states == {"it": "running"})
        again = await ask(outside, subject, {})
    assert (("HANDLER_ERROR", "yes"), {"seen": 1}) == (
        (failed["error"]["reason"], failed["error"]["executed"]),
        again,
    )
    assert [2, -1, 1, -1] == lives
    assert "hunter2" not in caplog.text + str(failed)


async def test_a_handler_may_refuse_a_request_without_failing(
    bus: Connection, outside: Connection, subject: str
) -> None:
    """A ReachError or NotExecuted raised for a request is its answer, and the actor lives on."""
    starts: list[int] = []

    class Polite(Actor):
        async def on_start(self) -> None:
            starts.append(1)

        @on(f"{subject}.limited")
        def limited(self, message: Message) -> None:
            raise RateLimited(retry_after_ms=7)

        @on(f"{subject}.undone")
        def undone(self, message: Message) -> None:
            raise NotExecuted

    async with hosted(Polite, bus):
        limited = (await ask(outside, f"{subject}.limited", {}))["error"]
        undone = (await ask(outside, f"{subject}.undone", {}))["error"]
    assert ("RATE_LIMITED", 7) == (limited["code"], limited["retry_after_ms"])
    assert ("HANDLER_ERROR", "no", True) == (undone["reason"], undone["executed"], undone["retryable"])
    assert [1] == starts


@pytest.mark.parametrize("body", [{"n": object()}, {"n": b"0" * 2_000_000}], ids=["foreign", "large"])
async def test_an_answer_that_cannot_cross_is_a_bad_result(
    bus: Connection, outside: Connection, subject: str, body: dict[str, Any]
) -> None:
    """CALL-8: an answer that has no form on the wire, or is over the broker's limit, is told as BAD_RESULT."""

    class Odd(Actor):
        @on(subject)
        def work(self, message: Message) -> None:
            message.reply(body)

    async with hosted(Odd, bus):
        error = (await ask(outside, subject, {}))["error"]
    assert ("UPSTREAM_5XX", "BAD_RESULT", "yes") == (error["code"], error["reason"], error["executed"])


async def test_what_cannot_be_read_is_refused_and_harms_nobody(
    bus: Connection, outside: Connection, subject: str
) -> None:
    """A body that is neither JSON nor msgpack is SCHEMA_INVALID to a request, a log line otherwise."""

    class Echo(Actor):
        @on(subject)
        def echo(self, message: Message) -> None:
            message.reply(message.body)

    async with hosted(Echo, bus):
        outside.publish(subject, b"\xc1nonsense")
        refused = codec.unpack(await outside.request(subject, b"{broken", timeout_s=5))
        assert ("SCHEMA_INVALID", "no") == (refused["error"]["code"], refused["error"]["executed"])
        assert {"n": 1} == await ask(outside, subject, {"n": 1})


async def test_an_ending_actor_leaves_nobody_waiting(
    bus: Connection, outside: Connection, subject: str
) -> None:
    """Requests behind one that crashes the actor are answered STALE, not executed, in place of a timeout."""
    gate = asyncio.Event()

    class Doomed(Actor):
        @on(subject)
        async def work(self, message: Message) -> None:
            await gate.wait()
            raise RuntimeError

    answers: list[dict[str, Any]] = []

    async def call() -> None:
        answers.append((await ask(outside, subject, {}))["error"])

    async with hosted(Doomed, bus), anyio.create_task_group() as tasks:
        for _ in range(3):
            tasks.start_soon(call)
        await anyio.wait_all_tasks_blocked()
        await outside.flush()
        await bus.flush()
        gate.set()
    assert ["HANDLER_ERROR", "STALE", "STALE"] == sorted(error["reason"] for error in answers)
    assert {"yes", "no"} == {error["executed"] for error in answers}


async def test_stopping_works_off_what_was_taken(bus: Connection, outside: Connection, subject: str) -> None:
    """LIFE-7: what the server had sent before the withdrawal is answered; afterwards nobody listens."""
    gate = asyncio.Event()
    ended: list[str] = []

    class Orderly(Actor):
        @on(subject)
        async def work(self, message: Message) -> None:
            await gate.wait()
            message.reply({})
            ended.append("handled")

        async def on_stop(self) -> None:
            ended.append("stopped")

    async with anyio.create_task_group() as tasks, hosted(Orderly, bus) as supervisor:
        for _ in range(3):
            tasks.start_soon(ask, outside, subject, {})
        await anyio.wait_all_tasks_blocked()
        await outside.flush()
        await bus.flush()
        supervisor.stop()
        await anyio.wait_all_tasks_blocked()
        gate.set()
    assert ["handled", "handled", "handled", "stopped"] == ended


async def test_what_is_cancelled_at_the_limit_is_told(
    bus: Connection, outside: Connection, subject: str
) -> None:
    """LIFE-7: a handler that outlasts the stop is cancelled, its caller told `maybe`, and `on_stop` still runs."""
    ended: list[str] = []

    class Endless(Actor):
        @on(subject)
        async def work(self, message: Message) -> None:
            await anyio.sleep_forever()

        async def on_stop(self) -> None:
            await asyncio.sleep(0)
            ended.append("stopped")

    answers: list[dict[str, Any]] = []

    async def call() -> None:
        answers.append(await ask(outside, subject, {}))

    short = Supervision(stop_timeout_s=0.1)
    async with anyio.create_task_group() as tasks, hosted(Endless, bus, supervision=short):
        tasks.start_soon(call)
        await anyio.wait_all_tasks_blocked()
        await outside.flush()
        await bus.flush()
    assert (["stopped"], "INSTANCE_GONE", "maybe") == (
        ended,
        answers[0]["error"]["reason"],
        answers[0]["error"]["executed"],
    )


async def test_ticks_come_through_the_mailbox_and_do_not_pile_up(bus: Connection) -> None:
    """A tick never runs beside another handler, and those that come while one waits or runs are left out."""
    clock = ManualClock()
    ticks: list[float] = []
    gate = asyncio.Event()

    class Clocked(Actor):
        @every(10)
        async def tick(self) -> None:
            ticks.append(self.clock.monotonic())
            await gate.wait()

    async with hosted(Clocked, bus, clock=clock):
        await clock.run_for(35)
        before = list(ticks)
        gate.set()
        await clock.run_for(10)
        await clock.run_for(10)
    assert ([1010.0], [1010.0, 1040.0, 1050.0]) == (before, ticks)


async def test_jitter_spreads_ticks(bus: Connection) -> None:
    """Each pause is within the jitter, and pauses differ."""
    clock = ManualClock(start=0.0)
    ticks: list[float] = []

    class Spread(Actor):
        @every(10, jitter=0.2, immediately=True)
        def tick(self) -> None:
            ticks.append(self.clock.monotonic())

    async with hosted(Spread, bus, clock=clock):
        await clock.run_for(100)
    pauses = [later - earlier for earlier, later in pairwise(ticks)]
    assert (0.0, True, True) == (ticks[0], 8 <= min(pauses), max(pauses) <= 12)
    assert len(set(pauses)) > 1


async def test_an_actor_tells_itself_now_and_later(bus: Connection) -> None:
    """Local messages go through the mailbox by name, at once or after a delay, and never touch the bus."""
    clock = ManualClock(start=0.0)
    heard: list[tuple[float, int]] = []

    class Reminder(Actor):
        async def on_start(self) -> None:
            assert [True, True] == [self.tell("note", {"n": 2}, delay_s=5), self.tell("note", {"n": 1})]
            with pytest.raises(ValueError, match="its local handlers: note"):
                self.tell("nothing")

        @on("note", local=True)
        async def note(self, message: Message) -> None:
            assert not message.is_request
            heard.append((self.clock.monotonic(), message.body["n"]))

    async with hosted(Reminder, bus, clock=clock):
        await clock.run_for(4.9)
        early = list(heard)
        await clock.run_for(0.1)
    assert ([(0.0, 1)], [(0.0, 1), (5.0, 2)]) == (early, heard)


async def test_a_parent_spawns_tells_and_outlives_its_children(bus: Connection, until: Until) -> None:
    """Children start under their parent, are reached by `tell` across restarts, and stop before `on_stop`."""
    log: list[str] = []

    class Child(Actor):
        async def on_start(self) -> None:
            log.append(f"start {self.name}")

        @on("job", local=True)
        def job(self, message: Message) -> None:
            if message.body.get("break"):
                raise RuntimeError
            log.append("job")

        async def on_stop(self) -> None:
            log.append("child stops")

    class Parent(Actor):
        supervision: ClassVar[Supervision] = QUICK

        async def on_start(self) -> None:
            child = await self.spawn(Child)
            assert child.tell("job", {"break": True})
            await until(lambda: log.count("start test/it/child-1") == 2)
            await until(lambda: child.tell("job"))
            await until(lambda: "job" in log)

        async def on_stop(self) -> None:
            log.append("parent stops")

    async with hosted(Parent, bus):
        pass
    assert ["start test/it/child-1", "child stops"] * 2 == [
        line for line in log if line not in {"job", "parent stops"}
    ]
    assert "parent stops" == log[-1]


async def test_a_child_past_its_limit_fails_its_parent_which_is_restarted_with_it(
    bus: Connection, until: Until
) -> None:
    """LIFE-9: escalation goes up the tree: the parent actor itself is begun anew, and its child with it."""
    starts: list[str] = []

    class Child(Actor):
        async def on_start(self) -> None:
            starts.append("child")

        @every(0.001)
        def tick(self) -> None:
            if starts.count("parent") < 2:
                raise RuntimeError

    class Parent(Actor):
        supervision: ClassVar[Supervision] = Supervision(
            intensity=Intensity(2), backoff=Backoff(base_s=0.001, cap_s=0.001)
        )

        async def on_start(self) -> None:
            starts.append("parent")
            await self.spawn(Child)

    async with hosted(Parent, bus):
        await until(lambda: starts.count("child") == 4)
    assert ["parent", "child", "child", "child", "parent", "child"] == starts


async def test_subscriptions_survive_the_servers_restart(own_system: Any, until: Until) -> None:
    """An actor hears its subjects again when the connection is back, without being begun anew."""
    heard: list[int] = []
    starts: list[int] = []

    class Listener(Actor):
        async def on_start(self) -> None:
            starts.append(1)

        @on("test.restart")
        def hear(self, message: Message) -> None:
            heard.append(message.body["n"])

    async with own_system.connection(Role.PLATFORM) as connection, hosted(Listener, connection):
        await asyncio.to_thread(own_system.restart)
        await until(lambda: connection.connected and connection.epoch == 2)
        connection.publish("test.restart", codec.pack({"n": 1}))
        await until(lambda: bool(heard))
    assert ([1], [1]) == (heard, starts)


async def test_an_outage_is_not_the_actors_failure(own_system: Any, until: Until) -> None:
    """A handler that cannot publish is broken off; the actor lives on and works again after the outage."""
    starts: list[int] = []
    ticks: list[bool] = []

    class Beating(Actor):
        async def on_start(self) -> None:
            starts.append(1)

        @every(0.01)
        def beat(self) -> None:
            ticks.append(self.connection.connected)
            self.connection.publish("test.beat", b"")

    async with own_system.connection(Role.PLATFORM) as connection, hosted(Beating, connection):
        await asyncio.to_thread(own_system.server.stop)
        await until(lambda: ticks.count(False) > 5)
        port = own_system.server.info.port
        own_system.server = await asyncio.to_thread(EmbeddedServer.start, own_system.home, port=port)
        await until(lambda: connection.connected and ticks[-1])
    assert [1] == starts


async def test_an_actor_waits_for_the_link_before_it_starts(own_system: Any, until: Until) -> None:
    """One begun anew during an outage does not use up its restarts: it starts when the link is back."""
    starts: list[int] = []

    class Fragile(Actor):
        async def on_start(self) -> None:
            starts.append(1)
            self.connection.publish("test.start", b"")

        @on("fail", local=True)
        def fail(self, message: Message) -> None:
            raise RuntimeError

        @every(0.01)
        def tick(self) -> None:
            if not self.connection.connected:
                self.tell("fail")

    async with own_system.connection(Role.PLATFORM) as connection, hosted(Fragile, connection) as group:
        await asyncio.to_thread(own_system.server.stop)
        await until(lambda: group.states == {"it": "starting"})
        port = own_system.server.info.port
        own_system.server = await asyncio.to_thread(EmbeddedServer.start, own_system.home, port=port)
        await until(lambda: len(starts) == 2)


async def test_a_queue_shares_messages(
    bus: Connection, outside: Connection, subject: str, until: Until
) -> None:
    """Actors of one queue group get each message once between them."""
    heard: list[int] = []

    class Member(Actor):
        @on(subject, queue="members")
        def hear(self, message: Message) -> None:
            heard.append(message.body["n"])

    async with hosted(Member, bus), hosted(Member, outside):
        for n in range(50):
            outside.publish(subject, codec.pack({"n": n}))
        await until(lambda: len(heard) >= 50)
        await bus.flush()
        await outside.flush()
    assert list(range(50)) == sorted(heard)


async def test_one_request_has_one_answer(bus: Connection, outside: Connection, subject: str) -> None:
    """Answering twice, or an event, is a mistake that is told; an answer that cannot cross may be mended."""
    told: list[str] = []

    class Eager(Actor):
        @on(subject)
        def work(self, message: Message) -> None:
            for body in ({"n": object()}, {"n": 1}, {"n": 2}):
                try:
                    message.reply(body)
                except (RuntimeError, ValueError) as error:
                    told.append(str(error))

    async with hosted(Eager, bus):
        assert {"n": 1} == await ask(outside, subject, {})
        outside.publish(subject, b"")
        await outside.flush()
        await bus.flush()
    assert "n: a object has no form on the wire" in told[0]
    assert "one request, one answer" in told[1]
    assert all("nobody waits" in line for line in told[2:])


def test_an_actor_is_used_only_while_it_lives() -> None:
    """Before it runs, and of a class that has no such thing, the error says from when on."""
    with pytest.raises(RuntimeError, match="from `on_start` on"):
        _ = Actor().connection


async def test_an_actor_lives_once(bus: Connection) -> None:
    """A second run of the same instance is refused: a restart is a fresh one."""
    actor = Actor()
    actor.stop()
    place = Place(name="it", connection=bus, clock=SYSTEM, connect=refuse_role, started=lambda: None)
    await actor.run(place)
    with pytest.raises(RuntimeError, match="lives once"):
        await actor.run(place)


@pytest.mark.parametrize("subject", ["", "a..b", "a b", ".a", "a.", "a.>.b", "a*", "a.b>", "a.\nb"])
def test_a_subject_is_checked_where_it_is_written(subject: str) -> None:
    """A pattern that NATS would refuse, or silently read otherwise, is refused when the class is defined."""
    with pytest.raises(ValueError, match=r"subject|token"):
        on(subject)


def test_a_handler_of_the_wrong_shape_is_refused() -> None:
    """The error shows how the method should look."""
    with pytest.raises(TypeError, match=r"right would be `def hear\(self, message\)`"):

        class Deaf(Actor):
            @on("test.x")
            def hear(self) -> None: ...

    with pytest.raises(TypeError, match=r"right would be `def tick\(self\)`"):

        class Odd(Actor):
            @every(1)
            def tick(self, message: Message) -> None: ...


@pytest.mark.parametrize(("seconds", "jitter"), [(0, 0), (-1, 0), (1, 1), (1, -0.1)])
def test_a_timer_has_sensible_numbers(seconds: float, jitter: float) -> None:
    """A period that is not positive, or jitter of a whole period, is refused."""
    with pytest.raises(ValueError, match="positive"):
        every(seconds, jitter=jitter)


def test_one_local_name_has_one_handler() -> None:
    """Two handlers of one local name, and wildcards in one, are refused when the class is defined."""
    with pytest.raises(ValueError, match="one name, one handler"):

        class Torn(Actor):
            @on("a", local=True)
            def one(self, message: Message) -> None: ...

            @on("a", local=True)
            def two(self, message: Message) -> None: ...

    with pytest.raises(ValueError, match="matched exactly"):
        on("a.*", local=True)


def test_handlers_are_inherited_and_overridden_like_methods(subject: str) -> None:
    """A parent's handlers count; one that is overridden without a mark is none any more."""

    class Parent(Actor):
        @on(subject)
        def first(self, message: Message) -> None: ...

        @every(1)
        def second(self) -> None: ...

    class Child(Parent):
        def second(self) -> None: ...

        @on(f"{subject}.more")
        @on(f"{subject}.too")
        def third(self, message: Message) -> None: ...

    names = [handler.name for handler in Child._handlers]
    assert ["first", "third", "third"] == names
