//! The environment of a container, with the downward API. Upstream: `makeEnvironmentVariables`,
//! `third_party/forked/golang/expansion`.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::error::Error as StdError;
use std::fmt::Write as _;
use std::path::PathBuf;

use k8s_openapi::api::core::v1 as core;
use kube_controller_manager::objects::Quantity;

use super::{Error, env_file};
use crate::node::own::OwnNode;
use crate::objects::{Contents, Kind, PodObjects, Unavailable};
use crate::pod::{Container, Pod, PodExt, listed};

/// What the downward API needs beside the pod.
#[derive(Clone, Copy)]
pub struct DownwardInputs<'a> {
    /// Has the addresses, and what a container without limits may have.
    pub node: &'a OwnNode,
    pub pod_ips: &'a [String],
}

/// Where the values of variables come from beside the definition.
#[derive(Clone, Copy)]
pub struct Sources<'a> {
    pub inputs: DownwardInputs<'a>,
    pub objects: &'a PodObjects,
    /// The variables of Services: those that the container does not have come last.
    pub services: &'a [(String, String)],
    pub file: &'a FileReader<'a>,
}

/// The values of variables by their names.
pub type Values = HashMap<String, Vec<u8>>;

/// Reads a file in a volume: its path and its text.
pub type FileReader<'a> = dyn Fn(&core::FileKeySelector) -> FileContent + 'a;
pub type FileContent = Result<(PathBuf, String), Box<dyn StdError + Send + Sync>>;

/// Computes the variables of a container in the order of the definition: those of `envFrom` first,
/// by key, and those of Services last. Values of a Secret may be any bytes. Blocks where a variable
/// is in a file.
///
/// # Errors
/// The source of a variable does not exist, or is not known yet.
pub fn variables(
    pod: &Pod,
    container: &Container,
    sources: Sources<'_>,
) -> Result<Vec<(String, Vec<u8>)>, Error> {
    let mut variables: Vec<(String, Vec<u8>)> = Vec::new();
    let services = || {
        let services = sources.services.iter();
        services.map(|(name, value)| (name.clone(), value.clone().into_bytes()))
    };
    let mut values: Values = services().collect();
    let mut add = |name: &str, value: Vec<u8>, values: &mut Values| {
        values.insert(name.to_owned(), value.clone());
        variables.retain(|(other, _)| other != name);
        variables.push((name.to_owned(), value));
    };
    for from in container.env_from.iter().flatten() {
        let prefix = from.prefix.as_deref().unwrap_or_default();
        for (key, bytes) in
            env_from_object(pod, from, sources.objects)?.into_iter().flat_map(|c| &c.data)
        {
            add(&format!("{prefix}{key}"), bytes.clone(), &mut values);
        }
    }
    for env in container.env.iter().flatten() {
        let given = env.value.as_deref().unwrap_or_default();
        let value = match &env.value_from {
            Some(from) if given.is_empty() => read_value(pod, container, from, sources)?,
            _ => Some(expand(given, &values)),
        };
        // An optional source that does not exist.
        let Some(value) = value else { continue };
        add(&env.name, value, &mut values);
    }
    let own: HashSet<String> = variables.iter().map(|(name, _)| name.clone()).collect();
    variables.extend(services().filter(|(name, _)| !own.contains(name)));
    Ok(variables)
}

/// Returns the ConfigMap or Secret of an `envFrom`. `None`: it is optional and absent.
fn env_from_object<'a>(
    pod: &Pod,
    from: &core::EnvFromSource,
    objects: &'a PodObjects,
) -> Result<Option<&'a Contents>, Unavailable> {
    let (kind, name, optional) = match (&from.config_map_ref, &from.secret_ref) {
        (Some(map), _) => (Kind::ConfigMap, &map.name, map.optional),
        (_, Some(secret)) => (Kind::Secret, &secret.name, secret.optional),
        (None, None) => return Ok(None),
    };
    match objects.get(kind, pod.namespace(), name) {
        Ok(contents) => Ok(Some(contents)),
        Err(error) if optional == Some(true) && error.is_not_found() => Ok(None),
        Err(error) => Err(error),
    }
}

/// Reads the value of a variable from the source that it names. `None`: the source is optional and
/// absent.
fn read_value(
    pod: &Pod,
    container: &Container,
    from: &core::EnvVarSource,
    sources: Sources<'_>,
) -> Result<Option<Vec<u8>>, Error> {
    let text = |text: String| Some(text.into_bytes());
    let Sources { inputs, objects, file, .. } = sources;
    if let Some(field) = &from.field_ref {
        return pod_field(pod, &field.field_path, inputs).map(text);
    }
    if let Some(resource) = &from.resource_field_ref {
        let of = match resource.container_name.as_deref().filter(|name| !name.is_empty()) {
            None => container,
            Some(name) => pod.container(name).ok_or_else(|| Error::NoContainer(name.to_owned()))?,
        };
        return resource_field(pod, of, resource, inputs).map(text);
    }
    if let Some(key) = &from.file_key_ref {
        let (path, lines) = file(key).map_err(Error::VolumeFile)?;
        let value = env_file::value(&lines, &key.key).map_err(|fault| {
            log::error!("pod {}: {}: {fault}", pod.display_name(), key.path);
            Error::VariableFile
        })?;
        // `env_file::value` is empty where the file has no such key.
        return match (value.is_empty(), key.optional) {
            (false, _) => Ok(text(value)),
            (true, Some(true)) => Ok(None),
            _ => Err(Error::NoKeyInFile { key: key.key.clone(), path }),
        };
    }
    let (kind, name, key, optional) = match (&from.config_map_key_ref, &from.secret_key_ref) {
        (Some(map), _) => (Kind::ConfigMap, &map.name, &map.key, map.optional),
        (_, Some(secret)) => (Kind::Secret, &secret.name, &secret.key, secret.optional),
        (None, None) => return Err(Error::UnsupportedSource),
    };
    let is_optional = optional == Some(true);
    match objects.get(kind, pod.namespace(), name) {
        Ok(contents) => match contents.data.get(key) {
            Some(bytes) => Ok(Some(bytes.clone())),
            None if is_optional => Ok(None),
            None => {
                let object = format!("{}/{name}", pod.namespace());
                Err(Error::NoKey { kind, object, key: key.clone() })
            }
        },
        Err(error) if is_optional && error.is_not_found() => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Quotes a text as a literal of Go. Upstream: `strconv.Quote`.
fn quote(text: &str) -> String {
    let mut quoted = String::from('"');
    for c in text.chars() {
        let code = u32::from(c);
        let name = match c {
            '"' | '\\' => Some(c),
            '\x07' => Some('a'),
            '\x08' => Some('b'),
            '\t' => Some('t'),
            '\n' => Some('n'),
            '\x0b' => Some('v'),
            '\x0c' => Some('f'),
            '\r' => Some('r'),
            _ => None,
        };
        match name {
            Some(name) => quoted.extend(['\\', name]),
            // Writes to memory do not fail.
            None if code < 0x20 || code == 0x7f => _ = write!(quoted, "\\x{code:02x}"),
            None if is_printable(c) => quoted.push(c),
            None if code < 0x1_0000 => _ = write!(quoted, "\\u{code:04x}"),
            None => _ = write!(quoted, "\\U{code:08x}"),
        }
    }
    quoted.push('"');
    quoted
}

/// Returns whether a character has a form of its own. Upstream: `strconv.IsPrint`.
fn is_printable(c: char) -> bool {
    // After another character, so that combining marks are not escaped.
    ['a', c].iter().collect::<String>().escape_debug().count() == 2
}

/// Returns the text of a field of the pod, for the downward API; an absent label or annotation is
/// empty. Upstream: `fieldpath.ExtractFieldPathAsString`, `podFieldSelectorRuntimeValue`.
///
/// # Errors
/// There is no such field, or the node has no address yet.
pub fn pod_field(pod: &Pod, path: &str, inputs: DownwardInputs<'_>) -> Result<String, Error> {
    let key = |prefix: &str| {
        path.strip_prefix(prefix)
            .and_then(|rest| rest.strip_prefix("['"))
            .and_then(|rest| rest.strip_suffix("']"))
    };
    let lines = |map: &Option<std::collections::BTreeMap<String, String>>| {
        let lines = map.iter().flatten().map(|(key, value)| format!("{key}={}", quote(value)));
        lines.collect::<Vec<_>>().join("\n")
    };
    if let Some(key) = key("metadata.annotations") {
        return Ok(pod.annotation(key).unwrap_or_default().to_owned());
    }
    if let Some(key) = key("metadata.labels") {
        let label = pod.metadata.labels.as_ref().and_then(|labels| labels.get(key));
        return Ok(label.cloned().unwrap_or_default());
    }
    Ok(match path {
        "metadata.name" => pod.name().to_owned(),
        "metadata.namespace" => pod.namespace().to_owned(),
        "metadata.uid" => pod.uid().to_string(),
        "metadata.labels" => lines(&pod.metadata.labels),
        "metadata.annotations" => lines(&pod.metadata.annotations),
        "spec.nodeName" => pod.spec().node_name.clone().unwrap_or_default(),
        "spec.serviceAccountName" => pod.spec().service_account_name.clone().unwrap_or_default(),
        "status.hostIP" | "status.hostIPs" => {
            let ips = inputs.node.host_ips();
            let first = ips.first().ok_or(Error::NoNodeAddress)?;
            if path == "status.hostIP" { first.clone() } else { ips.join(",") }
        }
        "status.podIP" => inputs.pod_ips.first().cloned().unwrap_or_default(),
        "status.podIPs" => inputs.pod_ips.join(","),
        other => return Err(Error::UnsupportedField(other.to_owned())),
    })
}

/// Returns a container's request or limit for the downward API, in units of its divisor, rounded
/// up. A limit that the container does not have is the pod's, or what the node has; a request that
/// it does not have is 0.
///
/// # Errors
/// When there is no such resource.
pub fn resource_field(
    pod: &Pod,
    container: &Container,
    field: &core::ResourceFieldSelector,
    inputs: DownwardInputs<'_>,
) -> Result<String, Error> {
    let (list, resource) = field
        .resource
        .split_once('.')
        .filter(|(list, _)| ["limits", "requests"].contains(list))
        .ok_or_else(|| Error::UnsupportedResource(field.resource.clone()))?;
    let is_limit = list == "limits";
    let of = |lists| listed(lists, resource, is_limit).filter(|amount| !amount.is_zero());
    let node = match (is_limit, resource) {
        (true, "cpu" | "memory" | "ephemeral-storage") => inputs.node.allocatable(resource),
        _ => Quantity::ZERO,
    };
    let of_pod = || of(pod.spec().resources.as_ref()).filter(|_| is_limit);
    let amount = of(container.resources.as_ref()).or_else(of_pod).unwrap_or(node);
    let divisor = field.divisor.as_ref().and_then(|divisor| divisor.0.parse::<Quantity>().ok());
    let divisor = divisor.filter(|divisor| divisor.is_positive()).unwrap_or(Quantity::ONE);
    let (amount, divisor) = match resource {
        "cpu" => (amount.milli_value(), divisor.milli_value()),
        _ => (amount.value(), divisor.value()),
    };
    Ok((amount / divisor + i64::from(amount % divisor > 0)).to_string())
}

/// Replaces each `$(NAME)` by the value of that variable, and `$$` by `$`. The name of an unknown
/// variable stays as it is written.
fn expand(text: &str, values: &Values) -> Vec<u8> {
    expand_by(text, |name| match values.get(name) {
        Some(value) => value.clone(),
        None => format!("$({name})").into_bytes(),
    })
}

/// Expands a word of a command as `expand` does; it has to be text.
///
/// # Errors
/// When a value is not.
pub fn expand_word(word: &str, values: &Values) -> Result<String, Error> {
    as_text(word, expand(word, values))
}

/// Returns the expanded text as a `String`. `text`: the text before, for the error.
fn as_text(text: &str, expanded: Vec<u8>) -> Result<String, Error> {
    // The cause would have the value.
    String::from_utf8(expanded).map_err(|_| Error::NotUtf8(text.to_owned()))
}

/// Expands a text as [`expand_word`] does, but each variable must have a value.
///
/// # Errors
/// One with the names of those that have none.
pub fn expand_known(text: &str, values: &Values) -> Result<String, Error> {
    let mut missing = BTreeSet::new();
    let expanded = expand_by(text, |name| {
        let value = values.get(name).cloned().unwrap_or_default();
        if value.is_empty() {
            missing.insert(name.to_owned());
        }
        value
    });
    match missing.is_empty() {
        true => as_text(text, expanded),
        false => Err(Error::NoValues(missing.into_iter().collect())),
    }
}

/// Replaces each `$(NAME)` by what `value` returns for the name, and `$$` by `$`.
fn expand_by(text: &str, mut value: impl FnMut(&str) -> Vec<u8>) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        out.extend_from_slice(&rest.as_bytes()[..at]);
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix('$') {
            out.push(b'$');
            rest = after;
        } else if let Some((name, after)) =
            rest.strip_prefix('(').and_then(|inner| inner.split_once(')'))
        {
            out.append(&mut value(name));
            rest = after;
        } else {
            out.push(b'$');
        }
    }
    out.extend_from_slice(rest.as_bytes());
    out
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn texts_are_quoted_as_go_quotes_them() {
        for (text, expected) in [
            ("", r#""""#),
            ("a \"b\" \\", r#""a \"b\" \\""#),
            ("\n\t\r\x07\x08\x0b\x0c", r#""\n\t\r\a\b\v\f""#),
            ("\0\x01\x7f", r#""\x00\x01\x7f""#),
            ("é 名 ❤\u{fe0f} e\u{301} 😀", "\"é 名 ❤\u{fe0f} e\u{301} 😀\""),
            ("\u{85}\u{200b}\u{e0001}", r#""\u0085\u200b\U000e0001""#),
        ] {
            assert_eq!(quote(text), expected);
        }
    }

    #[test]
    fn references_are_expanded_once() {
        let values =
            Values::from([("A".to_owned(), b"a".to_vec()), ("B".to_owned(), b"$(A)".to_vec())]);
        for (text, expanded) in [
            ("", ""),
            ("$(A)-$(B)", "a-$(A)"),
            ("$$(A)", "$(A)"),
            ("$(C) $A $", "$(C) $A $"),
            ("$(A", "$(A"),
            ("$$$(A)", "$a"),
        ] {
            assert_eq!(expand_word(text, &values).ok().as_deref(), Some(expanded), "{text}");
        }
    }

    #[test]
    fn variables_without_a_value_are_named() {
        let values =
            Values::from([("A".to_owned(), b"a".to_vec()), ("EMPTY".to_owned(), Vec::new())]);
        for (text, expanded) in [
            ("$(A)/b", Ok("a/b")),
            ("$$(B)", Ok("$(B)")),
            ("$(B)/$(A)/$(EMPTY)/$(B)", Err("missing value for B, EMPTY")),
        ] {
            let result = expand_known(text, &values).map_err(|error| error.to_string());
            assert_eq!(result.as_deref().map_err(String::as_str), expanded, "{text}");
        }
    }

    #[test]
    fn downward_api_fills_variables() {
        let pod = json!({
            "metadata": {"name": "p", "namespace": "n", "uid": "u", "labels": {"a": "b"}},
            "spec": {"nodeName": "host", "containers": [{"name": "c", "env": [
                {"name": "NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
                {"name": "LABEL", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['a']"}}},
                {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
                {"name": "CPU", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}},
                {"name": "MI", "valueFrom": {"resourceFieldRef":
                    {"resource": "requests.memory", "divisor": "1Mi"}}},
                {"name": "BOTH", "value": "$(NAME)/$(LABEL)"},
            ], "resources": {"requests": {"memory": "1500Ki"}}}]},
        });
        let pod: Pod = serde_json::from_value(pod).expect("a pod");
        let ips = ["10.0.0.1".to_owned()];
        let node = OwnNode::for_tests("1500m", "1", "1.2.3.4,fd00::1");
        let inputs = DownwardInputs { node: &node, pod_ips: &ips };
        let file = |key: &core::FileKeySelector| -> FileContent {
            match key.path.as_str() {
                "none" => Err("no file".into()),
                path => Ok((PathBuf::from("/v").join(path), "K='v'".to_owned())),
            }
        };
        let sources =
            Sources { inputs, objects: &PodObjects::default(), services: &[], file: &file };
        for (key, expected) in [
            (json!({"path": "f", "key": "K"}), Ok(Some(&b"v"[..]))),
            (json!({"path": "f", "key": "L", "optional": true}), Ok(None)),
            (
                json!({"path": "f", "key": "L"}),
                Err("environment variable key \"L\" not found in file \"/v/f\""),
            ),
            (json!({"path": "none", "key": "K", "optional": true}), Err("no file")),
        ] {
            let from = json!({"fileKeyRef": key});
            let from: core::EnvVarSource = serde_json::from_value(from).expect("a source");
            let found = read_value(&pod, &pod.spec().containers[0], &from, sources);
            let found = found.map_err(|error| error.to_string());
            let found = found.as_ref().map(Option::as_deref).map_err(String::as_str);
            assert_eq!(found, expected, "{key}");
        }
        let variables = variables(&pod, &pod.spec().containers[0], sources);
        let variables = variables.expect("variables");
        let values: Vec<&[u8]> = variables.iter().map(|(_, value)| value.as_slice()).collect();
        assert_eq!(values, [&b"p"[..], b"b", b"10.0.0.1", b"2", b"2", b"p/b"]);
        let mut limited = pod.clone();
        let limits = json!({"limits": {"cpu": "500m"}, "requests": {"cpu": "500m"}});
        limited.spec.get_or_insert_default().resources =
            Some(serde_json::from_value(limits).expect("resources"));
        for (resource, expected) in [("limits.cpu", "1"), ("requests.cpu", "0")] {
            let field =
                core::ResourceFieldSelector { resource: resource.to_owned(), ..Default::default() };
            let found = resource_field(&limited, &limited.spec().containers[0], &field, inputs);
            assert_eq!(found.ok().as_deref(), Some(expected), "{resource}");
        }
        let fault = pod_field(&pod, "spec.x", inputs).expect_err("no such field");
        assert_eq!(fault.to_string(), "unsupported fieldPath: spec.x");
    }

    /// The variables of the first container.
    fn shown(pod: &Value, objects: &PodObjects, services: &[(&str, &str)]) -> String {
        let pod: Pod = serde_json::from_value(pod.clone()).expect("a pod");
        let services = services.iter().map(|(name, value)| (name.to_string(), value.to_string()));
        let services: Vec<(String, String)> = services.collect();
        let file = |_: &core::FileKeySelector| -> FileContent { Err("no file".into()) };
        let node = OwnNode::for_tests("1", "1", "");
        let inputs = DownwardInputs { node: &node, pod_ips: &[] };
        let sources = Sources { inputs, objects, services: &services, file: &file };
        match variables(&pod, &pod.spec().containers[0], sources) {
            Ok(variables) => {
                let show = |(name, value): &(String, Vec<u8>)| {
                    format!("{name}={}", String::from_utf8_lossy(value))
                };
                variables.iter().map(show).collect::<Vec<_>>().join(" ")
            }
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn variables_of_services_come_last_and_can_be_referred_to() {
        let pod = json!({"spec": {"containers": [{"name": "c", "env": [
            {"name": "URL", "value": "http://$(WEB_SERVICE_HOST)/$(OWN)"},
            {"name": "OWN", "value": "own"},
            {"name": "REF", "value": "$(OWN)"},
        ]}]}});
        let services = [("OWN", "of a service"), ("WEB_SERVICE_HOST", "10.0.0.1")];
        let expected = "URL=http://10.0.0.1/of a service OWN=own REF=own WEB_SERVICE_HOST=10.0.0.1";
        assert_eq!(shown(&pod, &PodObjects::default(), &services), expected);
    }

    #[test]
    fn only_what_does_not_exist_is_optional() {
        let map = "{apiVersion: v1, kind: ConfigMap, metadata: {name: m, namespace: n}, \
                   data: {k: v}}";
        for (is_optional, name, key, expected) in [
            (false, "m", "k", "A=v"),
            (false, "m", "x", "couldn't find key x in ConfigMap n/m"),
            (true, "m", "x", ""),
            (false, "none", "k", "configmap \"none\" not found"),
            (true, "none", "k", ""),
            (false, "m", "", "k=v"),
            (false, "none", "", "configmap \"none\" not found"),
            (true, "none", "", ""),
        ] {
            let reference = json!({"name": name, "key": key, "optional": is_optional});
            let from = json!({"name": "A", "valueFrom": {"configMapKeyRef": reference}});
            let container = match key {
                "" => json!({"name": "c", "envFrom": [{"configMapRef": reference}]}),
                _ => json!({"name": "c", "env": [from]}),
            };
            let pod = json!({"metadata": {"namespace": "n"}, "spec": {"containers": [container]}});
            let decoded: Pod = serde_json::from_value(pod.clone()).expect("a pod");
            let objects = PodObjects::for_tests(&decoded, &[map]);
            assert_eq!(shown(&pod, &objects, &[]), expected, "{pod}");
            let waits = "failed to sync configmap cache: timed out waiting for the condition";
            assert_eq!(shown(&pod, &PodObjects::not_yet(&decoded), &[]), waits, "{pod}");
        }
    }

    #[test]
    fn values_of_secrets_are_any_bytes() {
        let pod = json!({
            "metadata": {"namespace": "n"},
            "spec": {"containers": [{"name": "c", "envFrom": [{"secretRef": {"name": "s"}}], "env": [
                {"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
                {"name": "B", "value": "a$(A)$(k)"},
            ]}]},
        });
        let pod: Pod = serde_json::from_value(pod).expect("a pod");
        let node = OwnNode::for_tests("1", "1", "");
        let inputs = DownwardInputs { node: &node, pod_ips: &[] };
        let objects = PodObjects::for_tests(
            &pod,
            &["{apiVersion: v1, kind: Secret, metadata: {name: s, namespace: n}, data: {k: /wA=}}"],
        );
        let file = |_: &core::FileKeySelector| -> FileContent { Err("no file".into()) };
        let sources = Sources { inputs, objects: &objects, services: &[], file: &file };
        let variables = variables(&pod, &pod.spec().containers[0], sources).expect("variables");
        let expected = [("k", &[255, 0][..]), ("A", &[255, 0]), ("B", &[97, 255, 0, 255, 0])];
        let expected = expected.map(|(name, value)| (name.to_owned(), value.to_vec()));
        assert_eq!(variables, expected);
        // The runtime takes a command as text.
        let values: Values = variables.into_iter().collect();
        for expand in [expand_word, expand_known] {
            let fault = expand("x$(A)", &values).expect_err("not text");
            let expected = "the value of a variable in \"x$(A)\" is not UTF-8";
            assert_eq!(fault.to_string(), expected);
        }
    }
}
