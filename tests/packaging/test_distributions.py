"""What is shipped: a light wheel with the two packages, and a source archive that has everything.

The wheel is built from the source archive, as whoever packages us would do it, without the network.
"""

import subprocess
import tarfile
import tomllib
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Promised in design.md: what a user's machine gets from us stays light.
MAX_WHEEL_BYTES = 1_000_000
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
DIST_INFO = f"agent_reach-{VERSION}.dist-info"


def wheel_names(dist: Path) -> set[str]:
    (wheel,) = dist.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def test_wheel_is_under_a_megabyte(dist: Path) -> None:
    """Our own wheel stays light beside what it depends on (the NATS server alone has 7 MB)."""
    (wheel,) = dist.glob("*.whl")
    assert wheel.stat().st_size < MAX_WHEEL_BYTES


def test_wheel_holds_the_two_packages_and_nothing_else(dist: Path) -> None:
    """A user who installs the wheel gets reach and actors, and no tests, examples or schemas folder."""
    tops = {name.split("/")[0] for name in wheel_names(dist)}
    assert {"reach", "actors", DIST_INFO} == tops


def test_wheel_holds_every_file_of_the_packages(dist: Path) -> None:
    """No module is left out, and the mark that our types may be believed is there."""
    modules = {
        path.relative_to(ROOT).as_posix()
        for package in ("reach", "actors")
        for path in (ROOT / package).rglob("*.py")
    }
    assert set() == (modules | {"reach/py.typed", "actors/py.typed"}) - wheel_names(dist)


def test_wheel_carries_its_licence(dist: Path) -> None:
    """The licence goes wherever the code goes."""
    assert f"{DIST_INFO}/licenses/LICENSE" in wheel_names(dist)


def test_sdist_is_complete(dist: Path) -> None:
    """Whoever gets only the source archive can run the demo, the tests and the checks."""
    (sdist,) = dist.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False, text=True)
    tracked = {name for name in listing.stdout.split("\0") if name and (ROOT / name).exists()}
    assert set() == tracked - names
