"""How an instance takes part, and how operators change where calls go: what supervisor, agents and operators say.

An instance asks to take part (`Register`, on each connect) and is told what it holds (`Registered`); later it is
given `MembershipOrder`s and answers each with `Applied`. Orders and answers carry `(term, revision)`: an instance
ignores a pair that is not above the last one it followed, so a delayed order of a former leader changes nothing.
They also carry the secret that the instance was given when it registered, so that nobody else can order it about.

A caller that meets a half-open lane asks for a permit (`PermitAsk`) and gives it back with the probe's outcome
(`PermitOutcome`), both on `reach.permit.<provider>.<capability>`. Operators send one `RouteCommand` a change, on
`reach.route.<verb>`, and get a `RouteAnswer`. A request that is refused is answered with a Reply whose `ok` is
false; `read_answer` raises it.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from reach.errors import SchemaInvalid
from reach.wire import codec
from reach.wire.bounds import Factor, Lease, Limit, Patience, Said, Short
from reach.wire.card import Card
from reach.wire.reply import Reply
from reach.wire.route import Breaker, BreakerState, Canary, RouteEntry, Strategy, TermName
from reach.wire.whole import Whole

ROUTES: Final = "reach_routes"
"""The bucket of the routing table: one key a capability (`route_key`), and the leader's key."""

CARDS: Final = "reach_cards"
"""The bucket of cards: one key an instance (its name), each a `CardEntry`."""

LEADER_KEY: Final = "leader"
"""The key that the leading supervisor holds, in the bucket of routes."""


INHERIT_KEY: Final = "inherit"
"""The key of the rule by which more general providers stand in, an `InheritEntry` in the bucket of routes."""


class OrderVerb(StrEnum):
    """The last token of a control subject that only the platform may publish to."""

    MEMBERSHIP = "membership"
    REGISTER = "register"
    """Register again: the supervisor does not know you (`RegisterAgain`)."""
    DRAIN = "drain"


class RouteVerb(StrEnum):
    """The last token of `reach.route.<verb>`; the request's body is the model in `COMMANDS`."""

    SET = "set"
    CANARY = "canary"
    OPEN = "open"
    CLOSE = "close"
    DISABLE = "disable"
    DRAIN = "drain"
    RESYNC = "resync"
    EXPLAIN = "explain"
    SHOW = "show"
    INSTANCES = "instances"


def route_key(capability: str) -> str:
    """Give the key of a capability's entry in the bucket of routes; a prefix keeps it apart from the leader's."""
    return "cap." + capability


def capability_of_key(key: str) -> str | None:
    """Give the capability whose entry a key holds; None for the leader's key and what is not ours."""
    return key[4:] if key.startswith("cap.") and len(key) > len("cap.") else None


class _Message(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)


# ------------------------------------------------------------------------------------------ taking part


class Register(_Message):
    """An instance asks to take part. `server` and `connection` say which of the server's connections it is on.

    `tickets` is what it holds right now: nothing on a new link, more when it was asked to register again.
    """

    card: Card
    server: str = ""
    connection: Whole = 0
    tickets: dict[str, Whole] = Field(default_factory=dict)


class Order(_Message):
    """What every order to an instance carries; see the module."""

    term: Whole
    revision: Whole
    generation: Whole
    secret: str


class Registered(_Message):
    """The answer to `Register`. What is not `welcome` holds nothing.

    `tickets` by capability, every capability named; `off_lane` are those whose lane's queue group it stays out of.
    `secret` is what orders to it will carry. `lease_ttl_s` is how long it counts as there without a heartbeat.
    """

    status: Literal["welcome", "outdated", "leaving"]
    term: Whole = 0
    revision: Whole = 0
    tickets: dict[str, Whole] = Field(default_factory=dict)
    off_lane: tuple[str, ...] = ()
    secret: str = ""
    lease_ttl_s: Lease = Field(default=30.0, gt=0)
    supervisor: str = ""


class MembershipOrder(Order):
    """Hold these tickets from now on: all capabilities named, as in `Registered`. More first, then fewer."""

    tickets: dict[str, Whole] = Field(default_factory=dict)
    off_lane: tuple[str, ...] = ()


class RegisterAgain(Order):
    """Say who you are: the supervisor heard of you, and has no card of yours."""


class DrainOrder(Order):
    """Take no new work, finish what you have within `timeout_s` (else your own setting), and stop."""

    timeout_s: float | None = Field(default=None, gt=0)


class Applied(_Message):
    """The answer to an order: what the instance holds now, and the pair that it followed last.

    `why` says why an order was not followed: it is `outdated`, its `secret` is wrong, or it is for another
    `generation`, or the instance is `unlinked` or `leaving`.
    """

    instance: str
    generation: Whole
    term: Whole
    revision: Whole
    applied: bool
    tickets: dict[str, Whole] = Field(default_factory=dict)
    why: str = ""


class CardEntry(_Message):
    """One instance in the bucket of cards, kept after its end with when and how it ended (epoch milliseconds).

    `present` says that it was there when this was written. An entry whose supervisor is gone may be out of date.
    """

    card: Card
    registered_at: Whole = 0
    present: bool = True
    ended_at: Whole | None = None
    ended: Literal["goodbye", "lost", "expired"] | None = None
    server: str = ""
    connection: Whole = 0


class LeaderEntry(_Message):
    """The leader's key. The term is the sequence of the write that took it."""

    supervisor: str
    term: Whole = 0
    at: Whole = 0


class InheritEntry(_Message):
    """How a provider of a more general name counts (ROUTE-4). `parents` are more general beside the dotted prefix."""

    mode: Literal["fallback", "weight", "off"] = "off"
    parents: dict[str, tuple[str, ...]] = Field(default_factory=dict)


# ------------------------------------------------------------------------------------------ probing


class PermitAsk(_Message):
    """May this call probe the half-open lane? `expires_at` is the call's deadline in epoch milliseconds."""

    client: str
    provider: str
    capability: str
    expires_at: Whole


class PermitAnswer(_Message):
    """Whether it may. A permit is given back with a `PermitOutcome`, or ends at `expires_at` (epoch milliseconds).

    Without one, `breaker` is what the lane's breaker says now, and `retry_after_ms` when to ask again.
    """

    permit: str | None = None
    expires_at: Whole = 0
    retry_after_ms: Whole | None = None
    breaker: Breaker = Breaker()


class PermitOutcome(_Message):
    """A probe has ended. `failed` is what counts for the lane; None says nothing about it (BREAK-2)."""

    client: str
    provider: str
    capability: str
    permit: str
    failed: bool | None = None
    latency_ms: float = Field(default=0.0, ge=0)


# ------------------------------------------------------------------------------------------ operators


class RouteCommand(_Message):
    """What all commands carry: who asks and why, for the audit, and whether to say only what would happen."""

    by: Short = Field(min_length=1)
    reason: Said = ""
    dry_run: bool = False


class SetRoute(RouteCommand):
    """`reach.route.set`: what is named is changed, what is None stays.

    `weights` are traffic weights by provider (1 is usual, 0 takes the lane out); `limits` are calls at once, and
    `limits_off` names providers that have none any more. `reset_quality` names those whose slow quality term begins
    anew at 1.
    """

    capability: str
    weights: dict[str, Factor] = Field(default_factory=dict)
    strategy: Strategy | None = None
    terms_off: tuple[TermName, ...] | None = None
    limits: dict[str, Limit] = Field(default_factory=dict)
    limits_off: tuple[str, ...] = ()
    reset_quality: tuple[str, ...] = ()


class SetCanary(RouteCommand):
    """`reach.route.canary`: try these instances out; None ends it."""

    capability: str
    canary: Canary | None = None


class SetBreaker(RouteCommand):
    """`reach.route.open`, `.close`, `.disable`: hold a lane's breaker open, close it, or let it judge nothing.

    Closing ends what the other two said.
    """

    capability: str
    provider: str


class DrainInstances(RouteCommand):
    """`reach.route.drain`: let one instance, or all of an agent's, leave without losing a call."""

    target: str = Field(min_length=1)
    timeout_s: Patience | None = None


class Resync(RouteCommand):
    """`reach.route.resync`: forget what is known and rebuild the table from the instances that answer."""


class Explain(RouteCommand):
    """`reach.route.explain`: route a call with these properties now, and say why."""

    capability: str
    caller: str | None = None
    target: str | None = None
    priority: Literal["core", "normal", "offline"] = "normal"
    require: dict[str, Any] = Field(default_factory=dict)


class Show(RouteCommand):
    """`reach.route.show`: the entry of a capability as the supervisor has it."""

    capability: str


class ListInstances(RouteCommand):
    """`reach.route.instances`: who is there; at most `limit` of them after the name `after`, in order of names."""

    capability: str | None = None
    agent_id: str | None = None
    after: str = ""
    limit: int = Field(default=500, ge=1, le=2000)


class InstanceRow(_Message):
    """One instance as the supervisor sees it. `tickets` and `weights` by capability; a weight is its factor."""

    instance: str
    agent_id: str
    generation: Whole
    version: str = ""
    region: str = ""
    labels: dict[str, str] = Field(default_factory=dict)
    state: str = "live"
    why: str = ""
    ready: bool = True
    heard_s: float | None = None
    inflight: Whole = 0
    queue: Whole = 0
    cpu: float = 0.0
    rss_bytes: Whole = 0
    loop_lag_ms: float = 0.0
    tickets: dict[str, Whole] = Field(default_factory=dict)
    weights: dict[str, float] = Field(default_factory=dict)


class LaneExplained(_Message):
    """One lane as a candidate: its share of the calls, the terms of its weight in words, why it is left out."""

    provider: str
    priority: int
    share: float = 0.0
    weight: float = 0.0
    terms: tuple[str, ...] = ()
    excluded: str = ""
    breaker: BreakerState = "closed"
    instances: tuple[InstanceRow, ...] = ()


class RouteAnswer(_Message):
    """What became of a command. `message` is for people; `before` and `after` are the entry, where one changed.

    `in_force` says that it holds, False in a dry run. `lanes` and `tickets` answer `explain`, `instances` answers
    `instances`, with `more` where the list goes on.
    """

    in_force: bool = True
    message: str = ""
    term: Whole = 0
    revision: Whole = 0
    before: RouteEntry | None = None
    after: RouteEntry | None = None
    lanes: tuple[LaneExplained, ...] = ()
    tickets: str = ""
    instances: tuple[InstanceRow, ...] = ()
    more: bool = False


COMMANDS: Final[dict[RouteVerb, type[RouteCommand]]] = {
    RouteVerb.SET: SetRoute,
    RouteVerb.CANARY: SetCanary,
    RouteVerb.OPEN: SetBreaker,
    RouteVerb.CLOSE: SetBreaker,
    RouteVerb.DISABLE: SetBreaker,
    RouteVerb.DRAIN: DrainInstances,
    RouteVerb.RESYNC: Resync,
    RouteVerb.EXPLAIN: Explain,
    RouteVerb.SHOW: Show,
    RouteVerb.INSTANCES: ListInstances,
}
"""What each verb's request carries."""


# ------------------------------------------------------------------------------------------ reading

M = TypeVar("M", bound=BaseModel)


def read_message(body: Mapping[str, Any], model: type[M]) -> M:
    """Read a decoded body as a message. Raises `SchemaInvalid` naming the fields that are wrong."""
    try:
        return model.model_validate(body)
    except ValidationError as error:
        wrong = "; ".join(
            f"{'.'.join(str(part) for part in one['loc']) or 'the body'}: {one['msg'].removeprefix('Value error, ')}"
            for one in error.errors(include_url=False, include_input=False)[:5]
        )
        raise SchemaInvalid(f"this is no {model.__name__}: {wrong}") from None


def read_answer(data: bytes, model: type[M]) -> M:
    """Read the answer to one of these requests.

    Raises:
        ReachError: it was refused; the one that the refusal names.
        SchemaInvalid: the answer cannot be read.
    """
    body = codec.unpack(data)
    if body.get("ok") is False:
        Reply.from_map(body).unwrap()
    return read_message(body, model)
