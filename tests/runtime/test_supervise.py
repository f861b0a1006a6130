"""Supervision: who is started, restarted, stopped and cancelled, and when a group gives up."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import cast

import anyio
import pytest

from reach.bus.connection import Connection
from reach.bus.keys import Role
from reach.policy.restart import Backoff, Intensity, Strategy
from reach.runtime.child import MOVES, Cell, ChildSpec, ChildState, Escalated, Place, describe
from reach.runtime.supervise import Supervision, Supervisor
from reach.testing.clock import ManualClock

Log = list[str]


class Worker:
    """A child that writes down what happens to it, and fails or ends when told."""

    def __init__(self, name: str, log: Log, *, stubborn: bool = False, fails_to_start: bool = False) -> None:
        self.name = name
        self.log = log
        self.stubborn = stubborn
        self.fails_to_start = fails_to_start
        self.place: Place | None = None
        self._told = anyio.Event()
        self._error: Exception | None = None

    async def run(self, place: Place) -> None:
        self.place = place
        self.log.append(f"+{self.name}")
        if self.fails_to_start:
            raise OSError
        place.started()
        try:
            if self.stubborn:
                await anyio.sleep_forever()
            await self._told.wait()
        except anyio.get_cancelled_exc_class():
            self.log.append(f"x{self.name}")
            raise
        if self._error is not None:
            raise self._error
        self.log.append(f"-{self.name}")

    def stop(self) -> None:
        self._told.set()

    def fail(self) -> None:
        self._error = ValueError("with a secret in it")
        self._told.set()


class Crew:
    """Makes workers, and knows the latest of each name."""

    def __init__(self) -> None:
        self.log: Log = []
        self.latest: dict[str, Worker] = {}
        self.stubborn: set[str] = set()
        self.unfit: set[str] = set()

    def spec(self, name: str) -> ChildSpec:
        def make() -> Worker:
            worker = Worker(name, self.log, stubborn=name in self.stubborn, fails_to_start=name in self.unfit)
            self.latest[name] = worker
            return worker

        return ChildSpec(name, make)

    def specs(self, names: str) -> list[ChildSpec]:
        return [self.spec(name) for name in names]


@pytest.fixture
def crew() -> Crew:
    return Crew()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


async def no_other_role(role: Role) -> Connection:
    raise AssertionError(role)


@asynccontextmanager
async def running(
    supervisor: Supervisor, clock: ManualClock, *, started: Callable[[], None] = lambda: None
) -> AsyncIterator[None]:
    """Run a supervisor of children that do not speak on the bus; stop it at the end."""
    place = Place(
        name="top",
        connection=cast("Connection", None),
        clock=clock,
        connect=no_other_role,
        started=started,
    )
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(supervisor.run, place)
        await anyio.wait_all_tasks_blocked()
        yield
        supervisor.stop()


def under(strategy: Strategy, *, max_restarts: int = 3, stop_timeout_s: float = 30.0) -> Supervision:
    return Supervision(
        strategy=strategy,
        intensity=Intensity(max_restarts),
        backoff=Backoff(base_s=1.0, cap_s=8.0),
        stop_timeout_s=stop_timeout_s,
    )


async def test_children_start_in_order_and_stop_in_reverse(crew: Crew, clock: ManualClock) -> None:
    """The first started is the last stopped: what others build on outlives them."""
    async with running(Supervisor(crew.specs("abc")), clock):
        assert ["+a", "+b", "+c"] == crew.log
    assert ["-c", "-b", "-a"] == crew.log[3:]


async def test_the_group_has_started_when_all_children_have(crew: Crew, clock: ManualClock) -> None:
    """The parent is told once, after the last child."""
    told: list[int] = []
    async with running(Supervisor(crew.specs("abc")), clock, started=lambda: told.append(len(crew.log))):
        assert [3] == told


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        (Strategy.ONE_FOR_ONE, ["+b"]),
        (Strategy.REST_FOR_ONE, ["-c", "+b", "+c"]),
        (Strategy.ONE_FOR_ALL, ["-c", "-a", "+a", "+b", "+c"]),
    ],
)
async def test_a_failure_restarts_whom_the_strategy_says(
    crew: Crew, clock: ManualClock, strategy: Strategy, expected: Log
) -> None:
    """LIFE-9: those who share the failed child's fate are stopped, last first, and all come back in order."""
    async with running(Supervisor(crew.specs("abc"), supervision=under(strategy)), clock):
        first = crew.latest["b"]
        first.fail()
        await anyio.wait_all_tasks_blocked()
        await clock.run_for(1.5)
        assert (expected, True) == (crew.log[3:], crew.latest["b"] is not first)


async def test_a_restart_waits_for_its_backoff(crew: Crew, clock: ManualClock) -> None:
    """RETRY-4: the first restart comes between half and one and a half of its base."""
    async with running(Supervisor(crew.specs("a"), supervision=under(Strategy.ONE_FOR_ONE)), clock):
        crew.latest["a"].fail()
        await anyio.wait_all_tasks_blocked()
        await clock.run_for(0.49)
        before = list(crew.log)
        await clock.run_for(1.02)
        assert (["+a"], ["+a", "+a"]) == (before, crew.log)


async def test_a_sibling_in_backoff_delays_nobody(crew: Crew, clock: ManualClock) -> None:
    """Under one-for-one a child that waits for its restart holds up no other child's."""
    supervisor = Supervisor(crew.specs("ab"), supervision=under(Strategy.ONE_FOR_ONE))
    async with running(supervisor, clock):
        for _ in range(2):
            crew.latest["a"].fail()
            await anyio.wait_all_tasks_blocked()
            await clock.run_for(3.0)
        crew.latest["a"].fail()  # Its third delay is 2 to 6 s; the first of its sibling at most 1.5 s.
        crew.latest["b"].fail()
        await anyio.wait_all_tasks_blocked()
        await clock.run_for(1.5)
        assert ({"a": "waiting", "b": "running"}, "+b") == (supervisor.states, crew.log[-1])


async def test_past_its_limit_a_group_ends_and_says_why(
    crew: Crew, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """LIFE-9: the fourth failure in 60 s ends the group, siblings stopped too, and the reason has numbers."""
    supervisor = Supervisor(crew.specs("abc"), supervision=under(Strategy.ONE_FOR_ONE))

    async def scenario() -> None:
        async with running(supervisor, clock):
            for _ in range(4):
                crew.latest["b"].fail()
                await anyio.wait_all_tasks_blocked()
                await clock.run_for(7.0)

    with pytest.raises(ExceptionGroup) as raised:
        await scenario()
    (escalated,) = raised.value.exceptions
    assert isinstance(escalated, Escalated)
    assert ("top/b", ["-c", "-a"]) == (escalated.path, crew.log[-2:])
    assert "restarted 3 times in the last 60 s" in escalated.reason
    assert isinstance(escalated.__cause__, ValueError)


async def test_a_child_past_its_limit_makes_the_parent_restart_the_group(
    crew: Crew, clock: ManualClock
) -> None:
    """LIFE-9: a group that gives up is one failed child to its parent, whose strategy restarts it whole."""

    def group() -> Supervisor:
        return Supervisor(crew.specs("xy"), supervision=under(Strategy.ONE_FOR_ONE, max_restarts=1))

    parent = Supervisor(
        [crew.spec("first"), ChildSpec("group", group), crew.spec("last")],
        supervision=under(Strategy.REST_FOR_ONE),
    )
    async with running(parent, clock):
        assert ["+first", "+x", "+y", "+last"] == crew.log
        for _ in range(2):
            crew.latest["x"].fail()
            await anyio.wait_all_tasks_blocked()
            await clock.run_for(1.5)
        # One restart by the group itself; then it ends (y), and the parent restarts it and what came after.
        assert ["+x", "-y", "-last", "+x", "+y", "+last"] == crew.log[4:]
        assert {"first": "running", "group": "running", "last": "running"} == parent.states
        assert crew.latest["x"].place is not None
        assert "top/group/x" == crew.latest["x"].place.name


async def test_escalate_hands_the_first_failure_up(crew: Crew, clock: ManualClock) -> None:
    """Under *escalate* a group never restarts anybody itself."""

    def group() -> Supervisor:
        return Supervisor(crew.specs("xy"), supervision=under(Strategy.ESCALATE))

    async with running(
        Supervisor([ChildSpec("group", group)], supervision=under(Strategy.ONE_FOR_ONE)), clock
    ):
        crew.latest["y"].fail()
        await anyio.wait_all_tasks_blocked()
        await clock.run_for(1.5)
        assert ["+x", "+y", "-x", "+x", "+y"] == crew.log


async def test_a_child_that_cannot_start_is_tried_again(crew: Crew, clock: ManualClock) -> None:
    """Failing to start is failing: siblings start meanwhile, and it has its backoff."""
    crew.unfit.add("a")
    told: list[str] = []
    supervisor = Supervisor(crew.specs("ab"), supervision=under(Strategy.ONE_FOR_ONE))
    async with running(supervisor, clock, started=lambda: told.append("started")):
        before = (list(crew.log), list(told))
        crew.unfit.clear()
        await clock.run_for(1.5)
        assert ((["+a", "+b"], []), ["+a", "+b", "+a"], ["started"]) == (before, crew.log, told)


async def test_where_fate_is_shared_nobody_starts_before_what_it_builds_on(
    crew: Crew, clock: ManualClock
) -> None:
    """Under rest-for-one a child whose predecessor cannot start waits for it."""
    crew.unfit.add("b")
    async with running(Supervisor(crew.specs("abc"), supervision=under(Strategy.REST_FOR_ONE)), clock):
        before = list(crew.log)
        crew.unfit.clear()
        await clock.run_for(1.5)
        assert (["+a", "+b"], ["+a", "+b", "+b", "+c"]) == (before, crew.log)


async def test_a_good_end_is_final(crew: Crew, clock: ManualClock) -> None:
    """A child that returns is done: it is not restarted, and the group ends with its last child."""
    supervisor = Supervisor(crew.specs("ab"))
    async with running(supervisor, clock):
        crew.latest["a"].stop()
        await anyio.wait_all_tasks_blocked()
        assert ({"b": "running"}, "-a") == (supervisor.states, crew.log[-1])
        crew.latest["b"].stop()
        await anyio.wait_all_tasks_blocked()
        assert {} == supervisor.states


async def test_a_child_that_does_not_stop_is_cancelled_in_bounded_time(
    crew: Crew, clock: ManualClock
) -> None:
    """LIFE-7: stopping has a limit, shared so that one who hangs leaves the others time to stop well."""
    crew.stubborn = {"b", "c"}
    supervisor = Supervisor(crew.specs("abcd"), supervision=under(Strategy.ONE_FOR_ONE, stop_timeout_s=0.2))
    with anyio.fail_after(5):
        async with running(supervisor, clock):
            pass
    assert ["-d", "xc", "xb", "-a"] == crew.log[4:]


async def test_cancelling_a_supervisor_cancels_its_children(crew: Crew, clock: ManualClock) -> None:
    """No child outlives its supervisor, whichever way that ends."""
    async with anyio.create_task_group() as tasks, running(Supervisor(crew.specs("ab")), clock):
        tasks.cancel_scope.cancel()
    assert {"xa", "xb"} == set(crew.log[2:])


async def test_stopping_calls_off_what_waits(crew: Crew, clock: ManualClock) -> None:
    """A child in its backoff is not started by a supervisor that stops."""
    async with running(Supervisor(crew.specs("ab"), supervision=under(Strategy.ONE_FOR_ONE)), clock):
        crew.latest["a"].fail()
        await anyio.wait_all_tasks_blocked()
    assert (["+a", "+b", "-b"], 0) == (crew.log, clock.sleeping)


async def test_children_are_added_and_taken_out_while_it_runs(crew: Crew, clock: ManualClock) -> None:
    """`spawn` returns when the child runs; its handle follows it across restarts and ends it for good."""
    supervisor = Supervisor(supervision=under(Strategy.ONE_FOR_ONE), stays=True)
    async with running(supervisor, clock):
        handle = await supervisor.spawn(crew.spec("late"))
        first = handle.child
        crew.latest["late"].fail()
        await anyio.wait_all_tasks_blocked()
        between = (handle.child, handle.state)
        await clock.run_for(1.5)
        assert (None, ChildState.WAITING, crew.latest["late"]) == (*between, handle.child)
        assert handle.child is not first
        await handle.stop()
        await handle.stop()
        assert ({}, ChildState.ENDED, "-late") == (supervisor.states, handle.state, crew.log[-1])
        await supervisor.spawn(crew.spec("twin"))
        with pytest.raises(ValueError, match="unique"):
            await supervisor.spawn(crew.spec("twin"))


async def test_taking_out_a_child_in_backoff_spares_its_siblings(crew: Crew, clock: ManualClock) -> None:
    """A handle ends a child that waits for its restart, and only that one."""
    supervisor = Supervisor(supervision=under(Strategy.REST_FOR_ONE), stays=True)
    async with running(supervisor, clock):
        handle = await supervisor.spawn(crew.spec("a"))
        await supervisor.spawn(crew.spec("b"))
        crew.latest["a"].fail()
        await anyio.wait_all_tasks_blocked()
        await handle.stop()
        await clock.run_for(1.5)
        assert (["+a", "+b", "-b", "+b"], {"b": "running"}) == (crew.log, supervisor.states)


async def test_two_failures_at_once_are_one_restart_of_the_group(crew: Crew, clock: ManualClock) -> None:
    """Under one-for-all children that fail together are brought back together, once."""
    async with running(Supervisor(crew.specs("ab"), supervision=under(Strategy.ONE_FOR_ALL)), clock):
        crew.latest["a"].fail()
        crew.latest["b"].fail()
        await anyio.wait_all_tasks_blocked()
        await clock.run_for(5.0)
        assert ["+a", "+b", "+a", "+b"] == crew.log


async def test_a_log_line_names_type_and_place_but_never_the_message(
    crew: Crew, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """ERR-5: what an exception says may hold secrets, so the log has its type and line."""
    caplog.set_level(logging.INFO, logger="reach.runtime")
    async with running(Supervisor(crew.specs("a")), clock):
        crew.latest["a"].fail()
        await anyio.wait_all_tasks_blocked()
    assert "top/a failed: ValueError at" in caplog.text
    assert "secret" not in caplog.text


async def test_a_supervisor_runs_once(crew: Crew, clock: ManualClock) -> None:
    """A restart is a fresh supervisor: running one again is a mistake."""
    supervisor = Supervisor(crew.specs("a"))
    async with running(supervisor, clock):
        pass
    with pytest.raises(ExceptionGroup, match="unhandled") as raised:
        async with running(supervisor, clock):
            pass
    assert "runs once" in str(raised.value.exceptions[0])


@pytest.mark.parametrize("source", list(ChildState))
@pytest.mark.parametrize("target", list(ChildState))
def test_only_moves_of_the_table_are_made(source: ChildState, target: ChildState) -> None:
    """A child's state changes along the table, and any other move raises."""
    paths = {
        ChildState.WAITING: [],
        ChildState.STARTING: [ChildState.STARTING],
        ChildState.RUNNING: [ChildState.STARTING, ChildState.RUNNING],
        ChildState.STOPPING: [ChildState.STARTING, ChildState.STOPPING],
        ChildState.ENDED: [ChildState.ENDED],
    }

    async def move() -> ChildState:
        cell = Cell(ChildSpec("a", lambda: Worker("a", [])))
        for state in paths[source]:
            cell.move(state)
        cell.move(target)
        return cell.state

    if target in MOVES[source]:
        assert target == anyio.run(move)
    else:
        with pytest.raises(RuntimeError, match=f"from {source} to {target}"):
            anyio.run(move)


def test_an_escalation_inside_a_group_is_described_by_its_own_words() -> None:
    """Our own errors keep their message in the log, also inside an exception group."""
    error = ExceptionGroup("several", [Escalated("a failed too often", path="top/a")])
    assert "a failed too often" == describe(error)
