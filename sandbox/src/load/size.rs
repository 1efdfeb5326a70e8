//! The size of a load, parsed from its flag: names with numbers.

use std::str::FromStr;

use serde::Serialize;

/// How many objects: `deployments=100,replicas=100`, `job=5000,daemonsets=1`, both, `claims=5000`,
/// or `scale=100000`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Size {
    pub deployments: usize,
    pub replicas: usize,
    /// The pods of a Job; 0: no Job.
    pub job: usize,
    /// Each has a pod on every node.
    pub daemon_sets: usize,
    /// Claims; with any, the load has no Deployments.
    pub claims: usize,
    /// The pods that are created at once on the full cluster, and deleted again; 0: none.
    pub storm: usize,
    /// The namespaces over which the Deployments are spread; 0: all are in one, and there are no
    /// Services and no small Jobs.
    pub namespaces: usize,
    pub services: usize,
    /// Jobs of one pod each, evenly over `minutes`.
    pub jobs: usize,
    pub minutes: usize,
}

const DEFAULT: Size = Size {
    deployments: 100,
    replicas: 100,
    job: 0,
    daemon_sets: 0,
    claims: 0,
    storm: 0,
    namespaces: 0,
    services: 0,
    jobs: 0,
    minutes: 60,
};

impl Default for Size {
    fn default() -> Size {
        DEFAULT
    }
}

impl Size {
    pub fn pods(self) -> usize {
        self.deployments * self.replicas
    }

    pub fn is_spread(self) -> bool {
        self.namespaces > 0
    }

    /// Returns the nodes that fit the size, where none are given.
    pub fn nodes(self) -> usize {
        if self.is_spread() { (self.pods() / 20).max(1) } else { 100 }
    }

    /// Returns a cluster of this number of pods, with all that belongs to them in the proportions
    /// of a large one.
    fn of_cluster(pods: usize) -> Size {
        let part = |of: usize| (pods / of).max(1);
        Size {
            deployments: part(100),
            replicas: pods.clamp(1, 100),
            namespaces: part(100),
            services: part(50),
            jobs: part(10),
            ..DEFAULT
        }
    }
}

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Size, String> {
        let mut size = DEFAULT;
        // A load of a Job or DaemonSets alone has no Deployments.
        if !text.contains("deployments") && (text.contains("job=") || text.contains("daemonsets")) {
            size.deployments = 0;
        }
        let mut scale = 0;
        // The scale comes first, in any place: the others differ from it.
        let (of_scale, others): (Vec<&str>, Vec<&str>) =
            text.split(',').partition(|part| part.starts_with("scale="));
        set_members(&of_scale.join(","), [("scale", &mut scale)])?;
        if !of_scale.is_empty() {
            size = Size::of_cluster(scale);
        }
        let parts = [
            ("deployments", &mut size.deployments),
            ("replicas", &mut size.replicas),
            ("job", &mut size.job),
            ("daemonsets", &mut size.daemon_sets),
            ("claims", &mut size.claims),
            ("storm", &mut size.storm),
            ("namespaces", &mut size.namespaces),
            ("services", &mut size.services),
            ("jobs", &mut size.jobs),
            ("minutes", &mut size.minutes),
        ];
        set_members(&others.join(","), parts)?;
        if !size.is_spread() && size.services + size.jobs > 0 {
            // Only a spread load has Services and small Jobs.
            size.namespaces = 1;
        }
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
        set_members(
            text,
            [("nodes", &mut size.nodes), ("pods-per-node", &mut size.pods_per_node)],
        )?;
        Ok(size)
    }
}

/// Sets the members that `text` names, such as `a=1,b=2`. Errors: a name that is not one of
/// `parts`, or no number.
fn set_members<const N: usize>(
    text: &str,
    mut parts: [(&str, &mut usize); N],
) -> Result<(), String> {
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
        let size = |change: &dyn Fn(&mut Size)| {
            let mut size = DEFAULT;
            change(&mut size);
            Some(size)
        };
        for (text, expected) in [
            ("deployments=3,replicas=4", size(&|it| (it.deployments, it.replicas) = (3, 4))),
            ("replicas=7", size(&|it| it.replicas = 7)),
            ("", Some(DEFAULT)),
            (
                "job=5,daemonsets=2",
                size(&|it| (it.deployments, it.job, it.daemon_sets) = (0, 5, 2)),
            ),
            ("deployments=1,job=5", size(&|it| (it.deployments, it.job) = (1, 5))),
            ("claims=9", size(&|it| it.claims = 9)),
            ("storm=500", size(&|it| it.storm = 500)),
            ("jobs=5,minutes=1", size(&|it| (it.jobs, it.minutes, it.namespaces) = (5, 1, 1))),
            ("services=3", size(&|it| (it.services, it.namespaces) = (3, 1))),
            ("pods=3", None),
            ("deployments", None),
            ("replicas=-1", None),
            ("scale=many", None),
        ] {
            assert_eq!(text.parse::<Size>().ok(), expected, "{text}");
        }
    }

    #[test]
    fn a_scale_stands_for_all_numbers_of_a_cluster() {
        let size: Size = "jobs=7,scale=100000".parse().unwrap();
        assert_eq!((size.deployments, size.replicas, size.namespaces), (1000, 100, 1000));
        assert_eq!((size.services, size.jobs, size.minutes), (2000, 7, 60));
        assert_eq!((size.pods(), size.nodes()), (100_000, 5000));
        let small: Size = "scale=10".parse().unwrap();
        assert_eq!((small.pods(), small.nodes(), small.namespaces), (10, 1, 1));
        assert_eq!(DEFAULT.nodes(), 100);
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
