"""The reference pages say what the code says, and no link of any page leads nowhere."""

import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import get_args

import msgspec
import pytest

from actors.sentinel.presence import PAUSE_S
from reach.bus import settings
from reach.bus.keys import Role
from reach.bus.permissions import BLOB_BUCKETS
from reach.bus.provision import STORES
from reach.call.batching import ABSENT_S
from reach.call.context import ROUND_TIMEOUT_S
from reach.call.inflow import StreamClocks
from reach.call.options import Options
from reach.call.outbound import MAX_OPEN_CALLS
from reach.errors import BY_CODE
from reach.faults import FAULTS, Retryable
from reach.policy.cache import LARGEST_SHARE, MAX_ANSWERS, MAX_BYTES
from reach.policy.deadline import DEFAULT_TIMEOUT_S
from reach.policy.retry import BACKOFF_BASE_S, MAX_ATTEMPTS
from reach.runtime import stall
from reach.runtime.agent import DRAIN_S
from reach.runtime.inbound import ACCEPT_AFTER_S
from reach.runtime.offer import MAX_ASYNC, MAX_THREADS
from reach.wire import names, subjects
from reach.wire.asyncapi import CHANNELS
from reach.wire.card import Batch, CapabilityCard
from reach.wire.envelope import Envelope
from reach.wire.frame import FrameKind
from reach.wire.reply import Reply

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = [
    *sorted(ROOT.glob("*.md")),
    *sorted(DOCS.rglob("*.md")),
    ROOT / "examples" / "README.md",
    ROOT / "schemas" / "README.md",
]
LINK = re.compile(r"\]\(([^)\s]+)\)")
CODE = re.compile(r"^```.*?^```$|`[^`\n]+`", re.MULTILINE | re.DOTALL)
RETRYABLE = {
    Retryable.NO: "no",
    Retryable.YES: "yes",
    Retryable.IF_IDEMPOTENT: "if idempotent",
    Retryable.IF_FLAGGED: "if flagged",
}


def page(name: str) -> str:
    """The text of a reference page."""
    return (DOCS / "reference" / name).read_text(encoding="utf-8")


def anchor(heading: str) -> str:
    """The anchor that a renderer of Markdown makes of a heading."""
    bare = re.sub(r"[^\w\- ]", "", heading.strip().lower())
    return bare.replace(" ", "-")


def anchors(path: Path) -> set[str]:
    """All anchors of a page."""
    text = re.sub(r"^```.*?^```$", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    return {anchor(heading) for heading in re.findall(r"^#+ (.+)$", text, re.MULTILINE)}


def links(path: Path) -> Iterator[str]:
    """The relative links of a page."""
    for target in LINK.findall(CODE.sub("", path.read_text(encoding="utf-8"))):
        if not target.startswith(("http://", "https://")):
            yield target


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_every_link_leads_somewhere(path: Path) -> None:
    """Files and sections that a page links to are there."""
    broken = []
    for target in links(path):
        name, _, section = target.partition("#")
        found = (path.parent / name).resolve() if name else path
        if not found.exists() or (section and section not in anchors(found)):
            broken.append(target)
    assert [] == broken


def test_the_index_lists_every_page() -> None:
    """docs/index.md leads to every page of docs/."""
    linked = {(DOCS / target.partition("#")[0]).resolve() for target in links(DOCS / "index.md")}
    pages = set(DOCS.rglob("*.md")) - {DOCS / "index.md"}
    assert set() == pages - linked


def test_errors_has_the_table_of_failures() -> None:
    """The reasons of docs/reference/errors.md are, row by row, those of reach/faults.py."""
    expected = [
        f"| `{row.reason}` | `{row.code}` | {row.executed} | {RETRYABLE[row.retryable]} | {row.advice} | {row.en} |"
        for row in FAULTS.values()
    ]
    assert expected == [
        line
        for line in page("errors.md").splitlines()
        if re.match(r"\| `[A-Z_0-9]+` \| `[A-Z_0-9]+` \|", line)
    ]


def test_errors_has_the_exception_of_each_code() -> None:
    """Each code stands beside its exception."""
    text = page("errors.md")
    assert [] == [code for code, cls in BY_CODE.items() if f"| `{code}` | `{cls.__name__}` |" not in text]


def test_settings_lists_every_variable() -> None:
    """Each variable that the code reads is in docs/reference/settings.md, and no other."""
    name = re.compile(r"\bREACH_[A-Z_]*[A-Z]\b")
    streams = {
        "REACH_TASK_EVENTS",
        "REACH_STREAMS",
        "REACH_TASKS",
        "REACH_RECORDS_STREAM",
        "REACH_AUDIT",
        "REACH_COUNTERS",
        "REACH_UNKNOWN",
    }
    read = {
        found
        for room in ("reach", "actors")
        for path in (ROOT / room).rglob("*.py")
        for found in name.findall(path.read_text(encoding="utf-8"))
    }
    assert read - streams == set(name.findall(page("settings.md")))


@pytest.mark.parametrize(
    ("said", "value"),
    [
        ("| a call's time where nobody says otherwise | {:g} s; ", DEFAULT_TIMEOUT_S),
        ("; a stream {:g} s;", StreamClocks().max_duration_s),
        ("; a round {:g} s |", ROUND_TIMEOUT_S),
        ("| tries of a call | {} |", MAX_ATTEMPTS),
        ("| pause before a retry | {:g}–", BACKOFF_BASE_S * 1000 * 0.5),
        ("–{:g} ms, or what the far end asks for |", BACKOFF_BASE_S * 1000 * 1.5),
        ("| first connection | {:g} s,", settings.CONNECT_TIMEOUT_S),
        ("| {} coroutines,", MAX_ASYNC),
        (" {} threads,", MAX_THREADS),
        ("| {:,} |", MAX_OPEN_CALLS),
        ("where cards say `cache` | {:,},", MAX_ANSWERS),
        (" {:g} MiB in all,", MAX_BYTES / 2**20),
        (" {:g} MiB each |", MAX_BYTES * LARGEST_SHARE / 2**20),
        ("| a batch | {} reads or ", Batch.model_fields["max"].default),
        (" reads or {:g} ms,", Batch.model_fields["window_ms"].default),
        ("`into` is not asked for {:g} s", ABSENT_S),
        ("| largest payload of a capability | {:g} MiB |", CapabilityCard(tag="x").max_payload_bytes / 2**20),
        ("| leaving | {:g} s |", DRAIN_S),
        ("| {:g} ms after receipt |", ACCEPT_AFTER_S * 1000),
        ("| a tick of {:g} ms", stall.TICK_S * 1000),
        ("more than {:g} ms late |", stall.LATE_S * 1000),
        ("| {:g} ms after the connection ended |", PAUSE_S * 1000),
    ],
)
def test_settings_has_the_numbers_of_the_code(said: str, value: float) -> None:
    """Numbers that are written down are those that hold."""
    assert said.format(value).replace(",0", " 0") in page("settings.md")


def test_subjects_has_every_channel() -> None:
    """Each kind of subject of the contract is in docs/reference/subjects.md, spoken or reserved."""
    text = page("subjects.md")
    addresses = {channel.address for channel in CHANNELS.values() if channel.address}
    wanted = {
        re.sub(r"\{(\w+)\}", r"<\1>", address) for address in addresses if not address.startswith("$SRV.")
    }
    assert set() == {subject for subject in wanted if f"`{subject}`" not in text}


def test_subjects_has_the_rules_of_names() -> None:
    """Lengths, the queue group, and where answers never go, are those of the code."""
    text = page("subjects.md")
    assert f"at most {names._MAX_CAPABILITY} characters" in text
    assert f"at most {names._MAX_TOKEN} characters" in text
    assert f"queue group `{subjects.QUEUE}`" in text
    assert [] == [prefix for prefix in subjects.RESERVED if f"`{prefix}`" not in text]


def test_subjects_has_every_bucket() -> None:
    """Each bucket that the platform makes is listed."""
    assert [] == [
        bucket
        for bucket in (*BLOB_BUCKETS, *(s.bucket for s in STORES))
        if f"`{bucket}`" not in page("subjects.md")
    ]


def test_permissions_has_every_role() -> None:
    """Each role has its row."""
    assert [] == [role for role in Role if f"\n| `{role}` |" not in page("permissions.md")]


@pytest.mark.parametrize("message", [Envelope, Reply], ids=lambda cls: cls.__name__)
def test_wire_has_every_field(message: type) -> None:
    """Each field of the two main messages is explained."""
    text = page("wire.md")
    named = [field.name for field in msgspec.structs.fields(message) if field.name != "capability"]
    assert [] == [name for name in named if not re.search(rf"`{name}\b", text)]


def test_wire_has_every_frame() -> None:
    """Each kind of frame has its row."""
    assert [] == [
        kind
        for kind in get_args(FrameKind)
        if not re.search(rf"^\| `{kind}\b", page("wire.md"), re.MULTILINE)
    ]


def test_python_has_every_option_of_a_call() -> None:
    """What `bus.request` takes is in docs/reference/python.md."""
    text = page("python.md")
    assert [] == [
        field.name for field in fields(Options) if field.init and not re.search(rf"`{field.name}`", text)
    ]
