"""What the platform's tasks actor tells operators, and how it is shown."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from reach.cli import output
from reach.cli.exits import Exit, Refusal
from reach.errors import CallTimeout, Unreachable
from reach.wire import codec
from reach.wire.reply import Failure

if TYPE_CHECKING:
    from rich.console import RenderableType

    from reach.call.client import Bus

_ASK_S = 5.0
_FIX = "`reach up` runs the platform; at a NATS of your own start it beside it."
_STYLES = {
    "completed": "green",
    "failed": "red",
    "dead": "bold red",
    "timed_out": "red",
    "cancelled": "dim",
    "input_required": "bold yellow",
}


async def ask(bus: Bus, verb: str, **asked: Any) -> dict[str, Any]:
    """Ask the tasks actor. Raises `Refusal` where there is none, `ReachError` for what it refuses."""
    body = {name: value for name, value in asked.items() if value is not None}
    try:
        data = await bus.connection.request(f"reach.tasks.{verb}", codec.pack(body), timeout_s=_ASK_S)
    except (Unreachable, CallTimeout):
        message = "Nobody here knows of all tasks: the platform does not answer."
        raise Refusal(Exit.NO_CONNECTION, message, fix=_FIX) from None
    told = codec.unpack(data)
    if told.get("ok") is False and isinstance(told.get("error"), dict):
        raise Failure.from_map(told["error"]).to_error()
    return told


def table(rows: list[dict[str, Any]]) -> RenderableType:
    """Give the list of tasks."""
    from rich.text import Text

    now = time.time()
    columns = ("task", "state", "capability", "try#", "age#", "last#", "says")
    return output.grid(
        columns,
        [
            (
                Text(row["task_id"]),
                Text(row["state"], style=_STYLES.get(row["state"], "")),
                Text(row["capability"]),
                Text(str(row.get("attempt", 0))),
                Text(output.age(now - row["began_at"] / 1000)),
                Text(output.age(now - row["at"] / 1000)),
                Text(says(row)),
            )
            for row in rows
        ],
    )


def says(row: dict[str, Any]) -> str:
    """Say the one thing about a task that matters now."""
    if row["state"] == "scheduled" and "due" in row:
        return f"in {output.age(row['due'] / 1000 - time.time())}"
    if (question := row.get("question")) is not None:
        return f"asks: {question.get('question', '')}"
    if (error := row.get("error")) is not None:
        return f"{error.get('reason', '')}: {error.get('message', '')}"[:100]
    progress = row.get("progress") or {}
    share = progress.get("fraction")
    done = f"{share:.0%} " if isinstance(share, int | float) else ""
    return (done + str(progress.get("message", "")))[:100]


def hooks_table(rows: list[dict[str, Any]]) -> RenderableType:
    """Give the list of callbacks."""
    from rich.text import Text

    def last(row: dict[str, Any]) -> str:
        tries = row.get("tries") or []
        if not tries:
            return ""
        return str(tries[-1].get("error") or tries[-1].get("status") or "")

    return output.grid(
        ("task", "standing", "tries#", "next#", "address", "last"),
        [
            (
                Text(row["task_id"]),
                Text(row["standing"], style="green" if row["standing"] == "delivered" else "yellow"),
                Text(str(row.get("count", 0))),
                Text(
                    output.age(row.get("next_at", 0) / 1000 - time.time())
                    if row["standing"] == "pending"
                    else ""
                ),
                Text(row["url"]),
                Text(last(row)),
            )
            for row in rows
        ],
    )
