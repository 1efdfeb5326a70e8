//! Reads a container's log, also while the container writes it and the log is rotated.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures_lite::FutureExt;
use futures_lite::future::{Boxed, pending};
use kube_controller_manager::clock::SharedClock;
use kube_controller_manager::task;

use super::format::{Decoder, UnknownFormat};
use super::{Error, LogOptions};
use crate::cri::{self, RuntimeService, api};
use crate::files::beneath;
use crate::files::folder_watch::FolderWatch;
use crate::runtime::status::State;

/// Bytes of a file that are read at a time.
const BLOCK: usize = 64 << 10;
/// Blocks that are read without a result before others have their turn.
const BLOCKS: usize = 64;
/// How often a log that does not grow, and the state of its container, are read.
/// Upstream: `logForceCheckPeriod`.
const CHECK_PERIOD: Duration = Duration::from_secs(1);
/// How long a change of a log waits for more: a busy container writes a line at a time.
const GATHER: Duration = Duration::from_millis(10);

/// A log below the folder of all logs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogFile {
    root: PathBuf,
    /// From `root`.
    path: PathBuf,
}

impl LogFile {
    /// Returns the log at `path`, which has to be below `folder`: a pod's own folder in `root`.
    ///
    /// # Errors
    /// It is elsewhere.
    pub fn new(root: &Path, folder: &Path, path: &Path) -> Result<LogFile, Error> {
        match (path.starts_with(folder), path.strip_prefix(root)) {
            (true, Ok(below)) => Ok(LogFile { root: root.to_owned(), path: below.to_owned() }),
            _ => Err(Error::Elsewhere(path.to_owned())),
        }
    }

    /// Opens the log; links must not lead out of its folder. Blocks.
    fn open(&self) -> io::Result<File> {
        beneath::open(&self.root, &self.path)
    }

    /// Returns the path of the log with the folder of all logs.
    fn full_path(&self) -> PathBuf {
        self.root.join(&self.path)
    }
}

/// A log that is read. Each part of it has at most some blocks, and is read when it is asked for.
pub struct LogReader {
    log: LogFile,
    /// `None`: a read has been dropped half-way.
    reading: Option<Reading>,
    follow: Option<Follow>,
}

/// Whether the container that writes a log runs.
pub type IsRunning = Arc<dyn Fn() -> Boxed<Result<bool, cri::Error>> + Send + Sync>;

/// Returns a function that asks the runtime whether a container runs. While the runtime is away,
/// the answer is that it does.
pub fn is_running(runtime: &RuntimeService, container: &str) -> IsRunning {
    let (runtime, container) = (runtime.clone(), container.to_owned());
    Arc::new(move || {
        let (runtime, container_id) = (runtime.clone(), container.clone());
        Box::pin(async move {
            let request = api::ContainerStatusRequest { container_id, verbose: false };
            match runtime.container_status(request).await {
                Ok(answer) => {
                    let state = answer.status.map(|status| State::of(status.state));
                    Ok(state == Some(State::Running))
                }
                Err(error) if error.is_not_found() => Ok(false),
                // The runtime has not answered: the container may run.
                Err(error) if error.code().is_none_or(|code| code == cri::Code::Unavailable) => {
                    Ok(true)
                }
                Err(error) => Err(error),
            }
        })
    })
}

/// What a follower waits for.
struct Follow {
    is_running: IsRunning,
    clock: SharedClock,
    /// `None`: the folder cannot be watched, so the file is read from time to time.
    watch: Option<FolderWatch>,
    /// When the container was last seen to run.
    checked: Option<Duration>,
    has_ended: bool,
    /// The file that has taken the log's place, while the rest of the former one is read.
    replacement: Option<File>,
}

impl LogReader {
    /// Opens a log of a container. With `follow` the reader waits for more until the container has
    /// ended.
    ///
    /// # Errors
    /// The log cannot be opened or read.
    pub async fn open(
        log: LogFile,
        options: &LogOptions,
        is_running: IsRunning,
        clock: &SharedClock,
    ) -> Result<LogReader, Error> {
        let (opened, tail, decoder) = (log.clone(), options.tail_lines, Decoder::new(options));
        let reading = task::blocking(move || {
            let path = opened.full_path();
            let file = opened.open();
            let file = file.map_err(|source| Error::Open { path: path.clone(), source })?;
            let start = tail.map_or(Ok(0), |lines| tail_start(&file, lines));
            let position = start.map_err(|source| Error::Read { path, source })?;
            Ok(Reading { file, position, decoder, block: vec![0; BLOCK] })
        });
        let follow = options.follow.then(|| Follow {
            is_running,
            clock: clock.clone(),
            watch: watch(&log),
            checked: None,
            has_ended: false,
            replacement: None,
        });
        Ok(LogReader { reading: Some(reading.await?), log, follow })
    }

    /// Reads the next part that is shown; `None`: there is no more. Not to be asked again after an
    /// error, or when the future was dropped half-way.
    pub async fn next(&mut self) -> Option<Result<Vec<u8>, Error>> {
        loop {
            let mut reading = self.reading.take()?;
            let (reading, outcome) = task::blocking(move || {
                let outcome = reading.read();
                (reading, outcome)
            })
            .await;
            let (is_done, is_at_end) =
                (reading.decoder.is_done(), matches!(outcome, Ok(Part::End)));
            self.reading = Some(reading);
            match outcome {
                Ok(Part::Shown(bytes)) => return Some(Ok(bytes)),
                Ok(Part::Nothing) if !is_done => {}
                // At the end of the file: more may follow.
                _ if is_at_end && !is_done => match self.wait().await {
                    Ok(true) => {}
                    Ok(false) => return None,
                    Err(error) => return Some(Err(error)),
                },
                Ok(_) => return None,
                Err(Fault::Read(source)) => {
                    return Some(Err(Error::Read { path: self.log.full_path(), source }));
                }
                Err(Fault::Format(UnknownFormat(line))) => {
                    let line = String::from_utf8_lossy(&line).into_owned();
                    return Some(Err(Error::Format(line)));
                }
            }
        }
    }

    /// Waits at the end of the file until there may be more; false: there will be no more.
    async fn wait(&mut self) -> Result<bool, Error> {
        let (Some(follow), Some(reading)) = (&mut self.follow, &mut self.reading) else {
            return Ok(false);
        };
        if let Some(file) = follow.replacement.take() {
            reading.start(file);
            return Ok(true);
        }
        match detect_change(&self.log, reading).await {
            Change::None => {}
            Change::Truncated => {
                reading.position = 0;
                reading.decoder.start_file();
                return Ok(true);
            }
            Change::Replaced(file) => {
                // What was written to the former one since it was read is read first.
                follow.replacement = Some(file);
                return Ok(true);
            }
        }
        if follow.has_ended {
            return Ok(false);
        }
        let now = follow.clock.monotonic();
        let next = follow.checked.map_or(now, |checked| checked + CHECK_PERIOD);
        if next <= now {
            follow.checked = Some(now);
            follow.has_ended = !(follow.is_running)().await.map_err(Error::Runtime)?;
            if follow.has_ended {
                // What it has written before its end is read once more.
                return Ok(true);
            }
        }
        let changed = async {
            let Some(watch) = &follow.watch else { return pending().await };
            // A change of any file in the folder ends the wait.
            if watch.changes().await.is_err() {
                pending::<()>().await;
            }
            follow.clock.sleep(GATHER).await;
        };
        changed.or(follow.clock.sleep(CHECK_PERIOD)).await;
        Ok(true)
    }
}

/// Watches the folder of a log; `None`: it cannot be watched.
fn watch(log: &LogFile) -> Option<FolderWatch> {
    let path = log.full_path();
    let watch = FolderWatch::of_writes(path.parent()?);
    watch.map_err(|error| log::debug!("{}: {error}", path.display())).ok()
}

/// What has happened to the name of a log.
enum Change {
    None,
    /// The file is shorter than what was read of it.
    Truncated,
    /// Another file has its name.
    Replaced(File),
}

/// Finds out whether the log, which is read to its end, was truncated or replaced by another file.
/// [`Change::None`] also while neither can be seen, as the log cannot be opened.
async fn detect_change(log: &LogFile, reading: &Reading) -> Change {
    let (log, position) = (log.clone(), reading.position);
    let Ok(own) = reading.file.metadata() else { return Change::None };
    task::blocking(move || {
        if own.len() < position {
            return Change::Truncated;
        }
        // The name is free for a moment during a rotation.
        let Ok(file) = log.open() else { return Change::None };
        let Ok(other) = file.metadata() else { return Change::None };
        match (own.dev(), own.ino()) == (other.dev(), other.ino()) {
            true => Change::None,
            false => Change::Replaced(file),
        }
    })
    .await
}

/// A file and the place in it.
struct Reading {
    file: File,
    position: u64,
    decoder: Decoder,
    block: Vec<u8>,
}

/// The outcome of a read.
enum Part {
    Shown(Vec<u8>),
    /// What was read is not shown.
    Nothing,
    End,
}

/// Why a log cannot be read any further.
enum Fault {
    Read(io::Error),
    Format(UnknownFormat),
}

impl Reading {
    /// Reads blocks of the log until one has something to show, the file ends, or [`BLOCKS`] are
    /// read. Blocks the thread.
    fn read(&mut self) -> Result<Part, Fault> {
        let mut shown = Vec::new();
        for _ in 0..BLOCKS {
            if self.decoder.is_done() {
                return Ok(Part::End);
            }
            let length = match self.file.read_at(&mut self.block, self.position) {
                Ok(0) => return Ok(Part::End),
                Ok(length) => length,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(Fault::Read(error)),
            };
            self.position += length as u64;
            self.decoder.feed(&self.block[..length], &mut shown).map_err(Fault::Format)?;
            if !shown.is_empty() {
                return Ok(Part::Shown(shown));
            }
        }
        Ok(Part::Nothing)
    }

    /// Continues with another file.
    fn start(&mut self, file: File) {
        (self.file, self.position) = (file, 0);
        self.decoder.start_file();
    }
}

/// Finds where the last lines of a file begin. A line without its end does not count. Blocks.
/// Upstream: `findTailLineStartIndex`.
fn tail_start(file: &File, lines: u64) -> io::Result<u64> {
    let (mut end, mut block) = (file.metadata()?.len(), vec![0; BLOCK]);
    let mut left = lines;
    while end > 0 {
        let length = usize::try_from(end).map_or(BLOCK, |end| end.min(BLOCK));
        let start = end - length as u64;
        file.read_exact_at(&mut block[..length], start)?;
        for at in memchr::memrchr_iter(b'\n', &block[..length]) {
            // One more end of a line than lines: that of the line before them.
            if left == 0 {
                return Ok(start + at as u64 + 1);
            }
            left -= 1;
        }
        end = start;
    }
    Ok(0)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write;
    use std::os::unix::fs::symlink;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    use futures_lite::future::block_on;
    use kube_controller_manager::clock::{Clock, SystemClock};

    use super::*;

    /// The folder of a pod's logs, removed when dropped.
    struct Logs {
        root: PathBuf,
        runs: Arc<AtomicBool>,
    }

    impl Logs {
        fn new() -> Logs {
            static COUNT: AtomicUsize = AtomicUsize::new(0);
            let unique = format!("{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::SeqCst));
            let root = std::env::temp_dir().join(format!("kubelet-log-reader-{unique}"));
            fs::create_dir_all(root.join("ns_p_u/c")).expect("a folder");
            Logs { root, runs: Arc::new(AtomicBool::new(true)) }
        }

        fn path(&self, name: &str) -> PathBuf {
            self.root.join("ns_p_u/c").join(name)
        }

        /// Appends a line.
        fn write(&self, name: &str, text: &str) {
            let file = File::options().append(true).create(true).open(self.path(name));
            let line = format!("2026-01-01T00:00:00Z stdout F {text}\n");
            file.expect("a file").write_all(line.as_bytes()).expect("written");
        }

        async fn open(&self, options: &LogOptions) -> Result<LogReader, Error> {
            let pod = self.root.join("ns_p_u");
            let log = LogFile::new(&self.root, &pod, &self.path("0.log"))?;
            let runs = self.runs.clone();
            let is_running: IsRunning = Arc::new(move || {
                let runs = runs.load(Ordering::SeqCst);
                Box::pin(async move { Ok(runs) })
            });
            LogReader::open(log, options, is_running, &SystemClock::shared()).await
        }
    }

    impl Drop for Logs {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.root);
        }
    }

    /// Reads until these lines have come.
    async fn expect(reader: &mut LogReader, lines: &[&str]) {
        let expected = lines.iter().map(|line| format!("{line}\n")).collect::<String>();
        let mut found = String::new();
        let reading = async {
            while found.len() < expected.len() {
                let part = reader.next().await.expect("more lines").expect("a part");
                found.push_str(&String::from_utf8(part).expect("text"));
            }
        };
        let late = async {
            SystemClock.sleep(Duration::from_secs(60)).await;
        };
        reading.or(late).await;
        assert_eq!(found, expected);
    }

    async fn expect_end(reader: &mut LogReader) {
        let late = async {
            SystemClock.sleep(Duration::from_secs(60)).await;
            panic!("the log does not end");
        };
        let next = reader.next().or(late).await;
        assert!(next.is_none(), "{next:?}");
    }

    fn follow() -> LogOptions {
        LogOptions { follow: true, ..LogOptions::default() }
    }

    #[test]
    fn followers_see_all_files_and_the_last_byte() {
        let logs = Logs::new();
        logs.write("0.log", "one");
        block_on(async {
            let mut reader = logs.open(&follow()).await.expect("a log");
            expect(&mut reader, &["one"]).await;
            logs.write("0.log", "two");
            expect(&mut reader, &["two"]).await;
            // A rotation, while the container still writes to the former file.
            fs::rename(logs.path("0.log"), logs.path("0.log.1")).expect("renamed");
            logs.write("0.log.1", "late");
            expect(&mut reader, &["late"]).await;
            logs.write("0.log.1", "later");
            logs.write("0.log", "three");
            expect(&mut reader, &["later", "three"]).await;
            // The file is emptied in place.
            fs::write(logs.path("0.log"), "").expect("written");
            logs.write("0.log", "4");
            expect(&mut reader, &["4"]).await;
            // Deleted, and there again.
            fs::remove_file(logs.path("0.log")).expect("removed");
            logs.write("0.log", "five");
            expect(&mut reader, &["five"]).await;
            logs.write("0.log", "last");
            logs.runs.store(false, Ordering::SeqCst);
            expect(&mut reader, &["last"]).await;
            expect_end(&mut reader).await;
        });
    }

    #[test]
    fn log_of_a_container_that_has_ended_ends() {
        let logs = Logs::new();
        logs.runs.store(false, Ordering::SeqCst);
        logs.write("0.log", "one");
        logs.write("0.log", "two");
        block_on(async {
            let tail = LogOptions { tail_lines: Some(1), ..follow() };
            let mut reader = logs.open(&tail).await.expect("a log");
            expect(&mut reader, &["two"]).await;
            expect_end(&mut reader).await;
            let mut reader = logs.open(&LogOptions::default()).await.expect("a log");
            expect(&mut reader, &["one", "two"]).await;
            expect_end(&mut reader).await;
            // One byte of a log that is followed is enough.
            logs.runs.store(true, Ordering::SeqCst);
            let limited = LogOptions { limit_bytes: Some(5), ..follow() };
            let mut reader = logs.open(&limited).await.expect("a log");
            let part = reader.next().await.expect("a part").expect("a part");
            assert_eq!(part, b"one\nt");
            expect_end(&mut reader).await;
        });
    }

    #[test]
    fn only_logs_of_the_pod_are_opened() {
        let logs = Logs::new();
        let secret = logs.root.join("secret");
        fs::write(&secret, "2026-01-01T00:00:00Z stdout F secret\n").expect("a file");
        let open = || block_on(logs.open(&LogOptions::default())).err();
        assert!(matches!(open(), Some(Error::Open { .. })), "absent");
        symlink(&secret, logs.path("0.log")).expect("a link");
        assert!(matches!(open(), Some(Error::Open { .. })), "a link");
        fs::remove_file(logs.path("0.log")).expect("removed");
        fs::create_dir(logs.path("0.log")).expect("a folder");
        assert!(matches!(open(), Some(Error::Open { .. })), "a folder");
        let pod = logs.root.join("ns_p_u");
        for path in ["/etc/passwd", "other_p_v/c/0.log", "ns_p_ux/0.log"] {
            let elsewhere = LogFile::new(&logs.root, &pod, &logs.root.join(path));
            assert!(matches!(elsewhere, Err(Error::Elsewhere(_))), "{path}");
        }
        fs::remove_dir(logs.path("0.log")).expect("removed");
        fs::write(logs.path("0.log"), "{}\n").expect("a file");
        let mut reader = block_on(logs.open(&LogOptions::default())).expect("a file");
        let fault = block_on(reader.next()).expect("a fault").expect_err("another format");
        let text = "failed to get parse function: unsupported log format: \"{}\"";
        assert_eq!(fault.to_string(), text);
    }

    #[test]
    fn last_lines_are_found_from_the_end() {
        let logs = Logs::new();
        let path = logs.path("x");
        let long = "y".repeat(BLOCK);
        let across = format!("{long}\n{long}\nend\n");
        for (text, lines, expected) in [
            ("", 0, 0),
            ("", 3, 0),
            ("a\nb\nc\n", 0, 6),
            ("a\nb\nc\n", 1, 4),
            ("a\nb\nc\n", 2, 2),
            ("a\nb\nc\n", 3, 0),
            ("a\nb\nc\n", 4, 0),
            // An incomplete line comes on top.
            ("a\nb\nc", 0, 4),
            ("a\nb\nc", 1, 2),
            ("a", 0, 0),
            (&across, 1, 2 * (BLOCK as u64 + 1)),
            (&across, 2, BLOCK as u64 + 1),
            (&across, 3, 0),
        ] {
            fs::write(&path, text).expect("a file");
            let file = File::open(&path).expect("a file");
            let shown = &text[..text.len().min(20)];
            assert_eq!(tail_start(&file, lines).expect("a place"), expected, "{shown:?} {lines}");
        }
    }
}
