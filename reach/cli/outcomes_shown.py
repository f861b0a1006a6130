"""How the platform is asked for unknown outcomes, and how they are shown: a line each, or all about one in words."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from reach.cli import output
from reach.cli.exits import Exit, Refusal
from reach.errors import CallTimeout, ReachError, Unreachable
from reach.faults import Executed
from reach.wire import codec, subjects
from reach.wire.registration import read_answer
from reach.wire.unknown import UnknownAnswer, UnknownVerb, Verdict

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

    from reach.bus.connection import Connection
    from reach.wire.unknown import KeyStanding, Resolution, Tried, UnknownCommand, UnknownOutcome, UnknownRow

_ASK_S: Final = 12.0
"""The platform looks for up to four seconds whether an instance is there, and asks stores that may be slow."""

_FIX: Final = "`reach up` runs the platform; at a NATS of your own start it beside it."
_MOST_SHOWN: Final = 2000

_STATES: Final = {
    "absent": "none is there (any more)",
    "running": "says that it is under way",
    "unknown": "says that nobody knows: a duplicate is refused as OUTCOME_UNKNOWN until this is resolved",
    "done": "says that it was done: a duplicate gets that result",
}


async def ask(connection: Connection, verb: UnknownVerb, command: UnknownCommand) -> UnknownAnswer:
    """Ask the platform. Raises `Refusal` where there is none, or where it refuses."""
    data = codec.pack(command.model_dump(exclude_none=True))
    try:
        answer = await connection.request(subjects.unknowns(verb), data, timeout_s=_ASK_S)
        return read_answer(answer, UnknownAnswer)
    except Unreachable:
        message = "Nobody here keeps the list of unknown outcomes: the platform does not answer."
        raise Refusal(Exit.NO_CONNECTION, message, fix=_FIX) from None
    except CallTimeout as error:
        if verb is UnknownVerb.RESOLVE and error.executed is not Executed.NO:
            text = "The platform did not answer: it may be resolved."
            raise Refusal(Exit.UNSURE, text, fix="See what holds: reach outcomes show ID") from None
        raise Refusal(Exit.LATER, output.sentence(error.message)) from None
    except ReachError as error:
        raise Refusal(Exit.FAILED, output.sentence(error.message)) from None


def table(rows: Sequence[UnknownRow], *, total: int) -> RenderableType:
    """Give the list."""
    from rich.console import Group
    from rich.text import Text

    if not rows:
        return Text("Nothing is unknown." if not total else f"None of these; {total} in all.")
    now = time.time()
    columns = ("id", "capability", "age#", "cause", "instance", "by", "key", "is")
    return Group(
        output.grid(
            columns,
            [
                (
                    Text(row.outcome.reach_id),
                    Text(row.outcome.capability),
                    Text(output.age(now - row.outcome.at / 1000)),
                    Text(row.outcome.cause),
                    Text(row.outcome.instance or ""),
                    Text(row.outcome.source or ""),
                    Text(row.outcome.idempotency_key or ("by itself" if row.outcome.store_key else "")),
                    _standing(row),
                )
                for row in rows
            ],
        )
    )


def _standing(row: UnknownRow) -> RenderableType:
    from rich.text import Text

    if row.resolution is None:
        more = f", and {len(row.also)} more" if row.also else ""
        return Text(f"open{more}", style="bold yellow")
    return Text(f"{row.resolution.verdict}, says {row.resolution.by}", style="green")


# ------------------------------------------------------------------------------------------------ in words


def in_words(row: UnknownRow, key: KeyStanding | None) -> RenderableType:
    """Give all that is known of one."""
    from rich.console import Group
    from rich.text import Text

    outcome = row.outcome
    head = Text(f"{outcome.capability} ", style="bold")
    head.append("was called, and it is not known whether it was done.", style="none")
    facts = [*_facts(outcome), *_about_key(outcome, key)]
    if row.also:
        facts.append(
            ("also", f"{output.plural(len(row.also), 'call')} met the same: {', '.join(row.also[:5])}")
        )
    facts += _about_resolution(row.resolution)
    lines = [Text(f"  {name:<10} ", style="dim").append(value, style="none") for name, value in facts]
    return Group(head, *lines, Text(_to_do(row, key), style="none"))


def _facts(outcome: UnknownOutcome) -> list[tuple[str, str]]:
    found = [
        ("id", outcome.reach_id),
        ("ended", _time(outcome.at)),
        ("why", _why(outcome)),
        ("had by", outcome.instance or f"nobody knows; sent to {_sent_to(outcome.attempts)}"),
    ]
    if outcome.began_at:
        found.insert(1, ("began", _time(outcome.began_at)))
    context = {
        "called by": outcome.source,
        "agent": outcome.agent_id,
        "session": outcome.session_id,
        "task": outcome.task_id,
        "trace": outcome.trace_id,
        "tenant": None if outcome.tenant == "default" else outcome.tenant,
    }
    found += [(name, value) for name, value in context.items() if value]
    for tried in outcome.attempts:
        where = tried.instance or tried.subject
        said = f"{where}, {tried.took_ms:.0f} ms: {tried.reason or 'no answer'} → {tried.decision or 'ended'}"
        found.append((f"attempt {tried.n}", said))
    if outcome.parameters is not None:
        text = output.compact(outcome.parameters)
        found.append(("parameters", text if len(text) <= _MOST_SHOWN else text[:_MOST_SHOWN] + " …"))
    elif outcome.kind not in {"task", "local"}:
        found.append(("parameters", "not kept; their digest tells them apart"))
    if outcome.digest:
        found.append(("digest", outcome.digest))
    return found


def _why(outcome: UnknownOutcome) -> str:
    causes = {
        "DEADLINE": "its time was over before anybody answered",
        "FIRST_BYTE": "nobody began to answer in time",
        "INSTANCE_GONE": "the instance that had it is gone",
        "DISCONNECTED": "the link to NATS broke while it was under way",
        "WORKER_LOST": "the worker that had it is gone",
    }
    said = causes.get(outcome.cause, "nobody said how it ended")
    return f"{said} ({outcome.cause or 'no cause told'}), and it may not be repeated unasked"


def _sent_to(attempts: Sequence[Tried]) -> str:
    return attempts[-1].subject if attempts else "nobody"


def _about_key(outcome: UnknownOutcome, key: KeyStanding | None) -> list[tuple[str, str]]:
    if outcome.store_key is None:
        return [("key", "none: whoever repeats the call has it done again")]
    own = outcome.idempotency_key or "one that follows from its task and parameters"
    found = [("key", own)]
    if key is not None:
        text = f"{_STATES.get(key.state, key.state)}"
        if key.owner:
            lives = {True: ", which is there", False: ", which is gone", None: ""}[key.lives]
            text += f" (of {key.owner}{lives})"
        found.append(("entry", text))
    return found


def _about_resolution(said: Resolution | None) -> list[tuple[str, str]]:
    if said is None:
        return []
    found = [("resolved", f"{said.verdict}, by {said.by}, {_time(said.at)}")]
    if said.note:
        found.append(("note", said.note))
    if said.result is not None:
        found.append(("result", output.compact(said.result)[:_MOST_SHOWN]))
    found.append(("effect", said.applied or "not done yet: the platform is at it"))
    return found


def _to_do(row: UnknownRow, key: KeyStanding | None) -> str:
    outcome = row.outcome
    if row.resolution is not None:
        if row.resolution.verdict is Verdict.RETRY:
            return f"  Should it not have been sent: reach outcomes resolve {outcome.reach_id} retry --again"
        return ""
    if key is not None and key.state == "done":
        return f"  It is known now. Close it: reach outcomes resolve {outcome.reach_id} executed"
    if key is not None and key.lives:
        return f"  {key.owner} is still at it. Wait for it, then look again."
    where = outcome.provider or outcome.capability
    return (
        f"  Check, at what {where} writes to, whether this was done; then say so:\n"
        f"    reach outcomes resolve {outcome.reach_id} executed --result JSON\n"
        f"    reach outcomes resolve {outcome.reach_id} not-executed\n"
        f"    reach outcomes resolve {outcome.reach_id} retry"
    )


def _time(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(sep=" ", timespec="milliseconds")[:23] + " UTC"
