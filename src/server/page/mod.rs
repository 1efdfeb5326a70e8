//! Debug pages: HTML that refreshes itself for people, JSON for programs, at the same path.

use hyper::header::{ALLOW, CONTENT_SECURITY_POLICY, VARY};
use serde_json::Value;

use super::http::Method;
use super::{Handler, Request, Response, handler};

const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");

/// The page loads nothing from elsewhere and sends data to its own origin only.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; \
                      connect-src 'self'; base-uri 'none'; form-action 'none'";

/// A page that shows the JSON of its own path, refreshed every second while it is visible.
#[derive(Clone, Copy)]
pub struct Page {
    pub title: &'static str,
    /// Styles beside the shared ones of `page.css`.
    pub style: &'static str,
    /// Defines `view(data, before)`, which returns the nodes that show `data`; `before` is the
    /// answer before it, or null. `page.js` has `el` and the formats of numbers.
    pub script: &'static str,
}

impl Page {
    /// Answers with `data` as JSON when the request's Accept prefers that to HTML, else with the
    /// page. `data` is not called for the page itself.
    pub fn handler(&self, data: impl Fn(&Request) -> Value + Send + Sync + 'static) -> Handler {
        let page = *self;
        handler(move |request: &Request| {
            if !matches!(request.method, Method::GET | Method::HEAD) {
                let refused = Response::text(405, "method not allowed\n");
                return refused.with_header(ALLOW, "GET, HEAD");
            }
            // If neither is named, the answer is the page.
            let wanted = |media: &str| request.quality("accept", media);
            let answer = match wanted("application/json") > wanted("text/html") {
                true => Response::json(200, &data(request)),
                false => Response::new(200, "text/html; charset=utf-8", page.html().into_bytes())
                    .with_header(CONTENT_SECURITY_POLICY, POLICY),
            };
            answer.with_header(VARY, "Accept")
        })
    }

    /// Returns the whole page. It is rendered at each request and not cached.
    pub fn html(&self) -> String {
        let Page { title, style, script } = self;
        format!(
            "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
             <title>{title}</title>\n<style>\n{STYLE}{style}</style>\n\
             <script>\n{SCRIPT}{script}</script>\n</head>\n<body>\n\
             <header><h1>{title}</h1><p id=\"state\">loading</p></header>\n\
             <main><noscript>This page needs JavaScript. With the header \
             <code>Accept: application/json</code> the same path answers in JSON.</noscript></main>\n\
             </body>\n</html>\n"
        )
    }
}

#[cfg(test)]
mod tests {
    use futures_lite::future::block_on;
    use hyper::header::HeaderValue;
    use serde_json::json;

    use super::*;

    #[test]
    fn accept_decides_between_page_and_json() {
        let page = Page { title: "A page", style: "", script: "const view = () => [];\n" };
        let served = page.handler(|_| json!({ "n": 1 }));
        for (accept, is_json) in [
            ("", false),
            ("*/*", false),
            ("text/html,application/xhtml+xml,*/*;q=0.8", false),
            ("application/json", true),
            ("Application/JSON; q=0.5", true),
            ("text/html;q=0.2, application/json;q=0.9", true),
            ("text/html, application/json;q=0.9", false),
            ("application/json;q=0", false),
            ("text/plain, */*", false),
        ] {
            let mut request = Request::get("/debug/page");
            request.headers.insert("accept", HeaderValue::from_static(accept));
            let answer = block_on(served(request));
            let body = String::from_utf8_lossy(answer.content()).into_owned();
            match is_json {
                true => assert_eq!(body, "{\"n\":1}", "{accept}"),
                false => assert!(body.starts_with("<!doctype html>"), "{accept}: {body}"),
            }
        }
        let put = Request { method: Method::PUT, ..Request::get("/debug/page") };
        assert_eq!(block_on(served(put)).status, 405);
    }

    #[test]
    fn what_all_pages_share_is_small_and_loads_nothing() {
        let html = Page { title: "A page", style: "", script: "" }.html();
        assert!(html.len() < 5_500, "{}", html.len());
        for word in ["http:", "https:", " src=", "@import", "url("] {
            assert!(!html.contains(word), "{word}");
        }
    }
}
