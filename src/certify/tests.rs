//! Sound agents certify; what is broken is seen, and said.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use async_trait::async_trait;

use super::*;
use crate::agent::phase::OnUnknown;
use crate::agent::request::Effect;
use crate::agent::settings::{Settings, ToolExecution};
use crate::extensions::{Block, CallAhead};
use crate::tools::{Arguments, Ask, RunTool, ToolContext, ToolDefinition, ToolOutcome, ToolResult};

#[derive(Debug)]
struct Plain(ToolDefinition);

#[async_trait]
impl RunTool for Plain {
    fn definition(&self) -> &ToolDefinition {
        &self.0
    }

    fn ask(&self, _arguments: &Arguments) -> Option<Ask> {
        (self.0.name == "gated").then(|| Ask {
            reason: "Gated".to_owned(),
            approvers: vec!["role:boss".to_owned()],
            not_requester: true,
            expires_after: Duration::from_hours(1),
        })
    }

    async fn call(&self, _arguments: Arguments, _context: ToolContext) -> ToolOutcome {
        ToolOutcome::Returned(ToolResult::text("done"))
    }
}

fn tool((name, effect, on_unknown): (&str, Effect, OnUnknown)) -> Arc<dyn RunTool> {
    Arc::new(Plain(ToolDefinition {
        name: name.to_owned(),
        label: name.to_owned(),
        description: String::new(),
        parameters: serde_json::json!({"type": "object"}),
        effect,
        on_unknown,
        timeout: Duration::from_secs(30),
        revision: "1".to_owned(),
    }))
}

/// An agent with a tool of each effect, one that asks and one that does not when its outcome is unknown.
fn order(settings: Settings, extensions: Vec<Arc<dyn Extension>>) -> Order {
    let tools = [
        ("look", Effect::Read, OnUnknown::Ask),
        ("pay", Effect::Write, OnUnknown::Ask),
        ("gated", Effect::Write, OnUnknown::Ask),
        ("tell", Effect::Write, OnUnknown::Tell),
        ("put", Effect::Idempotent, OnUnknown::Ask),
    ];
    let agent = Agent {
        name: "clerk".to_owned(),
        description: String::new(),
        settings,
        instructions: "Be good.".to_owned(),
        tools: tools.map(tool).to_vec(),
        response_schema: None,
        revision: "r".to_owned(),
        session_id: None,
    };
    let conversation = Conversation::of(&agent, std::path::Path::new("nowhere")).unwrap();
    Order {
        agents: vec![(Arc::new(agent), conversation)],
        extensions,
        tools: Tools::Stub,
        harmless: BTreeSet::new(),
        only: None,
        command: "turnwheel certify".to_owned(),
    }
}

#[tokio::test]
async fn a_sound_agent_certifies_whatever_happens_at_any_boundary() {
    let report = certify(&order(Settings::default(), Vec::new())).await.unwrap();
    assert!(report.is_ok(), "{report}");
    let [agent] = report.agents.as_slice() else { panic!("{report}") };
    assert_eq!((agent.answers, agent.called.len(), agent.not_called.len()), (2, 5, 0));
    for fault in Fault::ALL {
        let runs = agent.runs.iter().filter(|run| run.fault == fault);
        let ok = runs.filter(|run| run.verdict == Verdict::Ok).count();
        let least = if fault == Fault::TimeOut { agent.called.len() } else { 40 };
        assert!(ok >= least, "{}: {ok} runs", fault.as_str());
    }
    for needed in [
        "admission.accept",
        "take-in.after",
        "model.after",
        "answer.before",
        "tool.before",
        "tool.after",
        "result.after",
        "notice.after",
        "admission.decided",
        "release.after",
        "settle.after",
    ] {
        assert!(
            agent.reached.iter().any(|(boundary, _)| *boundary == needed),
            "{needed}: {report}"
        );
    }
}

#[tokio::test]
async fn calls_that_run_at_once_certify_as_well() {
    let settings = Settings {
        tool_execution: Some(ToolExecution::Parallel),
        parallel_tools_max: Some(3),
        ..Settings::default()
    };
    let report = certify(&order(settings, Vec::new())).await.unwrap();
    assert!(report.is_ok(), "{report}");
}

/// Decides by what this process has seen, which no other process knows.
#[derive(Debug, Default)]
struct Forgetful(AtomicU32);

#[async_trait]
impl Extension for Forgetful {
    fn name(&self) -> &'static str {
        "forgetful"
    }

    async fn before_tool_call(&self, _call: &CallAhead<'_>) -> Option<Block> {
        let is_late = self.0.fetch_add(1, Ordering::SeqCst) >= 5;
        is_late.then(|| Block { reason: Some("Enough.".to_owned()), terminate: false })
    }
}

#[tokio::test]
async fn an_extension_that_keeps_its_state_in_memory_is_found_out() {
    let order = order(Settings::default(), vec![Arc::new(Forgetful::default())]);
    let report = certify(&order).await.unwrap();
    assert!(!report.is_ok());
    let text = report.to_string();
    assert!(text.contains("BROKEN"), "{text}");
    let told = "invariant 3 (one winner): the record is not that of the faultless run";
    assert!(text.contains(told), "{text}");
    assert!(text.contains("stands at the boundary"), "the story is told: {text}");
    let xml = report.junit();
    assert!(xml.contains("<failure message=\"invariant 3"), "{xml}");
    assert_eq!(report.json()["isOk"], false);
}

/// The faultless run, as if more had been done than was.
async fn tampered(with: impl FnOnce(&mut Outcome)) -> Vec<String> {
    let order = order(Settings::default(), Vec::new());
    let (agent, conversation) = &order.agents[0];
    let mut outcome =
        Box::pin(run::play(&order, (agent, conversation), (Kept::Folder, None))).await.unwrap();
    assert_eq!(judge::alone(&outcome), Vec::<String>::new());
    let good = Record::of(&outcome);
    with(&mut outcome);
    judge::beside(&outcome, &good, Fault::Late)
}

#[tokio::test]
async fn what_is_broken_has_a_name() {
    let twice = tampered(|outcome| {
        outcome.done.values_mut().for_each(|times| *times = 2);
    });
    let twice = twice.await;
    assert!(twice.iter().any(|what| what.ends_with("a write was done twice")), "{twice:?}");
    let paid = tampered(|outcome| outcome.answers += 1).await;
    assert_eq!(
        paid,
        [
            "invariant 4 (the answer is committed before its tools start): 3 answers were paid for instead of 2"
        ]
    );
    let lost = tampered(|outcome| {
        outcome.events.remove(1);
    });
    assert_eq!(
        lost.await,
        ["invariant 10 (events have consecutive numbers): event numbers have gaps"]
    );
    let untold = tampered(|outcome| outcome.untold = 1).await;
    assert_eq!(untold, ["invariant 2 (queues are disposable): a notice was told to nobody"]);
}

#[test]
fn a_conversation_is_read_or_says_what_is_wrong_with_it() {
    let read = Conversation::read(
        "- prompt: Hello\n  decide: reject\n  answers:\n    - say: Hm\n      calls: [{tool: look, arguments: {n: 1}}]\n",
    );
    let prompt = read.unwrap().prompts.remove(0);
    assert_eq!((prompt.answers[0].say.as_str(), prompt.answers[0].calls.len()), ("Hm", 1));
    for (text, why) in [
        ("[]", "there is no prompt in it"),
        ("- prompt: a\n- prompt: a\n", "`a` is said twice"),
        ("- say: a\n", "expected a list of `prompt: …`"),
        ("prompt: a\n", "expected a list of `prompt: …`"),
    ] {
        let told = Conversation::read(text).unwrap_err();
        assert!(told.contains(why), "{told}");
    }
}

#[test]
fn a_report_is_a_table_or_plain_xml() {
    let run = |fault, verdict| Run { boundary: "tool.after", occurrence: 2, fault, verdict };
    let what = vec!["a < b & \"c\"".to_owned()];
    let certified = Certified {
        agent: "clerk".to_owned(),
        prompts: 1,
        answers: 2,
        called: BTreeMap::new(),
        not_called: Vec::new(),
        reached: vec![("tool.after", 2)],
        faultless: Vec::new(),
        runs: vec![
            run(Fault::Kill, Verdict::Ok),
            run(Fault::Late, Verdict::Skipped("why\u{1}")),
            run(Fault::Conflict, Verdict::Broken { what, story: vec!["one".to_owned()] }),
        ],
    };
    let command = "turnwheel certify --agents 'my agents'".to_owned();
    let report = Report { tools: "stub", command, agents: vec![certified] };
    insta::assert_snapshot!(report.junit(), @r#"
    <?xml version="1.0" encoding="UTF-8"?>
    <testsuites name="turnwheel certify">
      <testsuite name="clerk" tests="4" failures="1" skipped="1">
        <testcase classname="certify.clerk" name="without any fault"/>
        <testcase classname="certify.clerk" name="tool.after#2 × kill"/>
        <testcase classname="certify.clerk" name="tool.after#2 × late"><skipped message="why�"/></testcase>
        <testcase classname="certify.clerk" name="tool.after#2 × conflict"><failure message="a &lt; b &amp; &quot;c&quot;">a &lt; b &amp; &quot;c&quot;

    one</failure></testcase>
      </testsuite>
    </testsuites>
    "#);
    let text = report.to_string();
    let (_, below) = text.split_once("boundaries\n").unwrap();
    insta::assert_snapshot!(below, @r#"

      boundary    times  kill  duplicate  late  lost-answer  conflict  two-workers
      tool.after      2  ok    –          –     –            BROKEN    –

      tool.after#2 × conflict
        a < b & "c"
          one

    1 run ok, 1 broken, 1 that cannot be; tools: stub.
    "#);
}
