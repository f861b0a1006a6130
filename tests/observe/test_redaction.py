"""What may be written down of a text or an exception (ERR-5)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from reach.observe.redaction import redact, safe_cause


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("nats://user:hunter2@broker:4222/x", "nats://***@broker:4222/x"),
        ("connect postgres://app:p@ss:w@db/ledger failed", "connect postgres://***@db/ledger failed"),
        (
            "GET https://api.example/v1?q=7&api_key=hunter2&page=2",
            "GET https://api.example/v1?q=7&api_key=***&page=2",
        ),
        ("https://s3.example/b?X-Amz-Signature=abc123#x", "https://s3.example/b?X-Amz-Signature=***"),
        ("https://maps.example/q?key=hunter2", "https://maps.example/q?key=***"),
        ("password=hunter2, host=db", "password=***, host=db"),
        ("{'password': 'hunter 2', 'user': 'a'}", "{'password': ***, 'user': 'a'}"),
        ('{"access_token": "a\\"b", "n": 1}', '{"access_token": ***, "n": 1}'),
        ("Authorization: Bearer abcdef.ghijkl", "Authorization: *** ***"),
        ("sent Bearer abcdefghijkl to it", "sent Bearer *** to it"),
        ("DB_PASSWORD: hunter2", "DB_PASSWORD: ***"),
        ("key SU" + "A2" * 28, "key ***"),
        ("-----BEGIN PRIVATE KEY-----\nMIIE\n-----END PRIVATE KEY-----", "***"),
        ("-----BEGIN PRIVATE KEY-----\nMIIE", "***"),
        ("eyJhbGciOiJI.eyJzdWIiOiIx.c2ln is no good", "*** is no good"),
        ("sk-proj-0123456789abcdef", "***"),
        ("[type=int, input_value='hunter2', input_type=str]", "[type=int, input_value=***, input_type=str]"),
        # What is no secret stays.
        ("no such column: total_net", "no such column: total_net"),
        ("https://api.example/v1/orders?page=2", "https://api.example/v1/orders?page=2"),
        ("nats://broker:4222", "nats://broker:4222"),
        ("mail to a.b@example.com", "mail to a.b@example.com"),
        ("Zoë 会话", "Zoë 会话"),
    ],
)
def test_secrets_are_taken_out(text: str, expected: str) -> None:
    """ERR-5: credentials in their usual places and shapes vanish, the rest stays readable."""
    assert expected == redact(text)


@given(st.text(max_size=300))
def test_redacting_never_fails_and_changes_nothing_twice(text: str) -> None:
    """Whatever the text, redaction returns, and a redacted text is stable."""
    once = redact(text)
    assert once == redact(once)


def test_a_cause_is_type_text_and_place() -> None:
    """ERR-5: the owner learns what and where; no repr, no stack."""
    with pytest.raises(ValueError, match="no such column") as caught:
        raise ValueError("no such column\n  in ledger")
    assert safe_cause(caught.value).startswith("ValueError: no such column in ledger (test_redaction.py:")
    assert "TimeoutError" == safe_cause(TimeoutError())


def test_the_place_is_where_it_was_raised() -> None:
    """The innermost frame counts: it is where the owner has to look."""

    def inner() -> None:
        raise KeyError("x")

    with pytest.raises(KeyError) as caught:
        inner()
    line = inner.__code__.co_firstlineno + 1
    assert safe_cause(caught.value).endswith(f"(test_redaction.py:{line})")


def test_long_causes_are_cut() -> None:
    """A cause takes at most 300 characters beside type and place."""
    assert "ValueError: " + "x" * 299 + "…" == safe_cause(ValueError("x" * 100_000))


def test_what_pydantic_was_given_is_not_quoted() -> None:
    """ERR-5: a validation error says which field, never its value."""

    class Order(BaseModel):
        amount: int

    with pytest.raises(ValidationError) as caught:
        Order.model_validate({"amount": "hunter2 [secret], input_type=x"})
    told = safe_cause(caught.value)
    assert "hunter2" not in told
    assert "amount" in told


def test_an_exception_that_cannot_speak_still_has_a_type() -> None:
    """A `__str__` that raises costs nobody anything."""

    class MuteError(Exception):
        def __str__(self) -> str:
            raise RuntimeError("password=hunter2")

    assert "MuteError" == safe_cause(MuteError())
