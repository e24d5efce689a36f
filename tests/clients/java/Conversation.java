// Run by `.ci/run clients`: a conversation with the client of openapi-generator.
import com.fasterxml.jackson.databind.DeserializationFeature;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.File;
import java.net.URI;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.file.Files;
import java.util.List;
import java.util.Map;
import turnwheel.ApiClient;
import turnwheel.api.ApprovalsApi;
import turnwheel.api.ArtifactsApi;
import turnwheel.api.ConversationsApi;
import turnwheel.api.PromptsApi;
import turnwheel.model.DecisionRequest;
import turnwheel.model.Event;
import turnwheel.model.InputBlock;
import turnwheel.model.NewConversation;
import turnwheel.model.PromptApprovalRequestedEvent;
import turnwheel.model.PromptCompletedEvent;
import turnwheel.model.PromptRequest;
import turnwheel.model.TextOutput;
import turnwheel.model.ToolApproval;

public class Conversation {
    // A double rounds amounts.
    static final ObjectMapper mapper =
            ApiClient.createDefaultObjectMapper().enable(DeserializationFeature.USE_BIG_DECIMAL_FOR_FLOATS);

    /** Reads the stream up to an event of the type. The generated method reads a body as JSON. */
    static <T extends Event> T readUntil(ApiClient client, String id, int after, Class<T> type) throws Exception {
        URI uri = URI.create(client.getBaseUri() + "/api/conversations/" + id + "/events?after=" + after);
        HttpRequest request = HttpRequest.newBuilder(uri).build();
        var response = client.getHttpClient().send(request, HttpResponse.BodyHandlers.ofLines());
        for (String line : (Iterable<String>) response.body()::iterator) {
            if (line.startsWith("data:")) {
                Event event = mapper.readValue(line.substring(5), Event.class);
                if (type.isInstance(event)) {
                    return type.cast(event);
                }
            }
        }
        throw new IllegalStateException("the stream ended without " + type);
    }

    public static void main(String[] arguments) throws Exception {
        ApiClient client = new ApiClient();
        client.updateBaseUri(arguments[0]);
        String id = new ConversationsApi(client)
                .createConversation(new NewConversation().agent("payments-clerk"), null)
                .getId();
        File invoice = File.createTempFile("invoice", ".txt");
        Files.writeString(invoice.toPath(), "Invoice 1: 250 to Ada");
        String artifact =
                new ArtifactsApi(client).addArtifact(id, invoice, "invoice.txt", null).getId();
        List<InputBlock> input = List.of(
                new InputBlock().type(InputBlock.TypeEnum.TEXT).text("Pay 250 to Ada"),
                new InputBlock().type(InputBlock.TypeEnum.FILE).artifactId(artifact));
        PromptsApi prompts = new PromptsApi(client);
        var accepted = prompts.createPrompt(id, new PromptRequest().input(input), null, "invoice-1");
        var requested = readUntil(client, id, accepted.getLastEventId(), PromptApprovalRequestedEvent.class);
        ToolApproval approval = (ToolApproval) requested.getApproval();
        new ApprovalsApi(client).decideApproval(
                id, approval.getId(), new DecisionRequest().decision(DecisionRequest.DecisionEnum.APPROVE), null);
        var end = readUntil(client, id, accepted.getLastEventId(), PromptCompletedEvent.class);
        var prompt = prompts.getPrompt(id, end.getPromptId(), null, null);
        String text = "";
        for (var output : prompt.getOutput()) {
            if (output instanceof TextOutput textOutput) {
                text = textOutput.getContent();
            }
        }
        File file = new ArtifactsApi(client).getArtifact(id, artifact, null, null, null);
        System.out.println(mapper.writeValueAsString(Map.of(
                "amount", ((Map<?, ?>) approval.getArguments()).get("amount"),
                "state", prompt.getState(),
                "text", text,
                "file", Files.readString(file.toPath()))));
    }
}
