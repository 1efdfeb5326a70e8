//! Signs the ConfigMap `cluster-info` with each bootstrap token that may sign, so that a node which
//! has the token can trust it. Upstream: `pkg/controller/bootstrap` (`bootstrapsigner.go`).

use std::collections::BTreeMap;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, Mac};
use serde_json::json;
use sha2::Sha256;

use super::token;
use crate::cache::{Lister, Scope};
use crate::client::Client;
use crate::clock::SharedClock;
use crate::controllers::runner::Change;
use crate::controllers::{Controller, Next, QueuePolicy, SyncResult};
use crate::objects::{BootstrapToken, ConfigMap, Labels, ObjectKey, Resource};

const NAMESPACE: &str = "kube-public";
const NAME: &str = "cluster-info";
/// The key of the content that is signed.
const CONTENT_KEY: &str = "kubeconfig";
/// The key of a signature is this prefix and the token's id.
const SIGNATURE_PREFIX: &str = "jws-kubeconfig-";

/// Sets up the controller `bootstrap-signer-controller`.
pub fn controller(c: &mut Controller) -> Result<(), String> {
    let maps = c.lister_of::<ConfigMap>(Scope {
        namespace: Some(NAMESPACE.to_owned()),
        field_selector: Some(format!("metadata.name={NAME}")),
        ..Scope::all(ConfigMap::RESOURCE)
    });
    let tokens = super::token_lister(c);
    let queue = c.queue(QueuePolicy::default());
    let key = ObjectKey::new(NAMESPACE, NAME);
    c.watch(&maps, &queue, |change, queue| {
        if !matches!(change, Change::Deleted(_)) {
            queue.add(change.object().meta.key());
        }
    });
    c.watch(&tokens, &queue, move |_, queue| queue.add(key.clone()));
    let this = Arc::new(Signer { client: c.client(), maps, tokens, clock: c.clock() });
    c.sync(queue, &this, Signer::sync);
    Ok(())
}

struct Signer {
    client: Client,
    maps: Lister<ConfigMap>,
    tokens: Lister<BootstrapToken>,
    clock: SharedClock,
}

impl Signer {
    /// Signs the ConfigMap `cluster-info` with all tokens that may sign. A failure is logged and
    /// not retried: the next change of the ConfigMap or of a token brings the next sync.
    async fn sync(self: Arc<Self>, key: ObjectKey) -> SyncResult {
        let Some(map) = self.maps.get(&key) else { return Ok(Next::Done) };
        let (tokens, now) = (self.tokens.list(), self.clock.now());
        let secrets =
            tokens.iter().filter_map(|token| token::id_and_secret_for_signing(token, now));
        let Some(data) = with_signatures(&map.data, &secrets.collect()) else {
            return Ok(Next::Done);
        };
        let map = ConfigMap { data, ..ConfigMap::clone(&map) };
        match self.client.update::<ConfigMap>(&key, &map.to_json()?).await {
            Err(error) if !error.is_conflict() && !error.is_not_found() => {
                log::debug!("Error updating ConfigMap: {error}");
            }
            // Written, or changed by another writer: its event brings the next sync.
            _ => {}
        }
        Ok(Next::Done)
    }
}

/// Returns `data` with signatures by these tokens and by no others; `None` if nothing changes, or
/// there is no content to sign. `secrets`: the secret of each token id.
fn with_signatures(data: &Labels, secrets: &BTreeMap<&str, &[u8]>) -> Option<Labels> {
    let Some(content) = data.get(CONTENT_KEY) else {
        log::debug!("No key in ConfigMap key={CONTENT_KEY:?} configMap=\"{NAMESPACE}/{NAME}\"");
        return None;
    };
    let unsigned = data.iter().filter(|(key, _)| !key.starts_with(SIGNATURE_PREFIX));
    let unsigned = unsigned.map(|(key, value)| (key.to_owned(), value.to_owned()));
    let signatures = secrets
        .iter()
        .map(|(id, secret)| (format!("{SIGNATURE_PREFIX}{id}"), detached_jws(content, id, secret)));
    let new_data: Labels = unsigned.chain(signatures).collect();
    if new_data == *data { None } else { Some(new_data) }
}

/// Signs `content`: returns a compact JWS without its payload (RFC 7515, appendix F), by
/// HMAC-SHA256. Upstream: `jws.ComputeDetachedSignature`.
fn detached_jws(content: &str, id: &str, secret: &[u8]) -> String {
    let header = json!({ "alg": "HS256", "kid": id }).to_string();
    let header = URL_SAFE_NO_PAD.encode(header);
    let mut mac = Hmac::<Sha256>::new_from_slice(secret).expect("keys are of any length");
    mac.update(header.as_bytes());
    mac.update(b".");
    mac.update(URL_SAFE_NO_PAD.encode(content).as_bytes());
    format!("{header}..{}", URL_SAFE_NO_PAD.encode(mac.finalize().into_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(pairs: &[(&str, &str)]) -> Labels {
        pairs.iter().copied().collect()
    }

    #[test]
    fn signatures_are_upstreams() {
        // Upstream's own test: cluster-bootstrap/token/jws/jws_test.go.
        let content = "Hello from the other side. I must have called a thousand times.";
        let secret = b"my voice is my passcode";
        assert_eq!(
            detached_jws(content, "joshua", secret),
            "eyJhbGciOiJIUzI1NiIsImtpZCI6Impvc2h1YSJ9..\
             VShe2taLd-YTrmWuRkcL_8QTNDHYxQIEBsAYYiIj1_8"
        );
    }

    #[test]
    fn the_map_holds_a_signature_for_each_token_and_for_no_other() {
        let signature_entry =
            |id: &str| (format!("{SIGNATURE_PREFIX}{id}"), detached_jws("c", id, b"s"));
        let (a, b) = (signature_entry("aaaaaa"), signature_entry("bbbbbb"));
        let (a, b) = ((&*a.0, &*a.1), (&*b.0, &*b.1));
        let both: BTreeMap<&str, &[u8]> =
            [("aaaaaa", &b"s"[..]), ("bbbbbb", &b"s"[..])].into_iter().collect();
        let (content, other) = ((CONTENT_KEY, "c"), ("more", "x"));
        let new_data = labels(&[content, other, a, b]);
        let unknown_token = ("jws-kubeconfig-cccccc", "x");
        for before in [
            &[content, other][..],
            &[content, other, a],
            &[content, other, a, (b.0, "wrong")],
            &[content, other, a, b, unknown_token],
        ] {
            assert_eq!(
                with_signatures(&labels(before), &both),
                Some(new_data.clone()),
                "{before:?}"
            );
        }
        assert_eq!(with_signatures(&new_data, &both), None);
        assert_eq!(with_signatures(&labels(&[other, a]), &both), None, "nothing to sign");
        assert_eq!(with_signatures(&new_data, &BTreeMap::new()), Some(labels(&[content, other])));
    }
}
