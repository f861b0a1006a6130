"""`python -m bench`: measure, print, and write `bench/results.md`.

Exit code 0 when every reply was right, 1 when not, or when `--check` is given and a promised bound is missed;
2 when the command line is wrong or nothing could be measured.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final

from rich.console import Console

from bench.contenders import NATS, REACH
from bench.measure import Plan, failures, measure, profile, summary
from bench.proofs import prove
from bench.report import Findings, own_versions, print_findings, verdicts, write_document
from bench.stage import LABELS, Stage, open_stage
from bench.startup import measure_startup
from bench.tasks import measure_tasks
from bench.workload import measure_workload

RESULTS: Final = Path(__file__).with_name("results.md")

_COLUMNS: Final = 120
"""Width of what is printed where there is no terminal."""

_PROFILE_AT: Final = 256
_PROFILE_S: Final = 4.0
_QUICK_PROFILE_S: Final = 0.5


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; give the exit code."""
    given = _arguments(arguments)
    plan = _plan(given)
    console = Console(highlight=False, width=None if sys.stdout.isatty() else _COLUMNS)
    aside = Console(stderr=True, highlight=False, soft_wrap=True)
    findings = Findings(plan, versions=own_versions())
    with open_stage(given.only) as stage:
        if not stage.pairs:
            aside.print("Nothing of what was asked for can be measured here.", stage.left_out)
            return 2
        profile_s = given.profile or (_QUICK_PROFILE_S if given.quick else _PROFILE_S)
        _measure(stage, findings, aside, profile_s=profile_s)
    if not given.skip_tasks and REACH.name in given.only:
        quick = given.quick or given.seconds is not None
        findings.tasks = measure_tasks(seconds=0.3 if quick else 1.5, rounds=1 if quick else 3)
    if not given.skip_workload and REACH.name in given.only:
        small = given.quick or given.seconds is not None
        findings.workload = measure_workload(seed=1, agents=4 if small else 12, tasks=3 if small else 8)
    if not given.skip_startup:
        findings.startup = measure_startup()
    if given.json:
        console.print_json(json.dumps(_to_map(findings)))
    else:
        print_findings(findings, console)
    output = given.output or (None if given.quick or set(given.only) != LABELS.keys() else RESULTS)
    if output is not None:
        write_document(findings, output)
        aside.print(f"Written to {output.name}.")
    missed = given.check and not all(verdict.kept for verdict in verdicts(findings))
    wrong = findings.workload is not None and (findings.workload.failed or findings.workload.different)
    return 1 if findings.failures or wrong or missed else 0


def _measure(stage: Stage, findings: Findings, aside: Console, *, profile_s: float) -> None:
    findings.left_out = dict(stage.left_out)
    for pair in stage.pairs.values():
        findings.versions |= pair.about()["versions"]
    cells = measure(findings.plan, stage, aside.print)
    findings.lines = summary(cells)
    findings.failures = failures(cells)
    made = sum(cell.outcome.made for cell in cells if cell.contender == REACH.name)
    for name in (NATS.name, REACH.name):
        if name in stage.pairs:
            profiles, profiled = profile(stage.pairs[name], concurrency=_PROFILE_AT, seconds=profile_s)
            findings.profiles += profiles
            made += profiled if name == REACH.name else 0
    if REACH.name in stage.pairs:
        findings.proofs = prove(stage, stage.pairs[REACH.name], made=made)


def _to_map(findings: Findings) -> dict[str, object]:
    return {**asdict(findings), "verdicts": [asdict(verdict) for verdict in verdicts(findings)]}


def _plan(given: argparse.Namespace) -> Plan:
    usual = Plan(seconds=0.6, warm_s=0.2, rounds=1, runs=1) if given.quick else Plan()
    return Plan(
        concurrencies=given.concurrency or usual.concurrencies,
        seconds=given.seconds or usual.seconds,
        warm_s=min(usual.warm_s, given.seconds or usual.warm_s),
        rounds=usual.rounds,
        runs=given.runs or usual.runs,
    )


def _names(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    if unknown := [name for name in names if name not in LABELS]:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is not one of {', '.join(LABELS)}")
    return names


def _loads(text: str) -> tuple[int, ...]:
    loads = tuple(int(load) for load in text.split(","))
    if not all(1 <= load <= 2000 for load in loads):
        raise argparse.ArgumentTypeError("calls at a time are 1 to 2000, with commas between")
    return loads


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0.05 <= seconds <= 60:
        raise argparse.ArgumentTypeError("a turn takes 0.05 to 60 seconds")
    return seconds


def _runs(text: str) -> int:
    runs = int(text)
    if not 1 <= runs <= 20:
        raise argparse.ArgumentTypeError("runs are 1 to 20")
    return runs


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description="Measure governed calls beside bare nats-py, FastStream and Moleculer, in turns and in one run.",
        epilog="Examples: make bench · make bench ARGS=--quick · make bench ARGS='--only nats,reach --runs 5'",
    )
    parser.add_argument("--quick", action="store_true", help="one short turn of each: a look, not a result")
    parser.add_argument(
        "--only",
        type=_names,
        default=list(LABELS),
        metavar="NAMES",
        help=f"which, with commas between: {', '.join(LABELS)} (all)",
    )
    parser.add_argument(
        "--runs", type=_runs, metavar="N", help="how often all of it is done (3); medians count"
    )
    parser.add_argument("--seconds", type=_seconds, metavar="S", help="how long a turn takes (1)")
    parser.add_argument("--profile", type=_seconds, metavar="S", help="how long each profile takes (4)")
    parser.add_argument("--concurrency", type=_loads, metavar="N,N", help="calls at a time (1,64,256,1000)")
    parser.add_argument("--skip-startup", action="store_true", help="do not measure importing and `reach up`")
    parser.add_argument("--skip-workload", action="store_true", help="do not play the agents' workload")
    parser.add_argument("--skip-tasks", action="store_true", help="do not measure tasks")
    parser.add_argument("--check", action="store_true", help="fail when a promised bound is missed")
    parser.add_argument("--json", action="store_true", help="print JSON, for programs")
    parser.add_argument(
        "--output",
        type=Path,
        metavar="FILE",
        help="where the document goes (bench/results.md after a full run)",
    )
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
