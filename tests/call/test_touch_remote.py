"""Touched functions: capabilities as typed functions, against real agents."""

import asyncio
import contextvars
import subprocess
import sys
import textwrap
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, Field

import reach
from reach.call import ambient
from reach.call.client import background
from reach.errors import NameRefused, SchemaInvalid, Unreachable, UpstreamFailure
from reach.faults import Executed, Reason
from tests.runtime.fleet import Fleet

ROOT = Path(__file__).resolve().parents[2]


class Order(BaseModel):
    number: str
    total: Decimal
    placed: date


class Period(BaseModel):
    start: date
    end: date = Field(alias="until")


@dataclass
class Point:
    x: int
    y: int = 0


def shop() -> reach.Agent:
    agent = reach.Agent("shop")

    @agent.capability("order.query", idempotent=True)
    async def query(
        account_id: str, date_from: date, limit: int = 2, note: str = "none", ctx: Any = None
    ) -> list[dict[str, Any]]:
        return [
            {
                "number": f"{account_id}-{n}",
                "total": "9.90",
                "placed": date_from,
                "note": note,
                "by": ctx.source,
            }
            for n in range(limit)
        ]

    @agent.capability("order.echo", idempotent=True)
    async def echo(params: dict[str, Any]) -> dict[str, Any]:
        return params

    @agent.capability("order.who", idempotent=True)
    async def who(params: dict[str, Any], ctx: reach.Context) -> dict[str, Any]:
        return {"session": ctx.session_id, "left_s": ctx.time_left_s, "source": ctx.source}

    @agent.capability("order.wait", idempotent=True)
    async def wait(seconds: float) -> str:
        await asyncio.sleep(seconds)
        return "waited"

    @agent.capability("order.count")
    async def count(until: int) -> AsyncIterator[int]:
        for number in range(until):
            yield number

    @agent.capability("order.nested", idempotent=True)
    async def nested(account_id: str, ctx: reach.Context) -> str:
        ambient.enter(ctx.bus)
        return (await query_orders(account_id, date(2025, 1, 31), limit=1))[0].number

    @agent.capability("order.from_thread", idempotent=True)
    def from_thread(account_id: str) -> str:
        return query_now(account_id, date(2025, 1, 31))[0].number

    return agent


@reach.touch("order.query")
async def query_orders(
    account_id: str, date_from: date, limit: int = 3, note: str | None = None
) -> list[Order]:
    raise NotImplementedError


@reach.touch("order.query", timeout_s=5)
def query_now(account_id: str, date_from: date) -> list[Order]:
    raise NotImplementedError


@pytest.fixture
def at_home(system: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let the background bus find the test's server, and end it afterwards."""
    background.close()  # Others may have used it, with a server that is gone by now.
    monkeypatch.setenv("REACH_HOME", str(system.home))
    monkeypatch.setenv("REACH_RECORDS", "off")
    monkeypatch.delenv("REACH_URL", raising=False)
    yield
    background.close()


@pytest.fixture
async def bus(fleet: Fleet) -> AsyncIterator[reach.Bus]:
    """The bus at hand in this loop."""
    found = await fleet.connect()
    ambient.note(found)
    yield found
    ambient.forget(found)


async def test_a_touched_function_is_its_capability(fleet: Fleet, bus: reach.Bus) -> None:
    """Arguments become parameters, the result the annotated type; the body never runs."""
    await fleet.serve(shop())
    orders = await query_orders("a", date(2025, 1, 31))
    assert orders == [
        Order(number=f"a-{n}", total=Decimal("9.90"), placed=date(2025, 1, 31)) for n in range(3)
    ]
    assert len(await query_orders("a", date_from=date(2025, 1, 31), limit=1)) == 1
    assert query_orders.__name__ == "query_orders"
    assert query_orders.capability == "order.query"


async def test_reply_gives_the_whole_reply(fleet: Fleet, bus: reach.Bus) -> None:
    """`.reply(…)` returns provider, latency and the rest, its data in the function's type; it never raises."""
    instance = await fleet.serve(shop())
    reply = await query_orders.reply("a", date(2025, 1, 31), limit=1)
    assert (reply.ok, reply.instance, reply.attempt) == (True, instance.name, 1)
    assert reply.data == [Order(number="a-0", total=Decimal("9.90"), placed=date(2025, 1, 31))]

    @reach.touch("order.missing")
    async def missing() -> None: ...

    reply = await missing.reply()
    assert reply.error is not None
    assert (reply.ok, reply.error.reason) == (False, Reason.NO_RESPONDERS)
    with pytest.raises(Unreachable):
        await missing()


async def test_what_the_far_end_refuses_is_raised(fleet: Fleet, bus: reach.Bus) -> None:
    """A failed call raises the matching ReachError, with its reach_id."""
    await fleet.serve(shop())

    @reach.touch("order.query", bus=bus)
    async def misspelt(acount_id: str) -> list[Order]: ...

    with pytest.raises(SchemaInvalid, match="did you mean 'account_id'") as caught:
        await misspelt("a")
    assert caught.value.reach_id is not None
    assert caught.value.executed is Executed.NO


async def test_an_answer_of_another_type_is_a_bad_result(fleet: Fleet, bus: reach.Bus) -> None:
    """Code behind a touched function never meets half a document; the words name what is wrong, no value."""
    await fleet.serve(shop())

    @reach.touch("order.echo", bus=bus)
    async def echo(params: dict[str, Any]) -> Order: ...

    with pytest.raises(UpstreamFailure) as caught:
        await echo({"number": "1", "total": "hunter2"})
    assert (caught.value.reason, caught.value.executed) == (Reason.BAD_RESULT, Executed.YES)
    assert caught.value.message == (
        "the answer of 'order.echo' is not what echo returns: total should be a number, got text; "
        "placed is missing (wanted a date such as 2025-01-31)"
    )


async def test_parameters_take_every_form_a_handler_takes(fleet: Fleet, bus: reach.Bus) -> None:
    """One model (by alias), a dataclass, a map, keywords with aliases, own defaults; None is not sent."""
    await fleet.serve(shop())

    @reach.touch("order.echo", bus=bus)
    async def model(period: Period) -> dict[str, Any]: ...

    @reach.touch("order.echo", bus=bus)
    async def record(point: Point) -> dict[str, Any]: ...

    @reach.touch("order.echo", bus=bus)
    async def whole(params: dict[str, Any]) -> dict[str, Any]: ...

    @reach.touch("order.echo", bus=bus)
    async def fields(
        start: Annotated[date, Field(alias="from")],
        *,
        limit: int = 5,
        note: str | None = None,
        old: int = Field(1),
    ) -> dict[str, Any]: ...

    @reach.touch("order.echo", bus=bus)
    async def nothing() -> dict[str, Any]: ...

    assert await model(Period(start=date(2025, 1, 1), until=date(2025, 1, 31))) == {
        "start": "2025-01-01",
        "until": "2025-01-31",
    }
    assert await record(Point(3)) == {"x": 3, "y": 0}
    assert await whole({"a": [1]}) == {"a": [1]}
    assert await fields(date(2025, 1, 1)) == {"from": "2025-01-01", "limit": 5}
    assert await fields(date(2025, 1, 1), limit=1, note=None) == {
        "from": "2025-01-01",
        "limit": 1,
        "note": None,
    }
    assert await nothing() == {}
    with pytest.raises(TypeError, match=r"fields\(\): missing a required argument: 'start'"):
        await fields()  # type: ignore[call-arg]


async def test_context_and_options_travel(fleet: Fleet, bus: reach.Bus) -> None:
    """A touched call inherits who is asking, and its decorator's options bound it."""
    await fleet.serve(shop())

    @reach.touch("order.who", bus=bus, timeout_s=2)
    async def who(params: dict[str, Any]) -> dict[str, Any]: ...

    with reach.context(session_id="s-1", agent_id="finance"):
        seen = await who({})
    assert (seen["session"], seen["source"]) == ("s-1", "finance")
    assert 0 < seen["left_s"] <= 2


async def test_a_touched_stream_is_read_with_async_for(fleet: Fleet, bus: reach.Bus) -> None:
    """Both spellings of a stream; its items have the annotated type."""
    await fleet.serve(shop())

    @reach.touch("order.count", bus=bus)
    def count(until: int) -> AsyncIterator[int]: ...  # type: ignore[empty-body]

    @reach.touch("order.count", bus=bus)
    async def count_too(until: int) -> AsyncIterator[str]:
        yield ""

    assert [number async for number in count(3)] == [0, 1, 2]
    with pytest.raises(UpstreamFailure, match="it should be text, got a whole number"):
        [part async for part in count_too(3)]


async def test_calls_made_inside_handlers_use_the_agents_bus(fleet: Fleet, bus: reach.Bus) -> None:
    """A handler's touched calls go over its own agent's connection, under its own deadline."""
    await fleet.serve(shop())
    assert (await bus.request("order.nested", {"account_id": "z"})).unwrap() == "z-0"
    assert [record.capability for record in fleet.agent_records] == ["order.query"]


@pytest.mark.usefixtures("at_home")
async def test_without_a_bus_at_hand_one_is_opened_in_the_background(fleet: Fleet) -> None:
    """A loop that has opened no bus shares one of the process; context goes along, cancelling too."""
    await fleet.serve(shop())
    outcome: list[Any] = []

    @reach.touch("order.who")
    async def who(params: dict[str, Any]) -> dict[str, Any]: ...

    @reach.touch("order.wait", timeout_s=30)
    async def wait(seconds: float) -> str: ...

    async def elsewhere() -> None:
        assert ambient.at_hand() is None
        with reach.context(session_id="s-2"):
            outcome.append((await who({}))["session"])
        task = asyncio.create_task(wait(30))
        await asyncio.sleep(0.2)
        task.cancel()
        try:
            await task
        except asyncio.CancelledError:
            outcome.append("cancelled")
        async with reach.round(timeout_s=0.2):
            left = asyncio.create_task(wait(30))
            await asyncio.sleep(0.1)
        try:
            await left
        except asyncio.CancelledError:
            outcome.append("round over")

    thread = threading.Thread(target=lambda: asyncio.run(elsewhere()))
    thread.start()
    await asyncio.to_thread(thread.join, 30)
    assert outcome == ["s-2", "cancelled", "round over"]
    assert background.get()[1].pending == 0


@pytest.mark.usefixtures("at_home")
async def test_a_plain_function_works_from_plain_code(fleet: Fleet) -> None:
    """Sync code calls over a loop of its own; context goes along; `.reply` gives the whole reply."""
    await fleet.serve(shop())

    @reach.touch("order.who")
    def who(params: dict[str, Any]) -> dict[str, Any]: ...

    def plain() -> tuple[list[Order], Any, Any]:
        with reach.context(session_id="s-3"):
            return query_now("b", date(2025, 1, 31)), query_now.reply("b", date(2025, 1, 31)), who({})

    context = contextvars.copy_context()
    orders, reply, seen = await asyncio.to_thread(context.run, plain)
    assert [order.number for order in orders] == ["b-0", "b-1"]
    assert (reply.ok, reply.provider, reply.data) == (True, "shop", orders)
    assert seen["session"] == "s-3"


@pytest.mark.usefixtures("at_home")
async def test_a_handler_in_a_thread_calls_plain_functions(fleet: Fleet, bus: reach.Bus) -> None:
    """Sync handlers run in threads, where plain touched functions are at home; the deadline is inherited."""
    await fleet.serve(shop())
    assert (await bus.request("order.from_thread", {"account_id": "t"}, timeout_s=10)).unwrap() == "t-0"


async def test_a_thread_inside_a_handler_uses_the_agents_bus(fleet: Fleet, bus: reach.Bus) -> None:
    """Where a handler's thread calls, its agent's connection is used and no other is opened."""
    await fleet.serve(shop())
    ambient.enter(bus)
    orders = await asyncio.to_thread(query_now, "t", date(2025, 1, 31))
    assert [order.number for order in orders] == ["t-0", "t-1"]
    assert [record.capability for record in fleet.records] == ["order.query"]


async def test_a_plain_function_refuses_to_block_a_loop() -> None:
    """Called inside a running loop it would stop everything there: refused in words."""
    with pytest.raises(RuntimeError, match="would block the running event loop: declare it `async def`"):
        query_now("b", date(2025, 1, 31))


def test_a_program_that_touches_ends_by_itself(system: Any, tmp_path: Path) -> None:
    """The background connection does not hold the program's exit."""
    script = tmp_path / "plain.py"
    script.write_text(
        textwrap.dedent("""
        import reach

        @reach.touch("nobody.home", timeout_s=2)
        def ask() -> str: ...

        print(ask.reply().error.reason, flush=True)
        """)
    )
    env = {**system.env, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=20, env=env, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "NO_RESPONDERS\n", "")


async def test_what_could_not_work_is_refused_at_decoration() -> None:
    """Names, options and signatures are checked where they are written."""

    async def ask(a: int) -> AsyncIterator[int]: ...  # type: ignore[empty-body]

    def parts(a: int) -> Iterator[int]:
        yield a

    def wrong(a: int) -> threading.Thread: ...  # type: ignore[empty-body]

    with pytest.raises(NameRefused):
        reach.touch("Order.Query")(query_orders)
    with pytest.raises(TypeError, match="unknown option 'timeout'"):
        reach.touch("order.query", timeout=3)  # type: ignore[call-arg]
    with pytest.raises(ValueError, match="timeout_s is a positive number"):
        reach.touch("order.query", timeout_s=-1)
    with pytest.raises(TypeError, match="write it as a plain `def`"):
        reach.touch("order.query")(ask)
    with pytest.raises(TypeError, match="make it `async def`"):
        reach.touch("order.query")(parts)
    with pytest.raises(TypeError, match="returns a type that no answer can become"):
        reach.touch("order.query")(wrong)
