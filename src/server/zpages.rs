//! /version, /flagz and /statusz: text for people, or an object for clients that ask for its kind.
//! Upstream: `apiserver/pkg/server/{flagz,statusz}`.

use hyper::header::{HeaderValue, WARNING};
use serde_json::{Value, json};

use super::routes::Routes;
use super::{Request, Response, handler};
use crate::clock::SharedClock;

const NOT_FOR_MACHINES: &str = "Warning: This endpoint is not meant to be machine parseable, has \
                                no formatting compatibility guarantees and is for debugging \
                                purposes only.";
const GROUP: &str = "config.k8s.io";
pub const FLAGZ: &str = "/flagz";
pub const STATUSZ: &str = "/statusz";

/// Adds the page `/version`. `version` returns its content, which may change.
pub fn install_version(routes: &Routes, version: fn() -> Value) {
    routes.add("/version", handler(move |_| Response::json(200, &version())));
}

/// Adds the page of the flags, in all its formats. `flags`: names and values, sorted.
pub fn install_flagz(routes: &Routes, component: &str, flags: &[(String, String)]) {
    let mut text = format!("\n{component} flagz\n{NOT_FOR_MACHINES}\n");
    for (name, value) in flags {
        text.push_str(&format!("{name}={value}\n"));
    }
    let flags: serde_json::Map<String, Value> =
        flags.iter().map(|(name, value)| (name.clone(), value.as_str().into())).collect();
    let component = component.to_string();
    let answer = move |request: &Request| {
        let object = |version: &str| {
            json!({
                "kind": "Flagz", "apiVersion": format!("{GROUP}/{version}"),
                "metadata": { "name": component }, "flags": flags,
            })
        };
        answer_in_accepted_form(request, "flagz", || text.clone(), object)
    };
    routes.add(FLAGZ, handler(answer));
}

/// The build as `/statusz` shows it.
pub struct Build {
    pub component: String,
    /// The version of the binary and the one that it emulates, which may change.
    pub versions: fn() -> (String, String),
}

/// Adds the page of the status, which shows the paths that exist at this point.
pub fn install_statusz(routes: &Routes, build: Build, clock: SharedClock) {
    let (started, since) = (clock.now(), clock.monotonic());
    let paths = routes.paths();
    let Build { component, versions } = build;
    let answer = move |request: &Request| {
        let (binary_version, emulation_version) = versions();
        let up = clock.monotonic().saturating_sub(since).as_secs();
        let text = || {
            let (hours, minutes, seconds) = (up / 3600, up / 60 % 60, up % 60);
            let started = started.to_jiff().strftime("%a %b %e %H:%M:%S UTC %Y");
            let paths = paths.join(" ");
            format!(
                "\n{component} statusz\n{NOT_FOR_MACHINES}\n\nStarted: {started}\n\
                 Up: {hours} hr {minutes:02} min {seconds:02} sec\n\
                 Binary version: {binary_version}\nEmulation version: {emulation_version}\n\
                 Paths: {paths}\n"
            )
        };
        let object = |version: &str| {
            json!({
                "kind": "Statusz", "apiVersion": format!("{GROUP}/{version}"),
                "metadata": { "name": component },
                "startTime": started.to_string(), "uptimeSeconds": up, "goVersion": "",
                "binaryVersion": binary_version, "emulationVersion": emulation_version,
                "paths": paths,
            })
        };
        answer_in_accepted_form(request, "statusz", text, object)
    };
    routes.add(STATUSZ, handler(answer));
}

/// The formats of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Text,
    Json(&'static str),
    Yaml(&'static str),
}

/// Returns the best format that `accept` names; `None`: it names none that the page has. `kind` is
/// that of the object in lower case.
fn form(accept: &str, kind: &str) -> Option<Form> {
    let mut ranges: Vec<(f32, Form)> = Vec::new();
    for range in accept.split(',') {
        let mut parts = range.split(';').map(str::trim);
        let media = parts.next().unwrap_or_default().to_ascii_lowercase();
        let (mut quality, mut group, mut version, mut of_kind) = (1.0, "", "", "");
        for (name, value) in parts.filter_map(|part| part.split_once('=')) {
            match name {
                "q" => quality = value.parse().unwrap_or(0.0),
                "g" => group = value,
                "v" => version = value,
                "as" => of_kind = value,
                _ => (),
            }
        }
        let is_unqualified = group.is_empty() && version.is_empty() && of_kind.is_empty();
        let version = ["v1beta1", "v1alpha1"].into_iter().find(|known| *known == version);
        let is_of_kind = group == GROUP && of_kind.eq_ignore_ascii_case(kind);
        let form = match (media.as_str(), version) {
            ("text/plain" | "text/*" | "*/*", _) if is_unqualified => Form::Text,
            ("application/json" | "application/*" | "*/*", Some(version)) if is_of_kind => {
                Form::Json(version)
            }
            ("application/yaml", Some(version)) if is_of_kind => Form::Yaml(version),
            _ => continue,
        };
        ranges.push((quality, form));
    }
    // The first of the best: the sort is stable.
    ranges.retain(|(quality, _)| *quality > 0.0);
    ranges.sort_by(|(a, _), (b, _)| b.total_cmp(a));
    ranges.first().map(|(_, form)| *form)
}

/// Answers with the page as `text`, or as `object` of a version, by the request's Accept.
fn answer_in_accepted_form(
    request: &Request,
    kind: &str,
    text: impl Fn() -> String,
    object: impl Fn(&str) -> Value,
) -> Response {
    let accept = request.header("accept").map(str::trim).unwrap_or_default();
    let wanted = if accept.is_empty() { Some(Form::Text) } else { form(accept, kind) };
    let of_kind = if kind == "flagz" { "Flagz" } else { "Statusz" };
    let (mut response, media, version) = match wanted {
        None => {
            return Response::status(
                406,
                "NotAcceptable",
                "only the following media types are accepted: application/json, \
                 application/yaml, text/plain",
            );
        }
        Some(Form::Text) => return Response::text(200, text()),
        Some(Form::Json(version)) => {
            (Response::json(200, &object(version)), "application/json", version)
        }
        Some(Form::Yaml(version)) => match serde_yaml_ng::to_string(&object(version)) {
            Ok(yaml) => (Response::text(200, yaml), "application/yaml", version),
            Err(error) => return Response::text(500, format!("{error}\n")),
        },
    };
    let media = format!("{media};g={GROUP};v={version};as={of_kind}");
    if let Ok(media) = HeaderValue::from_str(&media) {
        response.headers = vec![(hyper::header::CONTENT_TYPE, media)];
    }
    match version {
        "v1alpha1" => {
            let old = format!(
                "299 - \"This version of the {kind} endpoint is deprecated. Please use a newer \
                 version.\""
            );
            response.with_header(WARNING, &old)
        }
        _ => response,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures_lite::future::block_on;

    use super::*;
    use crate::clock::FakeClock;
    use crate::objects::Timestamp;

    fn ask(routes: &Routes, path: &str, accept: &'static str) -> Response {
        let mut request = Request::get(path);
        request.headers.insert("accept", HeaderValue::from_static(accept));
        block_on(routes.answer(request))
    }

    #[test]
    fn statusz_shows_the_uptime() {
        let clock = FakeClock::new(Timestamp::from_micros(0));
        let routes = Routes::new();
        routes.add("/x", handler(|_| Response::text(200, "")));
        let build = Build { component: "x".into(), versions: || ("1.36.2".into(), "1.36".into()) };
        install_statusz(&routes, build, clock.clone());
        clock.advance(Duration::from_secs(3723));
        let text = String::from_utf8(ask(&routes, "/statusz", "").content().into()).expect("text");
        for line in [
            "\nStarted: Thu Jan  1 00:00:00 UTC 1970\n",
            "\nUp: 1 hr 02 min 03 sec\n",
            "\nEmulation version: 1.36\nPaths: /x\n",
        ] {
            assert!(text.contains(line), "{text}");
        }
        let accept = "application/json;g=config.k8s.io;v=v1beta1;as=Statusz";
        let object: Value =
            serde_json::from_slice(ask(&routes, "/statusz", accept).content()).expect("JSON");
        assert_eq!(object["apiVersion"], "config.k8s.io/v1beta1");
        assert_eq!((&object["uptimeSeconds"], &object["paths"][0]), (&3723.into(), &"/x".into()));
        assert_eq!(object["startTime"], "1970-01-01T00:00:00Z");
    }

    #[test]
    fn best_accepted_form_is_chosen() {
        for (accept, wanted) in [
            ("*/*", Some(Form::Text)),
            ("text/plain", Some(Form::Text)),
            ("application/json", None),
            ("application/json;v=v1beta1;g=config.k8s.io;as=Flagz", Some(Form::Json("v1beta1"))),
            (
                "application/yaml; as=Flagz; v=v1alpha1; g=config.k8s.io",
                Some(Form::Yaml("v1alpha1")),
            ),
            ("application/json;v=v1beta1;g=config.k8s.io;as=Statusz", None),
            ("application/json;v=v1;g=config.k8s.io;as=Flagz", None),
            ("application/cbor;v=v1beta1;g=config.k8s.io;as=Flagz, */*;q=0.1", Some(Form::Text)),
            (
                "text/plain;q=0.5, application/json;v=v1beta1;g=config.k8s.io;as=Flagz",
                Some(Form::Json("v1beta1")),
            ),
            ("text/plain;q=0", None),
        ] {
            assert_eq!(form(accept, "flagz"), wanted, "{accept}");
        }
    }

    #[test]
    fn flagz_is_served_as_an_object() {
        let routes = Routes::new();
        install_flagz(&routes, "x", &[("v".to_string(), "2".to_string())]);
        let text = ask(&routes, "/flagz", "").content().to_vec();
        assert!(text.ends_with(b"only.\nv=2\n"));
        assert_eq!(ask(&routes, "/flagz", "application/json").status, 406);
        let old = ask(&routes, "/flagz", "application/yaml;g=config.k8s.io;v=v1alpha1;as=Flagz");
        assert!(old.headers.iter().any(|(name, _)| name == WARNING));
        let media = "application/yaml;g=config.k8s.io;v=v1alpha1;as=Flagz";
        assert_eq!(old.headers[0].1, media);
        let yaml: Value = serde_yaml_ng::from_slice(old.content()).expect("YAML");
        assert_eq!((&yaml["kind"], &yaml["flags"]["v"]), (&"Flagz".into(), &"2".into()));
    }
}
