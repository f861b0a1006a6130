"""`reach doctor`: each breakage between a user and a working call is injected, named, and told with its fix."""

import json
import os
import shutil
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from reach.bus.connection import Connection
from reach.bus.embedded import find_binary
from reach.bus.keys import Role, new_seed
from reach.bus.settings import resolve
from reach.cli.exits import Exit
from tests.cli.terminal import SHOP, Program, Reach, end, environment, server, wait_for_line, wait_until

ORDER = (
    "versions",
    "folder",
    "address",
    "key",
    "name",
    "port",
    "nats",
    "login",
    "permission",
    "jetstream",
    "stores",
    "platform",
    "served",
    "answers",
)


@dataclass(frozen=True)
class Diagnosis:
    """What `reach doctor --json` said."""

    code: int
    checks: list[dict[str, str]]

    @property
    def broken(self) -> dict[str, str]:
        """The one check that failed."""
        (failed,) = [check for check in self.checks if check["state"] == "failed"]
        return failed

    def names(self, state: str) -> list[str]:
        return [check["name"] for check in self.checks if check["state"] == state]


def diagnose(reach: Reach, *arguments: str, **env: str | None) -> Diagnosis:
    done = reach("doctor", *arguments, "--json", env=env)
    told: dict[str, Any] = json.loads(done.stdout)
    assert "Traceback" not in done.stderr
    assert told["ok"] is (done.returncode == 0)
    return Diagnosis(done.returncode, told["checks"])


def assert_broken(diagnosis: Diagnosis, name: str, *, found: str, fix: str) -> None:
    """It fails at the named check and nowhere else; what is before it is fine, what is after is not looked at."""
    assert (Exit.FAILED, name) == (diagnosis.code, diagnosis.broken["name"]), diagnosis.checks
    assert found in diagnosis.broken["found"]
    assert fix in diagnosis.broken["fix"]
    order = [check["name"] for check in diagnosis.checks]
    at = order.index(name)
    assert order[:at] == [one for one in order[:at] if one in diagnosis.names("ok")]
    assert order[at + 1 :] == diagnosis.names("skipped")


@pytest.fixture(scope="module")
def up_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """State folder of a `reach up` that runs as long as this file's tests."""
    folder = tmp_path_factory.mktemp("doctor")
    reach = Reach(environment(REACH_HOME=str(folder / "home")), folder)
    with reach.running("up", "--port", "0", until="ready"):
        yield folder / "home"


@pytest.fixture
def healthy(up_home: Path, tmp_path: Path) -> Reach:
    """The command, where everything is well."""
    return Reach(environment(REACH_HOME=str(up_home)), tmp_path)


@contextmanager
def shop_at(reach: Reach, folder: Path) -> Iterator[Program]:
    """An agent that serves, which may be stopped (SIGSTOP)."""
    (folder / "shop.py").write_text(SHOP)
    process = Reach(reach.env, folder).start("run", "shop:agent", "--json")
    try:
        wait_for_line(process, "ready")
        yield process
    finally:
        process.send_signal(signal.SIGCONT)
        end(process)


@contextmanager
def listener(greeting: bytes) -> Iterator[int]:
    """Something that listens and is not what it should be; its port."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer() -> None:
            while True:
                try:
                    link, _ = listening.accept()
                except OSError:
                    return
                with link:
                    link.sendall(greeting)

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        yield listening.getsockname()[1]
        listening.shutdown(socket.SHUT_RDWR)
    thread.join(5)


# ------------------------------------------------------------------------------------------------------- well


def test_all_is_well(healthy: Reach, tmp_path: Path) -> None:
    """Where everything runs, each check says so, and the exit code is 0."""
    with shop_at(healthy, tmp_path):
        diagnosis = diagnose(healthy, "text.upper")
    assert (0, list(ORDER)) == (diagnosis.code, diagnosis.names("ok"))


def test_table_for_people_shows_the_fix(reach: Reach) -> None:
    """People see a sign and a sentence for each check, and what to do below the one that failed."""
    done = reach("doctor")
    assert Exit.FAILED == done.returncode
    assert "✔   Versions" in done.stdout
    assert "✘   Address" in done.stdout
    assert "→ Start one: reach up." in done.stdout
    assert "·   Key" in done.stdout


# -------------------------------------------------------------------------------------------- on this machine


def test_another_nats_py_is_named(reach: Reach, tmp_path: Path) -> None:
    """Breakage 1: a version of nats-py whose insides we do not know."""
    info = tmp_path / "nats_py-2.9.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: nats-py\nVersion: 2.9.0\n")
    diagnosis = diagnose(reach, PYTHONPATH=str(tmp_path))
    assert_broken(diagnosis, "versions", found="nats-py is 2.9.0", fix="pip install nats-py==")


def test_state_folder_open_to_others_is_named(reach: Reach, tmp_path: Path) -> None:
    """Breakage 2: a state folder that others can write to."""
    home = tmp_path / "home"
    home.mkdir(mode=0o755)
    home.chmod(0o755)
    assert_broken(diagnose(reach), "folder", found="open to other users", fix=f"chmod 700 {home}")


def test_no_server_is_named(reach: Reach) -> None:
    """Breakage 3: nothing was started, and nothing else was named."""
    assert_broken(diagnose(reach), "address", found="No NATS server runs here", fix="reach up")


def test_server_that_is_gone_is_named(reach: Reach, tmp_path: Path) -> None:
    """Breakage 4: the server that was recorded has ended."""
    home = tmp_path / "home"
    with server(home, with_stores=False):
        record = (home / "server.json").read_text()
    (home / "server.json").write_text(record)
    assert_broken(diagnose(reach), "address", found="is gone", fix="reach up")


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:4222", "nats://127.0.0.1:99999", "nats://", "nats://host/path"]
)
def test_address_that_is_none_is_named(reach: Reach, url: str) -> None:
    """Breakage 5: REACH_URL has another scheme, an impossible port, or no host."""
    assert_broken(diagnose(reach, REACH_URL=url), "address", found="REACH_URL", fix="nats://host:4222")


def test_missing_key_is_named(at_bus: Reach, bus_home: Path, tmp_path: Path) -> None:
    """Breakage 6: the key to log in with is not there."""
    diagnosis = diagnose(at_bus, REACH_NKEY=str(tmp_path / "none.nk"))
    assert_broken(diagnosis, "key", found="does not exist", fix="REACH_NKEY")


def test_missing_key_of_our_own_is_named(reach: Reach, tmp_path: Path) -> None:
    """A key that `reach up` made, and that is gone, is made again by the next start."""
    with server(tmp_path / "home", with_stores=False):
        (tmp_path / "home/keys/operator.nk").unlink()
        diagnosis = diagnose(reach)
    assert_broken(
        diagnosis, "key", found="operator.nk does not exist", fix="Stop `reach up` and start it again"
    )


def test_key_open_to_others_is_named(at_bus: Reach, tmp_path: Path) -> None:
    """Breakage 7: others can read the key."""
    key = tmp_path / "operator.nk"
    key.write_bytes(new_seed())
    key.chmod(0o644)
    assert_broken(
        diagnose(at_bus, REACH_NKEY=str(key)), "key", found="open to other users", fix=f"chmod 600 {key}"
    )


# --------------------------------------------------------------------------------------------- on the way there


def test_name_without_an_address_is_named(reach: Reach) -> None:
    """Breakage 8: the host's name leads nowhere."""
    diagnosis = diagnose(reach, REACH_URL="nats://no-such-host.invalid:4222")
    assert_broken(diagnosis, "name", found="no-such-host.invalid", fix="DNS")


def test_port_at_which_nothing_listens_is_named(reach: Reach) -> None:
    """Breakage 9: nothing listens there."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    diagnosis = diagnose(reach, REACH_URL=f"nats://127.0.0.1:{port}")
    assert_broken(diagnosis, "port", found=f"127.0.0.1:{port} (refused)", fix="Start the server")


def test_what_is_not_nats_is_named(reach: Reach) -> None:
    """Breakage 10: another program has that port."""
    with listener(b"HTTP/1.1 400 Bad Request\r\n\r\n") as port:
        diagnosis = diagnose(reach, REACH_URL=f"nats://127.0.0.1:{port}")
    assert_broken(diagnosis, "nats", found="does not speak NATS", fix="4222")


def test_server_that_is_too_old_is_named(reach: Reach) -> None:
    """Breakage 11: a NATS server that lacks what leases are made of."""
    with listener(b'INFO {"server_id":"X","version":"2.9.25","port":4222,"max_payload":1048576}\r\n') as port:
        diagnosis = diagnose(reach, REACH_URL=f"nats://127.0.0.1:{port}")
    assert_broken(
        diagnosis, "nats", found="nats-server is 2.9.25, and Reach needs 2.11", fix="Update that server"
    )


def test_refused_key_is_named(at_bus: Reach, tmp_path: Path) -> None:
    """Breakage 12: the server does not know the key."""
    key = tmp_path / "stranger.nk"
    key.write_bytes(new_seed())
    key.chmod(0o600)
    diagnosis = diagnose(at_bus, REACH_NKEY=str(key))
    assert_broken(diagnosis, "login", found="REACH_NKEY", fix="Ask whoever runs it")


def test_credentials_that_are_wanted_are_named(at_bus: Reach, bus_home: Path, tmp_path: Path) -> None:
    """Breakage 13: the server wants credentials, and nobody gave any."""
    url = json.loads((bus_home / "server.json").read_text())["url"]
    diagnosis = diagnose(at_bus, REACH_URL=url, REACH_HOME=str(tmp_path / "elsewhere"))
    assert_broken(diagnosis, "login", found="wants credentials", fix="REACH_NKEY")


def test_key_without_permission_is_named(at_bus: Reach, bus_home: Path) -> None:
    """Breakage 14: the key logs in, but may not call."""
    diagnosis = diagnose(at_bus, REACH_NKEY=str(bus_home / "keys/fencer.nk"))
    assert_broken(diagnosis, "permission", found="The broker denies calls", fix="role caller or operator")


@pytest.mark.anyio
async def test_eavesdropper_on_all_requests_is_named(at_bus: Reach, bus_home: Path) -> None:
    """Breakage 15: a plain subscriber on cap.> silences "nobody is there"."""
    import anyio.to_thread

    settings = resolve(role=Role.PLATFORM, env={"REACH_HOME": str(bus_home)})
    tap = await Connection.open(settings, role=Role.PLATFORM.value)
    try:
        tap.subscribe("cap.>", lambda _: None)
        await tap.flush()
        diagnosis = await anyio.to_thread.run_sync(diagnose, at_bus)
    finally:
        await tap.close()
    assert_broken(diagnosis, "permission", found="subscribes to every request", fix="--subscriptions")


# --------------------------------------------------------------------------------------------- behind the door


def test_jetstream_that_is_off_is_named(reach: Reach, tmp_path: Path) -> None:
    """Breakage 16: a NATS of one's own without JetStream."""
    command = [str(find_binary()), "-a", "127.0.0.1", "-p", "-1", "--ports_file_dir", str(tmp_path)]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: [path for path in tmp_path.glob("*.ports") if path.stat().st_size])
        (ports,) = tmp_path.glob("*.ports")
        url = json.loads(ports.read_text())["nats"][0]
        diagnosis = diagnose(reach, REACH_URL=url)
    finally:
        process.terminate()
        process.wait(10)
    assert_broken(diagnosis, "jetstream", found="JetStream is off", fix="-js")


def test_missing_stores_are_named(reach: Reach, tmp_path: Path) -> None:
    """Breakage 17: the platform never ran there, so there is nowhere to put large payloads."""
    with server(tmp_path / "home", with_stores=False):
        diagnosis = diagnose(reach)
    assert_broken(diagnosis, "stores", found="reach_blobs_1h", fix="reach up")


def test_stores_that_were_given_up_are_named(reach: Reach, tmp_path: Path) -> None:
    """Breakage 22: the disk was full for a moment; nats-server then refuses to write until it is started again,
    and only its log says so.
    """
    with server(tmp_path / "home"):
        with (tmp_path / "home/nats.log").open("a") as log:
            log.write(
                "[7] 2026/11/30 11:43:40.810260 [ERR] JetStream stream 'REACH > OBJ_reach_blobs_1h' critical write "
                "error: write /data/1.blk: no space left on device\n"
            )
        diagnosis = diagnose(reach)
    assert_broken(diagnosis, "stores", found="given these stores up: reach_blobs_1h", fix="start it again")
    with server(tmp_path / "home"):
        assert "stores" in diagnose(reach).names("ok")  # A new start takes them up again.


def test_platform_that_does_not_run_is_named(at_bus: Reach) -> None:
    """Breakage 18: nobody notices when an agent crashes."""
    assert_broken(diagnose(at_bus), "platform", found="does not run", fix="reach up")


def test_platform_is_not_demanded_of_a_nats_elsewhere(at_bus: Reach, bus_home: Path) -> None:
    """At a NATS of one's own, which may have no system account for us, the same is a warning."""
    url = json.loads((bus_home / "server.json").read_text())["url"]
    diagnosis = diagnose(at_bus, REACH_URL=url)
    assert (0, ["platform"]) == (diagnosis.code, diagnosis.names("warning"))


# ----------------------------------------------------------------------------------------------- the far agent


def test_capability_that_nobody_serves_is_named(healthy: Reach, tmp_path: Path) -> None:
    """Breakage 19: nobody serves it, but something is near it."""
    with shop_at(healthy, tmp_path):
        diagnosis = diagnose(healthy, "text.uper")
    assert_broken(diagnosis, "served", found="Near it: text.upper", fix="reach run")


def test_agent_that_is_stopped_is_named(healthy: Reach, tmp_path: Path) -> None:
    """Breakage 20: an agent takes the requests and does not answer."""
    with shop_at(healthy, tmp_path) as process:
        process.send_signal(signal.SIGSTOP)
        diagnosis = diagnose(healthy, "text.upper")
    assert_broken(diagnosis, "answers", found="does not answer", fix="kill -CONT")


def test_one_stopped_instance_among_others_is_named(healthy: Reach, tmp_path: Path) -> None:
    """Breakage 21: some of the requests are lost in an instance that hangs, the others are answered."""
    with shop_at(healthy, tmp_path), shop_at(healthy, tmp_path) as process:
        process.send_signal(signal.SIGSTOP)
        diagnosis = diagnose(healthy, "text.upper")
    assert_broken(diagnosis, "answers", found="Some instances of text.upper do not answer", fix="kill -CONT")


def test_looking_at_a_capability_does_not_run_it(healthy: Reach, tmp_path: Path) -> None:
    """What doctor sends to an agent is over before it arrives: the handler never starts (CALL-2)."""
    (tmp_path / "noisy.py").write_text(
        "import pathlib\nimport reach\n\nagent = reach.Agent('noisy')\n\n\n"
        "@agent.capability('make.noise')\nasync def noise() -> None:\n    pathlib.Path('noise').touch()\n"
    )
    process = Reach(healthy.env, tmp_path).start("run", "noisy", "--json")
    try:
        wait_for_line(process, "ready")
        assert 0 == diagnose(healthy, "make.noise").code
        assert 0 == healthy("call", "make.noise").returncode
        assert (tmp_path / "noise").exists()
        (tmp_path / "noise").unlink()
        assert 0 == diagnose(healthy, "make.noise").code
        assert not (tmp_path / "noise").exists()
    finally:
        end(process)


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may read everything")
def test_folder_of_another_user_is_named(reach: Reach) -> None:
    """A state folder that belongs to somebody else cannot be believed."""
    assert "folder" == diagnose(reach, REACH_HOME="/").broken["name"]


def test_keys_that_were_made_anew_are_named(reach: Reach, tmp_path: Path) -> None:
    """The server runs, and its folder's keys were replaced: it knows the old ones."""
    home = tmp_path / "home"
    with server(home):
        shutil.rmtree(home / "keys")
        (home / "keys").mkdir(mode=0o700)
        key = home / "keys/operator.nk"
        key.write_bytes(new_seed())
        key.chmod(0o600)
        diagnosis = diagnose(reach)
    assert_broken(diagnosis, "login", found="made after the server started", fix="Stop `reach up`")
