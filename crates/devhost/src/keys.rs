//! Keys of HTTP triggers, checked as the Functions host does.

use std::collections::BTreeMap;

use http::{HeaderMap, Uri};

use super::Function;
use super::function::{AuthLevel, HttpTrigger};

const KEY_HEADER: &str = "x-functions-key";
/// The query parameter, in any case.
const KEY_PARAMETER: &str = "code";

/// The keys of one app.
#[derive(Clone, Debug)]
pub struct HostKeys {
    /// By the function's name.
    pub functions: BTreeMap<String, String>,
    /// Opens every function of the level `function`.
    pub host: String,
    /// Opens every function.
    pub master: String,
}

impl HostKeys {
    /// True if a request to `function` has the key that its trigger requires. A header decides
    /// alone, also if its key is wrong.
    pub(super) fn allow(
        &self,
        function: &Function,
        trigger: &HttpTrigger,
        headers: &HeaderMap,
        uri: &Uri,
    ) -> bool {
        let given = match headers.get(KEY_HEADER) {
            // Two keys are read as one text.
            Some(_) if headers.get_all(KEY_HEADER).iter().count() > 1 => None,
            Some(header) => header.to_str().ok().map(str::to_owned),
            None => url::form_urlencoded::parse(uri.query().unwrap_or_default().as_bytes())
                .find(|(name, _)| name.eq_ignore_ascii_case(KEY_PARAMETER))
                .map(|(_, value)| value.into_owned()),
        };
        let is_master = given.as_ref() == Some(&self.master);
        match trigger.level {
            AuthLevel::Anonymous => true,
            AuthLevel::Admin => is_master,
            AuthLevel::Function => {
                let of_function = self.functions.get(&function.name);
                is_master
                    || given.as_ref() == Some(&self.host)
                    || (given.is_some() && given.as_ref() == of_function)
            }
        }
    }
}
