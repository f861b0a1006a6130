"""Names that come in messages are checked as those are that a program writes: their reader publishes to them."""

from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from reach.wire.card import CapabilityCard, Card
from reach.wire.frame import Frame
from reach.wire.life import Gone, Goodbye, Heartbeat

BAD = ["x 0\r\n\r\nPUB ctl.other.drain 2\r\nhi\r\nPUB y", "a b", "a.b", "*", ">", "", "é", "\x00", "x" * 65]


@pytest.mark.parametrize("name", BAD)
def test_nobody_accepts_a_call_under_a_name_that_is_none(name: str) -> None:
    """CALL-9: the caller would publish its cancellation to `ctl.<instance>.cancel`."""
    with pytest.raises(ValueError, match="instance"):
        Frame.from_map({"stream_id": "m", "seq": 0, "accepted": {"instance": name, "generation": 1}})


def test_whoever_accepts_says_its_name() -> None:
    """CALL-9: a frame without it tells nobody anything."""
    with pytest.raises(ValueError, match="instance"):
        Frame.from_map({"stream_id": "m", "seq": 0, "accepted": {"generation": 1}})


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize(
    ("model", "field", "fields"),
    [
        (Card, "instance", {"agent_id": "a", "generation": 1}),
        (Card, "agent_id", {"instance": "a-1", "generation": 1}),
        (Heartbeat, "instance", {"agent_id": "a", "generation": 1, "at": 1}),
        (Goodbye, "instance", {"agent_id": "a", "generation": 1, "at": 1}),
        (Gone, "instance", {"generation": 1, "at": 1}),
    ],
)
def test_no_instance_takes_part_under_a_name_that_is_none(
    model: type[BaseModel], field: str, fields: dict[str, Any], name: str
) -> None:
    """CALL-9: supervisor and callers would publish orders and calls to it, with rights that its sender has not."""
    with pytest.raises(ValidationError, match="cannot be"):
        model.model_validate(fields | {field: name})


@pytest.mark.parametrize("name", ["cap.a.b", "A.b", "a..b", "a b", "a.>", "a\r\nPUB x 0", ""])
def test_no_capability_is_served_under_a_name_that_is_none(name: str) -> None:
    """CALL-9: it becomes part of request subjects, and of a key of the routing table."""
    with pytest.raises(ValidationError, match="cannot be"):
        CapabilityCard(tag=name)
