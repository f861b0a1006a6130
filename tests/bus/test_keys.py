"""Keys are made once, belong to one role, and are believed only when nobody else could have written them."""

import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import nkeys
import pytest

from reach.bus.keys import Role, checked_key, ensure_keys, key_path, new_seed, read_key, read_seed
from reach.errors import ConfigError


def test_each_role_gets_a_private_seed_and_a_public_key(tmp_path: Path) -> None:
    """Every role has its own 0600 seed file in a 0700 folder, and a public user key derived from it."""
    folder = tmp_path / "keys"

    keys = ensure_keys(folder)

    assert set(Role) == set(keys)
    assert len(Role) == len({key.public_key for key in keys.values()})
    assert 0o700 == stat.S_IMODE(folder.stat().st_mode)
    for key in keys.values():
        assert 0o600 == stat.S_IMODE(key.path.stat().st_mode)
        assert ("U", 56) == (key.public_key[0], len(key.public_key))


def test_the_public_key_verifies_what_the_seed_signs(tmp_path: Path) -> None:
    """The library's own key pair, read from the file, has the public key that the server is told."""
    key = ensure_keys(tmp_path / "keys")[Role.CALLER]
    pair = nkeys.from_seed(bytearray(key.path.read_bytes().strip()))

    assert key.public_key == pair.public_key.decode()
    assert pair.verify(b"nonce", pair.sign(b"nonce")) is True


def test_keys_survive(tmp_path: Path) -> None:
    """A second start reads the keys of the first."""
    first = ensure_keys(tmp_path / "keys")

    assert first == ensure_keys(tmp_path / "keys")


def test_starters_that_race_agree_on_the_keys(tmp_path: Path) -> None:
    """Several starters at once end with the same keys, whole, and leave nothing else behind."""
    folder = tmp_path / "keys"
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda _: ensure_keys(folder), range(8)))

    assert [results[0]] * 8 == results
    assert {f"{role}.nk" for role in Role} == {path.name for path in folder.iterdir()}


def test_a_key_that_others_can_read_is_refused_with_the_cure(tmp_path: Path) -> None:
    """A seed with mode 0640 is not believed, and the message says which chmod puts it right."""
    folder = tmp_path / "keys"
    ensure_keys(folder)
    key_path(folder, Role.AGENT).chmod(0o640)

    with pytest.raises(ConfigError, match=r"role agent.*0640.*chmod 600 .*agent\.nk"):
        read_key(folder, Role.AGENT)


def test_a_folder_of_keys_that_others_can_enter_is_refused_with_the_cure(tmp_path: Path) -> None:
    """A folder of mode 0755 is not believed."""
    folder = tmp_path / "keys"
    ensure_keys(folder)
    folder.chmod(0o755)

    with pytest.raises(ConfigError, match=r"Folder of keys.*0755.*chmod 700"):
        checked_key(folder, Role.CALLER)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_key_of_somebody_else_is_refused(tmp_path: Path) -> None:
    """A seed that belongs to another user is not believed, whatever its mode."""
    folder = tmp_path / "keys"
    ensure_keys(folder)
    os.chown(key_path(folder, Role.PLATFORM), 12345, -1)

    with pytest.raises(ConfigError, match="belongs to user id 12345"):
        read_key(folder, Role.PLATFORM)


def test_a_missing_key_is_named(tmp_path: Path) -> None:
    """A role without a seed file is told by role and path."""
    folder = tmp_path / "keys"
    ensure_keys(folder)
    key_path(folder, Role.FENCER).unlink()

    with pytest.raises(ConfigError, match=r"role fencer.*fencer\.nk does not exist"):
        checked_key(folder, Role.FENCER)


_SEED = new_seed()
_ACCOUNT_SEED = nkeys.encode_seed(bytes(32), nkeys.PREFIX_BYTE_ACCOUNT)


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (b"", "is not an nkey seed"),
        (b"not a seed at all", "is not an nkey seed"),
        (_SEED[:-4], "is not an nkey seed"),
        (_SEED[:20] + (b"A" if _SEED[20:21] != b"A" else b"B") + _SEED[21:], "checksum"),
        (_ACCOUNT_SEED, "not of a user"),
    ],
    ids=["nothing", "words", "too short", "one letter wrong", "an account's"],
)
def test_what_is_not_a_user_seed_is_refused_without_showing_it(
    tmp_path: Path, content: bytes, fault: str
) -> None:
    """Damaged, foreign and empty seeds are told apart, and no message repeats them."""
    path = tmp_path / "some.nk"
    path.write_bytes(content)

    with pytest.raises(ConfigError, match=fault) as caught:
        read_seed(path, what="REACH_NKEY")

    assert "REACH_NKEY" in str(caught.value)
    assert not content or content.decode() not in str(caught.value)


def test_white_space_around_a_seed_does_not_matter(tmp_path: Path) -> None:
    """Editors add a line end; tools do not."""
    path = tmp_path / "some.nk"
    path.write_bytes(b"\n" + _SEED + b"\r\n")

    assert read_seed(path, what="REACH_NKEY") == _SEED
