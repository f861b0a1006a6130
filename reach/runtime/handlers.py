"""What an actor's class says about its handlers: `@on` and `@every`, and the list read from them.

The decorators only mark a method; the actor subscribes and sets its timers when it runs. A method that a
subclass overrides without marking it again is no handler any more, as with any other attribute.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

Handler = TypeVar("Handler", bound=Callable[..., Any])

_MARK: Final = "__reach_handlers__"


@dataclass(frozen=True, slots=True)
class On:
    """Messages of `subject` go to the method `name`."""

    name: str
    subject: str
    queue: str
    local: bool


@dataclass(frozen=True, slots=True)
class Every:
    """The method `name` runs each `seconds`, spread by `jitter` (0.1 is ± 10 %)."""

    name: str
    seconds: float
    jitter: float
    immediately: bool


def on(subject: str, *, queue: str = "", local: bool = False) -> Callable[[Handler], Handler]:
    """Mark a method `(self, message)` as handler of a subject; `*` and `>` match as in NATS.

    Args:
        subject: What to subscribe to.
        queue: Share the messages with everybody in this queue group, instead of each getting all of them.
        local: Do not subscribe: `subject` is a name for what the actor, or its parent, tells it (`Actor.tell`).

    Raises:
        ValueError: the subject is not one.
        TypeError: the method takes something else than one message.
    """
    _check_subject(subject, local=local)

    def mark(method: Handler) -> Handler:
        _check_shape(method, ["message"])
        return _add(method, On(method.__name__, subject, queue, local))

    return mark


def every(seconds: float, *, jitter: float = 0.0, immediately: bool = False) -> Callable[[Handler], Handler]:
    """Mark a method `(self)` to run each `seconds`.

    Ticks go through the mailbox, so they never run beside another handler. A tick that comes while the one
    before it still waits or runs is left out: they do not pile up.

    Args:
        seconds: The pause between ticks.
        jitter: Spread each pause by up to this part of it, so that many actors do not tick together.
        immediately: Also tick right after `on_start`.

    Raises:
        ValueError: a number is out of its range.
        TypeError: the method takes arguments.
    """
    if not seconds > 0 or not 0 <= jitter < 1:
        raise ValueError(f"seconds is positive and jitter in [0, 1), not {seconds} and {jitter}")

    def mark(method: Handler) -> Handler:
        _check_shape(method, [])
        return _add(method, Every(method.__name__, seconds, jitter, immediately))

    return mark


def handlers_of(cls: type) -> tuple[On | Every, ...]:
    """Read the handlers of a class, those of its parents first.

    Raises:
        ValueError: two handlers of one local name.
    """
    found: list[On | Every] = []
    seen: set[str] = set()
    for parent in reversed(cls.__mro__):
        for name in vars(parent):
            if name not in seen:
                seen.add(name)
                found += getattr(getattr(cls, name, None), _MARK, ())
    local = [handler.subject for handler in found if isinstance(handler, On) and handler.local]
    if twice := sorted({name for name in local if local.count(name) > 1}):
        raise ValueError(
            f"{cls.__name__} has two local handlers of {', '.join(twice)}: one name, one handler"
        )
    return tuple(found)


def _add(method: Handler, handler: On | Every) -> Handler:
    setattr(method, _MARK, (*getattr(method, _MARK, ()), handler))
    return method


def _check_subject(subject: str, *, local: bool) -> None:
    tokens = subject.split(".")
    if not all(tokens) or not subject.isprintable() or " " in subject:
        raise ValueError(f"{subject!r} is not a subject: it is made of tokens joined by dots, without spaces")
    if ">" in tokens[:-1] or any(token not in {"*", ">"} and set(token) & {"*", ">"} for token in tokens):
        raise ValueError(
            f"{subject!r}: `*` stands for one whole token, and `>` for all that follow, at the end"
        )
    if local and {"*", ">"} & set(tokens):
        raise ValueError(f"{subject!r} is a local name, and local names are matched exactly")


def _check_shape(method: Callable[..., Any], expected: list[str]) -> None:
    taken = list(inspect.signature(method).parameters.values())[1:]
    needed = [
        one.name
        for one in taken
        if one.default is one.empty and one.kind not in {one.VAR_POSITIONAL, one.VAR_KEYWORD}
    ]
    if len(needed) != len(expected):
        right = ", ".join(["self", *expected])
        raise TypeError(
            f"{method.__qualname__} is a handler: right would be `def {method.__name__}({right})`"
        )
