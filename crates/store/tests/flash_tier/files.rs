//! Real files and loop devices, by io_uring and by threads, past the page cache where that can be.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use keepwarm_store::flash::device::Engine;
use keepwarm_store::flash::{FlashPath, FlashSettings, FlashTier, OpenError};
use keepwarm_store::tiers::Tier;
use keepwarm_store::tiers::conformance::{self, Blocks, Medium, Seen, namespace, stream};

use super::{SEGMENT, settings};

/// Bytes of a device here.
pub const BYTES: u64 = (1 << 20) + 24 * SEGMENT;

/// A folder of this test's own, removed when it ends.
pub struct Folder(PathBuf);

impl Folder {
    /// A new one.
    pub fn new(test: &str) -> Folder {
        Folder::under(Path::new(env!("CARGO_TARGET_TMPDIR")), test)
    }

    fn under(parent: &Path, test: &str) -> Folder {
        let path = parent.join(format!("keepwarm-{test}-{}", std::process::id()));
        fs::create_dir_all(&path).expect("a folder");
        Folder(path)
    }

    /// A file in it.
    pub fn file(&self, name: &str) -> FlashPath {
        FlashPath { path: self.0.join(name), bytes: Some(BYTES) }
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

struct Files {
    _folder: Folder,
    paths: Vec<FlashPath>,
    settings: FlashSettings,
}

impl Medium for Files {
    fn open(&mut self) -> Box<dyn Tier> {
        Box::new(FlashTier::open(&self.paths, &self.settings).expect("opened"))
    }
}

fn conforms(test: &str, parent: Option<&Path>, engine: Engine, devices: usize) -> String {
    let mut number = 0;
    let mut engines = String::new();
    let settings =
        FlashSettings { engine, segment_bytes: Some(512 << 10), ..FlashSettings::default() };
    conformance::run(&mut || {
        number += 1;
        let name = format!("{test}-{number}");
        let folder = parent.map_or_else(|| Folder::new(&name), |at| Folder::under(at, &name));
        let paths: Vec<_> = (0..devices).map(|one| folder.file(&format!("flash-{one}"))).collect();
        let mut files = Files { _folder: folder, paths, settings: settings.clone() };
        engines = files.open().status().devices[0].engine.clone();
        Box::new(files)
    });
    println!("{test}: {engines}");
    engines
}

#[test]
fn files_conform_by_the_probed_engine() {
    conforms("probed", None, Engine::Probe, 1);
}

#[test]
fn two_files_conform_by_the_probed_engine() {
    conforms("probed-two", None, Engine::Probe, 2);
}

#[test]
fn files_conform_by_threads() {
    let engine = conforms("threads", None, Engine::Threads, 2);
    assert!(engine.starts_with("16 threads (as asked)"), "{engine}");
}

/// A file system in memory that refuses direct I/O; needs root.
struct Ramfs(Folder);

impl Ramfs {
    fn mount() -> Option<Ramfs> {
        let folder = Folder::new("ramfs");
        let mut mount = Command::new("mount");
        let mounted = mount.args(["-t", "ramfs", "ramfs"]).arg(&folder.0).output().ok()?;
        mounted.status.success().then_some(Ramfs(folder))
    }
}

impl Drop for Ramfs {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0.0).status();
    }
}

#[test]
fn a_file_system_without_direct_io_is_used_through_the_page_cache() {
    let Some(ramfs) = Ramfs::mount() else {
        println!("skipped: nothing can be mounted here");
        return;
    };
    let engine = conforms("cached", Some(&ramfs.0.0), Engine::Probe, 1);
    assert!(engine.ends_with("through the page cache"), "{engine}");
}

#[test]
fn two_nodes_on_one_file_and_the_second_is_refused() {
    let folder = Folder::new("lock");
    let paths = [folder.file("flash")];
    let tier = FlashTier::open(&paths, &settings()).unwrap();
    let error = FlashTier::open(&paths, &settings()).unwrap_err();
    assert!(matches!(&error, OpenError::InUse { .. }), "{error}");
    assert!(error.to_string().contains("flash is in use by another node"), "{error}");
    let format = FlashSettings { format: true, ..settings() };
    assert!(matches!(FlashTier::open(&paths, &format), Err(OpenError::InUse { .. })));
    drop(tier);
    drop(FlashTier::open(&paths, &settings()).unwrap());
}

#[test]
fn a_file_of_somebody_else_is_refused_and_left_alone() {
    let folder = Folder::new("foreign");
    let path = folder.file("letters");
    let text = "not ours ".repeat(1 << 20);
    fs::write(&path.path, &text).unwrap();
    let error = FlashTier::open(std::slice::from_ref(&path), &settings()).unwrap_err();
    assert!(matches!(error, OpenError::Foreign { .. }), "{error}");
    assert_eq!(fs::read_to_string(&path.path).unwrap(), text);
    let format = FlashSettings { format: true, ..settings() };
    drop(FlashTier::open(std::slice::from_ref(&path), &format).unwrap());
    assert_eq!(fs::metadata(&path.path).unwrap().len(), BYTES);
    drop(FlashTier::open(&[path], &settings()).unwrap());
}

#[test]
fn sizes_that_do_not_fit_are_refused_with_what_to_do() {
    let folder = Folder::new("sizes");
    let sizeless = FlashPath { bytes: None, ..folder.file("none") };
    let error = FlashTier::open(&[sizeless], &settings()).unwrap_err();
    assert!(error.to_string().contains("give its size"), "{error}");
    let small = FlashPath { bytes: Some(1 << 20), ..folder.file("small") };
    let error = FlashTier::open(&[small], &settings()).unwrap_err();
    assert!(error.to_string().contains("or more"), "{error}");
    let huge = FlashPath { bytes: Some(1 << 60), ..folder.file("huge") };
    let error = FlashTier::open(&[huge], &settings()).unwrap_err();
    assert!(matches!(error, OpenError::Io { .. }), "{error}");
    let shrunk = folder.file("shrunk");
    drop(FlashTier::open(std::slice::from_ref(&shrunk), &settings()).unwrap());
    File::options().write(true).open(&shrunk.path).unwrap().set_len(BYTES / 2).unwrap();
    let error = FlashTier::open(&[shrunk], &settings()).unwrap_err();
    assert!(error.to_string().contains("restore it, or format it"), "{error}");
}

#[test]
fn a_device_that_cannot_be_opened_costs_its_share() {
    let folder = Folder::new("share");
    let lost = FlashPath { path: folder.0.join("no/such/folder/flash"), bytes: Some(BYTES) };
    let error = FlashTier::open(std::slice::from_ref(&lost), &settings()).unwrap_err();
    assert!(matches!(error, OpenError::Io { .. }), "{error}");
    let tier = FlashTier::open(&[lost, folder.file("flash")], &settings()).unwrap();
    let spots = Blocks::new(&namespace(1), 0, 3, 9000).append(&tier, &stream(1)).unwrap();
    assert!(spots.iter().all(|spot| spot.device == 1));
    let status = tier.status();
    assert!(format!("{:?}", status.devices[0].state).contains("no/such/folder"), "{status:?}");
}

/// A loop device over a file; needs root and free ones.
pub struct Loop(pub String);

impl Loop {
    /// The next free one.
    pub fn over(file: &Path) -> Option<Loop> {
        let found = Command::new("losetup").args(["--find", "--show"]).arg(file).output().ok()?;
        let name = String::from_utf8(found.stdout).ok()?.trim().to_owned();
        found.status.success().then_some(Loop(name))
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["--detach", &self.0]).status();
    }
}

#[test]
fn a_block_device_serves_one_node_and_keeps_its_blocks() {
    let folder = Folder::new("loop");
    let image = folder.0.join("image");
    File::create(&image).unwrap().set_len(BYTES).unwrap();
    let Some(device) = Loop::over(&image) else {
        println!("skipped: no loop device can be had here");
        return;
    };
    let paths = [FlashPath { path: device.0.clone().into(), bytes: None }];
    let tier = FlashTier::open(&paths, &settings()).unwrap();
    println!("{}: {}", device.0, tier.status().devices[0].engine);
    let error = FlashTier::open(&paths, &settings()).unwrap_err();
    assert!(matches!(&error, OpenError::InUse { .. }), "{error}");
    Blocks::new(&namespace(1), 0, 20, 50_000).append(&tier, &stream(1)).unwrap();
    drop(tier);
    let tier = FlashTier::open(&paths, &settings()).unwrap();
    let seen = Seen::of(&tier);
    assert_eq!(seen.blocks.len(), 20);
    seen.read_all(&tier);
    drop(tier);
    let large = [FlashPath { bytes: Some(BYTES * 2), ..paths[0].clone() }];
    let error = FlashTier::open(&large, &settings()).unwrap_err();
    assert!(error.to_string().contains("give at most that"), "{error}");
}

#[test]
fn a_slip_in_a_name_leaves_no_file_behind() {
    let folder = Folder::new("slip");
    for bytes in [None, Some(0)] {
        let slip = FlashPath { bytes, ..folder.file("slip") };
        let error = FlashTier::open(std::slice::from_ref(&slip), &settings()).err().unwrap();
        assert!(error.to_string().contains("does not exist yet: give its size"), "{error}");
        assert!(!slip.path.exists());
    }
}
