//! The size of a load, parsed from its flag: names with numbers.

use std::str::FromStr;

/// How many objects: `deployments=100,replicas=100`, `job=5000,daemonsets=1`, both, or
/// `claims=5000`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    pub deployments: usize,
    pub replicas: usize,
    /// The pods of a Job; 0: no Job.
    pub job: usize,
    /// Each has a pod on every node.
    pub daemon_sets: usize,
    /// Claims; with any, the load has no Deployments.
    pub claims: usize,
}

impl Size {
    pub fn pods(self) -> usize {
        self.deployments * self.replicas
    }
}

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Size, String> {
        let mut size = Size { deployments: 100, replicas: 100, job: 0, daemon_sets: 0, claims: 0 };
        if !text.contains("deployments") && (text.contains("job") || text.contains("daemonsets")) {
            size.deployments = 0;
        }
        let parts = [
            ("deployments", &mut size.deployments),
            ("replicas", &mut size.replicas),
            ("job", &mut size.job),
            ("daemonsets", &mut size.daemon_sets),
            ("claims", &mut size.claims),
        ];
        read(text, parts)?;
        Ok(size)
    }
}

/// How many nodes: `nodes=5000,pods-per-node=30`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nodes {
    pub nodes: usize,
    pub pods_per_node: usize,
}

impl FromStr for Nodes {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Nodes, String> {
        let mut size = Nodes { nodes: 5000, pods_per_node: 30 };
        read(text, [("nodes", &mut size.nodes), ("pods-per-node", &mut size.pods_per_node)])?;
        Ok(size)
    }
}

/// Sets the members that `text` (`a=1,b=2`) names.
fn read<const N: usize>(text: &str, mut parts: [(&str, &mut usize); N]) -> Result<(), String> {
    let names = parts.each_ref().map(|(name, _)| format!("{name}=N")).join(", ");
    for part in text.split(',').filter(|part| !part.is_empty()) {
        let set = part.split_once('=').and_then(|(name, number)| {
            let (_, member) = parts.iter_mut().find(|(known, _)| *known == name)?;
            **member = number.parse().ok()?;
            Some(())
        });
        set.ok_or_else(|| format!("{part:?} is not one of {names}"))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_objects_are_read() {
        for (text, size) in [
            ("deployments=3,replicas=4", Some((3, 4, 0, 0, 0))),
            ("replicas=7", Some((100, 7, 0, 0, 0))),
            ("", Some((100, 100, 0, 0, 0))),
            ("job=5,daemonsets=2", Some((0, 100, 5, 2, 0))),
            ("deployments=1,job=5", Some((1, 100, 5, 0, 0))),
            ("claims=9", Some((100, 100, 0, 0, 9))),
            ("pods=3", None),
            ("deployments", None),
            ("replicas=-1", None),
        ] {
            let read: Option<Size> = text.parse().ok();
            let read =
                read.map(|it| (it.deployments, it.replicas, it.job, it.daemon_sets, it.claims));
            assert_eq!(read, size, "{text}");
        }
    }

    #[test]
    fn numbers_of_nodes_are_read() {
        let size = |nodes, pods_per_node| Ok(Nodes { nodes, pods_per_node });
        assert_eq!("nodes=7,pods-per-node=2".parse(), size(7, 2));
        assert_eq!("nodes=7".parse(), size(7, 30));
        assert!("nodes=x".parse::<Nodes>().is_err());
        assert!("pods=1".parse::<Nodes>().is_err());
    }
}
