"""The life of an idempotency entry, as tables, and as a machine that crashes at every step (IDEM-1 to IDEM-3)."""

from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule
from msgspec.structs import replace

from reach.faults import Executed, Reason
from reach.policy.dedupe import KEPT_S, NOTICE_EN, WINDOW_S
from reach.policy.idempotency import (
    MOVES,
    Asking,
    Begin,
    Give,
    Late,
    Owner,
    Refuse,
    Wait,
    check_move,
    decide,
    end_of,
    given_again,
    late_word,
)
from reach.wire.idempotency import EntryState, IdempotencyEntry
from reach.wire.reply import Failure, Reply

NOW_MS = 1_796_000_000_000
DIGEST = "d" * 32


def entry(state: EntryState = EntryState.RUNNING, **facts: Any) -> IdempotencyEntry:
    usual: dict[str, Any] = {
        "capability": "a.b",
        "tenant": "default",
        "instance": "one-aaaaaaaa",
        "generation": 1,
        "digest": DIGEST,
        "begun_at": NOW_MS - 1000,
    }
    return IdempotencyEntry(state=state, **(usual | facts))


def asking(**facts: Any) -> Asking:
    usual: dict[str, Any] = {
        "capability": "a.b",
        "digest": DIGEST,
        "idempotent": False,
        "waited_s": 0.0,
        "left_s": 5.0,
        "usual_ms": 100.0,
        "now_ms": NOW_MS,
    }
    return Asking(**(usual | facts))


@pytest.mark.parametrize("owner", list(Owner))
def test_a_free_key_is_begun(owner: Owner) -> None:
    """IDEM-1: nothing there, or something released at a revision, is followed by an entry of ours."""
    assert Begin(0) == decide(None, 0, owner, asking())
    assert Begin(17) == decide(None, 17, owner, asking())


@pytest.mark.parametrize("state", [EntryState.RUNNING, EntryState.DONE, EntryState.UNKNOWN])
@pytest.mark.parametrize("owner", list(Owner))
def test_other_parameters_are_refused(state: EntryState, owner: Owner) -> None:
    """IDEM-2: whatever became of the first, another payload under its key is not done."""
    decision = decide(entry(state, done_at=NOW_MS), 3, owner, asking(digest="e" * 32))
    assert isinstance(decision, Refuse)
    assert (Reason.KEY_REUSED, Executed.NO, False) == (
        decision.failure.reason,
        decision.failure.executed,
        decision.declare,
    )


@pytest.mark.parametrize(
    ("implicit", "age_s", "holds"),
    [
        (False, KEPT_S - 1, True),
        (False, KEPT_S + 1, False),
        (True, WINDOW_S - 1, True),
        (True, WINDOW_S + 1, False),
    ],
)
def test_what_is_done_holds_for_its_time(implicit: bool, age_s: float, holds: bool) -> None:
    """IDEM-4, IDEM-5: a result is given again for 24 hours, an implied key's for ten minutes; then it is as none."""
    done_at = NOW_MS - int(age_s * 1000)
    done = entry(EntryState.DONE, implicit=implicit, done_at=done_at, reply=Reply(ok=True, data=7))
    decision = decide(done, 3, Owner.GONE, asking())
    assert holds == isinstance(decision, Give)
    if isinstance(decision, Give):
        assert (7, True, NOTICE_EN if implicit else None) == (
            decision.reply.data,
            decision.reply.duplicate,
            decision.reply.notice,
        )
    else:
        assert Begin(3) == decision


@pytest.mark.parametrize("age_s", [0, 600, 86_400, 10 * 86_400])
def test_what_runs_is_not_judged_by_its_age(age_s: int) -> None:
    """IDEM-1, IDEM-3: as long as whoever has it is there, or merely silent, a call that runs is waited for."""
    old = entry(begun_at=NOW_MS - age_s * 1000)
    for owner in (Owner.ALIVE, Owner.SILENT):
        assert isinstance(decide(old, 3, owner, asking()), Wait)
        late = decide(old, 3, owner, asking(left_s=0.0))
        assert isinstance(late, Refuse)
        assert (Reason.IN_PROGRESS, False) == (late.failure.reason, late.declare)
        assert 100 <= (late.failure.retry_after_ms or 0) <= 10_000


@pytest.mark.parametrize(
    ("declared", "idempotent", "takes_over"),
    [(True, True, True), (True, False, False), (False, True, False), (False, False, False)],
)
def test_what_is_left_behind(declared: bool, idempotent: bool, takes_over: bool) -> None:
    """IDEM-3: gone with an idempotent call: taken over, where both say that it is; with another: nobody knows."""
    decision = decide(entry(idempotent=declared), 3, Owner.GONE, asking(idempotent=idempotent))
    if takes_over:
        assert Begin(3, takes_over=True) == decision
    else:
        assert isinstance(decision, Refuse)
        assert (True, Reason.OUTCOME_UNKNOWN, "INSTANCE_GONE") == (
            decision.declare,
            decision.failure.reason,
            decision.failure.cause,
        )


def test_what_was_never_begun_is_begun() -> None:
    """IDEM-1: an entry of an instance that says itself that it does not run it hides nothing."""
    assert Begin(3, takes_over=True) == decide(entry(), 3, Owner.IDLE, asking())


@pytest.mark.parametrize(
    ("waited_s", "left_s", "look_s"),
    [(0.0, 5.0, 0.010), (0.4, 5.0, 0.1), (60.0, 5.0, 0.25), (60.0, 0.02, 0.02)],
)
def test_looks_become_rarer(waited_s: float, left_s: float, look_s: float) -> None:
    """Whoever waits looks after a quarter of the wait so far, between 10 and 250 ms, and never beyond its time."""
    assert Wait(pytest.approx(look_s)) == decide(
        entry(), 3, Owner.ALIVE, asking(waited_s=waited_s, left_s=left_s)
    )


@pytest.mark.parametrize(
    ("executed", "idempotent", "state"),
    [
        (None, False, EntryState.DONE),
        (None, True, EntryState.DONE),
        (Executed.YES, False, EntryState.DONE),
        (Executed.YES, True, EntryState.DONE),
        (Executed.NO, False, EntryState.RELEASED),
        (Executed.NO, True, EntryState.RELEASED),
        (Executed.MAYBE, False, EntryState.UNKNOWN),
        (Executed.MAYBE, True, EntryState.RELEASED),
    ],
)
def test_how_a_handler_ends_decides_the_entry(
    executed: Executed | None, idempotent: bool, state: EntryState
) -> None:
    """IDEM-1, IDEM-5: what was executed is kept, what was not is released, what may have been is for a person."""
    assert state is end_of(executed, idempotent=idempotent)
    check_move(EntryState.RUNNING, state)


def test_illegal_moves_raise() -> None:
    """What is done is never unknown, and what is unknown never runs by itself again."""
    for state, to in [
        (EntryState.DONE, EntryState.UNKNOWN),
        (EntryState.DONE, EntryState.RELEASED),
        (EntryState.UNKNOWN, EntryState.RUNNING),
        (None, EntryState.UNKNOWN),
    ]:
        with pytest.raises(ValueError, match="cannot become"):
            check_move(state, to)
    assert set(EntryState) | {None} == set(MOVES)


@pytest.mark.parametrize(
    ("there", "to", "late"),
    [
        (None, EntryState.DONE, Late.AGAIN),
        (None, EntryState.UNKNOWN, Late.LEAVE),
        (entry(EntryState.RUNNING, nonce="n"), EntryState.DONE, Late.AGAIN),
        (entry(EntryState.RUNNING, nonce="n"), EntryState.UNKNOWN, Late.AGAIN),
        (entry(EntryState.UNKNOWN, nonce="n"), EntryState.DONE, Late.AGAIN),
        (entry(EntryState.UNKNOWN, nonce="n"), EntryState.RELEASED, Late.LEAVE),
        (entry(EntryState.DONE, nonce="n"), EntryState.DONE, Late.LEAVE),
        (entry(EntryState.RUNNING, nonce="other"), EntryState.DONE, Late.LEAVE),
        (entry(EntryState.DONE, nonce="other"), EntryState.DONE, Late.LEAVE),
    ],
)
def test_the_late_word(there: IdempotencyEntry | None, to: EntryState, late: Late) -> None:
    """IDEM-3: who was taken for gone may still say how it ended, unless somebody else has the call."""
    assert late is late_word(there, "n", to)


def test_a_reply_is_given_again_as_it_was() -> None:
    """IDEM-2: data, blob and cost as they were; marked, and without what belonged to the first call's way."""
    first = Reply(ok=True, data=[1], cost=0.5, retried=True, notice="as of yesterday")
    again = given_again(first, implicit=False)
    assert replace(first, duplicate=True, retried=False) == again


class CrashingCalls(RuleBasedStateMachine):
    """Calls of one key at several instances, each of which may crash, hang or be late between any two steps.

    The store is one cell with a revision, as the bucket gives it. A worker is one run: it looks, writes its entry, has
    the effect, and writes the end; each is a step of its own. Nobody resolves anything.
    """

    workers = Bundle("workers")

    def __init__(self) -> None:
        super().__init__()
        self.idempotent = False
        self.revision = 0
        self.cell: IdempotencyEntry | None = None
        self.effects = 0
        self.known = 0
        self.dead: set[str] = set()
        self.number = 0
        self.told: list[object] = []

    def _write(self, after: int, value: IdempotencyEntry | None) -> bool:
        if after != (0 if self.revision == 0 else self.revision):
            return False
        check_move(
            None if self.cell is None else self.cell.state,
            EntryState.RELEASED if value is None else value.state,
        )
        self.revision += 1
        self.cell = value
        return True

    @rule(target=workers)
    def arrive(self) -> dict[str, Any]:
        """A call comes to an instance of its own."""
        self.number += 1
        return {"name": f"i-{self.number}", "at": "look", "entry": None, "revision": 0, "after": 0}

    @rule(worker=workers, judged_gone=st.booleans())
    def step(self, worker: dict[str, Any], judged_gone: bool) -> None:
        """Go one step on; the owner of what is there is gone if it is dead, or is wrongly taken for gone."""
        if worker["name"] in self.dead:
            return
        match worker["at"]:
            case "look":
                self._look(worker, judged_gone)
            case "entry":
                mine = entry(instance=worker["name"], idempotent=self.idempotent, nonce=worker["name"])
                if self._write(worker["after"], mine):
                    worker.update(at="effect", entry=mine, revision=self.revision)
                else:
                    worker["at"] = "look"
            case "effect":
                self.effects += 1
                worker["at"] = "end"
            case "end":
                self._end(worker, EntryState.DONE)

    def _look(self, worker: dict[str, Any], judged_gone: bool) -> None:
        owner = Owner.ALIVE
        if self.cell is not None and self.cell.state is EntryState.RUNNING:
            owner = Owner.GONE if self.cell.instance in self.dead or judged_gone else Owner.SILENT
        decision = decide(self.cell, self.revision, owner, asking(idempotent=self.idempotent))
        match decision:
            case Begin():
                worker.update(at="entry", after=decision.after)
            case Refuse(declare=True):
                assert self.cell is not None
                self._write(self.revision, replace(self.cell, state=EntryState.UNKNOWN))
            case Give() | Refuse():
                self.told.append(decision)
                worker["at"] = "told"

    def _end(self, worker: dict[str, Any], to: EntryState) -> None:
        mine = replace(worker["entry"], state=to, done_at=NOW_MS, reply=Reply(ok=True, data=worker["name"]))
        value = None if to is EntryState.RELEASED else mine
        if self._write(worker["revision"], value):
            worker["at"] = "told"
        elif late_word(self.cell, mine.nonce, to) is Late.AGAIN:
            worker["revision"] = self.revision
        else:
            worker["at"] = "told"

    @rule(worker=workers)
    def crash(self, worker: dict[str, Any]) -> None:
        """Its process is killed."""
        self.dead.add(worker["name"])

    @rule(worker=workers)
    def give_up(self, worker: dict[str, Any]) -> None:
        """Its caller leaves: what has begun may have been done, what has not is released."""
        if worker["name"] in self.dead:
            return
        if worker["at"] == "end":
            self._end(worker, end_of(Executed.MAYBE, idempotent=self.idempotent))
        elif worker["at"] == "effect":
            self._end(worker, EntryState.RELEASED)
        elif worker["at"] in {"look", "entry"}:
            worker["at"] = "told"

    @invariant()
    def a_write_has_one_effect(self) -> None:
        """IDEM-1: nothing that happens anywhere does a write twice."""
        assert self.idempotent or self.effects <= 1

    @invariant()
    def all_are_told_the_same(self) -> None:
        """IDEM-2: once there is a result, every duplicate has that one."""
        given = {decision.reply.data for decision in self.told if isinstance(decision, Give)}
        assert self.idempotent or len(given) <= 1


class CrashingReads(CrashingCalls):
    """The same with a capability that may be repeated: no call is ever stuck."""

    def __init__(self) -> None:
        super().__init__()
        self.idempotent = True

    @invariant()
    def nothing_is_unknown(self) -> None:
        """IDEM-3: what is idempotent is never left to a person."""
        assert self.cell is None or self.cell.state is not EntryState.UNKNOWN


TestCrashingCalls = CrashingCalls.TestCase
TestCrashingReads = CrashingReads.TestCase


def test_a_failure_is_given_again_too() -> None:
    """IDEM-5: a failure that was executed is what duplicates get."""
    failed = entry(
        EntryState.DONE,
        done_at=NOW_MS,
        reply=Reply(ok=False, error=Failure.of(Reason.REMOTE_4XX, "no such account")),
    )
    decision = decide(failed, 3, Owner.GONE, asking())
    assert isinstance(decision, Give)
    assert decision.reply.error is not None
    assert (True, "no such account") == (decision.reply.duplicate, decision.reply.error.message)
