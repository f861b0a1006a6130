"""Where the processor's time goes, by sampling: each millisecond of it, which function runs?

A signal of the interval timer looks at the stack of the main thread. That costs about a hundredth of what a
tracing profiler does, and needs no rights and no other package. What the loop itself does (waiting excluded,
system calls included) shows as a callback that has not begun: such samples count as the loop's. A task that
is woken up cannot be told from the loop in this way: what the loop spends on waking it counts as the task's.
The garbage collector shows as the callback that it makes at its end.
"""

import gc
import opcode
import signal
from collections import Counter
from types import FrameType
from typing import Any, Final

INTERVAL_S: Final = 0.001
LOOP: Final = "event loop, sockets"
COLLECTOR: Final = "garbage collector"

_RESUME: Final = opcode.opmap.get("RESUME", -1)
_PROLOGUE: Final = 8
"""Bytes of code in which a function can only have begun (cells, generators)."""

# Rooms by the beginning of a module's name; the first that fits counts.
_ROOMS: Final = (
    ("bench.", "the benchmark itself"),
    ("reach.wire.", "reach.wire (with msgpack)"),
    ("reach.call.", "reach.call"),
    ("reach.bus.", "reach.bus"),
    ("reach.runtime.", "reach.runtime"),
    ("reach.policy.", "reach.policy"),
    ("reach.observe.", "reach.observe"),
    ("reach.registry.", "reach.registry"),
    ("reach.", "reach, the rest"),
    ("prometheus_client", "prometheus-client"),
    ("nats.", "nats-py"),
    ("faststream", "FastStream"),
    ("fast_depends", "FastStream"),
    ("asyncio", "asyncio"),
)


def room_of(module: str) -> str:
    """Give the room that a module's time is counted for."""
    return next((room for prefix, room in _ROOMS if module.startswith(prefix)), "other libraries")


class Sampler:
    """Samples between `start` and `stop`. Main thread only."""

    def __init__(self) -> None:
        self._rooms: Counter[str] = Counter()
        self._functions: Counter[str] = Counter()

    def start(self) -> None:
        """Forget earlier samples and begin."""
        self._rooms.clear()
        self._functions.clear()
        gc.callbacks.append(_on_collection)
        signal.signal(signal.SIGPROF, self._on_signal)
        signal.setitimer(signal.ITIMER_PROF, INTERVAL_S, INTERVAL_S)

    def stop(self) -> dict[str, Any]:
        """End, and give the samples of each room and function: `{"samples", "rooms", "functions"}`."""
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, signal.SIG_IGN)
        gc.callbacks.remove(_on_collection)
        return {
            "samples": self._rooms.total(),
            "rooms": dict(self._rooms.most_common()),
            "functions": dict(self._functions.most_common(25)),
        }

    def _on_signal(self, _number: int, frame: FrameType | None) -> None:
        if frame is None or frame.f_code is Sampler._on_signal.__code__:
            return
        module = frame.f_globals.get("__name__", "?")
        if frame.f_code is _on_collection.__code__:
            room = function = COLLECTOR
        elif _is_loop(frame):
            room = function = LOOP
        else:
            room, function = room_of(module), f"{module}:{frame.f_code.co_qualname}"
        self._rooms[room] += 1
        self._functions[function] += 1


def _on_collection(_phase: str, _info: dict[str, int]) -> None:
    """Be there to be seen."""


def _is_loop(frame: FrameType) -> bool:
    """Whether the loop's own code runs, or has just called this callback."""
    above = frame.f_back
    if _is_runner(frame):
        return True
    if above is None or not _is_runner(above) or not 0 <= frame.f_lasti <= _PROLOGUE:
        return False
    return frame.f_code.co_code[frame.f_lasti] == _RESUME


def _is_runner(frame: FrameType) -> bool:
    return frame.f_globals.get("__name__") in {"asyncio.runners", "asyncio.base_events", "uvloop"}
