//! The types of settings that the manager's flags do not have. A file and a flag state each in a form
//! of its own.

use std::collections::BTreeMap;
use std::time::Duration;

use kube_controller_manager::options::{Gates, Given, Value};
use serde::{Deserialize, Serialize};

use crate::node::labels::Taint;

/// A duration such as `1m30s`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(try_from = "String", into = "String")]
pub struct GoDuration(pub Duration);

impl GoDuration {
    pub const fn from_secs(seconds: u64) -> GoDuration {
        GoDuration(Duration::from_secs(seconds))
    }
}

/// For serde, which only shows the error.
impl TryFrom<String> for GoDuration {
    type Error = String;

    fn try_from(text: String) -> Result<GoDuration, String> {
        GoDuration::parse(&text)
    }
}

impl From<GoDuration> for String {
    fn from(duration: GoDuration) -> String {
        duration.text()
    }
}

impl Value for GoDuration {
    const KIND: &'static str = Duration::KIND;
    fn parse(text: &str) -> Result<GoDuration, String> {
        Duration::parse(text).map(GoDuration)
    }
    fn text(&self) -> String {
        self.0.text()
    }
    fn shown(&self) -> String {
        self.0.shown()
    }
}

/// Texts by their keys, as `a<1,b<2`. Upstream: `LangleSeparatedMapStringString`, `MapStringString`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(transparent)]
pub struct Pairs<const SEPARATOR: char>(pub BTreeMap<String, String>);

impl<const SEPARATOR: char> Value for Pairs<SEPARATOR> {
    const KIND: &'static str = "mapStringString";
    fn parse(text: &str) -> Result<Pairs<SEPARATOR>, String> {
        let items = text.split(',').map(str::trim).filter(|item| !item.is_empty());
        let pairs = items.map(|item| {
            let pair = item.split_once(SEPARATOR).filter(|(_, value)| !value.contains(SEPARATOR));
            let (key, value) = pair.ok_or_else(|| format!("{item:?} has no {SEPARATOR:?}"))?;
            Ok((key.trim().to_owned(), value.trim().to_owned()))
        });
        pairs.collect::<Result<_, _>>().map(Pairs)
    }
    /// Replaces the default by the pairs of all flags, if any is given.
    fn merge(&mut self, given: Vec<Given<Self>>) {
        if !given.is_empty() {
            self.0 = given.into_iter().flat_map(|Given(pairs)| pairs.0).collect();
        }
    }
    fn text(&self) -> String {
        let pairs = self.0.iter().map(|(key, value)| format!("{key}{SEPARATOR}{value}"));
        pairs.collect::<Vec<_>>().join(",")
    }
}

/// Labels, as `a=b,c`: one without a value is empty. Upstream: `ConfigurationMap`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeLabels(pub BTreeMap<String, String>);

impl Value for NodeLabels {
    const KIND: &'static str = "mapStringString";
    fn parse(text: &str) -> Result<NodeLabels, String> {
        let items = text.split(',').map(str::trim).filter(|item| !item.is_empty());
        let pairs = items.map(|item| {
            let (key, value) = item.split_once('=').unwrap_or((item, ""));
            (key.trim().to_owned(), value.trim().to_owned())
        });
        Ok(NodeLabels(pairs.collect()))
    }
    /// Adds the labels of all flags.
    fn merge(&mut self, given: Vec<Given<NodeLabels>>) {
        self.0.extend(given.into_iter().flat_map(|Given(labels)| labels.0));
    }
    fn text(&self) -> String {
        let pairs = self.0.iter().map(|(key, value)| format!("{key}={value}"));
        pairs.collect::<Vec<_>>().join(",")
    }
}

/// Taints of the node, as `a=b:NoSchedule,c:NoExecute`. Upstream: `RegisterWithTaintsVar`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(transparent)]
pub struct Taints(pub Vec<Taint>);

impl Value for Taints {
    const KIND: &'static str = "[]v1.Taint";
    fn parse(text: &str) -> Result<Taints, String> {
        let items = text.split(',').filter(|_| !text.is_empty());
        let taints = items.map(Taint::parse).collect::<Result<_, _>>();
        taints.map(Taints).map_err(|error| error.to_string())
    }
    fn text(&self) -> String {
        let taints = self.0.iter();
        let taints = taints.map(|Taint { key, value, effect }| format!("{key}={value}:{effect}"));
        taints.collect::<Vec<_>>().join(",")
    }
}

/// Headers of requests, as `name:value,name:value`. Upstream: `ColonSeparatedMultimapStringString`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(transparent)]
pub struct Headers(pub BTreeMap<String, Vec<String>>);

impl Value for Headers {
    const KIND: &'static str = "colonSeparatedMultimapStringString";
    fn parse(text: &str) -> Result<Headers, String> {
        let mut headers = Headers::default();
        for header in text.split(',').filter(|header| !header.is_empty()) {
            let (name, value) =
                header.split_once(':').ok_or_else(|| format!("{header:?} is not name:value"))?;
            let values = headers.0.entry(name.trim().to_owned()).or_default();
            values.push(value.trim().to_owned());
        }
        Ok(headers)
    }
    /// Adds the headers of all flags, which replace those of the file.
    fn merge(&mut self, given: Vec<Given<Headers>>) {
        let given: Vec<_> = given.into_iter().flat_map(|Given(headers)| headers.0).collect();
        if !given.is_empty() {
            self.0.clear();
        }
        for (name, values) in given {
            self.0.entry(name).or_default().extend(values);
        }
    }
    fn text(&self) -> String {
        let all = self.0.iter();
        let all = all.flat_map(|(name, values)| values.iter().map(move |v| format!("{name}:{v}")));
        all.collect::<Vec<_>>().join(",")
    }
}

/// Feature gates, as `A=true,B=false`. Upstream: `MapStringBool`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(transparent)]
pub struct FeatureGates(pub BTreeMap<String, bool>);

impl Value for FeatureGates {
    const KIND: &'static str = "mapStringBool";
    fn parse(text: &str) -> Result<FeatureGates, String> {
        Gates::parse(text).map(|gates| FeatureGates(gates.given.into_iter().collect()))
    }
    /// Adds the gates of all flags to those of the file. Upstream: `kubeletConfigFlagPrecedence`.
    fn merge(&mut self, given: Vec<Given<FeatureGates>>) {
        self.0.extend(given.into_iter().flat_map(|Given(gates)| gates.0));
    }
    fn text(&self) -> String {
        let gates = self.0.iter().map(|(gate, on)| format!("{gate}={on}"));
        gates.collect::<Vec<_>>().join(",")
    }
}
