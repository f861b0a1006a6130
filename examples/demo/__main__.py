"""`make demo`, or `python -m examples.demo`: the order in which it happens.

Starts NATS, the platform and three instances of the invoice agent in a temporary folder; sends the sample folder,
repeated to a few hundred documents; kills one instance with -9 in the middle; shows what became of every call; and
leaves nothing running. With files of your own, it reads those and kills nobody.

Exit codes: 0 all of it held, 1 something did not (or a file of yours could not be read), 2 the command line is wrong,
130 Ctrl-C.
"""

import argparse
import asyncio
import json
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rich.console import Console

from examples.demo.documents import Document, NoSuchFile, own, repeated, samples
from examples.demo.processes import House, StartFailed, still_running
from examples.demo.reading import CAPABILITY, INSTANCES, Loss, Reader, Reading
from examples.demo.telling import Teller, short, to_json
from examples.demo.verdict import judge_demo, judge_own
from reach.bus.connection import Connection
from reach.bus.keys import Role
from reach.bus.settings import resolve
from reach.call.client import connect
from reach.observe.records import MemorySink, Recorder

DOCUMENTS: Final = 308
CONCURRENCY: Final = 16
TIMEOUT_S: Final = 20.0

_MIN_DOCUMENTS: Final = 40
_MAX_DOCUMENTS: Final = 5_000
_MIN_CONCURRENCY: Final = 6
"""Below that no instance is sure to hold the three calls that it is to be killed with."""

_MAX_CONCURRENCY: Final = 64
"""What one instance takes at a time: so many it may hold when it is the only one."""

_COLUMNS: Final = 120
_INTERRUPTED: Final = 130
_NEXT: Final = (
    "What to try next:",
    '  make demo ARGS="your.pdf other.xml"    read files of your own',
    "  .venv/bin/reach up --demo              the same agents, to play with: reach caps, reach ps, reach call …",
    "  examples/invoice_agent.py              the agent itself: begin your own from it",
)


@dataclass(frozen=True, slots=True)
class Shown:
    """Everything that happened while it ran."""

    readings: list[Reading]
    loss: Loss | None
    pids: list[int]


async def show(documents: Sequence[Document], *, lose_one: bool, concurrency: int, teller: Teller) -> Shown:
    """Start everything, read the documents, end everything, however it ends. Raises `StartFailed`."""
    with tempfile.TemporaryDirectory(prefix="reach-demo-") as folder:
        house = House(Path(folder, "home"))
        try:
            teller.say("Starting NATS, the platform and three instances of the invoice agent …")
            await house.open(instances=INSTANCES)
            names = ", ".join(f"{short(agent.facts['instance'])} (pid {agent.pid})" for agent in house.agents)
            teller.say(f"  {house.address} · {CAPABILITY} is served by {names}")
            teller.say(f"Sending {len(documents)} documents, {concurrency} at a time:")
            readings, loss = await _read(
                house, documents, lose_one=lose_one, concurrency=concurrency, teller=teller
            )
            return Shown(readings, loss, house.pids())
        finally:
            teller.stop()
            await house.close()


async def _read(
    house: House, documents: Sequence[Document], *, lose_one: bool, concurrency: int, teller: Teller
) -> tuple[list[Reading], Loss | None]:
    sink = MemorySink()
    recorder = Recorder(sink)
    caller = resolve(role=Role.CALLER, env=house.env)
    # Only the platform may ask an instance how it is.
    control = await Connection.open(resolve(role=Role.PLATFORM, env=house.env), role=Role.PLATFORM.value)
    try:
        async with connect(settings=caller, recorder=recorder) as bus, asyncio.TaskGroup() as group:
            reader = Reader(
                bus, sink, concurrency=concurrency, timeout_s=TIMEOUT_S, on_change=teller.on_change
            )
            teller.start(len(documents))
            losing = group.create_task(reader.lose_one(house.agents, control)) if lose_one else None
            readings = await reader.read(documents)
            if losing is not None:
                await losing
            return readings, reader.progress.lost
    finally:
        recorder.close()
        await control.close()


async def _whole(
    documents: Sequence[Document], given: argparse.Namespace, teller: Teller
) -> tuple[Shown, list[int]]:
    """Run it, ended in order by SIGTERM too; also give what is left running at the end."""
    task = asyncio.current_task()
    if task is not None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    lose_one = not given.files
    shown = await show(documents, lose_one=lose_one, concurrency=given.concurrency, teller=teller)
    return shown, await still_running(shown.pids)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it; give the exit code."""
    given = _arguments(arguments)
    stream = sys.stderr if given.json else sys.stdout
    width = None if stream.isatty() else _COLUMNS
    teller = Teller(Console(file=stream, highlight=False, width=width))
    began = time.monotonic()
    try:
        documents = own(given.files) if given.files else repeated(samples(), given.documents)
        shown, left_running = asyncio.run(_whole(documents, given, teller))
    except NoSuchFile as missing:
        teller.say(f"✘ {missing}", style="bold red")
        return 2
    except StartFailed as failed:
        teller.say(f"✘ {failed}", style="bold red")
        return 1
    except (KeyboardInterrupt, asyncio.CancelledError):
        teller.say("Interrupted; everything that was started has been ended.")
        return _INTERRUPTED
    if given.files:
        checks = judge_own(shown.readings, left_running)
    else:
        checks = judge_demo(shown.readings, shown.loss, left_running)
    seconds = time.monotonic() - began
    teller.tables(shown.readings, shown.loss, every=given.all or bool(given.files))
    teller.say()
    teller.say(
        f"{len(shown.readings)} documents in {seconds:.1f} s, starting and stopping everything included."
    )
    teller.checks(checks)
    if given.json:
        document = to_json(shown.readings, shown.loss, checks, seconds=seconds, left_running=left_running)
        print(json.dumps(document, ensure_ascii=False))
    else:
        teller.say()
        for line in _NEXT:
            teller.say(line, style="dim")
    return 0 if all(check.ok for check in checks) else 1


def _between(least: int, most: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        found = int(text)
        if not least <= found <= most:
            raise argparse.ArgumentTypeError(f"{found} is not a number from {least} to {most}")
        return found

    return number


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m examples.demo",
        description="Three instances of one agent read invoices, and one of them is killed on the way.",
        epilog="Examples: make demo · make demo ARGS='my.pdf other.xml' · make demo ARGS='--documents 1000 --all'",
    )
    parser.add_argument(
        "files",
        nargs="*",
        type=Path,
        metavar="FILE",
        help="PDF or XML files of your own, in place of the samples",
    )
    parser.add_argument(
        "--documents",
        type=_between(_MIN_DOCUMENTS, _MAX_DOCUMENTS),
        default=DOCUMENTS,
        metavar="N",
        help=f"how many the samples are repeated to ({DOCUMENTS})",
    )
    parser.add_argument(
        "--concurrency",
        type=_between(_MIN_CONCURRENCY, _MAX_CONCURRENCY),
        default=CONCURRENCY,
        metavar="N",
        help=f"calls at a time ({CONCURRENCY})",
    )
    parser.add_argument("--all", action="store_true", help="show every call, and not one of each file")
    parser.add_argument("--json", action="store_true", help="print JSON on stdout, and the rest on stderr")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
