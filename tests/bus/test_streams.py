"""The streams of tasks: made, put right in place, verified, or refused in words (case 16)."""

from collections.abc import AsyncIterator, Iterator
from dataclasses import replace

import nats
import pytest
from nats.js import JetStreamContext, api
from nats.js.errors import APIError

from reach.bus.embedded import EmbeddedServer
from reach.bus.keys import Role
from reach.bus.provision import provision
from reach.bus.streams import (
    COUNTERS,
    COUNTERS_KEPT_S,
    EVENTS_KEPT_S,
    TASK_STREAMS,
    config,
    corrections,
    faults,
    usual_replicas,
)
from reach.errors import ConfigError

EVENTS, QUEUE = TASK_STREAMS


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    home = tmp_path_factory.mktemp("home")
    home.chmod(0o700)
    with EmbeddedServer.start(home, port=0) as running:
        yield running


@pytest.fixture
async def jetstream(server: EmbeddedServer) -> AsyncIterator[JetStreamContext]:
    """JetStream as the platform sees it, empty before and after."""
    client = await nats.connect(server.url, nkeys_seed=str(server.keys[Role.PLATFORM].path))
    context = client.jetstream()
    yield context
    for info in await context.streams_info():
        await context.delete_stream(str(info.config.name))
    await client.close()


async def made(jetstream: JetStreamContext) -> tuple[str, ...]:
    return await provision(jetstream, stores=(), streams=TASK_STREAMS)


async def test_the_streams_are_made_once(jetstream: JetStreamContext) -> None:
    """The first run makes both streams, the second changes nothing."""
    assert ("REACH_TASK_EVENTS", "REACH_TASKS") == await made(jetstream)
    assert () == await made(jetstream)


async def test_what_is_queued_is_work(jetstream: JetStreamContext) -> None:
    """A queued event comes out of the work queue under its capability alone; a script's plain work does too."""
    await made(jetstream)
    await jetstream.publish("task.event.queued.default.t1.ledger.reconcile", b"one")
    await jetstream.publish("task.event.running.default.t1.ledger.reconcile", b"not work")
    await jetstream.publish("task.submit.ledger.reconcile", b"two")
    work = await jetstream.pull_subscribe("task.submit.>", durable="all", stream="REACH_TASKS")
    found: list[tuple[str, bytes]] = []
    while len(found) < 2:
        found += [(message.subject, message.data) for message in await work.fetch(2 - len(found), timeout=5)]

    assert {("task.submit.ledger.reconcile", b"one"), ("task.submit.ledger.reconcile", b"two")} == set(found)


async def test_what_may_be_changed_is_put_right(jetstream: JetStreamContext) -> None:
    """An older layout gets its schedules, its time and its sourcing in place; an operator's description stays."""
    await jetstream.add_stream(
        name="REACH_TASK_EVENTS", subjects=["task.event.>"], description="ours", max_age=60.0
    )
    await jetstream.add_stream(name="REACH_TASKS", subjects=["task.submit.>"], retention="workqueue")

    changed = await made(jetstream)
    events = (await jetstream.stream_info("REACH_TASK_EVENTS")).config

    assert ("REACH_TASK_EVENTS", "REACH_TASKS") == changed
    assert (EVENTS_KEPT_S, True, "ours") == (events.max_age, events.allow_msg_schedules, events.description)
    assert () == await made(jetstream)


@pytest.mark.parametrize(
    ("name", "settings", "reason"),
    [
        ("REACH_TASKS", {"subjects": ["task.submit.>"]}, "its retention is limits, and must be workqueue"),
        ("REACH_TASK_EVENTS", {"subjects": ["task.event.>"], "storage": "memory"}, "it is kept in memory"),
    ],
)
async def test_what_cannot_be_changed_is_refused(
    jetstream: JetStreamContext, name: str, settings: dict[str, object], reason: str
) -> None:
    """Case 16: a stream that cannot become what it must be is refused at start-up, with the cure."""
    await jetstream.add_stream(name=name, **settings)

    with pytest.raises(ConfigError, match=f"Stream {name} cannot be used: {reason}.*nats stream rm {name}"):
        await made(jetstream)


async def test_subjects_that_another_stream_has_are_refused(jetstream: JetStreamContext) -> None:
    """Case 16: somebody else's stream over our subjects is named as the reason."""
    await jetstream.add_stream(name="THEIRS", subjects=["task.event.completed.>"])

    with pytest.raises(
        ConfigError, match="Stream REACH_TASK_EVENTS cannot be made: another stream already stores"
    ):
        await made(jetstream)


async def test_numbers_are_counted_and_nothing_else(jetstream: JetStreamContext) -> None:
    """Case 16: the stream of numbers takes what adds to one, refuses the rest, and keeps the last of each subject."""
    await provision(jetstream, stores=(), streams=(COUNTERS,))
    for _ in range(3):
        await jetstream.publish("reach.count.test.a", b"", headers={"Nats-Incr": "2"})
    with pytest.raises(APIError, match="increment"):
        await jetstream.publish("reach.count.test.a", b"no number")
    found = await jetstream.stream_info("REACH_COUNTERS")
    last = await jetstream.get_last_msg("REACH_COUNTERS", "reach.count.test.a")

    assert (1, COUNTERS_KEPT_S) == (found.state.messages, found.config.max_age)
    assert b'{"val":"6"}' == last.data


async def test_a_stream_that_does_not_count_is_refused(jetstream: JetStreamContext) -> None:
    """Case 16: what was made without counting cannot be made to, and is refused with the cure."""
    await jetstream.add_stream(name="REACH_COUNTERS", subjects=["reach.count.>"])

    with pytest.raises(ConfigError, match="Stream REACH_COUNTERS cannot be used: it does not count"):
        await provision(jetstream, stores=(), streams=(COUNTERS,))


def test_copies_are_raised_and_never_lowered() -> None:
    """A stream with fewer copies than asked for gets them; one with more keeps them."""
    one, three = config(EVENTS), config(EVENTS, replicas=3)

    assert {"num_replicas": 3} == corrections(one, EVENTS, replicas=3)
    assert {} == corrections(three, EVENTS, replicas=1)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"sealed": True}, "it is sealed"),
        ({"no_ack": True}, "it does not acknowledge"),
        ({"mirror": api.StreamSource(name="OTHER")}, "it mirrors another stream, and must be written to"),
    ],
)
def test_what_no_stream_of_tasks_can_be(change: dict[str, object], reason: str) -> None:
    """Each property that would lose events is a reason of its own."""
    assert (reason,) == faults(replace(config(EVENTS), **change), EVENTS)


@pytest.mark.parametrize(
    ("info", "expected"),
    [
        ({}, 1),
        ({"cluster": "c"}, 3),
        ({"cluster": "c", "connect_urls": ["a:1", "b:1", "c:1"]}, 3),
        ({"cluster": "c", "connect_urls": ["a:1", "b:1"]}, 1),
    ],
)
def test_three_copies_in_a_cluster_of_three(info: dict[str, object], expected: int) -> None:
    """One server alone keeps one copy, and so do two, of which none may fail anyway."""
    assert expected == usual_replicas(info)
