"""What our own callers and agents really say, against the published contract (JSON Schema and AsyncAPI)."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

import reach
from reach.bus.keys import Role
from tests.contract.tap import Tap, saying
from tests.runtime.fleet import Fleet, eventually
from tests.wire.contract import assert_matches_contract


def agent() -> reach.Agent:
    agent = reach.Agent("speaker", labels={"tier": "gold"}, langs=("zh", "en"))

    @agent.capability("speech.say", idempotent=True, timeout_s=5)
    async def say(text: str, loud: bool = False) -> dict[str, Any]:
        return {"text": text.upper() if loud else text}

    @agent.capability("speech.slow", max_concurrency=2)
    async def slow(seconds: float) -> str:
        await asyncio.sleep(seconds)
        return "done"

    @agent.capability("speech.fail")
    async def fail(ctx: reach.Context) -> None:
        ctx.cost(0.5)
        raise reach.RateLimited(
            retry_after_ms=500, limit={"name": "n", "owner": "o", "used": 1, "allowed": 1}
        )

    @agent.capability("speech.letters")
    async def letters(count: int, size: int = 1, fail: bool = False) -> AsyncIterator[str]:
        for _ in range(count):
            yield "x" * size
        if fail:
            raise RuntimeError

    return agent


async def test_everything_that_is_said_during_calls_of_all_kinds_is_in_the_contract(fleet: Fleet) -> None:
    """Requests, streams, broadcasts, events, refusals, cancellation and credit: each message fits its schema."""
    tap = await Tap(await fleet.connection(Role.PLATFORM)).ready()
    instance = await fleet.serve(agent())
    bus = await fleet.connect()
    said = saying(bus.connection)

    assert "HI" == (await bus.request("speech.say", {"text": "hi", "loud": True})).unwrap()["text"]
    with reach.context(session_id="s-1", task_id="t-1", tenant="north", trigger={"turn": 3, "tool": "x"}):
        await bus.request("speech.say", {"text": "hi"}, priority="core", idempotency_key="k-1", trace=True)
    await bus.request("speech.slow", {"seconds": 0.06}, target="speaker")
    await bus.request("speech.say", {"text": "hi"}, require={"lang": "zh"}, prefer={"tier": "gold"})
    assert not (await bus.request("speech.fail", retry=False)).ok
    three = [bus.request("speech.slow", {"seconds": 0.05}, retry=False) for _ in range(3)]
    refused = [reply for reply in await asyncio.gather(*three) if not reply.ok]
    assert ["OVERLOADED"] == [str(reply.error.reason) for reply in refused if reply.error is not None]
    assert 200 == len([part async for part in bus.stream("speech.letters", {"count": 200, "size": 1000})])
    with pytest.raises(reach.UpstreamFailure):
        async for _ in bus.stream("speech.letters", {"count": 1, "fail": True}):
            pass
    assert 1 == len([reply async for reply in bus.broadcast("speech.say", {"text": "all"})])
    await bus.publish("speech.say", {"text": "event"})
    assert "late" == await _late(bus.request("speech.slow", {"seconds": 5.0}), 0.1)
    assert not (await bus.request("speech.nobody")).ok
    await eventually(lambda: instance.inflight == 0)
    await fleet.stop(instance)

    counted = await tap.checked()
    expected = {"reply", "frame", "cancel", "credit", "goodbye", "envelope"}
    assert expected <= counted.keys()
    ours = [(subject, data) for subject, data in said if not subject.startswith("$JS.")]
    requests = [assert_matches_contract(subject, data) for subject, data in ours]
    assert requests.count("envelope") >= 12


async def _late(call: Any, after_s: float) -> str:
    try:
        async with asyncio.timeout(after_s):
            await call
    except TimeoutError:
        return "late"
    return "in time"


async def test_services_answer_any_nats_tool(fleet: Fleet) -> None:
    """`$SRV.PING`, `INFO` and `STATS` are answered in JSON as ADR-32 has it, and count what was served."""
    instance = await fleet.serve(agent())
    bus = await fleet.connect()
    client = await fleet.stranger()
    await bus.request("speech.say", {"text": "hi"})
    await bus.request("speech.fail", retry=False)
    answers: dict[str, dict[str, Any]] = {}
    for verb in ("PING", "INFO", "STATS"):
        message = await client.request(f"$SRV.{verb}.speaker.{instance.name}", b"", timeout=5)
        assert f"service-{verb.lower()}" == assert_matches_contract(message.subject, message.data)
        answers[verb] = json.loads(message.data)
    assert {"speaker"} == {answer["name"] for answer in answers.values()}
    assert {instance.name} == {answer["id"] for answer in answers.values()}
    figures = {one["subject"]: one for one in answers["STATS"]["endpoints"]}
    assert (1, 0) == (
        figures["cap.speech.say"]["num_requests"],
        figures["cap.speech.say"]["num_errors"],
    )
    assert (1, 1) == (
        figures["cap.speech.fail"]["num_requests"],
        figures["cap.speech.fail"]["num_errors"],
    )
