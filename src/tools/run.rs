//! stub
pub async fn run(
    t: &dyn super::RunTool,
    a: super::Arguments,
    c: super::ToolContext,
) -> super::ToolOutcome {
    t.call(a, c).await
}
