"""Which subject an attempt goes to."""

import pytest

from reach.call.call import Call
from reach.call.choose import Excluded, Route, choose, unmet
from reach.call.context import CallContext
from reach.call.lanes import Lanes
from reach.call.options import Options
from reach.observe.metrics import Metrics
from reach.wire.card import Card
from reach.wire.envelope import Envelope


def call(**envelope) -> Call:
    """A call of `a.b` with these envelope fields."""
    return Call(
        capability="a.b",
        kind="request",
        envelope=Envelope(**envelope),
        options=Options(),
        around=CallContext(),
        reach_id="rch_x",
        began=0.0,
        began_ms=0,
        deadline=1.0,
    )


def card(name: str, **facts) -> Card:
    """A card of one instance."""
    return Card(agent_id=name.rpartition("-")[0], instance=name, generation=1, **facts)


CARDS = (
    card("one-aaaaaaaa", supported_langs=("en",), region="north", version="1.0.0"),
    card("one-bbbbbbbb", supported_langs=("en", "zh"), region="south", version="1.0.0"),
    card("two-cccccccc", supported_langs=("zh",), region="south", version="2.0.0", labels={"gpu": "yes"}),
)


def chosen(wanted: Call, cards, *, pick: float, lanes: Lanes | None = None, now: float = 0.0):
    """Choose with lanes of which nothing is known."""
    return choose(wanted, cards, lanes=lanes or Lanes(Metrics()), now=now, pick=pick)


def test_nothing_asked_goes_to_the_queue_group() -> None:
    """While nothing speaks against it NATS picks the instance."""
    assert chosen(call(), CARDS, pick=0.0) == Route("cap.a.b")


def test_a_target_goes_to_its_lane() -> None:
    """CALL-12: `target` names an agent, whose lane is a queue group of its own."""
    assert chosen(call(target="two"), (), pick=0.0).subject == "lane.two.a.b"


@pytest.mark.parametrize(
    ("require", "instances"),
    [
        ({"lang": "zh"}, {"one-bbbbbbbb", "two-cccccccc"}),
        ({"lang": "zh", "region": "south", "version": "1.0.0"}, {"one-bbbbbbbb"}),
        ({"gpu": "yes"}, {"two-cccccccc"}),
    ],
)
def test_requirements_exclude(require, instances) -> None:
    """CALL-12: only instances that have everything required are chosen, each of them sometimes."""
    found = {chosen(call(require=require), CARDS, pick=pick / 10).instance for pick in range(10)}
    assert found == instances


def test_what_nobody_has_is_explained() -> None:
    """CALL-12: when nobody qualifies, the answer names each instance and what it lacks."""
    excluded = chosen(call(require={"region": "west"}), CARDS, pick=0.0)
    assert isinstance(excluded, Excluded)
    assert "one-aaaaaaaa: region='west' (has 'north')" in excluded.why


def test_preferences_weigh_but_do_not_exclude() -> None:
    """CALL-12: a preference is followed where it can be, and forgotten where it cannot."""
    assert chosen(call(prefer={"region": "north"}), CARDS, pick=0.9).instance == "one-aaaaaaaa"
    assert isinstance(chosen(call(prefer={"region": "west"}), CARDS, pick=0.9), Route)


def test_a_retry_goes_elsewhere() -> None:
    """RETRY-5: an instance that failed this call is not chosen again while another is known."""
    again = call()
    again.avoid = {"one-aaaaaaaa", "two-cccccccc"}
    route = chosen(again, CARDS, pick=0.0)
    assert (route.subject, route.instance) == ("inst.one-bbbbbbbb.a.b", "one-bbbbbbbb")


def test_a_retry_with_nobody_else_known_goes_to_the_group() -> None:
    """RETRY-5: with no other instance known NATS picks again."""
    again = call()
    again.avoid = {"one-aaaaaaaa"}
    assert chosen(again, (), pick=0.0) == Route("cap.a.b")


def test_unmet_names_the_first_lack() -> None:
    """A requirement that is met is not mentioned."""
    assert unmet(CARDS[0], {"lang": "en", "version": "9"}) == "version='9' (has '1.0.0')"


def test_what_an_instance_lacks_is_said_in_words() -> None:
    """Nothing at all is "none", and several are a list: no tuple of Python's."""
    assert unmet(CARDS[0], {"lang": "zz"}) == "lang='zz' (has 'en')"
    assert unmet(CARDS[0], {"gpu": "yes"}) == "gpu='yes' (has none)"
