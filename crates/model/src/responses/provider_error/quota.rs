//! Exhausted quotas and unpaid billing.

use crate::responses::provider_error::{ProviderError, retry_delay};

/// Codes of quotas and accounts for which waiting does not help, as letters and digits in lower
/// case.
const FINAL_CODES: [&str; 18] = [
    "accountoverdue",
    "allocationquotafreetieronly",
    "arrearage",
    "billingerror",
    "billinghardlimitreached",
    "billingnotactive",
    "budgetexceeded",
    "creditbalancetoolow",
    "exceededcurrentquotaerror",
    "insufficientbalance",
    "insufficientcredits",
    "insufficientfunds",
    "insufficientquota",
    "insufficientuserquota",
    "outofcredits",
    "paymentrequired",
    "usagelimitreached",
    "usagenotincluded",
];

/// Texts of unpaid accounts.
const BILLING_TEXTS: [&str; 9] = [
    "insufficient_quota",
    "billing hard limit",
    "billing_hard_limit",
    "budget has been exceeded",
    "credit balance",
    "insufficient balance",
    "insufficient credits",
    "payment required",
    "overdue payment",
];

/// Texts of quotas. A service may use them for a rate limit, too, and then names a wait.
const QUOTA_TEXTS: [&str; 5] = [
    "exceeded your current quota",
    "check your plan and billing",
    "insufficient quota",
    "quota exceeded",
    "usage limit",
];

/// Texts of quotas that renew themselves soon.
const RATE_TEXTS: [&str; 5] =
    ["per minute", "per second", "per-minute", "per-second", "tokens_per_minute"];

/// True if a quota is exhausted or billing is unpaid: waiting does not help. Texts of Azure's
/// transient limits mention quotas too, so the word alone proves nothing. `names_wait`: the headers
/// of the response name a wait.
pub(super) fn is_quota_exhausted(fault: &ProviderError, names_wait: bool) -> bool {
    let codes: Vec<String> = fault.codes().map(plain_code).collect();
    if codes.iter().any(|code| FINAL_CODES.contains(&code.as_str())) {
        return true;
    }
    if fault.message_contains(&BILLING_TEXTS) {
        return true;
    }
    let is_quota =
        codes.iter().any(|code| code == "quotaexceeded") || fault.message_contains(&QUOTA_TEXTS);
    is_quota
        && !names_wait
        && !fault.message_contains(&RATE_TEXTS)
        && retry_delay::parse_delay_in_text(&fault.message).is_none()
}

fn plain_code(code: &str) -> String {
    let letters = code.chars().filter(char::is_ascii_alphanumeric);
    letters.map(|letter| letter.to_ascii_lowercase()).collect()
}
