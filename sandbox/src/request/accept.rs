//! Negotiates form and encoding of the response from the request's `Accept`.
//! Upstream: `apiserver/pkg/endpoints/handlers/negotiation`, `munnerz/goautoneg`.

use crate::kinds::Kind;
use crate::protobuf;
use crate::status::{ApiError, ApiResult};
use kube_controller_manager::server::http::Response;

/// The form of the objects in an answer, from the `Accept` header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    Object,
    Table,
    /// Metadata only.
    Partial,
    /// Discovery in one document.
    Aggregated,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    Json,
    Protobuf,
}

impl Encoding {
    pub fn media_type(self) -> &'static str {
        match self {
            Encoding::Json => "application/json",
            Encoding::Protobuf => protobuf::MEDIA_TYPE,
        }
    }

    /// Returns a JSON answer in this encoding; an answer without another form stays JSON.
    pub fn of(self, response: Response) -> Response {
        match self {
            Encoding::Json => response,
            Encoding::Protobuf => protobuf::answer(response),
        }
    }
}

/// The header's clauses, the best first.
#[derive(Default)]
pub struct Accept<'h>(Option<Vec<Clause<'h>>>);

struct Clause<'h> {
    r#type: &'h str,
    subtype: &'h str,
    quality: f32,
    params: Vec<(&'h str, &'h str)>,
}

/// The kind that a clause requests in place of the object's own.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Convert<'h> {
    group: &'h str,
    version: &'h str,
    kind: &'h str,
}

const ONE_METADATA: &str = "PartialObjectMetadata";
const ALL_METADATA: &str = "PartialObjectMetadataList";
const ENCODINGS: [Encoding; 2] = [Encoding::Json, Encoding::Protobuf];
const MEDIA_TYPES: &str = "application/json, application/yaml, application/vnd.kubernetes.protobuf";
const STREAMS: &str =
    "application/json;stream=watch, application/vnd.kubernetes.protobuf;stream=watch";

impl<'h> Clause<'h> {
    /// Parses one clause of the header; `None` when it is malformed.
    fn parse(text: &'h str) -> Option<Clause<'h>> {
        let mut parts = text.split(';');
        let media = parts.next()?.trim_matches(' ');
        let (r#type, subtype) = match media.split_once('/') {
            Some((r#type, subtype)) if !subtype.is_empty() => (r#type, subtype),
            _ if media.trim_end_matches('/') == "*" => ("*", "*"),
            _ => return None,
        };
        if subtype.contains('/') {
            return None;
        }
        let mut quality = 1.0;
        let mut params = Vec::new();
        for (key, value) in parts.filter_map(|part| part.split_once('=')) {
            match key.trim_matches(' ') {
                _ if value.is_empty() || value.contains('=') => {}
                "q" => quality = value.parse().unwrap_or(0.0),
                key => params.push((key, value.trim_matches(' '))),
            }
        }
        Some(Clause {
            r#type: r#type.trim_matches(' '),
            subtype: subtype.trim_matches(' '),
            quality,
            params,
        })
    }

    /// Returns whether the clause is preferred to another: by its quality, or because it is more
    /// specific.
    fn goes_before(&self, other: &Clause<'_>) -> bool {
        self.quality > other.quality
            || self.r#type != "*" && other.r#type == "*"
            || self.subtype != "*" && other.subtype == "*"
    }

    /// Returns whether the clause accepts this media type, by name or by wildcard.
    fn names(&self, media_type: &str) -> bool {
        let (r#type, subtype) = media_type.split_once('/').unwrap_or((media_type, ""));
        match (self.r#type, self.subtype) {
            ("*", "*") => true,
            (own, "*") => own == r#type,
            own => own == (r#type, subtype),
        }
    }

    /// Returns the conversion that the clause's parameters ask for, `Some(None)` for none. `None`:
    /// the parameters cannot be met.
    fn convert(&self) -> Option<Option<Convert<'h>>> {
        let mut convert: Option<Convert<'h>> = None;
        for (key, value) in &self.params {
            match *key {
                "as" => convert.get_or_insert_default().kind = value,
                "g" => convert.get_or_insert_default().group = value,
                "v" => convert.get_or_insert_default().version = value,
                "stream" if *value != "watch" => return None,
                _ => {}
            }
        }
        Some(convert)
    }
}

impl<'h> Accept<'h> {
    /// Parses the header into its clauses, the preferred ones first.
    pub fn parse(header: &'h str) -> Accept<'h> {
        if header.is_empty() {
            return Accept(None);
        }
        let mut clauses: Vec<Clause<'h>> = Vec::new();
        // The order is not total, so the result depends on the algorithm of the sort.
        for clause in header.split(',').filter_map(Clause::parse) {
            let better = clauses.iter().rev().take_while(|before| clause.goes_before(before));
            clauses.insert(clauses.len() - better.count(), clause);
        }
        Accept(Some(clauses))
    }

    /// Returns the first allowed form, in the order of the clauses.
    fn first<T>(
        &self,
        allows: impl Fn(Encoding, Option<Convert<'h>>) -> Option<T>,
    ) -> Option<(T, Encoding)> {
        let Some(clauses) = &self.0 else {
            return Some((allows(Encoding::Json, None)?, Encoding::Json));
        };
        clauses.iter().find_map(|clause| {
            let convert = clause.convert()?;
            let mut named = ENCODINGS.into_iter().filter(|way| clause.names(way.media_type()));
            named.find_map(|way| Some((allows(way, convert)?, way)))
        })
    }

    /// Returns the encoding of answers that have one form only: failures, reviews.
    pub fn plain(&self) -> Option<Encoding> {
        self.first(|_, convert| convert.is_none().then_some(())).map(|(_, encoding)| encoding)
    }

    /// Negotiates form and encoding of an answer about objects of `kind`. Errors: 406.
    pub fn objects(
        &self,
        kind: &Kind,
        subresource: &str,
        verb: &str,
    ) -> ApiResult<(Form, Encoding)> {
        // Custom kinds have no Protobuf form; a Scale has one, also as their subresource.
        let has_protobuf = subresource == "scale"
            || !kind.is_custom()
                && protobuf::knows(&kind.resource.api_version(), &kind.resource.kind);
        let form = |encoding, convert: Option<Convert<'h>>| match convert {
            None => (encoding == Encoding::Json || has_protobuf).then_some((Form::Object, "")),
            Some(Convert { group: "meta.k8s.io", version: "v1", kind }) => match kind {
                "Table" if encoding == Encoding::Json => Some((Form::Table, kind)),
                ONE_METADATA | ALL_METADATA => Some((Form::Partial, kind)),
                _ => None,
            },
            Some(_) => None,
        };
        let found = self.first(form).ok_or_else(|| match kind.is_custom() {
            true => unacceptable_media(),
            false => self.unacceptable(matches!(verb, "list" | "watch")),
        });
        let ((form, converted), encoding) = found?;
        let own = go_type(kind);
        // A list is converted to a list of metadata, one object to one.
        let mismatch = match (verb, converted) {
            ("list", ONE_METADATA) => format!("is a list (*{own}List)"),
            ("get", ALL_METADATA) => format!("is not a list (*{own})"),
            _ => return Ok((form, encoding)),
        };
        let why = format!("you requested {converted}, but the requested object {mismatch}");
        Err(not_acceptable(why))
    }

    /// Negotiates form and encoding of a discovery document. `aggregated`: whether one document for
    /// all groups is served. Errors: 406.
    pub fn discovery(&self, aggregated: bool) -> ApiResult<(Form, Encoding)> {
        let form = |_, convert| match convert {
            None => Some(Form::Object),
            Some(Convert { group: "apidiscovery.k8s.io", version: "v2", kind })
                if aggregated && kind == "APIGroupDiscoveryList" =>
            {
                Some(Form::Aggregated)
            }
            Some(_) => None,
        };
        self.first(form).ok_or_else(|| self.unacceptable(false))
    }

    /// Builds the 406 of the router when no clause names a known encoding, else that of the
    /// handler.
    fn unacceptable(&self, streams: bool) -> ApiError {
        let mut clauses = self.0.iter().flatten();
        let routed = clauses.any(|clause| {
            (clause.r#type, clause.subtype) == ("*", "*")
                || MEDIA_TYPES
                    .split(", ")
                    .any(|media| media == format!("{}/{}", clause.r#type, clause.subtype))
        });
        if routed {
            return unacceptable_media();
        }
        let streams = if streams { format!(", {STREAMS}") } else { String::new() };
        let words =
            format!("406: Not Acceptable\n\nAvailable representations: {MEDIA_TYPES}{streams}");
        let mut error = not_acceptable(words);
        error.details = serde_json::json!({});
        error
    }
}

/// Builds the error 406 that lists the accepted media types.
fn unacceptable_media() -> ApiError {
    not_acceptable(format!("only the following media types are accepted: {MEDIA_TYPES}"))
}

fn not_acceptable(words: String) -> ApiError {
    ApiError::new(406, "NotAcceptable", words)
}

/// Returns the name that error messages of upstream's server have for a kind: its Go type, such as
/// `core.Pod`.
fn go_type(kind: &Kind) -> String {
    match kind.resource.group.split('.').next().unwrap_or_default() {
        _ if kind.is_custom() => "unstructured.Unstructured".to_owned(),
        "" => format!("core.{}", kind.resource.kind),
        package => format!("{package}.{}", kind.resource.kind),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::{builtin, from_crd};
    use serde_json::json;

    #[test]
    fn the_first_form_that_is_served_wins() {
        const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
        let pods = builtin().into_iter().find(|kind| kind.resource.plural == "pods").unwrap();
        let foos = json!({ "metadata": { "name": "foos.x.io" }, "spec": { "group": "x.io",
            "scope": "Cluster", "names": { "kind": "Foo", "plural": "foos" },
            "versions": [{ "name": "v1", "served": true, "storage": true,
                "schema": { "openAPIV3Schema": { "type": "object" } } }] } });
        let foos = from_crd(&foos).unwrap().remove(0);
        let json = |form| Some((form, Encoding::Json));
        let protobuf = |form| Some((form, Encoding::Protobuf));
        let table = "as=Table;v=v1;g=meta.k8s.io";
        let partial = "as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
        let (object, metadata) = (Form::Object, Form::Partial);
        for (accept, of_pods, of_foos) in [
            ("".to_owned(), json(object), json(object)),
            ("*/*".to_owned(), json(object), json(object)),
            ("application/*".to_owned(), json(object), json(object)),
            (PROTOBUF.to_owned(), protobuf(object), None),
            (format!("{PROTOBUF}, application/json"), protobuf(object), json(object)),
            (format!("application/json,{PROTOBUF}"), json(object), json(object)),
            (format!("*/*,{PROTOBUF}"), protobuf(object), json(object)),
            (format!("application/json;q=0.5,{PROTOBUF};q=0.9"), protobuf(object), json(object)),
            (format!("{PROTOBUF};stream=watch"), protobuf(object), None),
            (format!("{PROTOBUF};stream=other"), None, None),
            (
                format!("application/json;{table},application/json"),
                json(Form::Table),
                json(Form::Table),
            ),
            (format!("{PROTOBUF};{table},application/json"), json(object), json(object)),
            (
                "application/json;as=Table;v=v1beta1;g=meta.k8s.io,*/*".to_owned(),
                json(object),
                json(object),
            ),
            (
                format!("{PROTOBUF};{partial},application/json;{partial}"),
                protobuf(metadata),
                protobuf(metadata),
            ),
            (format!("application/json;{partial},{PROTOBUF}"), json(metadata), json(metadata)),
            ("application/json;as=Foo;g=x.io;v=v1".to_owned(), None, None),
            ("text/plain".to_owned(), None, None),
        ] {
            let answer = |kind| Accept::parse(&accept).objects(kind, "", "get").ok();
            assert_eq!((answer(&pods), answer(&foos)), (of_pods, of_foos), "{accept}");
        }
    }

    /// The messages are a real 1.36 server's.
    #[test]
    fn a_refusal_names_the_available_types() {
        let pods = builtin().into_iter().find(|kind| kind.resource.plural == "pods").unwrap();
        for (accept, verb, message) in [
            (
                "application/foo",
                "get",
                "406: Not Acceptable\n\nAvailable representations: application/json, application/yaml, application/vnd.kubernetes.protobuf",
            ),
            (
                "application/foo",
                "list",
                "406: Not Acceptable\n\nAvailable representations: application/json, application/yaml, application/vnd.kubernetes.protobuf, application/json;stream=watch, application/vnd.kubernetes.protobuf;stream=watch",
            ),
            (
                "application/vnd.kubernetes.protobuf;as=Table;v=v1;g=meta.k8s.io",
                "list",
                "only the following media types are accepted: application/json, application/yaml, application/vnd.kubernetes.protobuf",
            ),
            (
                "application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;v=v1;g=meta.k8s.io",
                "list",
                "you requested PartialObjectMetadata, but the requested object is a list (*core.PodList)",
            ),
            (
                "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io",
                "get",
                "you requested PartialObjectMetadataList, but the requested object is not a list (*core.Pod)",
            ),
        ] {
            let error = Accept::parse(accept).objects(&pods, "", verb).unwrap_err();
            assert_eq!((error.code, error.message.as_str()), (406, message), "{accept} {verb}");
        }
    }
}
