//! Leases after the lookup that took them. Both name the incarnation: a lease of another one is
//! void, whatever its number.

use keepwarm_store::types::LeaseId;

use crate::codec::{Body, Malformed, Reader, Write};

/// Asks for more time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RenewRequest {
    /// The node that granted it.
    pub incarnation: u64,
    /// The lease.
    pub lease: LeaseId,
    /// From now, in milliseconds.
    pub lease_ms: u32,
}

impl Body for RenewRequest {
    const NAME: &'static str = "renew request";

    fn write(&self, out: &mut Vec<u8>) {
        out.put_u64(self.incarnation);
        out.put_u64(self.lease.0);
        out.put_u32(self.lease_ms);
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let (incarnation, lease) = (reader.u64()?, LeaseId(reader.u64()?));
        Ok(RenewRequest { incarnation, lease, lease_ms: reader.u32()? })
    }
}

/// Whether the lease still held and now holds longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RenewReply(pub bool);

impl Body for RenewReply {
    const NAME: &'static str = "renew reply";

    fn write(&self, out: &mut Vec<u8>) {
        out.put_u8(self.0.into());
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        reader.bool().map(RenewReply)
    }
}

/// Ends a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReleaseRequest {
    /// The node that granted it.
    pub incarnation: u64,
    /// The lease.
    pub lease: LeaseId,
}

impl Body for ReleaseRequest {
    const NAME: &'static str = "release request";

    fn write(&self, out: &mut Vec<u8>) {
        out.put_u64(self.incarnation);
        out.put_u64(self.lease.0);
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(ReleaseRequest { incarnation: reader.u64()?, lease: LeaseId(reader.u64()?) })
    }
}

/// The lease no longer holds anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReleaseReply;

impl Body for ReleaseReply {
    const NAME: &'static str = "release reply";

    fn write(&self, _: &mut Vec<u8>) {}

    fn read(_: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(ReleaseReply)
    }
}
