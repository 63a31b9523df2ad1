//! The catalogue: every event that a node can log, its level, and what it means.

/// How much an event matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Level {
    /// For whoever looks for the cause of something.
    Debug = 1,
    /// What a node does.
    Info = 2,
    /// Worth a look; the node goes on as it should.
    Warn = 3,
    /// Something is lost or will be.
    Error = 4,
}

impl Level {
    /// All levels, the least first.
    pub const ALL: [Level; 4] = [Level::Debug, Level::Info, Level::Warn, Level::Error];

    /// The name in settings and lines.
    pub fn name(self) -> &'static str {
        match self {
            Level::Debug => "debug",
            Level::Info => "info",
            Level::Warn => "warn",
            Level::Error => "error",
        }
    }
}

macro_rules! events {
    ($($event:ident, $name:literal, $level:ident, $help:literal;)*) => {
        /// Something that a node logs.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum Event {
            $(#[doc = $help] $event,)*
        }

        impl Event {
            /// All of them, in the order of the catalogue.
            pub const ALL: &[Event] = &[$(Event::$event,)*];

            /// The name in lines.
            pub fn name(self) -> &'static str {
                match self { $(Event::$event => $name,)* }
            }

            /// How much it matters.
            pub fn level(self) -> Level {
                match self { $(Event::$event => Level::$level,)* }
            }

            /// What it means and, where something is to be done, what.
            pub fn help(self) -> &'static str {
                match self { $(Event::$event => $help,)* }
            }
        }
    };
}

events! {
    Started, "started", Info,
        "the node serves; a field for each setting, with where it came from";
    Machine, "machine", Info,
        "what the arena lies on: huge pages, memory nodes, limits of this process";
    MachineLimit, "machine_limit", Warn,
        "a limit of the machine or its control group does not go with the settings: see `todo`";
    Draining, "draining", Info,
        "the node takes no more clients or puts and waits for calls under way";
    DrainOverdue, "drain_overdue", Warn,
        "calls were still under way when the time to drain ended: raise `drain`";
    Stopped, "stopped", Info,
        "the node has stopped";
    Reloaded, "reloaded", Info,
        "settings were read again; each one that changed, old and new";
    ReloadKept, "reload_kept", Warn,
        "settings that changed in their source but need a restart: the running value stays";
    ReloadFailed, "reload_failed", Error,
        "settings were read again and refused: nothing changed";
    SocketRebound, "socket_rebound", Warn,
        "the socket's file was deleted or replaced; the node listens at its path again";
    SocketLost, "socket_lost", Error,
        "the socket's file is gone and cannot be had again: the node drains and exits";
    Connected, "connected", Debug,
        "a client's connection was let in";
    Disconnected, "disconnected", Debug,
        "a connection ended, and why";
    ConnectionRefused, "connection_refused", Warn,
        "a connection was not let in: the wrong user, no place left, another version";
    Violation, "violation", Warn,
        "a connection was closed because of what it sent: a client of another kind or a bad one";
    Stalled, "stalled", Warn,
        "a connection was closed because it neither took nor sent";
    NamespaceAttached, "namespace_attached", Info,
        "a client opened a namespace that no other has open";
    NamespaceDiffers, "namespace_differs", Warn,
        "a client opened a namespace without blocks while a similar one is here: `nearest` says in \
         which fields they differ, the usual cause of zero hits";
    AttachRefused, "attach_refused", Warn,
        "a namespace was refused: an unknown tenant, another secret, no place left";
    NamespaceDropped, "namespace_dropped", Info,
        "a client removed all blocks of a namespace";
    EpochAdopted, "epoch_adopted", Info,
        "a namespace moved to a larger epoch, and its older blocks are hidden";
    EpochFailed, "epoch_failed", Error,
        "a larger epoch could not be made durable and was refused: look at `state_dir`";
    BlockCorrupt, "block_corrupt", Error,
        "a block's bytes no longer match their checksum; it was removed: test the memory";
    ReportIntact, "report_intact", Warn,
        "a reader got bad bytes of a block that is good here: its connection is suspect";
    PutCorrupt, "put_corrupt", Warn,
        "a block arrived with another checksum than its source computed; it was not stored";
    TenantOverQuota, "tenant_over_quota", Warn,
        "a tenant's put was shed because leases and writes fill its quota: raise it";
    DeviceOpened, "device_opened", Info,
        "a flash device is in use";
    DeviceFenced, "device_fenced", Error,
        "a flash device failed and is no longer used: its share of blocks is gone";
    FlashRecovered, "flash_recovered", Info,
        "blocks of an earlier run were claimed on a flash device; how many, and how fast";
    FlashCorrupt, "flash_corrupt", Error,
        "a block on flash does not match its checksum; it was removed: test the device";
    FlashBudget, "flash_budget", Warn,
        "the bytes that may be written to flash in a day are used up; blocks stay in memory alone";
    AdminError, "admin_error", Warn,
        "admin HTTP had trouble with a request";
    Suppressed, "suppressed", Warn,
        "an event happened more often than is logged: `count` times more in `interval_s`";
    Lost, "lost", Warn,
        "records that found no room because standard error did not take them";
}

impl Event {
    /// The event of that name.
    pub fn named(name: &str) -> Option<Event> {
        Event::ALL.iter().copied().find(|event| event.name() == name)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn names_are_unique_and_found() {
        let names: HashSet<_> = Event::ALL.iter().map(|event| event.name()).collect();
        assert_eq!(names.len(), Event::ALL.len());
        for event in Event::ALL {
            assert_eq!(Event::named(event.name()), Some(*event));
            assert!(event.help().len() <= 200, "{}", event.help());
        }
        assert_eq!(Event::named("nonsense"), None);
    }
}
