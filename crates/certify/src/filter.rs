//! A filter of runs by name: `tool.after`, `tool.after#2` or `tool.after#2:kill`.

use std::fmt;
use std::str::FromStr;

use strum::VariantArray as _;

use crate::Fault;
use crate::fault_run::InjectionPoint;
use turnwheel_platform::fail_points::{FAIL_POINTS, current_name};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunFilter {
    fail_point: &'static str,
    /// `None`: every occurrence.
    occurrence: Option<u32>,
    /// `None`: every fault that can happen there.
    fault: Option<Fault>,
}

impl RunFilter {
    pub(super) fn matches(&self, cut: &InjectionPoint) -> bool {
        self.fail_point == cut.fail_point
            && self.occurrence.is_none_or(|occurrence| occurrence == cut.occurrence)
            && self.fault.is_none_or(|fault| fault == cut.fault)
    }

    /// Returns the reason why no run matches.
    pub(super) fn mismatch_reason(&self, fail_points: &[(&'static str, u32)]) -> String {
        let times = fail_points.iter().find(|(fail_point, _)| *fail_point == self.fail_point);
        match times {
            None => {
                let names: Vec<&str> =
                    fail_points.iter().map(|(fail_point, _)| *fail_point).collect();
                format!(
                    "there is no run {self}: the conversation does not reach {}; it reaches {}",
                    self.fail_point,
                    names.join(", ")
                )
            }
            Some((fail_point, times)) => format!(
                "there is no run {self}: the conversation reaches {fail_point} {times} times, and not every fault can happen there"
            ),
        }
    }
}

impl fmt::Display for RunFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.fail_point)?;
        if let Some(occurrence) = self.occurrence {
            write!(f, "#{occurrence}")?;
        }
        self.fault.map_or(Ok(()), |fault| write!(f, ":{}", fault.into_str()))
    }
}

impl FromStr for RunFilter {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (point, fault) = match text.split_once(':') {
            Some((point, fault)) => (point, Some(fault)),
            None => (text, None),
        };
        let (fail_point, occurrence) = match point.split_once('#') {
            Some((fail_point, occurrence)) => (fail_point, Some(occurrence)),
            None => (point, None),
        };
        let current = current_name(fail_point);
        let fail_point = FAIL_POINTS.into_iter().find(|known| *known == current).ok_or_else(|| {
            format!(
                "there is no fail point `{fail_point}`: write one, as in `tool.after#2:kill`; the fail points are {}",
                FAIL_POINTS.join(", ")
            )
        })?;
        let occurrence = occurrence.map(|text| {
            let number = text.parse().ok().filter(|number| *number > 0);
            number.ok_or_else(|| {
                format!("`{text}` is not an occurrence: write 1 or more after the #")
            })
        });
        let fault = fault.map(|text| {
            text.parse().map_err(|_| {
                let names: Vec<&str> = Fault::VARIANTS.iter().map(Fault::into_str).collect();
                let names = names.join(", ");
                format!("`{text}` is not a fault: the faults are {names}")
            })
        });
        Ok(Self { fail_point, occurrence: occurrence.transpose()?, fault: fault.transpose()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filter_accepts_earlier_names() {
        let filter: RunFilter = "answer.after#2:lost-answer".parse().unwrap();
        assert_eq!(filter.to_string(), "response.after#2:lost-response");
    }
}
