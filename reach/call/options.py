"""What a caller may say about one call, in one value.

`bus.request(…, timeout_s=3, target="x")` and `bus.with_options(priority="core")` build the same `Options`; a
view's options are the defaults of its calls. Keeping them in one frozen object keeps `request()` small.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Final, Literal, TypedDict

from reach.wire import names

if TYPE_CHECKING:
    from reach.wire.envelope import Priority


class _NoFallback:
    """Stands for no value at all, since None is a value too."""

    def __repr__(self) -> str:
        return "no fallback"


NO_FALLBACK: Final = _NoFallback()


class CallOptions(TypedDict, total=False):
    """Keyword arguments of `request`, `stream`, `broadcast`, `publish` and `with_options`."""

    timeout_s: float
    target: str
    require: dict[str, Any]
    prefer: dict[str, Any]
    idempotency_key: str
    priority: Priority
    session_id: str
    task_id: str
    tenant: str
    trigger: dict[str, Any]
    retry: bool
    trace: bool
    hedge: bool
    dedupe: bool
    cache: bool
    queue: bool
    fallback: Any
    mode: Literal["call", "auto"]


@dataclass(slots=True)
class Options:
    """See `CallOptions`. Never changed once it was handed on; not `frozen`, which copies ten times as slowly.

    `timeout_s` is the whole call's; `target` names an agent; `require` excludes (`lang`, `region`, `version`,
    any label), `prefer` weighs; `retry=False` allows one attempt only; `trace=True` asks for the hops;
    `hedge=True` lets a second request follow a slow first one (idempotent capabilities only, RETRY-8);
    `dedupe=False` lets a task repeat a write with the same parameters (IDEM-4); `cache=False` wants an answer of its
    own, neither kept nor shared (GUARD-5); `queue=True` waits within the deadline where all callers together have
    taken a capability's `rate` (GUARD-3); `fallback` is the value that takes the place of a result which is not to be
    had (the reply is then `degraded`, BREAK-6); `mode="auto"` lets `request` make a task of what takes longer than
    30 s, where it is offered as one (CALL-11).
    """

    timeout_s: float | None = None
    target: str | None = None
    require: dict[str, Any] | None = None
    prefer: dict[str, Any] | None = None
    idempotency_key: str | None = None
    priority: Priority | None = None
    session_id: str | None = None
    task_id: str | None = None
    tenant: str | None = None
    trigger: dict[str, Any] | None = None
    retry: bool = True
    trace: bool = False
    hedge: bool = False
    dedupe: bool = True
    cache: bool = True
    queue: bool = False
    fallback: Any = NO_FALLBACK
    mode: Literal["call", "auto"] = "call"
    carried: bool = field(init=False)
    """Whether the envelope has to say anything of them."""

    def __post_init__(self) -> None:
        self._look()

    def _look(self) -> None:
        self.carried = any(getattr(self, name) is not None for name in _CARRIED)

    def merged(self, given: CallOptions) -> Options:
        """Give these options with `given` on top, checked. Raises `TypeError`, `ValueError`, `NameRefused`."""
        if not given:
            return self
        if self is NO_OPTIONS and given.keys() <= _FEW:
            key = tuple(given.items())
            before = _merged_before.get(key)
            if before is None:
                _check(given)
                if len(_merged_before) >= _MAX_KNOWN:
                    _merged_before.clear()
                before = _merged_before[key] = Options(**given)
            return before
        unknown = given.keys() - _NAMES
        if unknown:
            known = ", ".join(sorted(_NAMES))
            msg = f"unknown option {min(unknown)!r}; a call takes {known}"
            raise TypeError(msg)
        _check(given)
        if self is NO_OPTIONS:
            return Options(**given)
        merged = Options(*(getattr(self, name) for name in _ORDER))
        for name, value in given.items():
            setattr(merged, name, value)
        merged._look()
        return merged


_CARRIED: Final = (
    "target",
    "require",
    "prefer",
    "idempotency_key",
    "priority",
    "session_id",
    "task_id",
    "tenant",
    "trigger",
)

NO_OPTIONS: Final = Options()
"""The options of a call that has none; one object, so that asking is a comparison."""

_FEW: Final = frozenset(
    {"timeout_s", "target", "priority", "retry", "trace", "hedge", "cache", "queue", "mode"}
)
"""Options of which a program uses the same few combinations over and over: those are checked once."""
_MAX_KNOWN: Final = 256
_merged_before: dict[tuple[tuple[str, object], ...], Options] = {}

_ORDER: Final = tuple(one.name for one in fields(Options) if one.init)
_NAMES: Final = frozenset(_ORDER)
_TOKENS: Final[tuple[Literal["target", "session_id", "task_id", "tenant"], ...]] = (
    "target",
    "session_id",
    "task_id",
    "tenant",
)
_PRIORITIES: Final = ("core", "normal", "offline")
_MODES: Final = ("call", "auto")
_MAX_KEY: Final = 256


_MAX_S: Final = 1e9
"""Some thirty years: more is a mistake, and would not fit the envelope."""

_KINDS: Final[dict[str, tuple[str, type | tuple[type, ...]]]] = {
    "timeout_s": ("a number of seconds", (int, float)),
    "require": ("a dict", dict),
    "prefer": ("a dict", dict),
    "trigger": ("a dict", dict),
    "retry": ("True or False", bool),
    "trace": ("True or False", bool),
    "hedge": ("True or False", bool),
    "dedupe": ("True or False", bool),
    "cache": ("True or False", bool),
    "queue": ("True or False", bool),
    "idempotency_key": (f"a text of 1 to {_MAX_KEY} characters", str),
}


def _check(given: CallOptions) -> None:
    for option, found in given.items():
        if found is not None and option in _KINDS:
            words, kind = _KINDS[option]
            if not isinstance(found, kind):
                msg = f"{option} is {words}, not {type(found).__name__}"
                raise TypeError(msg)
    timeout_s = given.get("timeout_s")
    if timeout_s is not None and not 0 < timeout_s <= _MAX_S:
        msg = f"timeout_s is a positive number of seconds, at most {_MAX_S:.0e}, not {timeout_s}"
        raise ValueError(msg)
    for name in _TOKENS:
        value = given.get(name)
        if value is not None:
            names.token(value, name)
    key = given.get("idempotency_key")
    if key is not None and not 0 < len(key) <= _MAX_KEY:
        msg = f"idempotency_key is a text of 1 to {_MAX_KEY} characters"
        raise ValueError(msg)
    priority = given.get("priority")
    if priority is not None and priority not in _PRIORITIES:
        msg = f"priority is one of {', '.join(_PRIORITIES)}, not {priority!r}"
        raise ValueError(msg)
    mode = given.get("mode")
    if mode is not None and mode not in _MODES:
        msg = f"mode is one of {', '.join(_MODES)}, not {mode!r}"
        raise ValueError(msg)
