//! `TURNWHEEL_SHELL`: where shell tools run commands.

use super::reader::Reader;

const NAME: &str = "TURNWHEEL_SHELL";

/// Runner of shell tools.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ShellMode {
    #[default]
    Off,
    /// On this machine; never in Azure, where the process has the identity of the app.
    Sandbox,
}

pub(super) fn read(reader: &mut Reader<'_>) -> ShellMode {
    let expected = if reader.is_in_azure() {
        "`off`: in Azure commands cannot run beside the app's identity"
    } else {
        "`off` or `sandbox`"
    };
    let is_in_azure = reader.is_in_azure();
    reader.parse(NAME, expected, |text| parse(text, is_in_azure)).unwrap_or_default()
}

fn parse(text: &str, is_in_azure: bool) -> Option<ShellMode> {
    match text {
        "off" => Some(ShellMode::Off),
        "sandbox" if !is_in_azure => Some(ShellMode::Sandbox),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sandbox_is_refused_in_azure() {
        assert_eq!(parse("sandbox", false), Some(ShellMode::Sandbox));
        assert_eq!(parse("sandbox", true), None);
        assert_eq!((parse("off", true), parse("on", false)), (Some(ShellMode::Off), None));
    }
}
