//! What a thread is busy with: fields that all of its records get.

use std::borrow::Cow;
use std::cell::RefCell;
use std::marker::PhantomData;

use super::record::{Field, Line};

thread_local! {
    static ABOUT: RefCell<Vec<(Cow<'static, str>, Field)>> = const { RefCell::new(Vec::new()) };
}

/// Until the guard goes, each record that this thread says ends with these fields: whose
/// connection it serves, say.
#[must_use = "the fields hold for as long as this value lives"]
pub fn about(fields: impl FnOnce(&mut Line)) -> About {
    let mut line = Line::default();
    fields(&mut line);
    let before = ABOUT.with_borrow_mut(|kept| {
        let before = kept.len();
        kept.extend(line.0);
        before
    });
    About { before, _of_this_thread: PhantomData }
}

/// Ends what [`about`] began.
#[derive(Debug)]
pub struct About {
    before: usize,
    _of_this_thread: PhantomData<*const ()>,
}

impl Drop for About {
    fn drop(&mut self) {
        // A thread that is ending may have let go of them already.
        let _ = ABOUT.try_with(|kept| kept.borrow_mut().truncate(self.before));
    }
}

/// Appends the fields of this thread.
pub(super) fn append(line: &mut Line) {
    let _ = ABOUT.try_with(|kept| line.0.extend(kept.borrow().iter().cloned()));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::Event;

    #[test]
    fn fields_hold_for_the_guards_life_and_nest() {
        let names = || {
            let mut line = Line::default();
            append(&mut line);
            let fields = line.into_record(Event::Stalled).fields;
            fields.into_iter().map(|(name, _)| name.into_owned()).collect::<Vec<_>>()
        };
        let outer = about(|line| {
            line.number("pid", 7).number("uid", 0);
        });
        {
            let _inner = about(|line| {
                line.text("tenant", "a");
            });
            assert_eq!(names(), ["pid", "uid", "tenant"]);
            assert!(std::thread::spawn(|| ABOUT.with_borrow(Vec::is_empty)).join().unwrap());
        }
        assert_eq!(names(), ["pid", "uid"]);
        drop(outer);
        assert!(names().is_empty());
    }
}
