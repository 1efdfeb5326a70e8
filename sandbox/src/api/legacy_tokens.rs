//! Service-account tokens in Secrets: records the date of their last use. Upstream:
//! `pkg/serviceaccount/legacy.go`.

use crate::access::User;
use crate::api::Api;
use crate::api::write::Part;
use crate::auth::legacy_tokens::{LAST_USED, LegacyToken, date};
use crate::request::call::Call;

impl Api {
    /// Returns the user of a token in a Secret; `None` when it is not valid. Labels the Secret with
    /// the current date if its label is older.
    pub fn legacy_token(&self, token: &str) -> Option<User> {
        let found = LegacyToken::find(&self.auth, &self.store, token, self.clock.now())?;
        if found.is_label_old {
            self.label_used(&found);
        }
        found.user
    }

    /// Labels a token's Secret with the date of today, as that of its last use. A failure is only
    /// logged.
    fn label_used(&self, token: &LegacyToken) {
        let LegacyToken { namespace, secret_name, .. } = token;
        let Some(kind) = self.registry.find("", "v1", "secrets") else { return };
        let today = date(self.clock.now());
        let call = Call::of(kind, namespace, secret_name);
        let labelled = self.modify(&call, Part::Main, &|old| {
            let mut new = old.clone();
            new["metadata"]["labels"][LAST_USED] = today.as_str().into();
            Ok(new)
        });
        if let Err(error) = labelled {
            log::error!("{namespace}/{secret_name}: no last-used date: {}", error.message);
        }
    }
}
