"""Accounts of tests as configuration: each as a real one is, and nobody in two of them."""

import json

from hypothesis import given
from hypothesis import strategies as st

from reach.bus.keys import Role
from reach.bus.permissions import permissions
from reach.testing.accounts import Keys, accounts_text


def keys_of(owner: str) -> Keys:
    return {role: f"U{owner}{role}" for role in Role}


def accounts_of(text: str) -> dict[str, dict[str, list[dict[str, object]]]]:
    """The JSON part of the configuration."""
    first, _, rest = text.partition("\naccounts: ")
    assert first == "system_account: SYS"
    accounts: dict[str, dict[str, list[dict[str, object]]]] = json.loads(rest)
    return accounts


@given(st.lists(st.integers(min_value=0, max_value=50), unique=True, max_size=5))
def test_every_user_is_in_one_account(numbers: list[int]) -> None:
    """A key of one test opens no other test's account, and the fencer is the system's alone."""
    tests = {f"TEST{number}": keys_of(f"T{number}-") for number in numbers}
    accounts = accounts_of(accounts_text(keys_of("S-"), tests))
    assert {"SYS", "REACH", *tests} == set(accounts)
    users = [user["nkey"] for account in accounts.values() for user in account["users"]]
    assert len(users) == len(set(users))
    assert ["US-fencer"] == [user["nkey"] for user in accounts["SYS"]["users"]]
    assert [user for user in users if str(user).endswith("fencer")] == ["US-fencer"]


def test_roles_may_do_what_they_may_do_elsewhere() -> None:
    """Permissions in a test's account are those of the real one, so a test cannot do what a user could not."""
    accounts = accounts_of(accounts_text(keys_of("S-"), {"TEST1": keys_of("T-")}))
    found = {user["nkey"]: user.get("permissions") for user in accounts["TEST1"]["users"]}
    for role in Role:
        granted = permissions(role)
        if role is Role.FENCER:
            continue
        if granted is None:
            assert found[f"UT-{role}"] is None
            continue
        rules = found[f"UT-{role}"]
        assert isinstance(rules, dict)
        assert list(granted.publish) == rules["publish"]["allow"]
        assert list(granted.subscribe) == rules["subscribe"]["allow"]
        assert (granted.responses is not None) == ("allow_responses" in rules)
