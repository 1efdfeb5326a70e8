//! /version, /flagz and /statusz. Upstream: `component-base/zpages`.

use super::routes::Routes;
use super::{Response, handler};
use crate::clock::SharedClock;

const WARNING: &str = "Warning: This endpoint is not meant to be machine parseable, has no \
                       formatting compatibility guarantees and is for debugging purposes only.";

pub fn install_version(routes: &Routes, version: serde_json::Value) {
    routes.add("/version", handler(move |_| Response::json(200, &version)));
}

/// `flags`: names and values, sorted.
pub fn install_flagz(routes: &Routes, component: &str, flags: &[(String, String)]) {
    let mut text = format!("\n{component} flagz\n{WARNING}\n\nCommand line flags:\n");
    for (name, value) in flags {
        text.push_str(&format!("{name}={value}\n"));
    }
    routes.add("/flagz", handler(move |_| Response::text(200, text.clone())));
}

pub fn install_statusz(routes: &Routes, component: &str, version: &str, clock: SharedClock) {
    let (component, version) = (component.to_string(), version.to_string());
    let (started, since) = (clock.now().to_jiff(), clock.monotonic());
    let listed = routes.clone();
    let answer = move |_: &_| {
        let up = clock.monotonic().saturating_sub(since).as_secs();
        let (hours, minutes, seconds) = (up / 3600, up / 60 % 60, up % 60);
        let paths = listed.paths().join(" ");
        let text = format!(
            "\n{component} statusz\n{WARNING}\n\nStarted: {started}\n\
             Up: {hours} hr {minutes:02} min {seconds:02} sec\n\
             Binary version: {version}\n\nPaths: {paths}\n"
        );
        Response::text(200, text)
    };
    routes.add("/statusz", handler(answer));
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures_lite::future::block_on;

    use super::super::Request;
    use super::*;
    use crate::clock::FakeClock;
    use crate::objects::Timestamp;

    #[test]
    fn statusz_counts_up() {
        let clock = FakeClock::new(Timestamp::from_micros(0));
        let routes = Routes::new();
        install_statusz(&routes, "x", "1.36.2", clock.clone());
        clock.advance(Duration::from_secs(3723));
        let answer = block_on(routes.answer(Request::get("/statusz")));
        let text = String::from_utf8(answer.content().into()).expect("text");
        assert!(text.contains("Up: 1 hr 02 min 03 sec\n"), "{text}");
        assert!(text.contains("Started: 1970-01-01T00:00:00Z\n"), "{text}");
    }
}
