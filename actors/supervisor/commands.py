"""What operators may ask of a supervisor: each command checked, done (or only shown), answered and audited."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeVar

from actors.supervisor.explain import explained, rows
from actors.supervisor.governor import Governor
from actors.supervisor.letters import Letter, Moment
from actors.supervisor.roster import Member
from actors.supervisor.table import Choice
from reach.errors import SchemaInvalid
from reach.faults import Reason
from reach.policy.breaker_state import State
from reach.policy.lease import State as Lease
from reach.policy.tier import Bar
from reach.wire import subjects
from reach.wire.audit import AuditEntry
from reach.wire.registration import (
    COMMANDS,
    DrainInstances,
    DrainOrder,
    Explain,
    ListInstances,
    OrderVerb,
    Resync,
    RouteAnswer,
    RouteCommand,
    RouteVerb,
    SetBreaker,
    SetCanary,
    SetRoute,
    Show,
    read_message,
)
from reach.wire.route import Breaker, RouteEntry, Strategy

_READING: Final = frozenset({RouteVerb.EXPLAIN, RouteVerb.SHOW, RouteVerb.INSTANCES})
"""What changes nothing is not audited."""

MOST_NAMED: Final = 20
"""Instances that a message names."""

C = TypeVar("C", bound=RouteCommand)


@dataclass(frozen=True, slots=True)
class Ask:
    """One command as it came: its verb, and who is governed, and when."""

    verb: RouteVerb
    governor: Governor
    moment: Moment


def obey(
    verb: str, body: dict[str, object], governor: Governor, moment: Moment
) -> tuple[RouteAnswer, AuditEntry | None]:
    """Do what a command says.

    Raises:
        SchemaInvalid: there is no such command, it is not well formed, or it names what is not there.
    """
    try:
        known = RouteVerb(verb)
    except ValueError:
        told = ", ".join(RouteVerb)
        raise SchemaInvalid(f"{verb!r} is no command of the supervisor; there are {told}") from None
    command = read_message(body, COMMANDS[known])
    ask = Ask(known, governor, moment)
    answer = _HANDLERS[known](ask, command)
    answer = answer.model_copy(update={"term": governor.term, "revision": governor.planner.revision})
    return answer, None if known in _READING else _audited(ask, command, answer)


# ------------------------------------------------------------------------------------------ settings


def _set(ask: Ask, command: RouteCommand) -> RouteAnswer:
    command = _as(command, SetRoute)
    _known(ask, command.capability)
    choice = ask.governor.planner.choice(command.capability).copy()
    _check_set(ask, command, choice)
    for provider, weight in command.weights.items():
        choice.weights[provider] = weight
        if weight == 1:
            del choice.weights[provider]
    wanted = choice.limits | command.limits
    choice.limits = {name: limit for name, limit in wanted.items() if name not in command.limits_off}
    if command.strategy is not None:
        choice.strategy = command.strategy
    if command.terms_off is not None:
        choice.terms_off = command.terms_off
    if not command.dry_run:
        for provider in command.reset_quality:
            ask.governor.planner.reset_quality(provider, command.capability)
    return _chosen(ask, command.capability, choice, dry_run=command.dry_run)


def _check_set(ask: Ask, command: SetRoute, choice: Choice) -> None:
    """Refuse what names a lane that is not there. Before anybody serves it a lane may have settings."""
    ended = [provider for provider in command.limits_off if provider not in choice.limits]
    for provider in (*command.weights, *command.limits, *ended):
        _lane(ask, command.capability, provider, may_be_absent=True)
    for provider in command.reset_quality:
        _lane(ask, command.capability, provider)
    if command.strategy is not None:
        _strategy(ask, command.capability, command.strategy)


def _strategy(ask: Ask, capability: str, strategy: Strategy) -> None:
    """Refuse a static split that would pick nobody. A strategy that we do not know is somebody's own."""
    if strategy.name != "static":
        return
    if not any(share.weight for share in strategy.shares):
        raise SchemaInvalid(
            "a static split says the parts: a share of more than 0 for at least one provider or label"
        )
    for share in strategy.shares:
        if share.provider is not None:
            _lane(ask, capability, share.provider, may_be_absent=True)


def _canary(ask: Ask, command: RouteCommand) -> RouteAnswer:
    command = _as(command, SetCanary)
    _known(ask, command.capability)
    canary = command.canary
    if canary is not None and not canary.version and not canary.labels:
        raise SchemaInvalid("a canary names a version or labels: without either nobody belongs to it")
    choice = ask.governor.planner.choice(command.capability).copy()
    choice.canary = canary
    return _chosen(ask, command.capability, choice, dry_run=command.dry_run)


def _chosen(ask: Ask, capability: str, choice: Choice, *, dry_run: bool) -> RouteAnswer:
    """Let an operator's choice hold, or show what it would come to."""
    planner, moment = ask.governor.planner, ask.moment
    before = planner.entries.get(capability)
    if dry_run:
        after = planner.look(capability, moment.now, moment.at_ms, choice=choice, trial=True)
        return RouteAnswer(
            in_force=False,
            message="nothing was changed: this is what it would come to",
            before=before,
            after=after.entry,
            tickets=after.tickets.explain(),
        )
    planner.look(
        capability, moment.now, moment.at_ms, choice=choice, trial=True
    )  # Or it would fail from now on.
    planner.choices[capability] = choice
    done = planner.work_out(capability, moment.now, moment.at_ms)
    return RouteAnswer(
        message=f"holds for {capability}",
        before=before,
        after=planner.entries[capability],
        tickets=done.tickets.explain(),
    )


# ------------------------------------------------------------------------------------------ lanes


def _breaker(ask: Ask, command: RouteCommand) -> RouteAnswer:
    command = _as(command, SetBreaker)
    _lane(ask, command.capability, command.provider)
    serves = ask.governor.planner.serving(command.provider, command.capability)
    if serves not in {None, command.capability}:
        raise SchemaInvalid(
            f"{command.provider!r} serves {command.capability!r} by the more general {serves!r}, and has one breaker "
            f"for both: name {serves!r}"
        )
    breaker = ask.governor.verdicts.breaker((command.provider, command.capability))
    planner, moment = ask.governor.planner, ask.moment
    before = planner.entries.get(command.capability)
    wanted = {
        RouteVerb.OPEN: State.FORCED_OPEN,
        RouteVerb.CLOSE: State.CLOSED,
        RouteVerb.DISABLE: State.DISABLED,
    }[ask.verb]
    told = f"the breaker of {command.provider} for {command.capability}"
    if command.dry_run:
        bar = Bar.FORCED if wanted is State.FORCED_OPEN else None
        supposed = {command.provider: (Breaker(state=wanted.value), bar)}
        plan = planner.look(command.capability, moment.now, moment.at_ms, breakers=supposed, trial=True)
        return RouteAnswer(
            in_force=False,
            message=f"{told} is {breaker.state} and would be {wanted}",
            before=before,
            after=plan.entry,
            tickets=plan.tickets.explain(),
        )
    if wanted is State.FORCED_OPEN:
        breaker.force_open(why=f"{command.by} opened it{': ' if command.reason else ''}{command.reason}")
    elif wanted is State.DISABLED:
        breaker.disable()
    else:
        breaker.force_close(moment.now)
    planner.work_out(command.capability, moment.now, moment.at_ms)
    after = planner.entries[command.capability]
    return RouteAnswer(message=f"{told} is {breaker.state}", before=before, after=after)


# ------------------------------------------------------------------------------------------ instances


def _drain(ask: Ask, command: RouteCommand) -> RouteAnswer:
    command = _as(command, DrainInstances)
    governor = ask.governor
    leases = governor.roster.leases
    named = [
        member
        for member in governor.roster.members.values()
        if command.target in {member.name, member.card.agent_id}
    ]
    found = [member for member in named if leases.weight(member.name)]
    leaving = [member for member in named if leases.state(member.name) is Lease.LEFT]
    if not found and leaving:
        # As a second hook does, or one after a signal: whoever asks wants to know when they have left.
        message = f"{_listed(leaving)} said goodbye before"
        return RouteAnswer(message=message, instances=tuple(rows(governor, leaving, ask.moment)))
    if not found:
        raise SchemaInvalid(
            f"no instance or agent {command.target!r} is there; `reach ps` lists who is",
            reason=Reason.NOT_FOUND,
        )
    told = f"{len(found)} to leave: {_listed(found)}"
    if command.dry_run:
        return RouteAnswer(in_force=False, message=told, instances=tuple(rows(governor, found, ask.moment)))
    for member in found:
        member.draining = True
        governor.roster.watch(member.name)
        governor.planner.touch(member.serves)
        order = DrainOrder(
            term=governor.term,
            revision=governor.orders.next_revision(),
            generation=member.generation,
            secret=governor.seal.secret(member.name, member.generation),
            timeout_s=command.timeout_s,
        )
        subject = subjects.ctl(member.name, OrderVerb.DRAIN)
        governor.outbox.append(Letter(subject, order.model_dump(exclude_none=True)))
    return RouteAnswer(message=told, instances=tuple(rows(governor, [*found, *leaving], ask.moment)))


def _listed(members: list[Member]) -> str:
    names = sorted(member.name for member in members)
    return ", ".join(names[:MOST_NAMED]) + (" …" if len(names) > MOST_NAMED else "")


def _resync(ask: Ask, command: RouteCommand) -> RouteAnswer:
    command = _as(command, Resync)
    there = len(ask.governor.roster.members)
    if command.dry_run:
        return RouteAnswer(in_force=False, message=f"{there} instances would be asked whether they are there")
    ask.governor.resync(ask.moment)
    return RouteAnswer(message=f"{there} known instances, and whoever else answers, are asked who they are")


def _instances(ask: Ask, command: RouteCommand) -> RouteAnswer:
    command = _as(command, ListInstances)
    members = ask.governor.roster.members
    found = [
        members[name]
        for name in sorted(members)
        if name > command.after
        and command.agent_id in {None, members[name].card.agent_id}
        and (command.capability is None or command.capability in members[name].serves)
    ]
    page = rows(ask.governor, found[: command.limit], ask.moment)
    return RouteAnswer(instances=tuple(page), more=len(found) > command.limit)


# ------------------------------------------------------------------------------------------ looking


def _explain(ask: Ask, command: RouteCommand) -> RouteAnswer:
    command = _as(command, Explain)
    _known(ask, command.capability)
    return explained(ask.governor, command, ask.moment)


def _show(ask: Ask, command: RouteCommand) -> RouteAnswer:
    command = _as(command, Show)
    _known(ask, command.capability)
    return RouteAnswer(after=ask.governor.planner.entries.get(command.capability))


_HANDLERS: Final[dict[RouteVerb, Callable[[Ask, RouteCommand], RouteAnswer]]] = {
    RouteVerb.SET: _set,
    RouteVerb.CANARY: _canary,
    RouteVerb.OPEN: _breaker,
    RouteVerb.CLOSE: _breaker,
    RouteVerb.DISABLE: _breaker,
    RouteVerb.DRAIN: _drain,
    RouteVerb.RESYNC: _resync,
    RouteVerb.EXPLAIN: _explain,
    RouteVerb.SHOW: _show,
    RouteVerb.INSTANCES: _instances,
}


# ------------------------------------------------------------------------------------------ checking


def _as(command: RouteCommand, model: type[C]) -> C:
    """Take a command as what its verb's table says that it is. Raises `TypeError` where the tables disagree."""
    if not isinstance(command, model):
        raise TypeError(f"{type(command).__name__} is no {model.__name__}: COMMANDS and _HANDLERS differ")
    return command


def _known(ask: Ask, capability: str) -> None:
    if not ask.governor.planner.known(capability):
        raise SchemaInvalid(
            f"no capability {capability!r} is known; `reach caps` lists them", reason=Reason.NOT_FOUND
        )


def _lane(ask: Ask, capability: str, provider: str, *, may_be_absent: bool = False) -> None:
    _known(ask, capability)
    there = sorted(ask.governor.roster.lanes(capability))
    entry = ask.governor.planner.entries.get(capability)
    listed = {lane.provider for lane in entry.lanes} if entry is not None else set()
    if provider in there or provider in listed or (may_be_absent and not there):
        return
    raise SchemaInvalid(
        f"{provider!r} does not serve {capability!r}; it is served by {', '.join(there) or 'nobody'}",
        reason=Reason.NOT_FOUND,
    )


def _audited(ask: Ask, command: RouteCommand, answer: RouteAnswer) -> AuditEntry:
    target = getattr(command, "capability", None) or getattr(command, "target", "")
    provider = getattr(command, "provider", "")
    return AuditEntry(
        at=ask.moment.at_ms,
        who=command.by,
        what=f"route.{ask.verb}",
        target=" ".join(filter(None, (provider, target))),
        why=command.reason,
        dry_run=command.dry_run,
        outcome="done" if answer.in_force else "shown",
        message=answer.message,
        before=_in_words(answer.before),
        after=_in_words(answer.after),
        writer=ask.governor.name,
    )


def _in_words(entry: RouteEntry | None) -> str:
    """What of an entry a person may have changed."""
    if entry is None:
        return ""
    lanes = [
        f"{lane.provider} × {lane.terms.traffic:g} {lane.breaker.state}"
        + (f" limit {lane.limit}" if lane.limit is not None else "")
        for lane in entry.lanes
    ]
    canary = "" if entry.canary is None else f"; canary {entry.canary.percent:g} %"
    off = f"; off: {', '.join(entry.terms_off)}" if entry.terms_off else ""
    return f"{', '.join(lanes)}; {entry.strategy.name}{canary}{off}"
