"""`reach ps`: the instances that are there: how they stand, what they hold, how busy they are.

The supervisor says how each stands and why; the agents say themselves, over NATS's service API, how long they are up
and how many calls they had. Without a supervisor there are only the agents' own words.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from reach.cli import options as opt
from reach.cli.completion import complete_agent
from reach.cli.dial import run
from reach.cli.look import View, look

if TYPE_CHECKING:
    from rich.console import RenderableType

    from reach.call.client import Bus
    from reach.cli.roster import Present
    from reach.wire.registration import InstanceRow

EXAMPLES = (
    ("All instances", "reach ps"),
    ("Those of one agent, followed each second", "reach ps billing --watch"),
    (
        "Who does not take its full share, and why",
        """reach ps --json | jq '.[] | select(.state != "live")'""",
    ),
)

_SHOWN_TAGS = 3


@dataclass(frozen=True, slots=True)
class Instance:
    """One instance as two see it: the supervisor (`row`) and itself (`present`); at least one does."""

    row: InstanceRow | None
    present: Present | None

    @property
    def name(self) -> str:
        """The instance."""
        return self.row.instance if self.row is not None else self._self.card.instance

    @property
    def agent_id(self) -> str:
        """Its agent."""
        return self.row.agent_id if self.row is not None else self._self.card.agent_id

    @property
    def _self(self) -> Present:
        if self.present is None:
            raise ValueError("an instance is seen by the supervisor or says itself that it is there")
        return self.present

    @property
    def version(self) -> str:
        """Its version."""
        return self.row.version if self.row is not None else self._self.card.version

    @property
    def generation(self) -> int:
        """Its start in epoch milliseconds."""
        return self.row.generation if self.row is not None else self._self.card.generation

    @property
    def capabilities(self) -> list[str]:
        """What it serves; tasks too, where it says so itself."""
        if self.present is not None:
            return [one.tag for one in self.present.card.capabilities]
        return sorted(self.row.weights) if self.row is not None else []

    @property
    def inflight(self) -> int | None:
        """Calls in work: its own word is newer than its last heartbeat."""
        if self.present is not None and self.present.inflight is not None:
            return self.present.inflight
        return None if self.row is None else self.row.inflight

    @property
    def uptime_s(self) -> float:
        """How long it is up."""
        if self.present is not None:
            return self.present.uptime_s
        return max(0.0, time.time() - self.generation / 1000)

    def to_map(self) -> dict[str, Any]:
        """Give it for programs; what only a supervisor or the instance knows is null where it is not known."""
        row, present = self.row, self.present
        card = None if present is None else present.card
        return {
            "agent": self.agent_id,
            "instance": self.name,
            "version": self.version,
            "owner": None if card is None else card.owner,
            "region": row.region if row is not None else self._self.card.region,
            "labels": row.labels if row is not None else self._self.card.labels,
            "capabilities": self.capabilities,
            "generation": self.generation,
            "uptime_s": round(self.uptime_s, 1),
            "state": None if row is None else row.state,
            "why": None if row is None else row.why,
            "ready": None if row is None else row.ready,
            "weights": None if row is None else row.weights,
            "tickets": None if row is None else row.tickets,
            "heard_s": None if row is None or row.heard_s is None else round(row.heard_s, 1),
            "inflight": self.inflight,
            "queue": None if row is None else row.queue,
            "cpu": None if row is None else round(row.cpu, 3),
            "rss_bytes": None if row is None else row.rss_bytes,
            "loop_lag_ms": None if row is None else round(row.loop_lag_ms, 1),
            "requests": None if present is None else present.requests,
            "errors": None if present is None else present.errors,
        }


def ps(
    agent: Annotated[
        str | None,
        typer.Argument(
            metavar="AGENT",
            help="Only instances of this agent.",
            show_default=False,
            autocompletion=complete_agent,
        ),
    ] = None,
    watch: opt.Watch = False,
    url: opt.Url = None,
    as_json: opt.AsJson = False,
) -> None:
    """Show the instances that are there: state, weight, tickets, load, version, and what they serve.

    Weight is an instance's share relative to its neighbours (1 is usual); tickets are its places in the queue group,
    by which NATS divides calls. Where either differs between capabilities, lowest and highest are shown.
    """

    async def take(bus: Bus) -> View:
        return await _instances(bus, agent)

    run(look(take, url=url, watch=watch, as_json=as_json))


async def _instances(bus: Bus, agent: str | None) -> View:
    from reach.cli import supervisor
    from reach.cli.roster import read_present

    rows, present = await asyncio.gather(
        supervisor.instances(bus.connection, agent_id=agent), read_present(bus.connection)
    )
    found = together(rows or (), (one for one in present if agent in {None, one.card.agent_id}))
    note = "" if rows is not None else f"{supervisor.NOBODY_LEADS}: this is what the agents say themselves."
    return View([one.to_map() for one in found], _table(found, agent=agent, led=rows is not None), note)


def together(rows: Iterable[InstanceRow], present: Iterable[Present]) -> list[Instance]:
    """Put what the supervisor and what the instances say side by side, in order of names."""
    said = {one.card.instance: one for one in present}
    found = [Instance(row, said.pop(row.instance, None)) for row in rows]
    found += [Instance(None, one) for one in said.values()]
    return sorted(found, key=lambda one: (one.agent_id, one.name))


def _table(found: list[Instance], *, agent: str | None, led: bool) -> RenderableType:
    from reach.cli import output

    if not found:
        who = "No instance" if agent is None else f"No instance of {agent}"
        return f"{who} is there. Start an agent: reach run module:agent"
    whys = any(one.row is not None and one.row.why for one in found)
    columns = ("instance", "version", "state", "weight#", "tickets#", "in work#", "cpu#", "up#", "calls#")
    rows = [[*_line(one, led=led), *([_why(one)] if whys else ())] for one in found]
    return output.grid((*columns, "errors#", "serves", *(("why",) if whys else ())), rows)


def _line(one: Instance, *, led: bool) -> list[RenderableType]:
    from reach.cli import output

    row, present = one.row, one.present
    return [
        one.name,
        one.version,
        _state(one, led=led),
        "-" if row is None else spread(row.weights),
        "-" if row is None else spread({tag: row.tickets.get(tag, 0) for tag in row.weights}),
        _load(one),
        "-" if row is None else f"{row.cpu:.0%}",
        output.age(one.uptime_s),
        "-" if present is None else str(present.requests),
        "-" if present is None else str(present.errors),
        _serves(one),
    ]


def _state(one: Instance, *, led: bool) -> RenderableType:
    from rich.text import Text

    if one.row is None:
        return Text("unknown", style="yellow") if led else "-"
    return Text(one.row.state, style=_STYLES.get(one.row.state, "yellow"))


_STYLES = {"live": "green", "unavailable": "red", "fenced": "red", "left": "dim"}


def _why(one: Instance) -> str:
    return "" if one.row is None else one.row.why


def _load(one: Instance) -> str:
    if one.inflight is None:
        return "-"
    queued = 0 if one.row is None else one.row.queue
    return f"{one.inflight}+{queued}" if queued else str(one.inflight)


def _serves(one: Instance) -> str:
    tags = one.capabilities
    more = f" +{len(tags) - _SHOWN_TAGS}" if len(tags) > _SHOWN_TAGS else ""
    return ", ".join(tags[:_SHOWN_TAGS]) + more


def spread(numbers: Mapping[str, float]) -> str:
    """Give one number for many capabilities: itself where all agree, else the lowest and the highest."""
    if not numbers:
        return "-"
    low, high = min(numbers.values()), max(numbers.values())
    return f"{low:.3g}" if low == high else f"{low:.3g}–{high:.3g}"
