"""What `import reach` offers: pinned, because users build on it; documented; and quick, because they wait for it."""

import inspect
import re
import subprocess
import sys
from enum import EnumType
from pathlib import Path

import pytest

import reach

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "reference" / "python.md").read_text(encoding="utf-8")

NAMES = [
    "Actor",
    "Advice",
    "Agent",
    "Batch",
    "Budget",
    "Bus",
    "Cache",
    "CallTimeout",
    "Code",
    "ConfigError",
    "Context",
    "Envelope",
    "Executed",
    "Failure",
    "Limits",
    "NameRefused",
    "NotExecuted",
    "NotOnTheWire",
    "Rate",
    "RateLimited",
    "ReachError",
    "Reason",
    "Reply",
    "Role",
    "SchemaInvalid",
    "StreamClocks",
    "Task",
    "TaskContext",
    "TaskEvent",
    "TaskState",
    "UnknownFailure",
    "Unreachable",
    "UpstreamFailure",
    "UpstreamRefusal",
    "connect",
    "context",
    "every",
    "guard",
    "on",
    "round",
    "run",
    "touch",
]


def public_methods(cls: type) -> list[str]:
    """The methods and properties that a class itself offers."""
    return [
        name
        for name, value in vars(cls).items()
        if not name.startswith("_")
        and (inspect.isfunction(value) or isinstance(value, property | classmethod))
    ]


def test_the_public_names_are_these() -> None:
    """A name is added or taken away on purpose: here, and in the changelog."""
    assert NAMES == reach.__all__


def test_dir_shows_the_public_names() -> None:
    """Names that are imported on first use are completed by editors and shells all the same."""
    assert set(NAMES) <= set(dir(reach))


def test_a_name_that_is_not_there_is_said_to_be_missing() -> None:
    """A typing error is told as by any module."""
    with pytest.raises(AttributeError, match="module 'reach' has no attribute 'Agnet'"):
        _ = reach.Agnet


@pytest.mark.parametrize("name", NAMES)
def test_a_public_name_has_a_docstring(name: str) -> None:
    """`help(reach.…)` answers, for the name and for each of its own methods."""
    value = getattr(reach, name)
    assert inspect.getdoc(value)
    if inspect.isclass(value) and not isinstance(value, EnumType):
        assert [] == [
            method for method in public_methods(value) if not inspect.getdoc(getattr(value, method))
        ]


@pytest.mark.parametrize("name", NAMES)
def test_a_public_name_is_in_the_reference(name: str) -> None:
    """docs/reference/python.md lists every name, as a section or in a table."""
    assert re.search(rf"^### `{name}`$|^\|.*`{name}`.*\|", PAGE, re.MULTILINE)


def test_the_reference_lists_no_name_that_is_not_there() -> None:
    """Every section of the reference is about a public name."""
    assert [] == [name for name in re.findall(r"^### `(\w+)`$", PAGE, re.MULTILINE) if name not in NAMES]


HELD = [reach.Bus, reach.Agent, reach.Context, reach.Task, reach.TaskContext]


@pytest.mark.parametrize("cls", HELD, ids=lambda cls: cls.__name__)
def test_what_users_call_is_in_the_reference(cls: type) -> None:
    """Each method and property of the classes that users hold is named in the reference."""
    assert [] == [name for name in public_methods(cls) if not re.search(rf"\b{name}\b", PAGE)]


def test_importing_reach_imports_little() -> None:
    """`import reach` brings in no library: neither NATS's client nor pydantic, until a name is used."""
    heavy = "{'nats', 'pydantic', 'anyio', 'asyncio', 'prometheus_client', 'msgpack', 'rich', 'typer'}"
    code = f"import sys; before = set(sys.modules); import reach; print(sorted({heavy} & (set(sys.modules) - before)))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "[]" == done.stdout.strip()
