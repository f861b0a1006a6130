"""Agent-Reach: make what an agent calls arrive, and tell it truthfully when it did not.

A message-bus-based actor system on NATS. Serve capabilities with `Agent`, call them through `connect()`:

    agent = reach.Agent("greeter")

    @agent.capability("greet.hello")
    async def hello(name: str) -> str:
        return f"Hello, {name}!"

    async with reach.connect() as bus:
        reply = await bus.request("greet.hello", {"name": "Ada"})

Names are imported on first use, so that `import reach` stays quick.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from reach.bus.keys import Role
    from reach.call.client import Bus, connect
    from reach.call.context import context
    from reach.call.context import round_of_calls as round  # noqa: A004 - the word of the field for it
    from reach.call.inflow import StreamClocks
    from reach.call.task import Task
    from reach.call.touch import guard, touch
    from reach.errors import (
        CallTimeout,
        ConfigError,
        NameRefused,
        NotExecuted,
        NotOnTheWire,
        RateLimited,
        ReachError,
        SchemaInvalid,
        UnknownFailure,
        Unreachable,
        UpstreamFailure,
        UpstreamRefusal,
    )
    from reach.faults import Advice, Code, Executed, Reason
    from reach.policy.taskbudget import Budget
    from reach.runtime.actor import Actor, every, on
    from reach.runtime.agent import Agent
    from reach.runtime.context import Context
    from reach.runtime.run import run
    from reach.runtime.taskcontext import TaskContext
    from reach.wire.card import Batch, Cache, Limits, Rate
    from reach.wire.envelope import Envelope
    from reach.wire.reply import Failure, Reply
    from reach.wire.task import TaskEvent, TaskState

__version__ = "0.1.0"

_HOME = {
    "Actor": "reach.runtime.actor",
    "Advice": "reach.faults",
    "Agent": "reach.runtime.agent",
    "Batch": "reach.wire.card",
    "Budget": "reach.policy.taskbudget",
    "Bus": "reach.call.client",
    "Cache": "reach.wire.card",
    "CallTimeout": "reach.errors",
    "Code": "reach.faults",
    "ConfigError": "reach.errors",
    "Context": "reach.runtime.context",
    "Envelope": "reach.wire.envelope",
    "Executed": "reach.faults",
    "Failure": "reach.wire.reply",
    "Limits": "reach.wire.card",
    "NameRefused": "reach.errors",
    "NotExecuted": "reach.errors",
    "NotOnTheWire": "reach.errors",
    "Rate": "reach.wire.card",
    "RateLimited": "reach.errors",
    "ReachError": "reach.errors",
    "Reason": "reach.faults",
    "Reply": "reach.wire.reply",
    "Role": "reach.bus.keys",
    "SchemaInvalid": "reach.errors",
    "StreamClocks": "reach.call.inflow",
    "Task": "reach.call.task",
    "TaskContext": "reach.runtime.taskcontext",
    "TaskEvent": "reach.wire.task",
    "TaskState": "reach.wire.task",
    "UnknownFailure": "reach.errors",
    "Unreachable": "reach.errors",
    "UpstreamFailure": "reach.errors",
    "UpstreamRefusal": "reach.errors",
    "connect": "reach.call.client",
    "context": "reach.call.context",
    "every": "reach.runtime.actor",
    "guard": "reach.call.touch",
    "on": "reach.runtime.actor",
    "round": "reach.call.context",
    "run": "reach.runtime.run",
    "touch": "reach.call.touch",
}
_RENAMED = {"round": "round_of_calls"}

__all__ = [
    "Actor",
    "Advice",
    "Agent",
    "Batch",
    "Budget",
    "Bus",
    "Cache",
    "CallTimeout",
    "Code",
    "ConfigError",
    "Context",
    "Envelope",
    "Executed",
    "Failure",
    "Limits",
    "NameRefused",
    "NotExecuted",
    "NotOnTheWire",
    "Rate",
    "RateLimited",
    "ReachError",
    "Reason",
    "Reply",
    "Role",
    "SchemaInvalid",
    "StreamClocks",
    "Task",
    "TaskContext",
    "TaskEvent",
    "TaskState",
    "UnknownFailure",
    "Unreachable",
    "UpstreamFailure",
    "UpstreamRefusal",
    "connect",
    "context",
    "every",
    "guard",
    "on",
    "round",
    "run",
    "touch",
]


def __getattr__(name: str) -> Any:
    module = _HOME.get(name)
    if module is None:
        msg = f"module 'reach' has no attribute {name!r}"
        raise AttributeError(msg)
    value = getattr(import_module(module), _RENAMED.get(name, name))
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
