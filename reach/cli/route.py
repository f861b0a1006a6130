"""`reach route set`, `canary`, `open`, `close`, `disable`, `resync`: change where calls go.

Each is one command to the supervisor, which checks it, does it, tells all callers within a second, and writes down
who wanted it and why. With `--dry-run` it only says what would follow. Looking is `reach.cli.route_look`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from reach.cli import options as opt
from reach.cli.completion import complete_agent
from reach.cli.dial import open_bus, run
from reach.cli.exits import usage

if TYPE_CHECKING:
    from reach.wire.registration import RouteAnswer, RouteCommand, RouteVerb
    from reach.wire.route import Canary

SET_EXAMPLES = (
    ("Half of the usual to one agent", "reach route set invoice.extract legacy-ocr=0.5"),
    ("Nothing to it, and see first what follows", "reach route set invoice.extract legacy-ocr=0 --dry-run"),
    ("At most 20 calls at once", "reach route set invoice.extract --limit legacy-ocr=20"),
    (
        "The same document always to the same instance",
        "reach route set invoice.extract --strategy consistent_hash --key file_url",
    ),
    ("Do not look at cost here", "reach route set invoice.extract --terms-off cost"),
)
CANARY_EXAMPLES = (
    ("5 % of the calls to version 2.4.0", "reach route canary invoice.extract 5% --version 2.4.0"),
    ("10 % to what carries a label", "reach route canary invoice.extract 10% --label pool=new"),
    (
        "Nobody but one caller",
        "reach route canary invoice.extract 0% --version 2.4.0 --caller finance-checker",
    ),
    ("End it: all instances alike", "reach route canary invoice.extract off"),
)
OPEN_EXAMPLES = (
    (
        "Keep calls away from one agent",
        'reach route open invoice.extract legacy-ocr --reason "garbled totals"',
    ),
    ("See first what follows", "reach route open invoice.extract legacy-ocr --dry-run"),
)
CLOSE_EXAMPLES = (("Let calls through again", "reach route close invoice.extract legacy-ocr"),)
DISABLE_EXAMPLES = (
    ("A breaker that judges nothing, until `close`", "reach route disable invoice.extract legacy-ocr"),
)
RESYNC_EXAMPLES = (
    ("Rebuild the table from the instances that answer", "reach route resync"),
    ("How many would be asked", "reach route resync --dry-run"),
)

Provider = Annotated[
    str,
    typer.Argument(metavar="AGENT", help="Whose lane.", show_default=False, autocompletion=complete_agent),
]


# ------------------------------------------------------------------------------------------------ settings


def set_(
    capability: opt.Capability,
    weights: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="AGENT=WEIGHT",
            help="How much of the traffic: 1 is usual, 0.5 half of that, 0 none.",
            show_default=False,
        ),
    ] = None,
    *,
    limit: Annotated[
        list[str] | None,
        typer.Option(
            "--limit",
            metavar="AGENT=N",
            help="At most so many calls at once, for each caller; none ends it; repeatable.",
        ),
    ] = None,
    strategy: Annotated[
        str | None,
        typer.Option(
            "--strategy",
            metavar="NAME",
            help="How an instance is picked: pool (NATS picks), round_robin, random, consistent_hash, "
            "least_loaded, local_first, static, or one of your own.",
        ),
    ] = None,
    key: Annotated[
        str | None,
        typer.Option(
            "--key", metavar="PARAMETER", help="With consistent_hash: what calls are told apart by."
        ),
    ] = None,
    share: Annotated[
        list[str] | None,
        typer.Option(
            "--share",
            metavar="AGENT=WEIGHT|LABEL:VALUE=WEIGHT",
            help="With static: an agent's part, or that of all instances with a label; repeatable.",
        ),
    ] = None,
    terms_off: Annotated[
        str | None,
        typer.Option(
            "--terms-off",
            metavar="TERM,…",
            help="Terms of the weight that count for nothing: traffic, match, health, cost, capacity, quality; "
            "none turns all of them on.",
        ),
    ] = None,
    reset_quality: Annotated[
        list[str] | None,
        typer.Option(
            "--reset-quality",
            metavar="AGENT",
            help="Forget how well it did over the last day; repeatable.",
            autocompletion=complete_agent,
        ),
    ] = None,
    dry_run: opt.DryRun = False,
    reason: opt.Reason = None,
    by: opt.By = None,
    url: opt.Url = None,
    as_json: opt.AsJson = False,
) -> None:
    """Set weights, limits, and how instances are picked. What is not named stays as it is."""
    from reach.cli import route_typed as typed
    from reach.wire.registration import RouteVerb, SetRoute

    if not (weights or limit or strategy or key or share or terms_off or reset_quality):
        raise usage(
            "Nothing was said to be set.", fix=f"Right would be: reach route set {capability} AGENT=0.5"
        )
    limits, limits_off = typed.limits(limit or ())
    command = SetRoute(
        **_signed(by, reason, dry_run),
        capability=_capability(capability),
        weights=typed.weights(weights or ()),
        limits=limits,
        limits_off=limits_off,
        strategy=typed.strategy(strategy, key=key, shares=share or ()),
        terms_off=typed.terms(terms_off),
        reset_quality=tuple(reset_quality or ()),
    )
    _change(RouteVerb.SET, command, url=url, as_json=as_json)


def canary(
    capability: opt.Capability,
    percent: Annotated[
        str,
        typer.Argument(
            metavar="PERCENT|off", help="Their part of the calls: 5% or 5; off ends it.", show_default=False
        ),
    ],
    *,
    version: Annotated[
        str | None,
        typer.Option("--version", metavar="VERSION", help="Instances of this version are tried out."),
    ] = None,
    label: Annotated[
        list[str] | None,
        typer.Option("--label", metavar="K=V", help="Instances with this label are tried out; repeatable."),
    ] = None,
    caller: Annotated[
        list[str] | None,
        typer.Option("--caller", metavar="NAME", help="Who always goes to them; repeatable."),
    ] = None,
    dry_run: opt.DryRun = False,
    reason: opt.Reason = None,
    by: opt.By = None,
    url: opt.Url = None,
    as_json: opt.AsJson = False,
) -> None:
    """Try some instances out with a part of the calls, for all callers, plain NATS clients included."""
    from reach.wire.registration import RouteVerb, SetCanary

    command = SetCanary(
        **_signed(by, reason, dry_run),
        capability=_capability(capability),
        canary=_canary(percent, version=version, label=label or [], caller=caller or []),
    )
    _change(RouteVerb.CANARY, command, url=url, as_json=as_json)


def _canary(percent: str, *, version: str | None, label: list[str], caller: list[str]) -> Canary | None:
    from reach.cli import route_typed as typed
    from reach.cli.params import pairs
    from reach.wire.route import Canary

    if percent == "off":
        if version is not None or label or caller:
            raise usage("off ends the canary for everybody: it goes without --version, --label and --caller.")
        return None
    if version is None and not label:
        raise usage(
            "Which instances are to be tried out was not said.",
            fix="Right would be: --version 2.4.0, or --label pool=new",
        )
    return Canary(
        version=version,
        labels=pairs(label, option="--label") or {},
        percent=typed.percent(percent),
        callers=tuple(caller),
    )


# ------------------------------------------------------------------------------------------------ lanes


def open_(
    capability: opt.Capability,
    agent: Provider,
    *,
    dry_run: opt.DryRun = False,
    reason: opt.Reason = None,
    by: opt.By = None,
    url: opt.Url = None,
    as_json: opt.AsJson = False,
) -> None:
    """Hold a lane's breaker open: no calls go to this agent for this capability until `close`.

    The other lanes of its tier take its share, then the next tier; where there is none, calls fail at once.
    """
    _set_breaker("open", capability, agent, dry_run=dry_run, reason=reason, by=by, url=url, as_json=as_json)


def close(
    capability: opt.Capability,
    agent: Provider,
    *,
    dry_run: opt.DryRun = False,
    reason: opt.Reason = None,
    by: opt.By = None,
    url: opt.Url = None,
    as_json: opt.AsJson = False,
) -> None:
    """Close a lane's breaker, whoever opened it, and end `disable`. From then on it judges again."""
    _set_breaker("close", capability, agent, dry_run=dry_run, reason=reason, by=by, url=url, as_json=as_json)


def disable(
    capability: opt.Capability,
    agent: Provider,
    *,
    dry_run: opt.DryRun = False,
    reason: opt.Reason = None,
    by: opt.By = None,
    url: opt.Url = None,
    as_json: opt.AsJson = False,
) -> None:
    """Let a lane's breaker judge nothing, until `close`: calls go there however many fail."""
    _set_breaker(
        "disable", capability, agent, dry_run=dry_run, reason=reason, by=by, url=url, as_json=as_json
    )


def resync(
    *,
    dry_run: opt.DryRun = False,
    reason: opt.Reason = None,
    by: opt.By = None,
    url: opt.Url = None,
    as_json: opt.AsJson = False,
) -> None:
    """Rebuild the table from the instances that answer. What operators set stays; no call is lost by it."""
    from reach.wire.registration import Resync, RouteVerb

    _change(RouteVerb.RESYNC, Resync(**_signed(by, reason, dry_run)), url=url, as_json=as_json)


def _set_breaker(
    verb: str,
    capability: str,
    agent: str,
    *,
    dry_run: bool,
    reason: str | None,
    by: str | None,
    url: str | None,
    as_json: bool,
) -> None:
    from reach.wire.registration import RouteVerb, SetBreaker

    command = SetBreaker(**_signed(by, reason, dry_run), capability=_capability(capability), provider=agent)
    _change(RouteVerb(verb), command, url=url, as_json=as_json)


# ------------------------------------------------------------------------------------------------ asking


def _signed(by: str | None, reason: str | None, dry_run: bool) -> dict[str, Any]:
    from reach.cli.supervisor import operator

    return {"by": by or operator(), "reason": reason or "", "dry_run": dry_run}


def _capability(text: str) -> str:
    from reach.wire import names

    return names.capability(text)


def _change(verb: RouteVerb, command: RouteCommand, *, url: str | None, as_json: bool) -> None:
    """Have it done, and tell what became of it."""
    from reach.cli import output
    from reach.cli.route_shown import changed

    answer = run(_order(verb, command, url=url))
    if as_json:
        output.print_json(answer.model_dump(mode="json"))
    else:
        output.show(changed(answer))


async def _order(verb: RouteVerb, command: RouteCommand, *, url: str | None) -> RouteAnswer:
    from reach.cli import supervisor

    async with open_bus(url) as bus:
        return await supervisor.order(bus.connection, verb, command)
