"""Where the command line is tested: one server and one agent for all tests, a folder of its own for each."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.terminal import READERS, SHOP, Reach, end, environment, platform, server, wait_for_line


@pytest.fixture(scope="session")
def bus_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """State folder of a server that runs as long as the tests."""
    home = tmp_path_factory.mktemp("bus") / "home"
    with server(home):
        yield home


@pytest.fixture(scope="session")
def shop_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's folder with an agent in it."""
    folder = tmp_path_factory.mktemp("shop")
    (folder / "shop.py").write_text(SHOP)
    return folder


@pytest.fixture
def reach(tmp_path: Path) -> Reach:
    """The command, on a machine where nothing runs."""
    return Reach(environment(REACH_HOME=str(tmp_path / "home")), tmp_path)


@pytest.fixture
def at_bus(bus_home: Path, tmp_path: Path) -> Reach:
    """The command, where a server runs."""
    return Reach(environment(REACH_HOME=str(bus_home)), tmp_path)


@pytest.fixture(scope="session")
def shop(bus_home: Path, shop_folder: Path) -> Iterator[str]:
    """An agent that serves, started by `reach run`; its instance."""
    reach = Reach(environment(REACH_HOME=str(bus_home)), shop_folder)
    process = reach.start("run", "shop:agent", "--json")
    try:
        yield str(json.loads(wait_for_line(process, "ready"))["instance"])
    finally:
        end(process)


@pytest.fixture(scope="session")
def led_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """State folder of a server with a supervisor, that run as long as the tests."""
    folder = tmp_path_factory.mktemp("led")
    with server(folder / "home"), platform(folder / "home", folder):
        yield folder / "home"


@pytest.fixture(scope="session")
def readers_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's folder with several agents in it."""
    folder = tmp_path_factory.mktemp("readers")
    (folder / "readers.py").write_text(READERS)
    return folder


@pytest.fixture
def at_led(led_home: Path, tmp_path: Path) -> Reach:
    """The command, where a supervisor leads."""
    return Reach(environment(REACH_HOME=str(led_home)), tmp_path)


@pytest.fixture(scope="session")
def readers(led_home: Path, readers_folder: Path) -> Iterator[dict[str, str]]:
    """Two agents and one to stand in, looked after by a supervisor; their instances by agent."""
    reach = Reach(environment(REACH_HOME=str(led_home)), readers_folder)
    processes = []
    names = []
    try:
        # The second tier comes last: a first tier that comes after it takes calls over by and by.
        for agents in (("readers:reader", "readers:trial"), ("readers:spare",)):
            process = reach.start("run", *agents, "--json")
            processes.append(process)
            names += [str(json.loads(wait_for_line(process, "ready"))["instance"]) for _ in agents]
        yield {name.rpartition("-")[0]: name for name in names}
    finally:
        for process in processes:
            end(process)
