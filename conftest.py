"""Every Python block of the README and of docs/ is run, so that what a reader copies works.

Blocks of one document share a namespace and, where they use `await` at top level, one event loop, as in
`python -m asyncio`; what begins with a comment such as `# greeter.py` can be imported by later blocks. Each document
has a Reach of its own (an account at one real server), and the agents that its blocks define are served beside it, as
`reach run` would; an agent that is defined again replaces the former one. An `output` block after a block is what that
prints; `…` stands for what differs from run to run. A block that is only to be read is marked
`<!--- skip: next "reason" -->`.
"""

import ast
import asyncio
import contextlib
import inspect
import io
import os
import re
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import pytest
from sybil import Example, Sybil
from sybil.parsers.markdown import CodeBlockParser, SkipParser

import reach
from reach.testing import SharedServer

_STAGE = "__stage__"
_FILE = re.compile(r"# (\w+)\.py\n")
_READY_S = 10.0


class _Server:
    """The one NATS server of the session, started by the first document."""

    def __init__(self) -> None:
        self._held = contextlib.ExitStack()
        self._server: SharedServer | None = None

    def account(self) -> contextlib.AbstractContextManager[Path]:
        """Hold an account for one document; gives its state folder."""
        if self._server is None:
            folder = Path(self._held.enter_context(tempfile.TemporaryDirectory(prefix="reach-docs-")))
            self._server = self._held.enter_context(SharedServer(folder))
        return self._server.account()

    def stop(self) -> None:
        """End it, if it was started."""
        self._held.close()


class _Stage:
    """What one document plays on: its environment, its loop, and the agents that it has defined."""

    def __init__(self) -> None:
        self.runner = asyncio.Runner()
        self.printed = ""
        self._held = contextlib.ExitStack()
        self._held.enter_context(_environment(self._held.enter_context(_server.account())))
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="agents of a document", daemon=True
        )
        self._thread.start()
        self._served: dict[str, tuple[reach.Agent, tuple[str, ...], asyncio.Event, Any]] = {}

    def save(self, module: str, namespace: dict[str, Any]) -> None:
        """Let later blocks import what a block says is a file of this name."""
        sys.modules[module] = ModuleType(module)
        sys.modules[module].__dict__.update(namespace)
        self._held.callback(sys.modules.pop, module)

    def serve_new(self, namespace: dict[str, Any]) -> None:
        """Serve the agents that a block has defined or added to; one with the name of another takes its place."""
        for agent in [value for value in namespace.values() if isinstance(value, reach.Agent)]:
            former = self._served.get(agent.agent_id)
            if not agent.capabilities or (former and former[:2] == (agent, agent.capabilities)):
                continue
            if former:
                self._end(agent.agent_id)
            self._begin(agent)

    def _begin(self, agent: reach.Agent) -> None:
        """Serve an agent; returns once it takes requests, or raises what kept it from that."""
        stop, ready = asyncio.Event(), threading.Event()

        def told(_: object) -> None:
            ready.set()

        serving = asyncio.run_coroutine_threadsafe(agent.serve(stop=stop, ready=told), self._loop)
        serving.add_done_callback(told)
        self._served[agent.agent_id] = (agent, agent.capabilities, stop, serving)
        if not ready.wait(_READY_S):
            raise TimeoutError(f"{agent.agent_id} is not ready after {_READY_S:g} s")
        if serving.done():
            serving.result()

    def close(self) -> None:
        """End the agents, the loops and the account."""
        self.runner.close()
        for agent_id in list(self._served):
            self._end(agent_id)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._held.close()

    def _end(self, agent_id: str) -> None:
        *_, stop, serving = self._served.pop(agent_id)
        self._loop.call_soon_threadsafe(stop.set)
        serving.result(_READY_S)


@contextlib.contextmanager
def _environment(home: Path) -> Iterator[None]:
    """Make `reach.connect()` find this document's Reach, and nobody else's."""
    before = {name: os.environ.pop(name) for name in list(os.environ) if name.startswith("REACH_")}
    os.environ.update({"REACH_HOME": str(home), "REACH_RECORDS": "off"})
    try:
        yield
    finally:
        for name in ("REACH_HOME", "REACH_RECORDS"):
            os.environ.pop(name, None)
        os.environ.update(before)


def _run_block(example: Example) -> None:
    """Run one block where the document stands, its line numbers kept for tracebacks."""
    source = "\n" * (example.line + example.parsed.line_offset) + example.parsed
    code = compile(source, example.path, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    block = FunctionType(code, example.namespace)
    stage: _Stage = example.namespace[_STAGE]
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        if code.co_flags & inspect.CO_COROUTINE:
            stage.runner.run(block())
        else:
            block()
    stage.printed = printed.getvalue()
    if named := _FILE.match(example.parsed):
        stage.save(named[1], example.namespace)
    stage.serve_new(example.namespace)


def _check_output(example: Example) -> str | None:
    """Compare what the block before printed with what the document says."""
    wanted, printed = str(example.parsed).strip(), example.namespace[_STAGE].printed.strip()
    pattern = ".*?".join(re.escape(part) for part in wanted.split("…"))
    if re.fullmatch(pattern, printed, flags=re.DOTALL):
        return None
    return f"Expected:\n{wanted}\nPrinted:\n{printed}"


def _open_document(namespace: dict[str, Any]) -> None:
    namespace["__name__"] = "__docs__"
    namespace[_STAGE] = _Stage()


def _close_document(namespace: dict[str, Any]) -> None:
    namespace[_STAGE].close()


_server = _Server()

pytest_collect_file = Sybil(
    parsers=[
        CodeBlockParser(language="python", evaluator=_run_block),
        CodeBlockParser(language="output", evaluator=_check_output),
        SkipParser(),
    ],
    patterns=["README*.md", "docs/*.md", "docs/**/*.md"],
    setup=_open_document,
    teardown=_close_document,
).pytest()


_LONG = ("tests/chaos/", "tests/cli/", "tests/examples/", "tests/packaging/", "docs/", "README")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the files that take longest: whichever process is last has little left to do then."""
    items.sort(key=lambda item: not item.nodeid.startswith(_LONG))


def pytest_unconfigure() -> None:
    """End the server of the documents."""
    _server.stop()
