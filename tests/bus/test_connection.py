"""The connection that outlives its sockets, against the real server."""

import asyncio
import os
import signal
import time
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import pytest

from reach.bus.connection import Connection, LinkState
from reach.bus.framing import Delivery
from reach.bus.headers import encode_headers
from reach.bus.internals import SUPPORTED_NATS_PY, NatsLink
from reach.bus.keys import Role
from reach.bus.settings import Credentials, Settings, Tls, resolve
from reach.errors import CallTimeout, ConfigError, LinkDown, NameRefused, SchemaInvalid, Unreachable
from reach.faults import Reason


async def test_it_publishes_and_receives(system) -> None:
    """A message published by one role reaches a queue subscription of another, whole."""
    async with system.connection(Role.AGENT) as agent, system.connection() as caller:
        got: asyncio.Future[Delivery] = asyncio.get_running_loop().create_future()
        agent.subscribe("cap.conn.echo", got.set_result, queue="reach")
        await agent.flush()
        caller.publish("cap.conn.echo", b"hello", reply="reply.x.1")
        delivery = await got
        assert (delivery.subject, delivery.reply, delivery.data) == ("cap.conn.echo", "reply.x.1", b"hello")


async def test_request_says_at_once_when_nobody_listens(system) -> None:
    """CALL-13: a control request to nobody fails as NO_RESPONDERS, not by its timeout."""
    async with system.connection() as caller:
        with pytest.raises(Unreachable) as caught:
            await caller.request("cap.conn.nobody", b"", timeout_s=30)
        assert caught.value.reason == Reason.NO_RESPONDERS


async def test_request_without_answer_times_out_in_words(system) -> None:
    """A control request that is heard but not answered names subject and time."""
    async with system.connection(Role.AGENT) as agent, system.connection() as caller:
        agent.subscribe("cap.conn.silent", lambda _: None, queue="reach")
        await agent.flush()
        with pytest.raises(CallTimeout, match=r"no answer on cap\.conn\.silent within 0\.05 s"):
            await caller.request("cap.conn.silent", b"", timeout_s=0.05)


async def test_request_many_collects_from_all(system) -> None:
    """A scattered request yields an answer of each listener, then stops when it stalls."""
    async with system.connection(Role.AGENT) as one, system.connection(Role.AGENT) as two:
        for each, name in ((one, b"one"), (two, b"two")):
            each.subscribe(
                "all.conn.many", lambda d, each=each, name=name: each.publish(d.reply, name), queue=""
            )
            await each.flush()
        async with system.connection() as caller:
            found = [
                data async for data in caller.request_many("all.conn.many", b"", timeout_s=5, stall_s=0.2)
            ]
        assert sorted(found) == [b"one", b"two"]


async def test_restarted_server_brings_durable_subscriptions_back(own_system, until) -> None:
    """After a restart durable subscriptions work again, and memberships of queue groups are forgotten."""
    async with own_system.connection(Role.AGENT) as agent:
        states: list[LinkState] = []
        agent.on_state(states.append)
        durable = agent.subscribe("ctl.x.ping", lambda _: None)
        member = agent.subscribe("cap.conn.member", lambda _: None, queue="reach", durable=False)
        await agent.flush()
        await asyncio.to_thread(own_system.restart)
        await until(lambda: agent.connected and agent.epoch == 2)
        assert (durable.active, member.active) == (True, False)
        assert states == [LinkState.DISCONNECTED, LinkState.CONNECTED]


async def test_nothing_is_published_while_down(own_system, until) -> None:
    """CALL-6: without a link publishing raises at once, and nothing is sent later."""
    async with own_system.connection() as caller:
        await asyncio.to_thread(own_system.server.stop)
        await until(lambda: not caller.connected)
        with pytest.raises(LinkDown):
            caller.publish("cap.conn.down", b"")


async def test_case_20_no_server_is_said_within_the_connect_timeout(unused_tcp_port: int) -> None:
    """Case 20: with no server there, connecting fails within its timeout, with the address and what to do."""
    settings = Settings(
        servers=(f"nats://127.0.0.1:{unused_tcp_port}",),
        role=Role.CALLER,
        source="test",
        connect_timeout_s=0.5,
    )
    began = time.monotonic()
    with pytest.raises(Unreachable) as caught:
        await Connection.open(settings, role="caller")
    # A bound that the case promises: the timeout, and a second for a busy machine.
    assert time.monotonic() - began < 1.5
    assert f"127.0.0.1:{unused_tcp_port}" in caught.value.message
    assert "`reach up`" in caught.value.message
    assert caught.value.reason == Reason.CONNECT


async def test_refused_credentials_are_said_as_such(system) -> None:
    """A server that refuses the login is not retried: the error names role, address and what to check."""
    settings = Settings(
        servers=(system.server.url,), role=Role.CALLER, source="test", connect_timeout_s=3600.0
    )
    with pytest.raises(ConfigError, match=r"refused the credentials of role 'caller'.*none was given"):
        await Connection.open(settings, role="caller")


async def test_a_refused_login_says_which_one_was_tried(system) -> None:
    """Who has several ways to log in lying about is told which of them was refused."""
    credentials = Credentials(token="wrong", source="REACH_TOKEN")
    settings = Settings(
        servers=(system.server.url,),
        role=Role.CALLER,
        source="test",
        credentials=credentials,
        connect_timeout_s=3600.0,
    )
    with pytest.raises(ConfigError, match=r"They were: token, REACH_TOKEN\."):
        await Connection.open(settings, role="caller")


async def test_case_6_one_byte_over_the_limit_keeps_the_connection(system) -> None:
    """Case 6: a message over the limit, headers counted, is refused with both sizes and the link lives on."""
    async with system.connection() as caller:
        headers = {"Tenant": "Zoë"}
        room = caller.max_payload - len(encode_headers(headers))
        with pytest.raises(SchemaInvalid) as caught:
            caller.publish("cap.conn.big", b"x" * (room + 1), headers=headers)
        assert caught.value.reason == Reason.TOO_LARGE
        assert str(caller.max_payload) in caught.value.message
        assert str(caller.max_payload + 1) in caught.value.message
        caller.publish("cap.conn.big", b"x" * room, headers=headers)
        await caller.flush()
        assert (caller.connected, caller.epoch) == (True, 1)


async def test_case_7_header_values_round_trip_or_are_refused(system) -> None:
    """Case 7: a display name "Zoë" round-trips; a bool and a line break are refused before the wire."""
    async with system.connection(Role.AGENT) as agent, system.connection() as caller:
        got: asyncio.Future[Delivery] = asyncio.get_running_loop().create_future()
        agent.subscribe("cap.conn.headers", got.set_result, queue="reach")
        await agent.flush()
        caller.publish("cap.conn.headers", b"", headers={"Tenant": "Zoë"})
        assert (await got).headers == {"Tenant": "Zoë"}
        with pytest.raises(NameRefused, match="line break"):
            caller.publish("cap.conn.headers", b"", headers={"Tenant": "a\r\nInjected: yes"})
        with pytest.raises(TypeError, match="not bool"):
            caller.publish("cap.conn.headers", b"", headers={"Tenant": True})


async def test_what_is_no_subject_is_refused_and_the_connection_lives(system) -> None:
    """CALL-9: a space or a line break in a subject would be another line of the protocol, sent in our name."""
    async with system.connection() as caller:
        for subject in ("cap.a b", "cap.a 0\r\n\r\nPUB cap.b", "cap.a\t", "cap.a\x00"):
            with pytest.raises(NameRefused, match="is no subject"):
                caller.publish(subject, b"")
            with pytest.raises(NameRefused, match="is no subject"):
                caller.publish(subject, b"", headers={"Tenant": "Zoë"})
        await caller.flush()
        assert (caller.connected, caller.epoch) == (True, 1)


async def test_withdrawing_under_load_loses_nothing(system) -> None:
    """LIFE-7: an instance that leaves and returns under load leaves no request unanswered, another one staying."""
    answered = 0
    async with (
        system.connection(Role.AGENT) as stays,
        system.connection(Role.AGENT) as leaves,
        system.connection() as caller,
    ):

        def answer(connection: Connection, delivery: Delivery) -> None:
            connection.publish(delivery.reply, b"ok")

        def join(connection: Connection):
            return connection.subscribe(
                "cap.conn.flip", lambda d: answer(connection, d), queue="reach", durable=False
            )

        join(stays)
        await stays.flush()
        done = asyncio.Event()

        async def flip() -> int:
            flips = 0
            while not done.is_set():
                subscription = join(leaves)
                await leaves.flush()
                await subscription.withdraw()
                flips += 1
            return flips

        async def call() -> None:
            nonlocal answered
            for _ in range(100):
                assert await caller.request("cap.conn.flip", b"", timeout_s=10) == b"ok"
                answered += 1

        flipping = asyncio.create_task(flip())
        await asyncio.gather(*(call() for _ in range(20)))
        done.set()
        assert await flipping > 10
    assert answered == 2000


async def test_a_faulty_handler_does_not_end_the_read_loop(system) -> None:
    """A handler that raises is counted; the messages after it still arrive."""
    async with system.connection(Role.AGENT) as agent, system.connection() as caller:
        got: asyncio.Future[Delivery] = asyncio.get_running_loop().create_future()

        def faulty(delivery: Delivery) -> None:
            if delivery.data == b"bad":
                raise RuntimeError("a bug")
            got.set_result(delivery)

        agent.subscribe("cap.conn.faulty", faulty, queue="reach")
        await agent.flush()
        caller.publish("cap.conn.faulty", b"bad")
        caller.publish("cap.conn.faulty", b"good")
        assert (await got).data == b"good"
        assert agent.faults == 1


async def test_a_given_up_round_trip_leaves_the_link_alive(own_system, until) -> None:
    """A PONG that comes after its waiter gave up does not break the read loop."""
    async with own_system.connection() as caller:
        os.kill(own_system.server.pid, signal.SIGSTOP)
        stat = Path(f"/proc/{own_system.server.pid}/stat")
        await until(lambda: stat.read_text().rpartition(")")[2].split()[0] == "T")
        try:
            with pytest.raises(CallTimeout):
                await caller.flush(timeout_s=0.05)
        finally:
            os.kill(own_system.server.pid, signal.SIGCONT)
        await caller.flush()
        assert (caller.connected, caller.epoch) == (True, 1)


async def test_closing_twice_is_closing_once(system) -> None:
    """`close` can be called again, and afterwards there is no link to publish on."""
    connection = await Connection.open(system.settings(Role.CALLER), role="caller")
    await connection.close()
    await connection.close()
    with pytest.raises(LinkDown):
        connection.publish("cap.conn.closed", b"")


def test_the_private_parts_of_nats_py_are_those_that_were_read() -> None:
    """The exact version is installed, and every private attribute that `internals` uses is there."""
    assert version("nats-py") == SUPPORTED_NATS_PY
    client = NatsLink.__mro__[1]()
    used = (
        "_pending",
        "_pending_data_size",
        "_pongs",
        "_ps",
        "_server_info",
        "_server_pool",
        "_sid",
        "_status",
        "_transport",
    )
    assert [name for name in used if not hasattr(client, name)] == []
    assert callable(client._process_msg)
    assert callable(client._process_headers)


async def test_name_of_the_connection_is_what_the_sentinel_reads(system) -> None:
    """Design section 3: a connection is named `reach:<role>:<who>:<generation>`."""
    async with system.connection(Role.AGENT, who="namer-abcdefgh") as agent:
        assert agent.link is not None
        assert agent.link.options["name"] == f"reach:agent:namer-abcdefgh:{agent.generation}"


def test_no_nats_at_all_is_said_with_both_ways_out(tmp_path) -> None:
    """Without server and REACH_URL the error names `reach up` and REACH_URL."""
    with pytest.raises(ConfigError, match=r"reach up.*REACH_URL"):
        resolve(role=Role.CALLER, env={"REACH_HOME": str(tmp_path / "none")})


async def test_a_request_cannot_aim_its_answer_at_an_order(system) -> None:
    """A reply subject that means something (`ctl.…`) is not answered: NATS itself would let it through."""
    async with system.connection(Role.AGENT) as agent, system.connection() as caller:
        got: asyncio.Future[Delivery] = asyncio.get_running_loop().create_future()
        agent.subscribe("cap.conn.reflect", got.set_result, queue="reach")
        await agent.flush()
        caller.publish("cap.conn.reflect", b"", reply="ctl.x-abcdefgh.drain")
        assert (await got).reply == ""


async def test_asking_for_tls_never_ends_in_plain_text(system) -> None:
    """A server without TLS is refused when TLS was asked for, before anything is sent to it."""
    plain = system.settings(Role.CALLER)
    with pytest.raises(ConfigError, match=r"TLS was asked for, but NATS at .* speaks plain text"):
        await Connection.open(replace(plain, tls=Tls()), role="caller")
