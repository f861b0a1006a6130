"""That what a governed call is to do was done while it was measured: records, suspicion of silence, breakers.

A benchmark of calls that nobody watches over would be a benchmark of something else.
"""

import asyncio
import json
import os
import signal
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import nats
from nats.aio.msg import Msg

from bench.process import PeerProcess
from bench.stage import Pair, Stage
from reach.bus.keys import Role
from reach.bus.settings import Settings, resolve
from reach.wire import subjects

SUSPECTED_WITHIN_S: Final = 1.5
"""Ten times what a call may be silent before it is in doubt (150 ms)."""

_ANSWER_TIMEOUT_S: Final = 60.0
_SUSPECTS: Final = subjects.suspect(">")


@dataclass(frozen=True, slots=True)
class Proof:
    """One thing that was on, or was not, and how that is known."""

    name: str
    on: bool
    detail: str


def prove(stage: Stage, pair: Pair, *, made: int) -> list[Proof]:
    """Prove it for Reach's pair, whose caller is ended by this; `made` is how many calls it made."""
    return [_breaker(pair), _suspicion(stage, pair), _records(stage, pair, made=made)]


def _breaker(pair: Pair) -> Proof:
    """Fail calls of another capability in the very process that was measured, until they are refused."""
    pair.caller.tell({"do": "break"})
    made = int(pair.caller.hear(_ANSWER_TIMEOUT_S).get("calls", 0))
    if not made:
        return Proof("breakers", on=False, detail="none opened, however many calls failed")
    return Proof(
        "breakers", on=True, detail=f"one opened for a capability whose first {made - 1} calls failed"
    )


# --------------------------------------------------------------------------------------------- records


def _records(stage: Stage, pair: Pair, *, made: int) -> Proof:
    pair.caller.end()  # It writes what it still has.
    lines, calls, lost = count_records(stage.records)
    share = calls / made if made else 0.0
    detail = f"{lines:,} lines stand for {calls:,.0f} calls of {made:,}" + (
        f", {lost:,} lost" if lost else ""
    )
    # One group of thinned records may be under way; the probes of suspicion are in there too.
    return Proof("records", on=lines > 0 and abs(1 - share) < 0.05, detail=detail)


def count_records(path: Path) -> tuple[int, float, int]:
    """Count the lines of a file of records and of the one put aside, the calls they stand for, and the lost."""
    lines, calls, lost = 0, 0.0, 0
    for file in sorted(path.parent.glob(f"{path.stem}*{path.suffix}")):
        for record in _read(file):
            if isinstance(gap := record.get("gap"), dict):
                lost += int(gap.get("lost", 0))
                continue
            lines += 1
            rate = record.get("sample_rate", 1.0)
            calls += 1 / rate if isinstance(rate, float | int) else 1
    return lines, calls, lost


def _read(file: Path) -> Iterable[dict[str, object]]:
    with file.open(encoding="utf-8") as text:
        for line in text:
            record = json.loads(line)
            if isinstance(record, dict):
                yield record


# ------------------------------------------------------------------------------------------- suspicion


def _suspicion(stage: Stage, pair: Pair) -> Proof:
    """Stop the agent in the middle of a call, and listen for what the caller says of it."""
    settings = resolve(role=Role.PLATFORM, env={"REACH_HOME": str(stage.home)})
    heard_s = asyncio.run(_heard_after(settings, pair.caller, agent_pid=pair.agent.pid))
    pair.caller.hear(_ANSWER_TIMEOUT_S)
    if heard_s is None:
        return Proof(
            "suspicion", on=False, detail=f"nothing was said of a stopped agent in {SUSPECTED_WITHIN_S} s"
        )
    return Proof("suspicion", on=True, detail=f"a stopped agent was suspected after {heard_s * 1000:.0f} ms")


async def _heard_after(settings: Settings, caller: PeerProcess, *, agent_pid: int) -> float | None:
    connection = await nats.connect(**settings.to_nats_options())
    loop = asyncio.get_running_loop()
    heard: asyncio.Future[float] = loop.create_future()

    async def listen(_message: Msg) -> None:
        if not heard.done():
            heard.set_result(loop.time())

    try:
        await connection.subscribe(_SUSPECTS, cb=listen)
        await connection.flush()
        os.kill(agent_pid, signal.SIGSTOP)
        try:
            began = loop.time()
            caller.tell({"do": "run", "concurrency": 1, "warm_s": 0.0, "seconds": 0.1})
            async with asyncio.timeout(SUSPECTED_WITHIN_S):
                return await heard - began
        except TimeoutError:
            return None
        finally:
            os.kill(agent_pid, signal.SIGCONT)
    finally:
        await connection.close()
