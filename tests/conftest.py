"""What all tests share: one event loop library, real servers, and honesty about programs a machine may lack."""

import asyncio
import os
import shutil
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from reach.bus.connection import Connection
from reach.bus.embedded import EmbeddedServer
from reach.bus.keys import Role
from reach.bus.provision import provision
from reach.bus.settings import Settings, resolve


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Run every test on asyncio: nats-py knows no other."""
    return "asyncio"


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test whose program is missing on a user's machine; fail it in CI, which installs them all."""
    for mark in item.iter_markers("needs_program"):
        for program in mark.args:
            if shutil.which(program):
                continue
            if os.environ.get("CI") == "true":
                pytest.fail(f"CI lacks the program {program!r}: let .ci/run install it", pytrace=False)
            pytest.skip(f"needs the program {program!r}, which is not on PATH")


class System:
    """A real NATS server of its own state folder, with its buckets, as `reach up` would start it."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.server = EmbeddedServer.start(home, port=0)

    @property
    def env(self) -> dict[str, str]:
        """The environment of a program that uses this system."""
        return {**os.environ, "REACH_HOME": str(self.home), "REACH_RECORDS": "off"}

    def settings(self, role: Role) -> Settings:
        """How one role connects."""
        return resolve(role=role, env={"REACH_HOME": str(self.home)})

    @asynccontextmanager
    async def connection(self, role: Role = Role.CALLER, who: str | None = None) -> AsyncIterator[Connection]:
        """Hold a connection of one role."""
        connection = await Connection.open(self.settings(role), role=role.value, who=who)
        try:
            yield connection
        finally:
            await connection.close()

    def restart(self) -> None:
        """Kill the server's process group by its owner and start it again on the same port and data."""
        port = self.server.info.port
        self.server.stop()
        self.server = EmbeddedServer.start(self.home, port=port)

    def provision(self) -> None:
        """Make the buckets that the platform makes."""

        async def make() -> None:
            async with self.connection(Role.PLATFORM) as connection:
                await provision(connection.jetstream())

        # Not anyio's `run`: in a thread of a running test that one takes itself for being inside the loop.
        asyncio.run(make())


@pytest.fixture(scope="session")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    """One server for all tests that leave it as they found it."""
    running = System(tmp_path_factory.mktemp("system"))
    running.provision()
    yield running
    running.server.stop()


@pytest.fixture
def own_system(tmp_path: Path) -> Iterator[System]:
    """A server for one test, which may do to it what it likes."""
    running = System(tmp_path / "home")
    yield running
    running.server.stop()


@pytest.fixture
def until() -> Callable[..., object]:
    """Wait for a condition that another process brings about; fails after ten seconds, so that nothing hangs."""

    async def wait(condition: Callable[[], bool], *, within_s: float = 10.0) -> None:
        with anyio.fail_after(within_s):
            while not condition():  # noqa: ASYNC110 - what is waited for has no event to offer
                await anyio.sleep(0.005)

    return wait


@pytest.fixture
def unused_tcp_port() -> int:
    """A port on which nothing listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
