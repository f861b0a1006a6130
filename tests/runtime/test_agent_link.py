"""What an agent says of its link to NATS: once when it is lost, once when it is back."""

import asyncio
import logging
import os
import signal
from typing import Any

import pytest

import reach
from reach.bus.keys import Role
from reach.observe.records import NullSink, Recorder


async def test_an_outage_is_told_in_a_few_lines(
    own_system: Any, until: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever runs an agent sees that its server went away and came back, and not each of the tries between."""
    caplog.set_level(logging.INFO)
    agent = reach.Agent("linked")

    @agent.capability("linked.ask")
    async def ask() -> str:
        return "here"

    settings = own_system.settings(Role.AGENT)
    ready, stop = asyncio.Event(), asyncio.Event()
    recorder = Recorder(NullSink())
    serving = asyncio.create_task(
        agent.serve(settings=settings, stop=stop, ready=lambda _: ready.set(), recorder=recorder)
    )
    await ready.wait()
    os.kill(own_system.server.pid, signal.SIGKILL)
    await until(lambda: "lost its link to" in caplog.text)
    await asyncio.sleep(0.5)  # Long enough for several tries.
    await asyncio.to_thread(own_system.restart)
    await until(lambda: "has its link back" in caplog.text)
    stop.set()
    await serving
    recorder.close()
    said = [record for record in caplog.records if record.name in {"reach.bus", "reach.agent"}]
    assert ["lost its link to", "has its link back"] == [
        words
        for record in said
        for words in ("lost its link to", "has its link back")
        if record.levelno == logging.WARNING and words in record.getMessage()
    ]
    assert len(said) <= 6, [record.getMessage() for record in said]
