"""The subjects, each built in one place.

Callers hand in names that `reach.wire.names` has checked; these functions only join them. The table of
who publishes what to whom is in `docs/reference/subjects.md`.
"""

from __future__ import annotations

from typing import Final

QUEUE: Final = "reach"
"""The one queue group of request subjects."""


def cap(capability: str) -> str:
    """Every instance of the best usable tier, through the queue group."""
    return "cap." + capability


def everyone(capability: str) -> str:
    """Every instance: broadcast."""
    return "all." + capability


def lane(provider: str, capability: str) -> str:
    """The instances of one provider, through the queue group."""
    return f"lane.{provider}.{capability}"


def inst(instance: str, capability: str) -> str:
    """One instance, directly."""
    return f"inst.{instance}.{capability}"


def ctl(instance: str, verb: str) -> str:
    """A control message to one instance: ping, membership, drain, cancel, credit."""
    return f"ctl.{instance}.{verb}"


def reply_inbox(client: str) -> str:
    """Inbox prefix of one client; replies go to `<prefix>.<token>`."""
    return "reply." + client


def gone(instance: str, generation: int | str) -> str:
    """An instance's connection ended (from the sentinel or the supervisor)."""
    return f"reach.gone.{instance}.{generation}"


def suspect(capability: str) -> str:
    """A call of this capability got no frame in time."""
    return "reach.suspect." + capability


def outcomes(client: str) -> str:
    """Counted outcomes of one caller."""
    return "reach.outcomes." + client


def heartbeat(instance: str) -> str:
    """Heartbeat of one instance."""
    return "reach.heartbeat." + instance


def goodbye(instance: str) -> str:
    """An instance leaves in good order."""
    return "reach.goodbye." + instance


def permit(provider: str, capability: str) -> str:
    """Probe permits of one lane: asked for, and given back."""
    return f"reach.permit.{provider}.{capability}"


def route(verb: str) -> str:
    """A command of an operator to the supervisor."""
    return "reach.route." + verb


def audit(tenant: str) -> str:
    """Who did what."""
    return "reach.audit." + tenant


def record(tenant: str) -> str:
    """Batches of call records."""
    return "reach.record." + tenant


def count_task(tenant: str, task_id: str) -> str:
    """What a task has spent: the subject of its numbers, without the last token, which says of what."""
    return f"reach.count.task.{tenant}.{task_id}"


def alert(kind: str) -> str:
    """Something a person should know."""
    return "reach.alert." + kind


def unknown(tenant: str) -> str:
    """Calls whose outcome is unknown, as their callers enter them."""
    return "reach.unknown." + tenant


def unknown_task(tenant: str, task_id: str, run: int) -> str:
    """A task whose outcome is unknown, as the platform enters it: once for each run."""
    return f"reach.unknown.{tenant}.task.{task_id}.{run}"


def unknown_resolved(tenant: str, reach_id: str) -> str:
    """What an operator said of one of them."""
    return f"reach.unknown.{tenant}.resolved.{reach_id}"


def unknown_told(tenant: str, capability: str) -> str:
    """That operators were alerted of those of a capability."""
    return f"reach.unknown.{tenant}.told.{capability}"


def unknowns(verb: str) -> str:
    """A question of an operator about the list of unknown outcomes."""
    return "reach.unknowns." + verb


def task_event(state: str, tenant: str, task_id: str, capability: str) -> str:
    """One change of state in the life of a task."""
    return f"task.event.{state}.{tenant}.{task_id}.{capability}"


def task_events(tenant: str, task_id: str) -> str:
    """All events of one task: what its compare-and-set is over."""
    return f"task.event.*.{tenant}.{task_id}.>"


def task_submit(capability: str) -> str:
    """Work to do, in the work queue."""
    return "task.submit." + capability


def task_input(tenant: str, task_id: str) -> str:
    """An answer to what a task asked."""
    return f"task.input.{tenant}.{task_id}"


def task_cancel(tenant: str, task_id: str) -> str:
    """The wish that a task end."""
    return f"task.cancel.{tenant}.{task_id}"


def task_place(subject: str) -> tuple[str, str, str, str] | None:
    """Split an event's subject into state, tenant, task and capability; None for another subject."""
    parts = subject.split(".", 5)
    if len(parts) <= 5 or parts[0] != "task" or parts[1] != "event" or not parts[5]:  # noqa: PLR2004 - see above
        return None
    return parts[2], parts[3], parts[4], parts[5]


REGISTER: Final = "reach.register"
"""Registration requests of instances."""

GONE_ALL: Final = "reach.gone.*.*"
"""What a caller listens to for ended instances."""


RESERVED: Final = ("cap.", "t.", "all.", "lane.", "inst.", "ctl.", "reach.", "task.", "stream.", "$")
"""Subjects that mean something. NATS does not check where a request asks to be answered: without a check of our
own a caller could let an agent's answer arrive as an order at another one."""


def answerable(reply: str) -> str:
    """Give a reply subject, or nothing for one that is no inbox: such a request is served but not answered."""
    return "" if reply.startswith(RESERVED) else reply


def capability_of(subject: str) -> tuple[str, str]:
    """Split a request subject into its kind and capability: `cap.a.b` gives `("cap", "a.b")`.

    Understands `cap`, `all`, `lane.<provider>`, `inst.<instance>` and `t.<tenant>.cap`. Raises `ValueError`
    for anything else.
    """
    kind, _, rest = subject.partition(".")
    if kind in {"cap", "all"} and rest:
        return kind, rest
    if kind in {"lane", "inst"}:
        _, _, capability = rest.partition(".")
        if capability:
            return kind, capability
    if kind == "t":
        _, _, inner = rest.partition(".")
        if inner.startswith("cap.") and len(inner) > len("cap."):
            return "cap", inner[4:]
    msg = f"{subject!r} is not a request subject"
    raise ValueError(msg)


def tenant_of(subject: str) -> str | None:
    """Give the tenant that a subject itself names (`t.<tenant>.cap.…`), which wins over the body."""
    return subject.split(".", 2)[1] if subject.startswith("t.") else None
