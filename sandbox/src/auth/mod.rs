//! Authenticates requests by certificate or bearer token. Authorization is in `rbac`.

pub mod bootstrap_tokens;
pub mod certs;
pub mod legacy_tokens;
pub mod rbac;

use parking_lot::Mutex;
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};

use serde_json::json;
use sha2::{Digest as _, Sha256};

use crate::access::User;
use crate::object::uuid;
use kube_controller_manager::jwt::Signer;
use kube_controller_manager::objects::Timestamp;
use kube_controller_manager::server::auth::Authorities;
use kube_controller_manager::server::http::Chain;

/// The issuer of service-account tokens, which is also their default audience.
pub const ISSUER: &str = "https://kubernetes.default.svc";

struct Token {
    user: User,
    audiences: Vec<String>,
    expires: Option<Timestamp>,
}

/// An object that a service account's token is bound to.
pub struct Bound {
    /// `pod`, `node` or `secret`.
    pub kind: &'static str,
    pub name: String,
    pub uid: String,
}

/// The tokens and authorities that authenticate users. Tokens are kept in memory; those of Secrets
/// are checked by their signature.
#[derive(Default)]
pub struct Auth {
    /// Signs the tokens of service accounts, and checks those in Secrets.
    pub signer: Option<Signer>,
    /// The authority of client certificates.
    clients: Option<Authorities>,
    tokens: Mutex<HashMap<String, Token>>,
}

impl Auth {
    pub fn new(signer: Signer, clients: Authorities) -> Auth {
        Auth { signer: Some(signer), clients: Some(clients), ..Auth::default() }
    }

    /// Returns a new token for `user`.
    pub fn issue(&self, user: User, audiences: Vec<String>, expires: Option<Timestamp>) -> String {
        let token = random_text();
        self.keep(token, Token { user, audiences, expires })
    }

    /// Registers a token and what it stands for, and returns the token.
    fn keep(&self, token: String, entry: Token) -> String {
        self.tokens.lock().insert(token.clone(), entry);
        token
    }

    /// Issues a new signed token for a service account; without a signer its text is random.
    /// `bound`: the objects that it names.
    pub fn issue_for_account(
        &self,
        (namespace, name, uid): (&str, &str, &str),
        bound: &[Bound],
        audiences: Vec<String>,
        issued: Timestamp,
        expires: Timestamp,
    ) -> String {
        let mut user = User::service_account(namespace, name, uid);
        let id = uuid();
        let mut claims = json!({
            "aud": audiences, "exp": expires.as_secs(), "iat": issued.as_secs(), "iss": ISSUER,
            "jti": id, "nbf": issued.as_secs(), "sub": user.name,
            "kubernetes.io": {
                "namespace": namespace, "serviceaccount": { "name": name, "uid": uid },
            },
        });
        for Bound { kind, name, uid } in bound {
            claims["kubernetes.io"][kind] = json!({ "name": name, "uid": uid });
            // Upstream names pods and nodes in the user's extra values, but no Secrets.
            if *kind != "secret" {
                for (key, value) in [("name", name), ("uid", uid)] {
                    let key = format!("authentication.kubernetes.io/{kind}-{key}");
                    user.extra.insert(key, vec![value.clone()]);
                }
            }
        }
        let user = user.with_credential(format!("JTI={id}"));
        let signed = self.signer.as_ref().and_then(|signer| signer.sign(&claims).ok());
        let entry = Token { user, audiences, expires: Some(expires) };
        self.keep(signed.unwrap_or_else(random_text), entry)
    }

    /// Revokes every token of a user.
    pub fn revoke(&self, user: &str) {
        let mut tokens = self.tokens.lock();
        tokens.retain(|_, token| token.user.name != user);
    }

    /// Returns the user and audiences of a token that is valid.
    pub fn token(&self, token: &str, now: Timestamp) -> Option<(User, Vec<String>)> {
        let tokens = self.tokens.lock();
        let token = tokens.get(token)?;
        let good = token.expires.is_none_or(|expires| expires > now);
        good.then(|| (token.user.clone(), token.audiences.clone()))
    }

    /// Authenticates a request by its certificate or bearer token; `None`: 401. A bearer token
    /// counts when there is no valid certificate. `other` finds the user of a token that was not
    /// issued here. Without certificate and token the user is anonymous.
    pub fn user(
        &self,
        peer: &Chain,
        header: Option<&str>,
        now: Timestamp,
        other: impl FnOnce(&str) -> Option<User>,
    ) -> Option<User> {
        let clients = self.clients.as_ref().filter(|_| !peer.is_empty());
        let certified = clients.map(|clients| clients.user(peer, now));
        let mut user = match (certified, header.and_then(bearer)) {
            (Some(Ok(user)), _) => {
                let digest = peer.first().map(Sha256::digest);
                let hex = digest.iter().flatten().map(|byte| format!("{byte:02x}"));
                let credential = format!("X509SHA256={}", hex.collect::<String>());
                let (name, uid, groups) = (user.name, user.uid, user.groups);
                User { name, uid, groups, ..User::default() }.with_credential(credential)
            }
            (_, Some(token)) => match self.token(token, now) {
                Some((user, audiences)) if !valid_audiences(&audiences, &[]).is_empty() => user,
                // The token is valid for other audiences only.
                Some(_) => return None,
                None => other(token)?,
            },
            (Some(Err(_)), None) => return None,
            (None, None) => return Some(User::anonymous()),
        };
        user.groups.push("system:authenticated".to_owned());
        Some(user)
    }
}

/// Returns the token of an `Authorization` header that has one. Upstream:
/// `bearertoken.Authenticator`.
fn bearer(header: &str) -> Option<&str> {
    let mut words = header.trim().split(' ');
    let is_bearer = words.next().is_some_and(|word| word.eq_ignore_ascii_case("bearer"));
    words.next().filter(|token| is_bearer && !token.is_empty())
}

/// Returns the audiences among `wanted` that a token with `audiences` is valid for; the token is
/// valid if there is at least one. An empty list stands for the API server.
pub fn valid_audiences(audiences: &[String], wanted: &[String]) -> Vec<String> {
    let or_api_server = |list: &[String]| match list {
        [] => vec![ISSUER.to_owned()],
        list => list.to_vec(),
    };
    let wanted = or_api_server(wanted);
    or_api_server(audiences).into_iter().filter(|audience| wanted.contains(audience)).collect()
}

/// Returns 256 random bits as text, made of the random keys of the standard library's hash maps.
fn random_text() -> String {
    (0..4u8).map(|n| format!("{:016x}", RandomState::new().hash_one(n))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::CREDENTIAL;

    #[test]
    fn tokens_expire_and_bad_certificates_are_anonymous() {
        let stranger = rcgen::generate_simple_self_signed(["me".to_string()]).unwrap();
        let ours = rcgen::generate_simple_self_signed(["ca".to_string()]).unwrap();
        let clients = Authorities::from_pem(ours.cert.pem().as_bytes()).unwrap();
        let auth = Auth { clients: Some(clients), ..Auth::default() };
        let no_certificate = Chain::default();
        let now = Timestamp::from_secs(100);
        let token = auth.issue(User::new("bob", &[]), vec![], Some(Timestamp::from_secs(101)));
        let header = format!("Bearer {token}");
        let user = auth.user(&no_certificate, Some(&header), now, |_| None).unwrap();
        assert_eq!((user.name.as_str(), user.groups.len()), ("bob", 1));
        let late = Timestamp::from_secs(101);
        assert_eq!(auth.user(&no_certificate, Some(&header), late, |_| None), None);
        assert_eq!(auth.user(&no_certificate, Some("Bearer nonsense"), now, |_| None), None);
        let stranger = [stranger.cert.der().clone()].into();
        assert_eq!(auth.user(&stranger, None, now, |_| None), None);
        assert_eq!(auth.user(&stranger, Some("Basic nonsense"), now, |_| None), None);
        // With an invalid certificate a token still counts.
        assert_eq!(auth.user(&stranger, Some(&header), now, |_| None), Some(user));
        assert_eq!(auth.user(&stranger, Some(&header), late, |_| None), None);
        for header in [None, Some("Basic nonsense"), Some("Bearer"), Some("Bearer  x")] {
            assert_eq!(auth.user(&no_certificate, header, now, |_| None), Some(User::anonymous()));
        }
    }

    #[test]
    fn a_token_is_valid_for_its_audiences() {
        let auth = Auth::default();
        let (now, later) = (Timestamp::from_secs(100), Timestamp::from_secs(1000));
        let user = |audience: &str| {
            let audiences = vec![audience.to_owned()];
            let token = auth.issue_for_account(("ns", "bob", "1"), &[], audiences, now, later);
            auth.user(&Chain::default(), Some(&format!("Bearer {token}")), now, |_| None)
        };
        let bob = user(ISSUER).unwrap();
        assert_eq!(bob.name, "system:serviceaccount:ns:bob");
        assert!(bob.to_json()["extra"][CREDENTIAL][0].as_str().unwrap().starts_with("JTI="));
        assert_eq!(user("vault"), None);
        let text = |words: &[&str]| words.iter().copied().map(str::to_owned).collect::<Vec<_>>();
        let valid = |audiences: &[&str], wanted: &[&str]| {
            valid_audiences(&text(audiences), &text(wanted)).join(",")
        };
        assert_eq!(valid(&["vault", "a"], &["a"]), "a");
        assert_eq!(valid(&["vault"], &["a"]), "");
        assert_eq!(valid(&["vault"], &[]), "");
        assert_eq!(valid(&[], &[]), ISSUER);
        assert_eq!(valid(&[], &["vault"]), "", "a legacy token is for the API server alone");
    }
}
