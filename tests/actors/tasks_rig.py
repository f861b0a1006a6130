"""The tasks actor on a real server, and a receiver of callbacks that answers as a test wants it to."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from actors.tasks.actor import Tasks
from reach.bus.connection import Connection
from reach.bus.keys import Role
from reach.runtime.child import ChildSpec
from reach.runtime.host import Host
from reach.wire import codec

READY_S = 10.0


@dataclass(frozen=True)
class Post:
    """One request that a receiver got."""

    headers: dict[str, str]
    body: bytes

    @property
    def event(self) -> dict[str, Any]:
        event: dict[str, Any] = json.loads(self.body)
        return event


@dataclass
class Receiver:
    """A receiver of callbacks; `answer(path)` gives the status and a `Location`, or None for silence."""

    port: int = 0
    answer: Callable[[str], tuple[int, str] | None] = lambda _: (204, "")
    posts: list[Post] = field(default_factory=list)

    def url(self, path: str = "/", *, host: str = "127.0.0.1") -> str:
        return f"http://{host}:{self.port}{path}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            first, *lines = head.strip().split("\r\n")
            headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
            body = await reader.readexactly(int(headers.get("content-length", "0")))
            self.posts.append(Post(headers, body))
            told = self.answer(first.split()[1])
            if told is None:
                await reader.read()  # Until the sender has had enough.
            else:
                location = f"Location: {told[1]}\r\n" if told[1] else ""
                writer.write(f"HTTP/1.1 {told[0]} X\r\n{location}Content-Length: 0\r\n\r\n".encode())
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def receiving() -> AsyncIterator[Receiver]:
    """Run a receiver on this machine."""
    receiver = Receiver()
    server = await asyncio.start_server(receiver.serve, "127.0.0.1", 0)
    receiver.port = server.sockets[0].getsockname()[1]
    try:
        yield receiver
    finally:
        server.close()


@asynccontextmanager
async def looked_after(system: Any, *, gone_s: float = 30.0) -> AsyncIterator[None]:
    """Host the tasks actor for a while."""

    async def connect_as(role: Role) -> Connection:
        return await Connection.open(system.settings(role), role=role.value)

    ready = asyncio.Event()
    async with system.connection(Role.PLATFORM) as platform:
        host = Host(platform, [ChildSpec("tasks", lambda: Tasks(gone_s=gone_s))], connect=connect_as)
        running = asyncio.create_task(host.run(ready=ready.set, signals=False))
        try:
            async with asyncio.timeout(READY_S):
                await ready.wait()
            yield
        finally:
            host.stop()
            await running


async def ask(system: Any, verb: str, **asked: Any) -> dict[str, Any]:
    """Ask the tasks actor, as an operator."""
    async with system.connection(Role.OPERATOR) as operator:
        return codec.unpack(await operator.request(f"reach.tasks.{verb}", codec.pack(asked), timeout_s=5))


async def learned(system: Any, task_id: str) -> None:
    """Wait until the actor knows what the agent of a task says of it."""
    async with asyncio.timeout(30):
        while True:
            if (await ask(system, "show", task_id=task_id)).get("idempotent") is not None:
                return
            await asyncio.sleep(0.1)


async def delivery(system: Any, task_id: str, *, until: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """Wait for what becomes of a task's callback."""
    async with asyncio.timeout(10):
        while True:
            told = await ask(system, "show", task_id=task_id)
            for hook in told.get("hooks", ()):
                if until(hook):
                    return dict(hook)
            await asyncio.sleep(0.05)
