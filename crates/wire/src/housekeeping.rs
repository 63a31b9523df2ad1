//! The thread that calls [`Store::tick`] about ten times a second.

use std::io;
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use keepwarm_store::Store;

const PERIOD: Duration = Duration::from_millis(100);
const STACK_BYTES: usize = 256 << 10;

/// Keeps house for a store until it is stopped or the store is gone.
pub(crate) struct Housekeeper {
    stopped: Arc<(Mutex<bool>, Condvar)>,
    thread: Option<JoinHandle<()>>,
}

impl Housekeeper {
    /// Starts the thread.
    pub(crate) fn start(store: &Arc<Store>) -> io::Result<Housekeeper> {
        let stopped = Arc::new((Mutex::new(false), Condvar::new()));
        let (told, store) = (stopped.clone(), Arc::downgrade(store));
        let thread = std::thread::Builder::new()
            .name(String::from("keepwarm-house"))
            .stack_size(STACK_BYTES)
            .spawn(move || keep(&store, &told))?;
        Ok(Housekeeper { stopped, thread: Some(thread) })
    }

    /// Stops the thread and waits for its last round.
    pub(crate) fn stop(&mut self) {
        *self.stopped.0.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.stopped.1.notify_all();
        if let Some(thread) = self.thread.take() {
            // A panic in a round was reported by the panic hook already.
            let _ = thread.join();
        }
    }
}

fn keep(store: &Weak<Store>, stopped: &(Mutex<bool>, Condvar)) {
    let mut told = stopped.0.lock().unwrap_or_else(PoisonError::into_inner);
    while !*told {
        let waited = stopped.1.wait_timeout(told, PERIOD);
        told = waited.unwrap_or_else(PoisonError::into_inner).0;
        match store.upgrade() {
            Some(store) if !*told => store.tick(),
            Some(_) => {}
            None => return,
        }
    }
}
