"""Who says what where, as an AsyncAPI 3 document.

The channels are the subjects of the wire; the operations are those of agents (they receive requests and
control messages, and send replies and signs of life), of callers, and of the platform. Every body may be
msgpack or JSON, told apart by its first byte, and is answered in kind; so each message stands here twice,
with the same schema. On NATS the reply address is a field of the message itself, not a header: the
expression `$message.header#/reply` stands for it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final

from reach.wire import schema
from reach.wire.subjects import QUEUE

ASYNCAPI: Final = "3.0.0"
CONTRACT: Final = "1.0.0"
"""Version of the contract as a whole: the first number grows with the wire's version."""

MSGPACK: Final = "application/msgpack"
JSON: Final = "application/json"

_ONE: Final = "One token of `[A-Za-z0-9_-]`."
_PARAMETERS: Final[dict[str, dict[str, Any]]] = {
    "capability": {
        "description": "Name of the capability: lower-case tokens of `[a-z0-9_-]` joined by dots.",
        "examples": ["invoice.extract"],
    },
    "provider": {"description": f"Who offers it. {_ONE}", "examples": ["invoice-extractor"]},
    "instance": {"description": f"One running copy. {_ONE}", "examples": ["invoice-extractor-k3m7q2xa"]},
    "generation": {"description": "When it started, in epoch milliseconds.", "examples": ["1796000000000"]},
    "client": {"description": f"One caller. {_ONE}", "examples": ["c7m2kq4x"]},
    "token": {"description": f"One call of that caller. {_ONE}", "examples": ["a1"]},
    "tenant": {"description": f"On whose behalf. {_ONE}", "examples": ["north-trading"]},
    "task": {"description": f"One task. {_ONE}", "examples": ["h3w3zhhm6es73svt"]},
    "state": {"description": "The state that a task is in from here on.", "examples": ["running"]},
    "lane": {
        "description": "A provider (one token), a dot, and the name of the capability.",
        "examples": ["invoice-extractor.invoice.extract"],
    },
    "call": {"description": f"The `reach_id` of a call. {_ONE}", "examples": ["rch_3t7s0y2m"]},
    "kind": {"description": f"What kind of thing it is. {_ONE}", "examples": ["breaker"]},
    "service": {"description": f"The agent's name as a NATS service. {_ONE}", "examples": ["invoice"]},
}


@dataclass(frozen=True, slots=True)
class Channel:
    """One kind of subject. `messages` are names of published messages; None as address: given at run time."""

    address: str | None
    messages: tuple[str, ...]
    says: str


@dataclass(frozen=True, slots=True)
class Operation:
    """Something that one `role` does on a channel; `answers` are the messages that may come back."""

    role: str
    action: str
    channel: str
    says: str
    answers: tuple[str, ...] = ()
    queue: bool = False


_REQUEST: Final = ("envelope", "parameters")
_ANSWER: Final = ("reply", "frame")
_INBOX: Final = (
    *_ANSWER,
    "pong",
    "registered",
    "applied",
    "permit",
    "route-answer",
    "unknown-answer",
    "service-ping",
    "service-info",
    "service-stats",
)
_COMMANDS: Final = {
    "set": ("set-route", "Change weights, limits, strategy and terms of a capability."),
    "canary": ("set-canary", "Try a group of instances out, or stop it."),
    "open": ("set-breaker", "Hold a lane's breaker open."),
    "close": ("set-breaker", "Close a lane's breaker, or end what an operator said."),
    "disable": ("set-breaker", "Let a lane's breaker judge nothing."),
    "drain": ("drain-instances", "Let instances leave."),
    "resync": ("resync", "Rebuild the table from the instances that answer."),
    "explain": ("explain", "Route a call now, and say why."),
    "show": ("show", "Show a capability's entry."),
    "instances": ("list-instances", "List who is there."),
}
_UNKNOWNS: Final = {
    "list": ("list-unknowns", "List unknown outcomes."),
    "show": ("show-unknown", "Show one of them."),
    "resolve": ("resolve-unknown", "Say what became of a call."),
}
_DESKS: Final = {"route": ("route-answer", _COMMANDS), "unknowns": ("unknown-answer", _UNKNOWNS)}

CHANNELS: Final[dict[str, Channel]] = {
    "request": Channel(
        "cap.{capability}", _REQUEST, "A request to whoever serves it best; the queue group spreads the load."
    ),
    "tenantRequest": Channel(
        "t.{tenant}.cap.{capability}",
        _REQUEST,
        "The same, arriving from a tenant's NATS account; the tenant of the subject wins over the body's.",
    ),
    "broadcast": Channel("all.{capability}", _REQUEST, "A request to every instance."),
    "lane": Channel("lane.{provider}.{capability}", _REQUEST, "A request to the instances of one provider."),
    "directed": Channel("inst.{instance}.{capability}", _REQUEST, "A request to one instance."),
    "cancel": Channel("ctl.{instance}.cancel", ("cancel",), "The caller has left: stop its handler."),
    "credit": Channel("ctl.{instance}.credit", ("credit",), "The reader of a stream takes more bytes."),
    "ping": Channel(
        "ctl.{instance}.ping", ("ping", "nothing"), "Is the instance there, and does its loop run?"
    ),
    "drain": Channel("ctl.{instance}.drain", ("drain",), "Take no new work, finish, stop."),
    "inbox": Channel(
        "reply.{client}.{token}",
        _INBOX,
        "What comes back to a caller of ours. Others use an inbox of their own.",
    ),
    "answer": Channel(None, _INBOX, "The reply subject of the message that is answered."),
    "heartbeat": Channel("reach.heartbeat.{instance}", ("heartbeat",), "An instance is there."),
    "goodbye": Channel("reach.goodbye.{instance}", ("goodbye",), "An instance leaves in good order."),
    "suspect": Channel(
        "reach.suspect.{capability}", ("suspicion",), "A call was left waiting: is whoever has it there?"
    ),
    "outcomes": Channel(
        "reach.outcomes.{client}", ("outcomes",), "How the calls of one caller ended, counted."
    ),
    "membership": Channel("ctl.{instance}.membership", ("membership",), "Hold these tickets from now on."),
    "registerAgain": Channel(
        "ctl.{instance}.register", ("register-again",), "The supervisor does not know you: register."
    ),
    "register": Channel("reach.register", ("register",), "An instance asks to take part."),
    "permit": Channel(
        "reach.permit.{lane}",
        ("permit-ask", "permit-outcome"),
        "May a call probe a lane that is half open? And what became of it.",
    ),
    **{
        f"{desk}{verb.capitalize()}": Channel(f"reach.{desk}.{verb}", (message,), says)
        for desk, (_, commands) in _DESKS.items()
        for verb, (message, says) in commands.items()
    },
    "taskEvent": Channel(
        "task.event.{state}.{tenant}.{task}.{capability}",
        ("task-event",),
        "One change in the life of a task, kept in the stream REACH_TASK_EVENTS. Written with an expected last "
        "sequence over all events of its task; one that is `queued` is work.",
    ),
    "taskSubmit": Channel(
        "task.submit.{capability}",
        _REQUEST,
        "Work for the queue REACH_TASKS, published plainly. What was queued as an event is sourced to here.",
    ),
    "taskInput": Channel(
        "task.input.{tenant}.{task}", ("task-order",), "An answer to what a task asks; its worker replies."
    ),
    "taskCancel": Channel(
        "task.cancel.{tenant}.{task}",
        ("task-order", "nothing"),
        "The wish that a task end; its worker replies when it has, with the end that it had.",
    ),
    "unknown": Channel("reach.unknown.{tenant}", ("unknown",), "A call whose outcome is unknown."),
    "unknownResolved": Channel(
        "reach.unknown.{tenant}.resolved.{call}", ("resolution",), "What became of such a call."
    ),
    "alert": Channel("reach.alert.{kind}", ("alert",), "Something that a person should know."),
    "audit": Channel("reach.audit.{tenant}", ("audit",), "Who did what."),
    "gone": Channel("reach.gone.{instance}.{generation}", ("gone",), "An instance's connection ended."),
    **{
        f"service{word}{suffix}": Channel(
            f"$SRV.{word.upper()}{address}", ("nothing",), f"NATS's service API (ADR-32): {word.upper()}{of}."
        )
        for word in ("Ping", "Info", "Stats")
        for suffix, address, of in (
            ("", "", " of every service"),
            ("Named", ".{service}", " of the instances of one service"),
            ("One", ".{service}.{instance}", " of one instance"),
        )
    },
}
"""Every channel of the wire."""

OPERATIONS: Final[dict[str, Operation]] = {
    "serveRequest": Operation("agent", "receive", "request", "Serve a capability.", _ANSWER, queue=True),
    "serveTenant": Operation(
        "agent", "receive", "tenantRequest", "Serve a capability to a tenant.", _ANSWER, queue=True
    ),
    "serveBroadcast": Operation("agent", "receive", "broadcast", "Serve a broadcast.", _ANSWER),
    "serveLane": Operation(
        "agent", "receive", "lane", "Serve a call that is meant for its provider.", _ANSWER, queue=True
    ),
    "serveDirected": Operation("agent", "receive", "directed", "Serve a call that is meant for it.", _ANSWER),
    "obeyCancel": Operation("agent", "receive", "cancel", "Stop the handler of a call."),
    "obeyCredit": Operation("agent", "receive", "credit", "Send more of a stream."),
    "answerPing": Operation("agent", "receive", "ping", "Say that it is there.", ("pong",)),
    "obeyDrain": Operation("agent", "receive", "drain", "Finish and stop."),
    "obeyMembership": Operation("agent", "receive", "membership", "Hold other tickets.", ("applied",)),
    "obeyRegisterAgain": Operation("agent", "receive", "registerAgain", "Register again."),
    "sendRegister": Operation(
        "agent", "send", "register", "Ask to take part, on each link.", ("registered", "reply")
    ),
    "askPing": Operation(
        "agent", "send", "ping", "Ask whether the instance that has a call is there.", ("pong",)
    ),
    "sendHeartbeat": Operation("agent", "send", "heartbeat", "Say that it is there, now and then."),
    "sendGoodbye": Operation("agent", "send", "goodbye", "Say that it leaves."),
    **{
        f"answerService{word}{suffix}": Operation(
            "agent",
            "receive",
            f"service{word}{suffix}",
            f"Answer a NATS tool's {word.upper()}.",
            (f"service-{word.lower()}",),
        )
        for word in ("Ping", "Info", "Stats")
        for suffix in ("", "Named", "One")
    },
    "call": Operation("caller", "send", "request", "Call a capability.", _ANSWER),
    "callEveryone": Operation("caller", "send", "broadcast", "Call every instance.", _ANSWER),
    "callLane": Operation("caller", "send", "lane", "Call one provider.", _ANSWER),
    "callInstance": Operation("caller", "send", "directed", "Call one instance.", _ANSWER),
    "receiveAnswer": Operation("caller", "receive", "inbox", "Take what comes back."),
    "sendCancel": Operation("caller", "send", "cancel", "Leave a call."),
    "sendCredit": Operation("caller", "send", "credit", "Let a stream go on."),
    "sendSuspicion": Operation("caller", "send", "suspect", "Tell of a call that was left waiting."),
    "sendOutcomes": Operation("caller", "send", "outcomes", "Tell how calls ended, about once a second."),
    "sendPermit": Operation(
        "caller", "send", "permit", "Ask to probe a lane, and tell how that went.", ("permit",)
    ),
    "hearGone": Operation(
        "caller", "receive", "gone", "Judge the calls of an instance that is gone at once."
    ),
    "sendGone": Operation("platform", "send", "gone", "Tell that an instance is gone."),
    "sendPing": Operation("platform", "send", "ping", "Ask whether an instance is there.", ("pong",)),
    "sendDrain": Operation("platform", "send", "drain", "Take an instance out of service."),
    "sendMembership": Operation("platform", "send", "membership", "Move the load.", ("applied",)),
    "sendRegisterAgain": Operation("platform", "send", "registerAgain", "Ask who somebody is."),
    "hearRegister": Operation(
        "platform", "receive", "register", "Take an instance in.", ("registered", "reply")
    ),
    "hearPermit": Operation("platform", "receive", "permit", "Let a few calls probe.", ("permit",)),
    **{
        f"obey{desk.capitalize()}{verb.capitalize()}": Operation(
            "platform", "receive", f"{desk}{verb.capitalize()}", says, (answer, "reply")
        )
        for desk, (answer, commands) in _DESKS.items()
        for verb, (_, says) in commands.items()
    },
    "submitTask": Operation("caller", "send", "taskEvent", "Submit a task: its first event."),
    "submitPlainly": Operation("caller", "send", "taskSubmit", "Submit a task without choosing its id."),
    "followTasks": Operation("caller", "receive", "taskEvent", "Follow tasks, from now or from the start."),
    "answerTask": Operation("caller", "send", "taskInput", "Answer what a task asks.", ("reply",)),
    "cancelTask": Operation("caller", "send", "taskCancel", "End a task.", ("reply",)),
    "workOnTask": Operation("agent", "receive", "taskSubmit", "Take a task out of the queue."),
    "tellOfTask": Operation("agent", "send", "taskEvent", "Write what becomes of a task."),
    "takeAnswer": Operation("agent", "receive", "taskInput", "Take an answer for a task.", ("reply",)),
    "obeyTaskCancel": Operation("agent", "receive", "taskCancel", "Stop the handler of a task.", ("reply",)),
    "sendUnknown": Operation("caller", "send", "unknown", "Tell of a call whose outcome is unknown."),
    "sendResolved": Operation("platform", "send", "unknownResolved", "Keep what became of it."),
    "sendAlert": Operation("platform", "send", "alert", "Tell a person."),
    "sendAudit": Operation("platform", "send", "audit", "Say who did what."),
    "hearSuspicion": Operation("platform", "receive", "suspect", "Ask the instances that are in doubt."),
    "hearOutcomes": Operation("platform", "receive", "outcomes", "Add up how everybody's calls ended."),
    "hearHeartbeat": Operation("platform", "receive", "heartbeat", "Follow the life of instances."),
    "hearGoodbye": Operation("platform", "receive", "goodbye", "Follow the life of instances."),
}
"""What each role does on them."""

_FIXED: Final[dict[str, dict[str, Any]]] = {
    "parameters": {
        "title": "Parameters",
        "description": "A body that is no envelope (one of version, message_id, payload is missing): "
        "the bare parameters of the capability.",
        "type": "object",
        "not": {"required": ["version", "message_id", "payload"]},
    },
    "nothing": {"title": "Nothing", "description": "An empty body.", "type": "null"},
}


def asyncapi() -> dict[str, Any]:
    """Give the AsyncAPI 3.0.0 document of all channels, operations and messages."""
    document = {
        "asyncapi": ASYNCAPI,
        "info": {
            "title": "Agent-Reach on the bus",
            "version": CONTRACT,
            "description": "Capabilities of agents, called over NATS: the subjects, who speaks on them, and "
            "the messages. A body is a map, in msgpack or in JSON (first byte `{`), and is answered in kind.",
            "license": {"name": "Apache-2.0", "url": "https://www.apache.org/licenses/LICENSE-2.0"},
            "tags": [
                {"name": "agent", "description": "Serves capabilities."},
                {"name": "caller", "description": "Calls them."},
                {"name": "platform", "description": "Watches over both."},
            ],
        },
        "defaultContentType": MSGPACK,
        "servers": {
            "nats": {
                "host": "{host}:{port}",
                "protocol": "nats",
                "description": "Any NATS server from 2.10; `reach up` starts one.",
                "variables": {"host": {"default": "127.0.0.1"}, "port": {"default": "4222"}},
            }
        },
        "channels": {name: _channel(channel) for name, channel in CHANNELS.items()},
        "operations": {name: _operation(operation) for name, operation in OPERATIONS.items()},
        "components": {"messages": _messages(), "schemas": _schemas(), "parameters": _PARAMETERS},
    }
    return json.loads(json.dumps(document))  # type: ignore[no-any-return]  # a copy that the caller may change


def forms(message: str) -> tuple[str, ...]:
    """Give the names under which a message stands in the document: as msgpack, and as JSON."""
    if message.startswith("service-"):
        return (message,)  # NATS's service API is JSON only.
    return (message,) if message == "nothing" else (message, f"{message}-json")


def _channel(channel: Channel) -> dict[str, Any]:
    made: dict[str, Any] = {"address": channel.address, "description": channel.says}
    made["messages"] = {
        form: {"$ref": f"#/components/messages/{form}"}
        for message in channel.messages
        for form in forms(message)
    }
    used = [name for name in _PARAMETERS if channel.address and f"{{{name}}}" in channel.address]
    if used:
        made["parameters"] = {name: {"$ref": f"#/components/parameters/{name}"} for name in used}
    return made


def _operation(operation: Operation) -> dict[str, Any]:
    made: dict[str, Any] = {
        "action": operation.action,
        "channel": {"$ref": f"#/channels/{operation.channel}"},
        "summary": operation.says,
        "tags": [{"name": operation.role}],
    }
    if operation.queue:
        made["bindings"] = {"nats": {"queue": QUEUE, "bindingVersion": "0.1.0"}}
    if operation.answers:
        made["reply"] = {
            "address": {
                "location": "$message.header#/reply",
                "description": "The reply subject of the NATS message.",
            },
            "channel": {"$ref": "#/channels/answer"},
            "messages": [
                {"$ref": f"#/channels/answer/messages/{form}"}
                for message in operation.answers
                for form in forms(message)
            ],
        }
    return made


def _messages() -> dict[str, Any]:
    made: dict[str, Any] = {}
    for message in sorted({name for channel in CHANNELS.values() for name in channel.messages}):
        title = _FIXED[message]["title"] if message in _FIXED else schema.title_of(message)
        for form in forms(message):
            as_json = form.endswith("-json") or message.startswith("service-")
            made[form] = {
                "name": message,
                "title": title,
                "contentType": JSON if as_json else MSGPACK,
                "payload": {"$ref": f"#/components/schemas/{title}"},
            }
            if message in {"envelope", "reply"}:
                made[form]["correlationId"] = {"location": "$message.payload#/message_id"}
            elif message == "frame":
                made[form]["correlationId"] = {"location": "$message.payload#/stream_id"}
    return made


def _schemas() -> dict[str, Any]:
    parts = {**schema.bodies(), **{fixed["title"]: fixed for fixed in _FIXED.values()}}
    return {title: _rebased(body) for title, body in parts.items()}


def _rebased(node: Any) -> Any:
    """Let references lead to where the document keeps its schemas."""
    if isinstance(node, dict):
        return {
            key: item.replace("#/$defs/", "#/components/schemas/")
            if key == "$ref" and isinstance(item, str)
            else _rebased(item)
            for key, item in node.items()
        }
    return [_rebased(item) for item in node] if isinstance(node, list) else node
