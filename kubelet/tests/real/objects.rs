//! ConfigMaps and Secrets of a folder, and parts of volumes.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use futures_lite::future::block_on;
use kube_controller_manager::clock::SystemClock;
use kubelet::cri::{self, RuntimeService, api};
use serde_json::Value;

use super::node::{Node, wait};
use super::pods::{container, is_ready, once};

const CONFIG: &str = "{apiVersion: v1, kind: ConfigMap, metadata: {name: web}, \
                      data: {page: 'one', MODE: fast}}";
const SECRET: &str = "{apiVersion: v1, kind: Secret, metadata: {name: key}, \
                      stringData: {token: s3cret, USER: root}}";

const WEB: &str = "
apiVersion: v1
kind: Pod
metadata: {name: web, labels: {app: web}}
spec:
  terminationGracePeriodSeconds: 1
  securityContext: {fsGroup: 1234}
  volumes:
  - {name: config, configMap: {name: web, items: [{key: page, path: deep/page}]}}
  - {name: secret, secret: {secretName: key, defaultMode: 0400}}
  - name: all
    projected:
      sources:
      - {configMap: {name: web, items: [{key: page, path: page, mode: 0440}]}}
      - {secret: {name: key, items: [{key: token, path: token}]}}
      - {configMap: {name: none, optional: true}}
      - {downwardAPI: {items: [{path: labels, fieldRef: {fieldPath: metadata.labels}}]}}
  containers:
  - name: main
    image: node.test/busybox:1
    command: [sh, -c, 'env | grep ^T_ | sort > /dev/termination-log;
      stat -L -c \"%n %a %g\" /secret/token /all/page /all/token >> /dev/termination-log;
      stat -f -c %T /secret /all >> /dev/termination-log;
      stat -c \"%n %a %g\" /config /secret >> /dev/termination-log;
      cat /all/labels >> /dev/termination-log; touch /config/x 2>/dev/null && echo writable >> /dev/termination-log;
      exec httpd -f -p 8080 -h /config']
    envFrom:
    - {prefix: T_, configMapRef: {name: web}}
    - {prefix: T_S_, secretRef: {name: key}}
    - {configMapRef: {name: none, optional: true}}
    env:
    - {name: T_MODE, valueFrom: {configMapKeyRef: {name: web, key: MODE}}}
    - {name: T_NONE, valueFrom: {secretKeyRef: {name: key, key: none, optional: true}}}
    - {name: T_BOTH, value: $(T_MODE)-$(T_S_USER)}
    ports: [{containerPort: 8080}]
    readinessProbe: {tcpSocket: {port: 8080}, periodSeconds: 1}
    volumeMounts:
    - {name: config, mountPath: /config}
    - {name: secret, mountPath: /secret}
    - {name: all, mountPath: /all}
";

#[test]
fn pods_use_objects_of_the_folder_and_follow_them() {
    let Some(mut node) = Node::start("objects") else { return };
    node.write("web.yaml", WEB);
    node.write_object("web.yaml", CONFIG);
    node.write_object("broken.yaml", "{");
    node.start_kubelet_with_objects();
    // The Secret is missing.
    assert!(wait(|| node.log().contains("secret \"key\" not found")), "{}", node.log());
    assert!(node.log().contains("objects/broken.yaml: "), "{}", node.log());
    node.write_object("key.yaml", SECRET);
    let web = node.eventually("web-n", "ready", is_ready);
    let ip = web["status"]["podIP"].as_str().expect("an address").to_owned();
    let page = |text: &str| node.get(&format!("{ip}:8080"), "/deep/page").as_deref() == Some(text);
    assert!(page("one"), "{}", node.log());
    node.write_object("web.yaml", &CONFIG.replace("one", "two"));
    assert!(wait(|| page("two")), "{}", node.log());
    let uid = web["metadata"]["uid"].as_str().expect("a uid").to_owned();
    let volumes = node.folder.join("kubelet/pods").join(&uid).join("volumes");
    let data =
        fs::read_link(volumes.join("kubernetes.io~configmap/config/..data")).expect("a link");
    assert!(data.display().to_string().starts_with("..2"), "{data:?}");
    assert_eq!(container(&node.pod("web-n"))["restartCount"], 0);
    // Local users do not come near them.
    let pods = node.folder.join("kubelet/pods");
    let below = [pods.join(&uid), volumes.clone(), pods.join(&uid).join("containers")];
    for folder in [node.folder.join("kubelet"), pods].iter().chain(&below) {
        let mode = fs::metadata(folder).expect("a folder").permissions().mode() & 0o7777;
        assert_eq!(format!("{mode:o}"), "750", "{}", folder.display());
    }
    // The container's last message has what it saw.
    let messages = node.folder.join("kubelet/pods").join(&uid).join("containers/main/0");
    let message = fs::read_to_string(messages).expect("a message");
    assert_eq!(
        message,
        "T_BOTH=fast-root\nT_MODE=fast\nT_S_USER=root\nT_S_token=s3cret\nT_page=one\n\
         /secret/token 440 1234\n/all/page 440 1234\n/all/token 644 1234\ntmpfs\ntmpfs\n\
         /config 2777 1234\n/secret 3777 1234\napp=\"web\""
    );
    node.remove("web.yaml");
    node.eventually("web-n", "gone", Value::is_null);
    let folder = node.folder.join("kubelet/pods").join(&uid);
    assert!(wait(|| !folder.exists()), "{}", node.log());
}

#[test]
fn containers_restart_with_volumes_whose_source_is_gone() {
    let Some(mut node) = Node::start("orphaned") else { return };
    let file = node.host_path("file");
    fs::write(&file, "").expect("a file");
    let (folder, file_path) = (node.host_path("").display().to_string(), file.display());
    let manifest = format!(
        "
apiVersion: v1
kind: Pod
metadata: {{name: orphaned}}
spec:
  terminationGracePeriodSeconds: 1
  volumes:
  - {{name: file, hostPath: {{path: {file_path}, type: File}}}}
  - {{name: config, configMap: {{name: web}}}}
  - {{name: host, hostPath: {{path: {folder}}}}}
  initContainers:
  - name: first
    image: node.test/busybox:1
    command: [sh, -c, 'true']
    volumeMounts: [{{name: file, mountPath: /file}}]
  containers:
  - name: main
    image: node.test/busybox:1
    command: [sh, -c, 'while [ ! -e /host/end ]; do sleep 0.1; done; rm /host/end; exit 1']
    volumeMounts: [{{name: config, mountPath: /config}}, {{name: host, mountPath: /host}}]
"
    );
    node.write("orphaned.yaml", &manifest);
    node.write_object("web.yaml", CONFIG);
    node.start_kubelet_with_objects();
    node.eventually("orphaned-n", "ready", is_ready);
    fs::remove_file(&file).expect("removed");
    fs::remove_file(node.folder.join("objects/web.yaml")).expect("removed");
    // As the event's line quotes it.
    let failed = r#"volume \"config\" : configmap \"web\" not found"#;
    assert!(wait(|| node.log().contains(failed)), "{}", node.log());
    fs::write(node.host_path("end"), "").expect("a file");
    node.eventually("orphaned-n", "running again", |pod| {
        container(pod)["restartCount"] == 1 && is_ready(pod)
    });
}

#[test]
fn images_are_mounted_and_classes_name_the_runtimes_handler() {
    let Some(mut node) = Node::start("images") else { return };
    let fields = "spec:\n  runtimeClassName: CLASS\n  volumes: [{name: v, image: {reference: IMAGE, \
                  pullPolicy: IfNotPresent}}]";
    let script = "test -x /image/bin/busybox && ls /image | tr '\\n' ' ' > /dev/termination-log; \
                  touch /image/x 2>/dev/null && echo writable >> /dev/termination-log; exec sleep 1000";
    let pod = |name: &str, class: &str, image: &str| {
        let fields = fields.replace("CLASS", class).replace("IMAGE", image);
        once(name, "Always", script).replace("spec:", &fields)
            + "    volumeMounts: [{name: v, mountPath: /image}]\n"
    };
    node.write("good.yaml", &pod("good", "later", "node.test/busybox:1"));
    node.write("none.yaml", &pod("none", "''", "node.test/none:1"));
    node.start_kubelet_with_objects();
    let fault = "Failed to create pod sandbox: runtimeclass.node.k8s.io \\\"later\\\" not found";
    assert!(wait(|| node.log().contains(fault)), "{}", node.log());
    node.write_object(
        "later.yaml",
        "{apiVersion: node.k8s.io/v1, kind: RuntimeClass, metadata: {name: later}, handler: other}",
    );
    let good = node.eventually("good-n", "ready", is_ready);
    let uid = good["metadata"]["uid"].as_str().expect("a uid");
    let message = node.folder.join("kubelet/pods").join(uid).join("containers/main/0");
    let seen = || fs::read_to_string(&message).unwrap_or_default();
    assert!(wait(|| seen() == "bin dev etc proc sys tmp "), "{:?}", seen());
    let channel = cri::channel(&node.socket(), SystemClock::shared());
    let runtime = RuntimeService::new(channel, Duration::from_secs(60));
    let listed = block_on(runtime.list_pod_sandbox(api::ListPodSandboxRequest::default()));
    let mut handlers: Vec<String> = listed
        .expect("the sandboxes")
        .items
        .into_iter()
        .map(|sandbox| sandbox.runtime_handler)
        .collect();
    handlers.sort();
    assert_eq!(handlers, ["", "other"]);
    node.eventually("none-n", "waiting for the image of its volume", |pod| {
        let reason = container(pod)["state"]["waiting"]["reason"].as_str().unwrap_or_default();
        ["ErrImagePull", "ImagePullBackOff"].contains(&reason)
    });
    let metrics = node.get("127.0.0.1:10255", "/metrics").expect("metrics");
    let counted = "kubelet_run_podsandbox_duration_seconds_count{runtime_handler=\"other\"} 1";
    assert!(metrics.contains(counted), "{metrics}");
}

#[test]
fn parts_of_volumes_are_mounted_and_links_do_not_lead_out() {
    let Some(mut node) = Node::start("subpath") else { return };
    let host = node.host_path("data");
    fs::create_dir_all(host.join("kept")).expect("a folder");
    fs::write(host.join("kept/file"), "kept").expect("a file");
    fs::write(node.host_path("outside"), "outside").expect("a file");
    let pod = |name: &str, mounts: &str, script: &str| {
        format!(
            "
apiVersion: v1
kind: Pod
metadata: {{name: {name}}}
spec:
  terminationGracePeriodSeconds: 1
  volumes: [{{name: v, emptyDir: {{}}}}, {{name: h, hostPath: {{path: {}}}}}]
  initContainers:
  - name: init
    image: node.test/busybox:1
    command: [sh, -c, 'mkdir -p /v/a; echo file > /v/a/file; ln -s a /v/link;
      ln -s /etc /v/absolute; ln -s ../../../../../../host/outside /v/relative']
    volumeMounts: [{{name: v, mountPath: /v}}]
  containers:
  - name: main
    image: node.test/busybox:1
    command: [sh, -c, {script:?}]
    env: [{{name: POD, valueFrom: {{fieldRef: {{fieldPath: metadata.name}}}}}}]
    volumeMounts: [{mounts}]
",
            host.display()
        )
    };
    let good = "{name: v, mountPath: /one, subPath: a}, {name: v, mountPath: /f, subPath: link/file},
      {name: v, mountPath: /new, subPathExpr: $(POD)/x}, {name: h, mountPath: /kept, subPath: kept}";
    let script = "cat /one/file /f /kept/file > /dev/termination-log; echo more > /kept/more;
      stat -c %a /new >> /dev/termination-log; exec sleep 1000";
    node.write("good.yaml", &pod("good", good, script));
    for link in ["absolute", "relative", "absolute/new"] {
        let name = link.replace('/', "-");
        let mount = format!("{{name: v, mountPath: /x, subPath: {link}}}");
        node.write(&format!("{name}.yaml"), &pod(&name, &mount, "exec sleep 1000"));
    }
    let missing = "{name: v, mountPath: /x, subPathExpr: $(NONE)}";
    node.write("missing.yaml", &pod("missing", missing, "exec sleep 1000"));
    node.start_kubelet();
    let good = node.eventually("good-n", "ready", is_ready);
    let uid = good["metadata"]["uid"].as_str().expect("a uid");
    let folder = node.folder.join("kubelet/pods").join(uid);
    let message = folder.join("containers/main/0");
    let seen = || fs::read_to_string(&message).unwrap_or_default();
    assert!(wait(|| seen() == "file\nfile\nkept777\n"), "{}", seen());
    for (name, fault) in [
        ("absolute-n", "failed to prepare subPath for volumeMount \"v\" of container \"main\""),
        ("relative-n", "failed to prepare subPath for volumeMount \"v\" of container \"main\""),
        ("absolute-new-n", "failed to prepare subPath for volumeMount \"v\" of container \"main\""),
        ("missing-n", "missing value for NONE"),
    ] {
        let bad = node.eventually(name, "waiting for its mounts", |pod| {
            container(pod)["state"]["waiting"]["reason"] == "CreateContainerConfigError"
        });
        assert_eq!(container(&bad)["state"]["waiting"]["message"], fault, "{name}");
    }
    node.remove("good.yaml");
    node.eventually("good-n", "gone", Value::is_null);
    assert!(wait(|| !folder.exists()), "{}", node.log());
    // What was mounted from the machine stays there.
    assert_eq!(fs::read_to_string(host.join("kept/file")).expect("a file"), "kept");
    assert_eq!(fs::read_to_string(host.join("kept/more")).expect("a file"), "more\n");
}
