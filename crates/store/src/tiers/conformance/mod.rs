//! One suite for all tiers. A medium outlives the tiers over it: opening another one is a restart.

mod appends;
mod blocks;
mod restarts;

use super::Tier;

pub use blocks::{Blocks, MadeBlock, Name, Seen, namespace, read_all, read_one, stream};

/// Something that tiers are opened over, with at least eight segments of 512 KiB or more.
pub trait Medium {
    /// A tier over what is there; the one before is dropped.
    fn open(&mut self) -> Box<dyn Tier>;
}

/// One case: what must hold, and the code that panics if it does not.
pub type Case = (&'static str, fn(&mut dyn Medium));

/// Every case of the suite, each for a new medium.
pub const CASES: &[Case] = &[
    ("blocks_come_back", appends::blocks_come_back),
    ("many_reads_are_in_flight", appends::many_reads_are_in_flight),
    ("a_batch_may_mix_namespaces", appends::a_batch_may_mix_namespaces),
    ("a_large_batch_spans_segments", appends::a_large_batch_spans_segments),
    ("streams_have_segments_of_their_own", appends::streams_have_segments_of_their_own),
    ("a_full_tier_says_so_and_goes_on_after_a_reclaim", appends::a_full_tier_goes_on),
    ("forgotten_blocks_do_not_count_as_live", appends::forgotten_blocks_do_not_count),
    ("what_does_not_fit_is_refused", appends::what_does_not_fit_is_refused),
    ("a_full_queue_gives_the_read_back", appends::a_full_queue_gives_the_read_back),
    ("a_header_names_its_block", appends::a_header_names_its_block),
    ("a_restart_claims_every_block", restarts::a_restart_claims_every_block),
    ("removed_blocks_stay_removed", restarts::removed_blocks_stay_removed),
    ("a_removed_namespace_stays_removed", restarts::a_removed_namespace_stays_removed),
    ("what_was_taken_before_a_removal_is_hidden", restarts::taken_before_a_removal),
    ("what_nobody_wants_is_free", restarts::what_nobody_wants_is_free),
    ("a_visitor_may_forget", restarts::a_visitor_may_forget),
    ("new_blocks_and_recovery_go_together", restarts::new_blocks_and_recovery),
    ("removals_outlive_many_restarts", restarts::removals_outlive_many_restarts),
];

/// Runs every case, each over a medium of its own.
///
/// # Panics
/// With the case's name when something does not hold.
pub fn run(make: &mut dyn FnMut() -> Box<dyn Medium>) {
    for (name, case) in CASES {
        println!("{name}");
        case(&mut *make());
    }
}
