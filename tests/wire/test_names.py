"""Which names may touch a subject, and what may stand in a header (CALL-9, case 7)."""

import string
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reach.errors import NameRefused
from reach.wire import names, subjects

TOKENS = st.text(string.ascii_letters + string.digits + "_-", min_size=1, max_size=64)
PARTS = st.text(string.ascii_lowercase + string.digits + "_-", min_size=1, max_size=12)
CAPABILITIES = (
    st.lists(PARTS, min_size=1, max_size=6).map(".".join).filter(lambda name: name.split(".")[0] != "cap")
)


def outcome(check: Callable[..., str], *given: str) -> str | NameRefused:
    try:
        return check(*given)
    except NameRefused as refusal:
        return refusal


@given(name=CAPABILITIES, one=TOKENS)
@settings(max_examples=300, deadline=None)
def test_a_name_that_is_accepted_survives_every_subject(name: str, one: str) -> None:
    """CALL-9: an accepted capability is read back from each subject that is built of it."""
    assert name == names.capability(name) == names.capability("cap." + name)
    assert one == names.token(one)
    built = {
        "cap": subjects.cap(name),
        "all": subjects.everyone(name),
        "lane": subjects.lane(one, name),
        "inst": subjects.inst(one, name),
    }
    for kind, subject in built.items():
        assert (kind, name) == subjects.capability_of(subject)
        assert subjects.tenant_of(subject) is None
    tenant = f"t.{one}.{subjects.cap(name)}"
    assert ("cap", name) == subjects.capability_of(tenant)
    assert one == subjects.tenant_of(tenant)


@given(name=st.text(max_size=200))
@settings(max_examples=500, deadline=None)
def test_a_refused_capability_comes_with_a_name_that_would_do(name: str) -> None:
    """CALL-9: what does not fit is refused, with the nearest name that is accepted, or with none."""
    told = outcome(names.capability, name)
    if isinstance(told, str):
        assert name.removeprefix("cap.") == told
        assert not set(told) & set(" *>\t\r\n")
    elif told.nearest is not None:
        assert told.nearest == names.capability(told.nearest)
        assert repr(told.nearest) in str(told)


@given(name=st.text(max_size=120))
@settings(max_examples=500, deadline=None)
def test_a_refused_token_comes_with_a_name_that_would_do(name: str) -> None:
    """CALL-9: the same for a name of one token; nothing is changed silently."""
    told = outcome(names.token, name, "tenant")
    if isinstance(told, str):
        assert name == told
        assert "." not in told
        return
    assert "cannot be a tenant" in str(told)
    if told.nearest is not None:
        assert told.nearest == names.token(told.nearest)


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("Invoice.Extract", "invoice.extract"),
        ("invoice extract", "invoice-extract"),
        ("rechnung.prüfen", "rechnung.prufen"),
        ("cap.cap.x", "x"),
        ("invoice..extract", "invoice.extract"),
        ("invoice.*", "invoice"),
        ("发票", None),
        ("", None),
        ("cap", None),
        ("a" * 200, "a" * 128),
        ("abc." * 40, ("abc." * 32)[:127]),
        (("ab." * 60) + "x", ("ab." * 60)[:126] + "ab"),
    ],
)
def test_the_nearest_capability_is_this(name: str, nearest: str | None) -> None:
    """CALL-9: the suggestion keeps what can be kept."""
    with pytest.raises(NameRefused) as caught:
        names.capability(name)
    assert nearest == caught.value.nearest


@pytest.mark.parametrize(
    ("name", "nearest"), [("Zoë", "Zoe"), ("a.b", "a-b"), ("é" * 100, "e" * 64), ("*", None)]
)
def test_the_nearest_token_is_this(name: str, nearest: str | None) -> None:
    """Case 7: tenant "Zoë" is not a token; her id would be "Zoe" and her display name stays."""
    with pytest.raises(NameRefused) as caught:
        names.token(name, "tenant")
    assert nearest == caught.value.nearest


@pytest.mark.parametrize("value", [None, True, 7, b"x", ["x"]])
def test_what_is_no_text_is_no_name(value: Any) -> None:
    """Case 7: a value of another type is a TypeError that says which, not a crash below."""
    for check in (names.capability, names.token, names.header_value):
        with pytest.raises(TypeError):
            check(value)
    with pytest.raises(TypeError, match=r"a header value is a string \(say str\(value\).*, not bool"):
        names.header_value(True)  # type: ignore[arg-type]


@given(value=st.text(st.characters(exclude_categories=["Cs", "Cc", "Zl", "Zp"]), max_size=40))
@settings(max_examples=200, deadline=None)
def test_a_header_value_is_handed_on_as_it_is(value: str) -> None:
    """Case 7: any text, "Zoë" among it, passes unchanged and survives UTF-8."""
    assert value == names.header_value(value) == value.encode().decode()
    assert "Zoë 发票 🧾" == names.header_value("Zoë 发票 🧾")


@given(
    before=st.text("ab", max_size=5),
    mark=st.sampled_from([*"\r\n\0\x0b\x0c\x1c\x85\x7f", "\u2028", "\u2029", "\r\n", "\ud800"]),
    after=st.text("ab", max_size=5),
)
def test_a_header_value_never_breaks_the_line(before: str, mark: str, after: str) -> None:
    """Case 7: CR, LF and their like are refused before the wire, with a value that would do."""
    with pytest.raises(NameRefused) as caught:
        names.header_value(before + mark + after, "tenant's display name")
    assert "cannot be a tenant's display name" in str(caught.value)
    assert caught.value.nearest == names.header_value(caught.value.nearest or "")


@given(subject=st.text(st.sampled_from("capinstlne.t*>-x"), max_size=20))
def test_a_subject_that_is_no_request_is_refused(subject: str) -> None:
    """A subject gives its kind and capability, or a ValueError that names it."""
    try:
        kind, capability = subjects.capability_of(subject)
    except ValueError as error:
        kind, capability = "", str(error)
    assert kind in {"cap", "all", "lane", "inst", ""}
    assert (subject.endswith(capability) and capability) if kind else repr(subject) in capability


def test_every_other_subject_is_this() -> None:
    """Each subject is built in one place, and looks as the design says."""
    assert "ctl.i-1.cancel" == subjects.ctl("i-1", "cancel")
    assert "reply.c1" == subjects.reply_inbox("c1")
    assert "reach.gone.i-1.5" == subjects.gone("i-1", 5)
    assert "reach.suspect.a.b" == subjects.suspect("a.b")
    assert "reach.outcomes.c1" == subjects.outcomes("c1")
    assert "reach.heartbeat.i-1" == subjects.heartbeat("i-1")
    assert "reach.goodbye.i-1" == subjects.goodbye("i-1")
    assert "reach.record.t1" == subjects.record("t1")
    assert "reach.alert.breaker" == subjects.alert("breaker")
