//! `/debug/trace`: which objects are traced, changed while the process runs.

use super::pipeline::Pipeline;
use crate::lines::escaped;
use crate::logging::Verbosity;
use crate::options::TraceObject;
use crate::server::http::Method;
use crate::server::{Handler, Request, Response, handler as serve};
use crate::trace;

pub const PATH: &str = "/debug/trace";

/// Traces these objects from now on, in place of those before; none: the trace ends.
pub fn set(objects: Vec<TraceObject>, verbosity: &Verbosity) {
    trace::set(objects);
    // Controllers log their decisions at debug, so the log's maximum level depends on whether
    // anything is traced.
    verbosity.apply();
}

/// Returns the handler of `/debug/trace`, whose GET lists what is traced. PUT of
/// `/debug/trace/KIND/NAMESPACE/NAME` adds an object, DELETE ends its trace; DELETE of
/// `/debug/trace` ends all.
pub fn handler(pipeline: &Pipeline, verbosity: &Verbosity) -> Handler {
    let (pipeline, verbosity) = (pipeline.clone(), verbosity.clone());
    serve(move |request: &Request| {
        let below = request.path.strip_prefix(PATH).unwrap_or_default().trim_matches('/');
        match traced_after(&request.method, trace::followed().0, below) {
            Ok(None) => (),
            Ok(Some(objects)) => {
                set(objects, &verbosity);
                pipeline.teach_trace();
            }
            Err(error) => return Response::text(400, format!("{}\n", escaped(&error))),
        }
        let (objects, count) = trace::followed();
        let lines = objects.iter().map(|object| format!("{}\n", escaped(&object.to_string())));
        let text = match objects.is_empty() {
            true => "nothing is traced\n".to_owned(),
            false => format!("{count} objects are followed: these and what they own\n"),
        };
        Response::text(200, lines.chain([text]).collect::<String>())
    })
}

/// Returns the traced objects after a request, or `None` if it does not change them. `below`: the
/// object that the path names; `Err`: the answer to a malformed request, or to a DELETE of an
/// object that is not traced.
fn traced_after(
    method: &Method,
    mut traced: Vec<TraceObject>,
    below: &str,
) -> Result<Option<Vec<TraceObject>>, String> {
    match (method.as_str(), below) {
        ("GET" | "HEAD", _) => return Ok(None),
        ("PUT", object) => {
            let object = object.parse()?;
            if traced.contains(&object) {
                return Ok(None);
            }
            traced.push(object);
        }
        ("DELETE", "") => traced.clear(),
        ("DELETE", object) => {
            let object: TraceObject = object.parse()?;
            if !traced.contains(&object) {
                return Err(format!("{object} is not traced"));
            }
            traced.retain(|other| *other != object);
        }
        _ => return Err(format!("{method} is not GET, PUT or DELETE")),
    }
    Ok(Some(traced))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::{TraceObjects, Value};

    #[test]
    fn requests_change_what_is_traced() {
        let a = "Deployment/ns/a";
        for (method, before, below, after) in [
            (Method::PUT, "Node/c", a, Ok(Some("Node/c,Deployment/ns/a"))),
            (Method::PUT, a, a, Ok(None)),
            (Method::PUT, a, "", Err("\"\" is not KIND/NAMESPACE/NAME")),
            (Method::PUT, a, "web", Err("\"web\" is not KIND/NAMESPACE/NAME")),
            (Method::DELETE, a, "", Ok(Some(""))),
            (Method::DELETE, "Deployment/ns/a,Node/c", a, Ok(Some("Node/c"))),
            (Method::DELETE, a, "Node/c", Err("Node/c is not traced")),
            (Method::GET, a, "", Ok(None)),
            (Method::POST, a, a, Err("POST is not GET, PUT or DELETE")),
        ] {
            let given = TraceObjects::parse(before).expect("objects");
            let got = traced_after(&method, given.0, below);
            let got = got.map(|objects| objects.map(|objects| TraceObjects(objects).text()));
            let after = after.map(|after| after.map(str::to_owned)).map_err(str::to_owned);
            assert_eq!(got, after, "{method} {below}");
        }
    }
}
