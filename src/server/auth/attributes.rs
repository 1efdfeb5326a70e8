//! What requests ask for. Upstream: `authorizer.Attributes`, `RequestAttributesGetter`.

use super::User;
use crate::server::{Request, Response};

/// An access that can be reviewed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// A path that is no resource of the API.
    Path { verb: String, path: String },
    /// A part of an object of the core group.
    Resource { verb: &'static str, resource: &'static str, subresource: &'static str, name: String },
}

impl Access {
    /// Returns the number of bytes that a client chooses.
    pub(super) fn size(&self) -> usize {
        match self {
            Access::Path { verb, path } => verb.len() + path.len(),
            Access::Resource { .. } => 0,
        }
    }
}

/// Why a request is refused.
#[derive(Clone, Copy, Debug)]
pub enum Refusal<'a> {
    /// Its credentials are not valid.
    Unauthenticated,
    /// The user has none of the accesses.
    Forbidden { user: &'a User, accesses: &'a [Access] },
    /// The review of an access has failed.
    Failed { user: &'a User, access: &'a Access, error: &'a str },
}

/// What the requests of a port ask for, and how refused ones are answered.
pub trait Attributes: Send + Sync {
    /// The accesses of which a request needs one; they are reviewed in this order.
    fn accesses(&self, request: &Request) -> Vec<Access>;
    /// The answer to a refused request.
    fn refuse(&self, request: &Request, refusal: Refusal<'_>) -> Response;
}

/// Each request asks for its path, and is refused as API servers do.
#[derive(Clone, Copy, Debug)]
pub struct PathAttributes;

impl Attributes for PathAttributes {
    fn accesses(&self, request: &Request) -> Vec<Access> {
        vec![Access::Path { verb: verb(request), path: request.path.clone() }]
    }

    /// Answers a refused request: 401, 403, or 500 if the review has failed.
    fn refuse(&self, request: &Request, refusal: Refusal<'_>) -> Response {
        let path = &request.path;
        match refusal {
            Refusal::Unauthenticated => Response::status(401, "Unauthorized", "Unauthorized"),
            Refusal::Forbidden { user, .. } => {
                let verb = verb(request);
                let text = format!("forbidden: User {:?} cannot {verb} path {path:?}", user.name);
                Response::status(403, "Forbidden", &text)
            }
            Refusal::Failed { error, .. } => {
                Response::text(500, format!("Internal Server Error: {path:?}: {error}\n"))
            }
        }
    }
}

fn verb(request: &Request) -> String {
    request.method.as_str().to_ascii_lowercase()
}
