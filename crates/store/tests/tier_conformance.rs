//! The conformance suite of tiers, over each tier there is.

use std::sync::Arc;

use keepwarm_store::flash::device::{Device, MemDevice};
use keepwarm_store::flash::{FlashSettings, FlashTier};
use keepwarm_store::tiers::conformance::{Medium, run};
use keepwarm_store::tiers::{MemMedium, MemTier, Tier};

struct Mem(MemMedium);

impl Medium for Mem {
    fn open(&mut self) -> Box<dyn Tier> {
        Box::new(MemTier::open(&self.0))
    }
}

#[test]
fn memory() {
    run(&mut || Box::new(Mem(MemMedium::new(12, 512 << 10))));
}

struct Flash(Vec<MemDevice>);

impl Flash {
    fn new(devices: usize) -> Flash {
        let name = |number| format!("flash-{number}");
        Flash((0..devices).map(|n| MemDevice::new(&name(n), (1 << 20) + (12 << 19))).collect())
    }
}

impl Medium for Flash {
    fn open(&mut self) -> Box<dyn Tier> {
        let devices = self.0.iter().map(|one| Arc::new(one.again()) as Arc<dyn Device>).collect();
        let settings = FlashSettings { segment_bytes: Some(512 << 10), ..FlashSettings::default() };
        Box::new(FlashTier::over(devices, &settings).expect("opened"))
    }
}

#[test]
fn flash_on_one_device() {
    run(&mut || Box::new(Flash::new(1)));
}

#[test]
fn flash_on_three_devices() {
    run(&mut || Box::new(Flash::new(3)));
}
