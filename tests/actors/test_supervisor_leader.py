"""Who leads, decided without a bus: steps and answers, lost ones too, and never two at once."""

from hypothesis import given
from hypothesis import strategies as st

from actors.supervisor.leader import (
    LOOK_S,
    MARGIN_S,
    PATIENCE_S,
    RENEW_S,
    TTL_S,
    Election,
    Hold,
    Look,
    Seat,
    Seen,
    Step,
)

FREE = Seen(None, 0)


def leading(now: float = 100.0) -> Election:
    """An election won at `now`, with the key's sequence 7."""
    election = Election("me")
    assert Look() == election.step(now)
    assert Hold(0) == election.looked(FREE, now)
    assert election.held(7, now)
    return election


def test_a_free_key_is_taken_and_its_sequence_is_the_term() -> None:
    """Found free, the key is written at once, and who wrote it leads with that write's sequence as term."""
    election = leading()
    assert (Seat.LEADING, 7, 7) == (election.seat, election.term, election.guard(100.0))
    assert election.leads(100.0 + TTL_S - MARGIN_S - 0.01)


def test_an_expired_key_is_taken_on_its_marker() -> None:
    """The marker of an expired key has a sequence, and the taking write names it."""
    election = Election("me")
    election.step(0.0)
    assert Hold(41) == election.looked(Seen(None, 41), 0.0)


def test_a_follower_looks_again_in_a_while() -> None:
    """While somebody else holds the key, a follower looks each quarter of a second and does nothing else."""
    election = Election("me")
    election.step(0.0)
    assert None is election.looked(Seen("other", 3), 0.0)
    assert None is election.step(LOOK_S / 2)
    assert Look() == election.step(LOOK_S)
    assert (Seat.FOLLOWING, None) == (election.seat, election.guard(0.1))


def test_the_key_is_renewed_each_half_second_and_the_guard_follows() -> None:
    """A renewal names the last sequence; while it is under way nothing may be written, then the new one guards."""
    election = leading()
    assert None is election.step(100.0 + RENEW_S - 0.01)
    assert Hold(7) == election.step(100.0 + RENEW_S)
    assert None is election.guard(100.0 + RENEW_S)
    assert not election.held(9, 100.0 + RENEW_S + 0.01)
    assert (7, 9) == (election.term, election.guard(100.0 + RENEW_S + 0.01))


def test_who_loses_the_race_for_a_free_key_follows() -> None:
    """Of two that found it free one is refused, and follows."""
    election = Election("me")
    election.step(0.0)
    election.looked(FREE, 0.0)
    election.refused(0.01)
    assert (Seat.FOLLOWING, None) == (election.seat, election.guard(0.02))


def test_a_leader_believes_no_longer_than_the_key_lives() -> None:
    """Without a renewal it leads no more a margin before the server's key ends, counted from when it asked."""
    election = leading()
    election.step(100.0 + TTL_S)
    assert (Seat.FOLLOWING, False) == (election.seat, election.leads(100.0 + TTL_S))


def test_a_refused_renewal_is_looked_into_before_it_is_believed() -> None:
    """It may have been our own write whose answer was lost: then leading goes on with the sequence that is there."""
    election = leading()
    election.step(100.5)
    election.refused(100.51)
    assert None is election.guard(100.51)
    assert Look() == election.step(100.52)
    assert None is election.looked(Seen("me", 8), 100.53)
    assert (Seat.LEADING, 8) == (election.seat, election.guard(100.53))


def test_a_key_that_somebody_else_holds_ends_the_leadership() -> None:
    """After a refusal the look finds another's name: it follows at once."""
    election = leading()
    election.doubt()
    assert None is election.guard(100.1)
    assert Look() == election.step(100.1)
    assert None is election.looked(Seen("other", 9), 100.1)
    assert (Seat.FOLLOWING, None) == (election.seat, election.guard(100.1))


def test_a_lost_answer_to_a_renewal_leaves_a_doubt() -> None:
    """An answer that does not come may have been a refusal: the key is looked at, and nothing written until then."""
    election = leading()
    election.step(100.5)
    assert Look() == election.step(100.5 + PATIENCE_S)
    assert None is election.guard(100.5 + PATIENCE_S)


def test_late_answers_of_earlier_questions_do_not_count() -> None:
    """An answer that comes when nothing is asked, or something else, changes nothing."""
    election = Election("me")
    assert not election.held(5, 0.0)
    election.refused(0.0)
    assert None is election.looked(FREE, 0.0)
    assert Seat.FOLLOWING is election.seat


def test_a_key_that_was_ours_without_our_knowledge_is_renewed_first() -> None:
    """The answer to our taking was lost; found to be ours, the key is written again, and that is the term."""
    election = Election("me")
    election.step(0.0)
    election.looked(FREE, 0.0)
    election.step(PATIENCE_S)
    assert Seat.FOLLOWING is election.seat
    assert Hold(3) == election.looked(Seen("me", 3), PATIENCE_S + 0.01)
    assert election.held(4, PATIENCE_S + 0.02)
    assert 4 == election.term


class Server:
    """The key as a server keeps it: sequences, an end two seconds after the last write, compare-and-set."""

    def __init__(self) -> None:
        self.sequence = 0
        self.last = 0
        self.holder = ""
        self.ends = -1.0

    def expire(self, now: float) -> None:
        if self.holder and now >= self.ends:
            self.sequence += 1
            self.last, self.holder = self.sequence, ""

    def hold(self, name: str, expected: int, now: float) -> int | None:
        self.expire(now)
        if expected != self.last:
            return None
        self.sequence += 1
        self.last, self.holder, self.ends = self.sequence, name, now + TTL_S
        return self.sequence

    def table(self, expected: int, now: float) -> bool:
        """Whether a write to the table that names this sequence is taken."""
        self.expire(now)
        return expected == self.last and bool(self.holder)


MOVES = st.lists(
    st.tuples(st.integers(0, 2), st.sampled_from(["quick", "quick", "lost", "slow"]), st.floats(0.01, 0.6)),
    min_size=5,
    max_size=80,
)


@given(MOVES)
def test_never_do_two_lead_nor_write(moves: list[tuple[int, str, float]]) -> None:
    """LIFE-8: whatever is lost or late, at most one believes that it leads, and only its writes are taken."""
    server, now = Server(), 0.0
    elections = [Election(f"s{number}") for number in range(3)]

    def answer(election: Election, step: Step | None, fate: str) -> None:
        while step is not None:
            if isinstance(step, Look):
                server.expire(now)
                seen = Seen(server.holder or None, server.last)
                step = election.looked(seen, now) if fate != "lost" else None
                continue
            sequence = server.hold(election.name, step.expected, now)
            step = None
            if fate == "lost":
                return
            if sequence is None:
                election.refused(now)
            else:
                election.held(sequence, now)

    for who, fate, pause in moves:
        now += pause + (1.0 if fate == "slow" else 0.0)
        election = elections[who]
        answer(election, election.step(now), fate)
        leaders = [one for one in elections if one.leads(now)]
        assert len(leaders) <= 1
        writers = [
            one for one in elections if (guard := one.guard(now)) is not None and server.table(guard, now)
        ]
        assert all(writer in leaders for writer in writers)
