//! Contract tests that every queue implementation passes.

use std::collections::HashSet;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;

use super::{MESSAGE_BYTES_MAX, Queue, QueueError, QueueMessage};

const NOW: Duration = Duration::ZERO;
const HIDE: Duration = Duration::from_secs(5);

/// Advances time: moves a clock, or waits for a real service.
pub(crate) type PassTime<'a> = dyn Fn(Duration) -> BoxFuture<'static, ()> + Sync + 'a;

/// The result of a [`PassTime`] that has already moved its clock.
pub(crate) fn time_passed() -> BoxFuture<'static, ()> {
    std::future::ready(()).boxed()
}

/// Asserts the contract of the port on an empty queue of that name, and leaves it empty.
pub(crate) async fn assert_queue_contract(queue: &dyn Queue, name: &str, pass: &PassTime<'_>) {
    unknown_queue_is_empty(queue, name).await;
    received_message_is_hidden_until_timeout(queue, name, pass).await;
    only_newest_pop_receipt_is_valid(queue, name, pass).await;
    delayed_message_is_hidden(queue, name, pass).await;
    renewal_hides_from_now(queue, name, pass).await;
    batch_receives_each_message_once(queue, name).await;
    message_texts_are_unchanged(queue, name).await;
}

async fn receive_one(queue: &dyn Queue, name: &str) -> Option<QueueMessage> {
    let mut all = queue.receive(name, 1, HIDE).await.unwrap();
    assert!(all.len() <= 1);
    all.pop()
}

async fn delete(queue: &dyn Queue, name: &str, message: &QueueMessage) {
    queue.delete(name, &message.id, &message.pop_receipt).await.unwrap();
}

fn assert_gone<T: std::fmt::Debug>(answer: &Result<T, QueueError>) {
    assert!(matches!(answer, Err(QueueError::Gone)), "{answer:?}");
}

async fn unknown_queue_is_empty(queue: &dyn Queue, name: &str) {
    assert_eq!(queue.length(name).await.unwrap(), 0);
    assert_eq!(queue.receive(name, 32, HIDE).await.unwrap(), []);
    assert_gone(&queue.delete(name, "no-such-message", "no-such-receipt").await);
    assert_gone(&queue.renew(name, "no-such-message", "no-such-receipt", HIDE).await);
}

async fn received_message_is_hidden_until_timeout(
    queue: &dyn Queue,
    name: &str,
    pass: &PassTime<'_>,
) {
    queue.send(name, "once more".to_owned(), NOW).await.unwrap();
    let mut receipts = HashSet::new();
    for count in 1..=3 {
        let message = receive_one(queue, name).await.expect("message is visible");
        assert_eq!((message.text.as_str(), message.dequeue_count), ("once more", count));
        assert!(receipts.insert(message.pop_receipt.clone()), "each receive has its own receipt");
        assert!(message.inserted_at < message.next_visible_at);
        assert!(message.next_visible_at < message.expires_at);
        assert_eq!(receive_one(queue, name).await, None, "message is hidden");
        assert_eq!(queue.length(name).await.unwrap(), 1, "a hidden message counts");
        pass(HIDE).await;
    }
    let message = receive_one(queue, name).await.unwrap();
    delete(queue, name, &message).await;
    pass(HIDE).await;
    assert_eq!(receive_one(queue, name).await, None, "a deleted message does not return");
    assert_eq!(queue.length(name).await.unwrap(), 0);
    assert_gone(&queue.delete(name, &message.id, &message.pop_receipt).await);
}

async fn only_newest_pop_receipt_is_valid(queue: &dyn Queue, name: &str, pass: &PassTime<'_>) {
    queue.send(name, "held".to_owned(), NOW).await.unwrap();
    let first = receive_one(queue, name).await.unwrap();
    pass(HIDE).await;
    let second = receive_one(queue, name).await.unwrap();
    assert_eq!(first.id, second.id);
    assert_gone(&queue.delete(name, &first.id, &first.pop_receipt).await);
    assert_gone(&queue.renew(name, &first.id, &first.pop_receipt, HIDE).await);
    assert_gone(&queue.delete(name, &first.id, "").await);

    let renewed = queue.renew(name, &second.id, &second.pop_receipt, HIDE).await.unwrap();
    assert_ne!(renewed, second.pop_receipt);
    assert_gone(&queue.delete(name, &second.id, &second.pop_receipt).await);
    queue.delete(name, &second.id, &renewed).await.unwrap();

    queue.send(name, "late".to_owned(), NOW).await.unwrap();
    let late = receive_one(queue, name).await.unwrap();
    pass(HIDE).await;
    // Visible again, but not received again: the work is done and need not be repeated.
    delete(queue, name, &late).await;
    assert_eq!(receive_one(queue, name).await, None);
}

async fn delayed_message_is_hidden(queue: &dyn Queue, name: &str, pass: &PassTime<'_>) {
    queue.send(name, "later".to_owned(), HIDE * 2).await.unwrap();
    assert_eq!(receive_one(queue, name).await, None);
    assert_eq!(queue.length(name).await.unwrap(), 1);
    pass(HIDE).await;
    assert_eq!(receive_one(queue, name).await, None, "half of the delay is left");
    pass(HIDE).await;
    let message = receive_one(queue, name).await.expect("message is visible after its delay");
    assert_eq!(message.dequeue_count, 1);
    delete(queue, name, &message).await;
}

async fn renewal_hides_from_now(queue: &dyn Queue, name: &str, pass: &PassTime<'_>) {
    queue.send(name, "long work".to_owned(), NOW).await.unwrap();
    let message = receive_one(queue, name).await.unwrap();
    let mut receipt = message.pop_receipt.clone();
    for _ in 0..3 {
        pass(HIDE * 3 / 5).await;
        assert_eq!(receive_one(queue, name).await, None, "a renewed message stays hidden");
        receipt = queue.renew(name, &message.id, &receipt, HIDE).await.unwrap();
    }
    queue.renew(name, &message.id, &receipt, NOW).await.unwrap();
    let again =
        receive_one(queue, name).await.expect("a renewal of zero makes the message visible");
    assert_eq!(again.dequeue_count, 2, "a renewal is no receive");
    delete(queue, name, &again).await;
}

async fn batch_receives_each_message_once(queue: &dyn Queue, name: &str) {
    for number in 0..10 {
        queue.send(name, number.to_string(), NOW).await.unwrap();
    }
    assert_eq!(queue.length(name).await.unwrap(), 10);
    let mut seen = HashSet::new();
    for expected in [4, 4, 2, 0] {
        let all = queue.receive(name, 4, HIDE).await.unwrap();
        assert_eq!(all.len(), expected);
        for message in all {
            assert!(seen.insert(message.text.clone()), "{} was received twice", message.text);
            delete(queue, name, &message).await;
        }
    }
    assert_eq!(queue.length(name).await.unwrap(), 0);
}

async fn message_texts_are_unchanged(queue: &dyn Queue, name: &str) {
    let longest = "x".repeat(MESSAGE_BYTES_MAX);
    // Escaping makes this text up to six times as long.
    let markup = "<\"&'>".repeat(MESSAGE_BYTES_MAX / 5);
    let wide = "\u{1f600}".repeat(MESSAGE_BYTES_MAX / 4);
    for text in [
        "",
        "{\"a\":\"ü <&> \u{1f600}\"}",
        "  two\n lines ",
        "'; DROP TABLE messages; --",
        "line\r\nend\r \t\u{7f}\u{85}\u{2028}\u{fffd}",
        "&amp; &#13; <![CDATA[x]]>",
        &longest,
        &markup,
        &wide,
    ] {
        queue.send(name, text.to_owned(), NOW).await.unwrap();
        let message = receive_one(queue, name).await.unwrap();
        assert_eq!(message.text, text);
        delete(queue, name, &message).await;
    }
    let refused = queue.send(name, format!("{longest}x"), NOW).await;
    assert!(matches!(refused, Err(QueueError::TooLarge(bytes)) if bytes == MESSAGE_BYTES_MAX + 1));
    for bad in ['\0', '\u{b}', '\u{1b}', '\u{fffe}', '\u{ffff}'] {
        let refused = queue.send(name, format!("x{bad}"), NOW).await;
        assert!(
            matches!(refused, Err(QueueError::BadCharacter(character)) if character == bad),
            "{bad:?}"
        );
    }
    assert_eq!(queue.length(name).await.unwrap(), 0);
}
