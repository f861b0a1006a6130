"""`reach ps`, `caps`, `route` and `drain` where a supervisor leads: what they show, what they change, how they fail.

Most commands run in this process (`here`): a start of Python takes longer than what it starts for. One of each kind
is a process of its own (`at_led`), as people type it.
"""

import asyncio
import json
import os
import signal
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from reach.bus.connection import Connection
from reach.bus.keys import Role
from reach.bus.settings import resolve
from reach.cli.exits import Exit
from reach.cli.lanes import percent
from reach.cli.main import app
from reach.cli.ps import spread, together
from reach.cli.route_typed import strategy, weights
from reach.wire import codec
from reach.wire.registration import InstanceRow
from reach.wire.route import StaticShare, Strategy
from tests.cli.terminal import Reach, end, environment, platform, server, wait_for_line


@dataclass(frozen=True)
class Here:
    """The command `reach` in this process, where a server runs; it is called as `Reach` is."""

    home: Path

    def __call__(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run it to its end."""
        wanted = environment(REACH_HOME=str(self.home))
        env: Mapping[str, str | None] = {**dict.fromkeys(os.environ.keys() - wanted.keys()), **wanted}
        done = CliRunner().invoke(app, list(words), env=env, catch_exceptions=False)
        return subprocess.CompletedProcess(words, done.exit_code, done.stdout, done.stderr)


@pytest.fixture
def here(led_home: Path) -> Here:
    """The command in this process, where a supervisor leads."""
    return Here(led_home)


def cells(text: str, start: str) -> list[str]:
    """The words of the one line that begins with `start`."""
    (line,) = [line for line in text.splitlines() if line.startswith(start)]
    return line.split()


def lanes(reach: Here, capability: str) -> dict[str, dict[str, Any]]:
    """The lanes of a capability as `reach caps` gives them to programs, by agent."""
    told = json.loads(reach("caps", capability, "--json").stdout)
    return {lane["provider"]: lane for lane in told["lanes"]}


def shares(reach: Here, capability: str) -> dict[str, float]:
    """The share of each lane, in hundredths: who was called is measured, which moves the thousandths."""
    return {
        name: lane["share"] and round(lane["share"], 2) for name, lane in lanes(reach, capability).items()
    }


def rows(reach: Here) -> dict[str, dict[str, Any]]:
    """The instances as `reach ps` gives them to programs, by agent."""
    return {row["agent"]: row for row in json.loads(reach("ps", "--json").stdout)}


def becomes(expected: dict[str, float], reach: Here, capability: str) -> None:
    """Wait until the lanes have these shares, and show what they have where they never do."""
    deadline = time.monotonic() + 20
    while (found := shares(reach, capability)) != expected and time.monotonic() < deadline:
        pass
    assert expected == found


class TestLooking:
    """What is shown of instances and lanes."""

    def test_ps_shows_state_weight_and_tickets(self, at_led: Reach, readers: dict[str, str]) -> None:
        """A line an instance: version, state, weight, tickets, load; the tier that stands by holds no ticket."""
        done = at_led("ps")
        expected = "INSTANCE VERSION STATE WEIGHT TICKETS IN WORK CPU UP CALLS ERRORS SERVES"
        assert expected == " ".join(done.stdout.splitlines()[0].split())
        reader = cells(done.stdout, readers["reader"] + " ")
        assert ["1.0.0", "live", "1"] == reader[1:4]
        assert "0" == cells(done.stdout, readers["spare"])[4]
        assert "" == done.stderr

    def test_ps_of_one_agent_as_json(self, here: Here, readers: dict[str, str]) -> None:
        """Programs get tickets and weights by capability, and what the instance says of itself."""
        (one,) = json.loads(here("ps", "reader-next", "--json").stdout)
        assert (readers["reader-next"], "live", "2.0.0") == (one["instance"], one["state"], one["version"])
        assert ({"pool": "new"}, 1.0) == (one["labels"], one["weights"]["steer.looked"])
        assert one["tickets"]["steer.looked"] > 0
        assert {"steer.looked", "steer.canary"} <= set(one["capabilities"])

    def test_ps_of_nobody(self, here: Here) -> None:
        """An agent that is not there is said to be missing, and how to start one."""
        assert "No instance of nobody is there" in here("ps", "nobody").stdout

    @pytest.mark.usefixtures("readers")
    def test_caps_shows_tiers_shares_and_breakers(self, at_led: Reach) -> None:
        """A line a lane; the second tier gets nothing while the first serves (ROUTE-1)."""
        done = at_led("caps")
        found = [line.split()[2:8] for line in done.stdout.splitlines() if line.startswith("steer.looked")]
        assert [
            ["reader", "1", "10", "50", "%", "closed"],
            ["reader-next", "1", "10", "50", "%", "closed"],
            ["spare", "1", "20", "0", "%", "closed"],
        ] == found
        assert "" == done.stderr

    @pytest.mark.usefixtures("readers")
    def test_one_capability_shows_its_lanes(self, here: Here) -> None:
        """Between its facts and its parameters stand its lanes."""
        shown = here("caps", "steer.looked").stdout
        assert ["spare", "1", "20", "0", "%", "closed"] == cells(shown, "spare")

    @pytest.mark.usefixtures("readers")
    def test_show_lists_all_lanes_and_one_entry(self, here: Here) -> None:
        """Without a name every lane; with one tiers, strategy, canary, figures and limits."""
        assert 3 == here("route", "show").stdout.count("steer.looked ")
        shown = here("route", "show", "steer.looked").stdout
        assert (["tiers", "10"], ["strategy", "pool"], ["canary", "none"]) == tuple(
            cells(shown, name) for name in ("tiers", "strategy", "canary")
        )
        entry = json.loads(here("route", "show", "steer.looked", "--json").stdout)
        assert ["reader", "reader-next", "spare"] == [lane["provider"] for lane in entry["lanes"]]

    def test_explain_tells_terms_tickets_and_who_is_left_out(
        self, here: Here, readers: dict[str, str]
    ) -> None:
        """ROUTE-2, ROUTE-7: each term, the product, tickets with their rounding error, and why a lane is out."""
        done = here("route", "explain", "steer.looked", "--require", "pool=new")
        lines = done.stdout.splitlines()
        assert "steer.looked: calls go to tier 10" == lines[0]
        assert "2 tickets (2 with 1); rounding is off by 0.00 points" in lines[1]
        for term in ("traffic", "match", "health", "cost", "capacity", "quality"):
            assert 3 == sum(line.startswith(f"  {term} ") for line in lines)
        assert "left out: it lacks what the call requires" in next(
            line for line in lines if line.startswith("reader ")
        )
        assert "left out" not in next(line for line in lines if line.startswith("reader-next "))
        assert "it lacks pool='new'" in next(line for line in lines if f"  {readers['reader']} " in line)

    @pytest.mark.usefixtures("readers")
    def test_explain_can_be_followed(self, at_led: Reach) -> None:
        """`--watch --json` gives a document a line."""
        process = at_led.start("route", "explain", "steer.looked", "--watch", "--json")
        try:
            for _ in range(2):
                assert 3 == len(json.loads(wait_for_line(process, "{"))["lanes"])
        finally:
            end(process)

    @pytest.mark.usefixtures("readers")
    @pytest.mark.parametrize("what", [("caps",), ("route", "show")])
    def test_unknown_capability_is_answered_with_the_nearest(self, here: Here, what: tuple[str, ...]) -> None:
        """steer.lookd is near steer.looked."""
        done = here(*what, "steer.lookd")
        assert (Exit.FAILED, True) == (done.returncode, "Near it: steer.looked" in done.stderr)


@pytest.mark.usefixtures("readers")
class TestChanging:
    """What is changed, for everybody, at once."""

    def test_weights_change_shares(self, at_led: Reach, here: Here) -> None:
        """A dry run shows what would follow and changes nothing; the command itself holds at once (ROUTE-7)."""
        done = at_led("route", "set", "steer.weights", "reader=0.25", "--dry-run")
        assert "reader 10 1 → 0.25 1 → 0.25 50 % → 20 % - closed" == " ".join(cells(done.stdout, "reader "))
        becomes({"reader": 0.5, "reader-next": 0.5, "spare": 0.0}, here, "steer.weights")
        assert 0 == at_led("route", "set", "steer.weights", "reader=0.25").returncode
        becomes({"reader": 0.2, "reader-next": 0.8, "spare": 0.0}, here, "steer.weights")

    def test_limits_and_strategies_are_set_and_ended(self, here: Here) -> None:
        """What is named is changed, what is not stays; `none` ends a limit."""
        words = ["--limit", "reader=20", "--strategy", "consistent_hash", "--key", "n", "--terms-off", "cost"]
        after = json.loads(here("route", "set", "steer.limits", *words, "--json").stdout)["after"]
        assert ("consistent_hash", "n", ["cost"], 20) == (
            after["strategy"]["name"],
            after["strategy"]["key"],
            after["terms_off"],
            after["lanes"][0]["limit"],
        )
        words = ["--limit", "reader=none", "--terms-off", "none"]
        after = json.loads(here("route", "set", "steer.limits", *words, "--json").stdout)["after"]
        assert ("consistent_hash", [], None) == (
            after["strategy"]["name"],
            after["terms_off"],
            after["lanes"][0]["limit"],
        )

    def test_a_canary_begins_and_ends(self, here: Here, readers: dict[str, str]) -> None:
        """ROUTE-6: 5 % to a version is one ticket of twenty; `off` ends it."""
        done = here("route", "canary", "steer.canary", "5%", "--version", "2.0.0")
        assert ["canary", "none", "→", "5", "%", "to", "2.0.0"] == cells(done.stdout, "canary")
        becomes({"reader": 0.95, "reader-next": 0.05, "spare": 0.0}, here, "steer.canary")
        held: dict[str, int] = {}
        deadline = time.monotonic() + 20
        while held != {"reader": 19, "reader-next": 1, "spare": 0}:
            assert time.monotonic() < deadline, held
            found = rows(here)
            held = {name: found[name]["tickets"].get("steer.canary", 0) for name in readers}
        here("route", "canary", "steer.canary", "off")
        becomes({"reader": 0.5, "reader-next": 0.5, "spare": 0.0}, here, "steer.canary")

    def test_a_lane_is_opened_and_closed(self, here: Here) -> None:
        """BREAK-4, BREAK-5: no call reaches a lane that is held open; closed again it takes its share."""
        done = here(
            "route", "open", "steer.lanes", "reader", "--by", "ada", "--reason", "garbled", "--dry-run"
        )
        assert ["50", "%", "→", "0", "%"] == cells(done.stdout, "reader ")[4:9]
        assert "closed" == lanes(here, "steer.lanes")["reader"]["breaker"]
        done = here("route", "open", "steer.lanes", "reader", "--by", "ada", "--reason", "garbled")
        assert "ada opened it: garbled" in done.stdout
        lane = lanes(here, "steer.lanes")["reader"]
        assert ("forced_open", 0.0) == (lane["breaker"], lane["share"])
        replies = [json.loads(here("call", "steer.lanes", "--json").stdout) for _ in range(3)]
        assert {"reader-next"} == {reply["provider"] for reply in replies}
        here("route", "disable", "steer.lanes", "reader")
        assert "disabled" == lanes(here, "steer.lanes")["reader"]["breaker"]
        here("route", "close", "steer.lanes", "reader")
        becomes({"reader": 0.5, "reader-next": 0.5, "spare": 0.0}, here, "steer.lanes")

    def test_without_its_first_tier_the_second_serves(self, here: Here) -> None:
        """ROUTE-1: with both lanes of tier 10 held open tier 20 has all calls."""
        for agent in ("reader", "reader-next"):
            here("route", "open", "steer.audit", agent)
        becomes({"reader": 0.0, "reader-next": 0.0, "spare": 1.0}, here, "steer.audit")
        for agent in ("reader", "reader-next"):
            here("route", "close", "steer.audit", agent)

    def test_changes_are_audited(self, here: Here, led_home: Path) -> None:
        """ROUTE-7: who, what, why; a dry run says that it was one."""

        async def heard() -> list[dict[str, Any]]:
            settings = resolve(role=Role.OPERATOR, env={"REACH_HOME": str(led_home)})
            connection = await Connection.open(settings, role=Role.OPERATOR.value)
            try:
                entries: list[dict[str, Any]] = []
                connection.subscribe(
                    "reach.audit.>", lambda delivery: entries.append(codec.unpack(delivery.data))
                )
                await connection.flush()
                words = ("route", "disable", "steer.audit", "reader", "--by", "ada", "--reason", "it errs")
                await asyncio.to_thread(here, *words, "--dry-run")
                await asyncio.to_thread(here, *words)
                await asyncio.to_thread(here, "route", "close", "steer.audit", "reader")
                return entries
            finally:
                await connection.close()

        first, second, third = asyncio.run(heard())
        assert ("ada", "it errs", "route.disable", "reader steer.audit", True) == (
            first["who"],
            first["why"],
            first["what"],
            first["target"],
            first["dry_run"],
        )
        assert (False, "route.close") == (second["dry_run"], third["what"])
        assert "@" in third["who"]

    def test_resync_keeps_what_was_there(self, here: Here) -> None:
        """ROUTE-7: the table is rebuilt from who answers; a dry run says how many would be asked."""
        assert "would be asked" in here("route", "resync", "--dry-run").stdout
        assert 0 == here("route", "resync").returncode
        becomes({"reader": 0.5, "reader-next": 0.5, "spare": 0.0}, here, "steer.looked")

    @pytest.mark.parametrize(
        ("words", "told"),
        [
            (("set", "steer.looked", "x=2"), "it is served by reader, reader-next, spare"),
            (("set", "steer.nowhere", "reader=1"), "`reach caps` lists them"),
            (("open", "steer.looked", "raeder"), "it is served by reader"),
        ],
    )
    def test_what_is_not_there_is_named(self, here: Here, words: tuple[str, ...], told: str) -> None:
        """The supervisor says what it does not know, and what there is instead."""
        done = here("route", *words)
        assert (Exit.FAILED, True) == (done.returncode, told in done.stderr), done.stderr


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("set", "steer.looked"), "AGENT=0.5"),
        (("set", "steer.looked", "reader=-1"), "not a number of 0 or more"),
        (("set", "steer.looked", "reader"), "legacy-ocr=0.5"),
        (("set", "steer.looked", "--strategy", "roundrobin"), "did you mean round_robin?"),
        (("set", "steer.looked", "--limit", "reader=0"), "reader=none ends it"),
        (("set", "steer.looked", "--terms-off", "costs"), "capacity, quality"),
        (("set", "steer.looked", "--key", "n"), "consistent_hash"),
        (("set", "steer.looked", "--strategy", "static"), "--share"),
        (("canary", "steer.looked", "5%"), "--version 2.4.0, or --label"),
        (("canary", "steer.looked", "120%", "--label", "pool=new"), "Right would be: 5%"),
        (("canary", "steer.looked", "off", "--version", "1.0.0"), "ends the canary"),
        (("explain", "steer.looked", "--priority", "high"), "core, normal or offline"),
        (("explain", "Steer.Looked"), "'steer.looked' would do"),
        (("set", "steer.looked", "reader=1e308"), "weights.reader: 1e+308 is out of bounds"),
        (("set", "steer.looked", "--limit", "reader=99999999999999999999"), "limits.reader: 1e+20 is out of"),
        (("open", "steer.looked", "reader", "--reason", "r" * 5000), "reason: 5000 characters are too many"),
        (("canary", "steer.looked", "5%", "--version", "1" * 500), "version: 500 characters are too many"),
    ],
)
def test_what_is_typed_wrong_is_told_before_anybody_is_asked(words: tuple[str, ...], told: str) -> None:
    """A usage error names what was wrong, and what would be right."""
    done = CliRunner().invoke(app, ["route", *words])
    assert (Exit.USAGE, True) == (done.exit_code, told in done.stderr), done.stderr


@pytest.mark.parametrize(
    ("words", "told"), [(("",), "target"), (("reader", "--timeout", "999999999"), "timeout_s")]
)
def test_a_drain_that_cannot_be_is_told(here: Here, words: tuple[str, ...], told: str) -> None:
    """What the order would not carry is named, without a word of what the command is made of."""
    done = here("drain", *words)
    assert (Exit.USAGE, True) == (done.returncode, told in done.stderr), done.stderr


class TestDrain:
    """Leaving without losing a call (LIFE-7)."""

    def test_what_is_in_work_is_finished(
        self, at_led: Reach, here: Here, readers_folder: Path, led_home: Path
    ) -> None:
        """The call is answered, the process ends with 0, and so does the command; a second time it is no error."""
        agent = Reach(environment(REACH_HOME=str(led_home)), readers_folder).start(
            "run", "readers:alone", "--json"
        )
        name = str(json.loads(wait_for_line(agent, "ready"))["instance"])
        call = at_led.start("call", "alone.nap", "seconds:=3", "--json")
        deadline = time.monotonic() + 10
        while not json.loads(here("ps", "alone", "--json").stdout)[0]["inflight"]:
            assert time.monotonic() < deadline
        (one,) = json.loads(here("drain", "alone", "--dry-run", "--json").stdout)["instances"]
        assert (name, False) == (one["instance"], one["left"])
        done = at_led("drain", "alone", "--json")
        told = json.loads(done.stdout)
        assert (0, True, [name]) == (
            done.returncode,
            told["ok"],
            [one["instance"] for one in told["instances"] if one["left"]],
        )
        assert "rested" == json.loads(call.finish()[0])["data"]
        agent.finish()
        assert 0 == agent.returncode
        assert 0 == here("drain", name).returncode
        assert "left" == rows(here)["alone"]["state"]
        assert "alone.nap" not in here("caps").stdout

    def test_one_that_does_not_leave_is_told(
        self, at_led: Reach, readers_folder: Path, led_home: Path
    ) -> None:
        """An instance that is stopped is still there after its time: exit code 1, named. By its label it was found."""
        agent = Reach(environment(REACH_HOME=str(led_home)), readers_folder).start(
            "run", "readers:alone", "--json"
        )
        name = str(json.loads(wait_for_line(agent, "ready"))["instance"])
        try:
            os.kill(agent.pid, signal.SIGSTOP)
            done = at_led("drain", "alone", "--label", "pod=a", "--timeout", "500ms")
            assert (Exit.FAILED, True) == (done.returncode, f"Still there: {name}." in done.stderr)
        finally:
            os.kill(agent.pid, signal.SIGCONT)
        # Awake, it may have done what it was told by the time that it is asked once more, and mind no signal any more.
        assert end(agent) in {0, -signal.SIGTERM}

    @pytest.mark.parametrize(
        ("words", "told"),
        [
            (("nobody",), "No instance or agent 'nobody' is there"),
            (("reader", "--label", "pool=none"), "No instance of reader has the label pool=none."),
        ],
    )
    @pytest.mark.usefixtures("readers")
    def test_nobody_to_drain(self, here: Here, words: tuple[str, ...], told: str) -> None:
        """Who is not there cannot leave: exit code 1, and where to look."""
        done = here("drain", *words)
        assert (Exit.FAILED, True, True) == (done.returncode, told in done.stderr, "reach ps" in done.stderr)


def test_without_a_supervisor_nothing_is_done(reach: Reach, tmp_path: Path, readers_folder: Path) -> None:
    """A change ends with 6 (may be repeated), looking goes on: by the table as it was left, and by the agents."""
    home = tmp_path / "home"
    here = Here(home)
    with server(home):
        agents = Reach(environment(REACH_HOME=str(home)), readers_folder)
        with (
            platform(home, tmp_path),
            agents.running("run", "readers:reader", "--json", until="ready") as process,
        ):
            becomes({"reader": 1.0}, here, "steer.looked")
        end(process)
        with agents.running("run", "readers:reader", "--json", until="ready"):
            done = reach("route", "show", "steer.looked", "--json")
            assert ("steer.looked", True) == (
                json.loads(done.stdout)["capability"],
                "as the last one left it" in done.stderr,
            )
            assert {"reader": None} == shares(here, "steer.looked")
            asked = [("route", "open", "steer.looked", "reader"), ("drain", "reader")]
            for process in [reach.start(*words) for words in asked]:
                _, told = process.finish()
                assert (Exit.LATER, True) == (process.returncode, "nothing was done" in told)
                assert "reach up" in told


# ---------------------------------------------------------------------------------------------- pure


def test_an_instance_that_only_the_supervisor_sees_is_listed() -> None:
    """A stopped instance answers nobody; the supervisor knows it."""
    row = InstanceRow(instance="a-1", agent_id="a", generation=1, state="steered", weights={"x": 0.0})
    (one,) = together([row], [])
    told = one.to_map()
    assert ("steered", ["x"], None, 0) == (
        told["state"],
        told["capabilities"],
        told["requests"],
        told["inflight"],
    )


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [({}, "-"), ({"x": 1.0, "y": 1.0}, "1"), ({"x": 0.2, "y": 1.0}, "0.2–1"), ({"x": 0}, "0")],
)
def test_many_numbers_are_shown_as_one_or_two(numbers: dict[str, float], expected: str) -> None:
    """One where all agree, else the lowest and the highest."""
    assert expected == spread(numbers)


@pytest.mark.parametrize(
    ("part", "expected"),
    [(0, "0 %"), (0.0001, "<0.1 %"), (0.05, "5 %"), (2 / 3, "66.7 %"), (1, "100 %")],
)
def test_parts_are_shown_in_percent(part: float, expected: str) -> None:
    """What is little is not shown as nothing."""
    assert expected == percent(part)


def test_weights_and_shares_are_read() -> None:
    """Agents by name, label groups by `label:value`."""
    assert {"a": 0.5, "b": 2.0} == weights(["a=0.5", "b=2"])
    expected = Strategy(
        name="static",
        shares=(StaticShare(provider="a", weight=80), StaticShare(labels={"pool": "new"}, weight=20)),
    )
    assert expected == strategy("static", key=None, shares=["a=80", "pool:new=20"])
    assert Strategy(name="mine") == strategy("mine", key=None, shares=[])
