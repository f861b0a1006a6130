"""`reach call` and `reach stream`: one call from the shell.

The result goes to stdout as the capability gave it; a failure goes to stderr with what is known and what to do,
and its kind becomes the exit code. With `--json` all of it is one document (or JSON lines) on stdout.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from reach.cli import options as opt
from reach.cli.dial import open_bus, run
from reach.cli.exits import exit_of

if TYPE_CHECKING:
    from reach.call.options import CallOptions
    from reach.wire.reply import Failure, Reply

CALL_EXAMPLES = (
    ("Text parameters", "reach call greet name=Ada"),
    ("JSON parameters: numbers, lists, objects", "reach call sum numbers:='[1, 2, 3]'"),
    ("A file as bytes", "reach call invoice.extract content=@invoice.pdf"),
    ("JSON from a file", "reach call order.place order:=@order.json"),
    ("All parameters from stdin", """echo '{"name": "Ada"}' | reach call greet -"""),
    ("At most two seconds, and show the way taken", "reach call greet name=Ada --timeout 2 --verbose"),
    ("For programs", "reach call greet name=Ada --json | jq .data"),
)
STREAM_EXAMPLES = (
    ("Print the parts as they come", "reach stream report.write topic=harbours"),
    ("JSON lines, with how it ended as the last one", "reach stream report.write topic=harbours --json"),
)

ParamArguments = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="KEY=VALUE",
        help="key=text, key:=json, key=@file (bytes), key:=@file.json, one JSON object, or - for one on stdin.",
        show_default=False,
    ),
]


def call(
    capability: opt.Capability,
    arguments: ParamArguments = None,
    *,
    params: opt.Params = None,
    timeout: opt.Timeout = None,
    target: opt.Target = None,
    require: opt.Require = None,
    prefer: opt.Prefer = None,
    key: opt.Key = None,
    priority: opt.Priority = None,
    session: opt.Session = None,
    no_retry: opt.NoRetry = False,
    url: opt.Url = None,
    verbose: opt.Verbose = False,
    as_json: opt.AsJson = False,
) -> None:
    """Call a capability and print its result.

    Text and files are printed as they are, everything else as JSON; a failure goes to stderr.
    """
    given = _parameters(arguments, params)
    chosen = call_options(
        timeout=timeout,
        target=target,
        require=require,
        prefer=prefer,
        key=key,
        priority=priority,
        session=session,
        no_retry=no_retry,
    )
    run(_call(capability, given, chosen, url=url, verbose=verbose, as_json=as_json))


def stream(
    capability: opt.Capability,
    arguments: ParamArguments = None,
    *,
    params: opt.Params = None,
    timeout: opt.Timeout = None,
    target: opt.Target = None,
    require: opt.Require = None,
    prefer: opt.Prefer = None,
    key: opt.Key = None,
    priority: opt.Priority = None,
    session: opt.Session = None,
    url: opt.Url = None,
    as_json: opt.AsJson = False,
) -> None:
    """Call a capability that answers in parts; print them as they come.

    Parts that are text are joined as they are, others are printed one JSON document a line. Ctrl-C cancels the
    call at the agent, too.
    """
    given = _parameters(arguments, params)
    chosen = call_options(
        timeout=timeout,
        target=target,
        require=require,
        prefer=prefer,
        key=key,
        priority=priority,
        session=session,
    )
    run(_stream(capability, given, chosen, url=url, as_json=as_json))


def call_options(
    *,
    timeout: str | None = None,
    target: str | None = None,
    require: list[str] | None = None,
    prefer: list[str] | None = None,
    key: str | None = None,
    priority: str | None = None,
    session: str | None = None,
    no_retry: bool = False,
) -> CallOptions:
    """Turn what was typed into options of a call. Raises `Refusal`."""
    from reach.cli.params import duration, pairs

    chosen: CallOptions = {}
    if timeout is not None:
        chosen["timeout_s"] = duration(timeout, option="--timeout")
    if target is not None:
        chosen["target"] = target
    if (required := pairs(require or (), option="--require")) is not None:
        chosen["require"] = required
    if (preferred := pairs(prefer or (), option="--prefer")) is not None:
        chosen["prefer"] = preferred
    if key is not None:
        chosen["idempotency_key"] = key
    if (ranked := priority_of(priority)) is not None:
        chosen["priority"] = ranked
    if session is not None:
        chosen["session_id"] = session
    if no_retry:
        chosen["retry"] = False
    return chosen


def priority_of(text: str | None) -> Literal["core", "normal", "offline"] | None:
    """Read a `--priority`. Raises `Refusal`."""
    match text:
        case None | "core" | "normal" | "offline":
            return text
        case _:
            from reach.cli.exits import usage

            message = f"--priority {text!r} is none."
            raise usage(message, fix="Right would be: --priority core, normal or offline")


def hints(capability: str, failure: Failure, *, reach_id: str | None = None) -> tuple[str, ...]:
    """Say which command goes on from a failure."""
    from reach.faults import Code, Reason

    if failure.reason is Reason.OUTCOME_UNKNOWN and reach_id is not None:
        return (f"reach outcomes show {reach_id}",)
    if failure.reason in {Reason.NO_RESPONDERS, Reason.DEADLINE, Reason.DISCONNECTED}:
        return (f"reach doctor {capability}",)
    if failure.reason is Reason.NOT_FOUND and failure.code is Code.SCHEMA_INVALID:
        return ("reach caps",)
    if failure.reason is Reason.SCHEMA:
        return (f"reach caps {capability}",)
    if failure.reason is Reason.AUTH_DENIED:
        return ("reach doctor",)
    return ()


def _parameters(arguments: list[str] | None, params: str | None) -> dict[str, Any]:
    from reach.cli.params import parse

    return parse(arguments or (), params=params, read_stdin=sys.stdin.buffer.read)


async def _call(
    capability: str,
    params: dict[str, Any],
    chosen: CallOptions,
    *,
    url: str | None,
    verbose: bool,
    as_json: bool,
) -> None:
    async with open_bus(url) as bus:
        try:
            reply = await bus.request(capability, params, **chosen)
        except ValueError as error:
            raise _usage(error) from None
    print_reply(capability, reply, verbose=verbose, as_json=as_json)


def print_reply(capability: str, reply: Reply, *, verbose: bool, as_json: bool) -> None:
    """Print what a call gave. Raises `typer.Exit` where it failed."""
    from reach.cli import output
    from reach.faults import Reason
    from reach.wire.reply import Failure

    failure = None if reply.ok else reply.error or Failure.of(Reason.UNMAPPED)
    if as_json:
        output.print_json(reply.to_map(full=True))
    elif failure is None:
        output.print_result(reply.data)
    else:
        output.print_failure(
            failure, reach_id=reply.reach_id, hints=hints(capability, failure, reach_id=reply.reach_id)
        )
    if verbose:
        output.print_route(reply)
    if failure is not None:
        raise typer.Exit(exit_of(failure))


async def _stream(
    capability: str, params: dict[str, Any], chosen: CallOptions, *, url: str | None, as_json: bool
) -> None:
    from reach.cli import output
    from reach.errors import ReachError
    from reach.wire.reply import Failure

    failure: Failure | None = None
    reach_id: str | None = None
    count = 0
    printer = PartPrinter(as_json=as_json)
    async with open_bus(url) as bus:
        try:
            async for part in bus.stream(capability, params, **chosen):
                count += 1
                printer.part(count, part)
        except ReachError as error:
            failure, reach_id = Failure.of_error(error), error.reach_id
        except ValueError as error:
            raise _usage(error) from None
    printer.end()
    if as_json:
        ending = {"ok": failure is None, "parts": count, "error": failure and failure.to_map()}
        output.line(output.compact({**ending, "reach_id": reach_id}))
    elif failure is not None:
        output.print_failure(failure, reach_id=reach_id, hints=hints(capability, failure, reach_id=reach_id))
    if failure is not None:
        raise typer.Exit(exit_of(failure))


class PartPrinter:
    """Prints the parts of a stream at once: text joined, bytes raw, everything else a line each."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._open_line = False

    def part(self, number: int, value: Any) -> None:
        """Print one part."""
        from reach.cli import output

        if self._as_json:
            output.line(output.compact({"part": number, "data": value}))
        elif isinstance(value, str):
            sys.stdout.write(value)
            sys.stdout.flush()
            self._open_line = not value.endswith("\n")
        elif isinstance(value, bytes):
            self.end()
            output.print_result(value)
        else:
            self.end()
            output.line(output.compact(value))

    def end(self) -> None:
        """Close a line that is open."""
        if self._open_line:
            sys.stdout.write("\n")
            sys.stdout.flush()
            self._open_line = False


def _usage(error: ValueError) -> Exception:
    """A name, value or option that the bus refused before it sent anything."""
    from reach.cli.exits import usage

    return usage(str(error))
