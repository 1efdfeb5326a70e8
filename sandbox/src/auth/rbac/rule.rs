//! One rule of a role: the accesses it allows, and the rules it covers.
//! Upstream: `pkg/apis/rbac/v1`, `component-helpers/auth/rbac/validation`.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::access::Access;

/// Upstream: `rbacv1.PolicyRule`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Rule {
    pub verbs: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub api_groups: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub resources: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub resource_names: Vec<String>,
    #[serde(rename = "nonResourceURLs", skip_serializing_if = "Vec::is_empty")]
    pub paths: Vec<String>,
}

fn has(set: &[String], wanted: &str) -> bool {
    set.iter().any(|one| one == wanted)
}

fn any_or(set: &[String], wanted: &str) -> bool {
    has(set, "*") || has(set, wanted)
}

/// Returns whether `resource` is in the set by itself or as `*/subresource`.
fn has_resource(set: &[String], resource: &str) -> bool {
    any_or(set, resource)
        || resource.split_once('/').is_some_and(|(_, sub)| {
            set.iter().any(|one| one.strip_prefix("*/").is_some_and(|any| any == sub))
        })
}

fn has_path(set: &[String], path: &str) -> bool {
    set.iter()
        .any(|one| one == path || one.ends_with('*') && path.starts_with(one.trim_end_matches('*')))
}

impl Rule {
    /// Returns the rules of a role. Malformed rules are ignored.
    pub fn of(role: &Value) -> Vec<Rule> {
        let rules = role["rules"].as_array().into_iter().flatten();
        rules.filter_map(|rule| Rule::deserialize(rule).ok()).collect()
    }

    /// Tests whether the rule allows this access: by path if it has one, else by resource.
    pub fn allows(&self, access: &Access) -> bool {
        if !any_or(&self.verbs, &access.verb) {
            return false;
        }
        if !access.path.is_empty() {
            return has_path(&self.paths, &access.path);
        }
        any_or(&self.api_groups, &access.group)
            && has_resource(&self.resources, &access.resource)
            && (self.resource_names.is_empty() || has(&self.resource_names, &access.name))
    }

    /// Returns the parts of `wanted` that no rule of `owned` covers. A part is one verb on one
    /// resource or path.
    pub fn uncovered(owned: &[Rule], wanted: &[Rule]) -> Vec<Rule> {
        let parts = wanted.iter().flat_map(Rule::parts);
        parts.filter(|part| !owned.iter().any(|rule| rule.covers(part))).collect()
    }

    /// Splits a rule into parts of one verb on one resource or path.
    fn parts(&self) -> Vec<Rule> {
        let mut parts = Vec::new();
        let single = |text: &String| vec![text.clone()];
        for group in &self.api_groups {
            for resource in &self.resources {
                for verb in &self.verbs {
                    let part = Rule {
                        verbs: single(verb),
                        api_groups: single(group),
                        resources: single(resource),
                        ..Rule::default()
                    };
                    match self.resource_names.as_slice() {
                        [] => parts.push(part),
                        names => parts.extend(
                            names
                                .iter()
                                .map(|name| Rule { resource_names: single(name), ..part.clone() }),
                        ),
                    }
                }
            }
        }
        for path in &self.paths {
            let of_path =
                |verb| Rule { verbs: single(verb), paths: single(path), ..Rule::default() };
            parts.extend(self.verbs.iter().map(of_path));
        }
        parts
    }

    /// Returns whether this rule allows all accesses of `part`, which names one resource or path.
    fn covers(&self, part: &Rule) -> bool {
        part.verbs.iter().all(|verb| any_or(&self.verbs, verb))
            && part.api_groups.iter().all(|group| any_or(&self.api_groups, group))
            && part.resources.iter().all(|resource| has_resource(&self.resources, resource))
            && part.paths.iter().all(|path| has_path(&self.paths, path))
            && (self.resource_names.is_empty()
                || !part.resource_names.is_empty()
                    && part.resource_names.iter().all(|name| has(&self.resource_names, name)))
    }

    /// Formats the rules made of `parts` as sorted texts; parts of one resource become one rule.
    /// Upstream: `validation.CompactRules`, `rbacv1helpers.CompactString`.
    pub fn described(parts: Vec<Rule>) -> Vec<String> {
        let mut rules: Vec<Rule> = Vec::new();
        for part in parts {
            let same = |rule: &&mut Rule| {
                part.paths.is_empty()
                    && *rule == &Rule { verbs: rule.verbs.clone(), ..part.clone() }
            };
            match rules.iter_mut().find(same) {
                Some(rule) => rule.verbs.extend(part.verbs),
                None => rules.push(part),
            }
        }
        let mut texts: Vec<String> = rules.iter().map(Rule::text).collect();
        texts.sort_unstable();
        texts.dedup();
        texts
    }

    /// Renders the rule as upstream does in its messages.
    fn text(&self) -> String {
        let parts: Vec<String> = [
            ("APIGroups", &self.api_groups),
            ("Resources", &self.resources),
            ("NonResourceURLs", &self.paths),
            ("ResourceNames", &self.resource_names),
            ("Verbs", &self.verbs),
        ]
        .into_iter()
        .filter(|(_, words)| !words.is_empty())
        .map(|(name, words)| format!("{name}:{}", quoted(words)))
        .collect();
        format!("{{{}}}", parts.join(", "))
    }
}

/// Returns a list as Go's `%q` prints it.
pub fn quoted(words: &[String]) -> String {
    let words: Vec<String> = words.iter().map(|word| format!("{word:?}")).collect();
    format!("[{}]", words.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `verbs groups resources [names]`, or `verbs /paths`.
    fn rule(text: &str) -> Rule {
        let words = |text: &str| -> Vec<String> {
            text.split(',').map(|word| if word == "core" { "" } else { word }.to_owned()).collect()
        };
        match text.split(' ').map(words).collect::<Vec<_>>().as_slice() {
            [verbs, paths] => {
                Rule { verbs: verbs.clone(), paths: paths.clone(), ..Rule::default() }
            }
            [verbs, groups, resources, names @ ..] => Rule {
                verbs: verbs.clone(),
                api_groups: groups.clone(),
                resources: resources.clone(),
                resource_names: names.first().cloned().unwrap_or_default(),
                paths: Vec::new(),
            },
            _ => panic!("{text}"),
        }
    }

    fn access(text: &str) -> Access {
        let mut access = Access::default();
        match text.split(' ').collect::<Vec<_>>().as_slice() {
            [verb, path] => (access.verb, access.path) = (verb.to_string(), path.to_string()),
            [verb, group, resource, name @ ..] => {
                access.verb = verb.to_string();
                access.group = if *group == "core" { "" } else { group }.to_owned();
                access.resource = resource.to_string();
                access.name = name.first().copied().unwrap_or_default().to_owned();
            }
            _ => panic!("{text}"),
        }
        access
    }

    #[test]
    fn a_rule_allows_just_what_it_names() {
        for (of_rule, of_access, allowed) in [
            ("get,list core pods", "list core pods", true),
            ("get,list core pods", "watch core pods", false),
            ("get core pods", "get apps pods", false),
            ("* * *", "escalate x y/z name", true),
            ("* * *", "get /metrics", false),
            ("* *", "get core pods", false),
            ("get core pods", "get core pods/log", false),
            ("get core pods/log", "get core pods", false),
            ("get core */log", "get core pods/log", true),
            ("get core */log", "get core pods/logs", false),
            ("get core */*", "get core pods/log", false),
            ("get core pods p", "get core pods p", true),
            ("get core pods p", "get core pods q", false),
            ("list core pods p", "list core pods", false),
            ("get /a,/b/*", "get /a", true),
            ("get /a,/b/*", "get /a/", false),
            ("get /a,/b/*", "get /b/c", true),
            ("get /a,/b/*", "get /b", false),
            ("get /a", "post /a", false),
        ] {
            assert_eq!(rule(of_rule).allows(&access(of_access)), allowed, "{of_rule}: {of_access}");
        }
    }

    #[test]
    fn uncovered_rules_are_reported_briefly() {
        let reported = |owned: &[&str], wanted: &[&str]| {
            let rules = |texts: &[&str]| texts.iter().copied().map(rule).collect::<Vec<_>>();
            Rule::described(Rule::uncovered(&rules(owned), &rules(wanted))).join("\n")
        };
        let all = &["* * *", "* *"];
        for (owned, wanted, missing) in [
            (&all[..], &["* * *", "get /x"][..], ""),
            (&["get core pods", "list core pods"], &["get,list core pods"], ""),
            (
                &["* core pods"],
                &["* * pods"],
                r#"{APIGroups:["*"], Resources:["pods"], Verbs:["*"]}"#,
            ),
            (
                &["get core pods"],
                &["get,list,watch core pods,secrets"],
                "{APIGroups:[\"\"], Resources:[\"pods\"], Verbs:[\"list\" \"watch\"]}\n\
                 {APIGroups:[\"\"], Resources:[\"secrets\"], Verbs:[\"get\" \"list\" \"watch\"]}",
            ),
            (
                &["get core pods a"],
                &["get core pods a,b", "get core pods"],
                "{APIGroups:[\"\"], Resources:[\"pods\"], ResourceNames:[\"b\"], Verbs:[\"get\"]}\n\
                 {APIGroups:[\"\"], Resources:[\"pods\"], Verbs:[\"get\"]}",
            ),
            (&["get core */log"], &["get core pods/log"], ""),
            (
                &["get /a/*"],
                &["get,post /a/b", "get /c"],
                "{NonResourceURLs:[\"/a/b\"], Verbs:[\"post\"]}\n\
                 {NonResourceURLs:[\"/c\"], Verbs:[\"get\"]}",
            ),
        ] {
            assert_eq!(reported(owned, wanted), missing, "{owned:?} {wanted:?}");
        }
    }
}
