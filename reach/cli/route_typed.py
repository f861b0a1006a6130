"""What is typed after `reach route`, read: weights, limits, percentages, strategies. Pure, and every error teaches.

Everything here raises `Refusal` with exit code 2, or `NameRefused`, which becomes one.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable
from typing import Final, get_args

from reach.cli.exits import usage
from reach.policy.pick import BUILT_IN
from reach.wire import names
from reach.wire.route import StaticShare, Strategy, TermName

_HUNDRED: Final = 100
_TERMS: Final = get_args(TermName)


def weights(arguments: Iterable[str]) -> dict[str, float]:
    """Read `agent=0.5` …; 0 is none of the traffic. Raises `Refusal`."""
    found: dict[str, float] = {}
    for argument in arguments:
        agent, number = _pair(argument, right="legacy-ocr=0.5")
        found[_agent(agent, found)] = _weight(number, argument)
    return found


def limits(arguments: Iterable[str]) -> tuple[dict[str, int], tuple[str, ...]]:
    """Read the values of `--limit agent=20`: the limits, and whose end (`--limit agent=none`)."""
    found: dict[str, int] = {}
    ended: list[str] = []
    for argument in arguments:
        agent, number = _pair(argument, right="--limit legacy-ocr=20")
        if number == "none":
            ended.append(_agent(agent, {*found, *ended}))
            continue
        if not number.isascii() or not number.isdigit() or int(number) < 1:
            raise usage(
                f"A limit is a whole number of 1 or more, and {number!r} is none.",
                fix=f"Right would be: --limit {agent}=20; {agent}=none ends it. "
                f"To take a lane out: {agent}=0, or `reach route open`.",
            )
        found[_agent(agent, {*found, *ended})] = int(number)
    return found, tuple(ended)


def percent(text: str) -> float:
    """Read `5`, `5%` or `0.5 %`. Raises `Refusal`."""
    number = _number(text.strip().removesuffix("%").strip())
    if number is None or not 0 <= number <= _HUNDRED:
        raise usage(f"{text!r} is no part of a hundred.", fix="Right would be: 5%, or off to end the canary")
    return number


def terms(text: str | None) -> tuple[TermName, ...] | None:
    """Read `--terms-off cost,health`; none is an empty list, nothing given is None. Raises `Refusal`."""
    if text is None:
        return None
    wanted = {part.strip() for part in text.split(",") if part.strip()}
    if unknown := sorted(wanted - {*_TERMS, "none"}):
        raise usage(f"There is no term {', '.join(unknown)}.", fix=f"There are: {', '.join(_TERMS)}; or none")
    return tuple(term for term in _TERMS if term in wanted)


def strategy(name: str | None, *, key: str | None, shares: Iterable[str]) -> Strategy | None:
    """Read `--strategy`, with its `--key` and its `--share`s. Raises `Refusal`."""
    groups = tuple(_share(argument) for argument in shares)
    if key is not None and name != "consistent_hash":
        raise usage("--key belongs to --strategy consistent_hash.")
    if groups and name != "static":
        raise usage("--share belongs to --strategy static.")
    if name == "static" and not groups:
        raise usage(
            "--strategy static needs to know the parts.",
            fix="Right would be: --strategy static --share legacy-ocr=80 --share pool:new=20",
        )
    if name is None:
        return None
    if name not in BUILT_IN and (near := difflib.get_close_matches(name, BUILT_IN, n=1)):
        raise usage(f"There is no strategy {name!r}: did you mean {near[0]}?")  # Others are somebody's own.
    return Strategy(name=name, key=key, shares=groups)


def _share(argument: str) -> StaticShare:
    group, number = _pair(argument, right="--share legacy-ocr=80")
    weight = _weight(number, argument)
    label, colon, value = group.partition(":")
    if not colon:
        return StaticShare(provider=_agent(group, ()), weight=weight)
    if not label or not value:
        raise usage(f"{argument!r} names no label.", fix="Right would be: --share pool:new=20")
    return StaticShare(labels={label: value}, weight=weight)


def _pair(argument: str, *, right: str) -> tuple[str, str]:
    name, sign, value = argument.rpartition("=")
    if not sign or not name or not value:
        raise usage(f"{argument!r} is not name=number.", fix=f"Right would be: {right}")
    return name.strip(), value.strip()


def _agent(name: str, known: Iterable[str]) -> str:
    if name in known:
        raise usage(f"{name} was given twice.")
    return names.token(name, "agent")


def _weight(text: str, argument: str) -> float:
    number = _number(text)
    if number is None or not 0 <= number < math.inf:
        raise usage(
            f"{argument!r} gives no weight: {text!r} is not a number of 0 or more.",
            fix="Right would be: 0.5 (half of the usual), 1 (the usual), 0 (none)",
        )
    return number


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
