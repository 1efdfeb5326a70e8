//! An index of the free volumes, in the order in which claims take them: a claim finds its volume
//! without a search through all others. Upstream: `persistentVolumeOrderedIndex`.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::objects::{ArcStr, Istr, PersistentVolume, Quantity};

/// A set of access modes. Modes that this build does not know are ignored, as in upstream's index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Modes(u8);

impl Modes {
    const KNOWN: [&str; 4] = ["ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany", "ReadWriteOncePod"];

    /// Makes the set of the known ones of `modes`.
    pub fn new(modes: &[Istr]) -> Modes {
        let mut bits = 0;
        for (position, known) in Modes::KNOWN.into_iter().enumerate() {
            if modes.iter().any(|mode| mode == known) {
                bits |= 1 << position;
            }
        }
        Modes(bits)
    }

    /// Returns whether all of `others` are in this set.
    pub fn include(self, others: Modes) -> bool {
        self.0 & others.0 == others.0
    }

    /// Returns the key by which volumes with these modes are sorted.
    pub fn rank(self) -> Rank {
        (self.0.count_ones(), self)
    }
}

/// The number of access modes, and the modes. Volumes of a lower rank are taken first: they have
/// fewer modes.
pub type Rank = (u32, Modes);

/// The properties in which a claim and its volume must be equal.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct VolumeGroup {
    pub class: Istr,
    pub attributes_class: Istr,
    pub is_block: bool,
}

/// A capacity, ordered by its amount.
#[derive(Clone, Copy, Debug)]
pub struct Size(pub Quantity);

impl PartialEq for Size {
    fn eq(&self, other: &Size) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Size {}

impl PartialOrd for Size {
    fn partial_cmp(&self, other: &Size) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Size {
    fn cmp(&self, other: &Size) -> Ordering {
        self.0.compare(other.0)
    }
}

/// Where a free volume is in the index.
#[derive(Clone, Debug, PartialEq)]
struct Place {
    group: VolumeGroup,
    rank: Rank,
    size: Size,
}

impl Place {
    /// Returns the place of a volume in the index; `None` if it is not free.
    fn new(volume: &PersistentVolume) -> Option<Place> {
        let spec = &volume.spec;
        let is_free = spec.claim_ref.is_none()
            && volume.status.phase == "Available"
            && !volume.meta.is_being_deleted();
        is_free.then(|| Place {
            group: VolumeGroup {
                class: volume.storage_class().into(),
                attributes_class: spec.volume_attributes_class_name.clone().unwrap_or_default(),
                is_block: spec.is_block,
            },
            rank: Modes::new(&spec.access_modes).rank(),
            size: Size(spec.capacity.unwrap_or_default()),
        })
    }
}

/// Volumes by size, and then by name.
type BySize = BTreeSet<(Size, ArcStr)>;

/// The free volumes by group, rank and size. It may be older than the newest state of a volume: a
/// caller checks that before it takes one.
#[derive(Default)]
pub struct FreeVolumes {
    groups: HashMap<VolumeGroup, BTreeMap<Rank, BySize>>,
    places: HashMap<ArcStr, Place>,
}

impl FreeVolumes {
    /// Adds a volume at its place if it is free, and removes it if it is not.
    pub fn update(&mut self, volume: &PersistentVolume) {
        let (name, place) = (&volume.meta.name, Place::new(volume));
        if self.places.get(name) == place.as_ref() {
            return;
        }
        self.remove(name);
        if let Some(place) = place {
            let by_rank = self.groups.entry(place.group.clone()).or_default();
            by_rank.entry(place.rank).or_default().insert((place.size, name.clone()));
            self.places.insert(name.clone(), place);
        }
    }

    /// Removes a volume, if it is there.
    pub fn remove(&mut self, name: &ArcStr) {
        let Some(Place { group, rank, size }) = self.places.remove(name) else { return };
        let Some(by_rank) = self.groups.get_mut(&group) else { return };
        if let Some(by_size) = by_rank.get_mut(&rank) {
            by_size.remove(&(size, name.clone()));
            if by_size.is_empty() {
                by_rank.remove(&rank);
            }
        }
        if by_rank.is_empty() {
            self.groups.remove(&group);
        }
    }

    /// Finds the volumes of a group that have at least these modes and this size: those with the
    /// fewest modes first, and among these the smallest.
    pub fn find(
        &self,
        group: &VolumeGroup,
        modes: Modes,
        size: Quantity,
    ) -> impl Iterator<Item = (Rank, &ArcStr)> {
        let by_rank = self.groups.get(group).into_iter().flatten();
        let by_rank = by_rank.filter(move |((_, has), _)| has.include(modes));
        let start = (Size(size), ArcStr::new());
        by_rank.flat_map(move |(rank, by_size)| {
            by_size.range(start.clone()..).map(move |(_, name)| (*rank, name))
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn volume(name: &str, size: &str, modes: &[&str], phase: &str) -> PersistentVolume {
        let json = json!({
            "metadata": { "name": name },
            "spec": { "capacity": { "storage": size }, "accessModes": modes },
            "status": { "phase": phase },
        });
        serde_json::from_value(json).unwrap()
    }

    const ONCE: &str = "ReadWriteOnce";
    const MANY: &str = "ReadOnlyMany";

    #[test]
    fn volumes_are_found_in_the_order_in_which_claims_take_them() {
        let mut free_volumes = FreeVolumes::default();
        for (name, size, modes) in [
            ("large", "2Gi", &[ONCE][..]),
            ("b", "1Gi", &[ONCE]),
            ("a", "1024Mi", &[ONCE]),
            ("wide", "1Gi", &[ONCE, MANY]),
            ("many", "1Gi", &[MANY]),
            ("small", "1Mi", &[ONCE]),
        ] {
            free_volumes.update(&volume(name, size, modes, "Available"));
        }
        let plain = VolumeGroup { class: "".into(), attributes_class: "".into(), is_block: false };
        let found = |free_volumes: &FreeVolumes, mode: &str, size: &str| -> Vec<String> {
            let modes = Modes::new(&[mode.into()]);
            let found = free_volumes.find(&plain, modes, size.parse().unwrap());
            found.map(|(_, name)| name.to_string()).collect()
        };
        assert_eq!(found(&free_volumes, ONCE, "1Gi"), ["a", "b", "large", "wide"]);
        assert_eq!(found(&free_volumes, MANY, "2Mi"), ["many", "wide"]);
        let block = VolumeGroup { is_block: true, ..plain.clone() };
        assert_eq!(free_volumes.find(&block, Modes::new(&[]), Quantity::ZERO).count(), 0);
        // A changed volume gets another place, and a bound one is removed.
        free_volumes.update(&volume("a", "3Gi", &[ONCE], "Available"));
        free_volumes.update(&volume("b", "1Gi", &[ONCE], "Bound"));
        free_volumes.remove(&"wide".into());
        assert_eq!(found(&free_volumes, ONCE, "1Gi"), ["large", "a"]);
        for name in ["a", "large", "many", "small"] {
            free_volumes.remove(&name.into());
        }
        assert!(
            free_volumes.groups.is_empty() && free_volumes.places.is_empty(),
            "no empty entry stays"
        );
    }
}
