"""Callers, agents and supervisors of the acceptance tests, all of them programs of their own, and what they saw."""

import asyncio
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import monotonic
from weakref import WeakKeyDictionary

from tests.chaos.stress_rig import Peer
from tests.chaos.supervisor_rig import ROOT, SupervisorRig

MOST_LINE = 64 * 1024 * 1024
"""A caller gives what it kept of a hundred thousand calls as one line."""


_taking_part: WeakKeyDictionary[SupervisorRig, list[Peer]] = WeakKeyDictionary()


@dataclass(frozen=True, slots=True)
class Call:
    """One call as its caller saw it. `at` is when it began (monotonic s), `end` is `ok` or why it failed."""

    at: float
    ms: float
    end: str
    by: str | None
    instance: str | None
    level: int | None
    attempt: int
    key: str

    @property
    def ok(self) -> bool:
        """Whether it succeeded."""
        return self.end == "ok"


@dataclass(frozen=True, slots=True)
class Seen:
    """What a caller kept: its calls, the changes of its breakers, and how late its own loop was at most (s)."""

    calls: list[Call]
    states: list[tuple[float, str, str]]
    late_s: float

    def became(self, provider: str, *states: str, since: float = 0.0) -> float | None:
        """When a lane's breaker became one of these (monotonic s); None if it never did."""
        return next(
            (at for at, name, to in self.states if name == provider and to in states and at >= since), None
        )


async def program(rig: SupervisorRig, name: str, **env: str) -> Peer:
    """Start a program of this folder; it works when this returns."""
    number = len(list(rig.folder.glob("acceptance-*.log")))
    log = rig.folder / f"acceptance-{number}.log"
    with log.open("wb") as errors:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            str(Path(__file__).with_name(name)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=errors,
            limit=MOST_LINE,
            env={**rig.system.env, "PYTHONPATH": str(ROOT), **env},
        )
    peer = Peer(process, log)
    if rig not in _taking_part:
        _taking_part[rig] = []
        rig.at_end(partial(_end_all, _taking_part[rig]))
    _taking_part[rig].append(peer)
    await peer.ready()
    return peer


async def _end_all(peers: list[Peer]) -> None:
    """End them all at once: one after the other each would wait to be replaced."""
    await asyncio.gather(*(peer.end() for peer in peers))


async def served(rig: SupervisorRig, *names: str, **env: str) -> list[Peer]:
    """Start agents."""
    return list(
        await asyncio.gather(*(program(rig, "acceptance_agent.py", AGENT=name, **env) for name in names))
    )


async def callers(
    rig: SupervisorRig, number: int = 1, *, capability: str = "job.do", **env: str
) -> list[Peer]:
    """Start callers of ours, that know what the table says of a capability."""
    found = await asyncio.gather(*(program(rig, "acceptance_caller.py", **env) for _ in range(number)))
    for one in found:
        await one.ask("know", capability=capability)
    return list(found)


async def plain_caller(rig: SupervisorRig, **env: str) -> Peer:
    """Start a client that knows NATS and nothing else."""
    return await program(rig, "acceptance_caller.py", PLAIN="1", **env)


async def taken(peer: Peer) -> Seen:
    """Give what a caller kept since the last time."""
    answer = await peer.ask("take")
    states = [(at, provider, state) for at, provider, state in answer["states"]]
    return Seen([Call(*line) for line in answer["lines"]], states, answer["late_s"])


async def ended(*peers: Peer) -> list[Seen]:
    """Let callers make no more calls; gives what each kept."""
    await asyncio.gather(*(peer.ask("stop") for peer in peers))
    return [await taken(peer) for peer in peers]


def ends(calls: Iterable[Call]) -> dict[str, int]:
    """Count calls by how they ended."""
    return dict(Counter(call.end for call in calls))


def percentile(values: Iterable[float], part: float) -> float:
    """Give the value below which such a part of them lies; 0 where there are none."""
    found = sorted(values)
    return found[min(len(found) - 1, int(len(found) * part))] if found else 0.0


def shares_of(names: Iterable[object]) -> dict[str, float]:
    """Give the percentage of each name."""
    found = Counter(str(name) for name in names)
    total = sum(found.values())
    return {name: 100 * count / total for name, count in sorted(found.items())}


async def until_s(at: float) -> None:
    """Wait for a moment (monotonic s)."""
    await asyncio.sleep(max(0.0, at - monotonic()))
