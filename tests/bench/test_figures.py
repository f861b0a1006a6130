"""The benchmark's arithmetic, without a load: medians of runs, ratios, records that stand for many, the document."""

import json
from pathlib import Path

import pytest

from bench.hotspots import room_of
from bench.load import Outcome, payload_of, percentile_us
from bench.measure import Cell, Cost, Plan, failures, summary
from bench.proofs import count_records
from bench.report import TEXT_BEGIN, TEXT_END, Findings, verdicts, write_document
from bench.soak import Memory, Soaked
from bench.startup import Startup
from reach.wire import codec


def outcome(*, rate: float, p50_us: float = 100.0, failed: int = 0) -> Outcome:
    """Give what a contender did in one second at a rate."""
    calls = int(rate)
    return Outcome(
        calls=calls,
        seconds=1.0,
        made=calls + failed,
        failed=failed,
        failure="WrongReply: no" if failed else "",
        p50_us=p50_us,
        p99_us=2 * p50_us,
    )


def cell(contender: str, *, run: int, rate: float, concurrency: int = 64, p50_us: float = 100.0) -> Cell:
    """Give one turn."""
    return Cell(run, concurrency, contender, outcome(rate=rate, p50_us=p50_us), Cost(10.0, 5.0, 8.0))


@pytest.mark.parametrize("size", [40, 200, 250])
def test_the_payload_has_the_size_that_is_told(size: int) -> None:
    """SPEED-1 speaks of 200 bytes: that is what msgpack makes of the parameters."""
    assert size == len(codec.pack(payload_of(size)))


def test_a_percentile_is_one_of_the_latencies() -> None:
    """Nearest rank, of sorted latencies, in microseconds; none of none."""
    latencies_s = [0.001, 0.002, 0.003, 0.004]

    assert 3000 == percentile_us(latencies_s, 50)
    assert 4000 == percentile_us(latencies_s, 99)
    assert 0 == percentile_us([], 50)


def test_the_ratio_is_the_median_of_the_runs_ratios() -> None:
    """SPEED-1: a run in which the machine was slow for both sides counts like the others."""
    cells = [
        *(cell("nats", run=1, rate=1000), cell("reach", run=1, rate=900)),
        *(cell("nats", run=2, rate=100), cell("reach", run=2, rate=80)),
        *(cell("nats", run=3, rate=1000), cell("reach", run=3, rate=700)),
    ]

    lines = {line.contender: line for line in summary(cells)}

    assert 1.0 == lines["nats"].ratio
    assert 0.8 == lines["reach"].ratio
    assert 700 == lines["reach"].rate


def test_turns_of_a_run_are_averaged_before_they_are_compared() -> None:
    """SPEED-1: one slow turn of two halves the difference, and does not decide the run."""
    cells = [
        *(cell("nats", run=1, rate=1000), cell("reach", run=1, rate=1000)),
        *(cell("nats", run=1, rate=1000), cell("reach", run=1, rate=500)),
    ]

    assert [1.0, 0.75] == [line.ratio for line in summary(cells)]


def test_added_latency_is_the_difference_of_medians() -> None:
    """SPEED-1: what a governed call adds to the median of one caller."""
    cells = [
        cell("nats", run=1, rate=10, concurrency=1, p50_us=80),
        cell("reach", run=1, rate=10, concurrency=1, p50_us=140),
    ]

    assert [0, 60] == [line.added_p50_us for line in summary(cells)]


def test_without_the_bare_line_there_is_no_ratio() -> None:
    """What was not measured in the same run is not compared."""
    (line,) = summary([cell("reach", run=1, rate=100)])

    assert (None, None) == (line.ratio, line.added_p50_us)


def test_wrong_replies_are_told() -> None:
    """Every reply is checked: a fast wrong answer is a failure of the benchmark."""
    bad = Cell(1, 64, "reach", outcome(rate=10, failed=2), None)

    assert ["reach at 64: 2 of 12: WrongReply: no"] == failures([cell("nats", run=1, rate=5), bad])


def test_promised_bounds_are_held_against_what_was_found() -> None:
    """SPEED-1, SPEED-6: each bound has its own line, kept or not."""
    cells = [
        *(cell("nats", run=1, rate=1000), cell("reach", run=1, rate=760)),
        cell("nats", run=1, rate=1000, concurrency=256),
        cell("reach", run=1, rate=840, concurrency=256),
    ]
    findings = Findings(Plan(), lines=summary(cells), startup=Startup(120.0, 300.0, None, "it did not start"))

    assert [("0.76", True), ("0.84", False), ("120 ms", True), ("it did not start", False)] == [
        (verdict.found, verdict.kept) for verdict in verdicts(findings)
    ]


def test_thinned_records_stand_for_the_calls_they_were_thinned_from(tmp_path: Path) -> None:
    """SEE-3: the sum of 1 / sample_rate, over the file and the one put aside; gaps are counted apart."""
    path = tmp_path / "records.jsonl"
    path.write_text(
        "".join(json.dumps(record) + "\n" for record in ({}, {"sample_rate": 0.25}, {"gap": {"lost": 3}}))
    )
    (tmp_path / "records.1.jsonl").write_text(json.dumps({"sample_rate": 0.5}) + "\n")

    assert (3, 7.0, 3) == count_records(path)


def test_text_written_by_hand_stays_in_the_document(tmp_path: Path) -> None:
    """`make bench` writes the figures anew and keeps what a person wrote between the markers."""
    path = tmp_path / "results.md"
    findings = Findings(Plan(), lines=summary([cell("nats", run=1, rate=1234)]))
    write_document(findings, path)
    path.write_text(path.read_text().replace(TEXT_BEGIN, f"{TEXT_BEGIN}\nThe rest is the loop's."))

    write_document(findings, path)

    written = path.read_text()
    assert 1 == written.count("The rest is the loop's.")
    assert "1,234" in written
    assert written.index(TEXT_BEGIN) < written.index("The rest") < written.index(TEXT_END)


def test_a_document_without_its_markers_is_not_overwritten(tmp_path: Path) -> None:
    """What was written by hand is not lost because somebody removed a comment."""
    path = tmp_path / "results.md"
    path.write_text("# mine")

    with pytest.raises(ValueError, match="lost its markers"):
        write_document(Findings(Plan()), path)

    assert "# mine" == path.read_text()


def test_time_is_counted_for_the_room_of_the_module() -> None:
    """The profile speaks of rooms, as the rest of the documentation does."""
    assert ["reach.bus", "reach, the rest", "nats-py", "other libraries"] == [
        room_of(module) for module in ("reach.bus.mux", "reach.ids", "nats.aio.client", "json.encoder")
    ]


def test_growth_compares_the_end_with_the_time_after_warming_up() -> None:
    """SPEED-5: filling caches at the start is no leak; a slope is."""
    assert 0 == Memory([10, 50, *[100] * 20]).growth()
    assert 100 < Memory(list(range(0, 1000, 5))).growth()
    assert 0 == Memory([5]).growth()


def test_what_is_left_over_is_a_fault() -> None:
    """SPEED-5: calls that still wait when all have ended are named."""
    soaked = Soaked(1.0, waiting={"calls in the caller": 2, "tasks in the agent": 0})
    soaked.wrong["echo"] += 1

    assert [
        "1 calls of kind echo did not end as they should",
        "2 calls in the caller left over",
    ] == soaked.faults()
