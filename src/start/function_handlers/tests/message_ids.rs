//! Test of the ids under which prompts of the queue are accepted.

use crate::start::function_handlers::*;

#[test]
fn run_without_message_has_id_of_its_invocation() {
    let meta = |message: Option<&str>, invocation: Option<&str>| InvocationMeta {
        message_id: message.map(str::to_owned),
        invocation_id: invocation.map(str::to_owned),
        ..InvocationMeta::default()
    };
    assert_eq!(resolve_message_id(meta(Some("m"), Some("i"))), "m");
    assert_eq!(resolve_message_id(meta(None, Some("i"))), "invocation i");
    assert_eq!(resolve_message_id(meta(None, None)), "");
}
