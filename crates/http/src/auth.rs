//! Authentication of callers: by function keys, App Service Authentication, or headers of a
//! gateway.

use axum::extract::{FromRequestParts, Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use base64::Engine as _;
use http::HeaderMap;
use http::request::Parts;
use serde::Deserialize;

use crate::SharedApi;
use crate::problem::{self, Problem};
use turnwheel_platform::digest::sha256_hex;
use turnwheel_platform::ids::{TenantId, UserId, is_plain_text};
use turnwheel_platform::settings::ServiceSettings;
use turnwheel_platform::settings::links::{Auth, HostNames};
use turnwheel_platform::settings::origins::AllowedOrigins;
use turnwheel_record::contract::{Decider, Owner};

/// The role that reads all conversations of its tenant. It can neither prompt nor decide.
pub const OPERATOR_ROLE: &str = "Turnwheel.Operator";
const PRINCIPAL_HEADER: &str = "x-ms-client-principal";
const TENANT_HEADER: &str = "turnwheel-tenant";
const USER_HEADER: &str = "turnwheel-user";
const ROLES_HEADER: &str = "turnwheel-roles";
const ID_LENGTH_MAX: usize = 128;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    pub owner: Owner,
    pub roles: Vec<String>,
}

impl Caller {
    pub fn is_operator(&self) -> bool {
        self.roles.iter().any(|role| role == OPERATOR_ROLE)
    }

    pub fn decider(&self) -> Decider {
        Decider::User {
            tenant: self.owner.tenant.clone(),
            user: self.owner.user.clone(),
            roles: self.roles.clone(),
        }
    }
}

impl FromRequestParts<SharedApi> for Caller {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, api: &SharedApi) -> Result<Self, Problem> {
        let caller = authenticate(&api.access, &parts.headers)?;
        let (services, owner) = (&api.services, &caller.owner);
        let now = services.clock.monotonic();
        match services.spending_limits.rate_limiter.take_request(&owner.tenant, &owner.user, now) {
            Ok(()) => Ok(caller),
            Err(wait) => Err(Problem::rate_limited(wait)),
        }
    }
}

/// Identifies the caller by the headers of the mode.
///
/// # Errors
/// The caller is unknown: 401 or 403.
pub fn authenticate(access: &Access, headers: &HeaderMap) -> Result<Caller, Problem> {
    match access.auth {
        Auth::Keys => Ok(new_caller("default".to_owned(), "default".to_owned(), Vec::new())),
        // Without App Service Authentication, any client can send its header.
        Auth::SignIn if !access.is_sign_in_on => Err(Problem::new(
            problem::UNAUTHORIZED,
            "TURNWHEEL_AUTH is `easyauth`, and App Service Authentication is off. Turn it on, or choose another mode.",
        )),
        Auth::SignIn => authenticate_principal(headers),
        Auth::Header => {
            let tenant = identity_header(headers, TENANT_HEADER)?.unwrap_or("default");
            let user = identity_header(headers, USER_HEADER)?;
            let user = user.or(access.is_dev.then_some("default")).ok_or_else(missing_user)?;
            let roles = unique_header(headers, ROLES_HEADER)?.unwrap_or_default();
            Ok(new_caller(tenant.to_owned(), user.to_owned(), split_roles(roles)?))
        }
    }
}

fn new_caller(tenant: String, user: String, roles: Vec<String>) -> Caller {
    Caller { owner: Owner { tenant: TenantId::new(tenant), user: UserId::new(user) }, roles }
}

fn missing_user() -> Problem {
    let detail = "The header `Turnwheel-User` is missing. The gateway in front of this app must send it with each request.";
    Problem::new(problem::UNAUTHORIZED, detail)
}

/// Middleware of all routes: 503 while the deployed functions do not fit the authentication mode.
pub(crate) async fn refuse_all(
    State(api): State<SharedApi>,
    request: Request,
    next: Next,
) -> Response {
    match &api.access.refusal {
        Some(reason) => Problem::new(problem::UNAVAILABLE, reason.clone()).into_response(),
        None => next.run(request).await,
    }
}

/// Returns the roles of a gateway's header. The Functions host joins repeated headers with a comma
/// and a blank, so a blank or an empty role may stand where a client's header ends.
fn split_roles(roles: &str) -> Result<Vec<String>, Problem> {
    let is_role = |role: &&str| !role.is_empty() && role.trim() == *role;
    match roles.split(',').collect::<Vec<_>>() {
        // A header without a role is legal: the user has none.
        roles if roles == [""] => Ok(Vec::new()),
        roles if roles.iter().all(is_role) => {
            Ok(roles.into_iter().map(ToOwned::to_owned).collect())
        }
        _ => Err(Problem::bad_request(
            "The header `turnwheel-roles` must be roles separated by single commas, without blanks. The gateway must replace the client's header, not append to it.",
        )),
    }
}

/// Returns a header that identifies the caller. A repeated header is an error: a gateway may have
/// appended its own to the client's. Behind the Functions host it arrives as one value, joined by a
/// comma and a blank, which no tenant, user or principal may contain.
fn unique_header<'a>(headers: &'a HeaderMap, name: &str) -> Result<Option<&'a str>, Problem> {
    let mut values = headers.get_all(name).iter();
    let (first, second) = (values.next(), values.next());
    if second.is_some() {
        return Err(Problem::bad_request(format!(
            "The header `{name}` was sent more than once. The gateway must replace the client's header, not append to it."
        )));
    }
    let unreadable =
        |_| Problem::bad_request(format!("The header `{name}` must be visible ASCII characters."));
    first.map(|value| value.to_str().map_err(unreadable)).transpose()
}

fn identity_header<'a>(headers: &'a HeaderMap, name: &str) -> Result<Option<&'a str>, Problem> {
    let given = unique_header(headers, name)?;
    if given.is_none_or(|given| given.len() <= ID_LENGTH_MAX && is_plain_text(given)) {
        return Ok(given);
    }
    Err(Problem::bad_request(format!(
        "The header `{name}` must be 1 to 128 of the characters A-Z a-z 0-9 _ . -"
    )))
}

#[derive(Deserialize)]
struct Principal {
    #[serde(default)]
    role_typ: Option<String>,
    #[serde(default)]
    claims: Vec<TokenClaim>,
}

#[derive(Deserialize)]
struct TokenClaim {
    typ: String,
    val: String,
}

const TENANT_CLAIMS: [&str; 2] = ["tid", "http://schemas.microsoft.com/identity/claims/tenantid"];
const USER_CLAIMS: [&str; 4] = [
    "oid",
    "http://schemas.microsoft.com/identity/claims/objectidentifier",
    "sub",
    "http://schemas.xmlsoap.org/ws/2005/05/identity/claims/nameidentifier",
];
const ROLE_CLAIMS: [&str; 3] =
    ["roles", "role", "http://schemas.microsoft.com/ws/2008/06/identity/claims/role"];

fn authenticate_principal(headers: &HeaderMap) -> Result<Caller, Problem> {
    let unauthorized = || {
        Problem::new(
            problem::UNAUTHORIZED,
            "The request has no valid token. Sign in with Microsoft Entra and send `Authorization: Bearer …`.",
        )
    };
    let encoded = unique_header(headers, PRINCIPAL_HEADER)?.ok_or_else(unauthorized)?;
    let bytes =
        base64::engine::general_purpose::STANDARD.decode(encoded).map_err(|_| unauthorized())?;
    let principal: Principal = serde_json::from_slice(&bytes).map_err(|_| unauthorized())?;
    let claim = |types: &[&str]| {
        types.iter().find_map(|typ| {
            principal.claims.iter().find(|claim| claim.typ == *typ).map(|claim| claim.val.clone())
        })
    };
    let (Some(tenant), Some(user)) = (claim(&TENANT_CLAIMS), claim(&USER_CLAIMS)) else {
        return Err(Problem::new(
            problem::UNAUTHORIZED,
            "The token has no tenant (`tid`) or no user (`oid` or `sub`). Sign in with Microsoft Entra.",
        ));
    };
    let is_role =
        |typ: &str| ROLE_CLAIMS.contains(&typ) || principal.role_typ.as_deref() == Some(typ);
    let roles = principal
        .claims
        .iter()
        .filter(|claim| is_role(&claim.typ))
        .map(|claim| claim.val.clone())
        .collect();
    Ok(new_caller(to_plain_id(tenant), to_plain_id(user), roles))
}

/// Returns an id that can be part of a key. An unsuitable id is replaced by its hash, so the same
/// user stays the same owner.
fn to_plain_id(id: String) -> String {
    if id.len() <= ID_LENGTH_MAX && is_plain_text(&id) {
        return id;
    }
    let mut hash = sha256_hex(id.as_bytes());
    hash.truncate(32);
    format!("h_{hash}")
}

/// Authentication mode and allowed browser origins.
#[expect(clippy::struct_excessive_bools, reason = "independent settings")]
#[derive(Clone, Debug)]
pub struct Access {
    pub auth: Auth,
    /// True if App Service Authentication is on. Without it, any client can send its header.
    pub is_sign_in_on: bool,
    /// True in `dev`: a request without `Turnwheel-User` belongs to user `default`.
    pub is_dev: bool,
    pub allowed_origins: AllowedOrigins,
    /// True behind the Functions host or the local one, which set `X-Forwarded-Host` themselves.
    pub is_hosted: bool,
    pub host_names: HostNames,
    /// Reason why every request is refused: the deployed functions do not fit the mode.
    pub refusal: Option<String>,
    /// Public address, without a trailing slash. `None` if only the `Host` header names the app.
    pub public_url: Option<String>,
    /// True if the web console is served.
    pub has_console: bool,
}

impl Access {
    pub fn from_settings(settings: &ServiceSettings) -> Self {
        Self {
            auth: settings.auth.unwrap_or(Auth::Keys),
            is_sign_in_on: settings.is_sign_in_on,
            is_dev: settings.is_dev,
            allowed_origins: settings.allowed_origins.clone(),
            is_hosted: settings.port.is_some() || settings.is_dev,
            host_names: settings.host_names,
            refusal: None,
            public_url: settings.public_url.clone(),
            has_console: settings.has_console(),
        }
    }

    /// The rules of `dev`.
    pub fn dev() -> Self {
        Self {
            auth: Auth::Header,
            is_sign_in_on: false,
            is_dev: true,
            allowed_origins: AllowedOrigins::default().with_loopback(),
            is_hosted: false,
            host_names: HostNames::Loopback,
            refusal: None,
            public_url: None,
            has_console: true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn access(auth: Auth) -> Access {
        Access { auth, is_sign_in_on: true, is_dev: false, ..Access::dev() }
    }

    fn headers(list: &[(&'static str, &str)]) -> HeaderMap {
        list.iter()
            .map(|(name, value)| (http::HeaderName::from_static(name), value.parse().unwrap()))
            .collect()
    }

    fn signed_in(claims: &str) -> HeaderMap {
        let json = format!(r#"{{"auth_typ":"aad","role_typ":"r","claims":{claims}}}"#);
        headers(&[(PRINCIPAL_HEADER, &base64::engine::general_purpose::STANDARD.encode(json))])
    }

    #[test]
    fn keys_mode_ignores_identity_headers() {
        let caller = authenticate(
            &access(Auth::Keys),
            &headers(&[("turnwheel-user", "mallory"), ("turnwheel-roles", OPERATOR_ROLE)]),
        )
        .unwrap();
        assert_eq!(caller, new_caller("default".into(), "default".into(), vec![]));
    }

    #[test]
    fn header_mode_reads_tenant_user_and_roles() {
        let named_by = headers(&[
            ("turnwheel-tenant", "acme"),
            ("turnwheel-user", "ann"),
            ("turnwheel-roles", "a,Turnwheel.Operator"),
        ]);
        let found = authenticate(&access(Auth::Header), &named_by).unwrap();
        assert_eq!((found.owner.tenant.as_str(), found.owner.user.as_str()), ("acme", "ann"));
        assert!(found.is_operator());
        for bad in ["a/b", "..", "a b", ""] {
            assert!(
                authenticate(&access(Auth::Header), &headers(&[("turnwheel-user", bad)])).is_err(),
                "{bad:?}"
            );
        }
    }

    #[test]
    fn identity_headers_are_refused_when_repeated() {
        let known =
            [("turnwheel-user", "ann"), ("turnwheel-tenant", "acme"), ("turnwheel-roles", "a")];
        for (name, _) in known {
            let mut twice = headers(&known);
            twice.append(name, "other".parse().unwrap());
            let refused = authenticate(&access(Auth::Header), &twice).unwrap_err();
            assert_eq!(refused.kind, problem::BAD_REQUEST);
            assert!(refused.detail.contains(name) && refused.detail.contains("more than once"));
        }
        // The Functions host delivers a repeated header as one value.
        for (name, value) in [
            ("turnwheel-roles", "Turnwheel.Operator, a"),
            ("turnwheel-roles", "Turnwheel.Operator,, a"),
            ("turnwheel-roles", "Turnwheel.Operator,"),
            ("turnwheel-roles", ",a"),
            ("turnwheel-roles", "Turnwheel.Operator,\ta"),
            ("turnwheel-user", "ann, bob"),
            ("turnwheel-tenant", "acme, acme"),
        ] {
            let mut joined = headers(&known);
            joined.insert(name, value.parse().unwrap());
            let refused = authenticate(&access(Auth::Header), &joined).unwrap_err();
            assert_eq!(refused.kind, problem::BAD_REQUEST, "{name}: {value}");
        }
        let mut without_roles = headers(&known);
        without_roles.insert(ROLES_HEADER, "".parse().unwrap());
        let found = authenticate(&access(Auth::Header), &without_roles).unwrap();
        assert_eq!(found.roles, Vec::<String>::new());
        let principal = signed_in(r#"[{"typ":"tid","val":"t1"},{"typ":"oid","val":"o1"}]"#);
        let joined = format!("{0}, {0}", principal[PRINCIPAL_HEADER].to_str().unwrap());
        let joined = headers(&[(PRINCIPAL_HEADER, &joined)]);
        assert!(authenticate(&access(Auth::SignIn), &joined).is_err());
        let mut twice = signed_in(r#"[{"typ":"tid","val":"t1"},{"typ":"oid","val":"o1"}]"#);
        twice.append(PRINCIPAL_HEADER, "e30=".parse().unwrap());
        let refused = authenticate(&access(Auth::SignIn), &twice).unwrap_err();
        assert_eq!(refused.kind, problem::BAD_REQUEST);
    }

    #[test]
    fn header_mode_requires_user_except_in_dev() {
        let tenant_alone = headers(&[("turnwheel-tenant", "acme")]);
        for nobody in [HeaderMap::new(), tenant_alone] {
            let refused = authenticate(&access(Auth::Header), &nobody).unwrap_err();
            assert_eq!(refused.kind, problem::UNAUTHORIZED);
            assert!(refused.detail.contains("`Turnwheel-User`"), "{}", refused.detail);
        }
        let found = authenticate(&Access::dev(), &HeaderMap::new()).unwrap();
        assert_eq!(found, new_caller("default".into(), "default".into(), vec![]));
    }

    #[test]
    fn principal_header_requires_app_service_authentication() {
        let someone = signed_in(
            r#"[{"typ":"tid","val":"t1"},{"typ":"sub","val":"s"},{"typ":"oid","val":"o1"},{"typ":"r","val":"Clerk"}]"#,
        );
        let found = authenticate(&access(Auth::SignIn), &someone).unwrap();
        assert_eq!((found.owner.tenant.as_str(), found.owner.user.as_str()), ("t1", "o1"));
        assert_eq!(found.roles, ["Clerk"]);
        let refused =
            authenticate(&Access { is_sign_in_on: false, ..access(Auth::SignIn) }, &someone)
                .unwrap_err();
        assert_eq!(refused.kind, problem::UNAUTHORIZED);
        for nobody in [HeaderMap::new(), headers(&[(PRINCIPAL_HEADER, "!")]), signed_in("[]")] {
            assert_eq!(
                authenticate(&access(Auth::SignIn), &nobody).unwrap_err().kind,
                problem::UNAUTHORIZED
            );
        }
    }

    #[test]
    fn unsuitable_subject_maps_to_stable_owner() {
        let someone =
            signed_in(r#"[{"typ":"tid","val":"t1"},{"typ":"sub","val":"auth0|abc/def"}]"#);
        let found = authenticate(&access(Auth::SignIn), &someone).unwrap();
        assert!(is_plain_text(found.owner.user.as_str()));
        assert_eq!(found, authenticate(&access(Auth::SignIn), &someone).unwrap());
    }
}
