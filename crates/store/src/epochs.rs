//! Epochs that survive a restart: one small file, replaced as a whole.
//!
//! ```text
//! "KWEPOCHS" | version u32 | count u32 | count × record | XXH3-64 u64
//! record: fingerprint 32 B | XXH3-64 of the tenant's name u64 | epoch u32
//! ```
//! Little-endian; the checksum covers all before it; a namespace appears once, oldest first. A
//! file that is not exactly so is refused: to guess an epoch could bring old bytes back.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::checksum::xxh3_64;
use crate::epoch_writes::EpochBook;
use crate::error::StoreError;
use crate::types::Epoch;

const MAGIC: [u8; 8] = *b"KWEPOCHS";
const VERSION: u32 = 2;
const HEADER_BYTES: usize = 16;
const RECORD_BYTES: usize = 44;
const TRAILER_BYTES: usize = 8;
/// Namespaces remembered, each tenant's share of them for itself. Beyond it a larger epoch is
/// refused: to forget one could bring old bytes back.
pub const RECORDS_MAX: usize = 16_384;
const FILE_NAME: &str = "epochs";
/// Locked as long as a store uses the directory; holds its process's number, for people.
const LOCK_NAME: &str = "lock";
/// How long a store that is just going may take to let go of its directory.
const LOCK_WAIT: Duration = Duration::from_millis(500);
const LOCK_PAUSE: Duration = Duration::from_millis(10);

/// Directories that stores of this process use: two stores on one share its epochs.
static OPEN: Mutex<Vec<OpenFile>> = Mutex::new(Vec::new());

struct OpenFile {
    directory: PathBuf,
    /// A forked child has its parent's list, but not its parent's lock.
    pid: u32,
    book: Weak<EpochBook>,
}

/// One namespace's fingerprint, its tenant's mark, and its epoch.
pub type Record = ([u8; 32], u64, Epoch);

/// What stands for a tenant in the file.
pub fn mark_of(tenant: &str) -> u64 {
    xxh3_64(tenant.as_bytes())
}

/// Reads a file's bytes.
///
/// # Errors
/// What is wrong with them.
pub fn decode(bytes: &[u8]) -> Result<Vec<Record>, &'static str> {
    if bytes.len() < HEADER_BYTES + TRAILER_BYTES || bytes[..8] != MAGIC {
        return Err("it is not a file of epochs");
    }
    let number = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|i| bytes[at + i]));
    if number(8) != VERSION {
        return Err("its version is not 2");
    }
    let count = number(12) as usize;
    if count > RECORDS_MAX || bytes.len() != HEADER_BYTES + count * RECORD_BYTES + TRAILER_BYTES {
        return Err("its length does not fit its count");
    }
    let (body, trailer) = bytes.split_at(bytes.len() - TRAILER_BYTES);
    if xxh3_64(body).to_le_bytes() != trailer {
        return Err("its checksum does not match");
    }
    let mut records: Vec<Record> = Vec::with_capacity(count);
    for record in body[HEADER_BYTES..].chunks_exact(RECORD_BYTES) {
        let (fingerprint, rest) = record.split_at(32);
        let (tenant, epoch) = rest.split_at(8);
        let fingerprint = <[u8; 32]>::try_from(fingerprint).expect("32 bytes");
        let tenant = u64::from_le_bytes(tenant.try_into().expect("8 bytes"));
        let epoch = u32::from_le_bytes(epoch.try_into().expect("4 bytes"));
        records.push((fingerprint, tenant, Epoch(epoch)));
    }
    let mut names: Vec<_> = records.iter().map(|(fingerprint, ..)| fingerprint).collect();
    names.sort_unstable();
    if names.windows(2).any(|pair| pair[0] == pair[1]) {
        return Err("it names a namespace twice");
    }
    Ok(records)
}

/// A file's bytes for these records, at most `RECORDS_MAX` and each namespace once.
pub fn encode(records: &[Record]) -> Vec<u8> {
    assert!(records.len() <= RECORDS_MAX);
    let mut bytes = MAGIC.to_vec();
    bytes.extend(VERSION.to_le_bytes());
    bytes.extend((records.len() as u32).to_le_bytes());
    for (fingerprint, tenant, epoch) in records {
        bytes.extend(fingerprint);
        bytes.extend(tenant.to_le_bytes());
        bytes.extend(epoch.0.to_le_bytes());
    }
    bytes.extend(xxh3_64(&bytes).to_le_bytes());
    bytes
}

/// The epochs of namespaces, kept in a directory if there is one.
#[derive(Debug)]
pub(crate) struct EpochFile {
    directory: Option<PathBuf>,
    /// One store a directory: two would write over each other's epochs.
    _lock: Option<DirectoryLock>,
    records: Vec<Record>,
}

/// A directory that is this store's alone.
#[derive(Debug)]
struct DirectoryLock {
    file: File,
    /// Whose lock it is: a forked child has the descriptor too.
    pid: u32,
}

impl DirectoryLock {
    fn take(directory: &Path) -> Result<DirectoryLock, StoreError> {
        let path = directory.join(LOCK_NAME);
        let mut options = File::options();
        let opened = options.read(true).write(true).create(true).truncate(false).open(&path);
        let mut file =
            opened.map_err(|e| failed(&path, "cannot be opened: check its rights", e))?;
        let until = Instant::now() + LOCK_WAIT;
        let mut locked = flock(&file, FlockOperation::NonBlockingLockExclusive);
        while locked == Err(Errno::WOULDBLOCK) && Instant::now() < until {
            std::thread::sleep(LOCK_PAUSE);
            locked = flock(&file, FlockOperation::NonBlockingLockExclusive);
        }
        match locked {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => {
                let holder = fs::read_to_string(&path).unwrap_or_default();
                let problem = format!(
                    "in use by pid {}: stop that node, or give this one another state_dir",
                    holder.trim()
                );
                return Err(StoreError::Epochs { path, problem, source: None });
            }
            Err(error) => return Err(failed(&path, "cannot be locked", error.into())),
        }
        let pid = std::process::id();
        let named = file.set_len(0).and_then(|()| writeln!(file, "{pid}"));
        named.map_err(|e| failed(&path, "cannot be written: check space and rights", e))?;
        Ok(DirectoryLock { file, pid })
    }
}

impl Drop for DirectoryLock {
    fn drop(&mut self) {
        // Not left to the close alone: a child that was forked meanwhile would go on holding it.
        if self.pid == std::process::id() {
            let _ = flock(&self.file, FlockOperation::Unlock);
        }
    }
}

impl EpochFile {
    /// As `open`, but the one that is open in this process already if there is such.
    pub fn share(directory: Option<PathBuf>) -> Result<Arc<EpochBook>, StoreError> {
        let pid = std::process::id();
        let mut open = OPEN.lock();
        open.retain(|other| other.pid == pid && other.book.strong_count() > 0);
        let name = directory.as_ref().and_then(|directory| fs::canonicalize(directory).ok());
        let same = open.iter().find(|other| Some(&other.directory) == name.as_ref());
        if let Some(book) = same.and_then(|other| other.book.upgrade()) {
            return Ok(book);
        }
        let file = EpochFile::open(directory.clone())?;
        let book = Arc::new(EpochBook::new(file, directory.clone()));
        if let Some(Ok(directory)) = directory.map(fs::canonicalize) {
            open.push(OpenFile { directory, pid, book: Arc::downgrade(&book) });
        }
        Ok(book)
    }

    /// Reads what is there; a directory without a file has no epochs yet.
    pub fn open(directory: Option<PathBuf>) -> Result<EpochFile, StoreError> {
        let (mut records, mut lock) = (Vec::new(), None);
        if let Some(directory) = &directory {
            let path = directory.join(FILE_NAME);
            let create = create_durably(directory);
            create.map_err(|e| failed(directory, "cannot be created: check its parent", e))?;
            lock = Some(DirectoryLock::take(directory)?);
            match fs::read(&path) {
                Ok(bytes) => records = decode(&bytes).map_err(|problem| broken(&path, problem))?,
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(failed(&path, "cannot be read: check its rights", error)),
            }
        }
        Ok(EpochFile { directory, _lock: lock, records })
    }

    pub fn iter(&self) -> impl Iterator<Item = ([u8; 32], Epoch)> + '_ {
        self.records.iter().map(|(name, _, epoch)| (*name, *epoch))
    }

    #[cfg(test)]
    fn get(&self, fingerprint: &[u8; 32]) -> Option<Epoch> {
        self.records.iter().find(|(name, ..)| name == fingerprint).map(|(.., epoch)| *epoch)
    }

    /// Remembers a larger epoch of a namespace, at most `share` of one tenant; with a directory, it
    /// is on disk when this returns.
    pub fn put(
        &mut self,
        fingerprint: [u8; 32],
        tenant: u64,
        epoch: Epoch,
        share: usize,
    ) -> Result<(), StoreError> {
        let mut records = self.records.clone();
        records.retain(|(name, ..)| *name != fingerprint);
        if records.len() == self.records.len() {
            let own = records.iter().filter(|(_, owner, _)| *owner == tenant).count();
            if own >= share || records.len() >= RECORDS_MAX {
                return Err(self.full(own));
            }
        }
        records.push((fingerprint, tenant, epoch));
        if let Some(directory) = &self.directory {
            let written = replace(directory, &encode(&records));
            let advice = "cannot be written: check space and rights";
            written.map_err(|error| failed(&directory.join(FILE_NAME), advice, error))?;
        }
        self.records = records;
        Ok(())
    }

    fn full(&self, own: usize) -> StoreError {
        let path = self.directory.as_ref().map_or("in memory".into(), |at| at.join(FILE_NAME));
        let problem = format!(
            "no room for one more namespace's epoch, the tenant has {own}: stop the engines of \
             older epochs, then start the node over with an empty state_dir"
        );
        StoreError::Epochs { path, problem, source: None }
    }
}

/// Makes a directory, and each missing one above it, so that a crash does not undo it: the entry of
/// a new one is on disk only when its parent is.
fn create_durably(directory: &Path) -> io::Result<()> {
    let is_there = |path: &&Path| path.as_os_str().is_empty() || path.is_dir();
    let missing = directory.ancestors().take_while(|path| !is_there(path)).count();
    fs::create_dir_all(directory)?;
    for parent in directory.ancestors().skip(1).take(missing) {
        let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
        File::open(parent)?.sync_all()?;
    }
    Ok(())
}

/// Writes a new file beside the old one and puts it in its place: after a crash there is the old
/// one or the new one, whole.
fn replace(directory: &Path, bytes: &[u8]) -> io::Result<()> {
    let (path, fresh) = (directory.join(FILE_NAME), directory.join("epochs.new"));
    let mut file = File::create(&fresh)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&fresh, &path)?;
    File::open(directory)?.sync_all()
}

fn broken(path: &Path, problem: &str) -> StoreError {
    let problem = format!(
        "{problem}: restore it from a backup, or delete it and bump every namespace whose weights \
         changed"
    );
    StoreError::Epochs { path: path.into(), problem, source: None }
}

fn failed(path: &Path, problem: &str, error: io::Error) -> StoreError {
    StoreError::Epochs { path: path.into(), problem: problem.into(), source: Some(error) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn name(number: u32) -> [u8; 32] {
        let mut name = [0; 32];
        name[..4].copy_from_slice(&number.to_le_bytes());
        name
    }

    /// A directory of this test's own, removed when it ends.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new(test: &str) -> Scratch {
            let name = format!("keepwarm-{test}-{}", std::process::id());
            Scratch(std::env::temp_dir().join(name))
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn what_was_put_is_there_after_a_restart() {
        let scratch = Scratch::new("epochs-restart");
        let mut file = EpochFile::open(Some(scratch.0.clone())).unwrap();
        file.put(name(1), 0, Epoch(4), 9).unwrap();
        file.put(name(2), 0, Epoch(1), 9).unwrap();
        file.put(name(1), 0, Epoch(9), 9).unwrap();
        drop(file);
        let again = EpochFile::open(Some(scratch.0.clone())).unwrap();
        assert_eq!(again.get(&name(1)), Some(Epoch(9)));
        assert_eq!(again.get(&name(2)), Some(Epoch(1)));
        assert_eq!(again.get(&name(3)), None);
    }

    #[test]
    fn a_damaged_file_is_refused_by_name() {
        let scratch = Scratch::new("epochs-damage");
        let mut file = EpochFile::open(Some(scratch.0.clone())).unwrap();
        file.put(name(1), 0, Epoch(4), 9).unwrap();
        let path = scratch.0.join(FILE_NAME);
        let mut bytes = fs::read(&path).unwrap();
        bytes[20] ^= 1;
        fs::write(&path, bytes).unwrap();
        drop(file);
        let text = EpochFile::open(Some(scratch.0.clone())).unwrap_err().to_string();
        assert!(text.contains("epochs") && text.contains("checksum"), "{text}");
    }

    #[test]
    fn a_directory_serves_one_store_at_a_time() {
        let scratch = Scratch::new("epochs-two");
        let nested = scratch.0.join("of/its/own");
        let mut file = EpochFile::open(Some(nested.clone())).unwrap();
        let text = EpochFile::open(Some(nested.clone())).unwrap_err().to_string();
        let holder = format!("in use by pid {}: stop that node", std::process::id());
        assert!(text.contains(&holder), "{text}");
        file.put(name(1), 0, Epoch(4), 9).unwrap();
        // A child has the descriptor as well, and may outlive the store.
        let _child = file._lock.as_ref().unwrap().file.try_clone().unwrap();
        drop(file);
        let again = EpochFile::open(Some(nested)).unwrap();
        assert_eq!(again.get(&name(1)), Some(Epoch(4)));
    }

    #[test]
    fn a_tenant_fills_its_share_and_no_epoch_is_forgotten() {
        let mut file = EpochFile::open(None).unwrap();
        file.put(name(1000), mark_of("a"), Epoch(5), 10).unwrap();
        for number in 0..10 {
            file.put(name(number), mark_of("b"), Epoch(1), 10).unwrap();
        }
        let text = file.put(name(10), mark_of("b"), Epoch(1), 10).unwrap_err().to_string();
        assert!(text.contains("the tenant has 10"), "{text}");
        file.put(name(0), mark_of("b"), Epoch(2), 10).unwrap();
        file.put(name(1001), mark_of("a"), Epoch(1), 10).unwrap();
        assert_eq!(file.get(&name(1000)), Some(Epoch(5)));
        assert_eq!(file.get(&name(0)), Some(Epoch(2)));
        assert_eq!(file.get(&name(10)), None);
    }

    #[test]
    fn an_unwritable_directory_keeps_the_old_epoch() {
        let scratch = Scratch::new("epochs-unwritable");
        let mut file = EpochFile::open(Some(scratch.0.clone())).unwrap();
        file.put(name(1), 0, Epoch(4), 9).unwrap();
        fs::remove_dir_all(&scratch.0).unwrap();
        assert!(file.put(name(1), 0, Epoch(5), 9).is_err());
        assert_eq!(file.get(&name(1)), Some(Epoch(4)));
    }

    proptest! {
        #[test]
        fn any_bytes_are_refused_or_come_back(
            bytes in proptest::collection::vec(any::<u8>(), 0..200),
        ) {
            if let Ok(records) = decode(&bytes) {
                prop_assert_eq!(encode(&records), bytes);
            }
        }

        #[test]
        fn any_single_flip_is_refused(count in 0u32..5, at in 0usize..200, bit in 0u8..8) {
            let records: Vec<_> = (0..count).map(|i| (name(i), mark_of("a"), Epoch(i))).collect();
            let mut bytes = encode(&records);
            prop_assert_eq!(decode(&bytes), Ok(records));
            let at = at % bytes.len();
            bytes[at] ^= 1 << bit;
            prop_assert!(decode(&bytes).is_err());
        }
    }
}
