//! A filter of runs by name: `tool.after`, `tool.after#2` or `tool.after#2:kill`.

use std::fmt;
use std::str::FromStr;

use crate::certify::Fault;
use crate::certify::run::Cut;
use crate::turn::BOUNDARIES;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Only {
    boundary: &'static str,
    /// `None`: every occurrence.
    occurrence: Option<u32>,
    /// `None`: every fault that can happen there.
    fault: Option<Fault>,
}

impl Only {
    pub(super) fn is(&self, cut: &Cut) -> bool {
        self.boundary == cut.boundary
            && self.occurrence.is_none_or(|occurrence| occurrence == cut.occurrence)
            && self.fault.is_none_or(|fault| fault == cut.fault)
    }

    /// Returns the reason why no run matches.
    pub(super) fn missed(&self, reached: &[(&'static str, u32)]) -> String {
        let times = reached.iter().find(|(boundary, _)| *boundary == self.boundary);
        match times {
            None => {
                let names: Vec<&str> = reached.iter().map(|(boundary, _)| *boundary).collect();
                format!(
                    "there is no run {self}: the conversation does not reach {}; it reaches {}",
                    self.boundary,
                    names.join(", ")
                )
            }
            Some((boundary, times)) => format!(
                "there is no run {self}: the conversation reaches {boundary} {times} times, and not every fault can happen there"
            ),
        }
    }
}

impl fmt::Display for Only {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.boundary)?;
        if let Some(occurrence) = self.occurrence {
            write!(f, "#{occurrence}")?;
        }
        self.fault.map_or(Ok(()), |fault| write!(f, ":{}", fault.as_str()))
    }
}

impl FromStr for Only {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (place, fault) = match text.split_once(':') {
            Some((place, fault)) => (place, Some(fault)),
            None => (text, None),
        };
        let (boundary, occurrence) = match place.split_once('#') {
            Some((boundary, occurrence)) => (boundary, Some(occurrence)),
            None => (place, None),
        };
        let boundary = BOUNDARIES.into_iter().find(|known| *known == boundary).ok_or_else(|| {
            format!(
                "there is no fail point `{boundary}`: write one, as in `tool.after#2:kill`; the fail points are {}",
                BOUNDARIES.join(", ")
            )
        })?;
        let occurrence = occurrence.map(|text| {
            let number = text.parse().ok().filter(|number| *number > 0);
            number.ok_or_else(|| format!("`{text}` is not an occurrence: write 1 or more after the #"))
        });
        let fault = fault.map(|text| {
            let found = Fault::ALL.into_iter().find(|fault| fault.as_str() == text);
            found.ok_or_else(|| {
                let names = Fault::ALL.map(Fault::as_str).join(", ");
                format!("`{text}` is not a fault: the faults are {names}")
            })
        });
        Ok(Self { boundary, occurrence: occurrence.transpose()?, fault: fault.transpose()? })
    }
}
