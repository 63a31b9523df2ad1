//! A process that is killed in the middle of its work, on a file and on a loop device: what it said
//! it had appended is there and verifies, and what it said it had removed is not.

use std::collections::HashSet;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use keepwarm_store::flash::{FlashPath, FlashSettings, FlashTier};
use keepwarm_store::tiers::conformance::{Blocks, MadeBlock, Seen, namespace, stream};
use keepwarm_store::tiers::{Removal, Tier};

use super::files::{BYTES, Folder, Loop};
use super::{Random, env, settings};

const PATH: &str = "KEEPWARM_TEST_FLASH_PATH";
const FIRST: &str = "KEEPWARM_TEST_FLASH_FIRST";

fn paths(path: &str) -> [FlashPath; 1] {
    [FlashPath { path: path.into(), bytes: None }]
}

/// The process that is killed; as a test by itself it does nothing.
#[test]
fn child() {
    let Ok(path) = std::env::var(PATH) else { return };
    let tier = FlashTier::open(&paths(&path), &settings()).expect("opened");
    Seen::of(&tier);
    for number in env(FIRST, 0).. {
        Blocks::new(&namespace(1), number, 1, 5000).append(&tier, &stream(1)).expect("appended");
        println!("put {number}");
        if number % 5 == 4 {
            let fingerprint = namespace(1).fingerprint;
            let keys = vec![MadeBlock::new(&namespace(1), number - 2, &[1]).header.key];
            println!("going {}", number - 2);
            tier.remove(&[Removal::Keys { fingerprint, keys }]).expect("removed");
            println!("gone {}", number - 2);
        }
    }
}

/// Runs the child and kills it after so many words; what it said.
fn run_and_kill(path: &str, first: u64, words: u64) -> Vec<(String, u64)> {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.args(["--exact", "kill::child", "--nocapture"]).env(PATH, path);
    command.env(FIRST, first.to_string()).stdout(Stdio::piped());
    let mut child = command.spawn().expect("a child");
    let lines = BufReader::new(child.stdout.take().expect("its words")).lines();
    let mut said = Vec::new();
    for line in lines.map_while(Result::ok) {
        // A killed child's last words may still be on their way: all of them count.
        if let Some((word, number)) = line.split_once(' ')
            && let Ok(number) = number.parse()
        {
            said.push((word.to_owned(), number));
        }
        if said.len() as u64 == words {
            child.kill().expect("killed");
        }
    }
    child.wait().expect("gone");
    assert!(said.len() as u64 >= words, "it ended by itself: {said:?}");
    said
}

fn kill_twice(path: &str, random: &mut Random) {
    let (mut there, mut gone) = (HashSet::new(), HashSet::new());
    for first in [0, 1000] {
        for (word, number) in run_and_kill(path, first, 1 + random.below(60)) {
            match word.as_str() {
                "put" => drop(there.insert(number)),
                "going" => drop(there.remove(&number)),
                "gone" => drop(gone.insert(number)),
                _ => {}
            }
        }
        let tier = FlashTier::open(&paths(path), &settings()).expect("opened again");
        let seen = Seen::of(&tier);
        seen.read_all(&tier);
        for number in &there {
            assert!(seen.has(&MadeBlock::new(&namespace(1), *number, &[1])), "{number} is lost");
        }
        for number in &gone {
            assert!(!seen.has(&MadeBlock::new(&namespace(1), *number, &[1])), "{number} is back");
        }
    }
}

fn format(path: &Path) {
    let all = [FlashPath { path: path.into(), bytes: Some(BYTES) }];
    drop(FlashTier::open(&all, &FlashSettings { format: true, ..settings() }).expect("formatted"));
}

#[test]
fn what_was_said_to_be_stored_survives_a_kill() {
    let rounds = if env("KEEPWARM_TEST_SCALE", 1) >= 10 { 10 } else { 1 };
    let seed = env("KEEPWARM_TEST_SEED", 1);
    println!("seed {seed}");
    let mut random = Random(seed);
    let folder = Folder::new("kill");
    let (file, image) = (folder.file("flash").path, folder.file("image").path);
    for _ in 0..rounds {
        format(&file);
        kill_twice(&file.display().to_string(), &mut random);
    }
    std::fs::File::create(&image).expect("an image").set_len(BYTES).expect("its size");
    let Some(device) = Loop::over(&image) else {
        println!("skipped: no loop device can be had here");
        return;
    };
    for _ in 0..rounds {
        format(Path::new(&device.0));
        kill_twice(&device.0, &mut random);
    }
    println!("killed {} times on a file, as often on {}", 2 * rounds, device.0);
}
