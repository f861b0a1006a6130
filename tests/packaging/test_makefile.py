"""The first command a newcomer types: where it cannot work, it says what is missing and what to do."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# The tests themselves may run under make, whose variables would change what an inner make prints.
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}

pytestmark = pytest.mark.needs_program("make")


def make_setup(folder: Path, python: str) -> subprocess.CompletedProcess[str]:
    """Run `make setup` on an empty checkout whose only Python is the given shell script."""
    for name in ("Makefile", "pyproject.toml", "requirements.lock"):
        shutil.copy(ROOT / name, folder)
    interpreter = folder / "python3"
    interpreter.write_text(f"#!/bin/sh\n{python}\n", encoding="utf-8")
    interpreter.chmod(0o755)
    return subprocess.run(
        ["make", "setup", f"PYTHON={interpreter}"],
        cwd=folder,
        env=ENVIRONMENT,
        capture_output=True,
        check=False,
        text=True,
    )


def test_old_python_is_named_with_what_would_do(tmp_path: Path) -> None:
    """With Python 3.9 alone, the set-up says which version it found, which it needs and how to get it."""
    made = make_setup(tmp_path, 'case "$1" in --version) echo "Python 3.9.2";; *) exit 1;; esac')
    assert 2 == made.returncode
    assert made.stderr.startswith("Agent-Reach needs Python 3.11 or newer. Found: Python 3.9.2.\n")
    assert "apt install python3" in made.stderr
    assert not (tmp_path / ".venv").exists()


def test_missing_venv_module_is_named_with_its_package(tmp_path: Path) -> None:
    """Debian's Python without its venv package: the set-up names that package."""
    made = make_setup(
        tmp_path, 'case "$2" in *"import venv"*) exit 1;; *version_info\\[*) echo 3.12;; *) exit 0;; esac'
    )
    assert 2 == made.returncode
    assert "cannot make virtual environments" in made.stderr
    assert "apt install python3.12-venv" in made.stderr
    assert not (tmp_path / ".venv").exists()


def test_what_runs_alone_is_where_make_test_looks_for_it() -> None:
    """`make test` leaves marked tests out at first, and then runs those of tests/chaos: no other folder has any."""
    marked = {
        path.relative_to(ROOT / "tests").parts[0]
        for path in (ROOT / "tests").rglob("test_*.py")
        if "pytest.mark.alone" in path.read_text(encoding="utf-8") and path != Path(__file__).resolve()
    }
    assert {"chaos"} == marked


def test_help_lists_the_targets() -> None:
    """`make help`, and `make` alone, list what there is."""
    listing = subprocess.run(["make"], cwd=ROOT, env=ENVIRONMENT, capture_output=True, check=True, text=True)
    targets = {line.split()[1] for line in listing.stdout.splitlines()}
    assert {"demo", "test", "check", "bench", "soak", "chaos", "lock", "help"} <= targets
