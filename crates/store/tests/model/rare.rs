//! Operations that are rare on a node, and change what is known of many blocks.

use keepwarm_store::types::{Epoch, Generation, MissReason, ShedReason};
use keepwarm_store::{BlockPut, Reported, Reserve};

use crate::common::{attach, spec};
use crate::dictionary::{Block, Held, Space};
use crate::world::{KEYS, OpenPin, SPACES, World, name_of};

impl World {
    pub(super) fn rare(&mut self) {
        match self.random.below(40) {
            0..4 => self.bump(),
            4..6 => self.drop_space(),
            6..10 => self.change_quota(),
            10..13 => self.replace_session(),
            13..20 => self.renew(),
            _ => self.quiet(),
        }
    }

    pub(super) fn report_good(&mut self) {
        let ((space, number), session) = (self.pick(), self.session());
        let (ns, epoch) = (self.spaces[space].ns, Epoch(self.spaces[space].epoch));
        let key = name_of(space, number);
        let Ok(pin) = self.sessions[session].read(ns, epoch, key, 0) else { return };
        let reported = self.sessions[session].report(ns, key, 0, pin.generation());
        assert_eq!(reported, Reported::Intact);
        let other = Generation(pin.generation().0 ^ 1);
        assert_eq!(self.sessions[session].report(ns, key, 0, other), Reported::Gone);
    }

    pub(super) fn report_bad(&mut self) {
        let ((space, number), session) = (self.pick(), self.session());
        let is_read = |pin: &OpenPin| pin.held.space == space && pin.held.number == number;
        if self.pins.iter().any(is_read) {
            return;
        }
        let (ns, epoch) = (self.spaces[space].ns, Epoch(self.spaces[space].epoch));
        let key = name_of(space, number);
        let Ok(pin) = self.sessions[session].read(ns, epoch, key, 0) else { return };
        let (at, _) = pin.pieces().next().expect("a piece");
        // SAFETY: the arena is mapped writable, this test has one thread, and no other pin is on
        // this block: nobody reads the byte meanwhile.
        unsafe { *at.cast_mut() ^= 0x40 };
        let generation = pin.generation();
        drop(pin);
        let reported = self.sessions[session].report(ns, key, 0, generation);
        assert_eq!(reported, Reported::Removed);
        let known = self.spaces[space].block(number);
        (known.block, known.reasons) = (Block::Gone, vec![MissReason::Corrupt]);
    }

    pub(super) fn drop_some(&mut self) {
        let ((space, first), session) = (self.pick(), self.session());
        let numbers: Vec<_> = (first..first + 3).map(|number| number % KEYS).collect();
        let keys: Vec<_> = numbers.iter().map(|number| name_of(space, *number)).collect();
        self.sessions[session].drop_keys(self.spaces[space].ns, &keys).expect("dropped");
        for number in numbers {
            let known = self.spaces[space].block(number);
            (known.block, known.reasons) = (Block::Gone, Vec::new());
        }
    }

    pub(super) fn drop_space(&mut self) {
        let (space, session) = (self.pick().0, self.session());
        let dropped =
            self.sessions[session].drop_namespace(self.spaces[space].ns).expect("dropped");
        let stored = |space: &Space| {
            let blocks = space.known.values();
            blocks.filter(|known| matches!(known.block, Block::Stored { .. })).count()
        };
        assert!(dropped <= stored(&self.spaces[space]) as u64);
        self.spaces[space].hide_all(None);
    }

    pub(super) fn bump(&mut self) {
        let (space, session) = (self.pick().0, self.session());
        let epoch = self.spaces[space].epoch + self.random.below(3) as u32;
        let ns = self.spaces[space].ns;
        if self.random.chance(2) {
            // Any call that carries a larger epoch brings it along.
            let found = self.sessions[session].lookup(ns, Epoch(epoch), &[], 0, None);
            assert_eq!(found.epoch, Epoch(epoch));
        } else {
            let bumped = self.sessions[session].bump_epoch(ns, Epoch(epoch));
            assert_eq!(bumped.expect("no file to fail"), Epoch(epoch));
        }
        if epoch > self.spaces[space].epoch {
            self.spaces[space].epoch = epoch;
            self.spaces[space].hide_all(Some(MissReason::Epoch));
        }
    }

    pub(super) fn old_epoch(&mut self) {
        let ((space, number), session) = (self.pick(), self.session());
        let Some(epoch) = self.spaces[space].epoch.checked_sub(1).map(Epoch) else { return };
        let (ns, key) = (self.spaces[space].ns, name_of(space, number));
        let found = self.sessions[session].lookup(ns, epoch, &[key], 0, None);
        assert_eq!((found.prefix, found.miss), (0, Some(MissReason::Epoch)));
        let read = self.sessions[session].read(ns, epoch, key, 0);
        assert_eq!(read.map(|_| ()), Err(MissReason::Epoch));
        let put = BlockPut { key, part: 0, len: 1, engine_hash: None };
        let reserved = self.sessions[session].reserve(ns, epoch, put);
        assert!(matches!(reserved, Reserve::Shed(ShedReason::Epoch)));
        assert_eq!(self.sessions[session].touch(ns, epoch, &[key]), 0);
    }

    pub(super) fn change_quota(&mut self) {
        let bytes = [None, Some(60_000), Some(200_000), Some(500_000)];
        self.quota = bytes[self.random.below(4) as usize];
        self.store.set_quota("quota", self.quota).expect("a tenant");
    }

    /// A session's end is its leases' end; its pins and grants live on.
    pub(super) fn replace_session(&mut self) {
        let at = self.session();
        self.sessions[at] = self.store.session();
        self.leases.retain(|lease| lease.session != at);
        for (number, (tenant, model, parts)) in SPACES.iter().enumerate() {
            let ns = attach(&self.sessions[at], &spec(tenant, model, *parts));
            assert_eq!(ns, self.spaces[number].ns);
        }
    }

    /// An epoch is quiet exactly when nothing older is held.
    pub(super) fn quiet(&mut self) {
        let (space, session) = (self.pick().0, self.session());
        let now = self.now();
        let Space { ns, epoch, version, .. } = self.spaces[space];
        let is_old = |held: &Held| held.space == space && held.version < version;
        let mut leased = self.leases.iter().filter(|lease| lease.end > now);
        let is_held = self.pins.iter().any(|pin| is_old(&pin.held))
            || leased.any(|lease| lease.held.iter().any(is_old));
        let is_quiet = self.sessions[session].wait_epoch_quiet(ns, Epoch(epoch), now);
        assert_eq!(is_quiet, !is_held);
    }
}
