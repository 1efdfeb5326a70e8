//! The demos in `fixtures/` roll out.

use sandbox::demo::{self, Rollout};

use crate::env::*;

/// Applies a demo and waits until its workloads are complete. A CronJob that starts every minute is
/// not waited for.
fn rolls_out(name: &str, text: &str, workloads: usize) {
    Env::run(name, async |env| {
        let _manager = env.manager("manager", &[]);
        let objects = demo::parse(name, text).expect("YAML");
        for object in &objects {
            let made = demo::create(&env.client, object).await;
            made.unwrap_or_else(|error| panic!("{error}"));
        }
        let is_late = |rollout: &Rollout| {
            !rollout.is_complete() && !rollout.name.starts_with("cronjob batch/")
        };
        eventually(&env.clock, &format!("{name} rolls out"), || async {
            let all = demo::rollouts(&env.client, &objects).await;
            let all = all.map_err(|error| error.to_string())?;
            assert_eq!(all.len(), workloads);
            let late: Vec<String> = all.iter().filter(|r| is_late(r)).map(Rollout::line).collect();
            if late.is_empty() { Ok(()) } else { Err(late.join("; ")) }
        })
        .await;
    });
}

#[test]
fn the_demo_of_the_sandbox_rolls_out() {
    rolls_out("demo", include_str!("../../fixtures/demo.yaml"), 6);
}

#[test]
fn the_demo_of_stateful_sets_rolls_out() {
    rolls_out("demo-statefulset", include_str!("../../fixtures/statefulset.yaml"), 1);
}

#[test]
fn the_demo_of_daemon_sets_rolls_out() {
    rolls_out("demo-daemonset", include_str!("../../fixtures/daemonset.yaml"), 1);
}

#[test]
fn the_demo_of_jobs_rolls_out() {
    rolls_out("demo-jobs", include_str!("../../fixtures/jobs.yaml"), 2);
}

#[test]
fn the_demo_of_autoscalers_rolls_out() {
    rolls_out("demo-autoscaling", include_str!("../../fixtures/autoscaling.yaml"), 1);
}
