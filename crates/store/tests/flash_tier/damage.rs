//! Flash whose bytes change by themselves, and flash that is somebody else's.

use std::sync::Arc;

use keepwarm_store::flash::device::{Device, MemDevice};
use keepwarm_store::flash::{FlashSettings, FlashTier, OpenError};
use keepwarm_store::tiers::conformance::{Blocks, Seen, namespace, read_one, stream};
use keepwarm_store::tiers::{Removal, Tier};

use super::{Random, devices, env, open, settings};

#[test]
fn bit_flips_anywhere_lose_blocks_and_never_change_one() {
    let seeds = if env("KEEPWARM_TEST_SCALE", 1) >= 10 { 400 } else { 40 };
    let first = env("KEEPWARM_TEST_SEED", 1);
    let (mut lost, mut kept) = (0, 0);
    for seed in first..first + seeds {
        println!("seed {seed}");
        let memory = devices(1, 6);
        let tier = open(&memory);
        let blocks = Blocks::new(&namespace(1), 0, 40, 9000);
        for group in 0..8 {
            let part = Blocks::new(&namespace(1), group * 5, 5, 9000);
            part.append(&tier, &stream(1 + group as u32 % 2)).unwrap();
        }
        let (fingerprint, keys) = (namespace(1).fingerprint, vec![blocks.0[3].header.key]);
        tier.remove(&[Removal::Keys { fingerprint, keys }]).unwrap();
        drop(tier);
        let mut random = Random(seed);
        memory[0].tamper(&mut |bytes| {
            // The superblock has its own test; a flip in the table of removals loses it.
            for _ in 0..1 + random.below(60) {
                let at = (1 << 20) + random.below(bytes.len() as u64 - (1 << 20)) as usize;
                let at = if random.below(2) == 0 { at / 4096 * 4096 + at % 200 } else { at };
                bytes[at] ^= 1 << random.below(8);
            }
        });
        let tier = open(&memory);
        let seen = Seen::of(&tier);
        for (name, (spot, header)) in &seen.blocks {
            let own = blocks.0.iter().find(|block| block.header.key == name.1);
            assert_eq!(&own.expect("a block that was put").header, header);
            // `read_one` verifies; what passes has the checksum computed before it was written.
            match read_one(&tier, *spot, header.parts[0]) {
                Ok(()) => kept += 1,
                Err(_) => lost += 1,
            }
        }
        lost += 40 - seen.blocks.len();
    }
    println!("damage: {kept} kept, {lost} lost");
    assert!(kept > 100 && lost > 100);
}

fn again(device: &MemDevice) -> Vec<Arc<dyn Device>> {
    vec![Arc::new(device.again())]
}

#[test]
fn one_damaged_superblock_is_survived_and_two_are_refused() {
    let memory = devices(1, 6);
    drop(Blocks::new(&namespace(1), 0, 4, 9000).append(&open(&memory), &stream(1)).unwrap());
    for at in [17, (512 << 10) + 17] {
        memory[0].tamper(&mut |bytes| bytes[at] ^= 1);
        assert_eq!(Seen::of(&open(&memory)).blocks.len(), 4);
    }
    memory[0].tamper(&mut |bytes| {
        bytes[50] ^= 1;
        bytes[(512 << 10) + 50] ^= 1;
    });
    let error = FlashTier::over(again(&memory[0]), &settings()).unwrap_err();
    assert_eq!(error, OpenError::Damaged { device: "flash-0".into() });
    let format = FlashSettings { format: true, ..settings() };
    drop(FlashTier::over(again(&memory[0]), &format).unwrap());
    assert_eq!(Seen::of(&open(&memory)).blocks.len(), 0, "erased");
}

#[test]
fn what_is_not_ours_is_refused_unless_format() {
    let signs: [(usize, &[u8], &str); 4] = [
        (0x438, &[0x53, 0xEF], "an ext file system"),
        (0, b"XFSB", "an XFS file system"),
        (512, b"EFI PART", "a partition table"),
        (700_000, b"x", "data that is not ours"),
    ];
    for (at, sign, what) in signs {
        let memory = devices(1, 6);
        memory[0].tamper(&mut |bytes| bytes[at..at + sign.len()].copy_from_slice(sign));
        let error = FlashTier::over(again(&memory[0]), &settings()).unwrap_err();
        assert_eq!(error, OpenError::Foreign { device: "flash-0".into(), what });
        assert!(error.to_string().contains("erase this one with format"), "{error}");
        let mut is_there = false;
        memory[0].tamper(&mut |bytes| is_there = bytes[at..at + sign.len()] == *sign);
        assert!(is_there, "refused, and untouched");
        let format = FlashSettings { format: true, ..settings() };
        drop(FlashTier::over(again(&memory[0]), &format).unwrap());
        drop(open(&memory));
    }
}

#[test]
fn another_version_is_refused_by_name() {
    let memory = devices(1, 6);
    drop(open(&memory));
    memory[0].tamper(&mut |bytes| {
        for at in [0, 512 << 10] {
            bytes[at + 8] = 2;
            keepwarm_store::flash::format::mend_superblock(&mut bytes[at..at + 4096]);
        }
    });
    let error = FlashTier::over(again(&memory[0]), &settings()).unwrap_err();
    assert!(error.to_string().contains("format version 2, this node reads 1"), "{error}");
}

#[test]
fn a_second_node_is_refused_by_name() {
    let memory = devices(1, 6);
    let tier = open(&memory);
    let error = FlashTier::over(again(&memory[0]), &settings()).unwrap_err();
    assert!(matches!(&error, OpenError::InUse { device, .. } if device == "flash-0"), "{error}");
    drop(tier);
    drop(open(&memory));
}

#[test]
fn devices_of_two_sets_do_not_mix() {
    let (ours, theirs) = (devices(1, 6), devices(1, 6));
    drop((open(&ours), open(&theirs)));
    let mixed = vec![again(&ours[0]).remove(0), again(&theirs[0]).remove(0)];
    let error = FlashTier::over(mixed, &settings()).unwrap_err();
    assert!(error.to_string().contains("another node's set"), "{error}");
    let mut image = Vec::new();
    ours[0].tamper(&mut |bytes| image = bytes.to_vec());
    theirs[0].tamper(&mut |bytes| bytes.copy_from_slice(&image));
    let mixed = vec![again(&ours[0]).remove(0), again(&theirs[0]).remove(0)];
    let error = FlashTier::over(mixed, &settings()).unwrap_err();
    assert!(error.to_string().contains("is a copy of"), "{error}");
}
