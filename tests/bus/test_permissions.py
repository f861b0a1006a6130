"""Least privilege, held against the real server: what each role may do, and what the broker refuses."""

import asyncio
import json
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.aio.client import Client
from nats.errors import NoRespondersError
from nats.js.errors import APIError

from reach.bus.embedded import EmbeddedServer
from reach.bus.keys import Role
from reach.bus.permissions import Permissions, ServerPlan, accounts_config, permissions, server_config
from reach.bus.provision import provision
from reach.errors import ConfigError

CLIENTS = (Role.CALLER, Role.AGENT, Role.OPERATOR)
EVERYBODY = (*CLIENTS, Role.PLATFORM)
WITHOUT_AGENT = (Role.CALLER, Role.OPERATOR)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    """One server with everything provisioned, and a durable consumer of the events."""

    async def prepare(running: EmbeddedServer) -> None:
        async with _connected(running, Role.PLATFORM) as (client, _):
            jetstream = client.jetstream()
            await provision(jetstream)
            await jetstream.add_consumer("REACH_TASK_EVENTS", name="tasks", durable_name="tasks")

    home = tmp_path_factory.mktemp("home")
    home.chmod(0o700)
    with EmbeddedServer.start(home, port=0) as running:
        asyncio.run(prepare(running))
        yield running


@asynccontextmanager
async def _connected(
    server: EmbeddedServer, role: Role, **options: Any
) -> AsyncIterator[tuple[Client, list[str]]]:
    """A plain client of a role, and what the broker refused it."""
    refused: list[str] = []

    async def on_error(error: Exception) -> None:
        refused.append(str(error))

    options = {"inbox_prefix": f"reply.{role}", **options}
    client = await nats.connect(
        server.url, nkeys_seed=str(server.keys[role].path), error_cb=on_error, **options
    )
    try:
        yield client, refused
    finally:
        await client.close()


async def _settled(client: nats.NATS) -> None:
    """Wait until the server has done all that was asked of it.

    nats-py sends PING at once and the rest later: only what is sent before PING is done before PONG.
    """
    await client._flush_pending(force_flush=True)
    await client.flush()


async def _refusals(server: EmbeddedServer, role: Role, action: str, subject: str) -> list[str]:
    """Do one thing, and wait until the server has judged it (its PONG comes after its error)."""
    async with _connected(server, role) as (client, refused):
        if action == "publish":
            await client.publish(subject, b"{}")
        else:
            name, _, queue = subject.partition(" ")
            await client.subscribe(name, queue=queue)
        await _settled(client)
        return refused


def _table(rows: list[tuple[tuple[Role, ...], str, tuple[str, ...]]]) -> list[tuple[Role, str, str]]:
    return [
        (role, action, subject) for roles, action, subjects in rows for role in roles for subject in subjects
    ]


ALLOWED = _table(
    [
        (
            EVERYBODY,
            "publish",
            (
                "cap.invoice.extract",
                "all.cache.purge",
                "lane.extractor.invoice.extract",
                "inst.extractor-abcdefgh.invoice.extract",
                "ctl.extractor-abcdefgh.cancel",
                "ctl.extractor-abcdefgh.credit",
                "reach.suspect.invoice.extract",
                "reach.outcomes.client1",
                "reach.permit.extractor.invoice.extract",
                "reach.record.default",
                "reach.unknown.default",
                "reach.count.task.default.t1.calls",
                "$KV.reach_quota.all.invoice.extract",
                "$JS.API.STREAM.MSG.GET.KV_reach_quota",
                "task.submit.ledger.reconcile",
                "task.event.queued.default.t1.ledger.reconcile",
                "task.event.scheduled.default.t1.ledger.reconcile",
                "task.event.cancelled.default.t1.ledger.reconcile",
                "task.input.default.t1",
                "task.cancel.default.t1",
                "$SRV.INFO",
                "$SRV.PING.extractor",
                "$SYS.REQ.USER.INFO",
                "$JS.API.STREAM.INFO.OBJ_reach_blobs_24h",
                "$O.reach_blobs_tasks.C.abc",
            ),
        ),
        (
            EVERYBODY,
            "subscribe",
            ("reply.me.*", "reply.>", "_INBOX.abc.*", "reach.gone.>", "task.event.>", "stream.default.s1"),
        ),
        ((Role.AGENT, Role.PLATFORM), "publish", ("ctl.extractor-abcdefgh.ping",)),
        (
            (Role.AGENT, Role.PLATFORM),
            "subscribe",
            (
                "cap.invoice.extract reach",
                "cap.> reach",
                "lane.extractor.invoice.extract reach",
                "t.acme.cap.invoice.extract reach",
                "t.*.cap.invoice.extract reach",
                "all.cache.purge",
                "inst.extractor-abcdefgh.>",
                "ctl.extractor-abcdefgh.*",
                "task.input.default.t1",
                "task.cancel.>",
                "$SRV.PING",
                "$SRV.INFO.extractor",
            ),
        ),
        (
            (Role.AGENT, Role.PLATFORM),
            "publish",
            (
                "reply.client1.token",
                "_INBOX.abc.def",
                "reach.register",
                "reach.heartbeat.extractor-abcdefgh",
                "reach.goodbye.extractor-abcdefgh",
                "task.event.running.default.t1.ledger.reconcile",
                "stream.default.s1",
                "$KV.reach_idempotency.k1",
                "$KV.reach_state.k1",
                "$JS.API.CONSUMER.MSG.NEXT.REACH_TASKS.workers",
                "$JS.ACK.REACH_TASKS.workers.1.1.1.1.0",
            ),
        ),
        (
            (Role.OPERATOR, Role.PLATFORM),
            "publish",
            ("reach.route.weight", "reach.route.drain", "reach.tasks.list", "reach.unknowns.resolve"),
        ),
        (
            (Role.OPERATOR, Role.PLATFORM),
            "subscribe",
            ("reach.alert.>", "reach.record.>", "reach.heartbeat.>"),
        ),
        (
            (Role.PLATFORM,),
            "publish",
            (
                "ctl.extractor-abcdefgh.drain",
                "ctl.extractor-abcdefgh.membership",
                "$KV.reach_cards.extractor",
                "$KV.reach_routes.invoice.extract",
                "$KV.reach_schemas.x",
                "reach.alert.lane",
                "reach.gone.extractor-abcdefgh.1",
                "reach.audit.default",
            ),
        ),
        ((Role.PLATFORM,), "subscribe", ("reach.register", "reach.route.>", "reach.outcomes.>", ">")),
        ((Role.FENCER,), "publish", ("$SYS.REQ.SERVER.NABC.KICK",)),
        (
            (Role.FENCER,),
            "subscribe",
            ("$SYS.ACCOUNT.*.DISCONNECT", "$SYS.ACCOUNT.*.CONNECT", "_INBOX.abc.*", "reply.me.*"),
        ),
    ]
)

DENIED = _table(
    [
        (WITHOUT_AGENT, "publish", ("ctl.extractor-abcdefgh.ping",)),
        (
            CLIENTS,
            "publish",
            (
                "ctl.extractor-abcdefgh.drain",
                "ctl.extractor-abcdefgh.membership",
                "$KV.reach_cards.extractor",
                "$KV.reach_routes.leader",
                "$KV.reach_schemas.x",
                "reach.alert.lane",
                "reach.gone.extractor-abcdefgh.1",
                "reach.audit.default",
                "reach.unknown.default.resolved.rch_1",
                "$JS.API.STREAM.DELETE.KV_reach_cards",
                "$JS.API.STREAM.UPDATE.KV_reach_cards",
                "$JS.API.STREAM.CREATE.mine",
                "$JS.API.STREAM.PURGE.KV_reach_quota",
                "$JS.API.STREAM.PURGE.REACH_COUNTERS",
                "$JS.API.STREAM.MSG.GET.REACH_COUNTERS",
                "$JS.API.STREAM.PURGE.KV_reach_cards",
                "$JS.API.STREAM.PURGE.OBJ_reach_blobs_1h",
                "$JS.API.STREAM.MSG.DELETE.OBJ_reach_blobs_1h",
                "$JS.API.CONSUMER.DURABLE.CREATE.REACH_TASK_EVENTS.tasks",
                "$JS.API.CONSUMER.CREATE.REACH_TASK_EVENTS.tasks",
                "$JS.API.CONSUMER.DELETE.REACH_TASK_EVENTS.tasks",
                "$JS.API.CONSUMER.MSG.NEXT.REACH_TASK_EVENTS.tasks",
                "$JS.ACK.REACH_TASK_EVENTS.tasks.1.1.1.1.0",
                "$SYS.REQ.SERVER.PING",
                "$SYS.REQ.SERVER.NABC.KICK",
                "anything.else",
                "cap",
            ),
        ),
        (
            CLIENTS,
            "subscribe",
            (
                "reach.register",
                "reach.outcomes.>",
                "reach.route.>",
                "$SYS.>",
                "$KV.>",
                "$O.>",
                "$JS.>",
                ">",
                "*.>",
            ),
        ),
        (
            WITHOUT_AGENT,
            "publish",
            (
                "reply.client1.token",
                "_INBOX.abc.def",
                "reach.register",
                "reach.heartbeat.extractor-abcdefgh",
                "reach.goodbye.extractor-abcdefgh",
                "task.event.completed.default.t1.ledger.reconcile",
                "stream.default.s1",
                "$KV.reach_idempotency.k1",
                "$KV.reach_state.k1",
                "$JS.API.CONSUMER.MSG.NEXT.REACH_TASKS.workers",
                "$JS.ACK.REACH_TASKS.workers.1.1.1.1.0",
            ),
        ),
        (
            WITHOUT_AGENT,
            "subscribe",
            (
                "cap.invoice.extract reach",
                "cap.invoice.extract",
                "lane.extractor.invoice.extract reach",
                "inst.extractor-abcdefgh.>",
                "all.cache.purge",
                "ctl.extractor-abcdefgh.*",
                "task.cancel.>",
                "$SRV.PING",
            ),
        ),
        (
            (Role.AGENT,),
            "subscribe",
            (
                "cap.>",
                "cap.invoice.extract",
                "cap.invoice.extract others",
                "*.invoice.extract",
                "lane.extractor.invoice.extract",
                "lane.> others",
                "t.acme.cap.invoice.extract",
            ),
        ),
        ((Role.CALLER, Role.AGENT), "publish", ("reach.route.weight", "reach.unknowns.list")),
        ((Role.CALLER, Role.AGENT), "subscribe", ("reach.alert.>", "reach.record.>", "reach.heartbeat.>")),
        (
            (Role.FENCER,),
            "publish",
            (
                "cap.invoice.extract",
                "$SYS.REQ.SERVER.PING",
                "$SYS.REQ.SERVER.NABC.RELOAD",
                "$SYS.REQ.ACCOUNT.X.INFO",
            ),
        ),
        ((Role.FENCER,), "subscribe", ("$SYS.>", "$SYS.SERVER.*.STATSZ", "cap.>", ">")),
    ]
)


@pytest.mark.parametrize(("role", "action", "subject"), ALLOWED)
async def test_a_role_may_do_its_work(server: EmbeddedServer, role: Role, action: str, subject: str) -> None:
    """What the table of subjects gives a role, the broker lets pass."""
    assert [] == await _refusals(server, role, action, subject)


@pytest.mark.parametrize(("role", "action", "subject"), DENIED)
async def test_a_role_may_do_no_more(server: EmbeddedServer, role: Role, action: str, subject: str) -> None:
    """What a role has no business with, the broker refuses and says so."""
    refused = await _refusals(server, role, action, subject)

    assert 1 == len(refused)
    assert f"permissions violation for {action}" in refused[0].lower().replace("subscription", "subscribe")


async def test_without_a_key_nobody_comes_in(server: EmbeddedServer) -> None:
    """A client without credentials is refused at its first word."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.info.port)
    try:
        greeting = await reader.readline()
        writer.write(b'CONNECT {"verbose": false}\r\nPING\r\n')
        answer = await reader.readline()
    finally:
        writer.close()
        await writer.wait_closed()

    assert greeting.startswith(b"INFO ")
    assert answer == b"-ERR 'Authorization Violation'\r\n"


async def test_serving_agents_leave_no_responders_intact(server: EmbeddedServer) -> None:
    """With agents connected and nobody serving a capability, a caller is told at once, not by timeout."""
    async with _connected(server, Role.AGENT) as (agent, _), _connected(server, Role.CALLER) as (caller, _):
        await agent.subscribe("cap.served", queue="reach")
        await _settled(agent)

        with pytest.raises(NoRespondersError):
            await caller.request("cap.not.served", b"{}", timeout=5)


@pytest.mark.parametrize("role", CLIENTS)
@pytest.mark.parametrize("prefix", ["_INBOX", "reply.client1"])
async def test_plain_requests_are_answered(server: EmbeddedServer, role: Role, prefix: str) -> None:
    """`nats req cap.x '{…}'` with a role's key works, whatever of the two inboxes it uses."""
    async with (
        _connected(server, Role.AGENT) as (agent, refused),
        _connected(server, role, inbox_prefix=prefix) as (client, _),
    ):

        async def echo(message: Any) -> None:
            await agent.publish(message.reply, message.data)

        await agent.subscribe("cap.echo", queue="reach", cb=echo)
        await _settled(agent)
        answer = await client.request("cap.echo", b'{"n": 1}', timeout=5)

    assert b'{"n": 1}' == answer.data
    assert [] == refused


async def test_a_stream_reaches_an_inbox_of_another_prefix(server: EmbeddedServer) -> None:
    """Forty frames pass to an inbox that no permission names; a limit would cut such streams off."""
    async with (
        _connected(server, Role.AGENT) as (agent, refused),
        _connected(server, Role.PLATFORM, inbox_prefix="elsewhere") as (client, _),
    ):

        async def stream(message: Any) -> None:
            for number in range(40):
                await agent.publish(message.reply, str(number).encode())

        await agent.subscribe("cap.stream", queue="reach", cb=stream)
        await _settled(agent)
        frames = await client.subscribe("elsewhere.client1.stream1")
        await client.publish("cap.stream", b"{}", reply="elsewhere.client1.stream1")
        received = [int((await frames.next_msg(timeout=5)).data) for _ in range(40)]

    assert list(range(40)) == received
    assert [] == refused


async def test_an_agent_answers_only_where_it_was_asked(server: EmbeddedServer) -> None:
    """Without a request that names it, an agent cannot publish to a foreign inbox."""
    assert 1 == len(await _refusals(server, Role.AGENT, "publish", "elsewhere.client1.stream1"))


@pytest.mark.parametrize("role", CLIENTS)
async def test_blobs_go_both_ways(server: EmbeddedServer, role: Role) -> None:
    """Each client role puts an object of 3 MB, and a caller reads it under flow control."""
    content = os.urandom(3 * 1024 * 1024)
    async with (
        _connected(server, role) as (writer, writer_refused),
        _connected(server, Role.CALLER) as (reader, reader_refused),
    ):
        await (await writer.jetstream().object_store("reach_blobs_1h")).put(f"blob-{role}", content)
        store = await reader.jetstream().object_store("reach_blobs_1h")
        result = await store.get(f"blob-{role}")
        await _settled(reader)

    assert content == result.data
    assert ([], []) == (writer_refused, reader_refused)


async def test_cards_are_read_by_callers_and_written_by_the_platform(server: EmbeddedServer) -> None:
    """A caller gets, lists and watches cards."""
    async with (
        _connected(server, Role.PLATFORM) as (platform, _),
        _connected(server, Role.CALLER) as (caller, refused),
    ):
        await (await platform.jetstream().key_value("reach_cards")).put("extractor", b"card")
        cards = await caller.jetstream().key_value("reach_cards")
        entry, keys = await cards.get("extractor"), await cards.keys()

    assert (b"card", ["extractor"]) == (entry.value, keys)
    assert [] == refused


async def test_task_events_are_followed_by_callers(server: EmbeddedServer) -> None:
    """A caller appends `queued`, and reads the history of a task with an ordered consumer."""
    async with _connected(server, Role.CALLER) as (caller, refused):
        jetstream = caller.jetstream()
        await jetstream.publish("task.event.queued.default.t9.ledger.post", b"event")
        history = await jetstream.subscribe("task.event.*.default.t9.>", ordered_consumer=True)
        event = await history.next_msg(timeout=5)
        await history.unsubscribe()

    assert b"event" == event.data
    assert [] == refused


async def test_a_reader_cannot_make_a_durable_consumer(server: EmbeddedServer) -> None:
    """The one form of consumer request that readers may send refuses a durable name itself."""
    body = {"stream_name": "REACH_TASK_EVENTS", "config": {"durable_name": "tasks", "ack_policy": "explicit"}}
    async with _connected(server, Role.CALLER) as (caller, _):
        answer = await caller.request("$JS.API.CONSUMER.CREATE.REACH_TASK_EVENTS", json.dumps(body).encode())

    assert "expected to be ephemeral" in json.loads(answer.data)["error"]["description"]


async def test_work_is_pulled_and_acknowledged_by_agents(server: EmbeddedServer) -> None:
    """A caller submits, an agent's durable consumer takes the work and acknowledges it."""
    async with (
        _connected(server, Role.CALLER) as (caller, caller_refused),
        _connected(server, Role.AGENT) as (agent, agent_refused),
    ):
        subject = "task.submit.ledger.close"
        await caller.jetstream().publish(subject, b"work")
        worker = await agent.jetstream().pull_subscribe(subject, durable="closers", stream="REACH_TASKS")
        (work,) = await worker.fetch(1, timeout=5)
        await work.ack_sync(timeout=5)
        left = await agent.jetstream().stream_info("REACH_TASKS", subjects_filter=subject)

    assert (b"work", None) == (work.data, left.state.subjects)
    assert ([], []) == (caller_refused, agent_refused)


async def test_state_and_idempotency_are_written_by_agents(server: EmbeddedServer) -> None:
    """An agent creates by compare-and-set and reads back."""
    async with _connected(server, Role.AGENT) as (agent, refused):
        entries = await agent.jetstream().key_value("reach_idempotency")
        await entries.create("created", b"running")
        with pytest.raises(APIError):
            await entries.update("created", b"done", last=999)
        entry = await entries.get("created")

    assert b"running" == entry.value
    assert [] == refused


async def test_the_fencer_sees_a_disconnect_and_can_kick(server: EmbeddedServer) -> None:
    """A client of our account that is kicked by the fencer is seen leaving, by its name."""
    async with _connected(server, Role.FENCER) as (fencer, refused):
        arrivals = await fencer.subscribe("$SYS.ACCOUNT.*.CONNECT")
        departures = await fencer.subscribe("$SYS.ACCOUNT.*.DISCONNECT")
        await _settled(fencer)
        lost = asyncio.Event()

        async def on_lost() -> None:
            lost.set()

        name = "reach:agent:extractor-abcdefgh:1"
        async with _connected(server, Role.AGENT, name=name, disconnected_cb=on_lost, allow_reconnect=False):
            arrival = json.loads((await arrivals.next_msg(timeout=5)).data)
            kick = json.dumps({"cid": arrival["client"]["id"]}).encode()
            await fencer.request(f"$SYS.REQ.SERVER.{arrival['server']['id']}.KICK", kick, timeout=5)
            departure = json.loads((await departures.next_msg(timeout=5)).data)
            await asyncio.wait_for(lost.wait(), 5)

    assert (name, "Kicked") == (departure["client"]["name"], departure["reason"])
    assert [] == refused


def test_the_platform_alone_is_unlimited_in_its_account() -> None:
    """Every role but the platform has lists, and no list of a client grants everything."""
    assert [Role.PLATFORM] == [role for role in Role if permissions(role) is None]
    for role in (*CLIENTS, Role.FENCER):
        granted = permissions(role)
        assert isinstance(granted, Permissions)
        assert ">" not in granted.publish + granted.subscribe


def _plan(**changes: Any) -> ServerPlan:
    values: dict[str, Any] = {
        "name": "reach-test",
        "host": "127.0.0.1",
        "port": 4222,
        "data": Path("/srv/a \"quoted\" and 'spaced' \\ path"),
        "log": Path("/srv/log"),
        "ports": Path("/srv"),
        **changes,
    }
    return ServerPlan(**values)


def test_the_configuration_quotes_what_it_is_given() -> None:
    """A path with quotes and backslashes stands in the configuration as one text."""
    text = server_config(_plan(), dict.fromkeys(Role, "UA"))

    assert r'store_dir: "/srv/a \"quoted\" and ' in text
    assert r"\\ path" in text


@pytest.mark.parametrize(("always", "expected"), [(True, '"always"'), (False, '"2m"')])
def test_syncing_the_disk_is_a_setting(always: bool, expected: str) -> None:
    """`sync_always` is the difference between each acknowledgement and each two minutes."""
    assert f"sync_interval: {expected}" in server_config(_plan(sync_always=always), dict.fromkeys(Role, "UA"))


def test_a_path_that_cannot_be_written_down_is_refused() -> None:
    """A line break in a path would be a line of configuration."""
    with pytest.raises(ConfigError, match="unprintable"):
        server_config(_plan(data=Path("/srv/a\nport: 1")), dict.fromkeys(Role, "UA"))


def test_a_role_without_a_key_is_named() -> None:
    """A server is never configured with a role missing."""
    with pytest.raises(ConfigError, match="role fencer"):
        server_config(_plan(), {role: "UA" for role in Role if role is not Role.FENCER})


def test_the_accounts_alone_serve_a_nats_of_ones_own() -> None:
    """The accounts can be rendered for some roles only, each in its account."""
    text = accounts_config({Role.CALLER: "UCALLER", Role.FENCER: "UFENCER"})

    assert text.index("SYS {") < text.index("UFENCER") < text.index("REACH {") < text.index("UCALLER")
    assert "platform" not in text
