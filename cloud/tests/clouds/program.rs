//! The whole program: its lease, its ports, and what it says.

use std::process::{Command, ExitCode};

use cloud::app;
use cloud::objects::Service;
use cloud::options::{Command as Parsed, parse};
use futures_lite::future;
use kube_controller_manager::app::connect::connect;
use kube_controller_manager::client::{Client, Config};
use kube_controller_manager::objects::{Lease, ObjectKey};
use sandbox::cluster::free_port;
use sandbox::demo;

use crate::env::Env;
use crate::fake::{ADDRESS, Fake};

const PROGRAM: &str = env!("CARGO_BIN_EXE_cloud-controller-manager");

fn ran(args: &[&str]) -> (Option<i32>, String, String) {
    let output = Command::new(PROGRAM).args(args).output().expect("it starts");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("UTF-8");
    (output.status.code(), text(output.stdout), text(output.stderr))
}

#[test]
fn answers_and_refusals_are_of_this_program() {
    let (code, help, _) = ran(&["--help"]);
    assert_eq!(code, Some(0));
    assert!(help.contains("Usage:\n  cloud-controller-manager [flags]\n"), "{help}");
    assert!(help.contains("--concurrent-node-syncs") && !help.contains("--concurrent-job-syncs"));
    assert!(help.contains("All controllers: cloud-node-controller, "));
    for (args, fault) in [
        (&[][..], "Error: --cloud-provider cannot be empty\n"),
        (&["--nope"], "Error: unknown flag: --nope\n"),
        (
            &["--cloud-provider=nope"],
            "Error: Cloud provider could not be initialized: unknown cloud",
        ),
    ] {
        let (code, _, errors) = ran(args);
        assert_eq!(code, Some(1), "{args:?}");
        assert!(errors.starts_with(fault), "{args:?}: {errors}");
    }
}

/// With the rights of the manifest in `deploy/`, its flags, and leader migration: there is a lease for
/// the migrated controllers beside its own.
#[test]
fn the_program_works_with_the_rights_of_its_manifest() {
    let text = include_str!("../../../deploy/cloud-controller-manager.yaml");
    let objects = demo::parse("the manifest", text).expect("YAML");
    let (workload, rights) = objects.split_last().expect("a Deployment");
    let spec = &workload["spec"]["template"]["spec"];
    let command = spec["containers"][0]["command"].as_array().expect("a command");
    let flags: Vec<String> = command
        .iter()
        .filter_map(|word| word.as_str()?.strip_prefix("--"))
        .filter(|flag| !flag.starts_with("cloud-"))
        .map(|flag| format!("--{flag}"))
        .collect();
    Env::everywhere("program", async |env| {
        for object in rights {
            demo::create(&env.client, object).await.unwrap_or_else(|error| panic!("{error}"));
        }
        let fake = Fake::new();
        let account = spec["serviceAccountName"].as_str().expect("an account");
        let port = free_port().expect("a port");
        let own = [
            format!("--kubeconfig={}", env.account(account).display()),
            format!("--secure-port={port}"),
            "--cloud-provider=fake".into(),
            "--enable-leader-migration".into(),
            "--leader-elect-retry-period=500ms".into(),
        ];
        let args = [flags.as_slice(), &own].concat();
        let Ok(Parsed::Run(options)) = parse(&args) else { panic!("{args:?}") };
        let cloud = fake.clone();
        let runs = async {
            let ended: ExitCode = app::run(options, connect, |_, _| Ok(cloud)).await;
            panic!("it has ended: {ended:?}")
        };
        let scenario = async {
            let key = env.create_service("web").await;
            env.eventually("the Service has an address", || async {
                let service = env.get::<Service>(&key).await.expect("it is there");
                let address = &service["status"]["loadBalancer"]["ingress"][0]["ip"];
                if address == ADDRESS { Ok(()) } else { Err(service.to_string()) }
            })
            .await;
            for name in ["cloud-controller-manager", "cloud-provider-extraction-migration"] {
                let key = ObjectKey::new("kube-system", name);
                env.eventually(name, || async {
                    let lease = env.get::<Lease>(&key).await.ok_or("no lease")?;
                    let holder = lease["spec"]["holderIdentity"].as_str().unwrap_or_default();
                    if holder.is_empty() { Err(lease.to_string()) } else { Ok(()) }
                })
                .await;
            }
            let mut config = Config::new(format!("https://127.0.0.1:{port}"));
            config.tls.insecure = true;
            let probe = Client::new(config, env.clock.clone()).expect("a client");
            let path = spec["containers"][0]["livenessProbe"]["httpGet"]["path"].as_str();
            let answer = probe.get_path(path.expect("a path")).await.expect("an answer");
            assert_eq!(answer, b"ok");
        };
        future::or(runs, scenario).await;
    });
}
