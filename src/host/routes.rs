//! Route templates as ASP.NET reads them, as far as functions need them: fixed segments, `{name}`
//! and a last `{*rest}`.

/// Segments of a path below the route prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteTemplate {
    text: String,
    segments: Vec<Segment>,
}

/// In order of precedence: the most specific first.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Segment {
    Text(String),
    Parameter,
    Rest,
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

    /// True if the segments of a path below the prefix match this route. Compares texts without
    /// case.
    pub fn matches(&self, path: &[&str]) -> bool {
        let mut path = path.iter();
        for segment in &self.segments {
            match segment {
                Segment::Rest => return true,
                Segment::Parameter => {
                    if path.next().is_none() {
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

    /// A sort key: the more specific of two routes sorts first.
    pub fn precedence(&self) -> impl Ord + use<> {
        let kind = |segment: &Segment| match segment {
            Segment::Text(_) => 0_u8,
            Segment::Parameter => 1,
            Segment::Rest => 2,
        };
        self.segments.iter().map(kind).collect::<Vec<_>>()
    }
}

fn is_name(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

/// Returns the segments of a request's path below the prefix. Returns `None` for other paths and
/// for those with `.` or `..`. The real host resolves `..` before routing, and no path may leave
/// the prefix.
pub(crate) fn segments_below_prefix<'a>(path: &'a str, prefix: &str) -> Option<Vec<&'a str>> {
    let is_dot_segment = |segment: &str| {
        let plain = segment.to_ascii_lowercase().replace("%2e", ".");
        plain == "." || plain == ".."
    };
    let mut segments = path.split('/').filter(|segment| !segment.is_empty());
    if path.split(['/', '\\']).any(is_dot_segment) {
        return None;
    }
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

    fn path_matches(template: &str, path: &str) -> bool {
        segments_below_prefix(path, "api")
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
            ("approvals/{token}", "/api/approvals/t", true),
            ("approvals/{token}", "/api/approvals", false),
            ("{*path}", "/admin/host/status", false),
            ("{*path}", "/turn", false),
            ("{*path}", "/apiary", false),
        ] {
            assert_eq!(path_matches(template, path), is_match, "{template} {path}");
        }
    }

    #[test]
    fn dot_segments_cannot_leave_route_prefix() {
        for path in
            ["/api/../turn", "/api/%2e%2e/turn", "/api/.%2E/turn", "/api/x/..", "/api/..\\turn"]
        {
            assert!(segments_below_prefix(path, "api").is_none(), "{path}");
        }
        assert!(segments_below_prefix("/api/a..b/...", "api").is_some());
    }

    #[test]
    fn more_specific_route_sorts_first() {
        let mut routes = ["{*path}", "approvals/{token}", "health", "approvals/mine"]
            .map(|text| RouteTemplate::read(text).unwrap());
        routes.sort_by_key(RouteTemplate::precedence);
        assert_eq!(
            routes.each_ref().map(RouteTemplate::text),
            ["health", "approvals/mine", "approvals/{token}", "{*path}"]
        );
    }

    #[test]
    fn unsupported_route_templates_are_rejected() {
        for bad in ["{id:int}", "{id?}", "a{b}", "{*rest}/more", "{}"] {
            assert!(RouteTemplate::read(bad).is_err(), "{bad}");
        }
    }
}
