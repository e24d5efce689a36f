//! The blocks of README.md in JavaScript and Rust: the first runs against `dev`, the second is
//! compiled here.

use std::process::{Command, ExitCode};

use schemars::JsonSchema;
use serde::Deserialize;
use turnwheel::{App, Approval, Effect, Tool, ToolContext, ToolError, ToolResult};

use crate::support::dev_process::DevProcess;
use crate::support::npm::run;

const README: &str = include_str!("../../README.md");
const MODULE: &str = include_str!("../../examples/clients/turnwheel.mjs");

struct Refund;

#[derive(Deserialize, JsonSchema)]
struct Wanted {
    order: String,
    amount: u64,
}

#[rustfmt::skip]
#[expect(clippy::unnecessary_literal_bound, reason = "the block is short")]
impl Tool for Refund {
    type Args = Wanted; // a struct with `order` and `amount`
    fn name(&self) -> &str { "refund" }
    fn description(&self) -> &str { "Pays money back." }
    fn effect(&self) -> Effect { Effect::Write }
    fn approval(&self, wanted: &Wanted) -> Option<Approval> {
        (wanted.amount > 100).then(|| Approval::because("Refunds above 100 need an approval."))
    }
    async fn call(&self, wanted: Wanted, cx: ToolContext) -> Result<ToolResult, ToolError> {
        Ok(ToolResult::text(format!("Refunded {} ({})", wanted.order, cx.effect_id())))
    }
}

#[rustfmt::skip]
#[expect(dead_code, reason = "it is compiled only")]
fn main() -> ExitCode { App::new().tool(Refund).main() }

/// The block of the README in that language.
fn block(language: &str) -> &'static str {
    let (_, rest) = README.split_once(&format!("~~~{language}\n")).unwrap();
    rest.split_once("\n~~~").unwrap().0
}

#[test]
fn rust_block_is_the_code_that_is_compiled_here() {
    let source = include_str!("readme_code.rs");
    for part in block("rust").split("\n\n") {
        assert!(source.contains(part), "README.md has other code:\n{part}");
    }
}

#[test]
fn javascript_block_pays_after_a_decision() {
    let folder = tempfile::tempdir().unwrap();
    let dev = DevProcess::start(&folder.path().join("data"), &[]);
    std::fs::write(folder.path().join("turnwheel.mjs"), MODULE).unwrap();
    let code = block("js")
        .replace("./examples/clients/", "./")
        .replace("http://127.0.0.1:7071", dev.url("").trim_end_matches('/'));
    assert!(code.contains("console.log(event.state)"), "{code}");
    let checked = code.replace(
        "console.log(event.state)",
        "if (event.state !== \"completed\") throw new Error(event.state)",
    );
    std::fs::write(folder.path().join("payment.mjs"), checked).unwrap();
    run(Command::new("node").arg(folder.path().join("payment.mjs")));
}
