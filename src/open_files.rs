//! The process's limit of open files.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Returns the soft limit: how many files this process can open.
pub fn limit() -> usize {
    let soft = getrlimit(Resource::Nofile).current;
    soft.map_or(usize::MAX, |soft| usize::try_from(soft).unwrap_or(usize::MAX))
}

/// Raises the soft limit of open files to the hard one, as Go does at start: each watch, probe
/// and client takes a descriptor, and the usual soft limit is 1,024. Child processes inherit it,
/// where Go gives them the original one back.
pub fn raise_limit() {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current == maximum {
        return;
    }
    let show = |limit: Option<u64>| limit.map_or("unlimited".to_owned(), |limit| limit.to_string());
    let (from, to) = (show(current), show(maximum));
    match setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }) {
        Ok(()) => log::info!("limit of open files raised from {from} to {to}"),
        Err(error) => log::warn!("limit of open files stays {from}, not {to}: {error}"),
    }
}
