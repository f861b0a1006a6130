"""A file of lines that stays small and is written by several at once."""

import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from reach.observe.rotation import RotatingFile


def test_a_full_file_is_put_aside(tmp_path: Path) -> None:
    """Past its size the file becomes `<name>.1`, and one older one is all that is kept."""
    file = RotatingFile(tmp_path / "records.jsonl", max_bytes=100)
    for number in range(5):
        file.append(b"%d" % number + b"x" * 98 + b"\n")
    file.close()
    assert {"records.1.jsonl"} == {path.name for path in tmp_path.iterdir()}
    assert b"4" == file.older.read_bytes()[:1]


def test_a_file_that_was_moved_away_is_made_anew(tmp_path: Path) -> None:
    """Another program may move or remove the file at any time; the next lines are in a new one."""
    file = RotatingFile(tmp_path / "records.jsonl")
    file.append(b"one\n")
    (tmp_path / "records.jsonl").rename(tmp_path / "kept")
    file.append(b"two\n")
    file.path.unlink()
    file.append(b"three\n")
    file.close()
    assert (b"one\n", b"three\n") == ((tmp_path / "kept").read_bytes(), file.path.read_bytes())


def test_its_owner_alone_may_read_it(tmp_path: Path) -> None:
    """Records tell who called what: the file is 0600, its folder 0700."""
    file = RotatingFile(tmp_path / "deep/records.jsonl")
    file.append(b"x\n")
    file.close()
    assert (0o600, 0o700) == tuple(stat.S_IMODE(p.stat().st_mode) for p in (file.path, file.path.parent))


def test_writers_share_a_file_that_rotates(tmp_path: Path) -> None:
    """Lines of several writers never mix, and only whole files are put aside."""
    path = tmp_path / "records.jsonl"

    def write(owner: int) -> None:
        file = RotatingFile(path, max_bytes=50_000)
        for number in range(500):
            file.append(f"{owner}:{number}:{'x' * 50}\n".encode())
        file.close()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(4)))
    lines = [line for file in tmp_path.iterdir() for line in file.read_text().splitlines()]
    assert {61, 60, 59, 58, 57, 56, 55, 54} >= {len(line) for line in lines}
    assert all(line.endswith("x" * 50) and line.count(":") == 2 for line in lines)
    assert all(file.stat().st_size < 55_000 for file in tmp_path.iterdir())
