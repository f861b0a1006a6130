"""A program that does what it is told: orders are JSON lines on standard input, answers lines on standard output.

An order names a method: `{"do": "status"}`. When standard input ends, whoever started the program is gone, and so
is it.
"""

import asyncio
import ctypes
import gc
import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any


async def obey(orders: object, *, first: dict[str, Any]) -> None:
    """Say `first`, then answer each order with what the method of its name returns."""
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
    )
    _say(first)
    while line := await reader.readline():
        order = json.loads(line)
        try:
            _say(await getattr(orders, order.pop("do"))(**order))
        except Exception:  # noqa: BLE001 - told, and shown
            traceback.print_exc()  # Into the program's log, which a failing test shows.
            _say({"failed": line.decode()})
    os._exit(0)


def _say(answer: dict[str, Any]) -> None:
    os.write(1, json.dumps(answer).encode() + b"\n")


def held_bytes() -> int:
    """Give the memory that this process holds, once it has given back what it does not need."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's; elsewhere the figure is what it is.
    if trim is not None:
        trim(0)
    return resident_bytes()


def resident_bytes(pid: int | None = None) -> int:
    """Give the memory that a process holds now."""
    pages = int(Path(f"/proc/{pid or os.getpid()}/statm").read_text("ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
