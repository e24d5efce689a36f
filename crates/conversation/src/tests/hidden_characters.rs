//! Tests of texts by which a person decides: no character hides or reorders others.

use super::*;

#[test]
fn stored_request_and_notification_hide_no_characters() {
    let hostile = "Pay \u{202e}052\u{202c} to A\u{200b}da\u{1b}[8m\u{0}\u{e0041}";
    let checked = admitted_call(0, Effect::Write, Some(&format!("{hostile}\n{hostile}")));
    let mut transition = transition();
    transition.policy.has_notification_receiver = true;
    apply_inputs(&mut transition, &[prompt("go"), response(&["pay {}"]), checked]);
    let in_head = transition.head.requests[0].reason.as_str();
    let in_entry = transition.entries.iter().find_map(|entry| match &entry.body {
        crate::entry::EntryBody::Request(it) => Some(it.request.reason.as_str()),
        _ => None,
    });
    let notification = transition.notifications.last().unwrap();
    let data = notification.data.to_value();
    let in_notification = data["approval"]["reason"].as_str();
    let shown = "Pay 052 to Ada [8m";
    for reason in [Some(in_head), in_entry, in_notification] {
        assert_eq!(reason, Some(format!("{shown}\n{shown}").as_str()));
    }
    let text = &notification.text;
    assert!(text.contains(&format!("{shown} {shown}")), "{text}");
}
