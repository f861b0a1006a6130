"""Names that we make up."""

import os
import re

import pytest

from reach import ids


@pytest.mark.parametrize(
    ("make", "pattern"),
    [
        (ids.new_id, r"[a-z2-7]{16}"),
        (ids.reach_id, r"rch_[a-z2-7]{16}"),
        (lambda: ids.instance_id("an_agent"), r"an_agent-[a-z2-7]{8}"),
        (ids.trace_id, r"[0-9a-f]{32}"),
        (ids.span_id, r"[0-9a-f]{16}"),
    ],
)
def test_ids_have_their_form_and_are_never_given_twice(make, pattern) -> None:
    """Each kind of id fits its pattern, and ten thousand of them differ, across blocks of randomness."""
    made = [make() for _ in range(10_000)]
    assert [one for one in made if not re.fullmatch(pattern, one)] == []
    assert len(set(made)) == len(made)


def test_a_forked_child_makes_other_ids() -> None:
    """After a fork parent and child do not hand out the same letters."""
    ids.new_id()
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write, ids.new_id().encode())
        os._exit(0)
    os.waitpid(child, 0)
    theirs = os.read(read, 16).decode()
    os.close(read)
    os.close(write)
    assert theirs != ids.new_id()
