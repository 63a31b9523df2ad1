//! One session for all connections of a client, by the token of its greeting. What it has leased
//! stays for as long as it was told, even if the client's last connection is cut meanwhile: it may
//! be on its way back.
//!
//! ```text
//!  first connection ─► session ─► last connection ends ─► the leases told have ended ─► gone
//!                                   └ none told, too many kept, or going down ─► gone
//! ```

use std::collections::HashMap;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use keepwarm_store::{Session, Store};
use parking_lot::Mutex;

use super::principals::{Principal, Rights, Tenants};
use crate::deadline::Deadline;
use crate::messages::Token;

/// Longest that a lease holds without being renewed.
const LEASE_MAX: Duration = Duration::from_secs(10);

/// A principal as it was let in, and its client's token: nobody comes into another one's session by
/// a token that was overheard, nor by a name that could do more before settings were read again.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Owner {
    name: String,
    tenants: Tenants,
    rights: Rights,
    token: Token,
}

impl Owner {
    pub(super) fn new(principal: &Principal, token: Token) -> Owner {
        let Principal { name, tenants, rights, .. } = principal;
        Owner { name: name.clone(), tenants: tenants.clone(), rights: *rights, token }
    }
}

/// Clients with a connection, and those that left leases behind.
pub(super) struct Sessions {
    clients: Mutex<HashMap<Owner, Client>>,
    /// Clients without a connection, at most.
    kept_max: usize,
}

struct Client {
    session: Arc<Session>,
    connections: usize,
    /// End of the last lease that was told.
    leased_until: Option<Deadline>,
}

impl Client {
    fn is_over(&self) -> bool {
        self.connections == 0 && self.leased_until.is_none_or(Deadline::passed)
    }
}

impl Sessions {
    pub(super) fn new(kept_max: usize) -> Sessions {
        Sessions { clients: Mutex::new(HashMap::new()), kept_max }
    }

    /// A connection's hold on its client's session.
    pub(super) fn seat(&self, store: &Arc<Store>, owner: Owner) -> Seat<'_> {
        let mut clients = self.clients.lock();
        let client = clients.entry(owner.clone()).or_insert_with(|| Client {
            session: Arc::new(store.session()),
            connections: 0,
            leased_until: None,
        });
        client.connections += 1;
        Seat { sessions: self, owner, session: client.session.clone() }
    }

    /// Ends sessions whose time is over.
    pub(super) fn end_over(&self) {
        self.end(|client| client.is_over());
    }

    /// Ends all sessions without a connection.
    pub(super) fn end_kept(&self) {
        self.end(|client| client.connections == 0);
    }

    fn end(&self, which: impl Fn(&Client) -> bool) {
        let ended: Vec<_> =
            self.clients.lock().extract_if(|_, client| which(client)).map(|(_, c)| c).collect();
        // Their leases end here, outside of the lock.
        drop(ended);
    }

    fn leave(&self, owner: &Owner) {
        let mut clients = self.clients.lock();
        let Some(client) = clients.get_mut(owner) else { return };
        client.connections -= 1;
        if client.connections > 0 {
            return;
        }
        let kept = || clients.iter().filter(|(_, client)| client.connections == 0);
        let ending = match clients[owner].is_over() {
            true => Some(owner.clone()),
            false if kept().count() > self.kept_max => {
                kept().min_by_key(|(_, client)| client.leased_until).map(|(owner, _)| owner.clone())
            }
            false => None,
        };
        let ended = ending.and_then(|owner| clients.remove(&owner));
        drop(clients);
        drop(ended);
    }
}

/// A client's session, as one of its connections holds it.
pub(super) struct Seat<'a> {
    sessions: &'a Sessions,
    owner: Owner,
    session: Arc<Session>,
}

impl Seat<'_> {
    /// The client was told of a lease that holds for so long from now.
    pub(super) fn told_lease(&self, hold: Duration) {
        let until = Some(Deadline::after(hold.min(LEASE_MAX)));
        if let Some(client) = self.sessions.clients.lock().get_mut(&self.owner) {
            client.leased_until = client.leased_until.max(until);
        }
    }
}

impl Deref for Seat<'_> {
    type Target = Session;

    fn deref(&self) -> &Session {
        &self.session
    }
}

impl Drop for Seat<'_> {
    fn drop(&mut self) {
        self.sessions.leave(&self.owner);
    }
}
