//! The limits move what they say they move: a limit that did less would flatter whom it measures.

use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;

use keepwarm_bench::bytes::{Place, Pool};
use keepwarm_bench::copies::{Way, copy};
use keepwarm_bench::file::RawFile;
use keepwarm_bench::index::Table;
use keepwarm_bench::streams::{Client, serve};

const FILL: u8 = 0x5a; // what a pool holds at first

fn place(bytes: &mut [u8]) -> Place {
    Place { ptr: bytes.as_mut_ptr(), len: bytes.len() }
}

fn name(what: &str) -> PathBuf {
    std::env::temp_dir().join(format!("kw-limits-{what}-{}", std::process::id()))
}

#[test]
fn each_way_copies_all_and_nothing_beside_it() {
    for way in [Way::Memcpy, Way::Hashed, Way::Unhashed] {
        for len in [1usize, 63, 64, 65, 4096, 70_001, 1 << 20] {
            for shift in [0usize, 1, 17] {
                let mut from: Vec<u8> = (0..len + shift).map(|n| (n * 7 % 251) as u8).collect();
                let mut to = vec![0xa5u8; len + shift + 128];
                let (source, target) = (&mut from[shift..], 64 + shift);
                let places = [place(source)];
                // SAFETY: two vectors, each as long as its place.
                let seconds =
                    unsafe { copy(way, &[place(&mut to[target..target + len])], &places) };
                assert!(seconds >= 0.0);
                assert!(to[target..target + len] == from[shift..], "{way:?} {len} {shift}");
                let mut beside = to[..target].iter().chain(&to[target + len..]);
                assert!(beside.all(|byte| *byte == 0xa5), "{way:?} {len} {shift}");
            }
        }
    }
}

#[test]
fn streams_carry_every_block_both_ways() {
    const LEN: usize = (3 << 20) + 100; // more than one step, and no multiple of one
    const BLOCKS: usize = 5; // not even over two streams
    let path = name("socket");
    let listener = UnixListener::bind(&path).expect("a socket");
    let listener = OwnedFd::from(listener);
    std::thread::spawn(move || serve(&listener, BLOCKS * LEN, Some(1 << 20), None));
    let connect = |_| OwnedFd::from(UnixStream::connect(&path).expect("the server listens"));
    let mut client = Client::new((0..2).map(connect).collect(), None).expect("no TLS");
    let mut buffers: Vec<Vec<u8>> = (0..BLOCKS).map(|_| vec![0; LEN]).collect();
    let places: Vec<Place> = buffers.iter_mut().map(|buffer| place(buffer)).collect();
    // SAFETY: the buffers live, and are used by nobody else, until the end of this test.
    unsafe {
        client.get(&places, 0).expect("the server answers");
        assert!(buffers.iter().flatten().all(|byte| *byte == FILL), "its pool's bytes");
        for (n, buffer) in buffers.iter_mut().enumerate() {
            buffer.fill(n as u8);
        }
        client.put(&places, 0).expect("the server answers");
        buffers.iter_mut().for_each(|buffer| buffer.fill(0xff));
        client.get(&places, 0).expect("the server answers");
    }
    for (n, buffer) in buffers.iter().enumerate() {
        assert!(buffer.iter().all(|byte| *byte == n as u8), "block {n} comes back");
    }
    let _ = std::fs::remove_file(path);
}

#[test]
fn a_tcp_stream_ends_on_any_byte() {
    // Lengths around what a receive waits for: a rest that is smaller must not be waited for.
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
    let at = listener.local_addr().expect("bound");
    let listener = OwnedFd::from(listener);
    std::thread::spawn(move || serve(&listener, 8 << 20, None, None));
    let stream = TcpStream::connect(at).expect("the server listens");
    let mut client = Client::new(vec![OwnedFd::from(stream)], None).expect("no TLS");
    for len in [1usize, 4096, (256 << 10) - 1, 256 << 10, (256 << 10) + 1, (2 << 20) + 77] {
        let mut bytes = vec![7u8; len];
        let place = [place(&mut bytes)];
        for first in 0..20 {
            // SAFETY: the buffer lives, and is used by nobody else, until after both calls.
            unsafe {
                client.put(&place, first).expect("the server answers");
                client.get(&place, first).expect("the server answers");
            }
        }
        assert!(bytes.iter().all(|byte| *byte == 7), "{len}");
    }
}

#[test]
fn a_file_is_written_and_read_whole() {
    const LEN: u32 = 256 << 10;
    // Beside the build's output: a RAM disk for temporary files may not know O_DIRECT.
    let path = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("limits-file");
    let _ = std::fs::remove_file(&path);
    let mut file = RawFile::new(&path, 16 * u64::from(LEN), 16 << 18, 4).expect("a raw file");
    file.write(8, 8, LEN, true).expect("written");
    let bytes = std::fs::read(&path).expect("there");
    assert_eq!(bytes.len(), 16 * LEN as usize);
    assert!(bytes[..8 * LEN as usize].iter().all(|byte| *byte == 0), "before: untouched");
    assert!(bytes[8 * LEN as usize..].iter().all(|byte| *byte == FILL), "the pool's bytes");
    assert!(file.read(0, 16, LEN).expect("read") > 0.0);
    let shorter = std::fs::OpenOptions::new().write(true).open(&path).expect("there");
    shorter.set_len(8 * u64::from(LEN)).expect("cut");
    assert!(file.read(0, 16, LEN).is_err(), "half of it is gone");
    let _ = std::fs::remove_file(path);
}

#[test]
fn a_pool_goes_round() {
    let pool = Pool::new(3 << 20).expect("room");
    let (first, last) = (pool.block(0, 1 << 20), pool.block(2, 1 << 20));
    assert_eq!(pool.block(3, 1 << 20).ptr, first.ptr);
    assert_eq!(last.ptr as usize - first.ptr as usize, 2 << 20);
}

#[test]
fn every_key_of_a_table_is_found_again() {
    for is_shuffled in [false, true] {
        let mut table = Table::new(4096, is_shuffled, 42);
        assert!((0..4).all(|run| table.run(run, 2048) > 0.0));
        assert!(table.bytes_an_entry() < 100.0);
    }
}
