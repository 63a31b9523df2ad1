//! Several parts of one call at once: the stripes of a transfer, the nodes of a fleet.
//!
//! ```text
//!   caller ──legs──► queue ──► threads of ours, at most THREADS_MAX, gone after a while of none
//!      │               │
//!      └─ runs the first leg, then whatever nobody has begun yet, then waits for the others
//! ```
//!
//! [`Legs::run`] returns when **every** leg has returned, and never before: what a leg borrows, a
//! caller's buffer included, is nobody's but the caller's again after it. So a leg MUST end by its
//! call's deadline, as every call on a connection does. Without a thread to be had the caller runs
//! all legs itself, one after the other; then a leg that waits for its deadline costs those after
//! it theirs.
//!
//! One per process and memory: after a fork the child has its own.

use std::any::Any;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::ptr::NonNull;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::deadline::Deadline;

/// Threads of one memory, at most: a fleet of 32 nodes asked by two callers at once.
const THREADS_MAX: usize = 64;
/// How long a thread waits for work before it goes.
const IDLE: Duration = Duration::from_secs(5);
const STACK_BYTES: usize = 256 << 10;

/// The threads that run legs.
#[derive(Default)]
pub(in crate::client) struct Legs {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    /// A job was queued, or all is over.
    queued: Condvar,
    /// A job has ended.
    ended: Condvar,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    threads: usize,
    idle: usize,
    /// Jobs given out, for telling one call's from another's.
    calls: u64,
    closed: bool,
}

/// A leg whose types are forgotten.
struct Job {
    call: u64,
    leg: NonNull<()>,
    run: unsafe fn(NonNull<()>),
    left: NonNull<usize>,
}

// SAFETY: a job points at a leg and a count on the stack of a caller that is inside `Legs::run`
// until the count is zero. The leg's work and outcome are `Send` (bounds of `Legs::run`), only the
// thread that took the job from the queue touches it, and the count is touched under the lock
// alone (the test below runs legs that write their caller's stack).
unsafe impl Send for Job {}

struct Leg<F, T> {
    work: Option<F>,
    outcome: Option<Result<T, Box<dyn Any + Send>>>,
}

impl<F: FnOnce() -> T, T> Leg<F, T> {
    fn run(&mut self) {
        if let Some(work) = self.work.take() {
            self.outcome = Some(catch_unwind(AssertUnwindSafe(work)));
        }
    }

    /// # Safety
    /// `leg` is a `Leg<F, T>` that nobody else uses meanwhile.
    unsafe fn run_erased(leg: NonNull<()>) {
        // SAFETY: by this function's contract.
        unsafe { leg.cast::<Leg<F, T>>().as_mut() }.run();
    }
}

impl Legs {
    /// Runs all of `works` at once as far as there are threads; returns what they returned, in
    /// order, when all have.
    ///
    /// # Panics
    /// With the first leg's panic, after all have ended.
    pub(in crate::client) fn run<F, T>(&self, works: Vec<F>) -> Vec<T>
    where
        F: FnOnce() -> T + Send,
        T: Send,
    {
        let leg = |work| Leg { work: Some(work), outcome: None };
        let mut legs: Vec<Leg<F, T>> = works.into_iter().map(leg).collect();
        if let Some((first, others)) = legs.split_first_mut() {
            let mut left = others.len();
            let left = NonNull::from(&mut left);
            let call = self.shared.queue(others, left);
            first.run();
            self.shared.finish(call, left);
        }
        let outcomes = legs.into_iter().filter_map(|leg| leg.outcome);
        outcomes.map(|outcome| outcome.unwrap_or_else(|panic| resume_unwind(panic))).collect()
    }

    /// Lets the threads go once they have no work.
    pub(in crate::client) fn close(&self) {
        self.shared.lock().closed = true;
        self.shared.queued.notify_all();
    }
}

impl Drop for Legs {
    fn drop(&mut self) {
        self.close();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues the legs and sees to it that there are threads for them; returns the call's number.
    fn queue<F, T>(self: &Arc<Self>, legs: &mut [Leg<F, T>], left: NonNull<usize>) -> u64
    where
        F: FnOnce() -> T + Send,
        T: Send,
    {
        let mut state = self.lock();
        state.calls += 1;
        let call = state.calls;
        for leg in legs {
            let leg = NonNull::from(leg).cast();
            state.jobs.push_back(Job { call, leg, run: Leg::<F, T>::run_erased, left });
        }
        while state.idle < state.jobs.len() && state.threads < THREADS_MAX {
            let shared = self.clone();
            let builder = std::thread::Builder::new().name(String::from("keepwarm-leg"));
            if builder.stack_size(STACK_BYTES).spawn(move || shared.work()).is_err() {
                break;
            }
            // It counts as idle until it looks at the queue.
            state.threads += 1;
            state.idle += 1;
        }
        drop(state);
        self.queued.notify_all();
        call
    }

    /// Runs what nobody has begun, waits for what others have.
    fn finish(&self, call: u64, left: NonNull<usize>) {
        let mut state = self.lock();
        while let Some(place) = state.jobs.iter().position(|job| job.call == call) {
            let job = state.jobs.remove(place);
            drop(state);
            state = self.run(job);
        }
        // SAFETY: `left` is the caller's own, alive, and this is under the lock.
        while unsafe { left.read() } > 0 {
            state = self.ended.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Runs a job outside of the lock and counts it.
    fn run(&self, job: Option<Job>) -> MutexGuard<'_, State> {
        let Some(job) = job else { return self.lock() };
        // SAFETY: the job was taken from the queue, so nobody else has it, and its caller waits.
        unsafe { (job.run)(job.leg) };
        let state = self.lock();
        // SAFETY: the caller waits until this is zero, and this is under the lock.
        unsafe { job.left.write(job.left.read() - 1) };
        self.ended.notify_all();
        state
    }

    /// A thread of ours.
    fn work(&self) {
        let mut state = self.lock();
        loop {
            let until = Deadline::after(IDLE);
            let job = loop {
                if let Some(job) = state.jobs.pop_front() {
                    break Some(job);
                }
                let Some(left) = until.left().filter(|_| !state.closed) else { break None };
                let waited = self.queued.wait_timeout(state, left);
                state = waited.unwrap_or_else(PoisonError::into_inner).0;
            };
            state.idle -= 1;
            if job.is_none() {
                state.threads -= 1;
                return;
            }
            drop(state);
            state = self.run(job);
            state.idle += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use super::*;

    #[test]
    fn legs_run_at_once_and_all_are_over_afterwards() {
        let legs = Legs::default();
        for _ in 0..100 {
            let mut bytes = [0u8; 64];
            let together = Barrier::new(8);
            let together = &together;
            let works = bytes.chunks_mut(8).enumerate().map(|(place, chunk)| {
                move || {
                    together.wait();
                    chunk.fill(place as u8 + 1);
                    place
                }
            });
            assert_eq!(legs.run(works.collect::<Vec<_>>()), (0..8).collect::<Vec<_>>());
            assert!(bytes.chunks(8).zip(1..).all(|(chunk, n)| chunk == [n; 8]));
        }
        assert!(legs.shared.lock().threads <= 8, "threads are used again");
    }

    #[test]
    fn callers_at_once_and_more_legs_than_threads() {
        let legs = Legs::default();
        std::thread::scope(|scope| {
            for caller in 0..8usize {
                let legs = &legs;
                scope.spawn(move || {
                    for _ in 0..20 {
                        let works = (0..100).map(|n| move || caller * 1000 + n);
                        let want: Vec<_> = (0..100).map(|n| caller * 1000 + n).collect();
                        assert_eq!(legs.run(works.collect::<Vec<_>>()), want);
                    }
                });
            }
        });
        assert!(legs.shared.lock().threads <= THREADS_MAX);
    }

    #[test]
    fn a_panic_comes_back_after_the_others_have_ended() {
        let legs = Legs::default();
        let mut written = [0u8; 3];
        let works = written.iter_mut().enumerate().map(|(place, byte)| {
            move || {
                assert!(place != 1, "a drill");
                *byte = 1;
            }
        });
        let works: Vec<_> = works.collect();
        let panicked = catch_unwind(AssertUnwindSafe(|| legs.run(works))).is_err();
        assert!(panicked && written == [1, 0, 1]);
        assert_eq!(legs.run(vec![|| 7]), [7], "and it goes on");
    }

    #[test]
    fn none_and_one_need_no_thread() {
        let legs = Legs::default();
        assert_eq!(legs.run(Vec::<fn() -> u8>::new()), []);
        assert_eq!(legs.run(vec![|| 1]), [1]);
        assert_eq!(legs.shared.lock().threads, 0);
    }
}
