//! The view of a ResourceQuota.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize};

use crate::objects::{
    Istr, Meta, Quantity, Requirement, ResourceList, Selector, SelectorError, WholeMeta,
    null_as_default, resource,
};

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct ResourceQuota {
    #[serde(rename = "metadata", deserialize_with = "null_as_default")]
    pub meta: Meta,
    #[serde(deserialize_with = "null_as_default")]
    pub spec: ResourceQuotaSpec,
    #[serde(deserialize_with = "null_as_default")]
    pub status: ResourceQuotaStatus,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ResourceQuotaSpec {
    pub hard: Amounts,
    #[serde(deserialize_with = "null_as_default")]
    pub scopes: Vec<Istr>,
    pub scope_selector: Option<ScopeSelector>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ScopeSelector {
    #[serde(deserialize_with = "null_as_default")]
    pub match_expressions: Vec<ScopeRequirement>,
}

/// `v1.ScopedResourceSelectorRequirement`
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ScopeRequirement {
    pub scope_name: Istr,
    pub operator: Istr,
    #[serde(deserialize_with = "null_as_default")]
    pub values: Vec<Istr>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default)]
pub struct ResourceQuotaStatus {
    pub hard: Amounts,
    pub used: Amounts,
}

/// Quantities by the names of resources, in their original text.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Amounts(BTreeMap<Istr, String>);

resource!(ResourceQuota, "", "v1", "resourcequotas", namespaced);
impl WholeMeta for ResourceQuota {}

impl ResourceQuota {
    /// Returns `spec.hard`; malformed amounts are left out.
    pub fn limits(&self) -> ResourceList {
        self.spec.hard.quantities()
    }

    /// Returns the scopes that an object must match to be counted.
    /// Upstream: `getScopeSelectorsFromQuota`.
    pub fn scopes(&self) -> Vec<ScopeRequirement> {
        let exists = |scope: &Istr| ScopeRequirement {
            scope_name: scope.clone(),
            operator: "Exists".into(),
            values: Vec::new(),
        };
        let selector = self.spec.scope_selector.iter();
        let expressions = selector.flat_map(|selector| selector.match_expressions.iter().cloned());
        self.spec.scopes.iter().map(exists).chain(expressions).collect()
    }
}

impl ScopeRequirement {
    pub fn only_asks_for_existence(&self) -> bool {
        self.operator == "Exists"
    }

    /// Returns a selector on a label of the scope's name.
    /// Upstream: `ScopedResourceSelectorRequirementsAsSelector`.
    pub fn selector(&self) -> Result<Selector, SelectorError> {
        let ScopeRequirement { scope_name, operator, values } = self.clone();
        let requirement = Requirement { key: scope_name, operator, values };
        let match_expressions = vec![requirement];
        Selector::try_from(&crate::objects::LabelSelector {
            match_expressions,
            ..Default::default()
        })
    }
}

impl Amounts {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn names(&self) -> impl Iterator<Item = &Istr> {
        self.0.keys()
    }

    pub fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// Returns the amounts; malformed ones are left out.
    pub fn quantities(&self) -> ResourceList {
        let amount =
            |(name, text): (&Istr, &String)| Some((name.clone(), text.parse::<Quantity>().ok()?));
        self.0.iter().filter_map(amount).collect()
    }
}

impl From<&ResourceList> for Amounts {
    fn from(list: &ResourceList) -> Amounts {
        Amounts(list.iter().map(|(name, amount)| (name.clone(), amount.to_string())).collect())
    }
}

/// `null` is empty.
impl<'de> Deserialize<'de> for Amounts {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Amounts, D::Error> {
        Ok(Amounts(Option::deserialize(from)?.unwrap_or_default()))
    }
}
