//! Selectors as Go's messages print them.

use crate::objects::{LabelSelector, Requirement};

/// Formats a pointer to a LabelSelector as `%v` prints it.
/// Upstream: `LabelSelector.String`.
pub fn label_selector(selector: Option<&LabelSelector>) -> String {
    let Some(LabelSelector { match_labels, match_expressions }) = selector else {
        return "nil".to_owned();
    };
    let mut labels: Vec<_> = match_labels.iter().collect();
    labels.sort();
    let labels = labels.iter().map(|(key, value)| format!("{key}: {value},"));
    let expression = |Requirement { key, operator, values }: &Requirement| {
        let values: Vec<&str> = values.iter().map(|value| value.as_str()).collect();
        let values = values.join(" ");
        format!("LabelSelectorRequirement{{Key:{key},Operator:{operator},Values:[{values}],}},")
    };
    format!(
        "&LabelSelector{{MatchLabels:map[string]string{{{}}},MatchExpressions:[]LabelSelectorRequirement{{{}}},}}",
        labels.collect::<String>(),
        match_expressions.iter().map(expression).collect::<String>(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selectors_are_printed_as_go_prints_them() {
        assert_eq!(label_selector(None), "nil");
        let selector: LabelSelector = serde_json::from_str(
            r#"{"matchLabels":{"b":"2","a":"1"},"matchExpressions":[
                {"key":"k","operator":"In","values":["v","w"]},{"key":"e","operator":"Exists"}]}"#,
        )
        .unwrap();
        assert_eq!(
            label_selector(Some(&selector)),
            "&LabelSelector{MatchLabels:map[string]string{a: 1,b: 2,},\
             MatchExpressions:[]LabelSelectorRequirement{\
             LabelSelectorRequirement{Key:k,Operator:In,Values:[v w],},\
             LabelSelectorRequirement{Key:e,Operator:Exists,Values:[],},},}"
        );
    }
}
