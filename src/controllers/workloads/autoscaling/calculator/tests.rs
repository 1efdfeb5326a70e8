//! Upstream's cases: `replica_calculator_test.go`.

use serde_json::json;

use super::*;

const NOW: Timestamp = Timestamp::from_secs(100_000);

const TOLERANCES: Tolerances = Tolerances { down: 0.1, up: 0.1 };

/// Pods by letters: ready, unready, hot (just started), hot and unready (v), deleted, failed,
/// pending. Each requests its item of `requests`, in thousandths, or one CPU.
fn pods(letters: &str, requests: &[i64]) -> Vec<Arc<Pod>> {
    let pod = |(at, letter): (usize, char)| {
        let started = if matches!(letter, 'h' | 'v') { 100_000 } else { 90_000 };
        let started = Timestamp::from_secs(started);
        let ready = if matches!(letter, 'u' | 'v' | 'f' | 'd') { "False" } else { "True" };
        let request = requests.get(at).copied().unwrap_or(1000);
        let pod = json!({
            "metadata": {
                "name": format!("pod-{at}"),
                "deletionTimestamp": (letter == 'd').then_some("2026-01-01T00:00:00Z"),
            },
            "spec": { "containers": [
                { "name": "main", "resources": { "requests": { "cpu": format!("{request}m") } } },
            ] },
            "status": {
                "phase": match letter { 'f' => "Failed", 'p' => "Pending", _ => "Running" },
                "startTime": started,
                "conditions": [{ "type": "Ready", "status": ready, "lastTransitionTime": started }],
            },
        });
        Arc::new(serde_json::from_value(pod).unwrap())
    };
    letters.chars().enumerate().map(pod).collect()
}

fn metrics(levels: &[i64]) -> PodMetrics {
    let metric = |(at, value): (usize, &i64)| {
        let window = Duration::from_secs(60);
        let value = i128::from(*value);
        (format!("pod-{at}").into(), PodMetric { value, timestamp: NOW, window })
    };
    levels.iter().enumerate().map(metric).collect()
}

fn calculator(pods: &[Arc<Pod>], tolerances: Tolerances) -> Calculator<'_> {
    let startup = Startup {
        cpu_initialization: Duration::from_secs(120),
        readiness_delay: Duration::from_secs(10),
    };
    Calculator { pods, tolerances, startup, now: NOW, pod_level_resources: true }
}

#[test]
fn replicas_by_utilization() {
    // Pods, requests, levels, target, current replicas; replicas and utilization.
    type Case<'a> = (&'a str, &'a [i64], &'a [i64], i32, i32, i32, i32);
    let table: &[Case] = &[
        ("rrr", &[], &[300, 500, 700], 30, 3, 5, 50),
        ("urr", &[], &[300, 500, 700], 30, 3, 4, 60),
        ("hrr", &[], &[300, 500, 700], 30, 3, 4, 60),
        ("ruu", &[], &[400, 500, 700], 30, 3, 3, 40),
        ("rvv", &[], &[400, 500, 700], 30, 3, 3, 40),
        ("rrff", &[], &[500, 700], 30, 2, 4, 60),
        ("rrdd", &[], &[500, 700], 30, 2, 4, 60),
        ("rrrrr", &[], &[100, 300, 500, 250, 250], 50, 5, 3, 28),
        ("rrruu", &[], &[100, 300, 500, 250, 250], 50, 5, 2, 30),
        ("rrrvv", &[], &[100, 300, 500, 250, 250], 50, 5, 2, 30),
        ("rpppp", &[], &[100], 50, 5, 1, 10),
        ("rrrrrff", &[], &[100, 300, 500, 250, 250], 50, 5, 3, 28),
        ("rrrrrdd", &[], &[100, 300, 500, 250, 250], 50, 5, 3, 28),
        ("rrr", &[900, 1000, 1100], &[1010, 1030, 1020], 100, 3, 3, 102),
        // Metrics of other pods, and pods without metrics.
        ("rrrr", &[], &[4000, 9500, 3000, 7000, 3200, 2000], 100, 4, 24, 587),
        ("rrrr", &[], &[400, 95], 100, 4, 3, 24),
        ("rr", &[], &[1000], 100, 2, 2, 100),
        ("rr", &[], &[1900], 100, 2, 2, 190),
        ("rr", &[], &[600], 100, 2, 2, 60),
        ("urr", &[], &[100, 450], 50, 3, 3, 45),
        ("hrr", &[], &[100, 450], 50, 3, 3, 45),
        ("urr", &[], &[100, 2000], 50, 3, 4, 200),
        ("vrr", &[], &[100, 2000], 50, 3, 4, 200),
        ("urrr", &[], &[100, 100, 100], 50, 4, 3, 10),
        ("urrr", &[1000, 1000, 2000, 2000], &[200, 100, 100], 300, 4, 2, 6),
        // A rollout with a surge.
        ("rrr", &[], &[100, 100], 50, 2, 2, 10),
    ];
    for (letters, requests, levels, target, current, replicas, percent) in table {
        let pods = pods(letters, requests);
        let calculator = calculator(&pods, TOLERANCES);
        let found = calculator.by_utilization(metrics(levels), "cpu", "", *current, *target);
        let found = found.unwrap();
        let case = format!("{letters} {levels:?} {target}");
        assert_eq!((found.replicas, found.utilization), (*replicas, Some(*percent)), "{case}");
    }
}

#[test]
fn an_autoscaler_may_have_its_own_tolerances() {
    let pods = pods("rrr", &[900, 1000, 1100]);
    for (down, up, levels, replicas) in [
        (0.0, 0.0, [909, 1010, 1111], 4),
        (0.1, 2.0, [1890, 1910, 1900], 3),
        (0.1, 0.5, [1890, 1910, 1900], 6),
        (0.8, 0.1, [490, 510, 500], 3),
        (0.1, 0.8, [490, 510, 500], 2),
    ] {
        let calculator = calculator(&pods, Tolerances { down, up });
        let found = calculator.by_utilization(metrics(&levels), "cpu", "", 3, 100).unwrap();
        assert_eq!(found.replicas, replicas, "{down} {up} {levels:?}");
    }
}

#[test]
fn replicas_by_average() {
    // Unreadiness counts for the CPU alone. Pods, levels, target, current, the tolerance upwards;
    // replicas and the average.
    type Case<'a> = (&'a str, &'a [i64], i64, i32, f64, i32, i64);
    let table: &[Case] = &[
        ("rrr", &[20000, 10000, 30000], 15000, 3, 0.1, 4, 20000),
        ("rrv", &[50000, 10000, 30000], 15000, 3, 0.1, 6, 30000),
        ("vrv", &[50000, 15000, 30000], 15000, 3, 0.1, 7, 31666),
        ("rrrrr", &[12000, 12000, 12000, 12000, 12000], 20000, 5, 0.1, 3, 12000),
        ("rrr", &[20000, 21000, 21000], 20000, 3, 0.1, 3, 20666),
        ("rrr", &[20000, 21000, 21000], 20000, 3, 0.01, 4, 20666),
        ("rrrrr", &[20000, 19000, 21000], 20000, 5, 0.1, 5, 20000),
        ("rrr", &[10000, 10000], 17000, 2, 0.1, 2, 10000),
        ("r", &[8600], 4400, 1, 0.1, 2, 8600),
    ];
    for (letters, levels, target, current, up, replicas, usage) in table {
        let pods = pods(letters, &[]);
        let calculator = calculator(&pods, Tolerances { down: 0.1, up: *up });
        let found = calculator.by_average(metrics(levels), None, *current, *target).unwrap();
        assert_eq!((found.replicas, found.usage), (*replicas, *usage), "{letters} {levels:?}");
    }
}

#[test]
fn replicas_by_one_value() {
    // Pods, the value, its target, current, the tolerance upwards; replicas.
    for (letters, usage, target, current, up, replicas) in [
        ("rrr", 20000, 15000, 3, 0.1, 4),
        ("uru", 50000, 10000, 3, 0.1, 5),
        ("rrrrr", 12000, 20000, 5, 0.1, 3),
        ("uru", 8600, 4400, 3, 0.1, 2),
        ("rrrrr", 8600, 14334, 5, 0.1, 3),
        ("rrr", 20666, 20000, 3, 0.1, 3),
        ("rrr", 20666, 20000, 3, 0.01, 4),
        ("rrr", 8600, 8888, 3, 0.1, 3),
        ("rrr", i64::MAX, 1, 3, 0.1, i32::MAX),
        ("rrr", i64::MAX, i64::MAX, 3, 0.1, 3),
        ("", 15000, 10000, 0, 0.1, 2),
        ("", 0, 10000, 0, 0.1, 0),
    ] {
        let pods = pods(letters, &[]);
        let calculator = calculator(&pods, Tolerances { down: 0.1, up });
        let found = calculator.by_value(usage.into(), current, target).unwrap();
        assert_eq!((found.replicas, found.usage), (replicas, usage), "{letters} {usage} {target}");
    }
    let none = calculator(&[], TOLERANCES).by_value(2, 1, 1).unwrap_err();
    assert_eq!(none, format!("unable to calculate ready pods: {NO_PODS}"));
}

#[test]
fn replicas_by_share() {
    // The sum, the replicas that exist, the target of each, the tolerance upwards; replicas and the average.
    for (usage, existing, target, up, expected, average) in [
        (20000, 3, 5000, 0.1, 4, 6667),
        (6000, 5, 2000, 0.1, 3, 1200),
        (20166, 4, 5000, 0.1, 4, 5042),
        (20208, 4, 5000, 0.01, 5, 5052),
        (8600, 3, 2150, 0.1, 4, 2867),
        (8600, 5, 2867, 0.1, 3, 1720),
        (8600, 3, 2900, 0.1, 3, 2867),
        (8600, 3, 2800, 0.01, 4, 2867),
        (i64::MAX, 1, 1, 0.1, i32::MAX, i64::MAX),
        (i64::MAX, 1, i64::MAX, 0.1, 1, i64::MAX),
        // Without replicas there is no average.
        (8600, 0, 2800, 0.1, 4, 8600),
        (0, 0, 2800, 0.1, 0, 0),
    ] {
        let (replicas, tolerances) =
            (Replicas { wanted: existing, existing }, Tolerances { down: 0.1, up });
        let found = by_share(usage.into(), replicas, target, tolerances);
        assert_eq!((found.replicas, found.usage), (expected, average), "{usage} {target}");
    }
}

#[test]
fn a_surge_within_the_tolerance_changes_nothing() {
    // The wanted and the existing replicas, the sum, the target of each, the tolerance downwards.
    for (wanted, existing, usage, down, expected) in [
        (10, 11, 100, 0.1, 10),
        (2, 4, 20, 0.9, 2),
        (4, 8, 20, 0.9, 4),
        (10, 9, 95, 0.1, 10),
        (10, 11, 90, 0.1, 9),
        (10, 11, 130, 0.1, 13),
    ] {
        let (replicas, tolerances) = (Replicas { wanted, existing }, Tolerances { down, up: 0.1 });
        let found = by_share(usage, replicas, 10, tolerances);
        assert_eq!(found.replicas, expected, "{wanted} {existing} {usage}");
    }
}

#[test]
fn sums_may_need_more_than_64_bits() {
    const MAX: i64 = i64::MAX;
    // 120 GB of memory, in thousandths of a byte.
    const LARGE: i64 = 120_000_000_000_000;
    let four = pods("rrrr", &[MAX, MAX, MAX, MAX]);
    let many = pods(&"r".repeat(1000), &[LARGE; 1000]);
    for (pods, levels, target, replicas, percent, average) in [
        (&four, vec![MAX; 4], 50, 8, 100, MAX),
        (&four, vec![MAX / 2; 4], 100, 2, 49, MAX / 2),
        // Two without metrics use all of their requests.
        (&four, vec![MAX / 4; 2], 100, 3, 24, MAX / 4),
        (&many, vec![LARGE; 1000], 50, 2000, 100, LARGE),
    ] {
        let current = pods.len() as i32;
        let found = calculator(pods, TOLERANCES).by_utilization(
            metrics(&levels),
            "cpu",
            "",
            current,
            target,
        );
        let found = found.unwrap();
        let case = format!("{} {levels:?}", pods.len());
        assert_eq!(
            (found.replicas, found.utilization, found.usage),
            (replicas, Some(percent), average),
            "{case}"
        );
    }
    let tiny = pods("r", &[1]);
    let found =
        calculator(&tiny, TOLERANCES).by_utilization(metrics(&[MAX]), "cpu", "", 1, 50).unwrap();
    assert_eq!((found.replicas, found.utilization), (i32::MAX / 50 + 1, Some(i32::MAX)));
    let found =
        calculator(&four, TOLERANCES).by_average(metrics(&[MAX; 4]), None, 4, MAX / 2).unwrap();
    assert_eq!((found.replicas, found.usage), (8, MAX));
    let containers = json!([1, 2].map(|at| json!({
        "name": format!("c{at}"), "resources": { "requests": { "cpu": format!("{MAX}m") } },
    })));
    let pod = json!({ "metadata": { "name": "pod-0" }, "spec": { "containers": containers } });
    let pods = [Arc::new(serde_json::from_value::<Pod>(pod).unwrap())];
    let requests = calculator(&pods, TOLERANCES).requests("", "cpu").unwrap();
    assert_eq!(requests["pod-0"], 2 * i128::from(MAX));
}

#[test]
fn without_usable_pods_or_metrics_there_is_an_error() {
    for (letters, levels, error) in [
        ("", vec![1], NO_PODS),
        ("uu", vec![100, 100], NO_METRICS),
        ("dfp", vec![100, 100, 100], NO_METRICS),
        ("rr", Vec::new(), NO_METRICS),
    ] {
        let pods = pods(letters, &[]);
        let calculator = calculator(&pods, TOLERANCES);
        let found = calculator.by_utilization(metrics(&levels), "cpu", "", 1, 50);
        assert_eq!(found.unwrap_err(), error, "{letters}");
    }
    let pods = pods("r", &[]);
    let calculator = calculator(&pods, TOLERANCES);
    let mut strange = metrics(&[100]);
    let metric = strange.remove("pod-0").unwrap();
    strange.insert("an-older-pod-name".into(), metric);
    let found = calculator.by_utilization(strange, "cpu", "", 1, 100);
    assert_eq!(found.unwrap_err(), UNKNOWN_PODS);
    let found = calculator.by_utilization(metrics(&[100]), "memory", "", 1, 100);
    assert_eq!(found.unwrap_err(), "missing request for memory in container main of Pod pod-0");
}

#[test]
fn pods_are_grouped_by_their_start() {
    let pod = |started: i64, status: &str, since: i64| -> Arc<Pod> {
        let at = Timestamp::from_secs;
        let pod = json!({
            "metadata": { "name": "p" },
            "status": {
                "phase": "Running", "startTime": (started > 0).then(|| at(started)),
                "conditions": [{
                    "type": "Ready", "status": status, "lastTransitionTime": at(since),
                }],
            },
        });
        Arc::new(serde_json::from_value(pod).unwrap())
    };
    let metric = PodMetric { value: 1, timestamp: NOW, window: Duration::from_secs(30) };
    // Started, the Ready condition and its time; whether the CPU is that of the start.
    for (started, status, since, is_starting) in [
        (99_990, "True", 99_971, true),
        (99_990, "True", 99_970, false),
        (99_990, "False", 99_000, true),
        (99_990, "Unknown", 99_000, false),
        (99_000, "True", 99_999, false),
        (99_000, "False", 99_009, true),
        (99_000, "False", 99_010, false),
        (99_000, "Unknown", 99_005, false),
        (0, "True", 99_000, true),
    ] {
        let pods = [pod(started, status, since)];
        let found = calculator(&pods, TOLERANCES).is_starting(&pods[0], &metric);
        assert_eq!(found, is_starting, "{started} {status} {since}");
    }
    let unknown = [Arc::new(Pod::default())];
    assert!(calculator(&unknown, TOLERANCES).is_starting(&unknown[0], &metric));
}

#[test]
fn requests_are_those_of_the_pod_or_of_its_lasting_containers() {
    let requests = |cpu: &str| json!({ "requests": { "cpu": cpu } });
    let pod = |spec: serde_json::Value| {
        let pod = json!({ "metadata": { "name": "p" }, "spec": spec });
        Arc::new(serde_json::from_value::<Pod>(pod).unwrap())
    };
    let containers = || {
        json!([
            { "name": "a", "resources": requests("100m") },
            { "name": "b", "resources": requests("200m") },
        ])
    };
    let init = || {
        json!([
            { "name": "once", "resources": requests("9") },
            { "name": "side", "restartPolicy": "Always", "resources": requests("50m") },
        ])
    };
    let plain = pod(json!({ "containers": containers(), "initContainers": init() }));
    let whole = pod(json!({ "containers": containers(), "resources": requests("1") }));
    let memory = pod(json!({
        "containers": containers(), "resources": { "requests": { "memory": "1Gi" } },
    }));
    // Neither a resize in flight, a foreign resource nor overhead counts; init containers do.
    let resized =
        json!([{ "name": "a", "resources": requests("5"), "allocatedResources": { "cpu": "5" } }]);
    let mut whole_with_more = json!({
        "metadata": { "name": "p" }, "status": { "containerStatuses": resized },
        "spec": {
            "containers": containers(), "initContainers": init(), "overhead": { "cpu": "10m" },
            "resources": { "requests": { "memory": "1Gi" } },
        },
    });
    let of = |pod: &serde_json::Value| -> Arc<Pod> {
        Arc::new(serde_json::from_value(pod.clone()).unwrap())
    };
    let more = of(&whole_with_more);
    whole_with_more["spec"]["resources"]["requests"] = json!({ "example.com/gpu": "1" });
    let foreign = of(&whole_with_more);
    for (pod, resource, container, request) in [
        (&more, "cpu", "", Ok(9000)),
        (&foreign, "cpu", "", Ok(350)),
        (&plain, "cpu", "", Ok(350)),
        (&plain, "cpu", "b", Ok(200)),
        (&plain, "cpu", "side", Ok(50)),
        (&plain, "cpu", "once", Err("container once not found in Pod p")),
        (&plain, "cpu", "c", Err("container c not found in Pod p")),
        (&plain, "memory", "a", Err("missing request for memory in container a of Pod p")),
        (&whole, "cpu", "", Ok(1000)),
        (&whole, "cpu", "a", Ok(100)),
        (&whole, "memory", "", Err("missing pod-level request for memory in Pod p")),
        (&memory, "memory", "", Ok(1024 * 1024 * 1024 * 1000)),
        (&memory, "cpu", "", Ok(300)),
    ] {
        let pods = [pod.clone()];
        let found = calculator(&pods, TOLERANCES).requests(container, resource);
        let found = found.map(|requests| requests["p"]);
        assert_eq!(found, request.map_err(str::to_owned), "{resource} {container}");
    }
    let pods = [whole];
    let without = Calculator { pod_level_resources: false, ..calculator(&pods, TOLERANCES) };
    assert_eq!(without.requests("", "cpu").unwrap()["p"], 300);
}
