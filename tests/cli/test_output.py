"""How messages are worded on the command line."""

import pytest

from reach.cli.output import sentence


@pytest.mark.parametrize(
    ("message", "told"),
    [
        ("nobody is there", "Nobody is there."),
        ("it's done: ask again", "It's done: ask again."),
        ("rch_7aytd4gy5osnh5z7 is not on the list", "rch_7aytd4gy5osnh5z7 is not on the list."),
        ("root@vm resolved it", "root@vm resolved it."),
        ("ledger.post is not served", "ledger.post is not served."),
        ("pay-k3m7q2xa has left", "pay-k3m7q2xa has left."),
        ("what then?", "What then?"),
    ],
)
def test_a_sentence_leaves_names_as_they_are(message: str, told: str) -> None:
    """A capital in front and a full stop at the end; an id or a name that stands first can be copied as it is."""
    assert told == sentence(message)
