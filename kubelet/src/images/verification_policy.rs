//! Which images that are there a pod may use only with credentials that have pulled them.
//! Upstream: `pullmanager/image_pull_policies.go`.

use std::collections::BTreeSet;

use super::Error;
use crate::options::configuration::Configuration;

/// Upstream: `ImagePullCredentialsVerificationPolicy`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VerificationPolicy {
    NeverVerify,
    /// Images are exempt that the kubelet has not pulled.
    NeverVerifyPreloadedImages,
    /// Images are exempt whose names, without tag and digest, are in the list.
    NeverVerifyAllowlistedImages {
        names: BTreeSet<String>,
        /// They end with a slash.
        prefixes: Vec<String>,
    },
    AlwaysVerify,
}

impl VerificationPolicy {
    /// Reads the policy from the configuration; `None`: the feature gate is off.
    /// Upstream: `ValidateKubeletConfiguration`.
    ///
    /// # Errors
    /// One that names the field.
    pub fn of(configuration: &Configuration) -> Result<Option<VerificationPolicy>, Error> {
        let policy = configuration.image_pull_credentials_verification_policy.as_str();
        let list = &configuration.preloaded_images_verification_allowlist;
        if !configuration.verifies_pulled_images() {
            return match (policy, &list[..]) {
                ("", []) => Ok(None),
                ("", _) => Err(Error::GateIsOff("preloadedImagesVerificationAllowlist")),
                _ => Err(Error::GateIsOff("imagePullCredentialsVerificationPolicy")),
            };
        }
        let policy = match policy {
            "NeverVerify" => VerificationPolicy::NeverVerify,
            "" | "NeverVerifyPreloadedImages" => VerificationPolicy::NeverVerifyPreloadedImages,
            "NeverVerifyAllowlistedImages" => {
                return allowlist(list).map(Some).map_err(Error::AllowlistPattern);
            }
            "AlwaysVerify" => VerificationPolicy::AlwaysVerify,
            other => return Err(Error::UnknownVerificationPolicy(other.to_owned())),
        };
        if list.is_empty() { Ok(Some(policy)) } else { Err(Error::AllowlistWithoutPolicy) }
    }

    /// Returns whether a pod needs credentials for an image that is there. `is_pulled`: by the
    /// kubelet, as far as is recorded. Upstream: `RequireCredentialVerificationForImage`.
    pub(super) fn requires_credentials(&self, image: &str, is_pulled: bool) -> bool {
        match self {
            VerificationPolicy::NeverVerify => false,
            VerificationPolicy::NeverVerifyPreloadedImages => is_pulled,
            VerificationPolicy::NeverVerifyAllowlistedImages { names, prefixes } => {
                let name = without_tag(image).unwrap_or(image);
                let has_prefix = || prefixes.iter().any(|prefix| name.starts_with(prefix));
                !names.contains(name) && !has_prefix()
            }
            VerificationPolicy::AlwaysVerify => true,
        }
    }
}

/// Parses the patterns of `preloadedImagesVerificationAllowlist`. The text of an error is
/// upstream's. Upstream: `getAllowlistImagePattern`.
fn allowlist(patterns: &[String]) -> Result<VerificationPolicy, String> {
    let (mut names, mut prefixes) = (BTreeSet::new(), Vec::new());
    for pattern in patterns {
        let prefix = pattern.strip_suffix('*').filter(|prefix| prefix.ends_with('/'));
        let fault = match (prefix.unwrap_or(pattern), prefix) {
            _ if pattern.trim() != pattern => "leading/trailing spaces are not allowed",
            ("", _) => "the supplied pattern is too short",
            (text, _) if text.contains('*') => {
                "not a valid wildcard pattern, only patterns ending with '/*' are allowed"
            }
            ("/", Some(_)) => return Err("at least registry hostname is required".to_owned()),
            (prefix, Some(_)) => {
                prefixes.push(prefix.to_owned());
                continue;
            }
            (image, None) => match without_tag(image) {
                Err(fault) => return Err(format!("failed to parse as an image name: {fault}")),
                Ok(name) if name == image => {
                    names.insert(name.to_owned());
                    continue;
                }
                Ok(_) => "neither tag nor digest is accepted in an image reference",
            },
        };
        return Err(format!("{fault}: {pattern}"));
    }
    Ok(VerificationPolicy::NeverVerifyAllowlistedImages { names, prefixes })
}

/// Returns an image's name as a pod states it, without its tag and digest.
/// Upstream: `trimImageTagDigest`, `reference.Parse`.
///
/// # Errors
/// The name is malformed; the text is upstream's.
pub(super) fn without_tag(image: &str) -> Result<&str, &'static str> {
    let (tagged, digest) = match image.split_once('@') {
        Some((tagged, digest)) => (tagged, Some(digest)),
        None => (image, None),
    };
    let (name, tag) = match tagged.rsplit_once(':') {
        // Else it is a port.
        Some((name, tag)) if !tag.contains('/') => (name, Some(tag)),
        _ => (tagged, None),
    };
    if is_name(name) && tag.is_none_or(is_tag) && digest.is_none_or(is_digest) {
        return Ok(name);
    }
    let lower = image.to_ascii_lowercase();
    Err(match image {
        "" => "repository name must have at least one component",
        _ if lower != image && without_tag(&lower).is_ok() => "repository name must be lowercase",
        _ => "invalid reference format",
    })
}

/// Returns whether the text is a path, with or without a registry before it.
fn is_name(name: &str) -> bool {
    let path = match name.split_once('/') {
        Some((registry, path)) if is_registry(registry) => path,
        _ => name,
    };
    path.len() <= 255 && path.split('/').all(is_path_part)
}

/// Returns whether the text is a host, with or without a port.
fn is_registry(text: &str) -> bool {
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => (host, port),
        // Without a port nothing of it is invalid.
        _ => (text, "0"),
    };
    let is_label = |label: &str| {
        let is_inside = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
        let has_hyphen_outside = label.starts_with('-') || label.ends_with('-');
        !label.is_empty() && label.bytes().all(is_inside) && !has_hyphen_outside
    };
    let is_host = match host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
        Some(v6) => !v6.is_empty() && v6.bytes().all(|b| b.is_ascii_hexdigit() || b == b':'),
        None => host.split('.').all(is_label),
    };
    is_host && !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit())
}

/// Returns whether the text has lower-case letters and digits, and separators between them.
fn is_path_part(text: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let is_separator = |between: &str| {
        matches!(between, "." | "_" | "__") || between.bytes().all(|byte| byte == b'-')
    };
    text.starts_with(is_plain) && text.ends_with(is_plain) && text.split(is_plain).all(is_separator)
}

fn is_tag(text: &str) -> bool {
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    (1..=128).contains(&text.len())
        && text.bytes().all(|byte| is_word(byte) || matches!(byte, b'.' | b'-'))
        && text.bytes().next().is_some_and(is_word)
}

/// Returns whether the text is a digest by one of the algorithms that runtimes use.
fn is_digest(text: &str) -> bool {
    text.split_once(':').is_some_and(|(algorithm, hash)| {
        let digits = match algorithm {
            "sha256" => 64,
            "sha384" => 96,
            "sha512" => 128,
            _ => return false,
        };
        hash.len() == digits && hash.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::causes::chain;

    const DIGEST: &str = "@sha256:f24acc752be18b93b0504c86312bbaf482c9efb0c45e925bbccb0a591cebd7af";

    #[test]
    fn names_of_images_lose_their_tag_and_digest() {
        let long = format!("r.io/{}", "a".repeat(256));
        let (digested, tagged) = (format!("a/b{DIGEST}"), format!("a/b:c{DIGEST}"));
        for (image, expected) in [
            ("busybox", Ok("busybox")),
            ("busybox:1.0_A-b", Ok("busybox")),
            ("host:5000", Ok("host")),
            ("host:5000/a", Ok("host:5000/a")),
            ("Host.io:5000/a/b__c.d--e:x", Ok("Host.io:5000/a/b__c.d--e")),
            ("[fd00::1]:5000/a:x", Ok("[fd00::1]:5000/a")),
            ("[fd00::1]/a", Ok("[fd00::1]/a")),
            (&*digested, Ok("a/b")),
            (&*tagged, Ok("a/b")),
            ("", Err("repository name must have at least one component")),
            ("r.io/Busybox", Err("repository name must be lowercase")),
            ("a//b", Err("invalid reference format")),
            ("a___b", Err("invalid reference format")),
            ("-a", Err("invalid reference format")),
            ("r.io:x/a", Err("invalid reference format")),
            ("a:", Err("invalid reference format")),
            ("a:.b", Err("invalid reference format")),
            ("a@sha256:00", Err("invalid reference format")),
            ("a b", Err("invalid reference format")),
            (&*long, Err("invalid reference format")),
        ] {
            assert_eq!(without_tag(image), expected, "{image}");
        }
    }

    #[test]
    fn policy_decides_which_images_need_credentials() {
        let list = json!(["r.io/a", "q.io:5000/*", "p.io/b/*"]);
        // For each image: whether it needs them if the kubelet has pulled it, and else.
        for (policy, list, image, expected) in [
            ("NeverVerify", json!([]), "r.io/a", [false, false]),
            ("", json!([]), "r.io/a", [true, false]),
            ("NeverVerifyPreloadedImages", json!([]), "r.io/a", [true, false]),
            ("AlwaysVerify", json!([]), "r.io/a", [true, true]),
            ("NeverVerifyAllowlistedImages", json!([]), "r.io/a", [true, true]),
            ("NeverVerifyAllowlistedImages", list.clone(), "r.io/a:1", [false, false]),
            ("NeverVerifyAllowlistedImages", list.clone(), "r.io/a/b", [true, true]),
            ("NeverVerifyAllowlistedImages", list.clone(), "q.io:5000/x:1", [false, false]),
            ("NeverVerifyAllowlistedImages", list.clone(), "q.io:50001/x", [true, true]),
            ("NeverVerifyAllowlistedImages", list.clone(), "p.io/bc", [true, true]),
            ("NeverVerifyAllowlistedImages", list, "p.io/b/c/d", [false, false]),
        ] {
            let fields = json!({
                "imagePullCredentialsVerificationPolicy": policy,
                "preloadedImagesVerificationAllowlist": list,
            });
            let configuration = serde_json::from_value(fields).expect("a configuration");
            let policy = VerificationPolicy::of(&configuration).expect("valid").expect("on");
            let found =
                [true, false].map(|is_pulled| policy.requires_credentials(image, is_pulled));
            assert_eq!(found, expected, "{policy:?} {image}");
        }
    }

    #[test]
    fn fields_of_the_policy_are_checked() {
        let off = json!({"KubeletEnsureSecretPulledImages": false});
        let patterns = |list: &[&str]| {
            json!({
                "imagePullCredentialsVerificationPolicy": "NeverVerifyAllowlistedImages",
                "preloadedImagesVerificationAllowlist": list,
            })
        };
        let invalid = |cause: &str| {
            Some(format!(
                "invalid image pattern in `preloadedImagesVerificationAllowlist`: {cause}"
            ))
        };
        let gate = |field: &str| {
            Some(format!(
                "`{field}` must not be set if KubeletEnsureSecretPulledImages feature gate is not \
                 enabled"
            ))
        };
        for (fields, fault) in [
            (json!({}), None),
            (json!({"featureGates": off}), None),
            (
                json!({"featureGates": off,
                       "imagePullCredentialsVerificationPolicy": "NeverVerify"}),
                gate("imagePullCredentialsVerificationPolicy"),
            ),
            (
                json!({"featureGates": off, "preloadedImagesVerificationAllowlist": ["a"]}),
                gate("preloadedImagesVerificationAllowlist"),
            ),
            (
                json!({"imagePullCredentialsVerificationPolicy": "Never"}),
                Some(
                    "option \"Never\" specified for imagePullCredentialsVerificationPolicy. Valid \
                     options are \"NeverVerify\", \"NeverVerifyPreloadedImages\", \
                     \"NeverVerifyAllowlistedImages\" or \"AlwaysVerify\""
                        .to_owned(),
                ),
            ),
            (
                json!({"preloadedImagesVerificationAllowlist": ["a"]}),
                Some(
                    "can't set `preloadedImagesVerificationAllowlist` if \
                     `imagePullCredentialsVertificationPolicy` is not \
                     \"NeverVerifyAllowlistedImages\""
                        .to_owned(),
                ),
            ),
            (patterns(&["a", "r.io/*"]), None),
            (patterns(&["a "]), invalid("leading/trailing spaces are not allowed: a ")),
            (patterns(&[""]), invalid("the supplied pattern is too short: ")),
            (patterns(&["/*"]), invalid("at least registry hostname is required")),
            (
                patterns(&["a*"]),
                invalid(
                    "not a valid wildcard pattern, only patterns ending with '/*' are allowed: a*",
                ),
            ),
            (
                patterns(&["a", "b:1"]),
                invalid("neither tag nor digest is accepted in an image reference: b:1"),
            ),
            (
                patterns(&["a//b"]),
                invalid("failed to parse as an image name: invalid reference format"),
            ),
        ] {
            let configuration = serde_json::from_value(fields.clone()).expect("a configuration");
            let found = VerificationPolicy::of(&configuration).err().map(|error| chain(&error));
            assert_eq!(found, fault, "{fields}");
        }
    }
}
