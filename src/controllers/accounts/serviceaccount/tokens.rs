//! Fills Secrets of type `kubernetes.io/service-account-token` with a token, the authority and the
//! namespace, and removes them with their account.
//! Upstream: `tokens_controller.go`.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use super::token_secrets;
use crate::cache::Lister;
use crate::client::{self, Client, Delete};
use crate::clock::SharedClock;
use crate::controllers::certificates::root_ca::root_ca;
use crate::controllers::{Controller, Error, Next, QueuePolicy, SyncResult};
use crate::jwt::{LegacyClaims, Signer};
use crate::objects::{Istr, ObjectKey, ServiceAccount, TokenSecret, Uid, from_json};

/// How often a key is retried before it is given up. Upstream:
/// `TokensControllerOptions.MaxRetries`.
const MAX_RETRIES: u32 = 10;
/// The number of attempts to remove a reference, and the least time between two of them, which a
/// random factor up to doubles. Upstream: `RemoveTokenBackoff`.
const REMOVE_ATTEMPTS: u32 = 10;
const REMOVE_BACKOFF: Duration = Duration::from_millis(100);

/// An account with its uid, so that its Secrets are found when it is gone.
#[derive(Clone, PartialEq, Eq, Hash)]
struct AccountKey {
    account: ObjectKey,
    uid: Uid,
}

impl fmt::Display for AccountKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (uid {})", self.account, self.uid)
    }
}

/// A Secret with its uid and its account, so that the account is found when the Secret is gone.
#[derive(Clone, PartialEq, Eq, Hash)]
struct SecretKey {
    secret: ObjectKey,
    uid: Uid,
    account: Istr,
    /// Empty: any uid.
    account_uid: Uid,
}

impl SecretKey {
    /// Returns the key of the account that the Secret is for.
    fn account(&self) -> ObjectKey {
        ObjectKey { namespace: self.secret.namespace.clone(), name: (*self.account).into() }
    }
}

impl fmt::Display for SecretKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (uid {}, account {})", self.secret, self.uid, self.account)
    }
}

struct Tokens {
    client: Client,
    clock: SharedClock,
    accounts: Lister<ServiceAccount>,
    secrets: Lister<TokenSecret>,
    token_data: TokenData,
}

/// Sets up the controller `serviceaccount-token-controller`; idle without a key to sign with.
///
/// # Errors
/// When the key or the authority cannot be read.
pub fn controller(c: &mut Controller) -> Result<(), String> {
    let file = c.options().service_account_private_key_file.clone();
    if file.is_empty() {
        log::info!("Controller is disabled because there is no private key: {}", c.name());
        return Ok(());
    }
    let key_error =
        |why: String| format!("error reading key for service account token controller: {why}");
    let pem = std::fs::read(&file).map_err(|error| key_error(format!("open {file}: {error}")))?;
    let signer = Signer::from_pem(&pem)
        .map_err(|why| key_error(format!("error reading private key file {file}: {why}")))?;
    // The credentials of other controllers may depend on these tokens, so it has the manager's own.
    let client = c.root_client("tokens-controller");
    let root_ca_pem = root_ca(&c.options().root_ca_file, &client)?;
    let (accounts, secrets) = (c.lister::<ServiceAccount>(), token_secrets(c));
    let this = Arc::new(Tokens {
        client,
        clock: c.clock(),
        accounts: accounts.clone(),
        secrets: secrets.clone(),
        token_data: TokenData { signer, root_ca: Istr::new(&STANDARD.encode(root_ca_pem)) },
    });
    // Without resyncs, as the Go manager is built.
    let account_queue = c.queue(QueuePolicy::at_most(MAX_RETRIES));
    c.watch_resyncing(&accounts, None, &account_queue, |change, queue| {
        let meta = &change.object().meta;
        queue.add(AccountKey { account: meta.key(), uid: meta.uid.clone() });
    });
    // Upstream gives both queues the same name.
    let secret_queue = c.queue(QueuePolicy::at_most(MAX_RETRIES));
    c.watch_resyncing(&secrets, None, &secret_queue, |change, queue| {
        let secret = change.object();
        if !secret.account_name().is_empty() {
            queue.add(SecretKey {
                secret: secret.meta.key(),
                uid: secret.meta.uid.clone(),
                account: Istr::new(secret.account_name()),
                account_uid: secret.account_uid(),
            });
        }
    });
    c.sync(account_queue, &this, Tokens::sync_account);
    c.sync(secret_queue, &this, Tokens::sync_secret);
    Ok(())
}

impl Tokens {
    /// Deletes the Secrets of an account that does not exist any more.
    async fn sync_account(self: Arc<Self>, key: AccountKey) -> SyncResult {
        if self.cached_account(&key.account, &key.uid).is_some() {
            return Ok(Next::Done);
        }
        let mut errors = Vec::new();
        for secret in self.secrets.in_namespace(&key.account.namespace) {
            if secret.is_for(&key.account.name, &key.uid) {
                let deleted = self.delete(&secret.meta.key(), &secret.meta.uid).await;
                errors.extend(deleted.err().map(Error::from));
            }
        }
        match Error::many(errors) {
            Some(error) => Err(error),
            None => Ok(Next::Done),
        }
    }

    /// Fills a Secret, or deletes it if its account does not exist. If the Secret is gone, removes
    /// its reference from the account.
    async fn sync_secret(self: Arc<Self>, key: SecretKey) -> SyncResult {
        let secret = self.secrets.get(&key.secret).filter(|secret| secret.meta.uid == key.uid);
        let Some(secret) = secret else {
            if self.cached_account(&key.account(), &key.account_uid).is_some() {
                // Not retried: the remaining reference names no Secret.
                let removed = self.remove_reference(&key).await;
                removed.map_err(|error| Error::Terminal(Box::new(error.into())))?;
            }
            return Ok(Next::Done);
        };
        match self.find_account(&key.account(), &key.account_uid).await? {
            Some(account) => self.fill(&account, &secret).await,
            None => {
                log::debug!("{}: its service account does not exist: deleted", key.secret);
                self.delete(&key.secret, &key.uid).await?;
                Ok(Next::Done)
            }
        }
    }

    /// Returns the account from the cache if it has this uid. An empty uid matches any.
    fn cached_account(&self, key: &ObjectKey, uid: &Uid) -> Option<Arc<ServiceAccount>> {
        self.accounts.get(key).filter(|account| uid.is_empty() || account.meta.uid == *uid)
    }

    /// Returns the account of this key and uid from the cache, or from the API server if the cache
    /// does not have it. An empty uid matches any.
    async fn find_account(
        &self,
        key: &ObjectKey,
        uid: &Uid,
    ) -> client::Result<Option<Arc<ServiceAccount>>> {
        if let Some(account) = self.cached_account(key, uid) {
            return Ok(Some(account));
        }
        match self.client.get::<ServiceAccount>(key).await {
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
            Ok(live) if uid.is_empty() || live.meta.uid == *uid => Ok(Some(Arc::new(live))),
            Ok(_) => Ok(None),
        }
    }

    /// Deletes the Secret with this uid; succeeds if it is gone already, or if another Secret has
    /// its name.
    async fn delete(&self, key: &ObjectKey, uid: &Uid) -> client::Result<()> {
        match self.client.delete::<TokenSecret>(key, Delete::new().uid(uid.clone())).await {
            Err(error) if error.is_not_found() || error.is_conflict() => Ok(()),
            other => other,
        }
    }

    /// Adds the missing data to the live Secret, if it is of the cached version. Data that cannot
    /// be made is a terminal error.
    async fn fill(&self, account: &ServiceAccount, cached: &TokenSecret) -> SyncResult {
        if !self.token_data.is_incomplete(cached) {
            return Ok(Next::Done);
        }
        // Whether data was added to the live Secret, or why it could not be.
        let mut added = Ok(false);
        let key = cached.meta.key();
        let written = self.client.modify::<TokenSecret>(&key, |live| {
            added = self.token_data.add_missing(live, account, cached.meta.resource_version);
            matches!(added, Ok(true))
        });
        let written = written.await;
        added.map_err(|why| Error::Terminal(Box::new(Error::other(why))))?;
        match written {
            // Changed or deleted meanwhile: the watch brings the change.
            Err(error) if error.is_not_found() || error.is_conflict() => Ok(Next::Done),
            Err(error) => Err(error.into()),
            Ok(_) => Ok(Next::Done),
        }
    }

    /// Removes the reference to a deleted Secret from its account, with retries after conflicts.
    async fn remove_reference(&self, key: &SecretKey) -> client::Result<()> {
        let account = key.account();
        let mut attempt = 1;
        loop {
            let written = self
                .client
                .modify::<ServiceAccount>(&account, |live| {
                    remove_secret_reference(live, &key.account_uid, &key.secret.name)
                })
                .await;
            match written {
                Err(error) if error.is_not_found() => return Ok(()),
                Err(error) if error.is_conflict() && attempt < REMOVE_ATTEMPTS => {}
                other => return other.map(drop),
            }
            attempt += 1;
            self.clock.sleep(REMOVE_BACKOFF.mul_f64(1.0 + fastrand::f64())).await;
        }
    }
}

/// Removes the Secret from the list in `account`, if that has this uid. Returns whether that
/// changed anything.
fn remove_secret_reference(account: &mut Value, uid: &Uid, secret: &str) -> bool {
    let live_uid = account["metadata"]["uid"].as_str().unwrap_or_default();
    if !uid.is_empty() && *uid != Uid::new(live_uid) {
        return false;
    }
    let Some(secrets) = account.get_mut("secrets").and_then(Value::as_array_mut) else {
        return false;
    };
    let old_count = secrets.len();
    secrets.retain(|reference| reference["name"] != *secret);
    secrets.len() != old_count
}

/// The data that is the same in each Secret, and the key that signs tokens.
struct TokenData {
    signer: Signer,
    /// The root CA in base64; empty if no root CA is known.
    root_ca: Istr,
}

impl TokenData {
    /// Returns whether the Secret has no root CA, or another one.
    fn lacks_root_ca(&self, secret: &TokenSecret) -> bool {
        !self.root_ca.is_empty() && secret.data.ca != self.root_ca
    }

    /// Returns whether the Secret lacks any of its data.
    fn is_incomplete(&self, secret: &TokenSecret) -> bool {
        let data = &secret.data;
        self.lacks_root_ca(secret) || !data.has_namespace || !data.has_token
    }

    /// Adds the missing data to `live`, if it is a Secret of this version, and names its account in
    /// the annotations. Returns `false` if nothing is missing, or it has changed. `Err`: the Secret
    /// does not decode, or the token cannot be signed.
    fn add_missing(
        &self,
        live: &mut Value,
        account: &ServiceAccount,
        version: u64,
    ) -> Result<bool, String> {
        let secret: TokenSecret =
            from_json(&live.to_string()).map_err(|error| error.to_string())?;
        if secret.meta.resource_version != version {
            log::debug!("{}: not up to date, no token is put into it", secret.meta.key());
            return Ok(false);
        }
        if !self.is_incomplete(&secret) {
            return Ok(false);
        }
        let meta = &secret.meta;
        if self.lacks_root_ca(&secret) {
            live["data"]["ca.crt"] = self.root_ca.as_str().into();
        }
        if !secret.data.has_namespace {
            live["data"]["namespace"] = STANDARD.encode(&*meta.namespace).into();
        }
        if !secret.data.has_token {
            let uid = account.meta.uid.to_string();
            let name = &account.meta.name;
            let claims = LegacyClaims::new(&account.meta.namespace, name, &uid, &meta.name);
            live["data"]["token"] = STANDARD.encode(self.signer.sign(&claims)?).into();
        }
        let annotations = &mut live["metadata"]["annotations"];
        annotations[TokenSecret::ACCOUNT_NAME] = (*account.meta.name).into();
        annotations[TokenSecret::ACCOUNT_UID] = account.meta.uid.to_string().into();
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn account() -> ServiceAccount {
        let metadata = json!({ "namespace": "ns", "name": "robot", "uid": "u-1" });
        serde_json::from_value(json!({ "metadata": metadata })).unwrap()
    }

    fn token_data(root_ca: &str) -> TokenData {
        let key = rcgen::KeyPair::generate().unwrap().serialize_pem();
        let signer = Signer::from_pem(key.as_bytes()).unwrap();
        TokenData { signer, root_ca: Istr::new(&STANDARD.encode(root_ca)) }
    }

    fn secret(data: Value) -> Value {
        json!({
            "metadata": {
                "namespace": "ns", "name": "s", "resourceVersion": "5",
                "annotations": { TokenSecret::ACCOUNT_NAME: "robot", "more": "kept" },
            },
            "data": data, "type": TokenSecret::TYPE, "future": { "field": 1 },
        })
    }

    #[test]
    fn a_secret_gets_missing_data_and_keeps_existing_data() {
        let token_data = token_data("CA");
        let mut live = secret(Value::Null);
        live.as_object_mut().unwrap().remove("data");
        assert_eq!(
            token_data.add_missing(&mut live, &account(), 4),
            Ok(false),
            "changed meanwhile"
        );
        assert_eq!(token_data.add_missing(&mut live, &account(), 5), Ok(true));
        let plain = |key: &str| {
            String::from_utf8(STANDARD.decode(live["data"][key].as_str().unwrap()).unwrap())
        };
        assert_eq!(
            (plain("ca.crt").unwrap(), plain("namespace").unwrap()),
            ("CA".into(), "ns".into())
        );
        let claims = token_data.signer.public_key().verify(&plain("token").unwrap());
        assert_eq!(claims, Some(LegacyClaims::new("ns", "robot", "u-1", "s")));
        let annotations = json!({
            TokenSecret::ACCOUNT_NAME: "robot", TokenSecret::ACCOUNT_UID: "u-1", "more": "kept",
        });
        assert_eq!(live["metadata"]["annotations"], annotations);
        assert_eq!(live["future"]["field"], 1);
        assert_eq!(token_data.add_missing(&mut live, &account(), 5), Ok(false), "nothing more");

        live["data"]["token"] = "bWluZQ==".into();
        live["data"]["ca.crt"] = "b2xk".into();
        assert_eq!(token_data.add_missing(&mut live, &account(), 5), Ok(true));
        assert_eq!(
            (&live["data"]["token"], &live["data"]["ca.crt"]),
            (&json!("bWluZQ=="), &json!("Q0E="))
        );
    }

    #[test]
    fn without_an_authority_a_secret_without_one_is_complete() {
        let token_data = token_data("");
        let full = secret(json!({ "token": "eA==", "namespace": "bnM=", "ca.crt": "b2xk" }));
        let view = |secret: &Value| from_json::<TokenSecret>(&secret.to_string()).unwrap();
        assert!(!token_data.is_incomplete(&view(&full)));
        assert!(token_data.is_incomplete(&view(&secret(json!({ "token": "eA==" })))));
    }

    #[test]
    fn a_reference_is_removed_only_from_the_account_with_the_uid() {
        let named =
            json!({ "metadata": { "uid": "u-1" }, "secrets": [{ "name": "s" }, { "name": "t" }] });
        for (uid, secret, left) in
            [("u-1", "s", json!([{ "name": "t" }])), ("", "t", json!([{ "name": "s" }]))]
        {
            let mut live = named.clone();
            assert!(remove_secret_reference(&mut live, &Uid::new(uid), secret));
            assert_eq!(live["secrets"], left);
        }
        for (uid, secret) in [("u-2", "s"), ("u-1", "x")] {
            let mut live = named.clone();
            assert!(!remove_secret_reference(&mut live, &Uid::new(uid), secret));
            assert_eq!(live, named);
        }
    }
}
