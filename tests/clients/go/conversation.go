// Run by `.ci/run clients`: a conversation with the client of oapi-codegen.
package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"os"
	"strings"
)

var ctx = context.Background()

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

// Reads the stream up to an event of the type, and decodes it. A number of the arguments is a json.Number, because a float64
// rounds amounts.
func readUntil(client *ClientWithResponses, conversation string, after int, kind string, event any) {
	params := StreamEventsParams{After: &after}
	response, err := client.ClientInterface.StreamEvents(ctx, conversation, &params)
	check(err)
	defer response.Body.Close()
	lines := bufio.NewReader(response.Body)
	for {
		line, err := lines.ReadString('\n')
		if err == io.EOF {
			log.Fatalf("the stream ended without %s", kind)
		}
		check(err)
		data, isData := strings.CutPrefix(line, "data:")
		var base Event
		if isData && json.Unmarshal([]byte(data), &base) == nil && base.Type == kind {
			decoder := json.NewDecoder(strings.NewReader(data))
			decoder.UseNumber()
			check(decoder.Decode(event))
			return
		}
	}
}

func main() {
	client, err := NewClientWithResponses(os.Args[1])
	check(err)
	agent := "payments-clerk"
	created, err := client.CreateConversationWithResponse(ctx, nil, NewConversation{Agent: &agent})
	check(err)
	id := created.JSON201.Id
	name := "invoice.txt"
	uploaded, err := client.AddArtifactWithBodyWithResponse(ctx, id, &AddArtifactParams{Name: &name},
		"application/octet-stream", bytes.NewReader([]byte("Invoice 1: 250 to Ada")))
	check(err)
	artifact := uploaded.JSON201.Id
	text := "Pay 250 to Ada"
	input := Content{{Type: Text, Text: &text}, {Type: File, ArtifactId: &artifact}}
	key := "invoice-1"
	accepted, err := client.CreatePromptWithResponse(ctx, id, &CreatePromptParams{IdempotencyKey: &key},
		PromptRequest{Input: &input})
	check(err)
	if accepted.JSON202 == nil {
		log.Fatal(string(accepted.Body))
	}
	after := *accepted.JSON202.LastEventId
	var requested PromptApprovalRequestedEvent
	readUntil(client, id, after, "prompt.approval-requested", &requested)
	arguments := requested.Approval.Arguments.(map[string]any)
	decided, err := client.DecideApprovalWithResponse(ctx, id, requested.Approval.Id, nil,
		DecisionRequest{Decision: Approve})
	check(err)
	if decided.JSON200 == nil {
		log.Fatal(string(decided.Body))
	}
	var end PromptCompletedEvent
	readUntil(client, id, after, "prompt.completed", &end)
	prompt, err := client.GetPromptWithResponse(ctx, id, end.PromptId, nil)
	check(err)
	// The type of a variant is chosen by its `type`.
	var outputs struct{ Output []json.RawMessage }
	check(json.Unmarshal(prompt.Body, &outputs))
	var lastText TextOutput
	for number, output := range prompt.JSON200.Output {
		if output.Type == "text" {
			check(json.Unmarshal(outputs.Output[number], &lastText))
		}
	}
	file, err := client.GetArtifactWithResponse(ctx, id, artifact, nil)
	check(err)
	result, err := json.Marshal(map[string]any{
		"amount": arguments["amount"], "state": prompt.JSON200.State, "text": lastText.Content, "file": string(file.Body),
	})
	check(err)
	fmt.Println(string(result))
}
