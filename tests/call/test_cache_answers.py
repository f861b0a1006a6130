"""Answers that are given again: to whom, how long, and instead of which failures (GUARD-5, BREAK-6)."""

import asyncio
from typing import Any

import pytest

import reach
from reach.call.client import Bus
from reach.faults import Reason
from reach.wire.record import ReachRecord
from tests.runtime.fleet import Fleet, eventually


class Shelf:
    """An agent that numbers its answers."""

    def __init__(self, *, version: str = "1.0.0", **card: Any) -> None:
        self.agent = reach.Agent("shelf", version=version)
        self.asked: list[tuple[str, str | None, str | None]] = []
        self.failing: Exception | None = None
        options: dict[str, Any] = {"reads": True, "cache": reach.Cache(ttl_s=60), **card}

        @self.agent.capability("shelf.find", **options)
        async def find(ctx: reach.Context, title: str = "a", copies: int = 1) -> dict[str, Any]:
            self.asked.append((title, ctx.tenant, ctx.source))
            if self.failing is not None:
                raise self.failing
            return {"title": title, "number": len(self.asked), "places": ["A1"] * copies}


async def caller(fleet: Fleet) -> Bus:
    """A caller that knows the shelf."""
    bus = await fleet.connect()
    await bus.cards.instances("shelf.find")
    return bus


async def serve(fleet: Fleet, **card: Any) -> Shelf:
    """Serve a shelf."""
    shelf = Shelf(**card)
    await fleet.serve(shelf.agent)
    return shelf


async def record_of(fleet: Fleet, reply: reach.Reply) -> ReachRecord:
    """Give the one record of a call."""
    await eventually(lambda: any(one.reach_id == reply.reach_id for one in fleet.records))
    (found,) = (one for one in fleet.records if one.reach_id == reply.reach_id)
    return found


async def test_a_fresh_answer_is_given_again(fleet: Fleet) -> None:
    """GUARD-5: the second call sends nothing; its reply says so, and has its own id."""
    shelf = await serve(fleet)
    bus = await caller(fleet)
    first = await bus.request("shelf.find", {"title": "b"})
    again = await bus.request("shelf.find", {"title": "b"})
    assert 1 == len(shelf.asked)
    assert (False, True) == (first.cached, again.cached)
    assert (first.data, first.provider, first.instance) == (again.data, again.provider, again.instance)
    assert first.reach_id != again.reach_id
    assert (False, False, 0, 1) == (again.stale, again.degraded, again.degrade_level, again.attempt)
    record = await record_of(fleet, again)
    assert (True, False, [], "ok", "shelf") == (
        record.cached,
        record.stale,
        record.attempts,
        record.outcome,
        record.provider,
    )
    assert record.coalesced_with == (await record_of(fleet, first)).coalesced_with


async def test_what_is_given_again_is_a_copy(fleet: Fleet) -> None:
    """GUARD-5: who changes a result changes nobody else's, not even its own next one."""
    await serve(fleet)
    bus = await caller(fleet)
    for _ in range(3):
        reply = await bus.request("shelf.find")
        assert {"title": "a", "number": 1, "places": ["A1"]} == reply.data
        reply.data["places"].append("mine")
        reply.data["title"] = "changed"


async def test_changing_parameters_afterwards_changes_nothing(fleet: Fleet) -> None:
    """GUARD-5: an answer stays with what was asked, whatever becomes of the caller's own dict."""
    shelf = await serve(fleet)
    bus = await caller(fleet)
    asked = {"title": "b"}
    call = asyncio.create_task(bus.request("shelf.find", asked))
    await asyncio.sleep(0)
    asked["title"] = "c"
    await call
    assert "c" == (await bus.request("shelf.find", {"title": "c"})).data["title"]
    assert {"b", "c"} >= {title for title, _, _ in shelf.asked}


async def test_tenants_and_principals_never_share_an_answer(fleet: Fleet) -> None:
    """GUARD-5, DOOR-3: two tenants and two agents in one process: each asks for itself, once."""
    shelf = await serve(fleet)
    bus = await caller(fleet)
    for _ in range(2):
        await bus.request("shelf.find", tenant="acme")
        await bus.request("shelf.find", tenant="zenith")
        with reach.context(agent_id="planner"):
            await bus.request("shelf.find")
        with reach.context(agent_id="writer", tenant="acme"):
            await bus.request("shelf.find")
    who = bus.connection.who
    assert [
        ("a", "acme", who),
        ("a", "zenith", who),
        ("a", None, "planner"),
        ("a", "acme", "writer"),
    ] == shelf.asked


async def test_where_a_call_may_go_is_part_of_the_question(fleet: Fleet) -> None:
    """GUARD-5: an answer of anybody is no answer of the one that was asked for."""
    shelf = await serve(fleet)
    bus = await caller(fleet)
    await bus.request("shelf.find")
    reply = await bus.request("shelf.find", target="shelf")
    assert (False, 2) == (reply.cached, len(shelf.asked))


async def test_without_cache_on_the_card_nothing_is_kept(fleet: Fleet) -> None:
    """GUARD-5: off by default, for reads too."""
    shelf = await serve(fleet, cache=None)
    bus = await caller(fleet)
    replies = [await bus.request("shelf.find") for _ in range(2)]
    assert ([False, False], 2) == ([reply.cached for reply in replies], len(shelf.asked))


async def test_it_ends_with_its_time(fleet: Fleet) -> None:
    """GUARD-5: after `ttl_s` it is asked for again."""
    shelf = await serve(fleet, cache=reach.Cache(ttl_s=0.05))
    bus = await caller(fleet)
    await bus.request("shelf.find")
    await asyncio.sleep(0.06)
    reply = await bus.request("shelf.find")
    assert (False, 2) == (reply.cached, len(shelf.asked))


async def test_a_call_past_the_cache_ends_what_is_kept(fleet: Fleet) -> None:
    """GUARD-5: `cache=False` asks anew; nobody who asks after it is given what was kept before it."""
    shelf = await serve(fleet)
    bus = await caller(fleet)
    await bus.request("shelf.find")
    anew = await bus.request("shelf.find", cache=False)
    after = await bus.request("shelf.find")
    last = await bus.request("shelf.find")
    assert [2, 3, 3] == [reply.data["number"] for reply in (anew, after, last)]
    assert [False, False, True] == [reply.cached for reply in (anew, after, last)]
    assert 3 == len(shelf.asked)


async def test_failures_are_never_kept(fleet: Fleet) -> None:
    """GUARD-5: the next call tries again."""
    shelf = await serve(fleet)
    bus = await caller(fleet)
    shelf.failing = reach.SchemaInvalid("no such title")
    failed = await bus.request("shelf.find")
    shelf.failing = None
    reply = await bus.request("shelf.find")
    assert (False, True, False) == (failed.ok, reply.ok, reply.cached)


async def test_an_old_answer_takes_a_failures_place(fleet: Fleet) -> None:
    """GUARD-5, BREAK-6: within `stale_if_error_s`, marked stale, cached and degraded; before the caller's own value."""
    shelf = await serve(fleet, cache=reach.Cache(ttl_s=0.05, stale_if_error_s=60))
    bus = await caller(fleet)
    await bus.request("shelf.find")
    await asyncio.sleep(0.06)
    shelf.failing = reach.NotExecuted("closed")
    reply = await bus.request("shelf.find", fallback="mine")
    assert (True, 1, True, True, True, 1) == (
        reply.ok,
        reply.data["number"],
        reply.cached,
        reply.stale,
        reply.degraded,
        reply.degrade_level,
    )
    assert "shelf" == reply.provider
    record = await record_of(fleet, reply)
    assert ("ok", True, True, 1) == (record.outcome, record.cached, record.stale, record.degrade_level)
    shelf.failing = None
    usual = await bus.request("shelf.find")
    assert (False, False, False) == (usual.cached, usual.stale, usual.degraded)
    assert (3, 1) == tuple(bus.metrics.cache.value("shelf.find", word) for word in ("miss", "stale"))


async def test_an_old_answer_serves_when_nobody_is_there(fleet: Fleet) -> None:
    """BREAK-6: the agent is gone; what it said is still better than nothing."""
    shelf = await serve(fleet, cache=reach.Cache(ttl_s=0.01, stale_if_error_s=60))
    bus = await caller(fleet)
    await bus.request("shelf.find")
    await fleet.stop(fleet.instances[0])
    await asyncio.sleep(0.02)
    reply = await bus.request("shelf.find", timeout_s=2)
    assert (True, True, True, 1) == (reply.ok, reply.stale, reply.degraded, len(shelf.asked))


async def test_an_old_answer_never_hides_what_the_caller_must_know(fleet: Fleet) -> None:
    """BREAK-6: a mistake of its own, or a missing permission, is told."""
    shelf = await serve(fleet, cache=reach.Cache(ttl_s=0.01, stale_if_error_s=60))
    bus = await caller(fleet)
    await bus.request("shelf.find")
    await asyncio.sleep(0.02)
    shelf.failing = reach.UpstreamRefusal("not yours", reason=Reason.FORBIDDEN)
    reply = await bus.request("shelf.find")
    assert reply.error is not None
    assert (Reason.FORBIDDEN, False) == (reply.error.reason, reply.stale)


async def test_too_old_an_answer_is_not_given(fleet: Fleet) -> None:
    """GUARD-5: past `ttl_s` and `stale_if_error_s` it is gone."""
    shelf = await serve(fleet, cache=reach.Cache(ttl_s=0.02, stale_if_error_s=0.02))
    bus = await caller(fleet)
    await bus.request("shelf.find")
    await asyncio.sleep(0.05)
    shelf.failing = reach.NotExecuted("closed")
    assert not (await bus.request("shelf.find")).ok


async def test_another_version_of_the_agent_ends_it(fleet: Fleet) -> None:
    """GUARD-5: what version 1 said is not given once version 2 serves."""
    old = Shelf(version="1.0.0")
    await fleet.serve(old.agent)
    bus = await caller(fleet)
    await bus.request("shelf.find")
    new = Shelf(version="2.0.0")
    await fleet.serve(new.agent)
    await bus.cards.instances("shelf.find")
    reply = await bus.request("shelf.find")
    assert not reply.cached


async def test_a_capability_that_is_no_read_any_more_ends_it(fleet: Fleet) -> None:
    """GUARD-5: once an instance says that a call changes something, nothing is shared."""
    shelf = await serve(fleet)
    bus = await caller(fleet)
    await bus.request("shelf.find")
    writer = Shelf(reads=False, cache=None)
    await fleet.serve(writer.agent)
    await bus.cards.instances("shelf.find")
    replies = [await bus.request("shelf.find") for _ in range(3)]
    assert [False] * 3 == [reply.cached for reply in replies]
    assert 4 == len(shelf.asked) + len(writer.asked)


async def test_a_hit_costs_neither_link_nor_slot(fleet: Fleet) -> None:
    """GUARD-5: what is kept is given while the link is down, too."""
    await serve(fleet)
    bus = await caller(fleet)
    await bus.request("shelf.find")
    await bus.connection.close()
    reply = await bus.request("shelf.find", timeout_s=1)
    assert (True, True) == (reply.ok, reply.cached)


async def test_hits_are_counted_apart_from_what_agents_did(fleet: Fleet) -> None:
    """SEE-2: hits and misses by capability; no lane's latency is flattered by an answer that it did not give."""
    await serve(fleet)
    bus = await caller(fleet)
    for _ in range(4):
        await bus.request("shelf.find")
    counted = bus.metrics
    assert (3, 1) == (counted.cache.value("shelf.find", "hit"), counted.cache.value("shelf.find", "miss"))
    assert (1, 3) == (
        counted.calls.value("shelf.find", "shelf", "ok"),
        counted.calls.value("shelf.find", "cache", "ok"),
    )


async def test_memory_is_bounded_under_many_questions(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """GUARD-5: thousands of different questions leave no more than the cache may hold, and no flight."""
    await serve(fleet)
    bus = await caller(fleet)
    thrift = bus._core.outbound.thrift
    answers = thrift.keeper.answers
    monkeypatch.setattr(answers, "_max_answers", 200)
    for start in range(0, 2000, 50):
        await asyncio.gather(*(bus.request("shelf.find", {"title": str(start + n)}) for n in range(50)))
    assert (200, 1800) == (len(answers), answers.evicted)
    assert (0, 0) == (len(thrift.sharing), len(thrift.sharing._tasks))


async def test_large_answers_are_not_kept(fleet: Fleet) -> None:
    """GUARD-5: one answer must not push out all others."""
    await serve(fleet)
    bus = await caller(fleet)
    replies = [await bus.request("shelf.find", {"copies": 800_000}) for _ in range(2)]
    assert [False, False] == [reply.cached for reply in replies]
    assert 0 == bus._core.outbound.thrift.keeper.answers.size
