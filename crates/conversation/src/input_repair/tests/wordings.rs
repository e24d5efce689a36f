//! Wordings of errors, and the part that each names.

use super::*;

#[test]
#[expect(clippy::too_many_lines, reason = "one row for each wording")]
fn each_wording_names_its_part() {
    let path = path(vec![
        user(json!("q")),
        response(
            json!([signed(), text("a"), {"type": "toolCall", "id": "c", "name": "t", "arguments": {}}]),
        ),
        result(json!([text("r"), image()])),
    ]);
    for (code, param, message, part) in [
        (
            "invalid_encrypted_content",
            "",
            "The encrypted content E could not be verified.",
            RefusedPart::Reasoning,
        ),
        (
            "",
            "input[1].encrypted_content",
            "Encrypted content could not be decrypted",
            RefusedPart::Reasoning,
        ),
        (
            "",
            "input",
            "Item 'rs_1' of type 'reasoning' was provided without its required following item.",
            RefusedPart::Reasoning,
        ),
        (
            "",
            "",
            "Item with id 'rs_1' not found. Items are not persisted when `store` is set to false.",
            RefusedPart::Reasoning,
        ),
        (
            "",
            "",
            "messages.1.content.0: Invalid `signature` in `thinking` block",
            RefusedPart::Reasoning,
        ),
        (
            "content_filter",
            "prompt",
            "The response was filtered due to the prompt triggering the content management policy.",
            RefusedPart::ToolResults,
        ),
        (
            "invalid_prompt",
            "",
            "flagged as potentially violating our usage policy",
            RefusedPart::ToolResults,
        ),
        (
            "data_inspection_failed",
            "",
            "Input data may contain inappropriate content",
            RefusedPart::ToolResults,
        ),
        ("", "input[2].output", "Invalid value", RefusedPart::ToolResults),
        (
            "invalid_image",
            "input",
            "The image data you provided does not represent a valid image.",
            RefusedPart::Images,
        ),
        (
            "",
            "",
            "messages.2: image exceeds 5 MB maximum: 6000000 bytes > 5242880 bytes",
            RefusedPart::Images,
        ),
        ("", "input[2].content[1].image_url", "Invalid base64 image_url.", RefusedPart::Images),
        (
            "",
            "",
            "request contains 60 images, exceeding the maximum of 50 allowed per request",
            RefusedPart::ImageCount,
        ),
        ("too_many_images", "", "Too many images in request", RefusedPart::ImageCount),
        (
            "invalid_function_parameters",
            "tools[0].parameters",
            "Invalid schema for function 'x': no",
            RefusedPart::Tool,
        ),
        (
            "",
            "",
            "Invalid schema for function 'orders_get': array schema missing items.",
            RefusedPart::Tool,
        ),
        (
            "",
            "",
            "tools.0.custom.input_schema: JSON schema is invalid for tool \"pay\"",
            RefusedPart::Tool,
        ),
    ] {
        let found = find(&path, code, param, message).map(|found| found.repair.part);
        assert_eq!(found, Some(part), "{code} {param} {message}");
    }
    for (code, param, message) in [
        ("invalid_api_key", "", "Incorrect API key provided"),
        ("DeploymentNotFound", "", "The API deployment for this resource does not exist."),
        ("unsupported_parameter", "temperature", "Unsupported parameter: 'temperature'"),
        ("unsupported_value", "reasoning.effort", "Unsupported value: 'reasoning.effort' item"),
        ("", "include[0]", "reasoning.encrypted_content is not supported"),
        ("", "text.format.schema", "Invalid schema for response_format 'x'"),
        ("invalid_function_parameters", "", "Invalid schema for function 'gone'"),
        ("", "model", "model not supported"),
    ] {
        assert_eq!(find(&path, code, param, message), None, "{code} {param} {message}");
    }
}

/// Wordings of gateways and of other services.
#[test]
fn each_form_of_a_path_names_its_part() {
    let path = path(vec![
        user(json!("q")),
        response(
            json!([signed(), text("a"), {"type": "toolCall", "id": "call_7|fc_1", "name": "t", "arguments": {}}]),
        ),
        result(json!([text("r")])),
    ]);
    for (param, message) in [
        ("", "Invalid 'input[2].output': string contains invalid characters."),
        ("input", "Invalid 'input[2].output': string contains invalid characters."),
        ("", "litellm.BadRequestError: Error code: 400 - {'error': {'param': 'input[2].output'}}"),
        (
            "",
            "[{'type': 'string_type', 'loc': ('body', 'messages', 2, 'typed-dict', 'content', 'str')}]",
        ),
        ("", r#"{"detail":[{"loc":["body","input",2,"output"],"msg":"Input should be valid"}]}"#),
        ("", "('body', 'input', 'list[union[Message,FunctionCallOutput]]', 2, 'output')"),
        ("", "body/input/2/output must be string"),
        ("", "body -> messages -> 2 -> content: value is not valid"),
        ("", "Invalid value at '$.messages[2].content[0].text'"),
        ("", "* GenerateContentRequest.contents[2].parts: contents.parts must not be empty."),
        ("messages.2.content", "must be a string"),
        ("", "Content Exists Risk"),
        ("", "Your request was blocked. Category: violence"),
    ] {
        let found = find(&path, "", param, message).map(|found| found.repair.part);
        assert_eq!(found, Some(RefusedPart::ToolResults), "{param} {message}");
    }
    for message in [
        "No tool call found for function call output with call_id call_7.",
        "No tool output found for function call call_7.",
        "messages.33: `tool_use` ids were found without `tool_result` blocks immediately after: toolu_01",
        "messages with role 'tool' must be a response to a preceeding message with 'tool_calls'.",
        "Not the same number of function calls and responses",
        "Please ensure that function call turn comes immediately after a user turn",
        "Invalid 'input[1].call_id': string too long. Expected a string with maximum length 64.",
        "Invalid 'input[1].name': string does not match pattern.",
        "messages.1.tool_calls.0.function.arguments must be valid JSON",
    ] {
        let found = find(&path, "", "", message).unwrap();
        let InputRepair { part, from_seq, to_seq, .. } = found.repair;
        assert_eq!((part, from_seq, to_seq), (RefusedPart::ToolCalls, 2, 3), "{message}");
    }
    for (param, message) in [
        ("parallel_tool_calls", "Unsupported parameter: 'parallel_tool_calls'"),
        ("", "Unsupported parameter: 'parallel_tool_calls' is not supported with this model."),
        ("tool_choice", "'tool_choice' is only allowed when 'tools' are specified."),
        ("temperature", "messages[2].content is fine, temperature is not"),
        ("", "Invalid input, 2 parameters are unknown"),
        ("", "Your account has been blocked"),
    ] {
        assert_eq!(find(&path, "", param, message), None, "{param} {message}");
    }
    let image = find(&path, "", "", "Multimodal input is not supported by this model");
    assert_eq!(image, None, "there is none");
}

fn path_with_images(count: usize) -> Vec<Arc<Entry>> {
    path(vec![user(json!("q")), response(json!([text("a")])), user(json!(vec![image(); count]))])
}

#[test]
fn missing_model_names_no_part() {
    let path = path_with_images(1);
    for (code, message) in [
        ("model_not_found", "model 'llama3.2-vision' not found"),
        ("", "model \"llama3.2-vision\" not found, try pulling it first"),
        ("", "model qwen-image not found"),
        (
            "",
            "The model `llama-3.2-90b-vision-preview` has been decommissioned and is no longer supported.",
        ),
        ("model_decommissioned", "The vision model is gone."),
        ("", "The model `gpt-4-vision-preview` does not exist or you do not have access to it."),
        ("", "openai/gpt-image-1 is not a valid model ID"),
        ("DeploymentNotFound", "The API deployment for the vision resource does not exist."),
        ("", "model: claude-3-vision-20240229"),
        ("", "Unknown model for vision"),
    ] {
        assert_eq!(find(&path, code, "", message), None, "{code} {message}");
    }
    for message in [
        "The model `gpt-3.5-turbo` does not support image input",
        "model 'llama3.1:8b' does not support images",
        "Failed to deserialize the JSON body: messages[2]: unknown variant `image_url`, expected `text`",
        "Invalid media type 'image/bmp'",
        "The model could not read the request: the image file was not found",
    ] {
        let found = find(&path, "", "", message).map(|found| found.repair.part);
        assert_eq!(found, Some(RefusedPart::Images), "{message}");
    }
}

#[test]
fn error_with_status_404_names_part_by_path_or_id() {
    let names = |text: &str| names_part(Refusal { code: "", param: "", text });
    for text in [
        "Item with id 'rs_1' not found. Items are not persisted when `store` is set to false.",
        "Invalid 'input[2].output': not found",
        "No endpoints found that support image input",
    ] {
        assert!(names(text), "{text}");
    }
    for text in
        ["model 'llama3.2-vision' not found", "Resource not found", "The vision model is gone"]
    {
        assert!(!names(text), "{text}");
    }
}

#[test]
fn role_and_instructions_are_no_content() {
    let path = path(vec![user(json!("q")), response(json!([text("a")])), user(json!("next"))]);
    for (param, message, has_instructions) in [
        (
            "messages[0].role",
            "Unsupported value: 'messages[0].role' does not support 'system' with this model.",
            true,
        ),
        ("input[0].role", "Unsupported value: 'developer'", true),
        ("", "Unsupported value: 'messages[0].role' does not support 'system'", false),
        ("messages[1].role", "Invalid value: 'developer'", true),
        ("messages[0].content", "Invalid type", true),
        ("input[0].content", "string too long", true),
    ] {
        let refusal = Refusal { code: "unsupported_value", param, text: message };
        assert_eq!(find_in_request(&path, has_instructions, refusal), None, "{param} {message}");
    }
    let first = |param: &str, has_instructions: bool| {
        let refusal = Refusal { code: "", param, text: "Invalid type" };
        let repair = find_in_request(&path, has_instructions, refusal).unwrap().repair;
        (repair.part, repair.from_seq, repair.to_seq)
    };
    let message = (RefusedPart::Messages, 1, 1);
    assert_eq!(first("messages[0].content", false), message);
    assert_eq!(first("messages[1].content", true), message);
    assert_eq!(first("messages.0.content", true), message, "its instructions have no index");
}

#[test]
fn calls_are_named_by_role() {
    let call = json!({"type": "toolCall", "id": "c", "name": "t", "arguments": {}});
    let path = path(vec![user(json!("q")), response(json!([call])), result(json!([text("r")]))]);
    let error = "Invalid parameter: messages with role 'tool' must be a response to a preceeding message with 'tool_calls'.";
    let found = find(&path, "", "messages.[2].role", error).unwrap();
    assert_eq!(found.repair.part, RefusedPart::ToolCalls);
}

#[test]
fn each_wording_of_an_image_limit_is_read() {
    let path = path_with_images(3);
    for (message, kept) in [
        ("At most 1 image(s) may be provided in one prompt.", 1),
        (
            "You set image=1 (or defaulted to 1) in `--limit-mm-per-prompt`, but found 3 items in the same prompt.",
            1,
        ),
        ("Too many image inputs", 1),
        ("Too many image_url parts", 1),
        ("No more than 2 image per request", 2),
        ("The maximum number of images is 2", 2),
        ("Only one image is allowed", 1),
        ("At most 2 image_url(s) are accepted", 2),
        ("The number of image parts exceeds the limit of 2", 2),
        ("This model takes up to 2 images", 2),
    ] {
        let found = find(&path, "", "", message).unwrap();
        let InputRepair { part, images_max, .. } = found.repair;
        assert_eq!((part, images_max), (RefusedPart::ImageCount, Some(kept)), "{message}");
    }
    for message in [
        "The image size exceeds the maximum of 20 MB",
        "At least one of the image dimensions exceed the maximum for many-image requests",
        "Images are not supported, only text",
    ] {
        let found = find(&path, "", "", message).map(|found| found.repair.part);
        assert_eq!(found, Some(RefusedPart::Images), "{message}");
    }
}

/// Wordings of OpenAI, Azure, Anthropic, Bedrock, Gemini, vLLM and Ollama.
#[test]
fn number_and_size_limits_of_images_differ() {
    for (count, message, kept) in [
        (25, "25 images exceed the limit of 20 images (max size 5 MB)", 20),
        (6, "Invalid request: too many images in request. Max is 3, each of up to 20MB.", 3),
        (12, "Too many images in request. Max is 10.", 10),
        (25, "messages.0.content: too many images and documents: 25 + 0 > 20", 20),
        (
            25,
            "The number of images exceeds the limit of 20. The maximum image size is 3.75 MB.",
            20,
        ),
        (
            60,
            "Request contains 60 images, exceeding the maximum of 50 allowed (20 MB in total)",
            50,
        ),
        (25, "Invalid request: too many images in request. Max is 3, each of up to 20MB.", 3),
        (60, "60 images, exceeding the maximum of 20 allowed (50 MB in total)", 20),
        (100, "100 images exceed the limit of 20 images. The maximum size is 3.75 MB.", 20),
        (18, "Please use fewer than 16 images in your request", 16),
        (6, "At most 4 image(s) may be provided in one prompt.", 4),
        (2, "vision model only supports a single image per message", 1),
        (3, "this model only supports one image while more than one image requested", 1),
    ] {
        let found = find(&path_with_images(count), "", "", message).unwrap();
        let InputRepair { part, images_max, .. } = found.repair;
        assert_eq!((part, images_max), (RefusedPart::ImageCount, Some(kept)), "{message}");
    }
    let path = path_with_images(3);
    for message in [
        "Invalid image_url: image exceeds the maximum of 20 MB",
        "messages.2: image exceeds 5 MB maximum: 6000000 bytes > 5242880 bytes",
        "At least one of the image dimensions exceed max allowed size for many-image requests: 2000 pixels",
        "The image is larger than the maximum size of 3.75 MB",
        "2 images exceed the maximum size of 5 MB",
        "Images exceed the limit of 20971520 bytes",
        "Image size exceeds 5 MB. A request may have up to 20 images.",
        "The images exceed 20MB in total; send at most 20 images",
    ] {
        let found = find(&path, "", "", message).map(|found| found.repair.part);
        assert_eq!(found, Some(RefusedPart::Images), "{message}");
    }
}

#[test]
fn missing_reasoning_replaces_calls_by_notes() {
    let call = |id: &str| json!({"type": "toolCall", "id": id, "name": "t", "arguments": {}});
    let path = path(vec![
        user(json!("q")),
        response(json!([call("c1")])),
        result(json!([text("r")])),
        response(json!([text("a"), call("c2")])),
        result(json!([text("r")])),
        response(json!([text("done")])),
        user(json!("next")),
    ]);
    let gemini = "Function call is missing a thought_signature in functionCall parts. This is required for tools to work correctly. \
                  Additional data, function call `default_api:t`, position 2.";
    for (message, from_seq) in [
        ("Missing `reasoning_content` field in the assistant message at message index 4", 4),
        ("Missing `reasoning_content` field in the assistant message at message index 2", 2),
        (
            "thinking is enabled but reasoning_content is missing in assistant tool call message at index 4",
            4,
        ),
        ("The `reasoning_content` in the thinking mode must be passed back to the API.", 0),
        (gemini, 0),
        (
            "messages.3.content.0.type: Expected `thinking` or `redacted_thinking`, but found `tool_use`.",
            4,
        ),
    ] {
        let refusal = Refusal { code: "", param: "", text: message };
        let repair = find_in_request(&path, true, refusal).unwrap().repair;
        assert_eq!((repair.part, repair.from_seq), (RefusedPart::ToolCalls, from_seq), "{message}");
    }
    let invalid = Refusal { text: "Thought signature is not valid.", ..Refusal::default() };
    let found = find_in_request(&path, true, invalid);
    assert_eq!(found.map(|found| found.repair.part), Some(RefusedPart::ToolCalls));
}
