"""One good message of each kind, with every field set somewhere: what the golden bytes and the contract
tests are made from.

    python -m tests.wire.specimens        writes tests/wire/golden/ anew, for a change that is meant
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from reach.faults import Executed, Reason
from reach.wire import codec
from reach.wire.alert import Alert
from reach.wire.audit import AuditEntry
from reach.wire.card import CapabilityCard, Card
from reach.wire.control import Cancel, Credit, Drain, Ping, Pong
from reach.wire.envelope import Envelope
from reach.wire.frame import Frame
from reach.wire.idempotency import EntryState, IdempotencyEntry
from reach.wire.life import Gone, Goodbye, Heartbeat, Suspicion
from reach.wire.outcomes import InstanceOutcomes, LaneOutcomes, LatencySketch, Outcomes
from reach.wire.record import Attempt, ReachRecord
from reach.wire.registration import (
    Applied,
    CardEntry,
    DrainInstances,
    Explain,
    InstanceRow,
    LaneExplained,
    ListInstances,
    MembershipOrder,
    PermitAnswer,
    PermitAsk,
    PermitOutcome,
    Register,
    RegisterAgain,
    Registered,
    Resync,
    RouteAnswer,
    SetBreaker,
    SetCanary,
    SetRoute,
    Show,
)
from reach.wire.reply import Failure, Reply
from reach.wire.route import (
    Breaker,
    Canary,
    Figures,
    InstanceException,
    Lane,
    RouteEntry,
    StaticShare,
    Strategy,
    Terms,
    TierShare,
)
from reach.wire.task import TaskEvent, TaskOrder, TaskState
from reach.wire.trace import Hop, Trace
from reach.wire.unknown import (
    KeyStanding,
    ListUnknowns,
    Resolution,
    ResolveUnknown,
    ShowUnknown,
    Tried,
    UnknownAnswer,
    UnknownOutcome,
    UnknownRow,
    Verdict,
)

GOLDEN = Path(__file__).parent / "golden"
AT = 1_796_000_000_000
REPLY_TO = "reply.c7m2kq4x.a1"
INSTANCE = "invoice-extractor-k3m7q2xa"


@dataclass(frozen=True)
class Specimen:
    """A message, where it is said, and the map that goes through the codec."""

    message: str
    subject: str
    body: dict[str, Any]


def _trace(*hops: Hop) -> Trace:
    return Trace("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331", list(hops), AT - 5)


def envelopes() -> dict[str, Envelope]:
    """Give the smallest envelope and the fullest."""
    return {
        "envelope-small": Envelope(payload={"file_url": "https://files.example/R-17.pdf"}, message_id="m1"),
        "envelope-full": Envelope(
            payload={
                "text": "Zoë 发票 🧾",
                "raw": b"\x00\xff",
                "big": 2**64 - 1,
                "none": None,
                "x": [1.5, True],
            },
            message_id="mfrggzdfmztwq2lk",
            type="stream",
            source="finance-checker",
            target="invoice-extractor",
            session_id="s-1",
            tenant="north-trading",
            capability="invoice.extract",
            timeout_ms=4900,
            expires_at=AT + 4900,
            attempt=2,
            frames=True,
            idempotency_key="k-17",
            priority="core",
            task_id="close-2025-01",
            require={"lang": "zh"},
            prefer={"region": "south"},
            trigger={"turn": 3, "tool": "extract"},
            blob={"bucket": "reach_blobs_1h", "name": "gq4tmnrz", "size": 3_145_728},
            trace=_trace(Hop("gateway-1", AT - 5, 1.25, "invoice-extractor", "ok")),
            dedupe=False,
        ),
    }


def replies() -> dict[str, Reply]:
    """Give a success, the fullest success, and a refusal."""
    return {
        "reply-ok": Reply(
            ok=True,
            data={"number": "R-17", "total": "119.00"},
            message_id="m1",
            provider="invoice-extractor",
            instance=INSTANCE,
            latency_ms=12.5,
            reach_id="rch_mfrggzdfmztwq2lk",
        ),
        "reply-full": Reply(
            ok=True,
            message_id="m1",
            provider="invoice-extractor",
            instance=INSTANCE,
            attempt=2,
            latency_ms=0.5,
            degraded=True,
            degrade_level=1,
            cached=True,
            stale=True,
            duplicate=True,
            durable=False,
            retried=True,
            cost=0.25,
            notice="Figures may be a few minutes old.",
            reach_id="rch_mfrggzdfmztwq2lk",
            blob={"bucket": "reach_blobs_1h", "name": "gq4tmnrz", "size": 3_145_728},
            trace=_trace(Hop("a", AT, 3.0), Hop("b", AT + 1, 2.0)),
        ),
        "reply-failed": Reply(
            ok=False,
            error=Failure.of(
                Reason.OVERLOADED,
                executed=Executed.NO,
                retry_after_ms=250,
                limit={"name": "max_concurrency", "owner": INSTANCE, "used": 64, "allowed": 64},
                cause="DEADLINE",
            ),
            message_id="m1",
            provider="invoice-extractor",
            instance=INSTANCE,
            trace=_trace(Hop("a", AT, 3.0)),
        ),
    }


def frames() -> dict[str, Frame]:
    """Give a frame of each kind."""
    accepted = {"instance": INSTANCE, "generation": AT, "provider": "invoice-extractor"}
    return {
        "frame-accepted": Frame("m1", 0, "accepted", accepted),
        "frame-data": Frame("m1", 1, "data", "first part"),
        "frame-ping": Frame("m1", 1, "ping"),
        "frame-end": Frame("m1", 2, "end", {"ok": True, "latency_ms": 31.5}),
        "frame-error": Frame("m1", 2, "error", Failure.of(Reason.IDLE_STREAM).to_map()),
    }


def _record() -> ReachRecord:
    failed = Attempt(n=1, subject="cap.invoice.extract", took_ms=40.0, code="TIMEOUT", reason="DEADLINE")
    failed.executed, failed.decision = "maybe", "retry"
    done = Attempt(n=2, subject=f"inst.{INSTANCE}.invoice.extract", started_ms=41.0, took_ms=9.5)
    done.provider, done.instance, done.decision = "invoice-extractor", INSTANCE, "done"
    return ReachRecord(
        reach_id="rch_mfrggzdfmztwq2lk",
        at=AT,
        capability="invoice.extract",
        outcome="ok",
        provider="invoice-extractor",
        instance=INSTANCE,
        node="c7m2kq4x",
        latency_ms=50.5,
        retried=True,
        caller="c7m2kq4x",
        trace_id="0af7651916cd43dd8448eb211c80319c",
        attempts=[failed, done],
        phases={"admit_ms": 0.1, "choose_ms": 0.01, "wait_ms": 49.5, "handler_ms": 9.0},
        cached=True,
        stale=True,
        coalesced_with="rch_ovxgk3tdmfwgy2lo",
        batched_with="rch_onxw2zlunbuw4z3t",
        waiters=3,
    )


def task_events() -> dict[str, TaskEvent]:
    """Give a submission, and an end."""
    task: dict[str, Any] = {
        "task_id": "h3w3zhhm6es73svt",
        "capability": "ledger.reconcile",
        "tenant": "north-trading",
    }
    worker: dict[str, Any] = {"agent_id": "ledger", "instance": "ledger-k3m7q2xa", "generation": AT}
    return {
        "task-queued": TaskEvent(
            **task,
            state=TaskState.QUEUED,
            event_id="q1",
            at=AT,
            source="c7m2kq4x",
            envelope=Envelope(
                payload={"period": "2025-01"}, message_id="m1", type="task", expires_at=AT + 5000
            ),
            callback="https://desk.example/hooks/tasks",
            callback_states=["input_required", "completed"],
            notify="reply.c7m2kq4x.e.1",
        ),
        "task-failed": TaskEvent(
            **task,
            **worker,
            state=TaskState.FAILED,
            event_id="f1",
            at=AT + 900,
            attempt=2,
            lost=1,
            run=2,
            due=AT,
            checkpoint=41,
            error=Failure.of(Reason.OUTCOME_UNKNOWN, cause="WORKER_LOST"),
        ),
        "task-completed": TaskEvent(
            **task,
            **worker,
            state=TaskState.COMPLETED,
            event_id="c1",
            at=AT + 1000,
            attempt=1,
            data={"matched": 1000},
            sequence=44,
        ),
    }


def _outcomes() -> Outcomes:
    lane = LaneOutcomes(
        provider="invoice-extractor",
        capability="invoice.extract",
        ok=95,
        failed=3,
        excused=2,
        slow=1,
        failed_in_a_row=1,
        retries=3,
        cost=0.4,
        reasons={"DEADLINE": 1, "REMOTE_5XX": 2},
        latency=LatencySketch(e=5.0, i=71, n=(4, 0, 94)),
        instances=(InstanceOutcomes(instance=INSTANCE, calls=40, failed=3),),
    )
    return Outcomes(client="c7m2kq4x", boot=AT - 60_000, seq=58, at=AT, span_ms=1000, lanes=(lane,))


def _route() -> RouteEntry:
    warm = InstanceException(
        instance=INSTANCE,
        generation=AT,
        state="warmup",
        factor=0.2,
        since=AT,
        until=AT + 60_000,
        reason="new",
    )
    own = Lane(
        provider="invoice-extractor",
        instances=3,
        weight=0.6,
        terms=Terms(health=0.7, capacity=0.9),
        limit=65,
        figures=Figures(calls=900, success=0.985, p50_ms=20.0, p95_ms=60.5, p99_ms=110.0, cost=0.004),
        exceptions=(warm,),
    )
    stand_in = Lane(
        provider="document-reader",
        serves="document",
        priority=20,
        instances=2,
        breaker=Breaker(state="open", until=AT + 10_000, opened_in_a_row=1, why="12 of 20 calls failed"),
    )
    return RouteEntry(
        capability="invoice.extract",
        term=7,
        revision=41,
        at=AT,
        lanes=(own, stand_in),
        tiers=(TierShare(priority=10, share=1.0),),
        canary=Canary(version="2.4.0", labels={"pool": "blue"}, percent=5.0, callers=("finance-checker",)),
        strategy=Strategy(
            name="static",
            key="account_id",
            shares=(StaticShare(provider="invoice-extractor", labels={"pool": "blue"}, weight=2.0),),
        ),
        terms_off=("cost",),
    )


def _taking_part(card: Card) -> dict[str, tuple[str, BaseModel]]:
    """Give what instances and the supervisor say to each other, each with its subject."""
    order: dict[str, Any] = {"term": 7, "revision": 41, "generation": AT, "secret": "k3m7q2xa"}
    return {
        "register": ("reach.register", Register(card=card, server="NABC", connection=12)),
        "registered": (
            REPLY_TO,
            Registered(
                status="welcome",
                term=7,
                revision=41,
                tickets={"invoice.extract": 5},
                off_lane=("invoice.check",),
                secret="k3m7q2xa",
                supervisor="s7m2kq4x",
            ),
        ),
        "membership": (
            f"ctl.{INSTANCE}.membership",
            MembershipOrder(**order, tickets={"invoice.extract": 0}, off_lane=("invoice.extract",)),
        ),
        "register-again": (f"ctl.{INSTANCE}.register", RegisterAgain(**order)),
        "applied": (
            REPLY_TO,
            Applied(
                instance=INSTANCE,
                generation=AT,
                term=7,
                revision=41,
                applied=True,
                tickets={"invoice.extract": 0},
            ),
        ),
        "card-entry": ("", CardEntry(card=card, present=False, ended_at=AT, ended="lost", server="NABC")),
    }


def _probing_and_telling() -> dict[str, tuple[str, BaseModel]]:
    """Give what is said about lanes that are probed, and to people, each with its subject."""
    lane: dict[str, Any] = {"provider": "invoice-extractor", "capability": "invoice.extract"}
    subject = "reach.permit.invoice-extractor.invoice.extract"
    return {
        "permit-ask": (subject, PermitAsk(client="c7m2kq4x", **lane, expires_at=AT + 5000)),
        "permit": (REPLY_TO, PermitAnswer(permit="p1", expires_at=AT + 5000)),
        "permit-outcome": (
            subject,
            PermitOutcome(client="c7m2kq4x", **lane, permit="p1", failed=False, latency_ms=12.5),
        ),
        "alert": (
            "reach.alert.breaker",
            Alert(kind="breaker", subject="invoice-extractor invoice.extract", message="9 of 20", at=AT),
        ),
        "audit": (
            "reach.audit.default",
            AuditEntry(at=AT, who="jo", what="route.open", target="invoice-extractor", why="it lies"),
        ),
    }


def _commands() -> dict[str, tuple[str, BaseModel]]:
    """Give what operators say, and an answer, each with its subject."""
    who: dict[str, Any] = {"by": "jo", "reason": "month end"}
    one: dict[str, Any] = {**who, "capability": "invoice.extract"}
    row = InstanceRow(instance=INSTANCE, agent_id="invoice-extractor", generation=AT, heard_s=1.5)
    return {
        "set-route": (
            "reach.route.set",
            SetRoute(**one, weights={"invoice-extractor": 0.5}, terms_off=("cost",), dry_run=True),
        ),
        "set-canary": ("reach.route.canary", SetCanary(**one, canary=Canary(version="2.4.0", percent=5.0))),
        "set-breaker": ("reach.route.open", SetBreaker(**one, provider="invoice-extractor")),
        "drain-instances": (
            "reach.route.drain",
            DrainInstances(**who, target="invoice-extractor", timeout_s=30.0),
        ),
        "resync": ("reach.route.resync", Resync(**who)),
        "explain": ("reach.route.explain", Explain(**one, caller="c7m2kq4x", require={"lang": "zh"})),
        "show": ("reach.route.show", Show(**one)),
        "list-instances": ("reach.route.instances", ListInstances(**who, agent_id="invoice-extractor")),
        "route-answer": (
            REPLY_TO,
            RouteAnswer(
                message="calls go to tier 10",
                term=7,
                revision=41,
                after=_route(),
                lanes=(
                    LaneExplained(
                        provider="invoice-extractor", priority=10, share=1.0, weight=0.6, instances=(row,)
                    ),
                ),
            ),
        ),
    }


def _unknowns() -> dict[str, tuple[str, BaseModel]]:
    """Give what is said of calls whose outcome is unknown, each with its subject."""
    outcome = UnknownOutcome(
        reach_id="rch_3t7s0y2mkq4xw9ab",
        message_id="3t7s0y2mkq4xw9ab",
        capability="ledger.post",
        cause="INSTANCE_GONE",
        at=AT,
        began_at=AT - 1500,
        provider="ledger",
        instance="ledger-k3m7q2xa",
        source="c7m2kq4x",
        session_id="s-1",
        idempotency_key="order-17",
        store_key="k1",
        digest="5d41402abc4b2a76b9719d911017c592",
        parameters={"amount": 17},
        attempts=(Tried(n=1, subject="cap.ledger.post", instance="ledger-k3m7q2xa", took_ms=1500.0),),
    )
    resolution = Resolution(
        reach_id=outcome.reach_id, verdict=Verdict.EXECUTED, by="jo", at=AT, note="seen", result={"id": 17}
    )
    row = UnknownRow(outcome=outcome, sequence=12, resolution=resolution)
    return {
        "unknown": ("reach.unknown.default", outcome),
        "resolution": (f"reach.unknown.default.resolved.{outcome.reach_id}", resolution),
        "list-unknowns": ("reach.unknowns.list", ListUnknowns(by="jo", capability="ledger.*", since=AT)),
        "show-unknown": ("reach.unknowns.show", ShowUnknown(by="jo", id=outcome.reach_id)),
        "resolve-unknown": (
            "reach.unknowns.resolve",
            ResolveUnknown(by="jo", id=outcome.reach_id, verdict=Verdict.NOT_EXECUTED, note="not there"),
        ),
        "unknown-answer": (
            REPLY_TO,
            UnknownAnswer(
                message="1 open", rows=(row,), open=1, key=KeyStanding(state="unknown", lives=False)
            ),
        ),
    }


def _kept() -> IdempotencyEntry:
    return IdempotencyEntry(
        state=EntryState.DONE,
        capability="invoice.book",
        tenant="north-trading",
        instance="books-k3m7q2xa",
        generation=AT,
        digest="5d41402abc4b2a76b9719d911017c592",
        begun_at=AT + 10,
        nonce="n1",
        agent_id="books",
        lease_ttl_s=10.0,
        implicit=True,
        idempotent=True,
        done_at=AT + 20,
        executed=Executed.YES,
        reply=Reply(ok=True, data={"booked": 17}, message_id="m1", provider="books"),
        cause="DEADLINE",
        idempotency_key="order-17",
        message_id="m1",
        source="c7m2kq4x",
        session_id="s-1",
        task_id="close-2025-01",
        resolved_by="jo",
    )


def specimens() -> dict[str, Specimen]:
    """Give every specimen by name."""
    ids: dict[str, Any] = {"agent_id": "invoice-extractor", "instance": INSTANCE, "generation": AT}
    card = Card(
        **ids,
        display_name="Zoë’s 发票",
        capabilities=(
            CapabilityCard(
                tag="invoice.extract",
                idempotent=True,
                timeout_s=5.0,
                cost_weight=2.0,
                withdrawn="a worker process failed",
            ),
        ),
        labels={"tier": "gold"},
    )
    found = {
        name: Specimen("envelope", "cap.invoice.extract", envelope.to_map())
        for name, envelope in envelopes().items()
    }
    found |= {name: Specimen("reply", REPLY_TO, reply.to_map()) for name, reply in replies().items()}
    found |= {name: Specimen("frame", REPLY_TO, frame.to_map()) for name, frame in frames().items()}
    found |= {
        name: Specimen("task-event", event.subject, event.to_map()) for name, event in task_events().items()
    }
    order = TaskOrder(source="c7m2kq4x", attempt=1, event_id="i1", data="yes", reason="seen", probe=True)
    found["task-order"] = Specimen("task-order", "task.input.north-trading.h3w3zhhm6es73svt", order.to_map())
    found["idempotency-entry"] = Specimen("idempotency-entry", "", _kept().to_map())
    found["card"] = Specimen("card", "", card.model_dump(mode="json"))
    found["record"] = Specimen("record", "", _record().to_map())
    found["route"] = Specimen("route", "", _route().model_dump(mode="json"))
    for name, subject, message in (
        (
            "heartbeat",
            f"reach.heartbeat.{INSTANCE}",
            Heartbeat(**ids, at=AT, inflight=3, busy="101 requests wait"),
        ),
        ("goodbye", f"reach.goodbye.{INSTANCE}", Goodbye(**ids, at=AT, reason="drain")),
        ("gone", f"reach.gone.{INSTANCE}.{AT}", Gone(instance=INSTANCE, generation=AT, at=AT + 500)),
        (
            "suspicion",
            "reach.suspect.invoice.extract",
            Suspicion(capability="invoice.extract", subject="cap.invoice.extract", waited_ms=151),
        ),
        ("cancel", f"ctl.{INSTANCE}.cancel", Cancel(message_id="m1", attempt=2)),
        ("credit", f"ctl.{INSTANCE}.credit", Credit(stream_id="m1", bytes=262_144)),
        ("ping", f"ctl.{INSTANCE}.ping", Ping(at=AT)),
        ("pong", REPLY_TO, Pong(instance=INSTANCE, generation=AT, at=AT, inflight=3)),
        ("outcomes", "reach.outcomes.c7m2kq4x", _outcomes()),
        ("drain", f"ctl.{INSTANCE}.drain", Drain(term=7, revision=41, timeout_s=30.0)),
    ):
        found[name] = Specimen(name, subject, message.model_dump(mode="json"))
    said_by_all = _taking_part(card) | _probing_and_telling() | _commands() | _unknowns()
    for name, (subject, said) in said_by_all.items():
        found[name] = Specimen(name, subject, said.model_dump(mode="json"))
    return found


def write() -> None:
    """Write the golden bytes of every specimen."""
    GOLDEN.mkdir(exist_ok=True)
    for name, specimen in specimens().items():
        (GOLDEN / f"{name}.bin").write_bytes(codec.pack(specimen.body))
        (GOLDEN / f"{name}.json").write_bytes(codec.pack_json(specimen.body))


if __name__ == "__main__":
    write()
