//! Epochs on their way to disk: one write at a time, on a thread of its own. A disk that does not
//! answer holds up who wants a larger epoch, for as long as that call waits, and nobody else.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::epochs::EpochFile;
use crate::error::StoreError;
use crate::types::Epoch;

/// The epochs that are on disk, and whoever writes.
#[derive(Debug)]
pub(crate) struct EpochBook {
    /// Locked for a look only, never across a write.
    known: Mutex<HashMap<[u8; 32], Epoch>>,
    /// Locked only by who has the turn.
    file: Mutex<EpochFile>,
    is_taken: Mutex<bool>,
    turn_ended: Condvar,
    directory: Option<PathBuf>,
}

/// The right to write; given back however the write ends.
struct Turn(Arc<EpochBook>);

impl Drop for Turn {
    fn drop(&mut self) {
        *self.0.is_taken.lock() = false;
        self.0.turn_ended.notify_one();
    }
}

/// A larger epoch of one namespace.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Larger {
    pub fingerprint: [u8; 32],
    /// Mark of its tenant.
    pub tenant: u64,
    pub epoch: Epoch,
    /// Namespaces whose epochs the tenant may have.
    pub share: usize,
}

impl EpochBook {
    pub fn new(file: EpochFile, directory: Option<PathBuf>) -> EpochBook {
        let known = file.iter().collect();
        EpochBook {
            known: Mutex::new(known),
            file: Mutex::new(file),
            is_taken: Mutex::new(false),
            turn_ended: Condvar::new(),
            directory,
        }
    }

    /// The namespace's epoch on disk.
    pub fn known(&self, fingerprint: &[u8; 32]) -> Epoch {
        self.known.lock().get(fingerprint).copied().unwrap_or_default()
    }

    /// Remembers a larger epoch; on disk when this returns well. Waits no longer than `patience`;
    /// a write that takes longer goes on, and may still succeed.
    pub fn put(self: &Arc<Self>, larger: Larger, patience: Duration) -> Result<(), StoreError> {
        let until = Instant::now() + patience;
        let turn = self.turn(until).ok_or_else(|| self.late(patience))?;
        if self.known(&larger.fingerprint) >= larger.epoch {
            return Ok(());
        }
        if self.directory.is_none() {
            return turn.write(larger);
        }
        let (done, told) = mpsc::sync_channel(1);
        let writer = move || {
            let written = turn.write(larger);
            drop(turn);
            // Nobody may be waiting any more.
            let _ = done.send(written);
        };
        let named = std::thread::Builder::new().name("keepwarm-epochs".into());
        named.spawn(writer).map_err(|error| {
            let problem = String::from("no thread to write it: raise the limit on threads");
            StoreError::Epochs { path: self.path(), problem, source: Some(error) }
        })?;
        let left = until.saturating_duration_since(Instant::now());
        told.recv_timeout(left).unwrap_or_else(|_| Err(self.late(patience)))
    }

    fn turn(self: &Arc<Self>, until: Instant) -> Option<Turn> {
        let mut is_taken = self.is_taken.lock();
        while *is_taken {
            if self.turn_ended.wait_until(&mut is_taken, until).timed_out() && *is_taken {
                return None;
            }
        }
        *is_taken = true;
        Some(Turn(self.clone()))
    }

    fn path(&self) -> PathBuf {
        self.directory.clone().unwrap_or_else(|| "in memory".into())
    }

    fn late(&self, patience: Duration) -> StoreError {
        let waited = patience.as_millis();
        let problem = format!("not written within {waited} ms: check the disk, then try again");
        StoreError::Epochs { path: self.path(), problem, source: None }
    }
}

impl Turn {
    fn write(&self, larger: Larger) -> Result<(), StoreError> {
        let Larger { fingerprint, tenant, epoch, share } = larger;
        self.0.file.lock().put(fingerprint, tenant, epoch, share)?;
        self.0.known.lock().insert(fingerprint, epoch);
        Ok(())
    }
}
