"""Under which key a call is remembered (IDEM-1, IDEM-4)."""

import itertools
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reach.policy.dedupe import (
    KEPT_S,
    WINDOW_S,
    Key,
    explicit_key,
    implicit_key,
    key_of,
    may_be_implicit,
    notice,
    still_holds,
)

PART = st.text(max_size=12)
CALL: dict[str, Any] = {
    "tenant": "acme",
    "capability": "ledger.post",
    "idempotency_key": None,
    "idempotent": False,
    "session_id": "s-1",
    "task_id": "t-1",
    "fingerprint": "f" * 32,
}


def test_a_callers_key_counts_within_tenant_and_capability() -> None:
    """IDEM-1: the same request id of another tenant or for another capability is another key."""
    keys = {
        explicit_key(*parts) for parts in itertools.product(("acme", "bolt"), ("k-1", "k-2"), ("a.b", "c.d"))
    }
    assert 8 == len(keys)


def test_a_callers_key_comes_before_an_implicit_one() -> None:
    """IDEM-4: an explicit key is what counts, within a task and for idempotent capabilities too."""
    expected = Key(explicit_key("acme", "k-17", "ledger.post"), implicit=False)
    for idempotent, task_id in itertools.product((False, True), (None, "t-1")):
        facts = {"idempotency_key": "k-17", "idempotent": idempotent, "task_id": task_id, "fingerprint": None}
        assert expected == key_of(**(CALL | facts))


def test_a_write_in_a_task_has_a_key_by_itself() -> None:
    """IDEM-4: session, task, capability and parameters make the key."""
    expected = Key(implicit_key("acme", "s-1", "t-1", "ledger.post", "f" * 32), implicit=True)
    assert expected == key_of(**CALL)


@pytest.mark.parametrize(
    "facts", [{"idempotent": True}, {"task_id": None}, {"task_id": ""}, {"dedupe": False}]
)
def test_who_has_no_key(facts: dict[str, Any]) -> None:
    """IDEM-4: no key for reads, outside a task, or where it is turned off; nothing is digested for them."""
    assert key_of(**(CALL | {"fingerprint": None} | facts)) is None


@pytest.mark.parametrize(
    "facts",
    [{"tenant": "bolt"}, {"session_id": "s-2"}, {"session_id": None}, {"session_id": ""}, {"task_id": "t-2"},
     {"capability": "ledger.draft"}, {"fingerprint": "0" * 32}],
)  # fmt: skip
def test_what_makes_another_write(facts: dict[str, Any]) -> None:
    """IDEM-4: another tenant, session, task, capability or other parameters are another write."""
    assert key_of(**CALL) != key_of(**(CALL | facts))


def test_an_implicit_key_needs_the_parameters() -> None:
    """IDEM-4: without a fingerprint all writes of a task would be one, so it is asked for."""
    with pytest.raises(ValueError, match="fingerprint"):
        key_of(**(CALL | {"fingerprint": None}))


def test_a_callers_key_is_not_empty() -> None:
    """IDEM-1: an empty key would make all calls of a capability one."""
    with pytest.raises(ValueError, match="not empty"):
        key_of(**(CALL | {"idempotency_key": ""}))


@pytest.mark.parametrize(
    ("implicit", "age_s", "expected"),
    [
        (True, None, True),
        (True, WINDOW_S - 0.1, True),
        (True, WINDOW_S, False),
        (False, None, True),
        (False, WINDOW_S, True),
        (False, KEPT_S - 0.1, True),
        (False, KEPT_S, False),
    ],
)
def test_for_how_long_a_key_holds(implicit: bool, age_s: float | None, expected: bool) -> None:
    """IDEM-1, IDEM-4, IDEM-5: ten minutes for implicit keys, a day for others, without end while it is under way."""
    done_at = None if age_s is None else 1_000_000.0 - age_s
    assert expected == still_holds(implicit=implicit, done_at=done_at, now=1_000_000.0)


@pytest.mark.parametrize(("language", "begins"), [("en", "This"), ("zh", "该操作"), ("ZH-hans", "该操作")])
def test_a_result_given_again_says_so(language: str, begins: str) -> None:
    """IDEM-4: the duplicate's notice is there in English and Chinese."""
    assert begins == notice(language)[: len(begins)]


@given(one=st.tuples(PART, PART, PART), other=st.tuples(PART, PART, PART))
def test_parts_do_not_run_together(one: tuple[str, str, str], other: tuple[str, str, str]) -> None:
    """IDEM-1: `("ab", "c")` is not `("a", "bc")`: equal keys mean equal parts."""
    if one[1] and other[1]:
        assert (one == other) == (explicit_key(*one) == explicit_key(*other))


@given(parts=st.tuples(PART, PART, PART, PART, PART))
def test_a_key_fits_a_bucket(parts: tuple[str, str, str, str, str]) -> None:
    """IDEM-1: whatever callers choose, a key is 40 hexadecimal digits."""
    assert re.fullmatch("[0-9a-f]{40}", implicit_key(*parts))


@given(key=st.none() | PART, idempotent=st.booleans(), task=st.none() | PART, dedupe=st.booleans())
def test_digests_are_made_only_where_they_are_needed(
    key: str | None, idempotent: bool, task: str | None, dedupe: bool
) -> None:
    """IDEM-4: `may_be_implicit` says beforehand which calls get a key by themselves."""
    needed = may_be_implicit(key, idempotent=idempotent, task_id=task, dedupe=dedupe)
    facts = {"idempotency_key": key, "idempotent": idempotent, "task_id": task, "dedupe": dedupe}
    if key != "":
        found = key_of(**(CALL | facts))
        assert needed == (found is not None and found.implicit)
