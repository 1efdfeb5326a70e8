//! The authorizer in expressions. Upstream: Kubernetes' `library.Authz`.

use std::sync::Arc;

use super::Result;
use super::value::{Answer, Question, Stage, Value};
use crate::access::Access;

/// Answers whether a user may do something.
pub trait Authorize {
    /// Decides whether an access is allowed. `account`: the service account (namespace and name) to
    /// check; `None`: the user of the request. Both results carry the reason; `Err`: the access is
    /// not allowed.
    fn authorize(
        &self,
        account: Option<&(String, String)>,
        access: &Access,
    ) -> std::result::Result<String, String>;
}

impl Question {
    /// Builds the question about a resource: `authorizer.requestResource`.
    pub fn of_resource(access: Access) -> Value {
        Value::Question(Arc::new(Question {
            access,
            stage: Stage::Resource,
            ..Question::default()
        }))
    }
}

/// Evaluates the functions of the authorizer: each narrows the question by one part, and `check`
/// asks it. `None`: not one of them.
pub fn call(
    name: &str,
    args: &[Value],
    authorize: Option<&dyn Authorize>,
) -> Option<Result<Value>> {
    let (question, words) = match args {
        [Value::Answer(answer)] => return answer.part(name).map(Ok),
        [Value::Question(question), words @ ..] => (question, words),
        _ => return None,
    };
    let words: Vec<String> =
        words.iter().map(|word| word.as_str().map(str::to_owned)).collect::<Option<_>>()?;
    let mut asked = (**question).clone();
    match (name, asked.stage, words.as_slice()) {
        ("serviceAccount", Stage::User, [namespace, name]) => {
            asked.account = Some((namespace.clone(), name.clone()));
        }
        ("path", Stage::User, [path]) => {
            asked.access.path.clone_from(path);
            asked.stage = Stage::Path;
        }
        ("group", Stage::User, [group]) => {
            asked.access.group.clone_from(group);
            asked.stage = Stage::Group;
        }
        ("resource", Stage::Group, [resource]) => {
            asked.access.resource.clone_from(resource);
            asked.stage = Stage::Resource;
        }
        ("subresource", Stage::Resource, [sub]) => asked.subresource.clone_from(sub),
        ("namespace", Stage::Resource, [namespace]) => {
            asked.access.namespace.clone_from(namespace);
        }
        ("name", Stage::Resource, [name]) => asked.access.name.clone_from(name),
        // RBAC ignores selectors.
        ("fieldSelector" | "labelSelector", Stage::Resource, [_]) => {}
        ("check", Stage::Path | Stage::Resource, [verb]) => {
            asked.access.verb.clone_from(verb);
            if !asked.subresource.is_empty() {
                asked.access.resource = format!("{}/{}", asked.access.resource, asked.subresource);
            }
            let Some(authorize) = authorize else {
                return Some(Err("there is no authorizer".to_owned()));
            };
            let found = authorize.authorize(asked.account.as_ref(), &asked.access);
            let allowed = found.is_ok();
            let (Ok(reason) | Err(reason)) = found;
            return Some(Ok(Value::Answer(Arc::new(Answer { allowed, reason }))));
        }
        _ => return None,
    }
    Some(Ok(Value::Question(Arc::new(asked))))
}

impl Answer {
    /// Returns a field of the authorizer's decision, which a rule reads like a function without
    /// arguments.
    fn part(&self, name: &str) -> Option<Value> {
        Some(match name {
            "allowed" => self.allowed.into(),
            "reason" => self.reason.as_str().into(),
            // RBAC decides without errors: a fault in its lookup is part of the reason.
            "errored" => false.into(),
            "error" => "".into(),
            _ => return None,
        })
    }
}
