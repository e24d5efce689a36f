//! Contract test of [`Live`], run on every implementation.

use futures_util::FutureExt as _;

use super::{Author, Live, LiveAnswer, LiveEvent, LiveReader, ToolUpdate};
use crate::agent::content::{Block, joined_text};
use crate::agent::event::{AnswerEvent, TypedToolCall};
use crate::agent::raw::{Extra, RawJson};
use crate::ids::{ConversationId, ConversationKey, EntryId, PromptId, TenantId, UserId};

pub(crate) fn key(conversation: &str) -> ConversationKey {
    ConversationKey {
        tenant: TenantId::new("tenant"),
        user: UserId::new("user"),
        conversation_id: ConversationId::new(conversation),
    }
}

pub(crate) fn start(message: &str) -> LiveEvent {
    LiveEvent::AnswerStarted(LiveAnswer {
        epoch: 1,
        message_id: EntryId::new(message),
        prompt_id: PromptId::new("pr_1"),
        turn: 1,
        begins_turn: true,
        begins_agent: false,
        author: Author::default(),
    })
}

pub(crate) fn delta(message: &str, event: AnswerEvent) -> LiveEvent {
    LiveEvent::Delta { message_id: EntryId::new(message), event }
}

pub(crate) fn text_start(message: &str) -> LiveEvent {
    delta(message, AnswerEvent::TextStart { content_index: 0 })
}

pub(crate) fn text(message: &str, text: &str) -> LiveEvent {
    delta(message, AnswerEvent::TextDelta { content_index: 0, delta: text.to_owned() })
}

pub(crate) fn reset(message: &str) -> LiveEvent {
    LiveEvent::Reset { message_id: EntryId::new(message) }
}

pub(crate) fn committed(event_seq: u64) -> LiveEvent {
    LiveEvent::Committed { event_seq, busy_with: None }
}

/// Returns all events that are queued for the reader.
pub(crate) fn waiting(reader: &mut dyn LiveReader) -> Vec<LiveEvent> {
    std::iter::from_fn(|| reader.next().now_or_never()).collect()
}

pub(crate) async fn contract(live: &dyn Live) {
    readers_are_told_what_comes_in_order(live).await;
    conversations_do_not_hear_each_other(live);
    who_joins_in_the_middle_gets_what_there_is(live);
    what_is_void_or_durable_is_no_snapshot(live);
    a_commit_of_something_else_leaves_no_gap(live);
    a_delta_without_its_beginning_is_not_told(live);
    a_tool_call_is_shown_as_far_as_it_has_come(live);
}

async fn readers_are_told_what_comes_in_order(live: &dyn Live) {
    let key = key("order");
    live.publish(&key, committed(1));
    let (snapshot, mut first) = live.subscribe(&key);
    assert_eq!(snapshot, None);
    let (_, mut second) = live.subscribe(&key);
    let update = LiveEvent::ToolUpdate(ToolUpdate {
        epoch: 1,
        prompt_id: PromptId::new("pr_1"),
        turn: 1,
        tool_call_id: "call_1".to_owned(),
        tool_name: "read".to_owned(),
        args: RawJson::of(&1),
        partial_result: RawJson::of(&2),
    });
    let told = [start("m1"), text_start("m1"), text("m1", "a"), reset("m1"), update, committed(2)];
    for event in &told {
        live.publish(&key, event.clone());
    }
    for event in &told {
        assert_eq!(&first.next().await, event);
    }
    assert_eq!(waiting(&mut *first), []);
    drop(first);
    live.publish(&key, committed(3));
    assert_eq!(waiting(&mut *second).len(), told.len() + 1);
}

fn conversations_do_not_hear_each_other(live: &dyn Live) {
    let (_, mut mine) = live.subscribe(&key("mine"));
    let mut theirs = [key("theirs"), key("mine"), key("mine")];
    theirs[1].user = UserId::new("user2");
    theirs[2].tenant = TenantId::new("tenant2");
    for key in &theirs {
        live.publish(key, start("m1"));
        live.publish(key, committed(1));
    }
    assert_eq!(waiting(&mut *mine), []);
}

fn who_joins_in_the_middle_gets_what_there_is(live: &dyn Live) {
    let key = key("middle");
    for event in [start("m1"), text_start("m1"), text("m1", "Hel"), text("m1", "lo")] {
        live.publish(&key, event);
    }
    let (snapshot, mut reader) = live.subscribe(&key);
    let snapshot = snapshot.expect("a partial response exists");
    assert_eq!(LiveEvent::AnswerStarted(snapshot.answer), start("m1"));
    assert_eq!(snapshot.content, [Block::text("Hello")]);
    assert_eq!(waiting(&mut *reader), [], "events of the snapshot are not delivered again");
    live.publish(&key, text("m1", ", you"));
    assert_eq!(waiting(&mut *reader), [text("m1", ", you")]);

    let (later, _reader) = live.subscribe(&key);
    assert_eq!(joined_text(&later.unwrap().content), "Hello, you");
    live.publish(&key, start("m2"));
    let (newer, _reader) = live.subscribe(&key);
    assert_eq!(newer.unwrap().content, [], "another response has started");
    live.publish(&key, committed(1));
}

fn what_is_void_or_durable_is_no_snapshot(live: &dyn Live) {
    let key = key("void");
    for end in [reset("m1"), committed(5)] {
        let (_, mut listener) = live.subscribe(&key);
        for event in [start("m1"), text_start("m1"), text("m1", "x"), end] {
            live.publish(&key, event);
        }
        let (snapshot, _reader) = live.subscribe(&key);
        assert_eq!(snapshot, None);
        assert_eq!(waiting(&mut *listener).len(), 4);
    }
    live.publish(&key, start("m2"));
    live.publish(&key, reset("m1"));
    let (snapshot, _reader) = live.subscribe(&key);
    assert!(snapshot.is_some(), "a late reset of an older response does not affect this one");
    live.publish(&key, committed(6));
}

/// A setting may change while a response streams.
fn a_commit_of_something_else_leaves_no_gap(live: &dyn Live) {
    let key = key("else");
    let (_, mut first) = live.subscribe(&key);
    for event in [start("m1"), text_start("m1"), text("m1", "a"), committed(7)] {
        live.publish(&key, event);
    }
    let (snapshot, mut between) = live.subscribe(&key);
    assert_eq!(snapshot, None);
    live.publish(&key, text("m1", "b"));
    let (snapshot, _after) = live.subscribe(&key);
    assert_eq!(joined_text(&snapshot.unwrap().content), "ab");
    assert_eq!(waiting(&mut *first).last(), Some(&text("m1", "b")));
    assert_eq!(waiting(&mut *between), [], "no delta of a response whose start it missed");
    live.publish(&key, committed(8));
    live.publish(&key, start("m2"));
    assert_eq!(waiting(&mut *between), [committed(8), start("m2")]);
    live.publish(&key, committed(9));
}

fn a_delta_without_its_beginning_is_not_told(live: &dyn Live) {
    let key = key("beginning");
    let (_, mut reader) = live.subscribe(&key);
    live.publish(&key, text("m0", "of a response that started before this process knew it"));
    assert_eq!(waiting(&mut *reader), []);
    live.publish(&key, start("m1"));
    live.publish(&key, text("m0", "late"));
    assert_eq!(waiting(&mut *reader), [start("m1")]);
    live.publish(&key, committed(1));
}

fn a_tool_call_is_shown_as_far_as_it_has_come(live: &dyn Live) {
    let key = key("call");
    let blocks = || live.subscribe(&key).0.unwrap().content;
    let arguments = |block: &Block| {
        let Block::ToolCall(call) = block else { panic!("{block:?}") };
        assert_eq!((call.id.as_str(), call.name.as_str()), ("call_1", "write"));
        call.arguments.text().to_owned()
    };
    live.publish(&key, start("m1"));
    live.publish(&key, delta("m1", AnswerEvent::ThinkingStart { content_index: 0 }));
    let thought = AnswerEvent::ThinkingDelta { content_index: 0, delta: "hm".to_owned() };
    live.publish(&key, delta("m1", thought));
    live.publish(
        &key,
        delta(
            "m1",
            AnswerEvent::ToolcallStart {
                content_index: 1,
                id: "call_1".to_owned(),
                tool_name: "write".to_owned(),
            },
        ),
    );
    assert_eq!(arguments(&blocks()[1]), "{}");
    let part = AnswerEvent::ToolcallDelta {
        content_index: 1,
        delta: r#"{"path":"/a","text":"He"#.to_owned(),
    };
    live.publish(&key, delta("m1", part));
    assert_eq!(arguments(&blocks()[1]), r#"{"path":"/a","text":"He"}"#);

    let whole = crate::agent::content::ToolCall {
        id: "call_1".to_owned(),
        name: "write".to_owned(),
        arguments: RawJson::from_text(r#"{"path": 1.0}"#).unwrap(),
        thought_signature: None,
        extra: Extra::new(),
    };
    let end =
        AnswerEvent::ToolcallEnd { content_index: 1, tool_call: TypedToolCall { call: whole } };
    live.publish(&key, delta("m1", end));
    let thought = AnswerEvent::ThinkingEnd { content_index: 0, content: "hmm".to_owned() };
    live.publish(&key, delta("m1", thought));
    let all = blocks();
    assert_eq!(arguments(&all[1]), r#"{"path": 1.0}"#, "numbers keep their written form");
    let Block::Thinking(thinking) = &all[0] else { panic!("{:?}", all[0]) };
    assert_eq!(thinking.thinking, "hmm");
    live.publish(&key, committed(1));
}
