//! Who may do what: principals, their tenants and rights, and how they show who they are.
//!
//! | a peer | is |
//! | --- | --- |
//! | shows a token | the principal with its hash; with an unknown one nobody, whatever else it is |
//! | shows a certificate | the principal that names one of its names |
//! | comes over the socket or loopback as the node's user, or root | [`Principal::owner`] |
//! | comes so as another user | the principal that names its user id |
//! | otherwise | nobody |

use std::sync::Arc;

use rustix::process::Uid;
use rustls::pki_types::CertificateDer;

use crate::credentials::TokenHash;
use crate::frames::Opcode;

/// Most principals of a node.
pub const PRINCIPALS_MAX: usize = 1024;

/// One thing that a principal may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Right {
    /// Look up, get, use, report, follow.
    Read = 1,
    /// Put, and move a namespace to a larger epoch.
    Write = 2,
    /// Remove blocks.
    Drop = 4,
    /// See the figures of the whole node.
    Admin = 8,
    /// Map the arena: whoever may can read every tenant's bytes.
    Arena = 16,
}

impl Right {
    /// Every right.
    pub const ALL: [Right; 5] =
        [Right::Read, Right::Write, Right::Drop, Right::Admin, Right::Arena];

    /// In settings and messages.
    pub fn name(self) -> &'static str {
        match self {
            Right::Read => "read",
            Right::Write => "write",
            Right::Drop => "drop",
            Right::Admin => "admin",
            Right::Arena => "arena",
        }
    }

    /// The right of this name.
    pub fn named(name: &str) -> Option<Right> {
        Right::ALL.into_iter().find(|right| right.name() == name)
    }
}

/// A set of rights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Rights(u8);

impl Rights {
    /// All of them.
    pub const ALL: Rights = Rights(31);

    /// Whether `right` is among them.
    pub fn has(self, right: Right) -> bool {
        self.0 & right as u8 != 0
    }
}

impl FromIterator<Right> for Rights {
    fn from_iter<I: IntoIterator<Item = Right>>(rights: I) -> Rights {
        Rights(rights.into_iter().fold(0, |all, right| all | right as u8))
    }
}

/// What a request needs. None: whoever was let in may.
pub(super) fn needed(opcode: Opcode) -> &'static [Right] {
    match opcode {
        Opcode::Hello | Opcode::Attach | Opcode::Detach | Opcode::Ping | Opcode::Stat => &[],
        Opcode::Lookup
        | Opcode::Get
        | Opcode::Touch
        | Opcode::Renew
        | Opcode::Release
        | Opcode::Report
        | Opcode::Subscribe => &[Right::Read],
        Opcode::Put | Opcode::PutData | Opcode::StagedData | Opcode::Epoch => &[Right::Write],
        Opcode::Map => &[Right::Arena],
        Opcode::Locate => &[Right::Arena, Right::Read],
        Opcode::PutStaged => &[Right::Arena, Right::Write],
        // One only lets go and has no answer; the other's descriptor must be taken in first.
        Opcode::Landed | Opcode::Stage => &[],
        Opcode::Drop => &[Right::Drop],
    }
}

/// Which tenants a principal may use.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Tenants {
    /// Whichever the node has.
    All,
    /// These.
    Of(Vec<String>),
}

impl Tenants {
    /// Whether `tenant` is among them.
    pub fn has(&self, tenant: &str) -> bool {
        match self {
            Tenants::All => true,
            Tenants::Of(names) => names.iter().any(|name| name == tenant),
        }
    }
}

/// Somebody whom the node knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Principal {
    /// Its name in the settings.
    pub name: String,
    /// Whose namespaces it may attach.
    pub tenants: Tenants,
    /// What it may do there.
    pub rights: Rights,
    /// Names (DNS or URI) of its certificates.
    pub certificates: Vec<String>,
    /// Hashes of its tokens.
    pub tokens: Vec<TokenHash>,
    /// Its user ids on this machine.
    pub uids: Vec<u32>,
}

impl Principal {
    /// The node's own user, or root: all rights.
    pub fn owner() -> Principal {
        Principal {
            name: String::from("owner"),
            tenants: Tenants::All,
            rights: Rights::ALL,
            certificates: Vec::new(),
            tokens: Vec::new(),
            uids: Vec::new(),
        }
    }

    /// Whether it may do the same as `other` in the same tenants under the same name.
    pub(super) fn is_as(&self, other: &Principal) -> bool {
        (&self.name, &self.tenants, self.rights) == (&other.name, &other.tenants, other.rights)
    }
}

/// Principals that cannot be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("principal {name} {problem}")]
pub struct PrincipalsError {
    /// Which.
    pub name: String,
    /// What is wrong with it.
    pub problem: String,
}

/// How a peer showed who it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Shown {
    Token(TokenHash),
    /// Its certificate, then those between it and its CA.
    Certificate(Vec<CertificateDer<'static>>),
    User(Uid),
    /// Nothing, or the system does not tell.
    Nothing,
}

/// All whom a node knows, beside its owner.
#[derive(Clone, Debug, Default)]
pub struct Principals {
    all: Vec<Arc<Principal>>,
}

impl Principals {
    /// Takes principals of which no two can be taken for each other.
    ///
    /// # Errors
    /// One has nothing to show, or the same as another; too many.
    pub fn new(all: Vec<Principal>) -> Result<Principals, PrincipalsError> {
        let wrong =
            |name: &str, problem: String| Err(PrincipalsError { name: name.to_owned(), problem });
        if all.len() > PRINCIPALS_MAX {
            return wrong(&all[PRINCIPALS_MAX].name, format!("is one more than {PRINCIPALS_MAX}"));
        }
        for (place, one) in all.iter().enumerate() {
            if one.certificates.is_empty() && one.tokens.is_empty() && one.uids.is_empty() {
                let problem = "cannot show who it is: give it certificate, token or uid";
                return wrong(&one.name, String::from(problem));
            }
            for other in &all[..place] {
                let shared = if one.certificates.iter().any(|n| other.certificates.contains(n)) {
                    "a certificate's name"
                } else if one.tokens.iter().any(|hash| other.tokens.contains(hash)) {
                    "a token"
                } else if one.uids.iter().any(|uid| other.uids.contains(uid)) {
                    "a user id"
                } else if one.name == other.name {
                    "its name"
                } else {
                    continue;
                };
                return wrong(&one.name, format!("has {shared} that {} has too", other.name));
            }
        }
        Ok(Principals { all: all.into_iter().map(Arc::new).collect() })
    }

    /// Whether any has a token.
    pub(super) fn have_tokens(&self) -> bool {
        self.all.iter().any(|one| !one.tokens.is_empty())
    }

    /// Whether any has a user id.
    pub(super) fn have_uids(&self) -> bool {
        self.all.iter().any(|one| !one.uids.is_empty())
    }

    /// Whether there is none.
    pub(super) fn are_none(&self) -> bool {
        self.all.is_empty()
    }

    /// Who showed this, or why nobody has.
    pub(super) fn find(&self, shown: &Shown) -> Result<Arc<Principal>, String> {
        match shown {
            Shown::Token(hash) => self.by_token(hash).ok_or_else(|| {
                String::from("the token is not known here: give one that the node was told of")
            }),
            Shown::Certificate(chain) => self.by_certificate(chain),
            Shown::User(uid) => self.by_user(*uid),
            Shown::Nothing => Err(String::from(
                "nothing shows who the client is: give it a certificate or a token that the node \
                 was told of",
            )),
        }
    }

    /// Looks at all of them, found or not.
    fn by_token(&self, hash: &TokenHash) -> Option<Arc<Principal>> {
        let mut found = None;
        for one in &self.all {
            for token in &one.tokens {
                if token == hash {
                    found = Some(one.clone());
                }
            }
        }
        found
    }

    fn by_certificate(&self, chain: &[CertificateDer<'static>]) -> Result<Arc<Principal>, String> {
        let names = chain.first().map(names_of).unwrap_or_default();
        let is_it = |one: &&Arc<Principal>| one.certificates.iter().any(|n| names.contains(n));
        self.all.iter().find(is_it).cloned().ok_or_else(|| {
            format!(
                "no principal has a certificate for {}: add one to the node's settings",
                if names.is_empty() { String::from("no name") } else { names.join(", ") }
            )
        })
    }

    fn by_user(&self, uid: Uid) -> Result<Arc<Principal>, String> {
        let ours = rustix::process::geteuid();
        if uid == ours || uid.is_root() {
            return Ok(Arc::new(Principal::owner()));
        }
        let is_it = |one: &&Arc<Principal>| one.uids.contains(&uid.as_raw());
        self.all.iter().find(is_it).cloned().ok_or_else(|| {
            format!(
                "user {} may not use the node of user {}: run as that user",
                uid.as_raw(),
                ours.as_raw()
            )
        })
    }
}

/// The names that a certificate is for.
fn names_of(certificate: &CertificateDer<'_>) -> Vec<String> {
    let Ok(parsed) = webpki::EndEntityCert::try_from(certificate) else { return Vec::new() };
    parsed.valid_dns_names().chain(parsed.valid_uri_names()).map(String::from).collect()
}
