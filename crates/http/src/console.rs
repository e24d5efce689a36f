//! The web console: the files of `console/`, embedded in the program. Debug builds read them from the disk.
//!
//! `index.html` names the other files as `BUILD/…`. `BUILD` is replaced by the hash of all files, so that browsers keep the
//! others for ever and never mix two builds.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::sync::{Arc, OnceLock, PoisonError, RwLock};

use axum::Router;
use axum::body::Body;
use axum::extract::Path;
use axum::response::{IntoResponse as _, Redirect, Response};
use axum::routing::get;
use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use http::header::{
    ACCEPT_ENCODING, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG,
    REFERRER_POLICY, VARY,
};
use http::{HeaderMap, HeaderName, HeaderValue};
use rust_embed::RustEmbed;

use crate::SharedApi;
use crate::precondition::{is_unchanged, not_modified};
use crate::problem::{self, Problem};
use turnwheel_platform::digest::sha256_hex;

const INDEX: &str = "index.html";
/// Start of the references in `index.html`.
const BUILD_MARK: &str = "\"BUILD/";
/// Characters of the hash in paths.
const BUILD_LENGTH: usize = 16;

const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; connect-src 'self'; \
     manifest-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
     require-trusted-types-for 'script'; trusted-types 'none'";

const HEADERS: [(HeaderName, &str); 4] = [
    (CONTENT_SECURITY_POLICY, POLICY),
    // App Service Authentication reads `Referer`.
    (REFERRER_POLICY, "same-origin"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
];

#[derive(RustEmbed)]
#[folder = "../../console"]
struct Files;

/// One build of the console: files of one hash.
struct Build {
    hash: String,
    /// By path, without `index.html`.
    files: BTreeMap<String, File>,
    index: File,
}

struct File {
    content_type: &'static str,
    bytes: Bytes,
    gzip: OnceLock<Bytes>,
}

/// The build that `index.html` named last. Only debug builds replace it.
static BUILD: RwLock<Option<Arc<Build>>> = RwLock::new(None);

/// Routes of the console. They need no authentication: the page has no data, and each of its API calls authenticates.
pub(crate) fn routes() -> Router<SharedApi> {
    Router::new()
        .route("/api/console", get(async || Redirect::permanent("/api/console/")))
        .route("/api/console/", get(show_index))
        .route("/api/console/{build}/{*path}", get(show_file))
}

async fn show_index(headers: HeaderMap) -> Response {
    let build = current_build(cfg!(debug_assertions));
    let etag = format!("\"{}\"", build.hash);
    let mut response = if is_unchanged(&headers, &etag) {
        not_modified(&etag)
    } else {
        build.index.to_response(&headers)
    };
    set_headers(&mut response, HeaderValue::from_static("no-cache"));
    if let Ok(etag) = HeaderValue::from_str(&etag) {
        response.headers_mut().insert(ETAG, etag);
    }
    response
}

async fn show_file(Path((hash, path)): Path<(String, String)>, headers: HeaderMap) -> Response {
    let build = current_build(false);
    let file = build.files.get(&path).filter(|_| build.hash == hash);
    let Some(file) = file else {
        let detail = "The console has no such file, or was updated. Reload the page.";
        return Problem::new(problem::NOT_FOUND, detail).into_response();
    };
    let mut response = file.to_response(&headers);
    set_headers(&mut response, HeaderValue::from_static("public, max-age=31536000, immutable"));
    response
}

fn set_headers(response: &mut Response, caching: HeaderValue) {
    let headers = response.headers_mut();
    for (name, value) in HEADERS {
        headers.insert(name, HeaderValue::from_static(value));
    }
    headers.insert(CACHE_CONTROL, caching);
    headers.append(VARY, HeaderValue::from_static("accept-encoding"));
}

fn current_build(is_reloaded: bool) -> Arc<Build> {
    let current = BUILD.read().unwrap_or_else(PoisonError::into_inner).clone();
    if let Some(build) = current.filter(|_| !is_reloaded) {
        return build;
    }
    let build = Arc::new(Build::read());
    *BUILD.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(&build));
    build
}

impl Build {
    fn read() -> Self {
        let mut files = BTreeMap::new();
        for path in Files::iter() {
            if let (Some(content_type), Some(file)) = (content_type(&path), Files::get(&path)) {
                let bytes = match file.data {
                    std::borrow::Cow::Borrowed(bytes) => Bytes::from_static(bytes),
                    std::borrow::Cow::Owned(bytes) => Bytes::from(bytes),
                };
                files.insert(path.into_owned(), File::new(content_type, bytes));
            }
        }
        let list: Vec<String> = files
            .iter()
            .map(|(path, file)| format!("{path} {}\n", sha256_hex(&file.bytes)))
            .collect();
        let mut hash = sha256_hex(list.concat().as_bytes());
        hash.truncate(BUILD_LENGTH);
        let page = files.remove(INDEX).map(|file| file.bytes).unwrap_or_default();
        let page = String::from_utf8_lossy(&page).replace(BUILD_MARK, &format!("\"{hash}/"));
        let index = File::new("text/html; charset=utf-8", page.into());
        Self { hash, files, index }
    }
}

impl File {
    fn new(content_type: &'static str, bytes: Bytes) -> Self {
        Self { content_type, bytes, gzip: OnceLock::new() }
    }

    fn to_response(&self, headers: &HeaderMap) -> Response {
        let content_type = (CONTENT_TYPE, self.content_type);
        if accepts_gzip(headers)
            && let Some(bytes) = self.gzip()
        {
            return ([content_type, (CONTENT_ENCODING, "gzip")], Body::from(bytes)).into_response();
        }
        ([content_type], Body::from(self.bytes.clone())).into_response()
    }

    /// `None` for formats that are compressed already.
    fn gzip(&self) -> Option<Bytes> {
        if !self.content_type.contains("charset") && self.content_type != "image/svg+xml" {
            return None;
        }
        let compress = || {
            let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
            // A vector takes all bytes.
            let _ = encoder.write_all(&self.bytes);
            Bytes::from(encoder.finish().unwrap_or_default())
        };
        Some(self.gzip.get_or_init(compress).clone())
    }
}

/// Returns `None` for files that are not served.
fn content_type(path: &str) -> Option<&'static str> {
    let (_, extension) = path.rsplit_once('.')?;
    Some(match extension {
        "html" => "text/html; charset=utf-8",
        "mjs" | "js" => "text/javascript; charset=utf-8",
        "css" => "text/css; charset=utf-8",
        "txt" => "text/plain; charset=utf-8",
        "webmanifest" => "application/manifest+json; charset=utf-8",
        "svg" => "image/svg+xml",
        "png" => "image/png",
        "ico" => "image/x-icon",
        "woff2" => "font/woff2",
        _ => return None,
    })
}

/// True if the client accepts gzip. A quality of zero refuses it (RFC 9110 §12.5.3).
fn accepts_gzip(headers: &HeaderMap) -> bool {
    let values = headers.get_all(ACCEPT_ENCODING).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|text| text.split(',')).any(|coding| {
        let (name, quality) = coding.split_once(';').unwrap_or((coding, ""));
        let quality = quality.trim().strip_prefix("q=").and_then(|text| text.parse::<f32>().ok());
        name.trim().eq_ignore_ascii_case("gzip") && quality.is_none_or(|quality| quality > 0.0)
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn index_names_existing_files_of_its_build() {
        let build = Build::read();
        let page = String::from_utf8(build.index.bytes.to_vec()).unwrap();
        assert!(!page.contains("BUILD"), "{page}");
        let mark = format!("\"{}/", build.hash);
        let named: BTreeSet<&str> =
            page.split(&mark).skip(1).map(|rest| rest.split('"').next().unwrap()).collect();
        for path in &named {
            assert!(path.is_empty() || build.files.contains_key(*path), "index.html names {path}");
        }
        assert!(named.iter().any(|path| path.ends_with("js")), "{page}");
    }

    #[test]
    fn gzip_is_used_only_when_accepted() {
        let accepts = |text: &'static str| {
            accepts_gzip(&HeaderMap::from_iter([(ACCEPT_ENCODING, HeaderValue::from_static(text))]))
        };
        assert!(accepts("gzip, deflate, br") && accepts("br;q=1.0, GZIP;q=0.5"));
        assert!(!accepts("identity") && !accepts("gzip;q=0, br") && !accepts("x-gzip-not"));
        let file = File::new("text/css; charset=utf-8", Bytes::from("a {} ".repeat(1000)));
        assert!(file.gzip().unwrap().len() < 200);
        assert!(File::new("image/png", Bytes::from_static(b"x")).gzip().is_none());
    }
}
