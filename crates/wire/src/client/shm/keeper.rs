//! The thread behind a map: it asks for the arena over a line of its own, makes its pages present,
//! and waits for the line's end, which is the node's, or ours. A map that outlived its node would
//! hold as much memory as the node's successor needs.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::Builder;
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use rustix::net::Shutdown;

use super::arena::Arena;
use crate::channel::wait_for;
use crate::client::remote::{MapLine, NotMapped, Remote};
use crate::client::transport::Transport as _;
use crate::deadline::Deadline;

/// What asking for the arena in the background may take.
const ASK_TIME: Duration = Duration::from_secs(5);
/// Pause before asking again a node that could not answer.
const ASK_PAUSE: Duration = Duration::from_secs(1);
const STACK_BYTES: usize = 256 << 10;

const DISTRUSTED: &str = "bytes from the map did not match although the node's own did: the \
                          socket is used until the node is restarted";
const LATER: &str = "the node did not give its arena out yet: it is asked again";

/// What calls and the keeper share.
#[derive(Default)]
pub(super) struct State(Mutex<Inside>);

#[derive(Default)]
struct Inside {
    phase: Phase,
    /// Why nothing is mapped.
    fallback: Option<String>,
    /// The node that will not give its arena, or whose arena is not to be trusted.
    refused_by: u64,
    /// Not asked before.
    not_before: Option<Instant>,
}

#[derive(Default)]
enum Phase {
    #[default]
    Nothing,
    Asked,
    Mapped(Arc<Arena>, Arc<OwnedFd>),
    Closed,
}

impl State {
    pub(super) fn arena(&self) -> Option<Arc<Arena>> {
        match &self.lock().phase {
            Phase::Mapped(arena, _) => Some(arena.clone()),
            _ => None,
        }
    }

    pub(super) fn fallback(&self) -> Option<String> {
        let inside = self.lock();
        match inside.phase {
            Phase::Mapped(..) => None,
            _ => inside.fallback.clone(),
        }
    }

    /// The map gives other bytes than its node has.
    pub(super) fn distrust(&self, arena: &Arena) {
        let mut inside = self.lock();
        inside.refused_by = arena.incarnation();
        inside.fallback = Some(String::from(DISTRUSTED));
        inside.end_line();
        if matches!(inside.phase, Phase::Mapped(..)) {
            inside.phase = Phase::Nothing;
        }
    }

    /// Lets go of the map, for good. Calls under way keep theirs until they return.
    pub(super) fn close(&self) {
        let mut inside = self.lock();
        inside.end_line();
        inside.phase = Phase::Closed;
    }

    fn is_closed(&self) -> bool {
        matches!(self.lock().phase, Phase::Closed)
    }

    /// Takes the right to ask, at most one at a time.
    fn begin(&self, incarnation: u64) -> bool {
        let mut inside = self.lock();
        let due = matches!(inside.phase, Phase::Nothing)
            && inside.refused_by != incarnation
            && inside.not_before.is_none_or(|moment| Instant::now() >= moment);
        if due {
            inside.phase = Phase::Asked;
        }
        due
    }

    /// False: closed meanwhile.
    fn mapped(&self, arena: &Arc<Arena>, line: &MapLine) -> bool {
        let mut inside = self.lock();
        let is_wanted = !matches!(inside.phase, Phase::Closed);
        if is_wanted {
            inside.phase = Phase::Mapped(arena.clone(), line.shared());
        }
        is_wanted
    }

    fn not_mapped(&self, incarnation: u64, why: &NotMapped) {
        let mut inside = self.lock();
        match why {
            NotMapped::Never(text) => {
                inside.fallback = Some(text.clone());
                inside.refused_by = incarnation;
            }
            NotMapped::Later => {
                inside.fallback.get_or_insert_with(|| String::from(LATER));
                inside.not_before = Some(Instant::now() + ASK_PAUSE);
            }
        }
        if !matches!(inside.phase, Phase::Closed) {
            inside.phase = Phase::Nothing;
        }
    }

    /// The line of this map is over.
    fn ended(&self, arena: &Arc<Arena>) {
        let mut inside = self.lock();
        if matches!(&inside.phase, Phase::Mapped(mapped, _) if Arc::ptr_eq(mapped, arena)) {
            inside.fallback = Some(String::from("the node that gave its arena out has gone"));
            inside.phase = Phase::Nothing;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inside> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inside {
    fn end_line(&self) {
        if let Phase::Mapped(_, line) = &self.phase {
            // Wakes the keeper. One that has ended already is what is wanted.
            let _ = rustix::net::shutdown(line, Shutdown::Both);
        }
    }
}

/// One map and its line.
pub(super) struct Keeper {
    state: Arc<State>,
    arena: Arc<Arena>,
    line: MapLine,
    /// How far its pages are present.
    present: usize,
}

impl Keeper {
    /// Asks now, and makes as much of the arena present as the time allows; the rest follows in the
    /// background.
    pub(super) fn start_with(
        remote: &Remote,
        state: &Arc<State>,
        until: Deadline,
    ) -> Result<(), NotMapped> {
        let incarnation = remote.node_incarnation();
        if !state.begin(incarnation) {
            return Ok(());
        }
        let mut keeper = Keeper::ask(remote, state, until)?;
        keeper.present = keeper.arena.populate(0, || until.passed());
        start_thread(state, incarnation, move || keeper.keep());
        Ok(())
    }

    /// Asks in the background, if nobody else does and the node has not refused.
    pub(super) fn start_if_due(remote: &Arc<Remote>, state: &Arc<State>) {
        let incarnation = remote.node_incarnation();
        if incarnation == 0 || !remote.is_up() || !state.begin(incarnation) {
            return;
        }
        let (remote, kept) = (remote.clone(), state.clone());
        start_thread(state, incarnation, move || {
            let keeper = Keeper::ask(&remote, &kept, Deadline::after(ASK_TIME));
            // Whoever closes the memory must not wait for this thread to do so.
            drop(remote);
            if let Ok(keeper) = keeper {
                keeper.keep();
            }
        });
    }

    fn ask(remote: &Remote, state: &Arc<State>, until: Deadline) -> Result<Keeper, NotMapped> {
        let mapped = remote.map(until);
        // Of the node that was asked, which may be another one than before.
        let incarnation = remote.node_incarnation();
        let (arena, line) = mapped.inspect_err(|why| state.not_mapped(incarnation, why))?;
        let arena = Arc::new(arena);
        if !state.mapped(&arena, &line) {
            return Err(NotMapped::Later);
        }
        Ok(Keeper { state: state.clone(), arena, line, present: 0 })
    }

    fn keep(self) {
        let Keeper { state, arena, line, present } = self;
        let line = line.shared();
        let is_over = |wait| {
            let events = PollFlags::IN | PollFlags::RDHUP;
            !matches!(wait_for(&line, events, Deadline::after(wait)), Ok(false))
        };
        arena.populate(present, || state.is_closed() || is_over(Duration::ZERO));
        // Whatever comes is an end: nothing was asked.
        while !is_over(Duration::MAX) {}
        state.ended(&arena);
    }
}

fn start_thread(state: &State, incarnation: u64, work: impl FnOnce() + Send + 'static) {
    let builder = Builder::new().name(String::from("keepwarm-map")).stack_size(STACK_BYTES);
    if let Err(error) = builder.spawn(work) {
        let text = format!("no thread for the map: {error}");
        state.not_mapped(incarnation, &NotMapped::Never(text));
    }
}
