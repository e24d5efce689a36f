//! stub
pub fn validate(
    _d: &super::ToolDefinition,
    raw: &crate::agent::raw::RawJson,
) -> Result<super::Arguments, String> {
    Ok(super::Arguments { value: raw.value(), text: raw.clone() })
}
