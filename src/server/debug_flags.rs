//! The pages below `/debug/flags`: the verbosity of the log may be set while the process runs.
//! Upstream: `apiserver/pkg/server/routes.DebugFlags`.

use std::sync::Arc;

use super::http::Method;
use super::routes::Routes;
use super::{Handler, Request, Response, handler};

/// The longest value of a flag, in bytes.
const FLAG_BYTES: usize = 1024;

/// Upstream: `routes.DebugFlags.Index`.
const INDEX: &str = "<html>
<head>
<title>/debug/flags/</title>
</head>
<body>
/debug/flags/<br>
<br>
flags:<br>
<table>
<tr>v<br>
</table>
<br>
full flags configurable<br>
</body>
</html>
";

/// Adds the pages. `set` sets the verbosity: its answer, or why it is refused.
pub fn install(
    routes: &Routes,
    set: impl Fn(&str) -> Result<String, String> + Send + Sync + 'static,
) {
    let index = |_: &Request| Response::new(200, "text/html; charset=utf-8", INDEX);
    routes.add_unlisted("/debug/flags", handler(index));
    routes.add_unlisted("/debug/flags/v", verbosity(set));
}

/// Returns a handler whose PUT sets `-v`.
/// Upstream: `routes.StringFlagPutHandler`.
fn verbosity(set: impl Fn(&str) -> Result<String, String> + Send + Sync + 'static) -> Handler {
    let set = Arc::new(set);
    Arc::new(move |request| {
        let set = set.clone();
        Box::pin(async move {
            let plain_text =
                |status, text: String| Response::new(status, "text/plain", text + "\n");
            if request.method != Method::PUT {
                return plain_text(406, "unsupported http method".to_owned());
            }
            let outcome = match request.body.read(FLAG_BYTES).await {
                Ok(body) => set(String::from_utf8_lossy(&body).trim()),
                Err(error) => Err(format!("error reading request body: {error:?}")),
            };
            match outcome {
                Ok(answer) => plain_text(200, answer),
                Err(error) => plain_text(400, error),
            }
        })
    })
}
