"""`reach doctor`: everything between a user and a working call, in the order of the way, with what to do.

The checks are in `reach.cli.checks`; here they are put in order, run, and shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from reach.cli import options as opt
from reach.cli.completion import complete_capability
from reach.cli.dial import run
from reach.cli.exits import Exit

if TYPE_CHECKING:
    from reach.cli.checks.finding import Check, Diagnosed, Patient

EXAMPLES = (
    ("From here to NATS and the platform", "reach doctor"),
    ("And on to one capability", "reach doctor invoice.extract"),
    ("For a script or a health check", "reach doctor --json"),
)

_SIGNS = {
    "ok": ("✔", "green"),
    "warning": ("!", "yellow"),
    "failed": ("✘", "bold red"),
    "skipped": ("·", "dim"),
}


def doctor(
    capability: Annotated[
        str | None,
        typer.Argument(
            metavar="CAPABILITY",
            help="Go on to this capability.",
            show_default=False,
            autocompletion=complete_capability,
        ),
    ] = None,
    url: opt.Url = None,
    as_json: opt.AsJson = False,
) -> None:
    """Check the way from here to a working call, and say what to do.

    Nothing is changed and no capability is run. The exit code is 1 when something is wrong.
    """
    diagnosed = run(_diagnose(capability, url=url))
    failed = any(one.finding.state == "failed" for one in diagnosed)
    if as_json:
        from reach.cli import output

        output.print_json({"ok": not failed, "checks": [one.to_map() for one in diagnosed]})
    else:
        _show(diagnosed, capability=capability, failed=failed)
    if failed:
        raise typer.Exit(Exit.FAILED)


async def _diagnose(capability: str | None, *, url: str | None) -> list[Diagnosed]:
    from reach.cli.checks import capability as far
    from reach.cli.checks import here, platform, server
    from reach.cli.checks.finding import Patient, examine
    from reach.wire import names

    checks: list[Check] = [*here.CHECKS, *server.CHECKS, *platform.CHECKS]
    if capability is not None:
        capability = names.capability(capability)
        checks += far.CHECKS
    patient = Patient(url=url, capability=capability)
    try:
        return await examine(patient, checks)
    finally:
        await _release(patient)


async def _release(patient: Patient) -> None:
    if patient.connection is not None:
        await patient.connection.close()


def _show(diagnosed: Sequence[Diagnosed], *, capability: str | None, failed: bool) -> None:
    from rich.text import Text

    from reach.cli import output

    rows = []
    for one in diagnosed:
        sign, style = _SIGNS[one.finding.state]
        found = Text(one.finding.found, style="dim" if one.finding.state == "skipped" else "")
        if one.finding.fix:
            found.append(f"\n→ {one.finding.fix}", style="bold")
        rows.append((Text(sign, style=style), Text(one.check.title), found))
    output.show(output.grid(("", "looked at", "found"), rows))
    if failed:
        return
    output.line("")
    if capability is None:
        output.line("All is well. To go on to one capability: reach doctor CAPABILITY")
    else:
        output.line(f"All is well. What {capability} takes: reach caps {capability}")
