//! Marks auto-generated token Secrets that are long unused as invalid, and deletes them after the
//! same time again. Upstream: `legacy_serviceaccount_token_cleaner.go`.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::pod_secrets::PodSecrets;
use super::token_secrets;
use crate::cache::Lister;
use crate::client::{self, Client, Delete, ListOptions, Patch};
use crate::clock::SharedClock;
use crate::controllers::{Controller, Error};
use crate::objects::{Istr, ObjectKey, ResourceType, ServiceAccount, Timestamp, TokenSecret};

/// Labels of token Secrets. Their values are dates.
const LAST_USED: &str = "kubernetes.io/legacy-token-last-used";
const INVALID_SINCE: &str = "kubernetes.io/legacy-token-invalid-since";
/// The ConfigMap with the date since which the API server labels used tokens.
const TRACKING_CONFIG_MAP: &str = "kube-apiserver-legacy-service-account-token-tracking";
const CONFIG_MAPS: ResourceType = ResourceType::fixed("", "v1", "ConfigMap", "configmaps", true);

const INTERVAL: Duration = Duration::from_secs(24 * 3600);
const DAY: Duration = Duration::from_secs(24 * 3600);

struct Cleaner {
    client: Client,
    /// Reads pods, with the permissions that the caches have.
    reader: Client,
    clock: SharedClock,
    accounts: Lister<ServiceAccount>,
    secrets: Lister<TokenSecret>,
    /// How long a token is unused before it is marked, and marked before it is deleted.
    clean_up_period: Duration,
}

/// Sets up the controller `legacy-serviceaccount-token-cleaner-controller`.
///
/// # Errors
/// When `--legacy-service-account-token-clean-up-period` is zero.
pub fn controller(c: &mut Controller) -> Result<(), String> {
    let clean_up_period = c.options().legacy_service_account_token_clean_up_period;
    if clean_up_period.is_zero() {
        return Err("failed to init the legacy service account token cleaner: \
                    invalid CleanUpPeriod: 0s"
            .into());
    }
    let this = Arc::new(Cleaner {
        client: c.client(),
        reader: c.root_client("shared-informers"),
        clock: c.clock(),
        accounts: c.lister(),
        secrets: token_secrets(c),
        clean_up_period,
    });
    c.every(INTERVAL, move || this.clone().clean());
    Ok(())
}

impl Cleaner {
    /// Marks or deletes the tokens that are long unused, unless uses were not recorded for long
    /// enough. Runs every [`INTERVAL`].
    async fn clean(self: Arc<Self>) -> Result<(), Error> {
        let now = self.clock.now();
        let tracking: Value = self
            .client
            .resource(&CONFIG_MAPS)
            .get(&ObjectKey::new("kube-system", TRACKING_CONFIG_MAP))
            .await?;
        let Some(tracked_since) = tracking["data"]["since"].as_str() else {
            return Err(Error::other("configMap does not have since label"));
        };
        let cutoff = Cutoff::new(tracked_since, now, self.clean_up_period);
        let Some(cutoff) = cutoff.map_err(Error::other)? else { return Ok(()) };
        let mut mounted_by_namespace = HashMap::new();
        for secret in self.secrets.list() {
            let account =
                self.accounts.get(&ObjectKey::new(&secret.meta.namespace, secret.account_name()));
            if !cutoff.is_unused(&secret, account.as_deref()) {
                continue;
            }
            let cleaned = self.clean_secret(&secret, &cutoff, &mut mounted_by_namespace).await;
            // A failure must not stop the others: this Secret is checked again another day.
            if let Err(error) = cleaned {
                log::error!("legacy service account token {}: {error}", secret.meta.key());
            }
        }
        Ok(())
    }

    /// Takes the next step for an unused token, unless a pod names its Secret: then it stays.
    async fn clean_secret(
        &self,
        secret: &TokenSecret,
        cutoff: &Cutoff,
        mounted_by_namespace: &mut HashMap<Istr, HashSet<String>>,
    ) -> client::Result<()> {
        let mounted = self.mounted_secrets(&secret.meta.namespace, mounted_by_namespace).await?;
        if mounted.contains(&*secret.meta.name) {
            return Ok(());
        }
        self.carry_out(cutoff.next_step(secret), secret).await
    }

    /// Returns the names of the Secrets that the pods of a namespace use. The pods are read from
    /// the API server once a pass, when they are needed, which is rare, so that cached pods need
    /// not hold these names.
    async fn mounted_secrets<'a>(
        &self,
        namespace: &Istr,
        by_namespace: &'a mut HashMap<Istr, HashSet<String>>,
    ) -> client::Result<&'a HashSet<String>> {
        if !by_namespace.contains_key(namespace) {
            let pods: Vec<PodSecrets> =
                self.reader.list(Some(namespace), &ListOptions::default()).await?;
            let names = pods.into_iter().flat_map(PodSecrets::names).collect();
            by_namespace.insert(namespace.clone(), names);
        }
        Ok(&by_namespace[namespace])
    }

    /// Carries out a step: sets the label, or deletes the Secret if it has not changed.
    async fn carry_out(&self, step: Step, secret: &TokenSecret) -> client::Result<()> {
        let (meta, key) = (&secret.meta, secret.meta.key());
        match step {
            Step::Wait => Ok(()),
            Step::Invalidate { since } => {
                log::info!("Mark the auto-generated service account token {key} as invalid");
                let patch = json!({
                    "apiVersion": "v1", "kind": "Secret",
                    "metadata": {
                        "name": &*meta.name, "namespace": &*meta.namespace, "uid": meta.uid,
                        "labels": { INVALID_SINCE: since },
                    },
                });
                self.client.patch::<TokenSecret>(&key, &Patch::Merge(patch)).await.map(drop)
            }
            Step::Delete => {
                log::info!("Delete auto-generated service account token {key}");
                let unchanged = Delete::new().resource_version(meta.resource_version);
                match self.client.delete::<TokenSecret>(&key, unchanged).await {
                    Err(error) if error.is_conflict() || error.is_not_found() => Ok(()),
                    other => other,
                }
            }
        }
    }
}

/// The next step for an unused token.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    /// Nothing is to do yet: the token was marked recently.
    Wait,
    Invalidate {
        since: String,
    },
    Delete,
}

/// The time before which a token must have been last used, or marked, for the next step.
struct Cutoff {
    today: String,
    /// Tokens created at this time or later stay.
    time: Timestamp,
    /// The date of `time`. Tokens used or marked on this date or later stay.
    date: String,
}

impl Cutoff {
    /// Computes the times before which a token counts as unused; `None` if uses are recorded for
    /// too short a time, since `tracked_since`.
    fn new(
        tracked_since: &str,
        now: Timestamp,
        clean_up_period: Duration,
    ) -> Result<Option<Cutoff>, String> {
        let Some(first_day) = parse_date(tracked_since) else {
            return Err(format!("error parsing trackedSince time: {tracked_since:?}"));
        };
        // On the first day not every use was recorded.
        let fully_tracked = first_day + DAY;
        if now < fully_tracked + clean_up_period {
            return Ok(None);
        }
        let time = now - clean_up_period;
        Ok(Some(Cutoff { today: format_date(now), time, date: format_date(time) }))
    }

    /// Returns whether this token was generated for `account`, its account, before the cutoff and
    /// has not been used since. `false` also if it is being deleted, or its label is malformed.
    fn is_unused(&self, secret: &TokenSecret, account: Option<&ServiceAccount>) -> bool {
        let meta = &secret.meta;
        let is_new = meta.creation_timestamp.is_some_and(|created| created >= self.time);
        if is_new || meta.is_being_deleted() {
            return false;
        }
        if let Some(last_used) = meta.labels.get(LAST_USED) {
            if parse_date(last_used).is_none() {
                log::error!("{}: label {LAST_USED} is no date: {last_used:?}", meta.key());
                return false;
            }
            if *last_used >= *self.date {
                return false;
            }
        }
        account.is_some_and(|account| {
            secret.is_for(&account.meta.name, &account.meta.uid) && account.names_secret(&meta.name)
        })
    }

    /// Returns the next step for a token that is unused.
    fn next_step(&self, secret: &TokenSecret) -> Step {
        let since =
            secret.meta.labels.get(INVALID_SINCE).filter(|since| parse_date(since).is_some());
        match since {
            None => Step::Invalidate { since: self.today.clone() },
            Some(since) if *since >= *self.date => Step::Wait,
            Some(_) => Step::Delete,
        }
    }
}

/// Parses a date of the form `2006-01-02` to the beginning of that day.
fn parse_date(text: &str) -> Option<Timestamp> {
    format!("{text}T00:00:00Z").parse().ok()
}

/// Formats the date of `time` as `2006-01-02`.
fn format_date(time: Timestamp) -> String {
    time.to_string().chars().take_while(|character| *character != 'T').collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::{Clock, FakeClock};

    const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);

    fn time(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    fn account(secrets: Value) -> ServiceAccount {
        let metadata = json!({ "namespace": "ns", "name": "robot", "uid": "u-1" });
        serde_json::from_value(json!({ "metadata": metadata, "secrets": secrets })).unwrap()
    }

    /// Made at `created`, with these two labels where they are not empty.
    fn secret(created: &str, last_used: &str, invalid_since: &str) -> TokenSecret {
        let labels: serde_json::Map<String, Value> =
            [(LAST_USED, last_used), (INVALID_SINCE, invalid_since)]
                .into_iter()
                .filter(|(_, value)| !value.is_empty())
                .map(|(key, value)| (key.to_owned(), value.into()))
                .collect();
        serde_json::from_value(json!({ "metadata": {
            "namespace": "ns", "name": "s", "creationTimestamp": created, "labels": labels,
            "annotations": { TokenSecret::ACCOUNT_NAME: "robot", TokenSecret::ACCOUNT_UID: "u-1" },
        } }))
        .unwrap()
    }

    #[test]
    fn no_token_is_marked_before_uses_were_tracked_for_the_period() {
        let cutoff =
            |since: &str, now: &str| Cutoff::new(since, time(now), YEAR).map(|r| r.is_some());
        assert_eq!(cutoff("2025-01-01", "2026-01-01T23:59:59Z"), Ok(false));
        assert_eq!(cutoff("2025-01-01", "2026-01-02T00:00:00Z"), Ok(true));
        for bad in ["", "2025-1-1", "20250101", "2025-13-01", "yesterday!"] {
            assert!(cutoff(bad, "2026-01-02T00:00:00Z").is_err(), "{bad}");
        }
    }

    #[test]
    fn a_token_that_may_be_in_use_stays() {
        let now = time("2026-06-15T12:00:00Z");
        let cutoff = Cutoff::new("2020-01-01", now, YEAR).unwrap().unwrap();
        let owner = account(json!([{ "name": "s" }]));
        let old = "2024-01-01T00:00:00Z";
        for (created, last_used, unused) in [
            (old, "", true),
            (old, "2025-06-14", true),
            (old, "2025-06-15", false),
            (old, "2025-6-14", false),
            ("2025-06-15T11:59:59Z", "", true),
            ("2025-06-15T12:00:00Z", "", false),
        ] {
            let secret = secret(created, last_used, "");
            assert_eq!(cutoff.is_unused(&secret, Some(&owner)), unused, "{created} {last_used}");
        }
        let unused = secret(old, "", "");
        assert!(!cutoff.is_unused(&unused, None), "the account is gone");
        assert!(!cutoff.is_unused(&unused, Some(&account(json!([])))), "made by hand");
        let mut recreated_account = owner.clone();
        recreated_account.meta.uid = "u-2".into();
        assert!(
            !cutoff.is_unused(&unused, Some(&recreated_account)),
            "of another account of that name"
        );
        let mut deleting = unused.clone();
        deleting.meta.deletion_timestamp = Some(now);
        assert!(!cutoff.is_unused(&deleting, Some(&owner)));
    }

    #[test]
    fn a_token_is_marked_and_a_period_later_deleted() {
        let clock = FakeClock::new(time("2026-06-15T12:00:00Z"));
        let cutoff = |clock: &FakeClock| {
            Cutoff::new("2020-01-01", clock.now(), YEAR).unwrap().expect("tracked for long enough")
        };
        let old = "2024-01-01T00:00:00Z";
        let marked = Step::Invalidate { since: "2026-06-15".into() };
        assert_eq!(cutoff(&clock).next_step(&secret(old, "", "")), marked);
        assert_eq!(cutoff(&clock).next_step(&secret(old, "", "no date")), marked);
        let secret = secret(old, "", "2026-06-15");
        clock.advance(YEAR);
        assert_eq!(cutoff(&clock).next_step(&secret), Step::Wait);
        clock.advance(DAY);
        assert_eq!(cutoff(&clock).next_step(&secret), Step::Delete);
    }
}
