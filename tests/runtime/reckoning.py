"""Handlers that the worker processes of `test_executor.py` import."""

import os
import signal
import sys
import time
from typing import Any

from pydantic import BaseModel

from reach.errors import NotExecuted, RateLimited
from reach.faults import Executed


class Sum(BaseModel):
    total: int
    pid: int


def add(numbers: list[int]) -> Sum:
    return Sum(total=sum(numbers), pid=os.getpid())


def echo(params: dict[str, Any]) -> dict[str, Any]:
    return params


def slow(seconds: float) -> int:
    time.sleep(seconds)
    return os.getpid()


def chatty(params: dict[str, Any]) -> str:
    sys.stdout.write("a print of the handler\n" * 100)
    sys.stderr.write("another\n")
    sys.stdout.flush()
    os.write(1, b"\x00\x00\x00\x04junk")
    return str(sys.stdin.read())


def trouble(kind: str) -> Any:
    if kind == "plain":
        raise KeyError("hunter2-canary")
    if kind == "reach":
        raise RateLimited(
            "wait for it",
            retry_after_ms=70,
            limit={"name": "n", "used": 1, "allowed": 1},
            executed=Executed.NO,
        )
    if kind == "not_executed":
        raise NotExecuted("nothing was done")
    if kind == "exit":
        sys.exit(3)
    if kind == "big":
        return 2**70
    if kind == "object":
        return object()
    if kind == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    return "fine"
