//! How a connection ends.

use std::io;

use crate::codec::Malformed;
use crate::frame_io::Broken;
use crate::frames::Violation;
use crate::messages::RefusalCode;

/// How a connection ended.
#[derive(Debug)]
pub enum Ending {
    /// The peer left, or the server is going down.
    Closed,
    /// Nothing was asked for too long.
    Idle,
    /// The peer stopped in the middle of something.
    Stalled,
    /// The stream failed.
    Failed(io::Error),
    /// The peer broke the protocol.
    Violated(Violation),
    /// The peer was refused.
    Refused(RefusalCode),
}

impl From<io::Error> for Ending {
    fn from(error: io::Error) -> Ending {
        match error.kind() {
            io::ErrorKind::TimedOut => Ending::Stalled,
            io::ErrorKind::UnexpectedEof
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::BrokenPipe => Ending::Closed,
            _ => Ending::Failed(error),
        }
    }
}

impl From<Violation> for Ending {
    fn from(violation: Violation) -> Ending {
        Ending::Violated(violation)
    }
}

impl From<Malformed> for Ending {
    fn from(malformed: Malformed) -> Ending {
        Ending::Violated(malformed.into())
    }
}

impl From<Broken> for Ending {
    fn from(broken: Broken) -> Ending {
        match broken {
            Broken::Stream(error) => error.into(),
            Broken::Violation(violation) => violation.into(),
        }
    }
}
