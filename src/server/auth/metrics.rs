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
}

pub fn authenticated(user: Option<&str>, took: Duration) {
    // Upstream counts as "failure" only what an authenticator refuses without a reason.
    let result = if user.is_some() { "success" } else { "error" };
    AUTHENTICATIONS.with_label_values(&[result]).inc();
    AUTHENTICATION_SECONDS.with_label_values(&[result]).observe(took.as_secs_f64());
    if let Some(user) = user {
        USERS.with_label_values(&[category(user)]).inc();
    }
}

pub fn authorized(allowed: &Result<bool, String>, took: Duration) {
    let result = match allowed {
        Ok(true) => "allowed",
        Ok(false) => "no-opinion",
        Err(_) => "error",
    };
    AUTHORIZATIONS.with_label_values(&[result]).inc();
    AUTHORIZATION_SECONDS.with_label_values(&[result]).observe(took.as_secs_f64());
}

/// A label with few values, none of which identifies a person. Upstream: `compressUsername`.
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
