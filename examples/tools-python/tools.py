"""Tools of a shop: orders and refunds."""

from typing import Annotated

from turnwheel_tools import Call, ToolError, Tools

ORDERS = {"o-1": 40, "o-2": 250}
LARGE = {"properties": {"amount": {"exclusiveMinimum": 100}}}

tools = Tools("shop")


@tools.tool(effect="read")
def get_order(order: Annotated[str, "Number of the order, such as o-1"]) -> dict:
    """Returns an order with its amount."""
    if order not in ORDERS:
        raise ToolError(f"There is no order {order}.")
    return {"order": order, "amount": ORDERS[order]}


@tools.tool(approval={"when": LARGE, "reason": "Refunds above 100 need an approval."})
def refund(order: str, amount: int, call: Call) -> str:
    """Refunds a part of an order."""
    if amount > ORDERS.get(order, 0):
        raise ToolError("The order has a lower amount.")
    call.progress("writing to the bank")
    # The bank repeats nothing that has the key already.
    return f"Refunded {amount} of {order}, receipt {call.effect_id}."


if __name__ == "__main__":
    tools.run()
