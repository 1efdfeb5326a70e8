//! The free volumes, in the order in which claims take them: a claim finds its volume without a look
//! at all the others. Upstream: `persistentVolumeOrderedIndex`.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use crate::objects::{Istr, PersistentVolume, Quantity};

/// A set of access modes. Modes that this build does not know count as no mode, as upstream's
/// index has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Modes(u8);

impl Modes {
    const KNOWN: [&str; 4] = ["ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany", "ReadWriteOncePod"];

    pub fn of(modes: &[Istr]) -> Modes {
        let bit = |known: &str| u8::from(modes.iter().any(|mode| mode == known));
        Modes((0..).zip(Modes::KNOWN).fold(0, |set, (at, known)| set | bit(known) << at))
    }

    pub fn include(self, others: Modes) -> bool {
        self.0 & others.0 == others.0
    }

    pub fn grade(self) -> Grade {
        (self.0.count_ones(), self)
    }
}

/// Volumes with fewer access modes are taken first.
pub type Grade = (u32, Modes);

/// What a claim and its volume have in common. Claims of a class of attributes take only volumes of
/// it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Shelf {
    pub class: Istr,
    pub attributes_class: Istr,
    pub is_block: bool,
}

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

#[derive(Clone, Debug, PartialEq)]
struct Place {
    shelf: Shelf,
    grade: Grade,
    size: Size,
}

impl Place {
    /// `None`: the volume is not free.
    fn of(volume: &PersistentVolume) -> Option<Place> {
        let spec = &volume.spec;
        let is_free = spec.claim_ref.is_none()
            && volume.status.phase == "Available"
            && !volume.meta.is_being_deleted();
        is_free.then(|| Place {
            shelf: Shelf {
                class: volume.storage_class().into(),
                attributes_class: spec.volume_attributes_class_name.clone().unwrap_or_default(),
                is_block: spec.is_block,
            },
            grade: Modes::of(&spec.access_modes).grade(),
            size: Size(spec.capacity.unwrap_or_default()),
        })
    }
}

/// Volumes by size, and then by name.
type Row = BTreeSet<(Size, Arc<str>)>;

/// May be behind the newest state of a volume: who takes one looks at that.
#[derive(Default)]
pub struct FreeVolumes {
    free_volumes: HashMap<Shelf, BTreeMap<Grade, Row>>,
    places: HashMap<Arc<str>, Place>,
}

impl FreeVolumes {
    /// Puts a volume to its place if it is free, and removes it if it is not.
    pub fn put(&mut self, volume: &PersistentVolume) {
        let (name, place) = (&volume.meta.name, Place::of(volume));
        if self.places.get(name) == place.as_ref() {
            return;
        }
        self.remove(name);
        if let Some(place) = place {
            let rows = self.free_volumes.entry(place.shelf.clone()).or_default();
            rows.entry(place.grade).or_default().insert((place.size, name.clone()));
            self.places.insert(name.clone(), place);
        }
    }

    pub fn remove(&mut self, name: &Arc<str>) {
        let Some(Place { shelf, grade, size }) = self.places.remove(name) else { return };
        let Some(rows) = self.free_volumes.get_mut(&shelf) else { return };
        if let Some(row) = rows.get_mut(&grade) {
            row.remove(&(size, name.clone()));
            if row.is_empty() {
                rows.remove(&grade);
            }
        }
        if rows.is_empty() {
            self.free_volumes.remove(&shelf);
        }
    }

    /// The volumes of a shelf that have these modes, or more, and that size, or more: those with the
    /// fewest modes first, and of these the smallest.
    pub fn find(
        &self,
        shelf: &Shelf,
        modes: Modes,
        size: Quantity,
    ) -> impl Iterator<Item = (Grade, &Arc<str>)> {
        let rows = self.free_volumes.get(shelf).into_iter().flatten();
        let rows = rows.filter(move |((_, has), _)| has.include(modes));
        let start = (Size(size), Arc::from(""));
        rows.flat_map(move |(grade, row)| {
            row.range(start.clone()..).map(move |(_, name)| (*grade, name))
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
            free_volumes.put(&volume(name, size, modes, "Available"));
        }
        let plain = Shelf { class: "".into(), attributes_class: "".into(), is_block: false };
        let found = |free_volumes: &FreeVolumes, mode: &str, size: &str| -> Vec<String> {
            let modes = Modes::of(&[mode.into()]);
            let found = free_volumes.find(&plain, modes, size.parse().unwrap());
            found.map(|(_, name)| name.to_string()).collect()
        };
        assert_eq!(found(&free_volumes, ONCE, "1Gi"), ["a", "b", "large", "wide"]);
        assert_eq!(found(&free_volumes, MANY, "2Mi"), ["many", "wide"]);
        let block = Shelf { is_block: true, ..plain.clone() };
        assert_eq!(free_volumes.find(&block, Modes::of(&[]), Quantity::ZERO).count(), 0);
        // A volume moves with its changes, and leaves once it is taken.
        free_volumes.put(&volume("a", "3Gi", &[ONCE], "Available"));
        free_volumes.put(&volume("b", "1Gi", &[ONCE], "Bound"));
        free_volumes.remove(&"wide".into());
        assert_eq!(found(&free_volumes, ONCE, "1Gi"), ["large", "a"]);
        for name in ["a", "large", "many", "small"] {
            free_volumes.remove(&name.into());
        }
        assert!(
            free_volumes.free_volumes.is_empty() && free_volumes.places.is_empty(),
            "nothing stays behind"
        );
    }
}
