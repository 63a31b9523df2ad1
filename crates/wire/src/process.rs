//! Which process this is, across forks.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

static FORKS: AtomicU32 = AtomicU32::new(0);
static COUNTED: AtomicBool = AtomicBool::new(false);

/// A process among those that fork made of one. The number that the system gives does not tell them
/// apart by itself: in a new pid namespace a child can have its parent's, and numbers come again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessId {
    pid: u32,
    forks: u32,
}

impl ProcessId {
    /// This one. Never waits, so that it may be asked in a child of a fork.
    pub fn here() -> ProcessId {
        if !COUNTED.swap(true, Ordering::Relaxed) {
            // SAFETY: the handler is a function that only adds to an atomic, which a child of a
            // fork may do. It fails only without memory; then the pid alone has to do.
            // `tests/fork.rs` forks a child with its parent's pid.
            let _ = unsafe { libc::pthread_atfork(None, None, Some(count_fork)) };
        }
        ProcessId { pid: std::process::id(), forks: FORKS.load(Ordering::Relaxed) }
    }
}

extern "C" fn count_fork() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}
