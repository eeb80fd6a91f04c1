"""Functions of this process, called by code on the server."""

import cellwall

STOCK = {"cup": 12, "plate": 0}


def stock(item: str) -> int:
    """Say how many there are of an item."""
    return STOCK[item]


with cellwall.connect() as client, client.Sandbox(tools=[stock]) as sandbox:
    execution = sandbox.run("[item for item in ('cup', 'plate') if not tools.stock(item)]")
    assert execution.text == "['plate']"
