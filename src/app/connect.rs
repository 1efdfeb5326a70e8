//! The connection to the API server at start-up: by kubeconfig, with clients under other names and
//! tokens, and the API server's health.

use std::path::Path;
use std::sync::Arc;

use futures_lite::future::Boxed;
use serde_json::Value;

use crate::cache::Source;
use crate::client::{self, Call, Client, Config, Guard, Interceptor};
use crate::clock::SystemClock;
use crate::objects::{Form, protobuf};
use crate::options::{git_version, platform};
use crate::source::ClientSource;
use crate::task::StopToken;

/// A source of bearer tokens that change. Called before each request; answers from memory if
/// possible.
pub trait TokenSource: Send + Sync + 'static {
    /// `refused` is the token that the server refused; it is not returned again.
    fn token(&self, refused: Option<String>) -> Boxed<Result<String, String>>;
}

/// One API server and our own credentials for it.
pub trait Connection: Send + Sync + 'static {
    /// A client under our own credentials, with a rate limit of its own.
    fn client(&self, user_agent: &str) -> Client;
    /// Makes a client whose only credentials are the source's tokens.
    ///
    /// # Errors
    /// When the CA certificates for the server cannot be read.
    fn client_with_tokens(
        &self,
        user_agent: &str,
        tokens: Arc<dyn TokenSource>,
    ) -> Result<Client, String>;
    /// The same connection, which writes only what `guard` allows.
    fn guarded(&self, guard: Guard) -> Arc<dyn Connection>;
    /// The same connection, whose requests wait no longer once `stop` has stopped: see
    /// [`Client::stopped_by`].
    fn stopped_by(&self, stop: StopToken) -> Arc<dyn Connection>;
    /// The same connection, whose writes `interceptor` answers.
    fn intercepted(&self, interceptor: Arc<dyn Interceptor>) -> Arc<dyn Connection>;
    /// The caches' source that reads through `client`.
    /// `streams`: lists come as watches that begin with all objects.
    fn source(&self, client: Client, streams: bool) -> Arc<dyn Source>;
    /// The content of `/version`.
    fn version(&self) -> Boxed<client::Result<Value>>;
    /// `GET /healthz`; `Err`: why the API server is not healthy.
    fn healthz(&self) -> Boxed<Result<(), String>>;
    /// Drops the result of discovery; the next use fetches it again.
    fn reset_discovery(&self);
}

/// The API server to connect to.
#[derive(Clone, Debug, Default)]
pub struct Target<'a> {
    /// A kubeconfig file; empty: none.
    pub kubeconfig: &'a str,
    /// The server's address, which takes precedence over the kubeconfig; empty: none.
    pub master: &'a str,
    pub qps: f32,
    pub burst: i32,
    /// The media type of objects; types other than JSON and protobuf count as JSON.
    pub content_type: &'a str,
    /// Requests that may change something are refused.
    pub read_only: bool,
}

/// Makes a [`Connection`]. `Err`: one line naming the fault.
pub type Connect = fn(&Target<'_>) -> Result<Arc<dyn Connection>, String>;

/// Returns the User-Agent, as upstream's, so that audit logs are the same. `name` is the controller
/// or another part of the program.
pub fn user_agent(program: &str, name: &str) -> String {
    format!("{program}/{} ({}) kubernetes/{name}", git_version(), platform())
}

/// Connects by kubeconfig, by address, or from within a Pod.
///
/// # Errors
/// One line naming the fault.
pub fn connect(target: &Target<'_>) -> Result<Arc<dyn Connection>, String> {
    let given = |text| Some(text).filter(|text: &&str| !text.is_empty());
    let load = || {
        let mut config =
            Config::load(given(target.kubeconfig).map(Path::new), given(target.master))?;
        // As in client-go, zero means client-go's default.
        if target.qps != 0.0 {
            config.qps = target.qps.into();
        }
        if target.burst != 0 {
            config.burst = u32::try_from(target.burst).unwrap_or(0);
        }
        if target.content_type == protobuf::MEDIA_TYPE {
            config.form = Form::Protobuf;
        }
        config.read_only = target.read_only;
        Client::new(config, SystemClock::shared())
    };
    let client = load().map_err(|error: crate::client::Error| error.to_string())?;
    Ok(Arc::new(ApiServer { client }))
}

struct ApiServer {
    client: Client,
}

impl Connection for ApiServer {
    fn client(&self, user_agent: &str) -> Client {
        self.client.named(user_agent)
    }

    fn client_with_tokens(
        &self,
        user_agent: &str,
        tokens: Arc<dyn TokenSource>,
    ) -> Result<Client, String> {
        let provider = Arc::new(move |refused| tokens.token(refused));
        let client = self.client.with_tokens(user_agent, provider);
        client.map_err(|error| format!("client {user_agent}: {error}"))
    }

    fn guarded(&self, guard: Guard) -> Arc<dyn Connection> {
        Arc::new(ApiServer { client: self.client.guarded(guard) })
    }

    fn stopped_by(&self, stop: StopToken) -> Arc<dyn Connection> {
        Arc::new(ApiServer { client: self.client.stopped_by(stop) })
    }

    fn intercepted(&self, interceptor: Arc<dyn Interceptor>) -> Arc<dyn Connection> {
        Arc::new(ApiServer { client: self.client.intercepted(interceptor) })
    }

    fn source(&self, client: Client, streams: bool) -> Arc<dyn Source> {
        ClientSource::noticing_outages(client, streams)
    }

    fn version(&self) -> Boxed<client::Result<Value>> {
        let client = self.client.clone();
        Box::pin(async move { client.fetch(&Call::new("GET", "/version")).await })
    }

    fn healthz(&self) -> Boxed<Result<(), String>> {
        let client = self.client.clone();
        Box::pin(async move {
            client.get_path("/healthz").await.map(drop).map_err(|error| error.to_string())
        })
    }

    fn reset_discovery(&self) {
        self.client.reset_discovery();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A controller that continued under the manager's own credentials would have too many rights.
    #[test]
    fn a_client_of_tokens_needs_the_authorities() {
        struct None;
        impl TokenSource for None {
            fn token(&self, _: Option<String>) -> Boxed<Result<String, String>> {
                Box::pin(async { Err("no token".to_owned()) })
            }
        }
        let folder = std::env::temp_dir().join(format!("kcm-connect-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let (authority, kubeconfig) = (folder.join("ca.crt"), folder.join("kubeconfig"));
        let made = rcgen::generate_simple_self_signed(["server".to_owned()]).expect("a pair");
        std::fs::write(&authority, made.cert.pem()).expect("written");
        let config = serde_json::json!({
            "current-context": "c",
            "contexts": [{ "name": "c", "context": { "cluster": "c", "user": "u" } }],
            "clusters": [{ "name": "c", "cluster": {
                "server": "https://127.0.0.1:1", "certificate-authority": authority,
            } }],
            "users": [{ "name": "u", "user": { "token": "t" } }],
        });
        std::fs::write(&kubeconfig, config.to_string()).expect("written");
        let kubeconfig = kubeconfig.to_str().expect("UTF-8");
        let connection = connect(&Target { kubeconfig, ..Target::default() }).expect("it is whole");
        std::fs::remove_file(&authority).expect("it is there");
        let error = connection.client_with_tokens("controller", Arc::new(None)).err();
        let error = error.expect("the file is gone");
        assert!(error.contains("client controller") && error.contains("ca.crt"), "{error}");
        std::fs::write(&authority, made.cert.pem()).expect("written");
        assert!(connection.client_with_tokens("controller", Arc::new(None)).is_ok());
        std::fs::remove_dir_all(&folder).expect("it is there");
    }
}
