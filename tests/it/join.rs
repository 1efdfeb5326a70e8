//! Checks the manager's work with kubeadm and OpenSSL. Where one of them is not installed, its test
//! prints that it skips.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use kube_controller_manager::client::x509::Certificate;
use kube_controller_manager::client::{Config, pem};
use kube_controller_manager::objects::{CertificateSigningRequest, ObjectKey, Resource};
use kube_controller_manager::task;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::certificates::{certificate, decide, submit};
use crate::env::*;
use crate::kinds::*;

/// A program among the test's assets or on the PATH.
fn program(name: &str, version: &str) -> Option<PathBuf> {
    let asset =
        std::env::var_os("KUBEBUILDER_ASSETS").map(|assets| PathBuf::from(assets).join(name));
    let found = asset.filter(|path| path.exists()).unwrap_or_else(|| name.into());
    let runs = Command::new(&found).arg(version).output();
    if !runs.is_ok_and(|output| output.status.success()) {
        println!("skipped: no {name} on the PATH");
        return None;
    }
    Some(found)
}

async fn output(program: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(program);
    command.args(args);
    task::blocking(move || command.output()).await.expect("the program starts")
}

/// Both outputs of a command that must succeed.
async fn run(program: &Path, args: &[&str]) -> String {
    let output = output(program, args).await;
    let text = format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(output.status.success(), "{args:?}: {text}");
    text
}

const TOKEN: &str = "abcdef.0123456789abcdef";

#[test]
fn kubeadm_finds_the_cluster_by_a_token_and_joins_as_far_as_the_kubelet() {
    everywhere("join", async |env| {
        let Some(kubeadm) = program("kubeadm", "version") else { return };
        let flags = ["--controllers=*,bootstrap-signer-controller,token-cleaner-controller"];
        let _manager = env.manager("manager", &flags);
        let beside = |name: &str| env.kubeconfig.with_file_name(name);
        let ca = std::fs::read(beside("ca.crt")).expect("the CA");
        let server = Config::from_kubeconfig(&env.kubeconfig, None, None).unwrap().host;
        let address = server.trim_start_matches("https://").trim_end_matches('/').to_owned();
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{ "name": "c", "cluster": {
                "server": format!("https://{address}"),
                "certificate-authority-data": STANDARD.encode(&ca),
            } }],
            "users": [{ "name": "u", "user": {
                "client-certificate": beside("admin.crt"), "client-key": beside("admin.key"),
            } }],
            "contexts": [{ "name": "c", "context": { "cluster": "c", "user": "u" } }],
        });
        let admin = beside("kubeadm.conf").display().to_string();
        std::fs::write(&admin, config.to_string()).expect("written");
        let yaml = format!(
            "apiVersion: kubeadm.k8s.io/v1beta4\nkind: InitConfiguration\n\
             bootstrapTokens: [{{token: {TOKEN}, ttl: 1h}}]\n\
             localAPIEndpoint: {{advertiseAddress: 192.0.2.1, bindPort: 6443}}\n\
             nodeRegistration: {{name: first, criSocket: 'unix:///none.sock'}}\n\
             ---\n\
             apiVersion: kubeadm.k8s.io/v1beta4\nkind: ClusterConfiguration\n\
             kubernetesVersion: v1.36.2\ncontrolPlaneEndpoint: {address}\n\
             ---\n\
             apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"
        );
        let file = beside("kubeadm.yaml").display().to_string();
        std::fs::write(&file, yaml).expect("written");
        let with = ["--config", &file, "--kubeconfig", &admin];
        for phase in [&["upload-config", "all"][..], &["bootstrap-token"]] {
            run(&kubeadm, &[&["init", "phase"], phase, &with].concat()).await;
        }
        let listed = run(&kubeadm, &["token", "list", "--kubeconfig", &admin]).await;
        assert!(listed.contains(TOKEN), "{listed}");
        assert!(listed.contains("authentication,signing"), "{listed}");

        let authority = Certificate::from_der(&pem::certificates(&ca)[0]).unwrap();
        let digest = Sha256::digest(authority.public_key());
        let pin: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        let pin = format!("sha256:{pin}");
        let joined = run(
            &kubeadm,
            &[
                "join",
                "phase",
                "preflight",
                &address,
                "--token",
                TOKEN,
                "--discovery-token-ca-cert-hash",
                &pin,
                "--ignore-preflight-errors=all",
                "--cri-socket=unix:///none.sock",
                "--node-name=n1",
                "--v=1",
            ],
        )
        .await;
        let valid = "Cluster info signature and contents are valid and TLS certificate validates";
        assert!(joined.contains(valid), "{joined}");
        let fetched = "Reading configuration from the \"kubeadm-config\" ConfigMap";
        assert!(joined.contains(fetched), "{joined}");

        // Its signature is removed with the token, and no node joins by it any more.
        run(&kubeadm, &["token", "delete", "abcdef", "--kubeconfig", &admin]).await;
        let key = ObjectKey::new("kube-public", "cluster-info");
        wait_until_exists(env, &CONFIG_MAPS, &key, |map| {
            map["data"]["jws-kubeconfig-abcdef"].is_null()
        })
        .await;
    });
}

#[test]
fn openssl_verifies_what_authorities_of_every_kind_sign_for_keys_of_every_kind() {
    everywhere("openssl", async |env| {
        let Some(openssl) = program("openssl", "version") else { return };
        let folder = Folder::new("openssl-files");
        let file = |name: &str| folder.0.join(name).display().to_string();
        let kinds: [(&str, &[&str]); 5] = [
            ("rsa", &["-newkey", "rsa:2048"]),
            ("p256", &["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]),
            ("p384", &["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-384"]),
            ("p521", &["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-521"]),
            ("ed25519", &["-newkey", "ed25519"]),
        ];
        // Signer, its flag and usage, the purpose that OpenSSL checks, and the kind of its authority.
        let signers = [
            ("kubelet-serving", "kubelet-serving", "server auth", "sslserver", "ed25519"),
            ("kube-apiserver-client-kubelet", "kubelet-client", "client auth", "sslclient", "p384"),
            ("kube-apiserver-client", "kube-apiserver-client", "client auth", "sslclient", "rsa"),
        ];
        let mut flags = ["--cluster-signing-cert-file=", "--cluster-signing-key-file="]
            .map(str::to_owned)
            .to_vec();
        for (signer, flag, _, _, kind) in signers {
            let (ca, key) = (file(&format!("{signer}.crt")), file(&format!("{signer}.key")));
            let (_, new) = kinds.iter().find(|(name, _)| *name == kind).unwrap();
            let subject = format!("/CN={signer}");
            let usage = "keyUsage=critical,keyCertSign,cRLSign";
            let request =
                ["req", "-x509", "-nodes", "-days", "2", "-subj", &subject, "-addext", usage];
            let files = ["-keyout", &key, "-out", &ca];
            run(&openssl, &[&request[..], new, &files].concat()).await;
            flags.push(format!("--cluster-signing-{flag}-cert-file={ca}"));
            flags.push(format!("--cluster-signing-{flag}-key-file={key}"));
        }
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        let _manager = env.manager("manager", &flags);
        let resource = &CertificateSigningRequest::RESOURCE;
        for (signer, _, usage, purpose, _) in signers {
            for (kind, new) in kinds {
                let name = format!("{signer}-{kind}");
                let (key, csr) = (file(&format!("{name}.key")), file(&format!("{name}.csr")));
                let request = ["req", "-nodes", "-subj", "/O=system:nodes/CN=system:node:n1"];
                let names = ["-addext", "subjectAltName=DNS:n1,IP:10.0.0.7"];
                let names = if usage == "server auth" { &names[..] } else { &[] };
                let files = ["-keyout", &key, "-out", &csr];
                run(&openssl, &[&request[..], new, names, &files].concat()).await;
                let object = json!({
                    "apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest",
                    "metadata": { "name": name },
                    "spec": {
                        "request": STANDARD.encode(std::fs::read(&csr).expect("the request")),
                        "signerName": format!("kubernetes.io/{signer}"),
                        "usages": ["digital signature", usage], "expirationSeconds": 3600,
                    },
                });
                submit(env, &env.client, &object).await;
                // An administrator's request for a kubelet is approved by the manager.
                if signer != "kube-apiserver-client-kubelet" {
                    decide(env, &name, "Approved").await;
                }
                let at = ObjectKey::cluster(name.as_str());
                let is_issued = |object: &Value| certificate(object).is_some();
                let issued = wait_until_exists(env, resource, &at, is_issued).await;
                let signed = file(&format!("{name}.crt"));
                std::fs::write(&signed, certificate(&issued).unwrap()).expect("written");
                let ca = file(&format!("{signer}.crt"));
                let verify =
                    ["verify", "-x509_strict", "-purpose", purpose, "-CAfile", &ca, &signed];
                run(&openssl, &verify).await;
                // The certificate is of the request's key.
                let of = |text: String| text.trim().to_owned();
                let public = ["x509", "-noout", "-pubkey", "-in", &signed];
                let asked = ["req", "-noout", "-pubkey", "-in", &csr];
                assert_eq!(of(run(&openssl, &public).await), of(run(&openssl, &asked).await));
            }
        }
    });
}
