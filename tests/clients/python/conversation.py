"""Run by `.ci/run clients`: a conversation with the client of openapi-python-client."""

import io
import json
import sys
from decimal import Decimal

from turnwheel_client import Client
from turnwheel_client.api.approvals import decide_approval
from turnwheel_client.api.artifacts import add_artifact, get_artifact
from turnwheel_client.api.conversations import create_conversation
from turnwheel_client.api.prompts import create_prompt, get_prompt
from turnwheel_client.models import (
    DecisionRequest,
    DecisionRequestDecision,
    FileBlock,
    FileBlockType,
    NewConversation,
    PromptApprovalRequestedEvent,
    PromptCompletedEvent,
    PromptRequest,
    TextBlock,
    TextBlockType,
    TextOutput,
    ToolApproval,
)
from turnwheel_client.types import File

client = Client(base_url=sys.argv[1])


def read_until(conversation, after, kind, model):
    """Reads the stream up to an event of the type, and returns it."""
    url = f"/api/conversations/{conversation}/events"
    with client.get_httpx_client().stream("GET", url, params={"after": after}) as response:
        response.raise_for_status()
        for line in response.iter_lines():
            if line.startswith("data:"):
                event = json.loads(line[5:], parse_float=Decimal)  # a float rounds amounts
                if event["type"] == kind:
                    return model.from_dict(event)
    raise RuntimeError(f"the stream ended without {kind}")


conversation = create_conversation.sync(client=client, body=NewConversation(agent="payments-clerk"))
upload = File(payload=io.BytesIO(b"Invoice 1: 250 to Ada"))
artifact = add_artifact.sync(conversation.id, client=client, body=upload, name="invoice.txt")
request = PromptRequest(
    input_=[
        TextBlock(type_=TextBlockType.TEXT, text="Pay 250 to Ada"),
        FileBlock(type_=FileBlockType.FILE, artifact_id=artifact.id),
    ]
)
accepted = create_prompt.sync(conversation.id, client=client, body=request, idempotency_key="invoice-1")
after = accepted.last_event_id
requested = read_until(conversation.id, after, "prompt.approval-requested", PromptApprovalRequestedEvent)
assert isinstance(requested.approval, ToolApproval), requested.approval
decision = DecisionRequest(decision=DecisionRequestDecision.APPROVE)
decide_approval.sync(conversation.id, requested.approval.id, client=client, body=decision)
end = read_until(conversation.id, after, "prompt.completed", PromptCompletedEvent)
prompt = get_prompt.sync(conversation.id, end.prompt_id, client=client)
texts = [output.content for output in prompt.output if isinstance(output, TextOutput)]
file = get_artifact.sync(conversation.id, artifact.id, client=client)
print(
    json.dumps(
        {
            "amount": requested.approval.arguments["amount"],
            "state": prompt.state,
            "text": texts[-1],
            "file": file.payload.read().decode(),
        },
        default=str,
    )
)
