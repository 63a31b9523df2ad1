//! Whether calls are tried at all.
//!
//! ```text
//!   up ──3 failures in a row, or nobody listens──► down ──the asking thread gets an answer──► up
//! ```
//!
//! While it is down, calls miss at once and one thread asks for the node: at once, since calls may
//! only have been too impatient, then after 50 ms, doubling to 2 s, each wait drawn from its upper
//! half so that a fleet's clients do not come back in step.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use super::Node;
use crate::deadline::Deadline;

/// Failures in a row after which calls are no longer tried.
pub(super) const FAILURES: u32 = 3;
const WAIT_LEAST: Duration = Duration::from_millis(50);
const WAIT_MOST: Duration = Duration::from_secs(2);
/// How long one attempt may take.
const ATTEMPT: Duration = Duration::from_secs(1);
const STACK_BYTES: usize = 256 << 10;

pub(super) struct Breaker {
    failures_max: u32,
    down: AtomicBool,
    signal: Arc<Signal>,
}

#[derive(Default)]
struct Signal {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    failures: u32,
    last_error: Option<String>,
    /// Whether a thread is asking.
    watched: bool,
    stopped: bool,
}

impl Signal {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Breaker {
    pub(super) fn new(failures_max: u32) -> Breaker {
        Breaker { failures_max, down: AtomicBool::new(false), signal: Arc::default() }
    }

    pub(super) fn lets_pass(&self) -> bool {
        !self.down.load(Ordering::Acquire)
    }

    /// Whether it is up, and what failed last.
    pub(super) fn state(&self) -> (bool, Option<String>) {
        (self.lets_pass(), self.signal.lock().last_error.clone())
    }

    /// Something to know that is no failure.
    pub(super) fn note(&self, what: Option<&str>) {
        if let Some(what) = what {
            self.signal.lock().last_error = Some(what.to_owned());
        }
    }

    /// A call was answered.
    pub(super) fn worked(&self) {
        let mut state = self.signal.lock();
        state.failures = 0;
    }

    /// A call failed. True: it is down now, and was not before.
    pub(super) fn failed(&self, error: String, at_once: bool) -> bool {
        let mut state = self.signal.lock();
        state.failures = state.failures.saturating_add(1);
        state.last_error = Some(error);
        (at_once || state.failures >= self.failures_max) && !self.down.swap(true, Ordering::AcqRel)
    }

    /// Makes sure that a thread asks for the node while it is down. Without one (the system may
    /// have none to give) the next call tries to start it.
    pub(super) fn watch(&self, node: &Arc<Node>) {
        let mut state = self.signal.lock();
        if state.watched || state.stopped || self.lets_pass() {
            return;
        }
        let (weak, signal) = (Arc::downgrade(node), self.signal.clone());
        let builder = std::thread::Builder::new().name(String::from("keepwarm-ask"));
        let spawned = builder.stack_size(STACK_BYTES).spawn(move || ask(&weak, &signal));
        state.watched = spawned.is_ok();
    }

    /// Ends the thread, soon.
    pub(super) fn stop(&self) {
        self.signal.lock().stopped = true;
        self.signal.changed.notify_all();
    }

    fn up(&self, state: &mut State) {
        state.failures = 0;
        state.watched = false;
        self.down.store(false, Ordering::Release);
    }
}

/// Asks until the node answers or nobody wants to know.
fn ask(node: &Weak<Node>, signal: &Signal) {
    let mut wait = WAIT_LEAST;
    let mut chance = u64::from(std::process::id()) | 1;
    let mut pause = Duration::ZERO;
    while !stopped_within(signal, pause) {
        let Some(node) = node.upgrade() else { return };
        let tried = node.try_again(Deadline::after(ATTEMPT));
        let mut state = signal.lock();
        match tried {
            Ok(()) => return node.breaker.up(&mut state),
            Err(cut) => state.last_error = Some(cut.to_string()),
        }
        drop(state);
        pause = jittered(wait, &mut chance);
        wait = (wait * 2).min(WAIT_MOST);
    }
}

fn stopped_within(signal: &Signal, wait: Duration) -> bool {
    let until = Deadline::after(wait);
    let mut state = signal.lock();
    while !state.stopped {
        let Some(left) = until.left() else { return false };
        let waited = signal.changed.wait_timeout(state, left);
        state = waited.unwrap_or_else(PoisonError::into_inner).0;
    }
    true
}

/// Between half of `wait` and all of it (xorshift: it only has to differ between processes).
fn jittered(wait: Duration, chance: &mut u64) -> Duration {
    *chance ^= *chance << 13;
    *chance ^= *chance >> 7;
    *chance ^= *chance << 17;
    let nanos = u64::try_from(wait.as_nanos()).unwrap_or(u64::MAX).max(2);
    Duration::from_nanos(nanos / 2 + *chance % (nanos / 2))
}
