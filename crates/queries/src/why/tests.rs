//! Tests of the sentence and the hints of each cause.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use serde_json::{Value, json};

use crate::why::*;

/// Epoch milliseconds of a time in seconds after 2027-01-15 08:00 UTC.
fn epoch_ms(seconds: u64) -> u64 {
    1_800_000_000_000 + seconds * 1_000
}

/// A head that was written at 08:00, with these members.
fn head(members: Value) -> Head {
    let mut head = json!({
        "schema": 1, "minReader": 1, "tenant": "t", "user": "u", "conversationId": "c",
        "incarnation": "0a1b2c3d", "commitId": "k", "revision": 1, "phase": {"owed": "idle"},
        "seq": 9, "eventSeq": 9, "turn": 2, "epoch": 4, "agent": "clerk",
        "createdAt": epoch_ms(0), "updatedAt": epoch_ms(0),
    });
    let Value::Object(members) = members else { panic!("{members}") };
    head.as_object_mut().unwrap().extend(members);
    serde_json::from_str(&head.to_string()).unwrap()
}

/// Facts one minute later.
fn facts(members: Value) -> WhyFacts {
    let tools = vec!["look".to_owned(), "pay".to_owned()];
    let head = head(members);
    let has_failed = head.prompts.last().is_some_and(|last| last.state == PromptState::Failed);
    WhyFacts {
        head,
        inbox: Vec::new(),
        tools,
        lease_holder: None,
        now: Timestamp(epoch_ms(60)),
        last_error: None,
        leaf: LeafFacts { can_continue: true, has_failed, before_failure: None },
        incomplete: None,
        agent_problem: None,
        model_problem: None,
        is_service_stopped: false,
    }
}

fn with_item(mut facts: WhyFacts, accepted: u64, body: Value) -> WhyFacts {
    let id = format!("in_{}", facts.inbox.len());
    let mut item = json!({"inputId": id, "acceptedAt": epoch_ms(accepted)});
    item["body"] = body;
    facts.inbox.push(serde_json::from_str(&item.to_string()).unwrap());
    facts
}

fn prompt(when_idle: &str) -> Value {
    json!({"prompt": {"promptId": "pr_9", "user": "u", "whenIdle": when_idle, "input": "x", "visible": true, "source": "user"}})
}

fn held_prompt() -> Value {
    prompt("hold")
}

fn prompt_span() -> Value {
    json!({"id": "pr_1", "fromSeq": 1, "user": "u", "rounds": 1, "isTurnOpen": true})
}

/// A running prompt, with that phase and these members.
fn running(phase: Value, members: Value) -> WhyFacts {
    let mut whole = json!({"prompt": prompt_span(), "due": epoch_ms(0)});
    whole["phase"] = phase;
    let Value::Object(members) = members else { panic!("{members}") };
    whole.as_object_mut().unwrap().extend(members);
    facts(whole)
}

fn calls_phase(first: Value, second: Value) -> Value {
    let mut calls = json!({"owed": "calls", "answer": 5, "calls": [{}, {}]});
    calls["calls"][0]["status"] = first;
    calls["calls"][1]["status"] = second;
    calls
}

fn started() -> Value {
    json!({"is": "started", "effectId": "tw_1", "effect": "write", "onUnknown": "ask", "fingerprint": "f", "until": epoch_ms(30)})
}

fn ready() -> Value {
    json!({"is": "ready"})
}

fn request_json(kind: &str) -> Value {
    json!({
        "id": "rq_1", "kind": kind, "title": "May it?", "reason": "Because.", "promptId": "pr_1", "tool": "pay",
        "requestedAt": "2027-01-15T08:00:10Z", "requestedBy": "u", "expiresAt": "2027-01-16T08:00:00Z", "approvers": ["owner", "link"],
        "budget": {"level": "prompt", "unit": "tokens", "set": 1000, "limit": 1000, "used": 1200},
    })
}

/// An open request, for which its two calls wait.
fn awaiting_decision(kind: &str) -> WhyFacts {
    let waits = json!({"is": "waiting", "on": {"kind": "request", "requestId": "rq_1"}});
    running(calls_phase(waits.clone(), waits), json!({"requests": [request_json(kind)]}))
}

fn model_phase() -> Value {
    json!({"owed": "model", "attempt": 1})
}

fn lease_json(until: u64) -> Value {
    json!({"claim": {"worker": "w1", "epoch": 4, "until": epoch_ms(until)}})
}

fn deferred(behind: &str) -> WhyFacts {
    let phase = json!({"owed": "model", "attempt": 1, "notBefore": epoch_ms(90)});
    running(phase, json!({"putOff": {"behind": behind, "until": epoch_ms(90)}}))
}

fn paused(on: &str) -> WhyFacts {
    running(
        model_phase(),
        json!({"brake": {"on": on, "since": epoch_ms(20), "lookAt": epoch_ms(80)}}),
    )
}

fn waiting_call(on: Value) -> WhyFacts {
    let mut waiting = json!({"is": "waiting"});
    waiting["on"] = on;
    running(calls_phase(waiting, json!({"is": "done", "result": 6})), json!({}))
}

fn one_hour_later(mut facts: WhyFacts) -> WhyFacts {
    facts.now = Timestamp(epoch_ms(3_600));
    facts
}

fn all_causes() -> Vec<WhyFacts> {
    let completed =
        json!({"prompts": [{"id": "pr_1", "state": "completed", "fromSeq": 1, "toSeq": 8}]});
    let summary = json!({"owed": "summary", "attempt": 1, "reason": "threshold"});
    let retried = json!({"owed": "model", "attempt": 2, "notBefore": epoch_ms(64)});
    let retried_summary =
        json!({"owed": "summary", "attempt": 3, "notBefore": epoch_ms(64), "reason": "threshold"});
    let decision = json!({"decision": {"requestId": "rq_1", "decision": "approve", "decidedBy": "u", "decidedAt": "2027-01-15T08:00:20Z"}});
    let mut suspect_under_way = lease_json(100);
    suspect_under_way["claims"] = json!(2);
    let mut in_memory = running(model_phase(), json!({}));
    in_memory.lease_holder = Some((WorkerId::new("w2"), Timestamp(epoch_ms(100))));
    vec![
        facts(json!({})),
        facts(completed),
        with_item(facts(json!({})), 30, held_prompt()),
        with_item(with_item(facts(json!({})), 30, prompt("start")), 40, prompt("start")),
        one_hour_later(with_item(facts(json!({})), 30, prompt("start"))),
        with_item(facts(json!({})), 30, json!({"command": {"name": "later"}})),
        facts(json!({"minReader": 99})),
        running(model_phase(), json!({})),
        running(retried.clone(), lease_json(100)),
        running(model_phase(), lease_json(100)),
        in_memory,
        one_hour_later(running(model_phase(), lease_json(100))),
        running(retried, json!({})),
        running(retried_summary, json!({})),
        running(summary.clone(), json!({})),
        running(summary, lease_json(100)),
        running(model_phase(), json!({"claims": 3, "due": epoch_ms(68)})),
        running(
            model_phase(),
            json!({"claims": 2, "suspicion": {"isolatedDeaths": 1}, "due": epoch_ms(68)}),
        ),
        running(
            model_phase(),
            json!({"suspicion": {"isolatedDeaths": 2, "retryAt": epoch_ms(90)}, "due": epoch_ms(68)}),
        ),
        running(calls_phase(started(), ready()), suspect_under_way),
        running(calls_phase(started(), ready()), json!({"claims": 3, "due": epoch_ms(68)})),
        running(calls_phase(ready(), ready()), json!({})),
        running(calls_phase(started(), ready()), lease_json(100)),
        one_hour_later(running(calls_phase(started(), ready()), lease_json(100))),
        running(calls_phase(ready(), ready()), lease_json(100)),
        awaiting_decision("tool"),
        awaiting_decision("outcome"),
        awaiting_decision("question"),
        with_item(awaiting_decision("tool"), 20, decision),
        running(model_phase(), json!({"requests": [request_json("budget")]})),
        with_item(running(model_phase(), json!({})), 20, json!({"abort": {"promptId": "pr_1"}})),
        deferred("rate"),
        deferred("budget_in_use"),
        deferred("books"),
        paused("agent:clerk"),
        paused("tool:pay"),
        paused("*"),
    ]
}

#[test]
fn waits_of_no_version_need_a_newer_one() {
    for on in [
        json!({"kind": "conversation", "conversationId": "other"}),
        json!({"kind": "callback", "token": "x"}),
    ] {
        let view = build_view(&waiting_call(on));
        assert_eq!(view.waits_for, WaitsFor::NewerVersion, "{}", view.why);
    }
}

#[test]
fn each_cause_has_its_own_sentence() {
    let views: Vec<WhyView> = all_causes().iter().map(build_view).collect();
    let mut text = String::new();
    for view in &views {
        let waits_for = serde_json::to_value(view.waits_for).unwrap();
        let _ = writeln!(text, "{}: {}", waits_for.as_str().unwrap(), view.why);
    }
    insta::assert_snapshot!(text, @r"
    nothing: No work is pending: the conversation has had no prompt; it last changed at 2027-01-15T08:00:00.000Z.
    nothing: No work is pending: the last prompt was completed at 2027-01-15T08:00:00.000Z.
    next_prompt: No prompt is running: 1 input has been held for the next prompt since 2027-01-15T08:00:30.000Z.
    nudge: 2 inputs have been pending since 2027-01-15T08:00:30.000Z: no worker has taken the lease yet.
    nudge: 1 input has been pending since 2027-01-15T08:00:30.000Z: no worker has taken the lease yet. That is overdue.
    newer_version: The conversation has waited for a newer version of Turnwheel since 2027-01-15T08:00:00.000Z: this version cannot process its pending work.
    newer_version: The conversation has waited for a newer version of Turnwheel since 2027-01-15T08:00:00.000Z: this version cannot process its pending work.
    nudge: A model call has been pending since 2027-01-15T08:00:00.000Z: no worker has taken the lease yet.
    model: A worker has been calling the model (attempt 2) since 2027-01-15T08:00:00.000Z.
    model: A worker has been calling the model since 2027-01-15T08:00:00.000Z.
    model: A worker has been calling the model since 2027-01-15T08:00:00.000Z.
    take_over: The worker stopped and its lease expired at 2027-01-15T08:01:40.000Z: the model response is pending until another worker takes over. That is overdue.
    retry: The model call failed at 2027-01-15T08:00:00.000Z; attempt 2 is due at 2027-01-15T08:01:04.000Z.
    retry: The summary failed at 2027-01-15T08:00:00.000Z; attempt 3 is due at 2027-01-15T08:01:04.000Z.
    nudge: A summary of the conversation has been pending since 2027-01-15T08:00:00.000Z: no worker has taken the lease yet.
    summary: A worker has been summarising the conversation since 2027-01-15T08:00:00.000Z.
    back_off: The worker process died 3 times while it ran this step: the model response is pending; it is retried in isolation at 2027-01-15T08:01:08.000Z.
    back_off: The worker process died twice while it ran this step beside others and once while it ran this step alone (the prompt fails after 3 of these): the model response is pending; it is retried in isolation at 2027-01-15T08:01:08.000Z.
    back_off: The worker process died twice while it ran this step alone (the prompt fails after 3 of these): the model response is pending; it is retried in isolation at 2027-01-15T08:01:30.000Z.
    tools: A worker has been running `look` since 2027-01-15T08:00:00.000Z, in isolation, because the worker process died twice while it ran this step.
    back_off: The worker process died 3 times while it ran this step: the result of `look`, `pay` is pending; it is retried in isolation at 2027-01-15T08:01:08.000Z.
    nudge: The result of `look`, `pay` has been pending since 2027-01-15T08:00:00.000Z: no worker has taken the lease yet.
    tools: A worker has been running `look` since 2027-01-15T08:00:00.000Z.
    take_over: The worker stopped and its lease expired at 2027-01-15T08:01:40.000Z: the result of `look` is pending until another worker takes over. That is overdue.
    worker: A worker has been applying the newest input since 2027-01-15T08:00:00.000Z.
    approval: An approver must decide whether `pay` may run; requested at 2027-01-15T08:00:10.000Z.
    outcome: An approver must settle the outcome of `pay`, whose response was lost; requested at 2027-01-15T08:00:10.000Z.
    answer: An approver must reply to a question of an extension; requested at 2027-01-15T08:00:10.000Z.
    nudge: A decision or late result has been pending since 2027-01-15T08:00:20.000Z: no worker has taken the lease yet.
    budget: The budget of this prompt is used up: 1200 of 1000 tokens; an approver must decide whether to extend it; requested at 2027-01-15T08:00:10.000Z.
    nudge: An abort has been pending since 2027-01-15T08:00:20.000Z: no worker has taken the lease yet.
    rate: The owner's model calls have been at the limit of TURNWHEEL_RATE_LIMITS since 2027-01-15T08:00:00.000Z; the next call is due at 2027-01-15T08:01:30.000Z.
    budget_in_use: Running model calls have reserved the rest of a budget since 2027-01-15T08:00:00.000Z; the next check is due at 2027-01-15T08:01:30.000Z.
    books: The tenant's usage ledger has been unavailable since 2027-01-15T08:00:00.000Z, so no model call is made; the next check is due at 2027-01-15T08:01:30.000Z.
    paused: The agent `clerk` is paused by TURNWHEEL_PAUSED: the conversation's work has been kept pending since 2027-01-15T08:00:20.000Z.
    paused: The tool `pay` is paused by TURNWHEEL_PAUSED: the conversation's work has been kept pending since 2027-01-15T08:00:20.000Z.
    paused: Everything is paused by TURNWHEEL_PAUSED: the conversation's work has been kept pending since 2027-01-15T08:00:20.000Z.
    ");
    let names: BTreeSet<String> =
        views.iter().map(|view| json!(view.waits_for).to_string()).collect();
    assert_eq!(names.len(), 19, "every variant must occur: {names:?}");
    let sentences: BTreeSet<&str> = views.iter().map(|view| view.why.as_str()).collect();
    // A lease in memory reads like one in the head, and a newer version is needed for a head and
    // for an inbox item alike.
    assert_eq!(sentences.len(), views.len() - 2);
}

#[test]
fn unblock_hints_name_the_request_to_send() {
    let hints = |facts: &WhyFacts| build_view(facts).unblock.join("\n");
    insta::assert_snapshot!(hints(&awaiting_decision("tool")), @r"
    POST /api/conversations/c/approvals/rq_1 with approve or reject, by owner or link
    the request expires at 2027-01-16T08:00:00.000Z
    ");
    insta::assert_snapshot!(hints(&paused("tool:pay")), @r"
    remove `tool:pay` from TURNWHEEL_PAUSED: it continues within 90 seconds
    POST /api/conversations/c/abort ends the prompt
    ");
    insta::assert_snapshot!(hints(&running(model_phase(), lease_json(100))), @r"
    the worker finishes, or its lease expires and another worker takes over after 2027-01-15T08:01:40.000Z
    POST /api/conversations/c/abort ends the prompt
    ");
    for facts in all_causes() {
        assert!(!build_view(&facts).unblock.is_empty(), "{facts:?}");
    }
}

/// The requests of a view, one a line.
fn requests(facts: &WhyFacts) -> String {
    let requests = build_view(facts).requests;
    let lines: Vec<String> = requests
        .iter()
        .map(|it| format!("{} {} {} {}", it.method, it.path, it.body, it.effect))
        .collect();
    lines.join("\n")
}

#[test]
fn why_has_the_requests_with_their_bodies() {
    insta::assert_snapshot!(requests(&awaiting_decision("tool")), @r#"
    POST /api/conversations/c/approvals/rq_1 {"decision":"approve"} approves it
    POST /api/conversations/c/approvals/rq_1 {"decision":"reject"} rejects it
    POST /api/conversations/c/abort {} ends the prompt
    "#);
    insta::assert_snapshot!(requests(&awaiting_decision("budget")), @r#"
    POST /api/conversations/c/approvals/rq_1 {"decision":"approve","value":2400} approves it
    POST /api/conversations/c/approvals/rq_1 {"decision":"reject"} rejects it
    POST /api/conversations/c/abort {} ends the prompt
    "#);
    insta::assert_snapshot!(requests(&awaiting_decision("outcome")), @r#"
    POST /api/conversations/c/approvals/rq_1 {"decision":"happened"} records that the call had its effect
    POST /api/conversations/c/approvals/rq_1 {"decision":"did_not_happen"} records that the call had no effect
    POST /api/conversations/c/approvals/rq_1 {"decision":"again"} sends the call again
    POST /api/conversations/c/abort {} ends the prompt
    "#);
    let failed = json!({"prompts": [{"id": "pr_1", "state": "failed", "fromSeq": 1, "toSeq": 8}]});
    insta::assert_snapshot!(requests(&facts(failed.clone())), @r#"
    POST /api/conversations/c/continue {} retries the failed prompt
    POST /api/conversations/c/prompts {"input":"TEXT"} starts the next prompt
    "#);
    let hints = build_view(&facts(failed)).unblock;
    assert_eq!(hints[0], "POST /api/conversations/c/continue retries the failed prompt");
}

/// The commands of a view, one a line.
fn commands(facts: &WhyFacts) -> String {
    let requests = build_view(facts).requests;
    requests.into_iter().filter_map(|it| it.command).collect::<Vec<_>>().join("\n")
}

#[test]
fn each_request_of_why_has_a_command() {
    insta::assert_snapshot!(commands(&awaiting_decision("budget")), @r"
    turnwheel approve rq_1 --value 2400
    turnwheel reject rq_1
    turnwheel abort c
    ");
    insta::assert_snapshot!(commands(&awaiting_decision("outcome")), @r"
    turnwheel decide rq_1 happened
    turnwheel decide rq_1 did_not_happen
    turnwheel decide rq_1 again
    turnwheel abort c
    ");
    let failed = json!({"prompts": [{"id": "pr_1", "state": "failed", "fromSeq": 1, "toSeq": 8}]});
    let mut failed = facts(failed);
    failed.leaf.before_failure = Some("root".to_owned());
    insta::assert_snapshot!(commands(&failed), @r"
    turnwheel continue c
    turnwheel send --conversation c TEXT
    turnwheel send --conversation c --at root TEXT
    ");
    for facts in all_causes() {
        let requests = build_view(&facts).requests;
        assert!(requests.iter().all(|it| it.command.is_some()), "{requests:?}");
    }
}

#[test]
fn used_up_budget_of_a_prompt_never_has_room_again() {
    let hints = |budget: Value| {
        let mut request = request_json("budget");
        request["budget"] = budget;
        let waits = json!({"is": "waiting", "on": {"kind": "request", "requestId": "rq_1"}});
        let metering = json!({"lookAt": epoch_ms(90)});
        let members = json!({"requests": [request], "books": metering});
        build_view(&running(calls_phase(waits.clone(), waits), members)).unblock.join("\n")
    };
    let of_prompt =
        hints(json!({"level": "prompt", "unit": "tokens", "set": 1, "limit": 1, "used": 2}));
    assert!(!of_prompt.contains("room again"), "{of_prompt}");
    assert!(
        of_prompt.contains("with approve (with the new limit as `value`) or reject")
            || of_prompt.contains("with approve or reject (with the new limit as `value`)"),
        "{of_prompt}"
    );
    let of_day = hints(
        json!({"level": "user", "period": "day", "span": "2027-01-15", "unit": "tokens", "set": 1, "limit": 1, "used": 2}),
    );
    assert!(
        of_day.contains("once the budget has room again: the next check is due at"),
        "{of_day}"
    );
}

#[test]
fn why_names_the_limit_that_cut_a_response() {
    let done = json!({"prompts": [{"id": "pr_1", "state": "completed", "fromSeq": 1, "toSeq": 8}]});
    let (reason, message) = ("max_output_tokens".to_owned(), "The limit was reached.".to_owned());
    let incomplete = Some(IncompleteDetails { reason, message });
    let view = build_view(&WhyFacts { incomplete, ..facts(done) });
    assert_eq!(
        view.why,
        "No work is pending: the last prompt was completed at 2027-01-15T08:00:00.000Z, but its last response is incomplete (`max_output_tokens`): The limit was reached."
    );
    assert!(view.unblock[0].contains("`maxOutputTokens`"), "{:?}", view.unblock);
}

#[test]
fn why_names_error_of_last_failure() {
    let error = Some("HTTP 401: wrong key".to_owned());
    let retried = json!({"owed": "model", "attempt": 2, "notBefore": epoch_ms(64)});
    let retried = WhyFacts { last_error: error.clone(), ..running(retried, json!({})) };
    assert_eq!(
        build_view(&retried).why,
        "The model call failed at 2027-01-15T08:00:00.000Z: HTTP 401: wrong key; attempt 2 is due at 2027-01-15T08:01:04.000Z."
    );
    let failed = json!({"prompts": [{"id": "pr_1", "state": "failed", "fromSeq": 1, "toSeq": 8}]});
    let failed = WhyFacts { last_error: error, ..facts(failed) };
    assert_eq!(
        build_view(&failed).why,
        "No work is pending: the last prompt failed at 2027-01-15T08:00:00.000Z: HTTP 401: wrong key."
    );
}

#[test]
fn sentence_names_incomplete_last_response() {
    let completed =
        json!({"prompts": [{"id": "pr_1", "state": "completed", "fromSeq": 1, "toSeq": 8}]});
    let incomplete = Some(IncompleteDetails::empty());
    assert_eq!(
        build_view(&WhyFacts { incomplete, ..facts(completed) }).why,
        "No work is pending: the last prompt was completed at 2027-01-15T08:00:00.000Z, but its last response is incomplete \
         (`empty`): The model ended with neither text nor tool calls: send the request in other words, or use another model."
    );
}

#[test]
fn why_suggests_no_prompt_to_an_unavailable_agent() {
    let problem = Some("there is no agent `clerk`; there are: none".to_owned());
    let view = build_view(&WhyFacts { agent_problem: problem, ..facts(json!({})) });
    assert_eq!(
        view.unblock,
        [
            "repair the agent: there is no agent `clerk`; there are: none; until then every prompt fails"
        ]
    );
}

#[test]
fn why_of_missing_model_names_what_is_accepted() {
    let of = |members: Value| {
        let problem = Some("No model configured for `high`: name a model by its id.".to_owned());
        build_view(&WhyFacts { model_problem: problem, ..facts(members) }).unblock
    };
    let inherited = "No model configured for `high`: name a model by its id; until then only prompts that name a `model` start";
    assert_eq!(of(json!({})), [inherited]);
    let id = facts(json!({})).head.conversation_id;
    assert_eq!(
        of(json!({"settings": {"model": "high"}})),
        [format!(
            "{inherited}, and PATCH /api/conversations/{id} changes the model of its settings"
        )]
    );
}

#[test]
fn why_reports_lost_worker_when_service_is_stopped() {
    let busy = running(calls_phase(started(), ready()), lease_json(100));
    assert!(build_view(&busy).why.starts_with("A worker has been running `look` since"));
    let view = build_view(&WhyFacts { is_service_stopped: true, ..busy });
    assert_eq!(view.waits_for, WaitsFor::TakeOver);
    assert_eq!(
        view.why,
        "The worker process has ended, and no service runs on this data folder: the result of `look` has been pending since 2027-01-15T08:00:00.000Z."
    );
    assert_eq!(
        view.unblock[0],
        "start `turnwheel dev` with this data folder: it continues by itself"
    );
}

#[test]
fn why_state_matches_conversation_state() {
    let state = |facts: &WhyFacts| build_view(facts).state;
    assert_eq!(state(&facts(json!({}))), State::Idle);
    assert_eq!(state(&with_item(facts(json!({})), 30, held_prompt())), State::Idle);
    assert_eq!(state(&with_item(facts(json!({})), 30, prompt("start"))), State::Running);
    assert_eq!(state(&awaiting_decision("tool")), State::WaitingForApproval);
    assert_eq!(state(&paused("*")), State::Running);
}
