//! Slices that systemd makes, with their limits. Its calls block.
//! Upstream: `github.com/opencontainers/cgroups/systemd`.

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use super::resources::{PERIOD, Resources, weight};
use crate::causes::chain;
use crate::dbus::wire::{Argument, Value};
use crate::dbus::{Connection, Error, Object, SYSTEM_BUS};

const SYSTEMD: Object = Object {
    destination: "org.freedesktop.systemd1",
    path: "/org/freedesktop/systemd1",
    interface: "org.freedesktop.systemd1.Manager",
};

/// The slice above all others.
const ROOT: &str = "-.slice";
/// Within this time a job has to end.
const JOB: Duration = Duration::from_secs(30);
/// The first version that takes the period of a CPU limit. Those before have 100 ms.
const HAS_QUOTA_PERIOD: u32 = 242;
/// CPU limits are whole hundredths of a CPU: microseconds in each second.
const QUOTA_STEP: i64 = 10_000;

/// systemd, by the system's message bus.
#[derive(Clone, Debug)]
pub struct Systemd {
    socket: PathBuf,
    /// Of systemd, once it was read.
    version: Arc<OnceLock<u32>>,
}

impl Default for Systemd {
    fn default() -> Systemd {
        Systemd { socket: SYSTEM_BUS.into(), version: Arc::default() }
    }
}

/// Returns the quota of CPU that systemd can keep for a period of 100 ms, which may be more.
pub fn rounded_quota(quota: i64) -> i64 {
    match per_second(quota) {
        None => quota,
        Some(micros) => micros.saturating_mul(PERIOD) / 1_000_000,
    }
}

/// Returns the microseconds in each second, rounded up; `None`: no limit.
fn per_second(quota: i64) -> Option<i64> {
    let micros = quota.saturating_mul(1_000_000) / PERIOD;
    (quota > 0)
        .then(|| (micros.saturating_add(QUOTA_STEP - 1) / QUOTA_STEP).saturating_mul(QUOTA_STEP))
}

/// Returns the first number of a version such as `v245.4-1.fc32`; 0: it has none.
fn major(version: &str) -> u32 {
    let digits = version.trim_start_matches(['"', 'v']);
    let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
    digits[..end].parse().unwrap_or(0)
}

/// Converts the limits to properties of a unit. Those that this systemd does not know are only in
/// files. Upstream: `genV1ResourcesProperties`, `genV2ResourcesProperties`.
fn properties(resources: &Resources, is_v2: bool, version: u32) -> Vec<(&'static str, Value)> {
    let mut all = Vec::new();
    // The largest number is systemd's infinity: negative limits are none.
    let unsigned = |value: i64| Value::Unsigned(u64::try_from(value).unwrap_or(u64::MAX));
    if let Some(bytes) = resources.memory.filter(|bytes| *bytes != 0) {
        all.push((if is_v2 { "MemoryMax" } else { "MemoryLimit" }, unsigned(bytes)));
    }
    if let Some(shares) = resources.cpu_shares {
        all.push(match is_v2 {
            true => ("CPUWeight", Value::Unsigned(weight(shares))),
            false => ("CPUShares", Value::Unsigned(shares)),
        });
    }
    if let Some(quota) = resources.cpu_quota {
        if version >= HAS_QUOTA_PERIOD {
            all.push(("CPUQuotaPeriodUSec", unsigned(PERIOD)));
        }
        all.push(("CPUQuotaPerSecUSec", unsigned(per_second(quota).unwrap_or(-1))));
    }
    if let Some(pids) = resources.pids {
        // It does not take 0.
        all.push(("TasksMax", unsigned(if pids == 0 { 1 } else { pids })));
    }
    all
}

impl Systemd {
    #[cfg(test)]
    pub fn at(socket: &std::path::Path) -> Systemd {
        Systemd { socket: socket.to_owned(), version: Arc::default() }
    }

    /// Makes the slice of a path such as `/a.slice/a-b.slice` unless it exists, and sets its limits.
    ///
    /// # Errors
    /// One that names the slice.
    pub fn make(&self, path: &str, resources: &Resources, is_v2: bool) -> io::Result<()> {
        let (slice, parent) = names(path);
        let made = self.open().and_then(|mut bus| {
            start(&mut bus, slice, parent, is_v2)?;
            let version = self.version(&mut bus)?;
            let limits = Argument::Properties(properties(resources, is_v2, version));
            // `true`: until the machine starts again.
            let arguments = [Argument::text(slice), Argument::Bool(true), limits];
            bus.call(SYSTEMD, "SetUnitProperties", &arguments)
        });
        made.map(drop).map_err(|error| fault(slice, &error))
    }

    /// Stops a slice, and removes it where it has failed.
    ///
    /// # Errors
    /// One that names the slice.
    pub fn stop(&self, path: &str) -> io::Result<()> {
        let (slice, _) = names(path);
        let stopped = self.open().and_then(|mut bus| {
            let arguments = [Argument::text(slice), Argument::text("replace")];
            match job(&mut bus, "StopUnit", &arguments) {
                Ok(result) if result != "done" => {
                    log::warn!("error removing unit {slice}: got {result:?}. Continuing...");
                }
                // systemd has answered: the unit may be gone already.
                Err(error) if error.name() != "" => {
                    log::debug!("removing unit {slice}: {error}");
                }
                stopped => drop(stopped?),
            }
            reset(&mut bus, slice);
            Ok(())
        });
        stopped.map_err(|error| fault(slice, &error))
    }

    /// Returns the version of systemd, which is asked once.
    fn version(&self, bus: &mut Connection) -> Result<u32, Error> {
        if let Some(version) = self.version.get() {
            return Ok(*version);
        }
        let mut value = bus.property(SYSTEMD, "Version")?;
        let _signature = value.signature()?;
        let version = major(&value.text()?);
        Ok(*self.version.get_or_init(|| version))
    }

    /// Connects to the bus, with signals of the jobs that end.
    fn open(&self) -> Result<Connection, Error> {
        let mut bus = Connection::open(&self.socket)?;
        bus.subscribe(SYSTEMD, "JobRemoved")?;
        // systemd sends signals only then.
        bus.call(SYSTEMD, "Subscribe", &[])?;
        Ok(bus)
    }
}

fn fault(slice: &str, error: &Error) -> io::Error {
    io::Error::other(format!("systemd's unit {slice}: {}", chain(error)))
}

/// Returns the names of a slice and of the one above it.
fn names(path: &str) -> (&str, &str) {
    let mut parts = path.rsplit('/').filter(|part| !part.is_empty());
    let slice = parts.next().unwrap_or(ROOT);
    (slice, parts.next().unwrap_or(ROOT))
}

/// Starts the slice of a pod or class as a transient unit, unless it exists. Upstream: `startUnit`.
fn start(bus: &mut Connection, slice: &str, parent: &str, is_v2: bool) -> Result<(), Error> {
    let io_accounting = if is_v2 { "IOAccounting" } else { "BlockIOAccounting" };
    let properties = vec![
        ("Description", Value::Text(format!("libcontainer container {slice}"))),
        // Its name puts a slice into its parent, which it only has to want.
        ("Wants", Value::Texts(vec![parent.to_owned()])),
        ("MemoryAccounting", Value::Bool(true)),
        ("CPUAccounting", Value::Bool(true)),
        (io_accounting, Value::Bool(true)),
        ("TasksAccounting", Value::Bool(true)),
        ("DefaultDependencies", Value::Bool(false)),
    ];
    let arguments = [
        Argument::text(slice),
        Argument::text("replace"),
        Argument::Properties(properties),
        Argument::NoUnits,
    ];
    match job(bus, "StartTransientUnit", &arguments) {
        Ok(result) if result != "done" => {
            reset(bus, slice);
            let method = "StartTransientUnit".to_owned();
            Err(Error::Failed { method, name: "job".to_owned(), message: result })
        }
        Err(error) if error.name().ends_with(".UnitExists") => Ok(()),
        started => started.map(drop),
    }
}

/// Begins a job, and waits for its result, such as `done`. Signals of other jobs are dropped.
fn job(bus: &mut Connection, member: &str, arguments: &[Argument]) -> Result<String, Error> {
    let job = bus.call(SYSTEMD, member, arguments)?.text()?;
    loop {
        let mut signal = bus.signal(Some(JOB))?;
        if signal.member != "JobRemoved" {
            continue;
        }
        let _id = signal.body.u32()?;
        let (ended, _unit) = (signal.body.text()?, signal.body.text()?);
        if ended == job {
            return signal.body.text();
        }
    }
}

/// Makes systemd forget a slice that has failed; one that has not is no error.
fn reset(bus: &mut Connection, slice: &str) {
    if let Err(error) = bus.call(SYSTEMD, "ResetFailedUnit", &[Argument::text(slice)]) {
        log::debug!("{error}");
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;

    use parking_lot::Mutex;

    use super::*;
    use crate::dbus::testing::{Answer, FakeBus};

    #[test]
    fn limits_are_properties_of_the_version() {
        let resources = Resources {
            cpu_shares: Some(1024),
            cpu_quota: Some(25_001),
            memory: Some(4096),
            pids: Some(7),
            huge_pages: vec![("2MB".to_owned(), 1)],
        };
        let unsigned = Value::Unsigned;
        let rest = [
            ("CPUQuotaPeriodUSec", unsigned(100_000)),
            ("CPUQuotaPerSecUSec", unsigned(260_000)),
            ("TasksMax", unsigned(7)),
        ];
        let one = [("MemoryLimit", unsigned(4096)), ("CPUShares", unsigned(1024))];
        assert_eq!(properties(&resources, false, 242), [&one[..], &rest].concat());
        let two = [("MemoryMax", unsigned(4096)), ("CPUWeight", unsigned(weight(1024)))];
        assert_eq!(properties(&resources, true, 255), [&two[..], &rest].concat());
        let none = Resources { cpu_quota: Some(-1), pids: Some(-1), ..Resources::default() };
        let unlimited = [
            ("CPUQuotaPeriodUSec", unsigned(100_000)),
            ("CPUQuotaPerSecUSec", unsigned(u64::MAX)),
            ("TasksMax", unsigned(u64::MAX)),
        ];
        assert_eq!(properties(&none, true, 242), unlimited);
        assert_eq!(properties(&none, true, 241), unlimited[1..]);
        for (version, expected) in
            [("v245.4-1.fc32", 245), ("241", 241), ("\"v252\"", 252), ("", 0)]
        {
            assert_eq!(major(version), expected, "{version}");
        }
        for (quota, rounded) in [(25_001, 26_000), (25_000, 25_000), (1000, 1000), (-1, -1)] {
            assert_eq!(rounded_quota(quota), rounded);
        }
    }

    type Calls = Arc<Mutex<Vec<(String, String)>>>;

    /// A systemd whose jobs end with this result, after one of another unit.
    fn systemd(
        fails: Option<(&'static str, &'static str)>,
        result: &'static str,
    ) -> (FakeBus, Calls) {
        let calls = Calls::default();
        let all = calls.clone();
        let bus = FakeBus::start(move |member, mut body| {
            let first = body.text().unwrap_or_default();
            all.lock().push((member.to_owned(), first));
            if let Some((failing, name)) = fails
                && failing == member
            {
                return (Answer::Failure(name), Vec::new());
            }
            let removed = |job: &str, result: &str| {
                let arguments = vec![
                    Argument::Unsigned(1),
                    Argument::Path(job.to_owned()),
                    Argument::text("unit"),
                    Argument::text(result),
                ];
                (SYSTEMD.path, SYSTEMD.interface, "JobRemoved", arguments)
            };
            match member {
                "StartTransientUnit" | "StopUnit" => (
                    Answer::Return(vec![Argument::Path("/job/2".to_owned())]),
                    vec![removed("/job/1", "failed"), removed("/job/2", result)],
                ),
                "Get" => {
                    let version = Value::Text("v255".to_owned());
                    (Answer::Return(vec![Argument::Variant(version)]), Vec::new())
                }
                _ => (Answer::Return(Vec::new()), Vec::new()),
            }
        });
        (bus, calls)
    }

    const PATH: &str = "/kubepods.slice/kubepods-besteffort.slice";

    #[test]
    fn slices_are_made_limited_and_stopped() {
        let exists = "org.freedesktop.systemd1.UnitExists";
        let slice = "kubepods-besteffort.slice";
        let set = ["StartTransientUnit", "SetUnitProperties"];
        for (fails, result, expected, is_made) in [
            (None, "done", &set[..], true),
            (Some(("StartTransientUnit", exists)), "done", &set, true),
            (Some(("StartTransientUnit", "x.AccessDenied")), "done", &set[..1], false),
            (None, "failed", &["StartTransientUnit", "ResetFailedUnit"], false),
            (Some(("SetUnitProperties", "x.InvalidArgs")), "done", &set, false),
        ] {
            let (bus, calls) = systemd(fails, result);
            let with_version = Systemd::at(&bus.socket);
            let _ = with_version.version.set(255);
            let made = with_version.make(PATH, &Resources::default(), true);
            assert_eq!(made.is_ok(), is_made, "{fails:?} {result}: {made:?}");
            if let Err(error) = made {
                assert!(error.to_string().contains(slice), "{error}");
            }
            let mut calls = calls.lock().clone();
            assert_eq!(calls.remove(0).0, "Subscribe");
            let expected = expected.iter().map(|member| (member.to_string(), slice.to_owned()));
            assert_eq!(calls, expected.collect::<Vec<_>>(), "{fails:?} {result}");
        }
        let (bus, calls) = systemd(None, "done");
        let reads_version = Systemd::at(&bus.socket);
        for _ in 0..2 {
            reads_version.make(PATH, &Resources::default(), true).expect("made");
        }
        assert_eq!(reads_version.version.get(), Some(&255));
        assert_eq!(calls.lock().iter().filter(|(member, _)| member == "Get").count(), 1);
        let no_unit = "org.freedesktop.systemd1.NoSuchUnit";
        for (fails, result) in
            [(None, "done"), (None, "failed"), (Some(("StopUnit", no_unit)), "done")]
        {
            let (bus, calls) = systemd(fails, result);
            Systemd::at(&bus.socket).stop(PATH).expect("stopped");
            let calls: Vec<String> =
                calls.lock().iter().map(|(member, _)| member.clone()).collect();
            assert_eq!(calls, ["Subscribe", "StopUnit", "ResetFailedUnit"], "{fails:?} {result}");
        }
    }

    #[test]
    fn bus_that_is_not_there_or_ends_is_an_error() {
        let nowhere = Systemd::at(Path::new("/nonexistent/bus"));
        let error = nowhere.make(PATH, &Resources::default(), true).expect_err("no bus");
        let text = "systemd's unit kubepods-besteffort.slice: cannot connect to the system's \
                    message bus";
        assert!(error.to_string().starts_with(text), "{error}");
        let bus = FakeBus::start(|_, _| (Answer::End, Vec::new()));
        Systemd::at(&bus.socket).stop(PATH).expect_err("the bus ends");
    }

    #[test]
    fn names_are_a_slice_and_the_one_above() {
        for (path, expected) in [
            ("/kubepods.slice", ("kubepods.slice", "-.slice")),
            (PATH, ("kubepods-besteffort.slice", "kubepods.slice")),
            ("/", ("-.slice", "-.slice")),
        ] {
            assert_eq!(names(path), expected);
        }
    }
}
