"""Where the command line is tested: one server and one agent for all tests, a folder of its own for each."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.terminal import SHOP, Reach, end, environment, server, wait_for_line


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
