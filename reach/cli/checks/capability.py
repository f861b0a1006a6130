"""The last part of the way: somebody serves the capability, and is able to answer.

An agent that hangs cannot be told from one that works by asking the broker, and asking the capability itself
would run it. So what is sent is a request whose time is over before it arrives: an agent that lives refuses it
unstarted (behaviour CALL-2), one that is stopped says nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter

from reach.cli.checks.finding import Check, Finding, Patient, bad, good
from reach.cli.roster import read_cards
from reach.errors import CallTimeout, LinkDown, Unreachable
from reach.wire import codec, subjects
from reach.wire.envelope import Envelope

_PROBES = 16
"""NATS picks a member at random for each: of three instances one that hangs is missed once in 650 times."""

_TIMEOUT_S = 2.0
_CARDS_S = 0.5


async def served(patient: Patient) -> Finding:
    """Some agent says that it serves it, or takes its requests without saying so."""
    capability = _wanted(patient)
    patient.cards = tuple(await read_cards(patient.link, patience_s=_CARDS_S))
    serving = [card for card in patient.cards if any(one.tag == capability for one in card.capabilities)]
    if serving:
        counted = Counter(card.agent_id for card in serving)
        return good(", ".join(f"{agent} (× {count})" for agent, count in sorted(counted.items())))
    if await _probe(patient, subjects.cap(capability)) is None:
        return good("some agent takes its requests, but does not introduce itself")
    known = {one.tag for card in patient.cards for one in card.capabilities}
    return bad(f"Nobody serves {capability}.{_nearest(capability, known)}", fix=_start_one(known))


def _nearest(capability: str, known: set[str]) -> str:
    import difflib

    near = difflib.get_close_matches(capability, sorted(known), n=3)
    return f" Near it: {', '.join(near)}." if near else ""


def _start_one(known: set[str]) -> str:
    start = "Start an agent that serves it: reach run module:agent"
    return f"{start}. What there is: reach caps" if known else start


async def answers(patient: Patient) -> Finding:
    """Whoever takes its requests answers them."""
    capability = _wanted(patient)
    subject = subjects.cap(capability)
    began = time.monotonic()
    heard = await asyncio.gather(*(_probe(patient, subject) for _ in range(_PROBES)))
    silent = sum(answer is None for answer in heard)
    if not any(heard):
        if all(answer == "" for answer in heard):
            return bad(f"Nobody takes requests for {capability} any more.", fix="Start its agent again.")
        return bad(
            f"An agent takes requests for {capability}, and does not answer: none of {_PROBES} within "
            f"{_TIMEOUT_S:g} s. It is stopped (Ctrl-Z, a debugger) or hangs.",
            fix="Look at its process (state T in `ps`), continue it with `kill -CONT PID`, or restart it.",
        )
    if silent:
        return bad(
            f"Some instances of {capability} do not answer: {silent} of {_PROBES} requests were lost in them. "
            f"Those that do: {', '.join(sorted({answer for answer in heard if answer}))}.",
            fix="Look for a process of the agent that is stopped or hangs; continue it with `kill -CONT PID`, "
            "or restart it.",
        )
    milliseconds = 1000 * (time.monotonic() - began)
    instances = sorted({answer for answer in heard if answer})
    return good(f"{', '.join(instances)} within {milliseconds:.0f} ms")


async def _probe(patient: Patient, subject: str) -> str | None:
    """Send a request that is over already: the instance that refused it, "" for nobody there, None for silence."""
    over = Envelope(
        capability=_wanted(patient),
        source="reach-doctor",
        timeout_ms=0,
        expires_at=int(time.time() * 1000) - 1,
    )
    try:
        body = codec.unpack(await patient.link.request(subject, over.pack(), timeout_s=_TIMEOUT_S))
    except Unreachable:
        return ""
    except (CallTimeout, LinkDown):
        return None
    return str(body.get("instance") or "an agent without a name")


def _wanted(patient: Patient) -> str:
    if patient.capability is None:
        raise RuntimeError("these checks are for a capability, and none was named")
    return patient.capability


CHECKS = (
    Check("served", "Served", served),
    Check("answers", "Answers", answers),
)
