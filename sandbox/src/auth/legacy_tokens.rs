//! Service-account tokens in Secrets: authentication, and the date of their last use.
//! Upstream: `pkg/serviceaccount/legacy.go`, `pkg/controlplane/controller/legacytokentracking`.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::access::User;
use crate::api::Api;
use crate::api::write::Part;
use crate::object::{is_deleting, text};
use crate::request::call::Call;
use crate::status::ApiResult;
use kube_controller_manager::jwt::{LEGACY_ISSUER, LegacyClaims};
use kube_controller_manager::objects::Timestamp;

const LAST_USED: &str = "kubernetes.io/legacy-token-last-used";
const DAY: Duration = Duration::from_secs(24 * 3600);

fn date(time: Timestamp) -> String {
    time.to_jiff().strftime("%Y-%m-%d").to_string()
}

impl Api {
    /// The user of a token that was signed with the server's key and whose Secret and account
    /// exist.
    pub fn legacy_token(&self, token: &str) -> Option<User> {
        let claims = self.auth.signer.as_ref()?.public_key().verify(token)?;
        let LegacyClaims { issuer, namespace, secret_name, account_name, account_uid, subject } =
            &claims;
        let named = format!("system:serviceaccount:{namespace}:{account_name}");
        if issuer != LEGACY_ISSUER || *subject != named {
            return None;
        }
        let live = |table: &str, name: &str| {
            let found = self.store.get(table, &format!("{namespace}/{name}"));
            found.filter(|object| !is_deleting(&object.value))
        };
        let secret = live("secrets", secret_name)?;
        let copy = STANDARD.decode(text(&secret.value, "/data/token")).ok()?;
        let account = live("serviceaccounts", account_name)?;
        if copy != token.as_bytes() || account.uid() != account_uid {
            return None;
        }
        self.label_used(namespace, secret_name, &secret.value);
        let marked = "/metadata/labels/kubernetes.io~1legacy-token-invalid-since";
        let valid = text(&secret.value, marked).is_empty();
        valid.then(|| User::service_account(namespace, account_name, account_uid))
    }

    /// Labels the Secret with the current date unless it has it.
    fn label_used(&self, namespace: &str, name: &str, secret: &Value) {
        let now = self.clock.now();
        let last = text(secret, "/metadata/labels/kubernetes.io~1legacy-token-last-used");
        if last == date(now) || last == date(now + DAY) {
            return;
        }
        let Some(kind) = self.registry.find("", "v1", "secrets") else { return };
        let call = Call::of(kind, namespace, name);
        let labelled = self.modify(&call, Part::Main, &|old| {
            let mut new = old.clone();
            new["metadata"]["labels"][LAST_USED] = date(now).into();
            Ok(new)
        });
        if let Err(error) = labelled {
            log::error!("{namespace}/{name}: no last-used date: {}", error.message);
        }
    }

    /// Records since when the last use is tracked.
    pub fn track_legacy_tokens(&self) -> ApiResult<()> {
        if self.registry.find("", "v1", "configmaps").is_none() {
            return Ok(());
        }
        let map = json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {
                "name": "kube-apiserver-legacy-service-account-token-tracking",
                "namespace": "kube-system",
            },
            "data": { "since": date(self.clock.now()) },
        });
        self.create_value("", "configmaps", map).map(drop)
    }
}
