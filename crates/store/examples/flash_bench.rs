//! Flash against the device itself: gets and puts of the flash tier, and a bare io_uring loop over
//! a file beside it at the same size and depth, in pairs, one after the other.
//!
//! `cargo run --release -p keepwarm-store --example flash_bench [file [KiB [depth [pairs]]]]`
//! The files are made (1.4 GiB) and removed. Prints each ratio's median, minimum and maximum;
//! floors: get 0.90, put 0.85.

use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use io_uring::{IoUring, opcode, types::Fixed};
use keepwarm_store::checksum::xxh3_64;
use keepwarm_store::flash::{FlashPath, FlashSettings, FlashTier};
use keepwarm_store::tiers::{
    AlignedBuffer, Hold, PartPlace, Spot, Stream, StreamId, Tier, TierBlock, TierNamespace,
    TierPart, TierRead,
};
use keepwarm_store::types::{BlockKey, Epoch};

const FILE_BYTES: u64 = 1 << 30;
/// Bytes of one run of either side.
const RUN_BYTES: u64 = 384 << 20;

struct Bench {
    tier: FlashTier,
    raw: File,
    block: usize,
    depth: usize,
    count: usize,
    stream: Stream,
    namespace: TierNamespace,
    buffers: Vec<Arc<AlignedBuffer>>,
    spots: Vec<Spot>,
    checksum: u64,
}

fn main() {
    let mut args = std::env::args().skip(1);
    let path = args.next().unwrap_or_else(|| "flash_bench.tmp".into());
    let mut number = |default| args.next().and_then(|text| text.parse().ok()).unwrap_or(default);
    let (block, depth, pairs) = (number(2048) << 10, number(8), number(7));
    let mut bench = Bench::new(Path::new(&path), block, depth);
    println!(
        "{} blocks of {} KiB a run, depth {depth}, {pairs} pairs, {}",
        bench.count,
        block >> 10,
        bench.tier.status().devices[0].engine,
    );
    // Once over everything: first writes to fresh space are another matter.
    for _ in 0..3 {
        bench.put();
    }
    bench.raw_run(true);
    let (mut puts, mut gets) = (Vec::new(), Vec::new());
    for pair in 0..pairs {
        // Who comes first alternates: the disk is not the same after either.
        if pair % 2 == 0 {
            puts.push((bench.put(), bench.raw_run(true)));
            gets.push((bench.get(), bench.raw_run(false)));
        } else {
            let raw = bench.raw_run(true);
            puts.push((bench.put(), raw));
            let raw = bench.raw_run(false);
            gets.push((bench.get(), raw));
        }
    }
    for (what, pairs) in [("get", gets), ("put", puts)] {
        let mut ratios: Vec<f64> = pairs.iter().map(|(ours, raw)| raw / ours).collect();
        ratios.sort_by(f64::total_cmp);
        let rate = |seconds: f64| (bench.count * block) as f64 / seconds / 1e6;
        let mut raw: Vec<f64> = pairs.iter().map(|(_, raw)| rate(*raw)).collect();
        raw.sort_by(f64::total_cmp);
        println!(
            "flash {what} over raw: median {:.3}  min {:.3}  max {:.3}   (raw {:.0} MB/s)",
            ratios[ratios.len() / 2],
            ratios[0],
            ratios[ratios.len() - 1],
            raw[raw.len() / 2],
        );
    }
    drop(bench);
    let _ = std::fs::remove_file(&path);
    let _ = std::fs::remove_file(format!("{path}.raw"));
}

impl Bench {
    fn new(path: &Path, block: usize, depth: usize) -> Bench {
        let settings = FlashSettings { format: true, ..FlashSettings::default() };
        let paths = [FlashPath { path: path.into(), bytes: Some(FILE_BYTES) }];
        let tier = FlashTier::open(&paths, &settings).expect("a flash file");
        let direct = rustix::fs::OFlags::DIRECT.bits() as i32;
        let raw_path = format!("{}.raw", path.display());
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(true).custom_flags(direct);
        let raw = options.open(raw_path).expect("a file for the bare loop");
        rustix::fs::fallocate(&raw, rustix::fs::FallocateFlags::empty(), 0, RUN_BYTES)
            .expect("space");
        let bytes: Vec<u8> = (0..block).map(|at| (at * 31 % 251) as u8).collect();
        let buffers = (0..depth).map(|_| Arc::new(AlignedBuffer::of(&bytes)));
        Bench {
            tier,
            raw,
            block,
            depth,
            count: RUN_BYTES as usize / block / 2 * 2,
            stream: Stream { id: StreamId(1), tenant: "bench".into() },
            namespace: TierNamespace { fingerprint: [1; 32], encoding: vec![1; 400].into() },
            buffers: buffers.collect(),
            spots: Vec::new(),
            checksum: xxh3_64(&bytes),
        }
    }

    /// Appends a run's blocks from two threads, half of `depth` a batch, and flushes; reclaims what
    /// is needed before.
    fn put(&mut self) -> f64 {
        while self.tier.status().segments_free() * self.tier.status().segment_bytes
            < RUN_BYTES * 5 / 4 + (64 << 20)
        {
            let oldest = self.tier.segments(self.stream.id)[0].segment;
            self.tier.reclaim(oldest).expect("reclaimed");
        }
        let begun = Instant::now();
        let half = |first| self.put_some(first, self.count / 2);
        let spots = std::thread::scope(|scope| {
            let other = scope.spawn(|| half(self.count / 2));
            [half(0), other.join().expect("the other half")].concat()
        });
        self.tier.flush().expect("flushed");
        let took = begun.elapsed().as_secs_f64();
        self.spots = spots;
        took
    }

    fn put_some(&self, first: usize, count: usize) -> Vec<Spot> {
        let mut all = Vec::with_capacity(count);
        while all.len() < count {
            let batch = (self.depth / 2).max(1).min(count - all.len());
            let at = first + all.len();
            let blocks: Vec<TierBlock<'_>> =
                (at..at + batch).map(|number| self.tier_block(number)).collect();
            let mut hold = Some(Box::new(self.buffers.clone()) as Hold);
            let spots = self.tier.append(&self.stream, self.tier.sequence(), &blocks, &mut hold);
            all.extend(spots.expect("appended"));
            self.tier.prepare();
        }
        all
    }

    fn tier_block(&self, at: usize) -> TierBlock<'_> {
        let mut key = [0; 16];
        key[..8].copy_from_slice(&(at as u64).to_le_bytes());
        // SAFETY: the append's hold has all buffers.
        let piece = unsafe { self.buffers[at % self.depth].piece(self.block) };
        let (len, checksum, pieces) = (self.block as u32, self.checksum, vec![piece]);
        TierBlock {
            namespace: &self.namespace,
            epoch: Epoch(1),
            key: BlockKey(key),
            engine_hash: None,
            expires_unix_ms: 0,
            priority: 0,
            parts: vec![TierPart { len, checksum, pieces }],
        }
    }

    /// Reads a run's blocks back, each verified.
    fn get(&mut self) -> f64 {
        let part = PartPlace { first_page: 0, len: self.block as u32, checksum: self.checksum };
        let mut queue = self.tier.reads(self.depth).expect("a queue");
        let mut idle: Vec<_> = (0..self.depth).map(|_| AlignedBuffer::new(self.block)).collect();
        let begun = Instant::now();
        let (mut next, mut done) = (0, 0);
        while done < self.count {
            while next < self.count && queue.in_flight() < self.depth {
                let buffer = idle.pop().expect("one a read");
                let read = TierRead::into_buffer(next as u64, self.spots[next], part, buffer);
                assert!(queue.submit(read).is_ok());
                next += 1;
            }
            let read = queue.complete(Duration::from_secs(30)).expect("a read in time");
            assert_eq!(read.result, Ok(()));
            let buffer = read.hold.and_then(|hold| hold.downcast::<AlignedBuffer>().ok());
            idle.push(*buffer.expect("the buffer"));
            done += 1;
        }
        begun.elapsed().as_secs_f64()
    }

    /// The same bytes by nothing but io_uring.
    fn raw_run(&self, is_write: bool) -> f64 {
        let mut ring = IoUring::new(self.depth as u32).expect("io_uring");
        ring.submitter().register_files(&[self.raw.as_raw_fd()]).expect("registered");
        let buffers: Vec<_> = (0..self.depth).map(|_| AlignedBuffer::new(self.block)).collect();
        let begun = Instant::now();
        let (mut next, mut done) = (0, 0);
        let mut idle: Vec<usize> = (0..self.depth).collect();
        while done < self.count {
            while next < self.count
                && let Some(at) = idle.pop()
            {
                // SAFETY: a buffer is in one operation at a time, and all outlive the ring's last.
                let memory = unsafe { buffers[at].piece(self.block) }.at();
                let (offset, len) = ((next * self.block) as u64, self.block as u32);
                let entry = if is_write {
                    opcode::Write::new(Fixed(0), memory, len).offset(offset).build()
                } else {
                    opcode::Read::new(Fixed(0), memory, len).offset(offset).build()
                };
                // SAFETY: as above.
                unsafe { ring.submission().push(&entry.user_data(at as u64)) }.expect("room");
                next += 1;
            }
            ring.submit_and_wait(1).expect("submitted");
            for entry in ring.completion() {
                assert_eq!(entry.result(), self.block as i32, "a whole transfer");
                idle.push(entry.user_data() as usize);
                done += 1;
            }
        }
        if is_write {
            rustix::fs::fdatasync(&self.raw).expect("flushed");
        }
        begun.elapsed().as_secs_f64()
    }
}
