//! The lean view of a Node.

use serde::Deserialize;

use super::{Meta, resource};

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Node {
    #[serde(rename = "metadata")]
    pub meta: Meta,
}

resource!(Node, "", "v1", "nodes", cluster);
