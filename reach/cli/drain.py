"""`reach drain`: let an instance, or all of an agent's, leave without losing a call; and wait until they have.

The supervisor gives the order, and calls go elsewhere before the instance withdraws. What it has is finished, then its
connection ends: that is what is waited for, since until then an answer may still come. Whoever is there listens on
its control subject, so "nobody listens" is the broker's word that it is not; said twice, half a second apart, for a
link that is only being made again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from reach.cli import options as opt
from reach.cli.completion import complete_instance
from reach.cli.dial import open_bus, run
from reach.cli.exits import Exit, Refusal

if TYPE_CHECKING:
    from reach.bus.connection import Connection
    from reach.wire.registration import CardEntry, InstanceRow, RouteAnswer

EXAMPLES = (
    ("One instance, and wait until it has left", "reach drain billing-k3m7q2xa"),
    ("All instances of an agent", 'reach drain billing --reason "moves to the south"'),
    ("As a preStop hook: those of this pod, by a label", "reach drain billing --label pod=$HOSTNAME"),
    ("Who would leave", "reach drain billing --dry-run"),
)

USUAL_S: Final = 30.0
"""How long an instance takes at most, where neither it nor the command says otherwise (LIFE-7)."""

CLOSING_S: Final = 5.0
"""How long it may then take to close."""

_AGAIN_S: Final = 0.25
_AWAY_S: Final = 0.5
"""How long nobody must have listened: as long as the sentinel waits for a link to come back."""


@dataclass(slots=True)
class Leaver:
    """One instance that is to leave. `after_s` is when it had; None while it is there."""

    row: InstanceRow
    after_s: float | None = None
    ended: str | None = None
    """How, by its card: `goodbye`, or `lost` and `expired` where it ended without one."""

    @property
    def in_order(self) -> bool:
        """Whether it has left, and finished what it had."""
        return self.after_s is not None and self.ended in {None, "goodbye"}

    def to_map(self) -> dict[str, Any]:
        """Give it for programs."""
        return {
            "instance": self.row.instance,
            "agent": self.row.agent_id,
            "left": self.after_s is not None,
            "after_s": None if self.after_s is None else round(self.after_s, 2),
            "ended": self.ended,
        }


def drain(
    target: Annotated[
        str,
        typer.Argument(
            metavar="INSTANCE|AGENT",
            help="One instance, or an agent: all of its instances.",
            show_default=False,
            autocompletion=complete_instance,
        ),
    ],
    *,
    label: Annotated[
        list[str] | None,
        typer.Option("--label", metavar="K=V", help="Only instances with this label; repeatable."),
    ] = None,
    timeout: Annotated[
        str | None,
        typer.Option(
            "--timeout",
            "-t",
            metavar="TIME",
            help="How long what is in work may take: 30 (seconds), 2m. The agent's own, usually 30 s, "
            "where not given.",
        ),
    ] = None,
    no_wait: Annotated[bool, typer.Option("--no-wait", help="Give the order, and do not wait.")] = False,
    dry_run: opt.DryRun = False,
    reason: opt.Reason = None,
    by: opt.By = None,
    url: opt.Url = None,
    as_json: opt.AsJson = False,
) -> None:
    """Let instances leave without losing a call, and wait until they have.

    Calls go to others first; what was taken is finished; then the instance ends. The exit code is 0 when all have
    left (also when they had before), 1 when one is still there after its time.
    """
    from reach.cli.params import duration, pairs

    order = _Order(
        target=target,
        labels=pairs(label or (), option="--label") or {},
        timeout_s=None if timeout is None else duration(timeout, option="--timeout"),
        dry_run=dry_run,
        reason=reason or "",
        by=by,
        wait=not (no_wait or dry_run),
    )
    run(_drain(order, url=url, as_json=as_json))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Order:
    """What was typed."""

    target: str
    labels: dict[str, str]
    timeout_s: float | None
    dry_run: bool
    reason: str
    by: str | None
    wait: bool


async def _drain(order: _Order, *, url: str | None, as_json: bool) -> None:
    from reach.cli import output

    async with open_bus(url) as bus:
        connection = bus.connection
        answers = await _give(connection, order)
        if answers is None:
            _tell_left_before(order.target, as_json=as_json)
            return
        leavers = [Leaver(row) for answer in answers for row in answer.instances]
        if not order.wait:
            if as_json:
                output.print_json(_document(leavers, order))
            else:
                for answer in answers:
                    head = "dry run: " if order.dry_run else ""
                    output.line(head + output.sentence(answer.message))
            return
        await _wait(connection, leavers, order, quiet=as_json)
    if as_json:
        output.print_json(_document(leavers, order))
    if not all(one.in_order for one in leavers):
        if as_json:
            raise typer.Exit(Exit.FAILED)
        raise _late(leavers)


def _document(leavers: Sequence[Leaver], order: _Order) -> dict[str, Any]:
    ok = all(one.in_order for one in leavers) if order.wait else True
    return {"ok": ok, "dry_run": order.dry_run, "instances": [one.to_map() for one in leavers]}


# ------------------------------------------------------------------------------------------------ the order


async def _give(connection: Connection, order: _Order) -> list[RouteAnswer] | None:
    """Give the order; None when the instance that is meant has left before. Raises `Refusal`."""
    from reach.cli import supervisor
    from reach.wire.registration import DrainInstances, RouteVerb

    targets = [order.target] if not order.labels else await _labelled(connection, order)
    answers = []
    for target in targets:
        command = DrainInstances(
            by=order.by or supervisor.operator(),
            reason=order.reason,
            dry_run=order.dry_run,
            target=target,
            timeout_s=order.timeout_s,
        )
        try:
            answers.append(await supervisor.order(connection, RouteVerb.DRAIN, command))
        except Refusal as refusal:
            if refusal.code is Exit.FAILED and await _has_left(connection, target):
                return None
            raise
    return answers


async def _labelled(connection: Connection, order: _Order) -> list[str]:
    """Name the instances that are meant, by their labels."""
    from reach.cli import supervisor

    found = await supervisor.instances(connection)
    if found is None:
        raise Refusal(Exit.LATER, f"{supervisor.NOBODY_LEADS}: nothing was done.", fix=supervisor.START_ONE)
    ours = [row for row in found if order.target in {row.agent_id, row.instance} and row.state not in _GONE]
    fit = [row.instance for row in ours if order.labels.items() <= row.labels.items()]
    if not fit:
        wanted = " ".join(f"{key}={value}" for key, value in order.labels.items())
        raise Refusal(
            Exit.FAILED,
            f"No instance of {order.target} has the label {wanted}.",
            fix="What there is: reach ps --json | jq '.[] | {instance, labels}'",
        )
    return fit


_GONE: Final = frozenset({"unavailable", "left"})


async def _has_left(connection: Connection, instance: str) -> bool:
    entry = await _card(connection, instance)
    return entry is not None and entry.ended is not None


def _tell_left_before(instance: str, *, as_json: bool) -> None:
    from reach.cli import output

    if as_json:
        told = {"instance": instance, "left": True, "after_s": 0}
        output.print_json({"ok": True, "dry_run": False, "instances": [told]})
    else:
        output.line(f"{instance} has left before.")


# ------------------------------------------------------------------------------------------------ waiting


async def _wait(connection: Connection, leavers: Sequence[Leaver], order: _Order, *, quiet: bool) -> None:
    """Wait until all have left, or their time is over."""
    limit_s = (order.timeout_s or USUAL_S) + CLOSING_S
    began = asyncio.get_running_loop().time()
    try:
        async with asyncio.timeout(limit_s), asyncio.TaskGroup() as group:
            for leaver in leavers:
                group.create_task(_leaves(connection, leaver, began=began, quiet=quiet))
    except TimeoutError:
        return  # Who has not left by now says so by its `after_s`.


async def _leaves(connection: Connection, leaver: Leaver, *, began: float, quiet: bool) -> None:
    from reach.cli import output

    loop = asyncio.get_running_loop()
    away_since: float | None = None
    while away_since is None or loop.time() - away_since < _AWAY_S:
        if await _is_there(connection, leaver.row.instance):
            away_since = None
        elif away_since is None:
            away_since = loop.time()
        await asyncio.sleep(_AGAIN_S)
    entry = await _card(connection, leaver.row.instance)
    leaver.ended = None if entry is None else entry.ended
    leaver.after_s = away_since - began
    if not quiet and leaver.in_order:
        output.line(f"✔ {leaver.row.instance} has left, after {leaver.after_s:.1f} s")


async def _is_there(connection: Connection, instance: str) -> bool:
    """Whether anybody listens for an instance. An unknown id is nothing that it could cancel."""
    from reach import ids
    from reach.errors import CallTimeout, Unreachable
    from reach.wire import codec, subjects
    from reach.wire.control import Cancel, Verb

    asked = codec.pack(Cancel(message_id=ids.new_id()).model_dump())
    try:
        await connection.request(subjects.ctl(instance, Verb.CANCEL), asked, timeout_s=_AGAIN_S)
    except Unreachable:
        return False
    except CallTimeout:
        return True  # It has nothing to say to that; the broker would have said that nobody is there.
    return True


async def _card(connection: Connection, instance: str) -> CardEntry | None:
    """Read what the supervisor has kept of an instance; None where there is nothing."""
    from reach.errors import ReachError
    from reach.wire import codec
    from reach.wire.registration import CARDS, CardEntry, read_message

    subject = f"$JS.API.DIRECT.GET.KV_{CARDS}.$KV.{CARDS}.{instance}"
    try:
        data = await connection.request(subject, b"", timeout_s=1.0)
        return read_message(codec.unpack(data), CardEntry) if data else None
    except ReachError:
        return None


def _late(leavers: Sequence[Leaver]) -> Refusal:
    still = [one.row.instance for one in leavers if one.after_s is None]
    broken = [
        f"{one.row.instance} ({one.ended})" for one in leavers if one.after_s is not None and not one.in_order
    ]
    if broken:
        message = f"Ended without a goodbye, with what they had in work: {', '.join(broken)}."
        return Refusal(Exit.FAILED, message, fix="What became of their calls: the records of their callers.")
    return Refusal(
        Exit.FAILED,
        f"Still there: {', '.join(still)}.",
        fix="What is in work there: reach ps. Give it more time (--timeout 5m), or end its process.",
    )
