"""How files look: small, named after a noun, opened by their idea, free of the machine they were made on."""

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CODE = ("reach", "actors")
MAX_LINES = 400
# Their body is the order in which a call is made and served; cutting it would hide the order.
PIPELINES = {"reach/call/outbound.py": 500, "reach/runtime/inbound.py": 500}
NAMELESS = {"utils.py", "util.py", "helpers.py", "helper.py", "common.py", "base.py", "misc.py"}
# Package indexes, and folders of one machine; written so that this line does not match itself.
FOREIGN = re.compile(
    r"p[y]pi[.]o[r]g|p[y]thonhosted|n[p]mjs[.]|deb[.]d[e]bian[.]|(?<![\w.])/(?:work|farm|root|opt/p[y]pi)/"
)


def python_files(*folders: str) -> Iterator[Path]:
    for folder in folders:
        yield from sorted((ROOT / folder).rglob("*.py"))


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def tracked_files() -> list[Path]:
    """Files that git knows; in an unpacked sdist, which git does not know, all files."""
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached"], cwd=ROOT, capture_output=True, check=False, text=True
    )
    if listing.returncode == 0:
        paths = [ROOT / name for name in listing.stdout.split("\0") if name]
    else:
        hidden = re.compile(r"/\.|/node_modules/|/dist/")
        paths = [path for path in ROOT.rglob("*") if not hidden.search(path.as_posix())]
    return [path for path in paths if path.is_file()]


def test_no_file_is_longer_than_400_lines() -> None:
    """A file of reach/ or actors/ over 400 lines (pipelines: 500) is a sign that a noun is missing."""
    too_long = {
        name_of(path): lines
        for path in python_files(*CODE)
        if (lines := len(path.read_text(encoding="utf-8").splitlines()))
        > PIPELINES.get(name_of(path), MAX_LINES)
    }
    assert {} == too_long


def test_every_file_is_named_after_what_it_holds() -> None:
    """Names such as utils or base say nothing, and collect what belongs elsewhere."""
    assert [] == [name_of(p) for p in python_files(*CODE, "examples", "bench", "tests") if p.name in NAMELESS]


def test_every_module_opens_with_its_idea() -> None:
    """Every module, of the tests too, has a docstring that tells its idea."""
    assert [] == [
        name_of(path)
        for path in python_files(*CODE, "examples", "bench", "tests")
        if path.stat().st_size and ast.get_docstring(tree_of(path)) is None
    ]


def test_code_does_not_validate_with_assert() -> None:
    """`assert` vanishes under -O, so nothing in reach/ or actors/ relies on it."""
    assert [] == [
        f"{name_of(path)}:{node.lineno}"
        for path in python_files(*CODE)
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Assert)
    ]


def test_every_test_says_what_it_proves() -> None:
    """Every test function has a docstring: read together they are the specification."""
    assert [] == [
        f"{name_of(path)}:{node.lineno} {node.name}"
        for path in python_files("tests")
        if path.name.startswith("test_")
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name.startswith("test")
        and ast.get_docstring(node) is None
    ]


def test_nothing_names_a_package_index_or_a_path_of_one_machine() -> None:
    """No tracked file binds its reader to the package index or the folders of whoever wrote it."""
    found = []
    for path in tracked_files():
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue  # A binary sample: nothing a person wrote.
        found += [
            f"{name_of(path)}:{number}"
            for number, line in enumerate(text.splitlines(), 1)
            if FOREIGN.search(line)
        ]
    assert [] == found
