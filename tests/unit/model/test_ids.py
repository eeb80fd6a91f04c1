"""An id tells its node to every reader, and nothing else."""

from __future__ import annotations

import pytest

from cellwall.model.errors import UsageError
from cellwall.model.ids import check_node, is_id, new_id, new_node, node_of


def test_id_begins_with_the_name_of_its_node() -> None:
    node = new_node()
    made = new_id(node)
    assert (len(made), node_of(made)) == (30, node)
    assert is_id(made, node)
    assert not is_id(made)
    assert not is_id(made, "aaaa" if node != "aaaa" else "bbbb")


def test_id_without_a_node_has_none() -> None:
    made = new_id()
    assert len(made) == 26
    assert is_id(made)
    assert node_of(made) == ""


@pytest.mark.parametrize(
    "text", ["", "a7c2", "a" * 29, "a" * 31, "a" * 29 + "!", "A" * 30, "ä" * 30]
)
def test_what_is_no_id_names_no_node(text: str) -> None:
    assert node_of(text) == ""


def test_name_of_a_node_is_drawn_and_checked() -> None:
    assert check_node(new_node())
    assert check_node("a7c2") == "a7c2"


@pytest.mark.parametrize("name", ["", "a7c", "a7c2x", "A7C2", "a8c2", "a-c2", "äbcd", "../x"])
def test_wrong_name_of_a_node_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match=r"node: .* is not the name"):
        check_node(name)
