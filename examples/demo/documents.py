"""What is read: the sample folder, again and again, or a user's own files."""

import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

SAMPLES: Final = Path(__file__).resolve().parents[1] / "invoices" / "samples"
_KNOWN: Final = SAMPLES / "expected.json"


@dataclass(frozen=True, slots=True)
class Expected:
    """What is known about a sample. `problem` is set for a damaged one, which has nothing else."""

    number: str = ""
    supplier: str = ""
    total: str = ""
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Document:
    """One file to read; `expected` is None for a user's own."""

    name: str
    path: Path
    expected: Expected | None = None

    @property
    def damaged(self) -> bool:
        """Whether it is known that it cannot be read."""
        return self.expected is not None and bool(self.expected.problem)


class NoSuchFile(Exception):
    """A file that was named is not there, or cannot be read."""


def samples() -> list[Document]:
    """Give the sample folder, in order of names. Raises `NoSuchFile` when the checkout is not whole."""
    if not _KNOWN.is_file():
        raise NoSuchFile(f"The samples are not in {SAMPLES}. Right would be a whole checkout of the project.")
    known = json.loads(_KNOWN.read_text("utf-8"))
    fields = Expected.__dataclass_fields__
    return [
        Document(
            name=name,
            path=SAMPLES / name,
            expected=Expected(**{key: value for key, value in facts.items() if key in fields}),
        )
        for name, facts in sorted(known.items())
    ]


def repeated(folder: Sequence[Document], count: int) -> list[Document]:
    """Give `count` documents: the folder from its beginning as often as that takes."""
    return list(itertools.islice(itertools.cycle(folder), count))


def own(paths: Sequence[Path]) -> list[Document]:
    """Give a user's files. Raises `NoSuchFile` naming each that is none."""
    missing = [str(path) for path in paths if not path.is_file()]
    if missing:
        raise NoSuchFile(f"There is no file {', no file '.join(missing)}. Right would be PDF or XML files.")
    return [Document(name=path.name, path=path) for path in paths]
