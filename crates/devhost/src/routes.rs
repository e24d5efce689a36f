//! Route templates as ASP.NET reads them, as far as functions need them: fixed segments, `{name}`
//! and a last `{*rest}`.

/// Segments of a path below the route prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteTemplate {
    text: String,
    segments: Vec<Segment>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Segment {
    Text(String),
    Parameter,
    Rest,
}

/// Which of two routes is more specific on the paths that both match.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Overlap {
    /// They match no path in common.
    None,
    First,
    Second,
    /// Both routes have the same form.
    Same,
}

impl RouteTemplate {
    /// # Errors
    /// Text that names the unsupported part of the template.
    pub fn read(text: &str) -> Result<Self, String> {
        let refuse = |segment: &str| {
            format!(
                "`route` has `{segment}`: the local host supports fixed segments, `{{name}}` and a last `{{*rest}}`"
            )
        };
        let mut segments = Vec::new();
        for segment in text.trim_matches('/').split('/').filter(|segment| !segment.is_empty()) {
            if segments.last() == Some(&Segment::Rest) {
                return Err(refuse(text));
            }
            let inner = segment.strip_prefix('{').and_then(|rest| rest.strip_suffix('}'));
            segments.push(match inner {
                Some(name) if is_name(name) => Segment::Parameter,
                Some(name) if name.strip_prefix('*').is_some_and(is_name) => Segment::Rest,
                Some(_) => return Err(refuse(segment)),
                None if segment.contains(['{', '}']) => return Err(refuse(segment)),
                None => Segment::Text(segment.to_owned()),
            });
        }
        Ok(Self { text: text.to_owned(), segments })
    }

    pub fn text(&self) -> &str {
        &self.text
    }

    /// True if the segments of a decoded path below the prefix match this route. An empty segment
    /// matches nothing, except behind the first one of `{*rest}`.
    pub fn matches(&self, path: &[&str]) -> bool {
        let mut path = path.iter();
        for segment in &self.segments {
            match segment {
                Segment::Rest => return path.next().is_none_or(|first| !first.is_empty()),
                Segment::Parameter => {
                    if path.next().is_none_or(|given| given.is_empty()) {
                        return false;
                    }
                }
                Segment::Text(text) => {
                    if !path.next().is_some_and(|given| given.eq_ignore_ascii_case(text)) {
                        return false;
                    }
                }
            }
        }
        path.next().is_none()
    }

    /// True if the Functions host takes both for one route: their texts differ at most in case.
    pub(super) fn has_text_of(&self, other: &Self) -> bool {
        self.text.trim_matches('/').eq_ignore_ascii_case(other.text.trim_matches('/'))
    }

    /// Compares two routes by the paths that both match. A fixed segment is more specific than
    /// `{name}`, and `{name}` than `{*rest}`; the first difference decides.
    pub(super) fn overlap(&self, other: &Self) -> Overlap {
        let mut overlap = Overlap::Same;
        let (mut first, mut second) = (self.segments.iter(), other.segments.iter());
        loop {
            let difference = match (first.next(), second.next()) {
                (None, None) | (Some(Segment::Rest), Some(Segment::Rest)) => return overlap,
                // `{*rest}` also matches no segment.
                (Some(Segment::Rest), _) => return overlap.or(Overlap::Second),
                (_, Some(Segment::Rest)) => return overlap.or(Overlap::First),
                (None, Some(_)) | (Some(_), None) => return Overlap::None,
                (Some(Segment::Text(one)), Some(Segment::Text(two))) => {
                    if !one.eq_ignore_ascii_case(two) {
                        return Overlap::None;
                    }
                    Overlap::Same
                }
                (Some(Segment::Parameter), Some(Segment::Parameter)) => Overlap::Same,
                (Some(Segment::Text(_)), Some(Segment::Parameter)) => Overlap::First,
                (Some(Segment::Parameter), Some(Segment::Text(_))) => Overlap::Second,
            };
            overlap = overlap.or(difference);
        }
    }

    /// True if every path of this route is also one of `other`.
    pub(super) fn is_within(&self, other: &Self) -> bool {
        let mut segments = self.segments.iter();
        for wider in &other.segments {
            match (segments.next(), wider) {
                (_, Segment::Rest) => return true,
                (Some(Segment::Text(_) | Segment::Parameter), Segment::Parameter) => {}
                (Some(Segment::Text(one)), Segment::Text(two)) if one.eq_ignore_ascii_case(two) => {
                }
                (None | Some(_), Segment::Text(_) | Segment::Parameter) => return false,
            }
        }
        segments.next().is_none()
    }
}

impl Overlap {
    fn or(self, later: Self) -> Self {
        if self == Self::Same { later } else { self }
    }
}

fn is_name(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

/// Returns the segments of a decoded path below the prefix; `None` for other paths. One slash at the
/// end separates nothing.
pub(crate) fn segments_below_prefix<'a>(path: &'a str, prefix: &str) -> Option<Vec<&'a str>> {
    let path = path.strip_prefix('/')?;
    let mut segments = path.strip_suffix('/').unwrap_or(path).split('/');
    for part in prefix.split('/') {
        if !segments.next().is_some_and(|segment| segment.eq_ignore_ascii_case(part)) {
            return None;
        }
    }
    Some(segments.collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request_path::RequestPath;

    fn path_matches(template: &str, path: &str) -> bool {
        let uri: http::Uri = path.parse().unwrap();
        let path = RequestPath::parse(&uri).unwrap();
        segments_below_prefix(path.decoded(), "api")
            .is_some_and(|path| RouteTemplate::read(template).unwrap().matches(&path))
    }

    #[test]
    fn route_template_matches_paths() {
        for (template, path, is_match) in [
            ("{*path}", "/api", true),
            ("{*path}", "/api/a/b", true),
            ("health", "/api/health", true),
            ("health", "/api/HEALTH/", true),
            ("health", "/api/health/x", false),
            ("health", "/api/%68ealt%48", true),
            ("approvals/{token}", "/api/approvals/a%2Fb", true),
            ("approvals/{token}", "/api/approvals%2Fa", false),
            ("approvals/{token}", "/api/approvals/t", true),
            ("approvals/{token}", "/api/approvals", false),
            ("{*path}", "/admin/host/status", false),
            ("{*path}", "/turn", false),
            ("{*path}", "/apiary", false),
            ("{*path}", "/api/x//y", true),
            ("{*path}", "/api//x", false),
            ("{*path}", "//api/x", false),
            ("approvals/{token}", "/api/approvals//t", false),
            ("health", "/api/%2568ealth", false),
        ] {
            assert_eq!(path_matches(template, path), is_match, "{template} {path}");
        }
    }

    #[test]
    fn dot_segments_are_resolved_before_the_prefix_is_found() {
        for path in ["/api/../turn", "/api/%2e%2e/turn", "/api/.%2E/turn", "/api/x/../../turn"] {
            assert!(!path_matches("{*path}", path), "{path}");
        }
        for path in ["/api/x/..", "/api/..\\turn", "/api/..%2Fturn", "/api/a..b/..."] {
            assert!(path_matches("{*path}", path), "{path}");
        }
    }

    #[test]
    fn overlap_names_the_more_specific_route() {
        for (first, second, expected) in [
            ("{*path}", "health", Overlap::Second),
            ("{*path}", "", Overlap::Second),
            ("health", "{*path}", Overlap::First),
            ("{a}/{b}", "approvals/{token}", Overlap::Second),
            ("{a}/b", "a/{b}", Overlap::Second),
            ("approvals/{token}", "Approvals/{id}", Overlap::Same),
            ("approvals/{token}", "approvals", Overlap::None),
            ("approvals/{*rest}", "approvals", Overlap::Second),
            ("approvals/{token}", "health/{x}", Overlap::None),
            ("a/{*rest}", "{x}/b", Overlap::First),
            ("{*a}", "{*b}", Overlap::Same),
        ] {
            let read = |text| RouteTemplate::read(text).unwrap();
            assert_eq!(read(first).overlap(&read(second)), expected, "{first} {second}");
        }
    }

    #[test]
    fn route_within_another_has_none_of_its_own_paths() {
        for (inner, outer, expected) in [
            ("health", "health", true),
            ("HEALTH/", "health", true),
            ("approvals/me", "approvals/{token}", true),
            ("approvals/{token}", "approvals/me", false),
            ("{*path}", "health", false),
            ("health/{*path}", "health", false),
            ("approvals/{a}/{b}", "approvals/{token}", false),
            ("a/{b}", "{*rest}", true),
        ] {
            let read = |text| RouteTemplate::read(text).unwrap();
            assert_eq!(read(inner).is_within(&read(outer)), expected, "{inner} {outer}");
        }
    }

    #[test]
    fn unsupported_route_templates_are_rejected() {
        for bad in ["{id:int}", "{id?}", "a{b}", "{*rest}/more", "{}"] {
            assert!(RouteTemplate::read(bad).is_err(), "{bad}");
        }
    }
}
