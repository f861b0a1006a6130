"""Options that several commands share, each written once, so that they read and behave alike everywhere."""

from __future__ import annotations

from typing import Annotated

import typer

from reach.cli.completion import complete_agent, complete_capability

CALL_OPTIONS = "About the call"
CHANGE_OPTIONS = "About the change"
OUTPUT_OPTIONS = "Output"
CONNECTION_OPTIONS = "Connection"

Url = Annotated[
    str | None,
    typer.Option(
        "--url",
        metavar="URL",
        help="NATS server, instead of REACH_URL or the local server: nats://host:4222.",
        rich_help_panel=CONNECTION_OPTIONS,
    ),
]
AsJson = Annotated[
    bool, typer.Option("--json", help="Print JSON, for programs.", rich_help_panel=OUTPUT_OPTIONS)
]
Verbose = Annotated[
    bool,
    typer.Option(
        "--verbose",
        "-v",
        help="Also tell, on stderr, the way taken: provider, instance, attempt, latency, reach_id.",
        rich_help_panel=OUTPUT_OPTIONS,
    ),
]
Watch = Annotated[bool, typer.Option("--watch", "-w", help="Show it again each second, until Ctrl-C.")]

DryRun = Annotated[
    bool,
    typer.Option("--dry-run", help="Change nothing: say what would follow.", rich_help_panel=CHANGE_OPTIONS),
]
Reason = Annotated[
    str | None,
    typer.Option("--reason", metavar="TEXT", help="Why, for the audit.", rich_help_panel=CHANGE_OPTIONS),
]
By = Annotated[
    str | None,
    typer.Option(
        "--by",
        metavar="NAME",
        help="Who, for the audit; user@host where not given.",
        rich_help_panel=CHANGE_OPTIONS,
    ),
]

Capability = Annotated[
    str,
    typer.Argument(
        metavar="CAPABILITY",
        help="Such as invoice.extract.",
        show_default=False,
        autocompletion=complete_capability,
    ),
]
Timeout = Annotated[
    str | None,
    typer.Option(
        "--timeout",
        "-t",
        metavar="TIME",
        help="The whole call's time: 5 (seconds), 500ms, 2m. The capability's own where not given.",
        rich_help_panel=CALL_OPTIONS,
    ),
]
Target = Annotated[
    str | None,
    typer.Option(
        "--target",
        metavar="AGENT",
        help="Only this agent.",
        rich_help_panel=CALL_OPTIONS,
        autocompletion=complete_agent,
    ),
]
Require = Annotated[
    list[str] | None,
    typer.Option(
        "--require",
        metavar="K=V",
        help="Only agents with this lang, region, version or label; repeatable.",
        rich_help_panel=CALL_OPTIONS,
    ),
]
Prefer = Annotated[
    list[str] | None,
    typer.Option(
        "--prefer",
        metavar="K=V",
        help="Rather agents with this lang, region, version or label; repeatable.",
        rich_help_panel=CALL_OPTIONS,
    ),
]
Key = Annotated[
    str | None,
    typer.Option(
        "--key",
        metavar="KEY",
        help="Idempotency key: the same key is one call, however often it is sent.",
        rich_help_panel=CALL_OPTIONS,
    ),
]
Priority = Annotated[
    str | None,
    typer.Option(
        "--priority",
        metavar="core|normal|offline",
        help="How much it matters when places are scarce.",
        rich_help_panel=CALL_OPTIONS,
    ),
]
Session = Annotated[
    str | None,
    typer.Option(
        "--session", metavar="ID", help="The conversation it belongs to.", rich_help_panel=CALL_OPTIONS
    ),
]
NoRetry = Annotated[bool, typer.Option("--no-retry", help="One attempt only.", rich_help_panel=CALL_OPTIONS)]
Params = Annotated[
    str | None,
    typer.Option(
        "--params", "-p", metavar="JSON", help="""All parameters as one JSON object: '{"amount": 3}'."""
    ),
]
