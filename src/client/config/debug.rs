//! Configurations as they may be shown: without keys, tokens and passwords.
//! Upstream: `rest.Config.GoString`.

use std::fmt::{Debug, Formatter, Result};

use super::{Config, Credentials, ExecEnv, Pem};

impl Debug for Pem {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match self {
            Pem::Inline(bytes) => write!(f, "Inline({} bytes)", bytes.len()),
            Pem::File(path) => f.debug_tuple("File").field(path).finish(),
        }
    }
}

impl Debug for Credentials {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match self {
            Credentials::None => f.write_str("None"),
            Credentials::Token(_) => f.write_str("Token"),
            Credentials::TokenFile { path, .. } => f.debug_tuple("TokenFile").field(path).finish(),
            Credentials::Basic { user, .. } => f.debug_tuple("Basic").field(user).finish(),
            Credentials::Exec(exec) => f.debug_tuple("Exec").field(&exec.command).finish(),
        }
    }
}

impl Debug for ExecEnv {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        f.debug_tuple("ExecEnv").field(&self.name).finish()
    }
}

/// Also without the proxy, whose address may hold a password.
impl Debug for Config {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let Config { host, tls, credentials, user_agent, .. } = self;
        f.debug_struct("Config")
            .field("host", host)
            .field("tls", tls)
            .field("credentials", credentials)
            .field("user_agent", user_agent)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Exec, Tls};
    use super::*;
    use crate::client::Call;

    #[test]
    fn nothing_secret_is_shown() {
        let known = || "hunter2".to_owned();
        let exec = Exec {
            command: "plugin".to_owned(),
            env: vec![ExecEnv { name: "NAME".to_owned(), value: known() }],
            ..Exec::default()
        };
        let basic = Credentials::Basic { user: "me".to_owned(), password: known() };
        for credentials in [
            Credentials::Token(known()),
            Credentials::TokenFile { path: "/token".into(), fallback: Some(known()) },
            basic,
            Credentials::Exec(Box::new(exec.clone())),
        ] {
            let key = Some(Pem::Inline(known().into_bytes()));
            let config = Config {
                credentials,
                tls: Tls { key, ..Tls::default() },
                proxy: Some("http://me:hunter2@proxy".to_owned()),
                ..Config::new("https://host")
            };
            let (shown, exec) = (format!("{config:?}"), format!("{exec:?}"));
            assert!(!shown.contains("hunter2") && !exec.contains("hunter2"), "{shown} {exec}");
            assert!(!shown.contains("104, 117, 110"), "no bytes: {shown}");
            assert!(shown.contains("https://host") && exec.contains("NAME"));
        }
        let call = Call::new("PUT", "/x").body("application/json", &known()).expect("a body");
        let shown = format!("{call:?}");
        assert!(shown.contains("PUT /x") && !shown.contains("104, 117, 110"), "{shown}");
    }
}
