//! Tests of certification: correct agents pass, and each kind of defect is reported.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use async_trait::async_trait;

use super::*;
use crate::agent::phase::OnUnknown;
use crate::agent::request::Effect;
use crate::agent::settings::{Settings, ToolExecution};
use crate::extensions::{Block, CallAhead, HookError};
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
        strict: false,
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

/// An agent with one tool per effect, and both settings for an unknown outcome.
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

/// Decides by state in the memory of this process, which no other process has.
#[derive(Debug, Default)]
struct Forgetful(AtomicU32);

#[async_trait]
impl Extension for Forgetful {
    fn name(&self) -> &'static str {
        "forgetful"
    }

    async fn before_tool_call(&self, _call: &CallAhead<'_>) -> Result<Option<Block>, HookError> {
        let is_late = self.0.fetch_add(1, Ordering::SeqCst) >= 5;
        Ok(is_late.then(|| Block { reason: Some("Enough.".to_owned()), terminate: false }))
    }
}

#[tokio::test]
async fn an_extension_that_keeps_its_state_in_memory_is_found_out() {
    let mut order = order(Settings::default(), vec![Arc::new(Forgetful::default())]);
    order.only = Some("answer.after".parse().unwrap());
    let report = certify(&order).await.unwrap();
    assert!(!report.is_ok());
    let text = report.to_string();
    assert!(text.contains("BROKEN"), "{text}");
    let told = "invariant 3 (one winner): the record differs from the run without faults";
    assert!(text.contains(told), "{text}");
    assert!(text.contains("hit the fail point"), "the log is missing: {text}");
    let xml = report.junit();
    assert!(xml.contains("<failure message=\"invariant 3"), "{xml}");
    let json = report.json();
    assert_eq!(json["isOk"], false);
    let runs = json["agents"][0]["runs"].as_array().unwrap();
    let broken = runs.iter().find(|run| run["verdict"] == "broken").unwrap();
    let again = broken["again"].as_str().unwrap();
    // The printed command repeats this run and no other.
    let (command, only) = again.split_once(" --only ").unwrap();
    assert_eq!(command, "turnwheel certify clerk");
    order.only = Some(only.parse().unwrap());
    order.extensions = vec![Arc::new(Forgetful::default())];
    let report = certify(&order).await.unwrap();
    let [run] = report.agents[0].runs.as_slice() else { panic!("{report}") };
    assert_eq!(format!("{}#{}", run.boundary, run.occurrence), only.split_once(':').unwrap().0);
    assert!(matches!(run.verdict, Verdict::Broken { .. }), "{report}");
}

#[tokio::test]
async fn a_call_whose_answer_comes_too_late_is_known_to_be_one() {
    let order = order(Settings::default(), Vec::new());
    let (agent, conversation) = &order.agents[0];
    for (occurrence, tool, told) in [(1, "look", "timed out"), (2, "pay", "did_not_happen")] {
        let cut = Cut { boundary: CALL_BEGINS, occurrence, fault: Fault::TimeOut };
        let play = run::play(&order, (agent, conversation), (Kept::Folder, Some(cut)));
        let outcome = Box::pin(play).await.unwrap();
        assert_eq!(judge::alone(&outcome), Vec::<String>::new());
        assert_eq!(outcome.called[tool], 1, "the tool must run once");
        let record = serde_json::to_string(&outcome.entries).unwrap();
        let is_asked = record.contains("\"kind\":\"outcome\"");
        assert_eq!(is_asked, tool == "pay", "{record}");
        assert_eq!(record.contains(told), tool == "look", "{record}");
    }
}

#[test]
fn runs_are_named_as_they_are_told() {
    for text in ["tool.after", "tool.after#2", "tool.after#2:time-out", "tool.after:kill"] {
        assert_eq!(text.parse::<Only>().unwrap().to_string(), text);
    }
    for (text, why) in [
        ("tool", "there is no fail point `tool`: write one"),
        ("tool.after#0", "`0` is not an occurrence"),
        ("tool.after#x:kill", "`x` is not an occurrence"),
        ("tool.after#1:die", "`die` is not a fault: the faults are kill, take-over,"),
    ] {
        let told = text.parse::<Only>().unwrap_err();
        assert!(told.contains(why), "{told}");
    }
}

#[tokio::test]
async fn a_run_that_there_is_not_is_no_success() {
    let mut order = order(Settings::default(), Vec::new());
    for (only, why) in [
        ("schedule.create", "does not reach schedule.create; it reaches admission.hold-key"),
        ("tool.before#9", "reaches tool.before 5 times"),
        ("model.after#1:time-out", "not every fault can happen there"),
    ] {
        order.only = Some(only.parse().unwrap());
        let report = certify(&order).await.unwrap();
        assert!(!report.is_ok() && report.to_string().contains(why), "{report}");
    }
}

/// Returns another result for each call, or never succeeds.
#[derive(Debug)]
struct Careless(ToolDefinition, AtomicU32);

#[async_trait]
impl RunTool for Careless {
    fn definition(&self) -> &ToolDefinition {
        &self.0
    }

    fn ask(&self, _arguments: &Arguments) -> Option<Ask> {
        None
    }

    async fn call(&self, _arguments: Arguments, _context: ToolContext) -> ToolOutcome {
        if self.0.name == "dead" {
            return ToolOutcome::Failed("no connection".to_owned());
        }
        let number = self.1.fetch_add(1, Ordering::SeqCst);
        ToolOutcome::Returned(ToolResult::text(format!("order {number}")))
    }
}

#[tokio::test]
async fn what_a_person_should_look_at_is_noted() {
    let mut order = order(Settings::default(), Vec::new());
    let careless = |name, effect| {
        let definition = tool((name, effect, OnUnknown::Ask)).definition().clone();
        Arc::new(Careless(definition, AtomicU32::default())) as Arc<dyn RunTool>
    };
    let (agent, conversation) = &mut order.agents[0];
    let agent = Arc::get_mut(agent).unwrap();
    agent.tools = vec![careless("order", Effect::Idempotent), careless("dead", Effect::Read)];
    let file = "- prompt: Go.\n  answers: [{calls: [{tool: order}, {tool: dead}]}]\n";
    *conversation = Conversation::read(file).unwrap();
    order.tools = Tools::Real;
    order.only = Some("tool.after#1:kill".parse().unwrap());
    let report = certify(&order).await.unwrap();
    assert!(report.is_ok(), "no invariant is broken: {report}");
    let text = report.to_string();
    for note in [
        "note: `order` is declared idempotent, and once returned another result for the same call",
        "note: `dead` did not succeed without a fault either",
        "note: the conversation file has too few `answers` to `Go.`",
    ] {
        assert!(text.contains(note), "{text}");
    }
    assert_eq!(report.json()["agents"][0]["notes"].as_array().unwrap().len(), 3);
}

#[test]
fn a_conversation_that_calls_what_the_agent_has_not_is_a_mistake() {
    let order = order(Settings::default(), Vec::new());
    let folder = tempfile::tempdir().unwrap();
    let file = "- prompt: Go.\n  answers: [{calls: [{tool: look}, {tool: loook}]}]\n";
    std::fs::write(folder.path().join("clerk.certify.yaml"), file).unwrap();
    let told = Conversation::of(&order.agents[0].0, folder.path()).unwrap_err();
    assert_eq!(
        told,
        "clerk.certify.yaml: `loook` is not a tool of the agent `clerk`; its tools: look, pay, gated, tell, put"
    );
}

/// Changes the result of the run without faults, and returns the broken invariants.
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
            "invariant 4 (the model response is committed before its tools start): 3 model responses were paid for instead of 2"
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
    assert_eq!(untold, ["invariant 2 (queues are disposable): a notification was not sent"]);
}

#[test]
fn a_conversation_is_read_or_says_what_is_wrong_with_it() {
    let read = Conversation::read(
        "- prompt: Hello\n  decide: reject\n  answers:\n    - say: Hm\n      calls: [{tool: look, arguments: {n: 1}}]\n",
    );
    let prompt = read.unwrap().prompts.remove(0);
    assert_eq!((prompt.answers[0].say.as_str(), prompt.answers[0].calls.len()), ("Hm", 1));
    for (text, why) in [
        ("[]", "it contains no prompt"),
        ("- prompt: a\n- prompt: a\n", "`a` occurs twice"),
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
        notes: vec!["look <here>".to_owned()],
        reached: vec![("tool.after", 2)],
        faultless: Vec::new(),
        missed: None,
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
        <testcase classname="certify.clerk" name="without any fault"><system-out>look &lt;here&gt;</system-out></testcase>
        <testcase classname="certify.clerk" name="tool.after#2 × kill"/>
        <testcase classname="certify.clerk" name="tool.after#2 × late"><skipped message="why�"/></testcase>
        <testcase classname="certify.clerk" name="tool.after#2 × conflict"><failure message="a &lt; b &amp; &quot;c&quot;">a &lt; b &amp; &quot;c&quot;

    one

    again: turnwheel certify --agents 'my agents' clerk --only tool.after#2:conflict</failure></testcase>
      </testsuite>
    </testsuites>
    "#);
    let text = report.to_string();
    let (_, below) = text.split_once("fail points\n").unwrap();
    insta::assert_snapshot!(below, @r#"
      note: look <here>

      fail point  times  kill  take-over  duplicate  late  lost-answer  conflict  two-workers  time-out
      tool.after      2  ok    –          –          –     –            BROKEN    –            –

      tool.after#2 × conflict
        a < b & "c"
          one
        again: turnwheel certify --agents 'my agents' clerk --only tool.after#2:conflict

    1 run ok, 1 broken, 1 not possible; tools: stub.
    "#);
}
