//! Tests of certification: correct agents pass, and each kind of defect is reported.

mod conversation;
mod extensions;
mod mcp;

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use async_trait::async_trait;

use super::*;
use turnwheel_conversation::phase::OnUnknown;
use turnwheel_conversation::request::Effect;
use turnwheel_conversation::settings::{LoopKind, ToolExecution};
use turnwheel_extensions::{CallBlock, HookContext, HookError, PendingToolCall, ToolCallDecision};
use turnwheel_tools::{
    ApprovalRequirement, Arguments, CallableTool, ToolContext, ToolDefinition, ToolOutcome,
    ToolResult,
};

#[derive(Debug)]
struct PlainTool(ToolDefinition);

#[async_trait]
impl CallableTool for PlainTool {
    fn definition(&self) -> &ToolDefinition {
        &self.0
    }

    fn required_approval(&self, _arguments: &Arguments) -> Option<ApprovalRequirement> {
        (self.0.name == "gated").then(|| ApprovalRequirement {
            reason: "Gated".to_owned(),
            approvers: vec!["role:boss".to_owned()],
            is_requester_excluded: true,
            expires_after: Duration::from_hours(1),
        })
    }

    async fn call(&self, _arguments: Arguments, _context: ToolContext) -> ToolOutcome {
        ToolOutcome::Returned(ToolResult::text("done"))
    }
}

fn new_tool((name, effect, on_unknown): (&str, Effect, OnUnknown)) -> Arc<dyn CallableTool> {
    Arc::new(PlainTool(ToolDefinition {
        is_strict: false,
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

/// `certify` is tested with a part of its runs; the stage `weeks` does them all.
#[expect(clippy::disallowed_methods, reason = "the variable selects a long run")]
fn run_interval() -> usize {
    // No divisor of the number of faults, so that each fault is injected.
    if std::env::var("TURNWHEEL_WEEKS").is_ok() { 1 } else { 9 }
}

/// An agent with one tool per effect, and both settings for an unknown outcome.
fn certify_options(settings: Settings, extensions: Vec<Arc<dyn Extension>>) -> CertifyOptions {
    let tools = [
        ("look", Effect::Read, OnUnknown::Ask),
        ("pay", Effect::Write, OnUnknown::Ask),
        ("gated", Effect::Write, OnUnknown::Ask),
        ("report", Effect::Write, OnUnknown::Tell),
        ("put", Effect::Idempotent, OnUnknown::Ask),
    ];
    let agent = AgentDefinition {
        name: "clerk".to_owned(),
        settings,
        instructions: "Be good.".into(),
        mcp: Vec::new(),
        tools: tools.map(new_tool).to_vec(),
        has_automatic_title: true,
        revision: "r".to_owned(),
        ..AgentDefinition::default()
    };
    let conversation = Conversation::for_agent(&agent, std::path::Path::new("nowhere")).unwrap();
    CertifyOptions {
        agents: vec![(Arc::new(agent), conversation)],
        extensions,
        tools: ToolMode::Stub,
        harmless: BTreeSet::new(),
        filter: None,
        run_interval: run_interval(),
        command: "turnwheel certify".to_owned(),
        progress: |_| {},
    }
}

#[tokio::test]
async fn sound_agent_passes_every_fault() {
    let options =
        CertifyOptions { run_interval: 1, ..certify_options(Settings::default(), Vec::new()) };
    let report = run_certify(&options).await.unwrap();
    assert!(report.is_ok(), "{report}");
    let [agent] = report.agents.as_slice() else { panic!("{report}") };
    assert_eq!((agent.responses, agent.calls.len(), agent.uncalled_tools.len()), (2, 5, 0));
    for fault in Fault::VARIANTS.iter().copied() {
        let runs = agent.runs.iter().filter(|run| run.fault == fault);
        let ok = runs.filter(|run| run.verdict == RunVerdict::Ok).count();
        let minimum = if fault == Fault::TimeOut { agent.calls.len() } else { 40 };
        assert!(ok >= minimum, "{}: {ok} runs", fault.into_str());
    }
    for needed in [
        "admission.accept",
        "pending-work.after",
        "model.after",
        "response.before",
        "tool.before",
        "tool.after",
        "result.after",
        "notification.after",
        "admission.decided",
        "release.after",
        "settle.after",
        "fork.begun",
        "fork.commit",
        "admission.patch",
    ] {
        assert!(
            agent.fail_points.iter().any(|(fail_point, _)| *fail_point == needed),
            "{needed}: {report}"
        );
    }
}

#[tokio::test]
async fn prompt_that_replaces_an_earlier_one_passes_every_fault() {
    let mut options = certify_options(Settings::default(), Vec::new());
    options.agents[0].1 = Conversation::read(
        "- prompt: use pay with {} then say paid\n\
         - prompt: say thanks\n\
         - prompt: use pay with {} and use report with {} then say paid again\n  replaces: 1\n",
    )
    .unwrap();
    let report = run_certify(&options).await.unwrap();
    assert!(report.is_ok(), "{report}");
    assert_eq!(report.agents[0].calls["pay"], 2, "{report}");
}

#[tokio::test]
async fn agent_in_protocol_mode_passes_certification() {
    let settings = Settings { loop_kind: Some(LoopKind::Protocol), ..Settings::default() };
    let report = run_certify(&certify_options(settings, Vec::new())).await.unwrap();
    assert!(report.is_ok(), "{report}");
    assert_eq!(report.agents[0].calls.len(), 5, "{report}");
}

#[tokio::test]
async fn agent_with_parallel_calls_passes_certification() {
    let settings = Settings {
        tool_execution: Some(ToolExecution::Parallel),
        parallel_tools_max: Some(3),
        ..Settings::default()
    };
    let report = run_certify(&certify_options(settings, Vec::new())).await.unwrap();
    assert!(report.is_ok(), "{report}");
}

/// Decides by state in the memory of this process, which no other process has.
#[derive(Debug, Default)]
struct ForgetfulExtension(AtomicU32);

#[async_trait]
impl Extension for ForgetfulExtension {
    fn name(&self) -> &'static str {
        "forgetful"
    }

    async fn before_tool_call(
        &self,
        _cx: &HookContext,
        _call: &PendingToolCall<'_>,
    ) -> Result<ToolCallDecision, HookError> {
        let is_late = self.0.fetch_add(1, Ordering::SeqCst) >= 5;
        let reason = Some("Enough.".to_owned());
        Ok(if is_late {
            ToolCallDecision::Block(CallBlock { reason, terminate: false })
        } else {
            ToolCallDecision::Allow
        })
    }
}

#[tokio::test]
async fn extension_with_in_memory_state_is_reported() {
    let mut options =
        certify_options(Settings::default(), vec![Arc::new(ForgetfulExtension::default())]);
    options.filter = Some("response.after".parse().unwrap());
    let report = run_certify(&options).await.unwrap();
    assert!(!report.is_ok());
    let text = report.to_string();
    assert!(text.contains("BROKEN"), "{text}");
    let expected = "invariant 3 (one winner): the record differs from the run without faults";
    assert!(text.contains(expected), "{text}");
    assert!(text.contains("hit the fail point"), "the log is missing: {text}");
    let xml = report.junit();
    assert!(xml.contains("<failure message=\"invariant 3"), "{xml}");
    let json = report.json();
    assert_eq!(json["isOk"], false);
    let runs = json["agents"][0]["runs"].as_array().unwrap();
    let broken = runs.iter().find(|run| run["verdict"] == "broken").unwrap();
    let repeat_command = broken["again"].as_str().unwrap();
    // The printed command repeats this run and no other.
    let (command, filter) = repeat_command.split_once(" --only ").unwrap();
    assert_eq!(command, "turnwheel certify clerk");
    options.filter = Some(filter.parse().unwrap());
    options.extensions = vec![Arc::new(ForgetfulExtension::default())];
    let report = run_certify(&options).await.unwrap();
    let [run] = report.agents[0].runs.as_slice() else { panic!("{report}") };
    assert_eq!(format!("{}#{}", run.fail_point, run.occurrence), filter.split_once(':').unwrap().0);
    assert!(matches!(run.verdict, RunVerdict::Broken { .. }), "{report}");
}

/// Asks before every payment.
#[derive(Debug)]
struct AskingExtension;

#[async_trait]
impl Extension for AskingExtension {
    fn name(&self) -> &'static str {
        "asking"
    }

    async fn before_tool_call(
        &self,
        cx: &HookContext,
        call: &PendingToolCall<'_>,
    ) -> Result<ToolCallDecision, HookError> {
        let is_allowed = call.tool_name != "pay" || cx.confirm("sure", "Sure?")?;
        Ok(if is_allowed {
            ToolCallDecision::Allow
        } else {
            ToolCallDecision::Block(CallBlock::default())
        })
    }
}

#[tokio::test]
async fn extension_that_asks_passes_every_fault() {
    let options = certify_options(Settings::default(), vec![Arc::new(AskingExtension)]);
    let report = run_certify(&options).await.unwrap();
    assert!(report.is_ok(), "{report}");
}

#[tokio::test]
async fn late_tool_result_is_treated_as_unknown() {
    let options = certify_options(Settings::default(), Vec::new());
    let (agent, conversation) = &options.agents[0];
    for (occurrence, tool, text) in [(1, "look", "timed out"), (2, "pay", "did_not_happen")] {
        let injection =
            InjectionPoint { fail_point: BEFORE_TOOL_CALL, occurrence, fault: Fault::TimeOut };
        let play = fault_run::run_conversation(
            &options,
            agent,
            conversation,
            StoreKind::Embedded,
            Some(injection),
        );
        let outcome = Box::pin(play).await.unwrap();
        assert_eq!(oracle::check_invariants(&outcome), Vec::<String>::new());
        assert_eq!(outcome.calls_by_tool[tool], 1, "the tool must run once");
        let record = serde_json::to_string(&outcome.entries).unwrap();
        let has_request = record.contains("\"kind\":\"outcome\"");
        assert_eq!(has_request, tool == "pay", "{record}");
        assert_eq!(record.contains(text), tool == "look", "{record}");
    }
}

#[test]
fn run_filter_parses_displayed_names() {
    for text in ["tool.after", "tool.after#2", "tool.after#2:time-out", "tool.after:kill"] {
        assert_eq!(text.parse::<RunFilter>().unwrap().to_string(), text);
    }
    for (text, expected) in [
        ("tool", "there is no fail point `tool`: write one"),
        ("tool.after#0", "`0` is not an occurrence"),
        ("tool.after#x:kill", "`x` is not an occurrence"),
        ("tool.after#1:die", "`die` is not a fault: the faults are kill, take-over,"),
    ] {
        let error = text.parse::<RunFilter>().unwrap_err();
        assert!(error.contains(expected), "{error}");
    }
}

#[tokio::test]
async fn unmatched_run_filter_fails_certification() {
    let mut options = certify_options(Settings::default(), Vec::new());
    for (filter, expected) in [
        ("schedule.create", "does not reach schedule.create; it reaches admission.reserve-key"),
        ("tool.before#9", "reaches tool.before 5 times"),
        ("model.after#1:time-out", "not every fault can happen there"),
    ] {
        options.filter = Some(filter.parse().unwrap());
        let report = run_certify(&options).await.unwrap();
        assert!(!report.is_ok() && report.to_string().contains(expected), "{report}");
    }
}

/// Returns another result for each call, or never succeeds.
#[derive(Debug)]
struct CarelessTool(ToolDefinition, AtomicU32);

#[async_trait]
impl CallableTool for CarelessTool {
    fn definition(&self) -> &ToolDefinition {
        &self.0
    }

    fn required_approval(&self, _arguments: &Arguments) -> Option<ApprovalRequirement> {
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
async fn review_notes_name_careless_tools() {
    let mut options = certify_options(Settings::default(), Vec::new());
    let careless = |name, effect| {
        let definition = new_tool((name, effect, OnUnknown::Ask)).definition().clone();
        Arc::new(CarelessTool(definition, AtomicU32::default())) as Arc<dyn CallableTool>
    };
    let (agent, conversation) = &mut options.agents[0];
    let agent = Arc::get_mut(agent).unwrap();
    agent.tools = vec![careless("order", Effect::Idempotent), careless("dead", Effect::Read)];
    let file = "- prompt: Go.\n  answers: [{calls: [{tool: order}, {tool: dead}]}]\n";
    *conversation = Conversation::read(file).unwrap();
    options.tools = ToolMode::Real;
    options.filter = Some("tool.after#1:kill".parse().unwrap());
    let report = run_certify(&options).await.unwrap();
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

/// Changes the result of the run without faults, and returns the broken invariants.
async fn violations_after_tampering(change: impl FnOnce(&mut Outcome)) -> Vec<String> {
    let options = certify_options(Settings::default(), Vec::new());
    let (agent, conversation) = &options.agents[0];
    let mut outcome = Box::pin(fault_run::run_conversation(
        &options,
        agent,
        conversation,
        StoreKind::Embedded,
        None,
    ))
    .await
    .unwrap();
    assert_eq!(oracle::check_invariants(&outcome), Vec::<String>::new());
    let expected = ExpectedRecord::from_outcome(&outcome);
    change(&mut outcome);
    oracle::compare_with_expected(&outcome, &expected, Fault::LateNudges)
}

#[tokio::test]
async fn violations_name_their_invariant() {
    let repeated = violations_after_tampering(|outcome| {
        outcome.calls_by_effect.values_mut().for_each(|times| *times = 2);
    });
    let repeated = repeated.await;
    assert!(repeated.iter().any(|text| text.ends_with("a write was done twice")), "{repeated:?}");
    let paid = violations_after_tampering(|outcome| outcome.responses += 1).await;
    assert_eq!(
        paid,
        [
            "invariant 4 (the model response is committed before its tools start): 3 model responses were paid for instead of 2"
        ]
    );
    let lost = violations_after_tampering(|outcome| {
        outcome.events.remove(1);
    });
    assert_eq!(
        lost.await,
        ["invariant 10 (events have consecutive numbers): event numbers have gaps"]
    );
    let differs = "invariant 3 (one winner): the record differs from the run without faults";
    let no_fork = violations_after_tampering(|outcome| outcome.fork = None).await;
    assert_eq!(no_fork, [differs]);
    let short_fork = violations_after_tampering(|outcome| {
        outcome.fork.as_mut().unwrap().entries.pop();
    });
    let incomplete = "invariant 3 (one winner): the fork differs from the path that it copies";
    assert_eq!(short_fork.await, [incomplete, differs]);
    let unsent = violations_after_tampering(|outcome| outcome.unsent_notifications = 1).await;
    assert_eq!(unsent, ["invariant 2 (queues are disposable): a notification was not sent"]);
}

#[test]
fn report_renders_table_and_junit() {
    let run = |fault, verdict| Run { fail_point: "tool.after", occurrence: 2, fault, verdict };
    let violations = vec!["a < b & \"c\"".to_owned()];
    let agent_report = AgentReport {
        agent: "clerk".to_owned(),
        prompts: 1,
        responses: 2,
        calls: BTreeMap::new(),
        uncalled_tools: Vec::new(),
        notes: vec!["look <here>".to_owned()],
        fail_points: vec![("tool.after", 2)],
        faultless_problems: Vec::new(),
        unmatched_filter: None,
        runs: vec![
            run(Fault::Kill, RunVerdict::Ok),
            run(Fault::LateNudges, RunVerdict::Skipped("why\u{1}")),
            run(Fault::Conflict, RunVerdict::Broken { violations, log: vec!["one".to_owned()] }),
        ],
    };
    let command = "turnwheel certify --agents 'my agents'".to_owned();
    let report = Report { tools: "stub", command, agents: vec![agent_report] };
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

      fail point  times  kill  take-over  duplicate  late  lost-response  conflict  two-workers  time-out
      tool.after      2  ok    –          –          –     –              BROKEN    –            –

      tool.after#2 × conflict
        a < b & "c"
          one
        again: turnwheel certify --agents 'my agents' clerk --only tool.after#2:conflict

    times          how often the run without a fault reached the fail point
    ok             all of these runs kept the invariants
    BROKEN         a run violated one: its steps are below the table
    –              not possible there
    kill           the process is killed; another one starts with its data
    take-over      one of several instances is killed; another one takes over
    duplicate      the same message or request reaches another instance too
    late           wake-up messages are lost until the end
    lost-response  commits are applied, and the responses of the store are lost
    conflict       another writer commits in between
    two-workers    the process stalls until another one has the work, then resumes
    time-out       the tool does its work, and its response is too late

    1 run ok, 1 broken, 1 not possible; tools: stub.
    "#);
}
