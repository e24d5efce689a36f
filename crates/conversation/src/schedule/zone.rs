//! Time zones. The database is compiled in, so that every instance and every test uses the same
//! rules, and container images need none.

use std::sync::LazyLock;

use jiff::civil::DateTime;
use jiff::tz::{AmbiguousOffset, TimeZone, TimeZoneDatabase};

use turnwheel_platform::clock::Timestamp;

static ZONES: LazyLock<TimeZoneDatabase> = LazyLock::new(TimeZoneDatabase::bundled);

/// Changes of the offset before the next firing: more than a pattern of February 29th needs.
const OFFSET_CHANGES_MAX: usize = 200;
/// Characters of an unknown name in the error text.
const SHOWN_CHARS_MAX: usize = 128;

#[derive(Clone, Debug, PartialEq)]
pub struct Zone(TimeZone);

impl Zone {
    pub fn utc() -> Self {
        Self(TimeZone::UTC)
    }

    /// Finds a zone by its IANA name, in any case.
    ///
    /// # Errors
    /// Unknown zone: return the text to the client. It states what to write.
    pub fn from_name(name: &str) -> Result<Self, String> {
        ZONES.get(name).map(Self).map_err(|_| {
            let shown: String = name.chars().take(SHOWN_CHARS_MAX).collect();
            format!("there is no time zone `{shown}`: write an IANA name such as Europe/Berlin")
        })
    }

    /// The local time in the zone.
    pub fn to_local(&self, time: Timestamp) -> DateTime {
        self.0.to_datetime(to_jiff(time))
    }

    /// The first instant with that local time. For a local time in a gap, the first instant after
    /// the gap. `None`: after the year 9999 or before 1970.
    pub(crate) fn resolve_local(&self, local: DateTime) -> Option<Timestamp> {
        let moment = match self.0.to_ambiguous_timestamp(local).offset() {
            AmbiguousOffset::Unambiguous { offset }
            | AmbiguousOffset::Fold { before: offset, after: _ } => offset.to_timestamp(local),
            AmbiguousOffset::Gap { before: _, after } => {
                let before_gap = after.to_timestamp(local).ok()?;
                return self
                    .0
                    .following(before_gap)
                    .next()
                    .and_then(|gap_end| from_jiff(gap_end.timestamp()));
            }
        };
        moment.ok().and_then(from_jiff)
    }

    /// The first instant after `moment` whose local time `find` returns. A local time in a gap counts
    /// as the end of the gap; one that occurs twice counts twice. `find` returns the first local time
    /// after the given one, or at it. `None`: there is none.
    pub(crate) fn next_on_clock(
        &self,
        moment: Timestamp,
        find: impl Fn(DateTime, bool) -> Option<DateTime>,
    ) -> Option<Timestamp> {
        let (mut from, mut is_inclusive) = (to_jiff(moment), false);
        for _ in 0..OFFSET_CHANGES_MAX {
            let offset = self.0.to_offset(from);
            let local = find(offset.to_datetime(from), is_inclusive)?;
            let next = offset.to_timestamp(local).ok()?;
            let Some(change) = self.0.following(from).next() else { return from_jiff(next) };
            let changed_at = change.timestamp();
            if next < changed_at {
                return from_jiff(next);
            }
            if local < change.offset().to_datetime(changed_at) {
                return from_jiff(changed_at);
            }
            (from, is_inclusive) = (changed_at, true);
        }
        None
    }

    /// The time with offset and zone name, for display and models:
    /// `2027-01-05T09:00:00+01:00[Europe/Berlin]`.
    pub fn format(&self, time: Timestamp) -> String {
        to_jiff(time).to_zoned(self.0.clone()).strftime("%Y-%m-%dT%H:%M:%S%:z[%Q]").to_string()
    }
}

fn to_jiff(time: Timestamp) -> jiff::Timestamp {
    let millis = i64::try_from(time.0).ok();
    millis
        .and_then(|millis| jiff::Timestamp::from_millisecond(millis).ok())
        .unwrap_or(jiff::Timestamp::MAX)
}

fn from_jiff(time: jiff::Timestamp) -> Option<Timestamp> {
    u64::try_from(time.as_millisecond()).ok().map(Timestamp)
}

/// The next change of the zone's offset.
#[cfg(test)]
pub(super) fn next_offset_change(zone: &Zone, time: Timestamp) -> Option<Timestamp> {
    zone.0.following(to_jiff(time)).next().and_then(|change| from_jiff(change.timestamp()))
}
