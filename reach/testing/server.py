"""One real NATS server for many tests, which do not see each other.

Starting a server takes a fifth of a second, so it is done once; each test then gets an account of its own
(`reach.testing.accounts`), with its own keys, its own state folder and fresh buckets, in some 70 ms. Whoever is
given such a folder as `REACH_HOME` finds the server there, as if `reach up` had started it: programs in other
processes, too. When a test is over its account goes, and with it whoever is still connected to it.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from reach.bus.connection import Connection
from reach.bus.embedded import EmbeddedServer
from reach.bus.keys import Role, ensure_keys
from reach.bus.permissions import accounts_config
from reach.bus.provision import provision
from reach.bus.settings import resolve
from reach.bus.state import StateFolder, write_private
from reach.testing.accounts import Keys, accounts_text

_RELOAD_S: Final = 10.0
_POLL_S: Final = 0.001
_RELOADED: Final = "Reloaded server configuration"
_NOT_RELOADED: Final = "Failed to reload server configuration"


class SharedServer:
    """A server in `folder`, on a free port of loopback, until `stop`. `account` gives each test its own part."""

    def __init__(self, folder: Path) -> None:
        """Start it. Raises `ConfigError`, which says what does not allow it."""
        self._folder = folder
        self._embedded = EmbeddedServer.start(folder / "server", port=0)
        self._state = StateFolder(folder / "server")
        self._keys: Keys = {role: key.public_key for role, key in self._embedded.keys.items()}
        # What the server was started with, its accounts cut out, and the port that it got written in.
        text = self._state.config.read_text(encoding="utf-8").replace(accounts_config(self._keys), "")
        self._settings = re.sub(r"^port: .*$", f"port: {self._embedded.info.port}", text, flags=re.MULTILINE)
        self._tests: dict[str, Keys] = {}
        self._opened = 0

    @property
    def url(self) -> str:
        """`nats://127.0.0.1:<port>`, without credentials."""
        return self._embedded.url

    @property
    def home(self) -> Path:
        """The server's own state folder; tests have theirs."""
        return self._state.path

    @contextmanager
    def account(self) -> Iterator[Path]:
        """Hold an account of one's own; gives the state folder that leads there (`REACH_HOME`).

        Use it directly where a test needs two systems, or a fixture of a wider scope one for many tests.
        """
        self._opened += 1
        name = f"TEST{self._opened}"
        folder = StateFolder(self._folder / name.lower()).create()
        keys = ensure_keys(folder.keys)
        fencer = self._embedded.keys[Role.FENCER].path
        write_private(keys[Role.FENCER].path, fencer.read_text(encoding="ascii"))
        write_private(folder.server, self._state.server.read_text(encoding="utf-8"))
        self._tests[name] = {role: key.public_key for role, key in keys.items()}
        try:
            self._reload()
            _in_a_thread(folder.path)
            yield folder.path
        finally:
            # The server is told with the next test's account: nobody is left who would notice the difference.
            del self._tests[name]

    def stop(self) -> None:
        """End the server and everybody's connection to it."""
        self._embedded.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _reload(self) -> None:
        """Tell the server which accounts there are, and wait until it knows."""
        write_private(self._state.config, self._settings + accounts_text(self._keys, self._tests))
        with self._state.log.open(encoding="utf-8", errors="replace") as log:
            log.seek(0, os.SEEK_END)
            os.kill(self._embedded.pid, signal.SIGHUP)
            deadline = time.monotonic() + _RELOAD_S
            said = ""
            while time.monotonic() < deadline:
                said += log.read()
                if _RELOADED in said:
                    return
                if _NOT_RELOADED in said:
                    break
                time.sleep(_POLL_S)
        raise RuntimeError(f"the test server did not take a new account; its log says:\n{said.strip()}")


def _in_a_thread(home: Path) -> None:
    """Make the buckets that the platform makes, on a loop of their own: the test's loop may be anybody's."""
    failures: list[BaseException] = []

    def run() -> None:
        try:
            asyncio.run(_provision(home))
        except BaseException as error:  # noqa: BLE001 - carried over to the thread that waits
            failures.append(error)

    thread = threading.Thread(target=run, name="reach test buckets")
    thread.start()
    thread.join()
    if failures:
        raise failures[0]


async def _provision(home: Path) -> None:
    settings = resolve(role=Role.PLATFORM, env={"REACH_HOME": str(home)})
    connection = await Connection.open(settings, role=Role.PLATFORM.value)
    try:
        await provision(connection.jetstream())
    finally:
        await connection.close()
