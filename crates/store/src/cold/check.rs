//! Counts flash's side again and compares it with what the store believes.

use super::queue::{ON_FLASH, RETURNING};
use crate::check::equal;
use crate::index::table::Named;
use crate::index::{Slot, State};
use crate::inner::Inner;

impl Inner {
    /// Index, chains, segments, pins, marks and counts agree.
    pub(crate) fn check_flash(&self) -> Result<(), String> {
        let Some(cold) = &self.cold else { return Ok(()) };
        cold.index.check()?;
        self.check_flash_spaces()?;
        self.check_flash_pins()?;
        self.check_marks()
    }

    fn check_flash_spaces(&self) -> Result<(), String> {
        let Some(cold) = &self.cold else { return Ok(()) };
        let mut counts = vec![[0u64; 3]; self.namespaces.places()];
        let mut segments = vec![0; cold.tenants.len()];
        for (number, segment) in cold.index.segments() {
            segments[usize::from(segment.tenant)] += 1;
            let mut at = cold.index.first_of(number);
            while let Some(slot) = at {
                at = cold.index.next_of(slot);
                let entry = cold.index.entry(slot);
                if !entry.is_listed() {
                    continue;
                }
                let space = self.namespaces.at(entry.ns());
                let is_current = entry.is_of_version(space.version);
                counts[usize::from(entry.ns())][usize::from(!is_current)] += 1;
                equal("tenant of a block on flash", space.tenant, segment.tenant.into())?;
            }
        }
        for (slot, meta) in self.index.slots.metas.iter().enumerate() {
            let entry = self.index.entry(slot as Slot);
            let is_ready = meta.state() == State::Ready;
            if is_ready && cold.marks.has(slot as Slot, ON_FLASH) {
                let is_current = entry.version == self.namespaces.at(entry.ns).version;
                counts[usize::from(entry.ns)][2] += u64::from(is_current);
            }
        }
        let mut hidden = 0;
        for (id, space) in self.namespaces.iter() {
            let kept = [space.flash_live, space.flash_hidden, space.in_both];
            equal(&format!("flash of namespace {}", id.0), counts[usize::from(id.0)], kept)?;
            hidden += space.flash_hidden;
        }
        equal("hidden blocks on flash", hidden, cold.hidden)?;
        let kept: Vec<u32> = cold.tenants.iter().map(|tenant| tenant.segments).collect();
        equal("segments of tenants", segments, kept)
    }

    fn check_flash_pins(&self) -> Result<(), String> {
        let Some(cold) = &self.cold else { return Ok(()) };
        let mut pins = std::collections::HashMap::new();
        self.leases.for_each_segment(|number| *pins.entry(number).or_insert(0) += 1);
        let mut held = 0;
        for (number, segment) in cold.index.segments() {
            held += u32::from(segment.pins > 0);
            let leases = pins.get(&number).copied().unwrap_or(0);
            // Reads under way hold some too.
            if cold.flights.under_way() == 0 {
                equal(&format!("pins of segment {number}"), leases, segment.pins)?;
            }
        }
        equal("segments held", held, cold.pinned)
    }

    fn check_marks(&self) -> Result<(), String> {
        let Some(cold) = &self.cold else { return Ok(()) };
        for (slot, meta) in self.index.slots.metas.iter().enumerate() {
            let (slot, entry) = (slot as Slot, self.index.entry(slot as Slot));
            let marks = cold.marks.get(slot);
            let is_on_flash = cold.index.find(entry.ns, entry.key).is_some();
            let may = match meta.state() {
                State::Ready => {
                    let is_current = entry.version == self.namespaces.at(entry.ns).version;
                    let says = marks & ON_FLASH != 0;
                    marks & RETURNING == 0 && (!is_current || says == is_on_flash)
                }
                State::Filling => marks & !RETURNING == 0,
                State::Free | State::Condemned => marks == 0,
            };
            if !may {
                return Err(format!(
                    "slot {slot} is {:?} with marks {marks:#x}, on flash: {is_on_flash}",
                    meta.state()
                ));
            }
        }
        Ok(())
    }
}
