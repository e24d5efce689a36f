//! Contract test of [`Live`], run on every implementation.

use futures_util::FutureExt as _;

use super::{EndedResponse, Live, LiveEvent, LiveReader, LiveResponse, ModelIdentity, ToolUpdate};
use turnwheel_conversation::content::{Block, joined_text};
use turnwheel_conversation::event::{
    AssistantMessageEvent, Event, EventBody, MessageReset, TypedToolCall,
};
use turnwheel_conversation::head::Head;
use turnwheel_conversation::unknown_members::Extra;
use turnwheel_json::raw::RawJson;
use turnwheel_platform::clock::Timestamp;
use turnwheel_platform::ids::{
    ConversationId, ConversationKey, EntryId, PromptId, TenantId, UserId,
};

pub(crate) fn key(conversation: &str) -> ConversationKey {
    ConversationKey {
        tenant: TenantId::new("tenant"),
        user: UserId::new("user"),
        conversation_id: ConversationId::new(conversation),
    }
}

/// Number of the response `m1` is 1. Other ids have none, as those of earlier versions.
fn response_number(message: &str) -> u64 {
    message.strip_prefix('m').and_then(|number| number.parse().ok()).unwrap_or(0)
}

pub(crate) fn response_started(message: &str) -> LiveEvent {
    LiveEvent::ResponseStarted(LiveResponse {
        epoch: 1,
        event_seq: 0,
        message_id: EntryId::new(message),
        number: response_number(message),
        prompt_id: PromptId::new("pr_1"),
        turn: 1,
        is_turn_start: true,
        is_agent_start: false,
        identity: ModelIdentity::default(),
    })
}

pub(crate) fn delta(message: &str, event: AssistantMessageEvent) -> LiveEvent {
    LiveEvent::Delta { message_id: EntryId::new(message), event }
}

pub(crate) fn text_start(message: &str) -> LiveEvent {
    delta(message, AssistantMessageEvent::TextStart { content_index: 0 })
}

pub(crate) fn text_delta(message: &str, text: &str) -> LiveEvent {
    delta(message, AssistantMessageEvent::TextDelta { content_index: 0, delta: text.to_owned() })
}

pub(crate) fn reset(message: &str) -> LiveEvent {
    LiveEvent::Reset { message_id: EntryId::new(message) }
}

/// The commit of a request, in a conversation without stored responses.
pub(crate) fn committed(event_seq: u64) -> LiveEvent {
    LiveEvent::Committed { event_seq, running_prompt: None, ended_response: None }
}

pub(crate) fn response_committed(message: &str, event_seq: u64) -> LiveEvent {
    let ended_response =
        EndedResponse { message_id: EntryId::new(message), number: response_number(message) };
    LiveEvent::Committed { event_seq, running_prompt: None, ended_response: Some(ended_response) }
}

/// Returns all events that are queued for the reader.
pub(crate) fn queued_events(reader: &mut dyn LiveReader) -> Vec<LiveEvent> {
    std::iter::from_fn(|| reader.next_event().now_or_never()).collect()
}

pub(crate) async fn run_contract(live: &dyn Live) {
    readers_get_events_in_order(live).await;
    conversations_are_isolated(live);
    late_reader_gets_snapshot(live);
    void_or_committed_response_has_no_snapshot(live);
    unrelated_commit_leaves_no_gap(live);
    delta_without_start_is_dropped(live);
    snapshot_shows_partial_tool_call(live);
}

async fn readers_get_events_in_order(live: &dyn Live) {
    let key = key("order");
    live.publish(&key, committed(1));
    let (snapshot, mut first) = live.subscribe(&key);
    assert_eq!(snapshot, None);
    let (_, mut second) = live.subscribe(&key);
    let update = LiveEvent::ToolUpdate(ToolUpdate {
        epoch: 1,
        event_seq: 0,
        prompt_id: PromptId::new("pr_1"),
        turn: 1,
        tool_call_id: "call_1".to_owned(),
        tool_name: "read".to_owned(),
        args: RawJson::from_value(&1),
        partial_result: RawJson::from_value(&2),
    });
    let published = [
        response_started("m1"),
        text_start("m1"),
        text_delta("m1", "a"),
        reset("m1"),
        update,
        committed(2),
    ];
    for event in &published {
        live.publish(&key, event.clone());
    }
    for event in &published {
        assert_eq!(&first.next_event().await, event);
    }
    assert_eq!(queued_events(&mut *first), []);
    drop(first);
    live.publish(&key, committed(3));
    assert_eq!(queued_events(&mut *second).len(), published.len() + 1);
}

fn conversations_are_isolated(live: &dyn Live) {
    let (_, mut mine) = live.subscribe(&key("mine"));
    let mut theirs = [key("theirs"), key("mine"), key("mine")];
    theirs[1].user = UserId::new("user2");
    theirs[2].tenant = TenantId::new("tenant2");
    for key in &theirs {
        live.publish(key, response_started("m1"));
        live.publish(key, committed(1));
    }
    assert_eq!(queued_events(&mut *mine), []);
}

fn late_reader_gets_snapshot(live: &dyn Live) {
    let key = key("middle");
    for event in
        [response_started("m1"), text_start("m1"), text_delta("m1", "Hel"), text_delta("m1", "lo")]
    {
        live.publish(&key, event);
    }
    let (snapshot, mut reader) = live.subscribe(&key);
    let snapshot = snapshot.expect("a partial response exists");
    assert_eq!(LiveEvent::ResponseStarted(snapshot.response), response_started("m1"));
    assert_eq!(snapshot.content, [Block::text("Hello")]);
    assert_eq!(queued_events(&mut *reader), [], "events of the snapshot are not delivered again");
    live.publish(&key, text_delta("m1", ", you"));
    assert_eq!(queued_events(&mut *reader), [text_delta("m1", ", you")]);

    let (later, _reader) = live.subscribe(&key);
    assert_eq!(joined_text(&later.unwrap().content), "Hello, you");
    live.publish(&key, response_started("m2"));
    let (newer, _reader) = live.subscribe(&key);
    assert_eq!(newer.unwrap().content, [], "another response has started");
    live.publish(&key, response_committed("m2", 1));
}

fn void_or_committed_response_has_no_snapshot(live: &dyn Live) {
    let key = key("void");
    let ends = [
        reset("m1"),
        response_committed("m1", 5),
        // The commit of m1 failed or was not received.
        response_committed("m3", 5),
        LiveEvent::Deleted,
    ];
    for end in ends {
        let (_, mut listener) = live.subscribe(&key);
        for event in [response_started("m1"), text_start("m1"), text_delta("m1", "x"), end] {
            live.publish(&key, event);
        }
        let (snapshot, _reader) = live.subscribe(&key);
        assert_eq!(snapshot, None);
        assert_eq!(queued_events(&mut *listener).len(), 4);
    }
    live.publish(&key, response_started("m2"));
    live.publish(&key, reset("m1"));
    let (snapshot, _reader) = live.subscribe(&key);
    assert!(snapshot.is_some(), "a late reset of an older response does not affect this one");
    live.publish(&key, response_committed("m2", 6));
}

/// A steer may arrive, or a setting may change, while a response streams.
fn unrelated_commit_leaves_no_gap(live: &dyn Live) {
    let key = key("else");
    let (_, mut first) = live.subscribe(&key);
    for unrelated in [committed(7), response_committed("m0", 7)] {
        for event in [response_started("m1"), text_start("m1"), text_delta("m1", "a"), unrelated] {
            live.publish(&key, event);
        }
        let (snapshot, mut between) = live.subscribe(&key);
        assert_eq!(joined_text(&snapshot.unwrap().content), "a");
        live.publish(&key, text_delta("m1", "b"));
        assert_eq!(queued_events(&mut *first).last(), Some(&text_delta("m1", "b")));
        assert_eq!(
            queued_events(&mut *between),
            [text_delta("m1", "b")],
            "it follows the snapshot"
        );
        live.publish(&key, response_committed("m1", 8));
        live.publish(&key, text_delta("m1", "late"));
        assert_eq!(queued_events(&mut *between), [response_committed("m1", 8)]);
    }
}

fn delta_without_start_is_dropped(live: &dyn Live) {
    let key = key("beginning");
    let (_, mut reader) = live.subscribe(&key);
    live.publish(&key, text_delta("m0", "of a response that started before this process knew it"));
    assert_eq!(queued_events(&mut *reader), []);
    live.publish(&key, response_started("m1"));
    live.publish(&key, text_delta("m0", "late"));
    assert_eq!(queued_events(&mut *reader), [response_started("m1")]);
    live.publish(&key, response_committed("m1", 1));
}

fn snapshot_shows_partial_tool_call(live: &dyn Live) {
    let key = key("call");
    let blocks = || live.subscribe(&key).0.unwrap().content;
    let arguments = |block: &Block| {
        let Block::ToolCall(call) = block else { panic!("{block:?}") };
        assert_eq!((call.id.as_str(), call.name.as_str()), ("call_1", "write"));
        call.arguments.text().to_owned()
    };
    live.publish(&key, response_started("m1"));
    live.publish(&key, delta("m1", AssistantMessageEvent::ThinkingStart { content_index: 0 }));
    let thinking_event =
        AssistantMessageEvent::ThinkingDelta { content_index: 0, delta: "hm".to_owned() };
    live.publish(&key, delta("m1", thinking_event));
    live.publish(
        &key,
        delta(
            "m1",
            AssistantMessageEvent::ToolcallStart {
                content_index: 1,
                id: "call_1".to_owned(),
                tool_name: "write".to_owned(),
            },
        ),
    );
    assert_eq!(arguments(&blocks()[1]), "{}");
    let part = AssistantMessageEvent::ToolcallDelta {
        content_index: 1,
        delta: r#"{"path":"/a","text":"He"#.to_owned(),
    };
    live.publish(&key, delta("m1", part));
    assert_eq!(arguments(&blocks()[1]), r#"{"path":"/a","text":"He"}"#);

    let whole = turnwheel_conversation::content::ToolCall {
        id: "call_1".to_owned(),
        name: "write".to_owned(),
        arguments: RawJson::from_text(r#"{"path": 1.0}"#).unwrap(),
        thought_signature: None,
        extra: Extra::new(),
    };
    let end = AssistantMessageEvent::ToolcallEnd {
        content_index: 1,
        tool_call: TypedToolCall { call: whole },
    };
    live.publish(&key, delta("m1", end));
    let thinking_event =
        AssistantMessageEvent::ThinkingEnd { content_index: 0, content: "hmm".to_owned() };
    live.publish(&key, delta("m1", thinking_event));
    let all = blocks();
    assert_eq!(arguments(&all[1]), r#"{"path": 1.0}"#, "numbers keep their written form");
    let Block::Thinking(thinking) = &all[0] else { panic!("{:?}", all[0]) };
    assert_eq!(thinking.thinking, "hmm");
    live.publish(&key, response_committed("m1", 1));
}

#[test]
fn commit_names_the_response_that_ended() {
    let head = |responses: u64| -> Head {
        let head = serde_json::json!({
            "schema": 1, "minReader": 1, "tenant": "t", "user": "u", "conversationId": "c",
            "incarnation": "0a1b2c3d", "commitId": "k", "revision": 1, "phase": {"owed": "idle"},
            "seq": 9, "eventSeq": 9, "turn": 2, "answers": responses, "agent": "clerk",
            "createdAt": 0, "updatedAt": 0,
        });
        serde_json::from_str(&head.to_string()).unwrap()
    };
    let ended = |head: &Head, events: &[Event]| {
        let event = LiveEvent::committed(head, events, None);
        let LiveEvent::Committed { ended_response, .. } = event else { panic!("{event:?}") };
        ended_response.map(|ended| (ended.message_id, ended.number))
    };
    let id = |number| EntryId::from_call_number("0a1b2c3d", number);
    assert_eq!(ended(&head(0), &[]), None);
    assert_eq!(ended(&head(2), &[]), Some((id(2), 2)), "the next response may stream");
    let reset = EventBody::MessageReset(MessageReset { message_id: id(3) });
    let at = Timestamp(0);
    let take_over = Event { n: 9, at, prompt_id: None, turn: 2, body: reset };
    let take_over = [take_over];
    assert_eq!(ended(&head(2), &take_over), Some((id(3), 3)), "that of the earlier worker");
    assert_eq!(ended(&head(3), &take_over), Some((id(3), 3)), "a failed response is stored too");
}
