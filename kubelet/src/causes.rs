//! The text of an error with its causes.

use std::error::Error;

/// Returns an error with its causes, in a line.
pub fn chain(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(&format!(": {error}"));
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use std::fmt;

    use super::*;

    #[derive(Debug)]
    struct Failure(Option<Box<Failure>>);

    impl fmt::Display for Failure {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(if self.0.is_some() { "it failed" } else { "no space" })
        }
    }

    impl Error for Failure {
        fn source(&self) -> Option<&(dyn Error + 'static)> {
            self.0.as_deref().map(|cause| cause as _)
        }
    }

    #[test]
    fn causes_are_shown_in_a_line() {
        let last = Failure(None);
        assert_eq!(chain(&last), "no space");
        let middle = Failure(Some(last.into()));
        assert_eq!(chain(&Failure(Some(middle.into()))), "it failed: it failed: no space");
    }
}
