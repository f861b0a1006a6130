"""What runs inside a worker process (see `reach.runtime.workers`).

It imports one function, binds it as the agent has bound it, and answers one call after another. What a
handler raises goes back as words; a `ReachError` goes back whole. Its prints go to the agent's own output.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import os
import signal
import socket
import sys
import threading
import time
import types
from collections.abc import Callable
from typing import Any, Final

from reach.errors import NotExecuted, NotOnTheWire, ReachError, UpstreamFailure
from reach.faults import Reason
from reach.runtime.signature import Handler, bind
from reach.wire import codec
from reach.wire.reply import Failure

_HEAD: Final = 4
_GRACE_S: Final = 1.0
_MAIN: Final = "__mp_main__"
_state: Final = {"worker": False}


def in_worker() -> bool:
    """Whether this process is a worker: a program that is imported here must not start to serve."""
    return _state["worker"]


def main(fd: int) -> None:
    """Serve calls that come over the socket `fd` until it closes."""
    _state["worker"] = True
    # The agent decides when its workers end; a signal to the whole group is first of all the agent's.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    _die_with_parent()
    with socket.socket(fileno=fd) as sock:
        _serve(_Channel(sock))


class _Channel:
    """Length-prefixed frames over a blocking socket."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock

    def receive(self) -> bytes | None:
        """Give the next frame; None when the agent has closed."""
        head = self._exactly(_HEAD)
        return None if head is None else self._exactly(int.from_bytes(head))

    def send(self, head: dict[str, Any], body: bytes) -> None:
        """Send an answer."""
        for part in (codec.pack(head), body):
            self._sock.sendall(len(part).to_bytes(_HEAD) + part)

    def _exactly(self, size: int) -> bytes | None:
        parts = bytearray()
        while len(parts) < size:
            piece = self._sock.recv(min(size - len(parts), 1 << 20))
            if not piece:
                return None
            parts += piece
        return bytes(parts)


def _serve(channel: _Channel) -> None:
    function: Callable[..., Any] | None = None
    handler: Handler | None = None
    try:
        while (frame := channel.receive()) is not None and (body := channel.receive()) is not None:
            head = codec.unpack(frame)
            if "load" in head:
                function = _load(channel, head)
                continue
            if handler is None or handler.capability != head["capability"]:
                handler = bind(_needed(function), capability=head["capability"])
            channel.send(*_answer(handler, body))
    except (BrokenPipeError, ConnectionResetError):
        return  # The agent is gone, and nobody waits.


def _needed(function: Callable[..., Any] | None) -> Callable[..., Any]:
    if function is None:
        raise RuntimeError("a call came before the function was imported")
    return function


def _load(channel: _Channel, head: dict[str, Any]) -> Callable[..., Any] | None:
    try:
        function = _find(head["load"], head.get("main"))
    except BaseException as error:  # noqa: BLE001 - whatever an import raises, the agent must hear of it
        message = f"{type(error).__name__}: {error}"
        channel.send({"kind": "failed"}, codec.pack({"message": message.encode(errors="replace").decode()}))
        return None
    channel.send({"kind": "ready"}, codec.pack({}))
    return function


def _find(path: str, main_file: str | None) -> Callable[..., Any]:
    module_name, _, qualname = path.partition(":")
    found: Any = (
        _import_main(main_file) if module_name == "__main__" else importlib.import_module(module_name)
    )
    for part in qualname.split("."):
        found = getattr(found, part)
    if not callable(found):
        raise TypeError(f"{path} is a {type(found).__name__}, not a function")
    return found  # type: ignore[no-any-return]


def _import_main(file: str | None) -> types.ModuleType:
    """Import the agent's program under another name, so that what stands under `__main__` does not run."""
    if file is None:
        raise ImportError("the agent's program is no file")
    loader = importlib.machinery.SourceFileLoader(_MAIN, file)
    spec = importlib.util.spec_from_file_location(_MAIN, file, loader=loader)
    if spec is None:
        raise ImportError(f"{file} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules[_MAIN] = sys.modules["__main__"] = module
    loader.exec_module(module)
    return module


def _answer(handler: Handler, body: bytes) -> tuple[dict[str, Any], bytes]:
    try:
        args, kwargs = handler.arguments(codec.unpack(body))
        value = handler.result(handler.function(*args, **kwargs))
        packed = codec.pack({"value": value})
        if len(packed) > codec.MAX_BYTES:
            raise UpstreamFailure(
                f"the result has {len(packed)} bytes; {codec.MAX_BYTES} is the most that is read",
                reason=Reason.BAD_RESULT,
            )
        return {"kind": "result"}, packed
    except ReachError as error:
        return {"kind": "failure"}, codec.pack(Failure.of_error(error).to_map())
    except NotOnTheWire as error:
        failure = Failure.of(Reason.BAD_RESULT, f"the result cannot cross the wire: {error}")
        return {"kind": "failure"}, codec.pack(failure.to_map())
    except NotExecuted as error:
        return {"kind": "not_executed"}, codec.pack({"message": str(error)})
    except BaseException as error:  # noqa: BLE001 - SystemExit too must not end the worker
        return {"kind": "raised"}, codec.pack({"type": type(error).__name__, "where": _where(error)})


def _where(error: BaseException) -> str:
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    if frame is None:
        return "an unknown place"
    code = frame.tb_frame.f_code
    return f"{code.co_filename}:{frame.tb_lineno} in {code.co_name}"


def _die_with_parent() -> None:
    """End this process when the agent's end of our standard input closes, even while a handler computes."""
    lifeline = os.dup(0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    threading.Thread(target=_watch, args=(lifeline,), name="reach-lifeline", daemon=True).start()


def _watch(lifeline: int) -> None:
    while os.read(lifeline, 64):
        pass
    time.sleep(_GRACE_S)  # An idle worker ends in order meanwhile.
    # A kill rather than sys.exit: this is not the main thread, which may be deep in a computation.
    os.kill(os.getpid(), signal.SIGKILL)
