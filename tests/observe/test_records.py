"""One record a call, whatever its end, and never at the call's cost (SEE-3)."""

import io
import json
import logging
import stat
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reach.errors import ConfigError
from reach.observe.logs import AccessLog
from reach.observe.records import JsonLinesSink, Kept, MemorySink, NullSink, Recorder, Thinning, sink_for
from reach.testing.clock import ManualClock
from reach.wire.record import Attempt, Outcome, ReachRecord

OUTCOMES: tuple[Outcome, ...] = ("ok", "failed", "cancelled")


def record(number: int = 0, outcome: Outcome = "ok", **fields: object) -> ReachRecord:
    """A record as the pipeline makes it."""
    made = ReachRecord(
        reach_id=f"rch_{number:016d}",
        at=1_735_689_600_000 + number,
        capability="invoice.extract",
        outcome=outcome,
        attempts=[Attempt(n=1, subject="cap.invoice.extract", took_ms=3.1, decision="done")],
        phases={"wait_ms": 3.0},
    )
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def lines_of(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_exactly_one_record_for_every_kind_of_end(outcome: Outcome) -> None:
    """SEE-3: a call that was answered, failed or was cancelled leaves one record, in order."""
    recorder = Recorder(sink := MemorySink())
    for number in range(5):
        recorder.write(record(number, outcome))
    assert [f"rch_{number:016d}" for number in range(5)] == [kept.reach_id for kept in sink.records]


def test_lines_hold_the_whole_record(tmp_path: Path) -> None:
    """SEE-3: a line is the record's wire form, readable by itself; text of any kind survives."""
    recorder = Recorder(JsonLinesSink(tmp_path / "records.jsonl"))
    made = record(7, "failed", code="TIMEOUT", reason="DEADLINE", session_id="Zoë 会话 \ud800")
    recorder.write(made)
    recorder.close()
    assert [made.to_map()] == lines_of(tmp_path / "records.jsonl")


def test_nothing_is_lost_at_the_end(tmp_path: Path) -> None:
    """SEE-3: closing writes everything that was put before, however fast that was."""
    recorder = Recorder(JsonLinesSink(tmp_path / "records.jsonl"))
    for number in range(3_000):
        recorder.write(record(number, "failed"))
    recorder.close()
    assert [f"rch_{number:016d}" for number in range(3_000)] == [
        line["reach_id"] for line in lines_of(tmp_path / "records.jsonl")
    ]


def test_a_second_keeps_its_share_of_successes() -> None:
    """SEE-3: up to 500 a second all successes are kept, each at rate 1."""
    clock = ManualClock()
    recorder = Recorder(sink := MemorySink(), clock=clock)
    for _ in range(3):
        for number in range(500):
            recorder.write(record(number))
        clock.advance(1.0)
    assert [1.0] * 1_500 == [kept.sample_rate for kept in sink.kept]


def test_failures_are_kept_above_the_rate() -> None:
    """SEE-3: however many there are, failures and cancelled calls are all kept, at rate 1."""
    recorder = Recorder(sink := MemorySink(), rate_per_s=10, clock=ManualClock())
    for number in range(2_000):
        recorder.write(record(number, OUTCOMES[number % 3]))
    ends = [kept.record.outcome for kept in sink.kept]
    assert (666, 667) == (ends.count("cancelled"), ends.count("failed"))
    assert {1.0} == {kept.sample_rate for kept in sink.kept if kept.record.outcome != "ok"}


def test_thinned_successes_say_their_rate() -> None:
    """SEE-3: under a steady 40 000 a second about 500 are kept, and their rates add up to all of them."""
    clock = ManualClock()
    recorder = Recorder(sink := MemorySink(), clock=clock)
    last = 0
    for _ in range(10):
        before = len(sink.kept)
        for _ in range(40):
            for _ in range(1_000):
                recorder.write(record())
            clock.advance(0.025)
        last = len(sink.kept) - before
    assert 250 <= last <= 500
    assert sum(1 / kept.sample_rate for kept in sink.kept) == pytest.approx(400_000, rel=0.005)


@given(
    seconds=st.lists(st.integers(min_value=0, max_value=3_000), min_size=1, max_size=8),
    share=st.integers(min_value=1, max_value=100),
)
def test_rates_always_add_up(seconds: list[int], share: int) -> None:
    """SEE-3: whatever the load does, the kept stand for all but the group that is under way."""
    thinning = Thinning(share)
    stood_for, last = 0, 1
    for second, calls in enumerate(seconds):
        kept = 0
        for call in range(calls):
            if thinning.keep(second + call / (calls + 1)):
                kept += 1
                last = thinning.every
                stood_for += last
        assert kept <= share + 12 * max(1, share // 16)
    assert sum(seconds) <= stood_for <= sum(seconds) + last - 1 or sum(seconds) == 0


def test_a_full_queue_drops_and_says_so(tmp_path: Path) -> None:
    """SEE-3: the queue is bounded; what found no room is counted and stands in a line of its own."""
    free = threading.Event()

    class Slow(JsonLinesSink):
        def write(self, kept: Sequence[Kept], lost: int) -> None:
            free.wait(10)
            super().write(kept, lost)

    recorder = Recorder(Slow(tmp_path / "records.jsonl"), queue_limit=10)
    for number in range(100):
        recorder.write(record(number, "failed"))
    free.set()
    assert recorder.flush()
    recorder.write(record(100, "failed"))
    recorder.close()
    lines = lines_of(tmp_path / "records.jsonl")
    gaps = [line["gap"] for line in lines if "gap" in line]
    kept = [line for line in lines if "gap" not in line]
    assert recorder.lost == sum(gap["lost"] for gap in gaps)  # type: ignore[index]  # read from JSON
    assert 101 == len(kept) + recorder.lost
    assert recorder.lost > 0


def test_a_sink_that_fails_costs_no_call(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    """SEE-3: a full disk raises nowhere; it is logged once, counted, and told in a line when there is room."""

    class Full(JsonLinesSink):
        failing = True

        def write(self, kept: Sequence[Kept], lost: int) -> None:
            if self.failing:
                raise OSError(28, "No space left on device")
            super().write(kept, lost)

    recorder = Recorder(sink := Full(tmp_path / "records.jsonl"))
    with caplog.at_level(logging.ERROR, logger="reach.observe"):
        for _ in range(3):
            recorder.write(record(0, "failed"))
            recorder.flush()
    assert 1 == len(caplog.messages)
    assert "reach records cannot write (1 lost so far): OSError" in caplog.text
    sink.failing = False
    recorder.write(record(9, "failed"))
    recorder.close()
    assert [{"lost": 3}, None] == [line.get("gap") for line in lines_of(tmp_path / "records.jsonl")]
    assert 3 == recorder.lost


def test_records_that_go_nowhere_are_not_asked_for() -> None:
    """SEE-7: with records off and no access line due, the pipeline need not build a record."""
    recorder = Recorder(NullSink(), access=AccessLog(success_sample=0.0))
    assert not recorder.wants(ok=True)


def test_the_access_log_is_fed_too(caplog: pytest.LogCaptureFixture) -> None:
    """SEE-1: whoever writes a record need not know of the access log."""
    recorder = Recorder(NullSink())
    with caplog.at_level(logging.INFO, logger="reach.access"):
        recorder.write(record(3, "failed"))
        recorder.close()
    assert ["rch_0000000000000003"] == [json.loads(line)["reach_id"] for line in caplog.messages]


def test_the_setting_chooses_the_sink(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`REACH_RECORDS` is a path, `stderr`, `off`; unset is the state folder, and nothing without one."""
    assert isinstance(sink_for("off", folder=tmp_path), NullSink)
    assert isinstance(sink_for(None, folder=None), NullSink)
    for setting, path in (
        (None, tmp_path / "records.jsonl"),
        (f"{tmp_path}/a/b.jsonl", tmp_path / "a/b.jsonl"),
    ):
        recorder = Recorder(sink_for(setting, folder=tmp_path))
        recorder.write(record())
        recorder.close()
        assert 1 == len(lines_of(path))
        assert 0o600 == stat.S_IMODE(path.stat().st_mode)
    recorder = Recorder(sink_for("stderr", folder=tmp_path))
    recorder.write(record(5))
    recorder.close()
    assert "rch_0000000000000005" in capsys.readouterr().err


def test_a_path_that_cannot_be_written_is_refused_at_the_start(tmp_path: Path) -> None:
    """A wrong `REACH_RECORDS` is told when it is read, with what would be right."""
    with pytest.raises(ConfigError, match=r"REACH_RECORDS: .* cannot be written .* or `off`"):
        sink_for(str(tmp_path), folder=None)


def test_a_stream_that_was_handed_in_stays_open() -> None:
    """Closing the sink does not close what belongs to others."""
    stream = io.StringIO()
    recorder = Recorder(JsonLinesSink(stream))
    recorder.write(record(1))
    recorder.close()
    assert "rch_0000000000000001" == json.loads(stream.getvalue())["reach_id"]
