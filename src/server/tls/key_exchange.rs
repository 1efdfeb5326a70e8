//! The key exchanges to serve with. Upstream: `component-base/cli/flag.TLSCurvePreferences`.

use rustls::crypto::SupportedKxGroup;

/// P-256, P-384, P-521, X25519 and the hybrids with ML-KEM. Upstream: `tls.CurveID` of Go 1.26.
const GO_CURVES: [i32; 7] = [23, 24, 25, 29, 4587, 4588, 4589];

/// Removes the groups that `curves` does not list. As in Go, the order of the list has no effect.
/// An empty list, or one without any of `groups`, removes none.
///
/// # Errors
/// One line naming the flag, for a number that Go refuses.
pub(super) fn restrict(
    groups: &mut Vec<&'static dyn SupportedKxGroup>,
    curves: &[i32],
) -> Result<(), String> {
    if let Some(fault) = fault(curves) {
        return Err(format!("--tls-curve-preferences: {fault}"));
    }
    let is_listed = |group: &&'static dyn SupportedKxGroup| {
        curves.contains(&i32::from(u16::from(group.name())))
    };
    if groups.iter().any(is_listed) {
        groups.retain(is_listed);
    } else if !curves.is_empty() {
        log::warn!(
            "--tls-curve-preferences: none of {curves:?} is supported; the default ones are used"
        );
    }
    Ok(())
}

/// Returns why the list of curves cannot be used, if it cannot.
fn fault(curves: &[i32]) -> Option<String> {
    for (position, curve) in curves.iter().enumerate() {
        if !(1..=i32::from(u16::MAX)).contains(curve) {
            let most = u16::MAX;
            return Some(format!("curve preference {curve} is out of range (must be 1-{most})"));
        }
        if curves[..position].contains(curve) {
            return Some(format!("duplicate curve preference {curve}"));
        }
        if !GO_CURVES.contains(curve) {
            return Some(format!("curve preference {curve} is not supported"));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use rustls::crypto::ring;

    use super::*;

    fn restricted(curves: &[i32]) -> Result<Vec<u16>, String> {
        let mut groups = ring::default_provider().kx_groups;
        restrict(&mut groups, curves)?;
        Ok(groups.iter().map(|group| u16::from(group.name())).collect())
    }

    #[test]
    fn listed_groups_stay_and_without_any_all_do() {
        let all: &[u16] = &[29, 23, 24];
        let rows: [(&[i32], &[u16]); 6] = [
            (&[], all),
            (&[24, 23, 29], all),
            (&[23, 29], &[29, 23]),
            (&[25, 24, 4588], &[24]),
            (&[25], all),
            (&[4587, 4588, 4589, 25], all),
        ];
        for (curves, wanted) in rows {
            assert_eq!(restricted(curves).as_deref(), Ok(wanted), "{curves:?}");
        }
    }

    #[test]
    fn numbers_that_go_refuses_are_refused() {
        let rows: [(&[i32], &str); 7] = [
            (&[0], "curve preference 0 is out of range (must be 1-65535)"),
            (&[-1], "curve preference -1 is out of range (must be 1-65535)"),
            (&[29, 65536, 29], "curve preference 65536 is out of range (must be 1-65535)"),
            (&[29, 25, 25], "duplicate curve preference 25"),
            (&[29, 30], "curve preference 30 is not supported"),
            (&[65535], "curve preference 65535 is not supported"),
            (&[512, 29, 29], "curve preference 512 is not supported"),
        ];
        for (curves, fault) in rows {
            let wanted = format!("--tls-curve-preferences: {fault}");
            assert_eq!(restricted(curves), Err(wanted), "{curves:?}");
        }
    }
}
