"""Capabilities that nobody registered go by what the table says of the more general ones (ROUTE-4)."""

from reach.policy.inherit import APART, Inheritance, Mode
from reach.registry.inheritance import derived
from reach.wire.route import Lane, RouteEntry, TierShare

RULE = Inheritance(Mode.FALLBACK, {"invoice": ("document",)})


def entry(name: str, *lanes: Lane, tiers: tuple[tuple[int, float], ...] = ((10, 1.0),)) -> RouteEntry:
    return RouteEntry(
        capability=name,
        term=1,
        revision=3,
        at=1,
        lanes=lanes,
        tiers=tuple(TierShare(priority=priority, share=share) for priority, share in tiers),
    )


def worked_out(*entries: RouteEntry, rule: Inheritance = RULE) -> RouteEntry | None:
    return derived("invoice.extract", rule, {one.capability: one for one in entries}.get)


def test_the_nearest_that_has_somebody_serves() -> None:
    """ROUTE-4: the others are the tiers after it; each says which name it serves by."""
    near = entry("invoice", Lane(provider="a", instances=1), Lane(provider="b", priority=20, instances=1))
    far = entry("document", Lane(provider="c", instances=1), Lane(provider="a", instances=1))
    found = worked_out(near, far)
    assert found is not None
    assert [
        ("a", "invoice", APART + 10),
        ("b", "invoice", APART + 20),
        ("c", "document", 2 * APART + 10),
    ] == [(lane.provider, lane.serves, lane.priority) for lane in found.lanes]
    assert [(APART + 10, 1.0)] == [(tier.priority, tier.share) for tier in found.tiers]


def test_who_has_nobody_is_passed_over() -> None:
    """ROUTE-4: an entry that is left of somebody who was there serves nothing."""
    found = worked_out(
        entry("invoice", Lane(provider="a", instances=0)), entry("document", Lane(provider="c", instances=1))
    )
    assert found is not None
    assert [2 * APART + 10] == [tier.priority for tier in found.tiers]
    assert None is worked_out(entry("invoice", Lane(provider="a", instances=0)))
    assert None is worked_out()


def test_what_itself_stands_in_is_inherited_once() -> None:
    """ROUTE-4: a lane of `invoice` that serves by `document` is met through `document`."""
    stand_in = Lane(provider="c", serves="document", priority=APART + 10, instances=1)
    found = worked_out(
        entry("invoice", Lane(provider="a", instances=1), stand_in),
        entry("document", Lane(provider="c", instances=1)),
    )
    assert found is not None
    assert [("a", "invoice"), ("c", "document")] == [(lane.provider, lane.serves) for lane in found.lanes]


def test_a_returning_tier_returns_for_those_below_as_well() -> None:
    """ROUTE-1: the shares of its tiers are theirs."""
    near = entry(
        "invoice",
        Lane(provider="a", instances=1),
        Lane(provider="b", priority=20, instances=1),
        tiers=((10, 0.2), (20, 0.8)),
    )
    found = worked_out(near)
    assert found is not None
    assert [(APART + 10, 0.2), (APART + 20, 0.8)] == [(tier.priority, tier.share) for tier in found.tiers]


def test_without_the_rule_there_is_nothing() -> None:
    """ROUTE-4: turned off, or no supervisor that has written it down."""
    assert None is worked_out(entry("invoice", Lane(provider="a", instances=1)), rule=Inheritance(Mode.OFF))
