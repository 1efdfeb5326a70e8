//! Renews a certificate before it expires. Upstream: `client-go/util/certificate` (`Manager`).

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use event_listener::{Event, EventListener};
use futures_lite::FutureExt;
use kube_controller_manager::client::x509::Certificate;
use kube_controller_manager::client::{self, Client, RenewedCertificate};
use kube_controller_manager::clock::SharedClock;
use kube_controller_manager::objects::Timestamp;
use kube_controller_manager::task;
use parking_lot::Mutex;

use super::Error;
use super::csr::{self, ENCIPHERMENT, SIGNATURE};
use super::key::{PrivateKey, Template};
use super::store::{Pair, Store};
use crate::causes::chain;
use crate::metrics::CertificateMetrics;

/// How long a request waits for its certificate. Upstream: `certificateWaitTimeout`.
const WAIT_TIMEOUT: Duration = Duration::from_secs(15 * 60);
/// The time is read again at least this often while the certificate is valid: the clock may step.
pub const CLOCK_PERIOD: Duration = Duration::from_secs(10 * 60);
/// The pauses after failures; the last one repeats.
const PAUSES: [u64; 5] = [2, 4, 8, 16, 32];

/// The certificate that is wanted; none can be asked for before one is set. Cheap to clone: all
/// clones are one.
#[derive(Clone, Default)]
pub struct Wanted(Arc<WantedState>);

#[derive(Default)]
struct WantedState {
    template: Mutex<Option<Template>>,
    changed: Event,
}

impl Wanted {
    /// Wants this certificate from now on.
    pub fn set(&self, template: Option<Template>) {
        let mut current = self.0.template.lock();
        if *current != template {
            *current = template;
            drop(current);
            task::notify_all(&self.0.changed);
        }
    }

    fn get(&self) -> Option<Template> {
        self.0.template.lock().clone()
    }

    fn listen(&self) -> EventListener {
        self.0.changed.listen()
    }
}

/// Returns the client for a request. The argument: whether there is a valid certificate for the
/// client to show.
pub type ClientFn = Box<dyn Fn(bool) -> client::Result<Client> + Send + Sync>;

/// The purpose of a certificate.
pub struct Purpose {
    pub signer: &'static str,
    /// `client auth` or `server auth`.
    pub usage: &'static str,
    pub metrics: CertificateMetrics,
}

/// Keeps a certificate current: requests another one, with a new key each time, at 70 to 90 % of
/// its life, when it lacks a name that is wanted, and without one. The server's clean-up
/// removes requests without an answer.
pub struct Manager {
    purpose: Purpose,
    store: Arc<Store>,
    wanted: Wanted,
    clock: SharedClock,
    /// Gets each new certificate.
    shown: RenewedCertificate,
    state: Mutex<State>,
    changed: Event,
}

#[derive(Default)]
struct State {
    current: Option<Arc<Pair>>,
    /// When the current one is replaced.
    deadline: Timestamp,
    /// What was asked for last: a signer may issue less, which is no reason to ask again.
    requested: Option<Template>,
    /// Whether the server answered the last request, if only by a refusal.
    is_server_healthy: bool,
}

/// The certificate with which a manager starts.
pub enum Initial {
    /// The certificate of the store.
    Stored(Pair),
    /// To be replaced at once, such as an administrator's.
    Replaced(Pair),
    None,
}

impl Manager {
    /// Creates a manager that shows the initial certificate. An initial one that is to be replaced
    /// is due for renewal at once.
    pub fn new(
        purpose: Purpose,
        store: Store,
        wanted: Wanted,
        initial: Initial,
        clock: SharedClock,
    ) -> Manager {
        let manager = Manager {
            purpose,
            store: Arc::new(store),
            wanted,
            clock,
            shown: RenewedCertificate::default(),
            state: Mutex::default(),
            changed: Event::new(),
        };
        match initial {
            Initial::Stored(pair) => manager.set(Arc::new(pair)),
            Initial::Replaced(pair) => {
                manager.set(Arc::new(pair));
                manager.state.lock().deadline = manager.clock.now();
            }
            Initial::None => {}
        }
        manager.purpose.metrics.begin();
        manager
    }

    /// Returns the current certificate; `None`: absent or expired.
    pub fn current(&self) -> Option<Arc<Pair>> {
        let current = self.state.lock().current.clone();
        current.filter(|pair| !pair.is_expired(self.clock.now()))
    }

    /// Returns the certificate as clients of the API server show it.
    pub fn shown(&self) -> &RenewedCertificate {
        &self.shown
    }

    /// Returns whether the server answered the last request, if only by a refusal.
    pub fn is_server_healthy(&self) -> bool {
        self.state.lock().is_server_healthy
    }

    /// Resolves when there is another certificate after this call.
    pub fn listen(&self) -> EventListener {
        self.changed.listen()
    }

    /// Makes a certificate the current one, and chooses when it is replaced.
    fn set(&self, pair: Arc<Pair>) {
        self.purpose.metrics.set_expiration(pair.leaf.not_after());
        self.shown.set(pair.certificate.clone(), pair.key.clone());
        let mut state = self.state.lock();
        state.deadline = deadline(&pair.leaf, fastrand::f64());
        state.current = Some(pair);
        drop(state);
        task::notify_all(&self.changed);
    }

    /// Renews the certificate for ever. May be dropped at any time.
    pub async fn run(&self, client: ClientFn) -> Infallible {
        loop {
            self.wait_until_due().await;
            let is_renewed = self.renew_with_retries(&client).await;
            if is_renewed && self.state.lock().deadline <= self.clock.now() {
                // Upstream requests another one each second.
                log::warn!(
                    "{}: the certificate is to be renewed already: is the clock right?",
                    self.purpose.signer
                );
                self.clock.sleep(pause_after(PAUSES.len())).await;
            }
        }
    }

    /// Renews the certificate, repeated with pauses until that succeeds; `false`: there is nothing
    /// to ask for any more.
    async fn renew_with_retries(&self, client: &ClientFn) -> bool {
        // A certificate that could not be written is kept and used; nothing is asked for meanwhile.
        let mut issued = None;
        let mut failures = 0;
        loop {
            match self.renew(client, &mut issued).await {
                Ok(()) => return true,
                Err(Error::NoTemplate) => return false,
                Err(error) => log::error!("{}: {}", self.purpose.signer, chain(&error)),
            }
            self.purpose.metrics.count_failure();
            failures += 1;
            self.clock.sleep(pause_after(failures)).await;
        }
    }

    /// Returns when to ask for a certificate; `None`: there is nothing to ask for.
    fn due(&self) -> Option<Timestamp> {
        let wanted = self.wanted.get()?;
        let state = self.state.lock();
        // A signer may have left out names that were requested: they are not requested again.
        let satisfies = state.current.as_ref().is_some_and(|pair| {
            satisfies(&pair.leaf, &wanted) || state.requested.as_ref() == Some(&wanted)
        });
        Some(if satisfies { state.deadline } else { self.clock.now() })
    }

    /// Waits until a certificate must be requested. The clock may be set and the template may
    /// change meanwhile.
    async fn wait_until_due(&self) {
        loop {
            let changed = self.wanted.listen();
            let Some(due) = self.due() else {
                changed.await;
                continue;
            };
            let pause = due.duration_since(self.clock.now());
            if pause.is_zero() {
                return;
            }
            self.clock.sleep(pause.min(CLOCK_PERIOD)).or(changed).await;
        }
    }

    /// Gets a certificate, makes it the current one, and writes it. `issued`: one that an earlier
    /// call could not write; it is in use already. Upstream: `rotateCerts`, which does not use a
    /// certificate that is not written.
    async fn renew(
        &self,
        client: &ClientFn,
        issued: &mut Option<(Template, Arc<Pair>)>,
    ) -> Result<(), Error> {
        let wanted = self.wanted.get().ok_or(Error::NoTemplate)?;
        let is_good = |(template, pair): &(Template, Arc<Pair>)| {
            *template == wanted && !pair.is_expired(self.clock.now())
        };
        let pair = match issued.take_if(|issued| is_good(issued)) {
            Some((_, pair)) => pair,
            None => Arc::new(self.obtain(client, &wanted).await?),
        };
        self.accept(&wanted, &pair);
        let (store, written, now) = (self.store.clone(), pair.clone(), self.clock.now());
        if let Err(error) = task::blocking(move || store.update(&written, now)).await {
            *issued = Some((wanted, pair));
            return Err(error);
        }
        Ok(())
    }

    /// Uses a certificate that was issued for `wanted`, unless it is in use already.
    fn accept(&self, wanted: &Template, pair: &Arc<Pair>) {
        let former = {
            let mut state = self.state.lock();
            if state.current.as_ref().is_some_and(|current| Arc::ptr_eq(current, pair)) {
                return;
            }
            state.is_server_healthy = true;
            state.requested = Some(wanted.clone());
            state.current.clone()
        };
        self.set(pair.clone());
        log::info!("{}: the certificate is renewed", self.purpose.signer);
        if let Some(former) = former {
            let age = self.clock.now().duration_since(former.leaf.not_before());
            self.purpose.metrics.observe_age(age);
        }
    }

    /// Requests a certificate for a new key, and waits until it is issued. Errors: too late, or the
    /// wanted certificate has changed meanwhile.
    async fn obtain(&self, client: &ClientFn, wanted: &Template) -> Result<Pair, Error> {
        let key = PrivateKey::generate()?;
        let which = "a client to request certificates";
        let client = client(self.current().is_some())
            .map_err(|source| Error::Kubeconfig { which, source })?;
        let Purpose { signer, usage, .. } = self.purpose;
        let of_rsa = [SIGNATURE, ENCIPHERMENT, usage];
        let usages = if key.is_rsa() { &of_rsa[..] } else { &[SIGNATURE, usage] };
        let now = self.clock.now();
        let submitted = csr::submit(&client, wanted, &key, None, signer, usages, now);
        let submitted = submitted.await.inspect_err(|error| self.note_answer(error))?;
        let late = async {
            self.clock.sleep(WAIT_TIMEOUT).await;
            Err(Error::TimedOut)
        };
        let outdated = async {
            loop {
                let changed = self.wanted.listen();
                if self.is_outdated(wanted) {
                    return Err(Error::Outdated);
                }
                changed.await;
            }
        };
        let issued = csr::wait(&client, &submitted, &self.clock);
        let text = issued.or(late).or(outdated).await?;
        Pair::from_pem(&text, &key.pem, "the certificate that was issued")
    }

    /// Returns whether neither the current certificate nor the one for `requested` is what is
    /// wanted now. False if nothing is wanted.
    fn is_outdated(&self, requested: &Template) -> bool {
        let Some(wanted) = self.wanted.get().filter(|wanted| wanted != requested) else {
            return false;
        };
        !self.current().is_some_and(|pair| satisfies(&pair.leaf, &wanted))
    }

    /// Records, by the error of a request, whether the API server has answered it: a refusal is an
    /// answer too. Other errors say nothing about that. Upstream: `updateServerError`.
    pub fn note_answer(&self, error: &Error) {
        let is_answer = match error {
            // A proxy that ends TLS may answer with 401.
            Error::Request { source, .. } => {
                source.code() == Some(401) || source.is_not_found() || source.is_forbidden()
            }
            _ => return,
        };
        self.state.lock().is_server_healthy = is_answer;
    }
}

/// Returns the pause after this number of failures, at least one.
fn pause_after(failures: usize) -> Duration {
    let pause = PAUSES[failures.clamp(1, PAUSES.len()) - 1];
    Duration::from_secs(pause).mul_f64(1.0 + 0.1 * fastrand::f64())
}

/// Returns when a certificate is replaced: at 70 to 90 % of its life, by `share` from 0 to 1, so
/// that nodes that were made together do not renew together. Upstream: `nextRotationDeadline`.
fn deadline(leaf: &Certificate, share: f64) -> Timestamp {
    let life = leaf.not_after().duration_since(leaf.not_before());
    leaf.not_before() + life.mul_f64(0.7 + 0.2 * share)
}

/// Returns whether a certificate has the subject and all names that are wanted; it may have more.
/// Upstream: `certSatisfiesTemplate`.
fn satisfies(leaf: &Certificate, wanted: &Template) -> bool {
    let (dns, ips) = (leaf.dns_names(), leaf.ip_addresses());
    leaf.common_names().any(|name| name == wanted.common_name)
        && leaf.organizations().any(|name| name == wanted.organization)
        && wanted.dns_names.iter().all(|name| dns.contains(name))
        && wanted.ips.iter().all(|ip| ips.contains(ip))
}

#[cfg(test)]
mod tests {
    use futures_lite::future::{block_on, poll_once};
    use kube_controller_manager::clock::FakeClock;

    use super::super::testing::{Folder, authority};
    use super::super::{CLIENT_AUTH, CLIENT_STORE};
    use super::*;

    const BEGIN: Timestamp = Timestamp::from_secs(1_800_000_000);
    const HOUR: Duration = Duration::from_secs(3600);

    /// A manager at the begin of the life of its certificates, which is 100 hours.
    fn manager(folder: &Folder, initial: Initial, wanted: &Wanted) -> (Manager, Arc<FakeClock>) {
        let clock = FakeClock::new(BEGIN);
        let store = Store::open(CLIENT_STORE, folder.path(), None).expect("a store");
        let metrics = CertificateMetrics::Client;
        let purpose = Purpose { signer: csr::CLIENT_SIGNER, usage: CLIENT_AUTH, metrics };
        (Manager::new(purpose, store, wanted.clone(), initial, clock.clone()), clock)
    }

    fn template(names: &[&str]) -> Template {
        Template {
            dns_names: names.iter().copied().map(str::to_owned).collect(),
            ips: vec!["10.0.0.7".parse().expect("an address")],
            ..Template::of_node("n1")
        }
    }

    fn pair(names: &[&str]) -> Pair {
        authority().sign_for(&template(names), BEGIN, 100 * HOUR)
    }

    #[test]
    fn deadline_is_at_70_to_90_percent_of_the_life() {
        let leaf = pair(&[]).leaf;
        for (share, hours) in [(0.0, 70), (0.5, 80), (1.0, 90)] {
            assert_eq!(deadline(&leaf, share).as_secs(), (BEGIN + hours * HOUR).as_secs());
        }
    }

    #[test]
    fn certificate_is_due_when_it_is_old_or_lacks_a_name() {
        let folder = Folder::new("manager-due");
        let wanted = Wanted::default();
        let (empty, _) = manager(&folder, Initial::None, &wanted);
        assert_eq!(empty.due(), None, "there is nothing to ask for");
        wanted.set(Some(template(&["a"])));
        assert_eq!(empty.due(), Some(BEGIN));
        let (replaced, _) = manager(&folder, Initial::Replaced(pair(&["a"])), &wanted);
        assert_eq!(replaced.due(), Some(BEGIN));
        let (stored, clock) = manager(&folder, Initial::Stored(pair(&["a", "b"])), &wanted);
        let old = stored.due().expect("a time");
        assert!((BEGIN + 70 * HOUR..BEGIN + 90 * HOUR).contains(&old), "it may have more names");
        for lacking in [
            template(&["c"]),
            Template { ips: vec!["10.0.0.8".parse().expect("an address")], ..template(&[]) },
            Template { common_name: "system:node:n2".to_owned(), ..template(&[]) },
            Template { organization: "x".to_owned(), ..template(&[]) },
        ] {
            wanted.set(Some(lacking.clone()));
            assert_eq!(stored.due(), Some(BEGIN), "{lacking:?}");
        }
        // The signer has not given it although it was asked for.
        wanted.set(Some(template(&["c"])));
        stored.state.lock().requested = Some(template(&["c"]));
        assert_eq!(stored.due(), Some(old));
        clock.advance(101 * HOUR);
        assert!(stored.current().is_none() && stored.due() == Some(old), "it is expired");
    }

    #[test]
    fn renewal_begins_with_the_deadline_or_a_change() {
        let folder = Folder::new("manager-wait");
        let wanted = Wanted::default();
        wanted.set(Some(template(&["a"])));
        let (manager, clock) = manager(&folder, Initial::Stored(pair(&["a"])), &wanted);
        let waiting = |manager: &Manager| {
            let mut due = Box::pin(manager.wait_until_due());
            block_on(poll_once(&mut due)).is_none()
        };
        assert!(waiting(&manager));
        wanted.set(None);
        assert!(waiting(&manager));
        wanted.set(Some(template(&["c"])));
        assert!(!waiting(&manager));
        wanted.set(Some(template(&[])));
        let mut due = Box::pin(manager.wait_until_due());
        // The clock is stepped: the sleep is short enough to notice it.
        assert!(block_on(poll_once(&mut due)).is_none());
        clock.advance(90 * HOUR);
        assert!(block_on(poll_once(&mut due)).is_some());
    }

    #[test]
    fn request_is_outdated_once_another_certificate_is_needed() {
        let folder = Folder::new("manager-outdated");
        let wanted = Wanted::default();
        let (manager, _) = manager(&folder, Initial::Stored(pair(&["a"])), &wanted);
        for (now, outdated) in [
            (None, false),
            (Some(template(&["b"])), false),
            (Some(template(&["a"])), false),
            (Some(template(&["c"])), true),
        ] {
            wanted.set(now.clone());
            assert_eq!(manager.is_outdated(&template(&["b"])), outdated, "{now:?}");
        }
    }

    #[test]
    fn issued_certificate_that_cannot_be_written_is_used_and_kept() {
        let folder = Folder::new("manager-full");
        let wanted = Wanted::default();
        wanted.set(Some(template(&["a"])));
        let (manager, clock) = manager(&folder, Initial::None, &wanted);
        let taken = folder.path().join("kubelet-client-2027-01-15-08-00-00.pem");
        std::fs::create_dir(&taken).expect("a folder");
        let no_client: ClientFn = Box::new(|_| panic!("no request is sent"));
        let issued = Arc::new(pair(&["a"]));
        let mut kept = Some((template(&["a"]), issued.clone()));
        let renewed = block_on(manager.renew(&no_client, &mut kept));
        assert!(matches!(renewed, Err(Error::File { .. })), "{renewed:?}");
        let current = manager.current().expect("a certificate");
        assert!(kept.is_some() && Arc::ptr_eq(&current, &issued));
        let (deadline, mut changed) = (manager.state.lock().deadline, manager.listen());
        clock.advance(Duration::from_secs(1));
        block_on(manager.renew(&no_client, &mut kept)).expect("written");
        let current = manager.current().expect("a certificate");
        assert!(kept.is_none() && Arc::ptr_eq(&current, &issued));
        // Clients need not connect again.
        assert_eq!(manager.state.lock().deadline, deadline);
        assert!(block_on(poll_once(&mut changed)).is_none());
    }
}
