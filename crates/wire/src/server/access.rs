//! What decides who is let in. It is replaced whole when settings are read again, and whoever would
//! not be let in any more, or as somebody else, is ended then.

use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, PoisonError};

use super::node::Node;
use super::peer_user;
use super::principals::{Principal, Principals, Shown};
use crate::address::Address;
use crate::tls::NodeTls;

/// Whom the node knows, and what it shows itself.
#[derive(Debug, Default)]
pub(super) struct Access {
    pub(super) principals: Principals,
    pub(super) tls: Option<NodeTls>,
}

impl Access {
    /// Who showed this, or why nobody has. A certificate is looked at once more: it was shown in a
    /// handshake that what decided then let pass.
    fn find(&self, shown: &Shown) -> Result<Arc<Principal>, String> {
        let vouched = match (shown, &self.tls) {
            (Shown::Certificate(chain), Some(tls)) => tls.vouches_for(chain),
            (Shown::Certificate(_), None) => false,
            _ => true,
        };
        match vouched {
            true => self.principals.find(shown),
            false => Err(String::from("the certificate is not taken any more: make a new one")),
        }
    }

    /// Whether somebody who showed this then is still the same principal.
    fn knows(&self, shown: &Shown, principal: &Principal) -> bool {
        self.find(shown).is_ok_and(|now| now.is_as(principal))
    }
}

/// A peer, before and after it is let in.
#[derive(Debug)]
pub(super) struct Guest {
    /// `unix`, `tcp` or `tls`.
    pub(super) transport: &'static str,
    /// What it shows without a word.
    shown: Shown,
    admitted: Mutex<Option<(Arc<Principal>, Shown)>>,
}

impl Guest {
    pub(super) fn new(transport: &'static str, shown: Shown) -> Guest {
        Guest { transport, shown, admitted: Mutex::new(None) }
    }

    /// The node's own user.
    pub(super) fn owner() -> Guest {
        Guest::new("unix", Shown::User(rustix::process::geteuid()))
    }

    /// What the system tells of a peer over the socket or loopback.
    pub(super) fn local(address: &Address, peer: impl AsFd) -> Guest {
        let user = match address {
            Address::Unix(_) => peer_user::of_unix(peer),
            Address::Tcp { .. } | Address::Tls { .. } => peer_user::of_loopback(peer),
        };
        Guest::new(address.transport(), user.map_or(Shown::Nothing, Shown::User))
    }

    /// Why it cannot be let in, whatever it says.
    pub(super) fn hopeless(&self, access: &Access) -> Option<String> {
        match access.principals.have_tokens() {
            true => None,
            false => access.principals.find(&self.shown).err(),
        }
    }

    /// Whether it may come in by what it shows without a word.
    pub(super) fn is_expected(&self, access: &Access) -> bool {
        access.principals.find(&self.shown).is_ok()
    }

    /// Whether it was let in.
    pub(super) fn is_let_in(&self) -> bool {
        self.lock().is_some()
    }

    /// Lets it in as whom it shows to be; a token outweighs what it shows otherwise.
    pub(super) fn admit(
        &self,
        node: &Node,
        token: Option<Shown>,
    ) -> Result<Arc<Principal>, String> {
        let shown = token.unwrap_or_else(|| self.shown.clone());
        loop {
            let access = node.access();
            let principal = access.find(&shown)?;
            *self.lock() = Some((principal.clone(), shown.clone()));
            // What decides may just have been replaced, and this connection not been looked at.
            if Arc::ptr_eq(&access, &node.access()) {
                return Ok(principal);
            }
        }
    }

    /// Whether it may stay. One that is not let in yet is looked at when it is.
    pub(super) fn may_stay(&self, access: &Access) -> bool {
        self.lock().as_ref().is_none_or(|(principal, shown)| access.knows(shown, principal))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<(Arc<Principal>, Shown)>> {
        self.admitted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
