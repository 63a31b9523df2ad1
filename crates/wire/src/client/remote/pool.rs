//! The few connections that one memory may have.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use super::link::{Cut, Link};
use crate::deadline::Deadline;

/// Places for connections: idle ones wait here, the others are with a call.
pub(super) struct Pool {
    state: Mutex<State>,
    freed: Condvar,
    max: usize,
}

#[derive(Default)]
struct State {
    idle: Vec<Link>,
    /// Places taken, by idle connections too.
    taken: usize,
    closed: bool,
}

impl Pool {
    pub(super) fn new(max: usize) -> Pool {
        Pool { state: Mutex::default(), freed: Condvar::new(), max }
    }

    /// A place with the connection used last, or an empty one; waits until the deadline.
    pub(super) fn take(&self, until: Deadline) -> Result<Place<'_>, Cut> {
        let mut state = self.lock();
        loop {
            if state.closed {
                return Err(Cut::Down);
            }
            if let Some(link) = state.idle.pop() {
                return Ok(Place { pool: self, link: Some(link) });
            }
            if state.taken < self.max {
                state.taken += 1;
                return Ok(Place { pool: self, link: None });
            }
            let Some(left) = until.left() else { return Err(Cut::Deadline) };
            let waited = self.freed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Places that a call could have now without waiting.
    pub(super) fn free(&self) -> usize {
        let state = self.lock();
        self.max.saturating_sub(state.taken) + state.idle.len()
    }

    /// An idle connection, if there is one.
    pub(super) fn take_idle(&self) -> Option<Place<'_>> {
        let link = self.lock().idle.pop()?;
        Some(Place { pool: self, link: Some(link) })
    }

    /// Keeps a connection made outside of a call, if there is a place.
    pub(super) fn offer(&self, link: Link) {
        let mut state = self.lock();
        if state.taken < self.max && !state.closed {
            state.taken += 1;
            state.idle.push(link);
            self.freed.notify_one();
        }
    }

    /// Gives up the idle connections.
    pub(super) fn clear(&self) {
        let mut state = self.lock();
        let idle = std::mem::take(&mut state.idle);
        state.taken -= idle.len();
        self.freed.notify_all();
    }

    /// Gives up the idle connections and hands out no more.
    pub(super) fn close(&self) {
        self.lock().closed = true;
        self.clear();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One place. Unless it is given back with its connection, that connection is closed.
pub(super) struct Place<'a> {
    pool: &'a Pool,
    link: Option<Link>,
}

impl Place<'_> {
    /// The idle connection it came with.
    pub(super) fn idle(&mut self) -> Option<&mut Link> {
        self.link.as_mut()
    }

    pub(super) fn fill(&mut self, link: Link) {
        self.link = Some(link);
    }

    /// Its connection.
    ///
    /// # Panics
    /// It was neither idle nor filled.
    pub(super) fn link(&mut self) -> &mut Link {
        self.link.as_mut().expect("a place is filled before it is used")
    }

    /// The connection waits for the next call.
    pub(super) fn give_back(mut self) {
        let mut state = self.pool.lock();
        if !state.closed
            && let Some(link) = self.link.take()
        {
            state.idle.push(link);
            state.taken += 1;
        }
        // Dropping this place takes one away again, and wakes whoever waits.
        drop(state);
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.pool.lock().taken -= 1;
        self.pool.freed.notify_one();
    }
}
