//! Questions of hooks: recorded answers, the first of several questions, places and limits.

use async_trait::async_trait;

use super::*;
use crate::Extension;
use crate::runner::tests::new_context;

#[derive(Debug)]
struct Guard;

#[async_trait]
impl Extension for Guard {
    fn name(&self) -> &'static str {
        "guard"
    }
}

fn context(answers: &[(&str, &str, Answer)]) -> HookContext {
    let mut recorded = Answers::default();
    for (extension, key, answer) in answers {
        let (extension, key) = ((*extension).to_owned(), (*key).to_owned());
        recorded.add(&Asker { extension, key }, answer.clone());
    }
    new_context(Guard).with_questions(&recorded)
}

#[test]
fn recorded_answers_are_returned() {
    let cx = context(&[
        ("guard", "yes", Answer::Confirmation(true)),
        ("guard", "no", Answer::Confirmation(false)),
        ("guard", "colour", Answer::Text("red".to_owned())),
        ("guard", "expired", Answer::Missing(())),
    ]);
    assert_eq!(cx.confirm("yes", "Sure?"), Ok(true));
    assert_eq!(cx.confirm("no", "Sure?"), Ok(false));
    assert_eq!(cx.confirm("expired", "Sure?"), Ok(false));
    assert_eq!(cx.select("colour", "Which?", &["red", "blue"]), Ok(Some("red".to_owned())));
    assert_eq!(cx.select("colour", "Which?", &["green"]), Ok(None), "no longer an option");
    assert_eq!(cx.input("colour", "Which?", None), Ok(Some("red".to_owned())));
    assert_eq!(cx.input("expired", "Which?", None), Ok(None));
    assert!(!cx.has_asked() && cx.take_question().is_none());
}

#[test]
fn first_question_without_an_answer_is_asked() {
    let cx = context(&[("other", "sure", Answer::Confirmation(true))]);
    let error = cx.confirm("sure", "Sure?").unwrap_err();
    assert_eq!(error.to_string(), "the question `sure` has no answer yet");
    cx.input("name", "Name?", None).unwrap_err();
    let question = cx.take_question().unwrap();
    assert_eq!(question.asker, Asker { extension: "guard".to_owned(), key: "sure".to_owned() });
    assert_eq!((question.text.as_str(), question.approvers), ("Sure?", vec!["owner".to_owned()]));
    assert_eq!(question.expires_after, Duration::from_hours(24 * 7));
    assert_eq!(question.schema.text(), r#"{"type":"boolean"}"#);
}

#[test]
fn question_names_approvers_hint_and_options() {
    let hour = Duration::from_hours(1);
    let cx = context(&[]);
    let question = Question::new("Name?").by(["role:Boss", "link"]).within(hour);
    cx.input("name", question, Some("as in the contract")).unwrap_err();
    let question = cx.take_question().unwrap();
    assert_eq!((question.approvers.len(), question.expires_after), (2, hour));
    assert_eq!(
        question.schema.to_value(),
        json!({"type": "string", "maxLength": 1_000, "description": "as in the contract"})
    );
    let nobody: [&str; 0] = [];
    cx.select("colour", Question::new("Which?").by(nobody), &["red", "blue"]).unwrap_err();
    let question = cx.take_question().unwrap();
    assert_eq!(question.approvers, ["owner"]);
    assert_eq!(question.schema.to_value(), json!({"type": "string", "enum": ["red", "blue"]}));
}

#[test]
fn hint_is_shown_without_invisible_characters() {
    let cx = context(&[]);
    cx.input("name", "Name?", Some("as\u{202e} in\u{1b} the\u{2066} contract")).unwrap_err();
    let question = cx.take_question().unwrap();
    assert_eq!(question.schema.to_value()["description"], "as in the contract");
}

#[test]
fn hook_without_questions_names_the_places() {
    let cx = new_context(Guard);
    assert!(!cx.has_ui() && context(&[]).has_ui());
    let error = cx.confirm("sure", "Sure?").unwrap_err().to_string();
    assert!(error.contains("`tool_call`") && error.contains("`session_before_compact`"), "{error}");
    assert!(!cx.has_asked());
}

#[test]
fn limits_are_errors_of_the_hook() {
    let cx = context(&[]);
    let long = "x".repeat(2_049);
    for (outcome, part) in [
        (cx.confirm("", "Sure?").map(|_| None), "the key"),
        (cx.confirm(&long, "Sure?").map(|_| None), "the key"),
        (cx.confirm("sure", long.as_str()).map(|_| None), "the text of a question"),
        (cx.confirm("sure", " ").map(|_| None), "the text of a question"),
        (cx.input("name", "Name?", Some(&long)), "the hint"),
        (cx.select("colour", "Which?", &[] as &[&str]), "the options"),
        (cx.select("colour", "Which?", &["red", "red"]), "the options"),
        (cx.select("colour", "Which?", &["red", " "]), "the options"),
        (cx.select("colour", "Which?", &[&long]), "the options"),
        (cx.select("colour", "Which?", &["red", "r\u{202e}ed"]), "the options"),
        (cx.select("colour", "Which?", &["red", "\u{1b}[8mred"]), "the options"),
        (cx.select("colour", "Which?", &["red", "red\u{2066}"]), "the options"),
        (cx.select("colour", "Which?", &["red", "red\nblue"]), "the options"),
        (cx.confirm("su\u{200b}re", "Sure?").map(|_| None), "the key"),
        (cx.input("name", "Name?", Some("\u{202e}\u{2066}")), "the visible part of the hint"),
    ] {
        let error = outcome.unwrap_err().to_string();
        assert!(error.starts_with(part), "{error}");
    }
    assert!(!cx.has_asked());

    let text = Answer::Text("x".repeat(2_040));
    let cx = context(&[("guard", "one", text.clone())]);
    let error = cx.input("two", "Name?", None).unwrap_err().to_string();
    assert!(error.contains("one too many"), "{error}");
    cx.confirm("sure", "Sure?").unwrap_err();
    assert!(cx.has_asked(), "there is room for a short answer");
}
