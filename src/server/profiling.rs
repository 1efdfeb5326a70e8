//! The pages below `/debug/pprof/`, in the formats that `go tool pprof` reads.
//! Upstream: `apiserver/pkg/server/routes.Profiling`, `net/http/pprof`.

use std::sync::Arc;
use std::time::Duration;

use hyper::header::{CONTENT_DISPOSITION, LOCATION};
use process::{Counted, Profile, Sampler, Symbols, mappings};

use super::http::Method;
use super::routes::Routes;
use super::{Handler, Request, Response, handler};
use crate::clock::SharedClock;
use crate::task;

const BASE: &str = "/debug/pprof";
const BINARY: &str = "application/octet-stream";
/// The duration of a CPU profile, unless the request has one.
const SECONDS: u64 = 30;
/// How often samples are taken out of the sampler's table.
const DRAIN: Duration = Duration::from_millis(200);
/// The longest list of addresses, in bytes.
const ADDRESSES: usize = 1 << 16;

const INDEX: &str = "<html>
<head><title>/debug/pprof/</title></head>
<body>
/debug/pprof/
<br>
<p>Set debug=1 as a query parameter to get text.</p>
Types of profiles available:
<ul>
<li><a href='goroutine?debug=1'>goroutine</a>: the tasks that run, by where they were spawned</li>
<li><a href='profile?seconds=30'>profile</a>: CPU profile of as many seconds as asked for</li>
<li><a href='cmdline'>cmdline</a>: the command line of this program</li>
<li><a href='symbol'>symbol</a>: the functions at the addresses of a POST</li>
</ul>
</body>
</html>
";

/// The answer for profiles that a Go program has and this one lacks.
const UNKNOWN: &str = "Unknown profile: this build records CPU time (profile) and counts tasks \
    (goroutine). It has no heap, allocs, block, mutex or threadcreate profile and no trace.\n";

/// Adds the pages below `/debug/pprof`.
pub fn install(routes: &Routes, clock: SharedClock) {
    let (now, timer) = (clock.clone(), clock);
    let base = move |request: &Request| match request.path.strip_prefix(BASE) {
        Some("") => Response::text(302, "").with_header(LOCATION, "/debug/pprof/"),
        Some("/") => Response::new(200, "text/html; charset=utf-8", INDEX),
        Some("/goroutine") => tasks(request, &now),
        _ => Response::text(404, UNKNOWN),
    };
    routes.add_unlisted(BASE, handler(base));
    let cmdline = |_: &Request| {
        let args: Vec<String> = std::env::args().collect();
        Response::text(200, args.join("\0"))
    };
    routes.add_unlisted("/debug/pprof/cmdline", handler(cmdline));
    let cpu: Handler = Arc::new(move |request| Box::pin(cpu_profile(request, timer.clone())));
    routes.add_unlisted("/debug/pprof/profile", cpu);
    let symbol: Handler = Arc::new(|request| Box::pin(symbol(request)));
    routes.add_unlisted("/debug/pprof/symbol", symbol);
}

fn since_1970(clock: &SharedClock) -> Duration {
    Duration::from_micros(u64::try_from(clock.now().as_micros()).unwrap_or_default())
}

fn download(name: &str, profile: Vec<u8>) -> Response {
    let name = format!("attachment; filename=\"{name}\"");
    Response::new(200, BINARY, profile).with_header(CONTENT_DISPOSITION, &name)
}

fn number_in_query(request: &Request, name: &str) -> Option<u64> {
    request.query_values(name).next()?.parse().ok()
}

/// Answers with a CPU profile, which is recorded for the requested time. The recording ends when
/// the client disconnects.
async fn cpu_profile(request: Request, clock: SharedClock) -> Response {
    let seconds =
        number_in_query(&request, "seconds").filter(|seconds| *seconds > 0).unwrap_or(SECONDS);
    let mut sampler = match Sampler::start() {
        Ok(sampler) => sampler,
        Err(busy) => {
            return Response::text(500, format!("Could not enable CPU profiling: {busy}\n"));
        }
    };
    let (began, start) = (since_1970(&clock), clock.monotonic());
    let wanted = Duration::from_secs(seconds);
    let elapsed = || clock.monotonic().saturating_sub(start);
    loop {
        let remaining = wanted.saturating_sub(elapsed());
        if remaining.is_zero() {
            break;
        }
        clock.sleep(DRAIN.min(remaining)).await;
        sampler.drain();
    }
    let (lasted, (stacks, lost)) = (elapsed(), sampler.finish());
    if lost > 0 {
        log::warn!("{lost} samples of a CPU profile found no room and are missing");
    }
    // Reads the program's file.
    let profile = task::blocking(move || {
        let (mappings, symbols) = (mappings(), Symbols::of_this_process());
        Profile::of_cpu(&stacks, &mappings, symbols.as_ref().ok(), began, lasted).encoded()
    });
    download("profile", profile.await)
}

/// Answers with the profile `goroutine`, with tasks in place of goroutines.
fn tasks(request: &Request, clock: &SharedClock) -> Response {
    let running = task::running();
    if number_in_query(request, "debug").is_some_and(|debug| debug > 0) {
        let total: u64 = running.iter().map(|(_, count)| count).sum();
        let mut text = format!("goroutine profile: total {total}\n");
        for (place, count) in running {
            text.push_str(&format!("{count} @ {}:{}\n", place.file, place.line));
        }
        return Response::text(200, text);
    }
    let counts: Vec<Counted> = running
        .into_iter()
        .map(|(place, count)| Counted { file: place.file.into(), line: place.line, count })
        .collect();
    let value_types = [("goroutine", "count")];
    let profile = Profile::of_counts(&value_types, &counts, since_1970(clock));
    download("goroutine", profile.encoded())
}

/// Answers with the functions at the addresses `0x1+0x2`, which a POST has in its body and a GET in
/// its query; without addresses, with whether any symbols are known.
async fn symbol(request: Request) -> Response {
    let body = match request.method == Method::POST {
        true => request.body.read(ADDRESSES).await.unwrap_or_default(),
        false => request.query.into(),
    };
    let answer = task::blocking(move || {
        let symbols = Symbols::of_this_process().ok().filter(|symbols| !symbols.is_empty());
        let mut text = format!("num_symbols: {}\n", u8::from(symbols.is_some()));
        let mappings = mappings();
        for address in String::from_utf8_lossy(&body).split('+') {
            let hex = address.trim().trim_start_matches("0x");
            let Ok(address) = usize::from_str_radix(hex, 16) else { continue };
            if let Some(name) = symbols.as_ref().and_then(|s| s.name(address, &mappings)) {
                text.push_str(&format!("{address:#x} {name}\n"));
            }
        }
        text
    });
    Response::text(200, answer.await)
}

#[cfg(test)]
mod tests {
    use futures_lite::future::{block_on, poll_once};

    use super::*;
    use crate::clock::FakeClock;
    use crate::objects::Timestamp;
    use crate::server::http::RequestBody;

    #[test]
    fn profiles_are_recorded_one_at_a_time_for_as_long_as_asked() {
        let (routes, clock) = (Routes::new(), FakeClock::new(Timestamp::from_secs(1)));
        install(&routes, clock.clone());
        let ask = |path: &str| routes.answer(Request::get(path));
        let mut first = ask("/debug/pprof/profile?seconds=2");
        assert!(block_on(poll_once(&mut first)).is_none());
        let second = block_on(ask("/debug/pprof/profile?seconds=2"));
        assert_eq!(second.status, 500);
        assert!(second.content().starts_with(b"Could not enable CPU profiling: "));
        // A client that disconnects ends its profile.
        drop(first);
        let mut third = ask("/debug/pprof/profile?seconds=1");
        for _ in 0..4 {
            assert!(block_on(poll_once(&mut third)).is_none());
            clock.advance(DRAIN);
        }
        assert!(block_on(poll_once(&mut third)).is_none());
        clock.advance(DRAIN);
        let third = block_on(third);
        assert_eq!((third.status, &third.content()[..2]), (200, &[0x1f, 0x8b][..]));
    }

    #[test]
    fn pages_are_those_of_go_or_say_what_is_missing() {
        let (routes, clock) = (Routes::new(), FakeClock::new(Timestamp::from_secs(1)));
        install(&routes, clock);
        let ask = |path: &str| {
            let response = block_on(routes.answer(Request::get(path)));
            (response.status, String::from_utf8_lossy(response.content()).into_owned())
        };
        assert_eq!(ask("/debug/pprof").0, 302);
        assert!(ask("/debug/pprof/").1.contains("profile?seconds=30"));
        assert!(ask("/debug/pprof/goroutine?debug=1").1.starts_with("goroutine profile: total "));
        assert_eq!(ask("/debug/pprof/goroutine").0, 200);
        for missing in ["heap", "mutex?debug=1", "trace", "nope"] {
            assert_eq!(ask(&format!("/debug/pprof/{missing}")), (404, UNKNOWN.into()));
        }
        assert_eq!(ask("/debug/pprof/symbol").1, "num_symbols: 1\n");
        let address = install as fn(&Routes, SharedClock) as usize;
        let body = RequestBody::Full(format!("{address:#x}+0x1").into());
        let post = Request { method: Method::POST, body, ..Request::get("/debug/pprof/symbol") };
        let names = block_on(routes.answer(post));
        let names = String::from_utf8_lossy(names.content()).into_owned();
        assert!(names.contains("profiling") && names.lines().count() == 2, "{names}");
    }
}
