"""What a caller may say about one call."""

import pytest

from reach.call.options import Options
from reach.errors import NameRefused


def test_given_options_lie_on_top_of_a_views_own() -> None:
    """A call's options win over its view's, and what is not given stays."""
    view = Options().merged({"priority": "core", "timeout_s": 3})
    assert view.merged({"timeout_s": 1}) == Options(priority="core", timeout_s=1)


def test_nothing_given_is_the_same_object() -> None:
    """The common call pays for no copy."""
    view = Options()
    assert view.merged({}) is view


@pytest.mark.parametrize(
    ("given", "error", "says"),
    [
        ({"timeout": 3}, TypeError, "unknown option 'timeout'.*timeout_s"),
        ({"timeout_s": 0}, ValueError, "positive"),
        ({"timeout_s": float("inf")}, ValueError, "positive"),
        ({"timeout_s": float("nan")}, ValueError, "positive"),
        ({"timeout_s": 1e12}, ValueError, "at most"),
        ({"timeout_s": "3"}, TypeError, "timeout_s is a number of seconds, not str"),
        ({"require": "zh"}, TypeError, "require is a dict, not str"),
        ({"prefer": ["lang"]}, TypeError, "prefer is a dict, not list"),
        ({"trigger": 5}, TypeError, "trigger is a dict, not int"),
        ({"retry": "no"}, TypeError, "retry is True or False, not str"),
        ({"idempotency_key": 5}, TypeError, "a text of 1 to 256 characters, not int"),
        ({"priority": "high"}, ValueError, "core, normal, offline"),
        ({"idempotency_key": ""}, ValueError, "1 to 256"),
        ({"idempotency_key": "x" * 257}, ValueError, "1 to 256"),
        ({"target": "a.b"}, NameRefused, "'a-b' would do"),
        ({"session_id": "no spaces"}, NameRefused, "one token"),
    ],
)
def test_what_cannot_be_is_refused_in_words(given, error, says) -> None:
    """CALL-9: wrong options raise before anything is sent, naming what would be right."""
    with pytest.raises(error, match=says):
        Options().merged(given)
