"""What commands print, and for whom.

People get tables and sentences, programs get JSON; results go to stdout, what is said about them to stderr, so
that `reach call … | jq` and `reach call … > file` just work. Colour, width and progress depend on whether the
stream is a terminal; NO_COLOR is obeyed. Nothing here knows what a command does.
"""

from __future__ import annotations

import base64
import json
import math
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime
from typing import TYPE_CHECKING, Any, TextIO

from reach.cli.exits import Refusal
from reach.faults import Advice, Executed, fault
from reach.wire import codec
from reach.wire.reply import Failure, Reply

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

_WIDE = 4096
"""Columns of what is not a terminal: a table for `grep` must not be folded."""

_ADVICE = {
    Advice.FIX_PARAMS: "change the parameters: `reach caps CAPABILITY` shows what they are",
    Advice.WAIT: "wait a moment, then try again",
    Advice.TRY_OTHER: "do not change the parameters; use another way: `reach caps` shows what there is",
    Advice.ASK_HUMAN: "a person has to look at this",
    Advice.GIVE_UP: "leave it",
}
_EXECUTED = {
    Executed.NO: "nothing was done",
    Executed.MAYBE: "it is not known whether it was done",
    Executed.YES: "it ran, and then failed",
}


def language(env: Mapping[str, str] = os.environ) -> str:
    """Give the language of messages (`en` or `zh`): REACH_LANG, else the locale's, as POSIX orders them."""
    for name in ("REACH_LANG", "LC_ALL", "LC_MESSAGES", "LANG"):
        if value := env.get(name, ""):
            return "zh" if value.lower().startswith("zh") else "en"
    return "en"


def console(stream: TextIO) -> Console:
    """Give rich's console on a stream. It is made anew each time: tests and pagers replace the streams."""
    from rich.console import Console

    width = None if stream.isatty() else _WIDE
    made = Console(file=stream, width=width, highlight=False, soft_wrap=not stream.isatty(), emoji=False)
    vars(made)["on_broken_pipe"] = _reader_left
    return made


def _reader_left() -> None:
    """In place of rich's own, which would exit with 1: the edge of every command knows what this means."""
    raise BrokenPipeError


def say(text: str = "", *, style: str = "") -> None:
    """Tell a person something, on stderr. `text` is plain: brackets in it are not markup."""
    from rich.text import Text

    console(sys.stderr).print(Text(text, style=style))


def show(renderable: RenderableType) -> None:
    """Print a table or the like as a result, on stdout."""
    console(sys.stdout).print(renderable)


def line(text: str) -> None:
    """Print one line as a result, on stdout, at once."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def grid(columns: Sequence[str], rows: Iterable[Sequence[RenderableType]]) -> RenderableType:
    """Give a table without lines, for eyes and for `awk` alike; columns named `…#` are numbers."""
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 3, 0, 0))
    for column in columns:
        numeric = column.endswith("#")
        table.add_column(
            column.removesuffix("#").upper(), justify="right" if numeric else "left", overflow="fold"
        )
    for row in rows:
        table.add_row(*row)
    return table


# ------------------------------------------------------------------------------------------------------ JSON


def jsonable(value: Any) -> Any:
    """Give the form of a value in JSON: bytes as `{"$bytes": base64}`, everything else as on the wire."""
    if isinstance(value, bytes):
        return {"$bytes": base64.b64encode(value).decode()}
    if isinstance(value, date | datetime):
        return value.isoformat()
    return codec.plain(value)


def compact(value: Any) -> str:
    """Give JSON in one line, as JSON lines need it."""
    return _dump(value, indent=None)


def _dump(value: Any, *, indent: int | None) -> str:
    """Give JSON; numbers that have no form in it (NaN, infinities) as their names in text."""
    separators = (",", ":") if indent is None else (",", ": ")
    try:
        return json.dumps(
            value,
            default=jsonable,
            ensure_ascii=False,
            separators=separators,
            indent=indent,
            allow_nan=False,
        )
    except ValueError:
        return json.dumps(
            _finite(value), default=jsonable, ensure_ascii=False, separators=separators, indent=indent
        )


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


def print_json(value: Any) -> None:
    """Print a JSON document on stdout: indented for eyes, one line for programs."""
    if sys.stdout.isatty():
        from rich.json import JSON

        console(sys.stdout).print(JSON(_dump(value, indent=2), indent=2, ensure_ascii=False))
    else:
        line(compact(value))


def print_result(value: Any) -> None:
    """Print what a capability returned: text as it is, bytes as bytes, everything else as JSON."""
    if isinstance(value, str):
        line(value)
    elif isinstance(value, bytes):
        if sys.stdout.isatty():
            say(f"{len(value)} bytes. To keep them: reach call … > FILE")
        else:
            sys.stdout.flush()
            sys.stdout.buffer.write(value)
            sys.stdout.buffer.flush()
    elif sys.stdout.isatty():
        print_json(value)
    else:
        line(_dump(value, indent=2))


# -------------------------------------------------------------------------------------------------- failures


def message_of(failure: Failure, *, lang: str) -> str:
    """Give a failure's message in a language; what the table cannot translate follows as it came."""
    row = fault(failure.reason, failure.code)
    if lang == "en" or failure.message == row.zh:
        return failure.message
    own = failure.message.removeprefix(row.en).strip()
    return f"{row.message(lang)} {own}" if own else row.message(lang)


def print_failure(failure: Failure, *, reach_id: str | None, hints: Sequence[str] = ()) -> None:
    """Tell a person about a failed call: what, what to do, whether it was executed, and how to look it up."""
    from rich.text import Text

    out = console(sys.stderr)
    head = Text("✘ ", style="bold red")
    head.append(f"{failure.code}/{failure.reason}", style="bold")
    head.append(f"  {message_of(failure, lang=language())}")
    out.print(head)
    facts = [
        ("advice", f"{failure.advice}: {_ADVICE[failure.advice]}"),
        ("executed", f"{failure.executed}: {_EXECUTED[failure.executed]}"),
    ]
    if failure.cause:
        facts.append(("cause", failure.cause))
    if failure.retry_after_ms is not None:
        facts.append(("retry in", f"{failure.retry_after_ms / 1000:g} s"))
    if failure.limit:
        facts.append(("limit", limit_text(failure.limit)))
    if reach_id:
        facts.append(("reach_id", reach_id))
    facts += [("next", hint) for hint in hints]
    for name, value in facts:
        out.print(Text(f"  {name:<9} ", style="dim").append(value, style="none"))


def limit_text(limit: Mapping[str, Any]) -> str:
    """Say which limit refused a call (behaviour ERR-6): its name, whose, how much is used, when it resets."""
    text = str(limit.get("name", "limit"))
    if owner := limit.get("owner"):
        text += f" of {owner}"
    if (allowed := limit.get("allowed")) is not None:
        text += f": {limit.get('used', '?')} of {allowed} used"
    if (resets := limit.get("resets_in_ms")) is not None:
        text += f", resets in {resets / 1000:g} s"
    return text


def print_route(reply: Reply) -> None:
    """Tell how a reply came about, for `--verbose`."""
    facts = [
        f"provider {reply.provider or '-'}",
        f"instance {reply.instance or '-'}",
        f"attempt {reply.attempt}",
        f"{reply.latency_ms:.1f} ms",
    ]
    if reply.degraded:
        facts.append(f"degraded (level {reply.degrade_level})")
    facts += [name for name in ("cached", "stale", "duplicate", "retried") if getattr(reply, name)]
    if reply.notice:
        facts.append(reply.notice)
    if reply.reach_id:
        facts.append(reply.reach_id)
    say(" · ".join(facts), style="dim")


def print_refusal(refusal: Refusal) -> None:
    """Tell why a command ended, and what would be right."""
    from rich.text import Text

    out = console(sys.stderr)
    out.print(Text("✘ ", style="bold red").append(refusal.message, style="none"))
    if refusal.fix:
        out.print(Text("  " + refusal.fix.replace("\n", "\n  "), style="dim"))


def print_refusal_json(refusal: Refusal) -> None:
    """Tell a program why a command ended."""
    line(compact({"ok": False, "exit": int(refusal.code), "message": refusal.message, "fix": refusal.fix}))


def plural(count: int, noun: str) -> str:
    """Give `1 line`, `2 lines`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def sentence(text: str) -> str:
    """Give a message as a sentence: a capital in front, unless it begins with a name, a full stop at the end."""
    first = text.partition(" ")[0].replace("'", "")
    head = text[:1].upper() if first.isalpha() else text[:1]
    return head + text[1:] + ("" if text.endswith((".", "!", "?", ":")) else ".")


def age(seconds: float) -> str:
    """Give a span of time as people say it: `12s`, `5m 3s`, `2h 5m`, `3d 4h`."""
    whole = max(0, int(seconds))
    parts = ((whole // 86400, "d"), (whole // 3600 % 24, "h"), (whole // 60 % 60, "m"), (whole % 60, "s"))
    first = next((at for at, (count, _) in enumerate(parts) if count), len(parts) - 1)
    return " ".join(
        f"{count}{unit}" for count, unit in parts[first : first + 2] if count or len(parts) - 1 == first
    )
