//! The decisions, step by step, with a clock and attachments made here.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::operations::{Kind, Lag, PodRef};
use super::reconcile::{Act, Health, Observed, Plan, Settings};
use super::state_of_world::{Listed, Report, StateOfWorld};
use crate::controllers::runner::Change;
use crate::controllers::storage::volume_specs::{Spec, of_volume};
use crate::objects::{CSIDriver, Istr, ObjectKey, PersistentVolume, Uid, VolumeAttachment};

/// A world around one volume `v`.
struct Stage {
    world: StateOfWorld,
    spec: Arc<Spec>,
    attachments: HashMap<String, Value>,
    health: HashMap<&'static str, Health>,
    settings: Settings,
    detaches: bool,
    now: Duration,
}

const HEALTHY: Health = Health { ready: true, out_of_service: false };
const LATER: Duration = Duration::from_secs(1);

impl Stage {
    fn new(mode: &str) -> Stage {
        let volume: PersistentVolume = serde_json::from_value(json!({
            "metadata": { "name": "v" },
            "spec": {
                "accessModes": [mode], "csi": { "driver": "d", "volumeHandle": "h" },
            },
        }))
        .unwrap();
        let mut stage = Stage {
            world: StateOfWorld::default(),
            spec: Arc::new(of_volume(&volume, false).unwrap()),
            attachments: HashMap::new(),
            health: [("a", HEALTHY), ("b", HEALTHY)].into(),
            settings: Settings { force_detach_on_timeout: true, verify_after: None },
            detaches: true,
            now: Duration::from_secs(100),
        };
        for node in ["a", "b"] {
            stage.world.manage(&node.into());
        }
        stage
    }

    fn add_pod(&mut self, pod: &str, node: &str) {
        let pod = PodRef { key: ObjectKey::new("ns", pod), uid: Uid::new(pod) };
        self.world.add_pod_volume(&pod, &node.into(), &self.spec);
    }

    fn remove_pod(&mut self, pod: &str) {
        self.world.forget_pod(&ObjectKey::new("ns", pod), None);
    }

    fn attachment(node: &str) -> Istr {
        crate::controllers::storage::volume_specs::attachment_name("h", "d", node)
    }

    /// What the driver answers for a node.
    fn answer(&mut self, node: &str, status: Value) {
        let name = Stage::attachment(node).to_string();
        let object = json!({ "metadata": { "name": name, "uid": "u" }, "status": status });
        self.attachments.insert(name, object);
    }

    fn delete_attachment(&mut self, node: &str) {
        self.attachments.remove(&*Stage::attachment(node));
    }

    fn reconcile(&mut self) -> Plan {
        let observed = Observed {
            attachment: &|name: &str| -> Option<Arc<VolumeAttachment>> {
                let found = self.attachments.get(name)?;
                Some(Arc::new(serde_json::from_value(found.clone()).unwrap()))
            },
            seen: 0,
            health: &|node| self.health.get(node).copied().unwrap_or_default(),
            attaches: &|_| true,
            detaches: &|_, _| self.detaches,
            settings: self.settings,
            now: self.now,
        };
        self.world.reconcile(&self.spec.volume.clone(), &observed)
    }

    fn acts(&mut self) -> Vec<Act> {
        self.reconcile().acts
    }

    /// As the driver of requests does once they are made.
    fn wait(&mut self, node: &str) {
        self.world.wait(&self.spec.volume.clone(), &node.into(), Lag::None, self.now);
    }

    fn fail(&mut self, node: &str) {
        let failed = Err("refused".to_owned());
        self.world.end(&self.spec.volume.clone(), &node.into(), failed, self.now);
    }

    fn attach_act(&self, node: &str) -> Act {
        Act::Attach { node: node.into(), spec: self.spec.clone() }
    }

    /// The volume is attached to `a` for the pod `p`, and the node's status says so.
    fn attached(mode: &str) -> Stage {
        let mut stage = Stage::new(mode);
        stage.add_pod("p", "a");
        assert_eq!(stage.acts(), [stage.attach_act("a")]);
        stage.wait("a");
        stage.answer("a", json!({ "attached": true }));
        let plan = stage.reconcile();
        assert_eq!((plan.ended.len(), plan.acts.len()), (1, 0));
        assert_eq!(stage.write("a"), ["kubernetes.io/csi/d^h"]);
        stage.in_use("a", true);
        stage
    }

    /// What the node is to list; then it does.
    fn write(&mut self, node: &str) -> Vec<String> {
        let report = self.world.unwritten_report(node).expect("something to write");
        let names = report.volumes.iter().map(|volume| volume.name.to_string()).collect();
        self.world.mark_written(&node.into(), report, true);
        names
    }

    fn in_use(&mut self, node: &str, in_use: bool) {
        let volumes = in_use.then(|| self.spec.volume.clone());
        self.world.set_in_use(&node.into(), volumes.as_slice());
    }
}

fn detach(node: &str, verify: bool) -> Act {
    Act::Detach { node: node.into(), verify }
}

#[test]
fn a_volume_is_attached_and_detached_once_no_pod_wants_it_and_the_kubelet_lets_it_go() {
    let mut stage = Stage::attached("ReadWriteOnce");
    assert_eq!(stage.acts(), []);
    stage.remove_pod("p");
    assert_eq!(stage.acts(), [], "it is in use");
    stage.in_use("a", false);
    assert_eq!(stage.acts(), [], "the node still lists it");
    assert_eq!(stage.write("a"), Vec::<String>::new());
    assert_eq!(stage.acts(), [detach("a", true)]);
    assert_eq!(stage.acts(), [], "it is under way");
    stage.wait("a");
    assert_eq!(stage.acts(), []);
    stage.delete_attachment("a");
    let plan = stage.reconcile();
    assert!(plan.ended[0].result.is_ok() && plan.ended[0].operation.kind == Kind::Detach);
    assert_eq!(stage.world.is_attached(&stage.spec.volume, "a"), None);
    assert!(stage.world.volume_names().is_empty() && plan.wake_at.is_none());
}

#[test]
fn a_pod_that_comes_back_before_the_node_is_written_keeps_the_volume() {
    let mut stage = Stage::attached("ReadWriteOnce");
    stage.remove_pod("p");
    stage.in_use("a", false);
    assert_eq!(stage.acts(), []);
    stage.add_pod("q", "a");
    assert_eq!(stage.acts(), []);
    assert_eq!(stage.write("a"), ["kubernetes.io/csi/d^h"]);
    assert_eq!(stage.acts(), []);
    assert_eq!(stage.world.is_attached(&stage.spec.volume, "a"), Some(true));
}

#[test]
fn after_a_lost_answer_it_is_not_known_what_a_node_lists() {
    let mut stage = Stage::attached("ReadWriteOnce");
    stage.remove_pod("p");
    stage.in_use("a", false);
    stage.acts();
    let report = stage.world.unwritten_report("a").expect("a list without the volume");
    assert_eq!((report.volumes.len(), matches!(report.listed, Listed::Written(_))), (0, true));
    stage.world.mark_outcome_unknown("a", &report);
    // The list is that of before the write, but the node may not have it any more.
    stage.add_pod("q", "a");
    stage.acts();
    let report = stage.world.unwritten_report("a").expect("a list with the volume");
    assert_eq!((report.volumes.len(), &report.listed), (1, &Listed::Unknown));
    let volumes = report.volumes.clone();
    stage.world.mark_written(&"a".into(), report, true);
    assert_eq!(stage.world.nodes["a"].listed, Listed::Written(volumes));
}

#[test]
fn a_volume_of_one_node_is_refused_once_on_another() {
    let mut stage = Stage::attached("ReadWriteOnce");
    stage.add_pod("q", "b");
    let refused = |stage: &Stage, users: &[&str]| {
        let pod = |name: &str| PodRef { key: ObjectKey::new("ns", name), uid: Uid::new(name) };
        let users = users.iter().map(|name| pod(name)).collect();
        Act::RefuseMultiAttach { spec: stage.spec.clone(), pods: vec![pod("q")], users }
    };
    let expected = refused(&stage, &["p"]);
    assert_eq!(stage.acts(), [expected]);
    assert_eq!(stage.acts(), []);
    stage.remove_pod("p");
    stage.in_use("a", false);
    assert_eq!(stage.acts(), [], "the detach begins with the node's status");
    stage.write("a");
    assert_eq!(stage.acts(), [detach("a", true)]);
    stage.wait("a");
    assert_eq!(stage.acts(), []);
    stage.delete_attachment("a");
    assert_eq!(stage.acts(), [stage.attach_act("b")]);
}

#[test]
fn a_volume_of_many_nodes_is_attached_to_each() {
    let mut stage = Stage::attached("ReadWriteMany");
    stage.add_pod("q", "b");
    assert_eq!(stage.acts(), [stage.attach_act("b")]);
}

#[test]
fn a_volume_in_use_is_detached_by_force_from_a_node_that_does_not_answer() {
    const SIX_MINUTES: Duration = Duration::from_secs(360);
    // The node after the timeout, the flag, whether the volume is detached at once and after the
    // timeout, and the reason.
    let silent = Health::default();
    let out = Health { ready: true, out_of_service: true };
    for (health, allowed, at_once, after, reason) in [
        (HEALTHY, true, false, false, ""),
        (silent, true, false, true, "timeout"),
        (silent, false, false, false, ""),
        (out, true, true, true, "out-of-service"),
        (out, false, true, true, "out-of-service"),
    ] {
        let mut stage = Stage::attached("ReadWriteOnce");
        stage.health.insert("a", health);
        stage.settings.force_detach_on_timeout = allowed;
        stage.remove_pod("p");
        assert_eq!(stage.acts(), []);
        let begins = |stage: &Stage| stage.world.unwritten_report("a").is_some();
        assert_eq!(begins(&stage), at_once, "{health:?} {allowed}");
        if !at_once {
            stage.now += SIX_MINUTES - LATER;
            let plan = stage.reconcile();
            assert_eq!(plan.acts, []);
            let wakes = allowed.then_some(stage.now + LATER);
            assert_eq!(plan.wake_at, wakes, "{health:?} {allowed}");
            stage.now += LATER;
            assert_eq!(stage.acts(), []);
        }
        assert_eq!(begins(&stage), after, "{health:?} {allowed}");
        if after {
            // It counts once it is certain.
            stage.write("a");
            assert_eq!(stage.acts(), [Act::CountForcedDetach(reason), detach("a", false)]);
        }
    }
}

#[test]
fn a_volume_in_use_by_a_node_that_is_deleted_is_detached_after_the_timeout() {
    for in_use in [false, true] {
        let mut stage = Stage::attached("ReadWriteOnce");
        stage.health.remove("a");
        // The last status of the node says so.
        let last = in_use.then(|| stage.spec.volume.clone());
        stage.world.record_node_deleted(&"a".into(), last.as_slice());
        stage.remove_pod("p");
        assert_eq!(stage.acts(), []);
        if in_use {
            assert_eq!(stage.world.unwritten_report("a"), None, "nothing has begun");
            stage.now += Duration::from_secs(360);
            assert_eq!(stage.acts(), []);
        }
        // There is no status to write to.
        let report = stage.world.unwritten_report("a").expect("a report without the volume");
        let waiting = stage.world.mark_written(&"a".into(), report, false);
        assert_eq!(waiting, [stage.spec.volume.clone()]);
        let mut acts = stage.acts();
        if in_use {
            assert_eq!(acts.remove(0), Act::CountForcedDetach("timeout"));
        }
        assert_eq!(acts, [detach("a", !in_use)]);
    }
}

#[test]
fn a_volume_found_on_a_node_that_is_gone_is_detached_after_the_timeout() {
    let mut stage = Stage::new("ReadWriteOnce");
    stage.health.remove("a");
    let volume = stage.spec.volume.clone();
    stage.world.add_attached(&volume, Some(stage.spec.clone()), &"a".into(), "".into(), false);
    stage.world.assume_in_use(&volume, &"a".into());
    assert_eq!(stage.acts(), []);
    stage.now += Duration::from_secs(359);
    assert_eq!(stage.acts(), []);
    stage.now += Duration::from_secs(1);
    assert_eq!(stage.acts(), [Act::CountForcedDetach("timeout"), detach("a", false)]);
}

#[test]
fn the_time_a_volume_is_unwanted_starts_again_with_a_pod() {
    let mut stage = Stage::attached("ReadWriteOnce");
    stage.health.insert("a", Health::default());
    stage.remove_pod("p");
    stage.reconcile();
    stage.now += Duration::from_secs(300);
    stage.add_pod("q", "a");
    stage.reconcile();
    stage.remove_pod("q");
    stage.reconcile();
    stage.now += Duration::from_secs(300);
    assert_eq!(stage.acts(), []);
}

#[test]
fn a_refused_attach_is_tried_again_and_leaves_something_to_detach() {
    let mut stage = Stage::new("ReadWriteOnce");
    stage.add_pod("p", "a");
    assert_eq!(stage.acts(), [stage.attach_act("a")]);
    stage.fail("a");
    assert_eq!(stage.world.is_attached(&stage.spec.volume, "a"), Some(false));
    assert_eq!(stage.world.unwritten_report("a"), None, "the node does not list it");
    let plan = stage.reconcile();
    assert_eq!((plan.acts, plan.wake_at), (vec![], Some(stage.now + LATER / 2)));
    stage.now += LATER;
    assert_eq!(stage.acts(), [stage.attach_act("a")]);
    stage.fail("a");
    stage.remove_pod("p");
    let plan = stage.reconcile();
    assert_eq!((plan.acts, plan.wake_at), (vec![], Some(stage.now + LATER / 10)));
    stage.now += LATER;
    assert_eq!(stage.acts(), [detach("a", true)], "nothing to write or to wait for first");
    stage.fail("a");
    let plan = stage.reconcile();
    assert_eq!((plan.acts, plan.wake_at), (vec![], Some(stage.now + LATER / 2)));
}

#[test]
fn a_failing_attach_and_detach_alternate_with_a_pause() {
    let mut stage = Stage::new("ReadWriteOnce");
    stage.add_pod("p", "a");
    assert_eq!(stage.acts(), [stage.attach_act("a")]);
    stage.fail("a");
    // It may be attached to `a` in spite of that, and it is wanted on `b` now.
    stage.remove_pod("p");
    stage.add_pod("q", "b");
    let (began, mut acts) = (stage.now, Vec::new());
    while stage.now < began + LATER {
        let plan = stage.reconcile();
        for act in &plan.acts {
            match act {
                Act::Attach { node, .. } | Act::Detach { node, .. } => stage.fail(node),
                other => panic!("{other:?}"),
            }
        }
        if plan.acts.is_empty() {
            stage.now = plan.wake_at.expect("a retry");
        }
        acts.extend(plan.acts);
        assert!(acts.len() <= 10, "{} acts in {:?}", acts.len(), stage.now - began);
    }
    let attaches = acts.iter().filter(|act| matches!(act, Act::Attach { .. })).count();
    assert!(attaches > 0 && attaches < acts.len(), "{acts:?}");
}

#[test]
fn a_volume_that_the_kubelet_lists_is_not_released_though_its_attach_failed() {
    let mut stage = Stage::new("ReadWriteOnce");
    stage.add_pod("p", "a");
    stage.acts();
    stage.in_use("a", true);
    stage.fail("a");
    stage.remove_pod("p");
    stage.now += LATER;
    assert_eq!(stage.acts(), []);
    stage.in_use("a", false);
    assert_eq!(stage.acts(), [detach("a", true)]);
}

#[test]
fn a_volume_is_in_use_from_the_moment_it_is_attached() {
    let mut stage = Stage::new("ReadWriteOnce");
    stage.add_pod("p", "a");
    stage.acts();
    stage.fail("a");
    stage.now += LATER;
    assert_eq!(stage.acts(), [stage.attach_act("a")]);
    stage.wait("a");
    stage.answer("a", json!({ "attached": true }));
    stage.acts();
    stage.remove_pod("p");
    stage.acts();
    let report = stage.world.unwritten_report("a").expect("a list");
    assert_eq!(report.volumes.len(), 1, "the detach has not begun");
}

#[test]
fn an_answer_that_comes_at_once_is_taken_at_once() {
    let mut stage = Stage::new("ReadWriteOnce");
    stage.add_pod("p", "a");
    stage.reconcile();
    stage.wait("a");
    stage.answer("a", json!({ "attachError": { "message": "old" } }));
    let plan = stage.reconcile();
    assert!(plan.ended.is_empty() && plan.wake_at == Some(stage.now + LATER / 2));
    stage.answer("a", json!({ "attached": true }));
    assert!(stage.reconcile().ended[0].result.is_ok());
}

#[test]
fn what_is_found_at_the_start_is_confirmed_or_detached() {
    let mut stage = Stage::new("ReadWriteOnce");
    let volume = stage.spec.volume.clone();
    let found = Some(stage.spec.clone());
    // The volume is in the status of a; on b it has only an attachment.
    stage.world.add_attached(&volume, None, &"a".into(), "".into(), true);
    stage.world.set_in_use(&"a".into(), &[]);
    stage.world.add_attached(&volume, found, &"b".into(), "".into(), false);
    stage.add_pod("p", "b");
    // The detach of a waits for its status. The spec is that of b's attachment, so the volume has
    // one operation at a time.
    assert_eq!(stage.acts(), []);
    stage.write("a");
    assert_eq!(stage.acts(), [detach("a", true)]);
    stage.wait("a");
    stage.delete_attachment("a");
    assert_eq!(stage.acts(), [stage.attach_act("b")]);
}

#[test]
fn nodes_that_appear_get_their_list_again() {
    let mut stage = Stage::attached("ReadWriteOnce");
    assert_eq!(stage.world.unwritten_report("a"), None);
    stage.world.record_node_added(&"a".into());
    let Report { volumes, listed, .. } = stage.world.unwritten_report("a").unwrap();
    assert_eq!((volumes.len(), listed), (1, Listed::Cached));
}

#[test]
fn a_node_that_is_created_again_under_its_name_gets_its_list() {
    let mut stage = Stage::new("ReadWriteOnce");
    let node = "a".into();
    stage.world.add_attached(&stage.spec.volume.clone(), None, &node, "".into(), true);
    // The write to the first node is under way while it is replaced.
    let report = stage.world.unwritten_report("a").expect("a list");
    stage.world.record_node_deleted(&node, &[]);
    stage.world.record_node_added(&node);
    stage.world.mark_written(&node, report, true);
    let report = stage.world.unwritten_report("a").expect("a list for the second node");
    assert_eq!((report.volumes.len(), &report.listed), (1, &Listed::Cached));
    stage.world.mark_written(&node, report, true);
    assert_eq!(stage.world.unwritten_report("a"), None);
}

#[test]
fn what_may_be_attached_is_not_listed() {
    let mut stage = Stage::new("ReadWriteOnce");
    let node = "a".into();
    stage.add_pod("p", "a");
    stage.acts();
    stage.fail("a");
    stage.remove_pod("p");
    stage.in_use("a", false);
    stage.now += LATER;
    // The list without the volume waits for that of another volume.
    let other = "kubernetes.io/csi/d^other".into();
    stage.world.add_attached(&other, None, &node, "".into(), true);
    assert_eq!(stage.acts(), []);
    stage.add_pod("q", "a");
    assert_eq!(stage.acts(), [stage.attach_act("a")], "the detach had not begun");
    assert_eq!(stage.write("a"), ["kubernetes.io/csi/d^other"]);
}

#[test]
fn nothing_stays_of_a_node_that_goes_before_its_pods() {
    let mut stage = Stage::attached("ReadWriteOnce");
    let node = "a".into();
    stage.health.remove("a");
    stage.world.record_node_deleted(&node, &[]);
    assert!(stage.world.is_managed("a"), "a pod still wants a volume there");
    stage.remove_pod("p");
    assert!(!stage.world.is_managed("a"));
    stage.acts();
    let report = stage.world.unwritten_report("a").expect("a list without the volume");
    stage.world.mark_written(&node, report, false);
    assert_eq!(stage.acts(), [detach("a", true)]);
    stage.wait("a");
    stage.delete_attachment("a");
    stage.acts();
    assert!(!stage.world.nodes.contains_key("a"));

    // Nor of one whose kubelet used volumes that were never attached here.
    stage.world.set_in_use(&"c".into(), &[stage.spec.volume.clone()]);
    stage.world.record_node_deleted(&"c".into(), &[stage.spec.volume.clone()]);
    assert!(!stage.world.nodes.contains_key("c"));
}

#[test]
fn the_attachment_of_a_volume_without_a_pod_is_forgotten_with_it() {
    let mut stage = Stage::new("ReadWriteOnce");
    let volume = stage.spec.volume.clone();
    stage.world.add_attached(&volume, None, &"a".into(), "".into(), true);
    stage.write("a");
    stage.in_use("a", false);
    stage.acts();
    stage.write("a");
    assert_eq!(stage.acts(), [detach("a", true)]);
    stage.wait("a");
    let attachment = Stage::attachment("a");
    assert_eq!(stage.world.volume_of(&attachment), Some(volume));
    stage.acts();
    assert_eq!(stage.world.volume_of(&attachment), None);
}

#[test]
fn a_driver_matters_when_it_begins_or_ends_to_attach() {
    let driver = |attaches: bool| -> Arc<CSIDriver> {
        Arc::new(serde_json::from_value(json!({ "spec": { "attachRequired": attaches } })).unwrap())
    };
    let (yes, no) = (driver(true), driver(false));
    for (change, expected) in [
        (Change::Added { new: &yes, initial: false }, false),
        (Change::Added { new: &no, initial: false }, true),
        (Change::Added { new: &no, initial: true }, false),
        (Change::Updated { old: &yes, new: &no }, true),
        (Change::Updated { old: &no, new: &yes }, true),
        (Change::Updated { old: &no, new: &no }, false),
        (Change::Resync { object: &no }, false),
    ] {
        assert_eq!(super::changes_attaching(&change), expected);
    }
}

#[test]
fn a_lost_attachment_is_made_again() {
    let mut stage = Stage::attached("ReadWriteOnce");
    stage.settings.verify_after = Some(Duration::from_secs(60));
    stage.answer("a", json!({ "attached": false }));
    let plan = stage.reconcile();
    assert_eq!((plan.acts, plan.wake_at), (vec![], Some(stage.now + LATER * 60)));
    stage.answer("a", json!({ "attached": true }));
    assert_eq!(stage.reconcile().wake_at, None, "it was found well in time");
    stage.answer("a", json!({ "attached": false }));
    stage.reconcile();
    stage.now += LATER * 60;
    assert_eq!(stage.acts(), [stage.attach_act("a")]);

    let mut stage = Stage::attached("ReadWriteOnce");
    stage.settings.verify_after = Some(Duration::from_secs(60));
    stage.delete_attachment("a");
    stage.reconcile();
    stage.now += LATER * 60;
    let attachment = Stage::attachment("a");
    assert_eq!(stage.acts(), [Act::Verify { node: "a".into(), attachment }]);
}

#[test]
fn a_flex_volume_is_asked_about_periodically_and_waits_for_its_driver() {
    let mut stage = Stage::new("ReadWriteOnce");
    let volume: PersistentVolume = serde_json::from_value(json!({
        "metadata": { "name": "v" },
        "spec": { "accessModes": ["ReadWriteOnce"], "flexVolume": { "driver": "k8s/lvm" } },
    }))
    .unwrap();
    stage.spec = Arc::new(of_volume(&volume, false).unwrap());
    stage.settings.verify_after = Some(LATER * 60);
    stage.add_pod("p", "a");
    assert_eq!(stage.acts(), [stage.attach_act("a")]);
    let (volume, node) = (stage.spec.volume.clone(), "a".into());
    stage.world.end(&volume, &node, Ok("/dev/x".into()), stage.now);
    let report = stage.world.unwritten_report("a").expect("a list");
    assert_eq!(&*report.volumes[0].device_path, "/dev/x");
    stage.world.mark_written(&node, report, true);
    let plan = stage.reconcile();
    assert_eq!((plan.acts, plan.wake_at), (vec![], Some(stage.now + LATER * 60)));
    stage.now += LATER * 60;
    let ask = Act::Ask { node: node.clone(), spec: stage.spec.clone() };
    let plan = stage.reconcile();
    assert_eq!((plan.acts, plan.wake_at), (vec![ask], Some(stage.now + LATER * 60)));

    stage.remove_pod("p");
    stage.in_use("a", false);
    stage.detaches = false;
    let plan = stage.reconcile();
    assert_eq!(plan.acts, []);
    assert!(plan.wake_at.is_some(), "the driver may come");
    stage.detaches = true;
    stage.acts();
    stage.write("a");
    assert_eq!(stage.acts(), [detach("a", true)]);
}

#[test]
fn the_volumes_of_a_driver_that_stops_attaching_are_unwanted() {
    let mut stage = Stage::attached("ReadWriteOnce");
    assert!(stage.world.forget_driver("other").is_empty());
    assert_eq!(stage.world.forget_driver("d"), [stage.spec.volume.clone()]);
    stage.in_use("a", false);
    stage.reconcile();
    stage.write("a");
    assert_eq!(stage.acts(), [detach("a", true)]);
}

#[test]
fn pods_are_told_apart_by_uid_and_node() {
    let mut stage = Stage::new("ReadWriteOnce");
    stage.add_pod("p", "a");
    let key = ObjectKey::new("ns", "p");
    let uid = Uid::new("p");
    assert!(stage.world.forget_pod(&key, Some((&uid, "a"))).is_empty());
    assert_eq!(stage.world.forget_pod(&key, Some((&Uid::new("q"), "a"))).len(), 1);
    stage.add_pod("p", "a");
    assert_eq!(stage.world.forget_pod(&key, Some((&uid, "b"))).len(), 1);
    assert!(stage.world.volume_names().is_empty());
}
