//! A node's figures under their names: dotted, units last. A figure that a reader does not know it
//! leaves out, so names are added without a new wire version, and never reused.

use std::time::Duration;

use keepwarm_store::tiers::DeviceState;
use keepwarm_store::types::{Clock, Instant};
use keepwarm_store::{Counters, FlashCounters, FlashShed, FlashStats, Stats, SystemClock};

use crate::messages::{StatValue, miss_from_code, shed_from_code};

/// Names and values, in order.
pub(crate) type Figures = Vec<(String, StatValue)>;

/// This long from now on the store's clock.
pub(crate) fn clock_after(wait: Duration) -> Instant {
    SystemClock.now().after(wait)
}

/// The store's figures.
pub(crate) fn of_store(stats: &Stats) -> Figures {
    let mut figures = Figures::new();
    let mut number = |name: &str, value: u64| {
        figures.push((format!("store.{name}"), StatValue::Number(value)));
    };
    number("incarnation", stats.incarnation);
    number("capacity_bytes", stats.capacity_bytes);
    number("arena_huge_bytes", stats.ground.huge_bytes);
    number("memory_nodes", stats.ground.memory_nodes.into());
    number("memory_interleaved", stats.ground.is_interleaved.into());
    number("used_bytes", stats.used_bytes);
    number("writing_bytes", stats.writing_bytes);
    number("leased_bytes", stats.leased_bytes);
    number("leased_bytes_max", stats.leased_bytes_max);
    number("blocks", stats.blocks);
    number("blocks_max", stats.blocks_max);
    number("index_bytes", stats.index_bytes);
    number("part_bytes", stats.part_bytes);
    number("ghost_bytes", stats.ghost_bytes);
    number("leases", stats.leases);
    number("reads_in_flight", stats.reads_in_flight);
    number("epochs_durable", stats.epochs_durable.into());
    number("events_next", stats.events_next);
    figures.push(("store.policy".into(), StatValue::Text(stats.policy.into())));
    let pages = StatValue::Text(stats.ground.pages.name().into());
    figures.push(("store.arena_pages".into(), pages));
    let per_entry = StatValue::Ratio(stats.index_bytes_per_entry);
    figures.push(("store.index_bytes_per_entry".into(), per_entry));
    of_counters(&mut figures, "store", &stats.counters);
    if let Some(flash) = &stats.flash {
        of_flash(&mut figures, flash);
    }
    figures.extend(of_tenants(stats));
    figures
}

/// What `stats` has of tenants and their namespaces, and nothing else.
pub(crate) fn of_tenants(stats: &Stats) -> Figures {
    let mut figures = Figures::new();
    for tenant in &stats.tenants {
        let prefix = format!("tenant.{}", tenant.name);
        let mut number = |name: &str, value: u64| {
            figures.push((format!("{prefix}.{name}"), StatValue::Number(value)));
        };
        number("bytes", tenant.bytes);
        number("blocks", tenant.blocks);
        number("leased_bytes", tenant.leased_bytes);
        if let Some(quota_bytes) = tenant.quota_bytes {
            number("quota_bytes", quota_bytes);
        }
        of_counters(&mut figures, &prefix, &tenant.counters);
        if let Some(flash) = &tenant.flash {
            figures.push((format!("{prefix}.flash_bytes"), StatValue::Number(flash.bytes)));
            if let Some(quota) = flash.quota_bytes {
                figures.push((format!("{prefix}.flash_quota_bytes"), StatValue::Number(quota)));
            }
            of_flash_counters(&mut figures, &prefix, &flash.counters);
        }
    }
    of_namespaces(&mut figures, stats);
    figures
}

fn of_namespaces(figures: &mut Figures, stats: &Stats) {
    for namespace in &stats.namespaces {
        let hash: String = namespace.fingerprint.iter().map(|b| format!("{b:02x}")).collect();
        let prefix = format!("namespace.{}", namespace.id.0);
        let mut push = |name: &str, value| figures.push((format!("{prefix}.{name}"), value));
        push("fingerprint", StatValue::Text(hash));
        push("tenant", StatValue::Text(namespace.tenant.clone()));
        push("model", StatValue::Text(namespace.model.clone()));
        push("epoch", StatValue::Number(namespace.epoch.0.into()));
        push("sessions", StatValue::Number(namespace.sessions.into()));
        push("blocks", StatValue::Number(namespace.blocks));
        push("hidden_blocks", StatValue::Number(namespace.hidden_blocks));
        push("filling_blocks", StatValue::Number(namespace.filling_blocks));
        push("bytes", StatValue::Number(namespace.bytes));
        push("flash_blocks", StatValue::Number(namespace.flash_blocks));
    }
}

fn of_counters(figures: &mut Figures, prefix: &str, counters: &Counters) {
    let mut number = |name: String, value: u64| {
        figures.push((format!("{prefix}.{name}"), StatValue::Number(value)));
    };
    for (name, value) in [
        ("lookup_hits", counters.lookup_hits),
        ("lookup_after_miss", counters.lookup_after_miss),
        ("reads", counters.reads),
        ("read_bytes", counters.read_bytes),
        ("stored", counters.stored),
        ("stored_bytes", counters.stored_bytes),
        ("blocks_stored", counters.blocks_stored),
        ("present", counters.present),
        ("pending", counters.pending),
        ("aborted", counters.aborted),
        ("evicted", counters.evicted),
        ("evicted_for_quota", counters.evicted_for_quota),
        ("expired", counters.expired),
        ("outdated", counters.outdated),
        ("dropped", counters.dropped),
        ("corrupt", counters.corrupt),
        ("reports_intact", counters.reports_intact),
        ("relocated", counters.relocated),
        ("incomplete", counters.incomplete),
        ("leases_granted", counters.leases),
        ("leases_refused", counters.leases_refused),
        ("leases_expired", counters.leases_expired),
        ("epochs", counters.epochs),
        ("epochs_failed", counters.epochs_failed),
    ] {
        number(name.to_owned(), value);
    }
    for code in 1..=u8::MAX {
        if let Some(reason) = miss_from_code(code) {
            let name = snake(&format!("{reason:?}"));
            number(format!("lookup_misses.{name}"), counters.lookup_missed(reason));
            number(format!("read_misses.{name}"), counters.read_missed(reason));
        }
        if let Some(reason) = shed_from_code(code) {
            let name = snake(&format!("{reason:?}"));
            number(format!("shed.{name}"), counters.shed_for(reason));
        }
    }
}

fn of_flash(figures: &mut Figures, flash: &FlashStats) {
    let mut push = |name: &str, value| figures.push((format!("store.flash_{name}"), value));
    for (name, value) in [
        ("capacity_bytes", flash.capacity_bytes),
        ("segment_bytes", flash.segment_bytes),
        ("blocks", flash.blocks),
        ("blocks_max", flash.blocks_max),
        ("index_bytes", flash.index_bytes),
        ("queued", flash.queued),
        ("writing", flash.writing),
        ("returning", flash.returning),
        ("pinned_segments", flash.pinned_segments),
        ("pinned_segments_max", flash.pinned_segments_max),
        ("budget_short", flash.is_short_of_budget.into()),
        ("recovering", flash.recovery.is_running.into()),
        ("recovered_segments", flash.recovery.segments),
        ("recovered_segments_max", flash.recovery.segments_total),
    ] {
        push(name, StatValue::Number(value));
    }
    push("index_bytes_per_entry", StatValue::Ratio(flash.index_bytes_per_entry));
    push("restore_bytes_per_second", StatValue::Ratio(flash.restore_bytes_per_second));
    push("amplification", StatValue::Ratio(flash.amplification));
    push("recovered_blocks_per_second", StatValue::Ratio(flash.recovery.blocks_per_second));
    push("recovery_seconds", StatValue::Ratio(flash.recovery.took.as_secs_f64()));
    of_flash_counters(figures, "store", &flash.counters);
    for (number, device) in flash.devices.iter().enumerate() {
        let mut push = |name: &str, value| {
            figures.push((format!("device.{number}.{name}"), value));
        };
        let (state, why) = match &device.state {
            DeviceState::Live => ("live", String::new()),
            DeviceState::ReadOnly { why } => ("read_only", why.clone()),
            DeviceState::Fenced { why } => ("fenced", why.clone()),
        };
        push("name", StatValue::Text(device.name.clone()));
        push("engine", StatValue::Text(device.engine.clone()));
        push("state", StatValue::Text(state.into()));
        push("why", StatValue::Text(why));
        for (name, value) in [
            ("live", u64::from(device.state == DeviceState::Live)),
            ("capacity_bytes", device.capacity_bytes),
            ("segments", device.segments.into()),
            ("segments_free", device.segments_free.into()),
            ("read_bytes", device.read_bytes),
            ("written_bytes", device.written_bytes),
            ("flushes", device.flushes),
            ("errors", device.errors),
            ("quarantined", device.quarantined),
        ] {
            push(name, StatValue::Number(value));
        }
    }
}

fn of_flash_counters(figures: &mut Figures, prefix: &str, counters: &FlashCounters) {
    let mut number = |name: String, value: u64| {
        figures.push((format!("{prefix}.flash_{name}"), StatValue::Number(value)));
    };
    for (name, value) in counters.singles() {
        number(name.to_owned(), value);
    }
    for reason in FlashShed::ALL {
        number(format!("shed.{}", reason.name()), counters.shed_for(reason));
    }
}

/// `StoreDown` as `store_down`.
pub(crate) fn snake(name: &str) -> String {
    let mut out = String::with_capacity(name.len() + 2);
    for (at, letter) in name.chars().enumerate() {
        if letter.is_ascii_uppercase() && at > 0 {
            out.push('_');
        }
        out.push(letter.to_ascii_lowercase());
    }
    out
}

#[cfg(test)]
mod tests {
    #[test]
    fn variant_names_become_metric_labels() {
        assert_eq!(super::snake("StoreDown"), "store_down");
        assert_eq!(super::snake("Absent"), "absent");
    }
}
