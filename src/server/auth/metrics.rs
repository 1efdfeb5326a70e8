//! Counts and durations of authentication and authorization.
//! Upstream: `apiserver/pkg/endpoints/filters/metrics.go`.

use std::time::Duration;

use crate::metrics::{exponential, metrics};

metrics! {
    static USERS: IntCounterVec["username"] = "authenticated_user_requests",
        "[ALPHA] Counter of authenticated requests broken out by username.";
    static AUTHENTICATIONS: IntCounterVec["result"] =
        "authentication_attempts", "[ALPHA] Counter of authenticated attempts.";
    static AUTHENTICATION_SECONDS: HistogramVec["result"](exponential(0.001, 2.0, 15)) =
        "authentication_duration_seconds",
        "[ALPHA] Authentication duration in seconds broken out by result.";
    static AUTHORIZATIONS: IntCounterVec["result"] = "authorization_attempts_total",
        "[ALPHA] Counter of authorization attempts broken down by result. It can be \
         either 'allowed', 'denied', 'no-opinion' or 'error'.";
    static AUTHORIZATION_SECONDS: HistogramVec["result"](exponential(0.001, 2.0, 15)) =
        "authorization_duration_seconds",
        "[ALPHA] Authorization duration in seconds broken out by result.";
    // Upstream: `apiserver/pkg/authentication/token/cache/stats.go`, without a help text.
    static TOKEN_REQUESTS: IntCounterVec["status"] =
        "authentication_token_cache_request_total", "[ALPHA] ";
    static TOKEN_REQUEST_SECONDS: HistogramVec["status"] =
        "authentication_token_cache_request_duration_seconds", "[ALPHA] ";
    static TOKEN_FETCHES: IntCounterVec["status"] =
        "authentication_token_cache_fetch_total", "[ALPHA] ";
    static TOKEN_ACTIVE_FETCHES: IntGaugeVec["status"] =
        "authentication_token_cache_active_fetch_count", "[ALPHA] ";
}

/// Counts an answer about the owner of a token, and the time that it took; `is_known`: an earlier
/// review has found the owner.
pub fn count_token_answer(is_known: bool, took: Duration) {
    let status = if is_known { "hit" } else { "miss" };
    TOKEN_REQUESTS.with_label_values(&[status]).inc();
    TOKEN_REQUEST_SECONDS.with_label_values(&[status]).observe(took.as_secs_f64());
}

/// A review of a token that is waited for or under way, until it is dropped.
pub struct Fetch(&'static str);

impl Fetch {
    pub fn blocked() -> Fetch {
        Fetch::begin("blocked")
    }

    pub fn in_flight() -> Fetch {
        Fetch::begin("in_flight")
    }

    fn begin(status: &'static str) -> Fetch {
        TOKEN_ACTIVE_FETCHES.with_label_values(&[status]).inc();
        Fetch(status)
    }

    /// Counts the end of the review.
    pub fn count_end(&self, is_ok: bool) {
        let status = if is_ok { "ok" } else { "error" };
        TOKEN_FETCHES.with_label_values(&[status]).inc();
    }
}

impl Drop for Fetch {
    fn drop(&mut self) {
        TOKEN_ACTIVE_FETCHES.with_label_values(&[self.0]).dec();
    }
}

/// Counts an authentication; `None`: it was refused.
pub fn count_authentication(user: Option<&str>, took: Duration) {
    // Upstream counts as "failure" only what an authenticator refuses without a reason; here every
    // refusal counts as "error".
    let result = if user.is_some() { "success" } else { "error" };
    AUTHENTICATIONS.with_label_values(&[result]).inc();
    AUTHENTICATION_SECONDS.with_label_values(&[result]).observe(took.as_secs_f64());
    if let Some(user) = user {
        USERS.with_label_values(&[category(user)]).inc();
    }
}

/// Counts an authorization.
pub fn count_authorization(allowed: &Result<bool, String>, took: Duration) {
    let result = match allowed {
        Ok(true) => "allowed",
        Ok(false) => "no-opinion",
        Err(_) => "error",
    };
    AUTHORIZATIONS.with_label_values(&[result]).inc();
    AUTHORIZATION_SECONDS.with_label_values(&[result]).observe(took.as_secs_f64());
}

/// Returns a label for a user: there are few values, and none identifies a person.
/// Upstream: `compressUsername`.
fn category(user: &str) -> &str {
    match user {
        "admin"
        | "client"
        | "kube_proxy"
        | "kubelet"
        | "system:serviceaccount:kube-system:default" => user,
        _ if user.contains('@') => "email_id",
        _ => "other",
    }
}
