"""Tools of a test: payments are lines of a file, and wait while another file exists."""

import os
from pathlib import Path
from typing import Annotated, Literal

from turnwheel_tools import Call, Tools

tools = Tools("shop")
LARGE = {"properties": {"amount": {"exclusiveMinimum": 100}}, "required": ["amount"]}


def log(line: str) -> None:
    with Path("payments.txt").open("a") as file:
        file.write(f"{line}\n")


@tools.tool(effect="read")
def find(kind: Annotated[Literal["wheel", "axle"], "What to find"], count: int = 1) -> dict:
    """Finds parts."""
    return {"kind": kind, "count": count}


@tools.tool(approval={"when": LARGE, "reason": "Payments above 100 need an approval."})
def pay(amount: int, call: Call) -> str:
    """Pays."""
    log(f"begin {os.getpid()} {call.effect_id}")
    call.progress(f"paying {amount}")
    while Path("hold").exists():
        if call.wait_cancelled(0.02):
            log("cancelled")
            call.check_cancelled()
    log(f"paid {amount}")
    return f"paid {amount}"


if __name__ == "__main__":
    tools.run()
