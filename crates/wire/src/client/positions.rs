//! Where a call's blocks stand in their prompt: what places them on the nodes of a memory.
//!
//! Run r of a prompt is its positions [rR, (r+1)R), where R is the namespace's `run_blocks`. Its
//! blocks lie together, and the key at position rR, the run's head, says where. So calls for a part
//! of a prompt must say which part it is:
//!
//! ```text
//!  position   0 ........ 15 │ 16 ........ 31 │ 32 ...      R = 16
//!  keys                 12 ─────────────── 35              first = 12
//!  heads      0               16               32          the first is not among the keys
//! ```

use std::ops::Range;

use keepwarm_store::types::BlockKey;

use super::ClientError;

/// Where a batch of keys, neighbours in one prompt, stands in it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Positions<'a> {
    /// Of the first key, in blocks.
    pub first: u64,
    /// The heads of the runs that the keys lie in, in order. The first is needed where the keys
    /// begin within a run; those that are among the keys may be left out, or are checked.
    pub heads: &'a [BlockKey],
}

/// Neighbours of one run in a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) head: BlockKey,
    /// Which items of the call.
    pub(crate) items: Range<usize>,
}

const UNPLACED: &str = "this memory has several nodes and the namespace runs of several blocks: \
     say where the keys stand in their prompt (pass a Prompt), or set run_blocks to 1";
const NO_HEAD: &str = "the keys begin within a run: give the key at its first position too";
const HEADS_MORE: &str = "more run heads than the keys lie in: give one for each run, in order";
const HEAD_DIFFERS: &str = "a run head is not the key at its position: the positions are wrong";

/// Cuts a call's items into runs. `key` tells an item's block; items of one block, its parts, are
/// neighbours and count as one position.
pub(crate) fn runs<T>(
    items: &[T],
    key: impl Fn(&T) -> BlockKey,
    run_blocks: u32,
    at: Option<Positions<'_>>,
) -> Result<Vec<Run>, ClientError> {
    let length = u64::from(run_blocks.max(1));
    let Positions { first, heads } = match at {
        _ if length == 1 => Positions::default(),
        Some(positions) => positions,
        None if items.is_empty() => return Ok(Vec::new()),
        None => return Err(ClientError::Misuse(UNPLACED)),
    };
    let mut found: Vec<Run> = Vec::new();
    let mut position = first;
    for (place, item) in items.iter().enumerate() {
        let own = key(item);
        let next = match place {
            0 => true,
            _ if own == key(&items[place - 1]) => false,
            _ => {
                position = position.saturating_add(1);
                position.is_multiple_of(length)
            }
        };
        match (next, found.last_mut()) {
            (false, Some(run)) => run.items.end = place + 1,
            _ => {
                let given = heads.get(found.len()).copied();
                let head = match (given, position.is_multiple_of(length)) {
                    (Some(given), true) if given != own => {
                        return Err(ClientError::Misuse(HEAD_DIFFERS));
                    }
                    (_, true) => own,
                    (Some(given), false) => given,
                    (None, false) => return Err(ClientError::Misuse(NO_HEAD)),
                };
                found.push(Run { head, items: place..place + 1 });
            }
        }
    }
    match heads.len() > found.len() && !items.is_empty() {
        true => Err(ClientError::Misuse(HEADS_MORE)),
        false => Ok(found),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(n: u8) -> BlockKey {
        BlockKey([n; 16])
    }

    fn keys(range: Range<u8>) -> Vec<BlockKey> {
        range.map(key).collect()
    }

    fn cut(keys: &[BlockKey], length: u32, at: Option<Positions<'_>>) -> Result<Vec<Run>, String> {
        runs(keys, |key| *key, length, at).map_err(|error| error.to_string())
    }

    #[test]
    fn a_prompt_is_cut_at_multiples_of_the_run() {
        let at = Some(Positions::default());
        let found = cut(&keys(0..10), 4, at).unwrap();
        let heads: Vec<_> = found.iter().map(|run| (run.head, run.items.clone())).collect();
        assert_eq!(heads, [(key(0), 0..4), (key(4), 4..8), (key(8), 8..10)]);
        assert_eq!(cut(&[], 4, at), Ok(vec![]));
        assert_eq!(cut(&[], 4, None), Ok(vec![]));
    }

    #[test]
    fn any_part_of_a_prompt_lies_in_the_runs_of_the_whole() {
        let whole = keys(0..40);
        for (first, end) in [(0, 40), (3, 4), (3, 23), (16, 17), (15, 33), (39, 40)] {
            let heads: Vec<_> = whole.iter().step_by(8).skip(first / 8).copied().collect();
            let heads = &heads[..(end - 1) / 8 - first / 8 + 1];
            for heads in [heads, &heads[..1]] {
                let at = Some(Positions { first: first as u64, heads });
                let found = cut(&whole[first..end], 8, at).unwrap();
                for run in &found {
                    for item in run.items.clone() {
                        assert_eq!(run.head, whole[(first + item) / 8 * 8]);
                    }
                }
                assert_eq!(found.last().unwrap().items.end, end - first);
            }
        }
    }

    #[test]
    fn with_runs_of_one_block_positions_do_not_matter() {
        let odd = Positions { first: 7, heads: &[key(1), key(2), key(3)] };
        for at in [None, Some(odd)] {
            let found = cut(&keys(4..6), 1, at).unwrap();
            let one = |n: u8, at| Run { head: key(n), items: at..at + 1 };
            assert_eq!(found, [one(4, 0), one(5, 1)]);
        }
    }

    #[test]
    fn parts_of_one_block_stand_at_one_position() {
        let parts = [key(0), key(0), key(1), key(1), key(2)];
        let found = cut(&parts, 2, Some(Positions::default())).unwrap();
        let want = [Run { head: key(0), items: 0..4 }, Run { head: key(2), items: 4..5 }];
        assert_eq!(found, want);
    }

    #[test]
    fn positions_that_cannot_be_are_refused() {
        let five = keys(5..9);
        let refused = |at| cut(&five, 4, at).unwrap_err();
        assert_eq!(refused(None), UNPLACED);
        assert_eq!(refused(Some(Positions { first: 5, heads: &[] })), NO_HEAD);
        let wrong = [key(4), key(9)];
        assert_eq!(refused(Some(Positions { first: 5, heads: &wrong })), HEAD_DIFFERS);
        let many = [key(4), key(8), key(12)];
        assert_eq!(refused(Some(Positions { first: 5, heads: &many })), HEADS_MORE);
        assert_eq!(
            cut(&five, 4, Some(Positions { first: 5, heads: &many[..2] })).unwrap().len(),
            2
        );
    }
}
