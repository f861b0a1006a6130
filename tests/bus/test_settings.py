"""Where NATS is and as whom to log in: the order of sources, and errors that name what to change."""

import asyncio
import json
import os
import stat
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nats.aio.client import Client

from reach.bus.addresses import parse_servers, redact
from reach.bus.embedded import EmbeddedServer, find_binary
from reach.bus.keys import Role, key_path, new_seed
from reach.bus.settings import Credentials, Settings, Tls, resolve
from reach.bus.state import StateFolder
from reach.errors import ConfigError

SECRET = "canary-s3cret"
CREDS = (
    "-----BEGIN NATS USER JWT-----\nx.y.z\n------END NATS USER JWT------\n"
    "-----BEGIN USER NKEY SEED-----\nSUA\n------END USER NKEY SEED------\n"
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    home = tmp_path_factory.mktemp("home")
    home.chmod(0o700)
    with EmbeddedServer.start(home, port=0) as running:
        yield running


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    """An environment in which nothing is set and nothing runs."""
    return {"HOME": str(tmp_path)}


@pytest.fixture
def local(server: EmbeddedServer) -> dict[str, str]:
    """An environment in which the local server runs."""
    return {"REACH_HOME": server.info.home}


@pytest.fixture
def secret(tmp_path: Path) -> Callable[..., str]:
    """Write a file, private unless told otherwise; gives its path."""

    def write(name: str, content: str | bytes, *, mode: int = 0o600) -> str:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        path.chmod(mode)
        return str(path)

    return write


@pytest.fixture
def context(tmp_path: Path) -> Callable[..., Path]:
    """Write a context of the nats tool."""

    def write(name: str = "prod", **fields: Any) -> Path:
        path = tmp_path / ".config" / "nats" / "context" / f"{name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(fields))
        path.chmod(0o600)
        return path

    return write


async def _connects(settings: Settings) -> bool:
    client = Client()

    async def ignore(_error: Exception) -> None:
        """A refusal is the answer."""

    await client.connect(**settings.to_nats_options(), allow_reconnect=False, error_cb=ignore)
    connected = client.is_connected
    await client.flush()
    await client.close()
    return connected


# ------------------------------------------------------------------------------------------------ the order


def test_a_url_given_by_the_program_decides(env: dict[str, str], context: Callable[..., Path]) -> None:
    """It counts before REACH_URL and REACH_CONTEXT."""
    context("prod", url="nats://context:4222")
    env |= {"REACH_URL": "nats://variable:4222", "REACH_CONTEXT": "prod"}

    settings = resolve("nats://given:4222", role=Role.CALLER, env=env)

    assert (("nats://given:4222",), "the url given") == (settings.servers, settings.source)


def test_reach_url_counts_before_a_context_named_in_the_environment(
    env: dict[str, str], context: Callable[..., Path]
) -> None:
    """REACH_URL, then REACH_CONTEXT; a context given by the program counts before both."""
    context("prod", url="nats://context:4222")
    context("mine", url="nats://mine:4222")
    env |= {"REACH_CONTEXT": "prod"}

    assert ("nats://context:4222",) == resolve(role=Role.CALLER, env=env).servers
    env |= {"REACH_URL": "nats://variable:4222"}
    assert ("nats://variable:4222",) == resolve(role=Role.CALLER, env=env).servers
    assert ("nats://mine:4222",) == resolve(role=Role.CALLER, env=env, context="mine").servers


def test_the_local_server_is_found_by_itself(server: EmbeddedServer, local: dict[str, str]) -> None:
    """With nothing set, the state folder's server and the role's key are taken."""
    settings = resolve(role=Role.AGENT, env=local)

    assert ((server.url,), Role.AGENT) == (settings.servers, settings.role)
    assert server.keys[Role.AGENT].path == settings.credentials.nkey_file
    assert f"state folder {server.info.home}" == settings.source


@pytest.mark.parametrize("role", list(Role))
async def test_what_is_found_connects(local: dict[str, str], role: Role) -> None:
    """The options go to nats-py as they are, for every role."""
    assert await _connects(resolve(role=role, env=local))


async def test_the_shown_address_of_the_local_server_works_too(
    server: EmbeddedServer, local: dict[str, str]
) -> None:
    """Copied into REACH_URL, under either name of loopback, it still gets the role's key."""
    for url in (
        server.url,
        f"localhost:{server.info.port}",
    ):
        settings = resolve(role=Role.CALLER, env={**local, "REACH_URL": url})

        assert server.keys[Role.CALLER].path == settings.credentials.nkey_file
        assert await _connects(settings)


def test_another_address_gets_no_key_of_ours(server: EmbeddedServer, local: dict[str, str]) -> None:
    """Another host or port is somebody else's: no credentials are offered."""
    for url in (
        "nats://nats.example:4222",
        f"nats://127.0.0.1:{server.info.port - 1}",
    ):
        assert "none" == resolve(url, role=Role.CALLER, env=local).credentials.kind


def test_an_empty_variable_is_unset(local: dict[str, str]) -> None:
    """REACH_URL= in a shell or a compose file means nothing was said."""
    empty = dict.fromkeys(("REACH_URL", "REACH_CONTEXT", "REACH_TOKEN", "REACH_CREDS", "REACH_TLS_CA"), "")

    assert resolve(role=Role.CALLER, env=local) == resolve(role=Role.CALLER, env={**local, **empty})


def test_without_anything_the_error_says_what_to_do(env: dict[str, str]) -> None:
    """No NATS found: start one, or name one."""
    with pytest.raises(ConfigError, match=r"No NATS found: .*`reach up`.*REACH_URL=nats://host:4222"):
        resolve(role=Role.CALLER, env=env)


def test_a_server_that_is_gone_is_told_as_gone(tmp_path: Path) -> None:
    """A record whose process has died is not connected to."""
    home = tmp_path / "home"
    with EmbeddedServer.start(home, port=0) as server:
        record = StateFolder(home).server.read_text()
    StateFolder(home).server.write_text(record)

    with pytest.raises(
        ConfigError, match=rf"{server.url}, pid {server.pid}\) is gone. Start one with `reach up`"
    ):
        resolve(role=Role.CALLER, env={"REACH_HOME": str(home)})


def test_a_damaged_record_is_told(tmp_path: Path) -> None:
    """A `server.json` that is none is named with the cure."""
    folder = StateFolder(tmp_path / "home").create()
    folder.server.write_text("{}")

    with pytest.raises(ConfigError, match=r"server\.json is damaged.*Remove it and run `reach up`"):
        resolve(role=Role.CALLER, env={"REACH_HOME": str(folder.path)})


def test_a_state_folder_open_to_others_is_not_believed(tmp_path: Path) -> None:
    """Whoever could write there could send our calls elsewhere."""
    folder = StateFolder(tmp_path / "home").create()
    folder.path.chmod(0o777)

    with pytest.raises(ConfigError, match=f"0777.*chmod 700 {folder.path}"):
        resolve(role=Role.CALLER, env={"REACH_HOME": str(folder.path)})


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"REACH_HOME": "/a/b"}, "/a/b"),
        ({"XDG_STATE_HOME": "/x"}, "/x/agent-reach"),
        ({"HOME": "/home/me"}, "/home/me/.local/state/agent-reach"),
        ({"REACH_HOME": "/a", "XDG_STATE_HOME": "/x", "HOME": "/h"}, "/a"),
    ],
)
def test_the_state_folder_is_located(variables: dict[str, str], expected: str) -> None:
    """REACH_HOME, then XDG_STATE_HOME, then the usual place."""
    assert Path(expected) == StateFolder.locate(variables).path


def test_a_new_state_folder_is_private(tmp_path: Path) -> None:
    """Made with mode 0700 whatever the umask says, its parents as usual."""
    folder = StateFolder(tmp_path / "deep" / "home").create()

    assert 0o700 == stat.S_IMODE(folder.path.stat().st_mode)


# ------------------------------------------------------------------------------------------------- addresses


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("nats://host", ("nats://host:4222",)),
        ("host", ("nats://host:4222",)),
        ("host:5222", ("nats://host:5222",)),
        ("127.0.0.1", ("nats://127.0.0.1:4222",)),
        ("tls://host:443", ("tls://host:443",)),
        ("NATS://Host", ("nats://host:4222",)),
        ("nats://[::1]:4333/", ("nats://[::1]:4333",)),
        (" a:1 , nats://b:2", ("nats://a:1", "nats://b:2")),
    ],
)
def test_addresses_are_read_as_people_write_them(text: str, expected: tuple[str, ...]) -> None:
    """Scheme and port may be left out, several are separated by commas."""
    assert (expected, None) == parse_servers(text, source="REACH_URL")


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("http://host:4222", "starts with http://, which is not NATS"),
        ("natss://host", "starts with natss://"),
        ("nats://", "is not an address"),
        ("nats://host:port", "is not an address"),
        ("nats://host:99999", "is not an address"),
        ("nats://host:0", "is not an address"),
        ("nats://ho st", "is not an address"),
        ("a,,b", "is not an address"),
        ("nats://host/path", "more than host and port"),
        ("nats://host?x=1", "more than host and port"),
        ("nats://a,ws://b", "mixes WebSocket and plain"),
        ("nats://u:1@a,nats://v:2@b", "different logins"),
    ],
)
def test_what_is_no_address_is_refused_by_its_source(text: str, fault: str) -> None:
    """The message names the variable, what is wrong, and where it can, what would be right."""
    with pytest.raises(ConfigError, match=f"^REACH_URL .*{fault}"):
        parse_servers(text, source="REACH_URL")


def test_websockets_need_their_package(monkeypatch: pytest.MonkeyPatch, env: dict[str, str]) -> None:
    """Told before connecting, with the command that helps."""
    monkeypatch.setattr("reach.bus.addresses.find_spec", lambda _name: None)

    with pytest.raises(ConfigError, match="pip install aiohttp"):
        resolve("wss://host/nats", role=Role.CALLER, env=env)


def test_websocket_addresses_keep_their_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy may serve NATS under a path, on the usual web port."""
    monkeypatch.setattr("reach.bus.addresses.find_spec", lambda name: name)

    assert (("wss://host/nats", "ws://host:8080"), None) == parse_servers(
        "wss://host/nats,ws://host:8080", source="REACH_URL"
    )


@given(st.text(min_size=1))
def test_redacting_hides_whatever_stands_before_the_host(password: str) -> None:
    """Commas, spaces, slashes and @ in a password are hidden with it; scheme and last host stay."""
    assert "nats://***@other:4222" == redact(f"nats://me:{password}@host,tls://me:{password}@other:4222")
    assert "***@host" == redact(f"{password}@host") or "://" in password


def test_what_holds_no_login_is_shown_as_it_is() -> None:
    """An address without @ has nothing to hide."""
    assert "nats://a:1,b" == redact("nats://a:1,b")


# ----------------------------------------------------------------------------------------------- credentials


def test_a_login_in_the_address_is_used_and_never_shown(env: dict[str, str]) -> None:
    """User and password are decoded, and appear neither in servers, display nor repr."""
    settings = resolve(f"nats://me:{SECRET}%21@host", role=Role.CALLER, env=env)
    options = settings.to_nats_options()

    assert ("me", f"{SECRET}!") == (options["user"], options["password"])
    assert "nats://host:4222" == settings.display
    assert SECRET not in repr(settings)


def test_a_token_in_the_address_is_a_token(env: dict[str, str]) -> None:
    """One word before the @ is a token, as NATS reads it."""
    settings = resolve(f"nats://{SECRET}@host", role=Role.CALLER, env=env)

    assert SECRET == settings.to_nats_options()["token"]
    assert SECRET not in repr(settings)


def test_no_error_shows_a_secret(env: dict[str, str]) -> None:
    """Whatever is wrong with an address, its password is not repeated."""
    for url in (
        f"nats://me:x,{SECRET}@host",
        f"nats://me:x {SECRET}@host",
        f"nats://me:{SECRET}:1@host/x",
        f"nats://me:{SECRET}@",
        f"http://me:{SECRET}@host",
        f"nats://me:{SECRET}@host:x",
        f"me:{SECRET}@h/x",
    ):
        with pytest.raises(ConfigError) as caught:
            resolve(url, role=Role.CALLER, env=env)
        assert SECRET not in str(caught.value)


def test_a_login_in_the_address_and_another_beside_it_are_refused(env: dict[str, str]) -> None:
    """Neither wins silently."""
    env |= {"REACH_URL": "nats://me:pass@host", "REACH_TOKEN": "t"}

    with pytest.raises(ConfigError, match="REACH_URL carries a login of its own, and REACH_TOKEN is set"):
        resolve(role=Role.CALLER, env=env)


def test_each_way_to_log_in_reaches_the_client(env: dict[str, str], secret: Callable[..., str]) -> None:
    """Credentials file, nkey, user and password, token: each under nats-py's name, with its source."""
    creds = secret("me.creds", CREDS)
    nkey = secret("me.nk", new_seed())
    ways: list[tuple[dict[str, str], dict[str, str]]] = [
        ({"REACH_CREDS": creds}, {"user_credentials": creds}),
        ({"REACH_NKEY": nkey}, {"nkeys_seed": nkey}),
        ({"REACH_USER": "me", "REACH_PASSWORD": SECRET}, {"user": "me", "password": SECRET}),
        ({"REACH_TOKEN": SECRET}, {"token": SECRET}),
    ]
    logins = {"user_credentials", "nkeys_seed", "user", "password", "token"}
    for variables, expected in ways:
        settings = resolve("host", role=Role.CALLER, env={**env, **variables})
        options = settings.to_nats_options()

        assert expected == {name: options[name] for name in logins & options.keys()}
        assert next(iter(variables)) == settings.credentials.source
        assert SECRET not in repr(settings)


def test_a_login_in_the_environment_counts_at_the_local_server_too(
    local: dict[str, str], secret: Callable[..., str]
) -> None:
    """A user of one's own at the local server."""
    nkey = secret("me.nk", new_seed())

    settings = resolve(role=Role.CALLER, env={**local, "REACH_NKEY": nkey})

    assert Path(nkey) == settings.credentials.nkey_file


@pytest.mark.parametrize(
    ("variables", "fault"),
    [
        (
            {"REACH_TOKEN": "t", "REACH_USER": "u", "REACH_PASSWORD": "p"},
            "REACH_USER and REACH_TOKEN are both set",
        ),
        ({"REACH_USER": "u"}, "REACH_USER and REACH_PASSWORD belong together"),
        ({"REACH_PASSWORD": "p"}, "REACH_USER and REACH_PASSWORD belong together"),
        ({"REACH_CREDS": "/nowhere/me.creds"}, "REACH_CREDS: /nowhere/me.creds does not exist"),
        ({"REACH_NKEY": "/nowhere/me.nk"}, "REACH_NKEY: /nowhere/me.nk does not exist"),
        ({"REACH_NKEY": "/tmp"}, "REACH_NKEY: /tmp is not a file"),
        ({"REACH_TLS_CA": "/nowhere/ca.pem"}, "REACH_TLS_CA: /nowhere/ca.pem does not exist"),
        ({"REACH_TLS_KEY": "/nowhere/key.pem"}, "REACH_TLS_KEY: /nowhere/key.pem does not exist"),
        ({"REACH_TLS_FIRST": "maybe"}, "REACH_TLS_FIRST is 'maybe'. Right would be 1 or 0"),
        ({"REACH_CONTEXT": "../up"}, "'../up' is no name of a nats context"),
    ],
)
def test_each_wrong_setting_is_named(env: dict[str, str], variables: dict[str, str], fault: str) -> None:
    """The message begins with the variable and says what is wrong with it."""
    url = None if "REACH_CONTEXT" in variables else "host"

    with pytest.raises(ConfigError, match=fault):
        resolve(url, role=Role.CALLER, env={**env, **variables})


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604])
@pytest.mark.parametrize("variable", ["REACH_CREDS", "REACH_NKEY", "REACH_TLS_KEY"])
def test_a_secret_that_others_can_read_is_refused(
    env: dict[str, str], secret: Callable[..., str], variable: str, mode: int
) -> None:
    """Group- or world-readable keys are refused with their chmod."""
    path = secret("file", CREDS if variable == "REACH_CREDS" else new_seed(), mode=mode)

    with pytest.raises(ConfigError, match=rf"{variable}: .*{mode:04o}.*chmod 600 {path}"):
        resolve("host", role=Role.CALLER, env={**env, variable: path})


def test_a_seed_in_place_of_its_file_is_refused_unseen(env: dict[str, str]) -> None:
    """The variable wants a path; a seed put there is not repeated."""
    seed = new_seed().decode()

    with pytest.raises(ConfigError, match="REACH_NKEY holds a seed itself") as caught:
        resolve("host", role=Role.CALLER, env={**env, "REACH_NKEY": seed})
    assert seed not in str(caught.value)


def test_a_file_of_the_wrong_kind_is_refused(env: dict[str, str], secret: Callable[..., str]) -> None:
    """A seed is no credentials file and the reverse; each message says what the other is for."""
    with pytest.raises(ConfigError, match=r"is not a credentials file.*use REACH_NKEY"):
        resolve("host", role=Role.CALLER, env={**env, "REACH_CREDS": secret("a", new_seed())})
    with pytest.raises(ConfigError, match=r"REACH_NKEY: .* is not an nkey seed"):
        resolve("host", role=Role.CALLER, env={**env, "REACH_NKEY": secret("b", CREDS)})


def test_a_key_of_the_local_server_is_checked_before_it_is_used(tmp_path: Path) -> None:
    """A key in the state folder that others can read is refused."""
    with EmbeddedServer.start(tmp_path / "home", port=0) as server:
        key_path(StateFolder(tmp_path / "home").keys, Role.CALLER).chmod(0o644)

        with pytest.raises(ConfigError, match=r"Key of role caller: .*0644.*chmod 600"):
            resolve(role=Role.CALLER, env={"REACH_HOME": server.info.home})


# -------------------------------------------------------------------------------------------------- contexts


def test_a_context_says_everything(
    env: dict[str, str], context: Callable[..., Path], secret: Callable[..., str]
) -> None:
    """Address, login, TLS, inbox prefix and JetStream domain come from the file; paths are expanded."""
    secret("keys/me.creds", CREDS)
    secret("ca.pem", "x")
    secret("cert.pem", "x")
    secret("key.pem", "x")
    home = Path(env["HOME"])
    env |= {"WHERE": str(home)}
    context(
        url="tls://a:4222,tls://b:4222",
        creds="~/keys/me.creds",
        ca="$WHERE/ca.pem",
        cert=f"file://{home}/cert.pem",
        key=str(home / "key.pem"),
        inbox_prefix="_INBOX_me",
        jetstream_domain="hub",
        tls_first=True,
        description="",
        color_scheme="",
    )

    settings = resolve(role=Role.OPERATOR, env=env, context="prod")

    assert (
        Settings(
            servers=("tls://a:4222", "tls://b:4222"),
            role=Role.OPERATOR,
            source="nats context prod",
            credentials=Credentials(
                creds_file=home / "keys/me.creds",
                source=f"creds in {home}/.config/nats/context/prod.json",
            ),
            tls=Tls(ca=home / "ca.pem", cert=home / "cert.pem", key=home / "key.pem", handshake_first=True),
            inbox_prefix="_INBOX_me",
            jetstream_domain="hub",
        )
        == settings
    )
    assert settings.wants_tls


def test_the_selected_context_is_used_only_when_asked_for(
    env: dict[str, str], context: Callable[..., Path]
) -> None:
    """What `nats context select` chose may be production: it takes a word to go there."""
    path = context("prod", url="nats://prod:4222")
    (path.parents[1] / "context.txt").write_text("prod\n")

    with pytest.raises(ConfigError, match="No NATS found"):
        resolve(role=Role.CALLER, env=env)
    assert ("nats://prod:4222",) == resolve(role=Role.CALLER, env=env, context="selected").servers
    assert ("nats://prod:4222",) == resolve(
        role=Role.CALLER, env={**env, "REACH_CONTEXT": "selected"}
    ).servers


def test_contexts_live_under_xdg_config_home(env: dict[str, str], context: Callable[..., Path]) -> None:
    """As the tool itself looks for them."""
    path = context(url="nats://prod:4222")
    elsewhere = {"XDG_CONFIG_HOME": str(path.parents[2])}

    assert ("nats://prod:4222",) == resolve(role=Role.CALLER, env=elsewhere, context="prod").servers


def test_the_environment_counts_before_a_contexts_login(
    env: dict[str, str], context: Callable[..., Path]
) -> None:
    """As with the tool itself, a variable overrides the file."""
    context(url="nats://prod:4222", user="file", password=SECRET)

    from_file = resolve(role=Role.CALLER, env=env, context="prod")
    from_variable = resolve(role=Role.CALLER, env={**env, "REACH_TOKEN": "t"}, context="prod")

    assert ("file", SECRET) == (from_file.credentials.user, from_file.credentials.password)
    assert ("token", None) == (from_variable.credentials.kind, from_variable.credentials.user)


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ({"socks_proxy": "socks5://x"}, "uses 'socks_proxy'"),
        ({"nsc": "nsc://x"}, r"uses 'nsc'.*nsc generate creds"),
        ({"user_jwt": "x.y.z"}, "uses 'user_jwt'"),
        ({"creds": "op://vault/item"}, "is a op: reference"),
        ({"nkey": "~/missing.nk"}, "missing.nk does not exist"),
        ({"user": "u", "password": "p", "token": "t"}, "user and token in .* are both set"),
        ({"user": "u"}, "user and password in .* belong together"),
        ({"url": 7}, "'url' in .* is not a text"),
        ({"url": "http://x"}, "not NATS"),
        ({"cert": "/nowhere"}, "cert in .*: /nowhere does not exist"),
    ],
)
def test_what_a_context_asks_that_cannot_be_is_refused(
    env: dict[str, str], context: Callable[..., Path], fields: dict[str, Any], fault: str
) -> None:
    """A field that would change where or as whom we connect is never ignored."""
    path = context(**{"url": "nats://host", **fields})

    with pytest.raises(ConfigError, match=fault) as caught:
        resolve(role=Role.CALLER, env=env, context="prod")
    assert str(path) in str(caught.value) or "missing.nk" in fault


def test_an_unknown_context_names_those_that_exist(env: dict[str, str], context: Callable[..., Path]) -> None:
    """A typing mistake is one look away from its cure."""
    context("prod", url="x")
    context("staging", url="x")

    with pytest.raises(ConfigError, match=r"no nats context 'prd'.*There are: prod, staging"):
        resolve(role=Role.CALLER, env=env, context="prd")


def test_no_context_selected_is_told(env: dict[str, str]) -> None:
    """Asked for and not there."""
    with pytest.raises(ConfigError, match="No nats context is selected"):
        resolve(role=Role.CALLER, env=env, context="selected")


@pytest.mark.parametrize("content", ["{", "[]", "\x00"])
def test_a_damaged_context_is_told(env: dict[str, str], context: Callable[..., Path], content: str) -> None:
    """By name and path."""
    path = context()
    path.write_text(content)

    with pytest.raises(ConfigError, match=f"nats context prod \\({path}\\)"):
        resolve(role=Role.CALLER, env=env, context="prod")


def test_a_context_with_a_password_must_be_private(env: dict[str, str], context: Callable[..., Path]) -> None:
    """It is a secret file like any other."""
    context(url="nats://host", user="u", password=SECRET).chmod(0o644)

    with pytest.raises(ConfigError, match=r"holds a secret.*0644.*chmod 600") as caught:
        resolve(role=Role.CALLER, env=env, context="prod")
    assert SECRET not in str(caught.value)


def test_a_url_and_a_context_are_one_too_many(env: dict[str, str]) -> None:
    """Neither wins silently."""
    with pytest.raises(ConfigError, match="Both a url and a context"):
        resolve("host", role=Role.CALLER, env=env, context="prod")


# ------------------------------------------------------------------------------------------------------- TLS


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A CA, a server certificate for localhost, and a client certificate."""
    folder = tmp_path_factory.mktemp("tls")
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)

    openssl(
        *("req", "-x509", *key, "-keyout", "ca.key", "-out", "ca.pem", "-days", "2", "-subj", "/CN=test ca"),
        *("-addext", "keyUsage=critical,keyCertSign", "-addext", "basicConstraints=critical,CA:TRUE"),
    )
    for name in ("server", "client"):
        openssl("req", *key, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
        (folder / "ext").write_text(
            "subjectAltName=DNS:localhost,DNS:nats.example\nauthorityKeyIdentifier=keyid\n"
        )
        openssl(
            *("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial"),
            *("-out", f"{name}.pem", "-days", "2", "-extfile", "ext"),
        )
    return folder


@pytest.fixture(params=[False, True], ids=["upgrade", "handshake-first"])
def tls_server(
    request: pytest.FixtureRequest, certificates: Path, tmp_path: Path
) -> Iterator[tuple[int, bool]]:
    """A NATS that wants TLS, a client certificate, and a user with a password; its port."""
    config = tmp_path / "nats.conf"
    config.write_text(
        f"""
        host: "127.0.0.1", port: -1, ports_file_dir: "{tmp_path}"
        authorization {{ user: "me", password: "{SECRET}" }}
        tls {{
          cert_file: "{certificates}/server.pem", key_file: "{certificates}/server.key"
          ca_file: "{certificates}/ca.pem", verify: true, handshake_first: {str(request.param).lower()}
        }}
        """
    )
    process = subprocess.Popen([str(find_binary()), "--config", str(config)], stderr=subprocess.DEVNULL)
    try:
        ports = tmp_path / f"{find_binary().name}_{process.pid}.ports"
        while not (ports.exists() and ports.read_text().endswith("}")):
            assert process.poll() is None
            os.sched_yield()
        yield int(json.loads(ports.read_text())["nats"][0].rpartition(":")[2]), request.param
    finally:
        process.terminate()
        process.wait(10)


@pytest.mark.needs_program("openssl")
@pytest.mark.parametrize(("host", "hostname"), [("localhost", ""), ("127.0.0.1", "nats.example")])
async def test_tls_with_certificates_and_a_password_connects(
    env: dict[str, str], certificates: Path, tls_server: tuple[int, bool], host: str, hostname: str
) -> None:
    """CA, client certificate, name to verify and either order of the handshake, all by environment."""
    port, first = tls_server
    env |= {
        "REACH_URL": f"tls://me:{SECRET}@{host}:{port}",
        "REACH_TLS_CA": str(certificates / "ca.pem"),
        "REACH_TLS_CERT": str(certificates / "client.pem"),
        "REACH_TLS_KEY": str(certificates / "client.key"),
        "REACH_TLS_HOSTNAME": hostname,
        "REACH_TLS_FIRST": "1" if first else "0",
    }

    settings = resolve(role=Role.CALLER, env=env)

    assert settings.wants_tls
    assert await asyncio.wait_for(_connects(settings), 10)


@pytest.mark.needs_program("openssl")
def test_half_a_certificate_is_refused(env: dict[str, str], certificates: Path) -> None:
    """A certificate without its key, and the reverse, name what is missing."""
    with pytest.raises(ConfigError, match="REACH_TLS_KEY is missing"):
        resolve("host", role=Role.CALLER, env={**env, "REACH_TLS_CERT": str(certificates / "client.pem")})
    with pytest.raises(ConfigError, match="REACH_TLS_CERT is missing"):
        resolve("host", role=Role.CALLER, env={**env, "REACH_TLS_KEY": str(certificates / "client.key")})


@pytest.mark.needs_program("openssl")
def test_files_that_do_not_belong_together_are_refused(env: dict[str, str], certificates: Path) -> None:
    """A key of another certificate is told with both files."""
    env |= {
        "REACH_TLS_CERT": str(certificates / "client.pem"),
        "REACH_TLS_KEY": str(certificates / "server.key"),
    }
    settings = resolve("host", role=Role.CALLER, env=env)

    with pytest.raises(ConfigError, match=r"TLS files do not load \(.*client\.pem, .*server\.key\)"):
        settings.to_nats_options()


def test_plain_addresses_want_no_tls(env: dict[str, str]) -> None:
    """Nothing about TLS is passed on where nothing was said."""
    settings = resolve("nats://host", role=Role.CALLER, env=env)

    assert not settings.wants_tls
    assert [] == [name for name in settings.to_nats_options() if name.startswith("tls")]


def test_the_promised_defaults_reach_the_client(env: dict[str, str]) -> None:
    """Case 20: the first connection has 5 s; a link is tested each 20 s."""
    options = resolve("nats://host", role=Role.CALLER, env=env).to_nats_options()

    assert {"servers": ["nats://host:4222"], "connect_timeout": 5.0, "ping_interval": 20.0} == options
