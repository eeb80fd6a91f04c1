"""Code inside calls functions outside: checked, approved, counted, told of; with no network."""

from cellwall import Event, Sandbox, Tool, ToolBox, ToolCall, ToolError

STOCK = {"cup": 12, "plate": 0}
ORDERS: list[str] = []


def stock(item: str) -> int:
    """Say how many there are of an item."""
    if item not in STOCK:
        raise ToolError(f"there is no {item!r}; items are: {', '.join(STOCK)}")
    return STOCK[item]


async def order(item: str, count: int = 1) -> dict[str, int]:
    """Order some of an item."""
    ORDERS.append(item)
    return {item: count}


def approve(call: ToolCall) -> bool:
    """Decide about a call; a person could be asked here. Only `True` is an approval."""
    return int(call.arguments["count"]) <= 20


tools = ToolBox(
    {"stock": stock, "order": Tool(order, needs_approval=True, timeout_s=5)}, approve=approve
)
calls: list[Event] = []


def watch(event: Event) -> None:
    """Keep what was called."""
    if event.kind == "tool_call":
        calls.append(event)


# What a model wrote: three calls and some logic, in one turn.
PROGRAM = """
missing = [item for item in ("cup", "plate") if tools.stock(item) == 0]
for item in missing:
    try:
        tools.order(item, count=500)
    except ToolError as error:
        print(error)
        print(tools.order(item, count=20))
"""

with Sandbox(tools=tools) as sandbox:
    execution = sandbox.run(PROGRAM, on_event=watch)
    assert execution.stdout == "order: the call was not approved\n{'plate': 20}\n"
    assert [event.data["decision"] for event in calls if event.data] == ["ok", "ok", "denied", "ok"]
    assert ORDERS == ["plate"]

    # Errors say what to do next; types are checked out here, whatever the code inside does.
    execution = sandbox.run("tools.stock('spoon')")
    assert execution.error is not None
    assert execution.error.value == "stock: ToolError: there is no 'spoon'; items are: cup, plate"
    execution = sandbox.run("tools.stock(item=7)")
    assert execution.error is not None
    assert execution.error.value == "stock: item: Input should be a valid string"

    assert "stock(item: str) -> int" in sandbox.run("help(tools.stock)").stdout
