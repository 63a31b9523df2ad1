//! A client whose node says anything at all: every call returns, in time, and bytes are called
//! right only if they match their checksum.
#![no_main]

use std::io::{Read, Write};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

use keepwarm_fuzz::{namespace, stream};
use keepwarm_store::types::{BlockKey, Epoch, GetOutcome};
use keepwarm_wire::{ConnectConfig, GetItem, Memory, PutItem};
use libfuzzer_sys::fuzz_target;

const DEADLINE: Duration = Duration::from_millis(20);

/// What the node says on every connection.
static SAYS: Mutex<Vec<u8>> = Mutex::new(Vec::new());

fn path() -> &'static PathBuf {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| {
        let path = std::env::temp_dir().join(format!("kw-fuzz-{}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let listener = UnixListener::bind(&path).expect("a free path");
        std::thread::spawn(move || {
            for mut peer in listener.incoming().flatten() {
                let says = SAYS.lock().expect("nobody panics with it").clone();
                let _ = peer.write_all(&says);
                let _ = peer.shutdown(std::net::Shutdown::Write);
                let _ = peer.set_read_timeout(Some(DEADLINE));
                let _ = peer.read(&mut [0; 4096]);
            }
        });
        path
    })
}

fuzz_target!(|data: &[u8]| {
    let path = path();
    // The first byte chooses the call.
    let Some((call, data)) = data.split_first() else { return };
    *SAYS.lock().expect("nobody panics with it") = stream(data);
    let mut config = ConnectConfig::new(path);
    config.deadline = DEADLINE;
    let Ok(memory) = Memory::connect(config) else { return };
    let Ok(space) = memory.attach_within(namespace(), [0; 8], Epoch(0), DEADLINE) else { return };
    let key = BlockKey([1; 16]);
    match call % 6 {
        0 => {
            let found = space.lookup(&[key, key], 0, Some(DEADLINE), DEADLINE).expect("no misuse");
            assert_eq!(found.hits.len(), 2);
        }
        1 | 2 => {
            let mut buffers = [[0u8; 5]; 2];
            let items = buffers.each_mut().map(|buffer| GetItem {
                key,
                part: 0,
                ptr: buffer[1..].as_mut_ptr(),
                len: 3,
            });
            // SAFETY: `buffers` outlive the call and are used by nobody else.
            let outcomes = unsafe { space.get_into(&items, DEADLINE) }.expect("no misuse");
            assert!(buffers.iter().all(|buffer| (buffer[0], buffer[4]) == (0, 0)));
            assert!(outcomes.iter().all(|o| !matches!(o, GetOutcome::Throttled) || data.len() > 9));
        }
        3 => {
            let bytes = *b"abc";
            let item = PutItem { key, part: 0, ptr: bytes.as_ptr(), len: 3, engine_hash: None };
            // SAFETY: `bytes` outlives the call.
            let outcomes = unsafe { space.put_from(&[item, item], DEADLINE) };
            assert_eq!(outcomes.expect("no misuse").len(), 2);
        }
        4 => drop(memory.stat(DEADLINE)),
        _ => {
            if let Ok(mut stream) = space.subscribe(None, DEADLINE) {
                while stream.next_batch(DEADLINE).is_ok_and(|batch| is_something(&batch)) {}
            }
        }
    }
});

fn is_something(batch: &keepwarm_store::EventBatch) -> bool {
    !matches!(batch, keepwarm_store::EventBatch::Events { events, .. } if events.is_empty())
}
