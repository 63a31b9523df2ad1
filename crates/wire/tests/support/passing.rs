//! Descriptors by hand: what a client that means no good would do with them.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};

use keepwarm_wire::frames::{FrameHead, Opcode, VERSION, append_frame};
use keepwarm_wire::messages::{MapReply, MapRequest, StageReply, StageRequest};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

use super::peer::Peer;

/// Memory that a client stages in, mapped read-write and left so to the process's end.
pub struct Memfd {
    pub fd: OwnedFd,
    pub base: *mut u8,
    pub bytes: usize,
}

// SAFETY: the mapping is never undone, and tests write through raw pointers on purpose.
unsafe impl Send for Memfd {}
// SAFETY: as above.
unsafe impl Sync for Memfd {}

impl Memfd {
    pub fn new(bytes: usize, seals: SealFlags) -> Memfd {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = memfd_create("test-staging", flags).expect("memfd");
        ftruncate(&fd, bytes as u64).expect("a size");
        let base = map(&fd, bytes, ProtFlags::READ | ProtFlags::WRITE).expect("a mapping");
        fcntl_add_seals(&fd, seals).expect("seals");
        Memfd { fd, base, bytes }
    }

    /// As a good client's is.
    pub fn staging(bytes: usize) -> Memfd {
        Memfd::new(bytes, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)
    }

    pub fn write(&self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= self.bytes);
        // SAFETY: within the mapping; the test decides who writes when.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.base.add(at), bytes.len()) };
    }

    /// Changes a byte as another thread sees it.
    pub fn scribble(&self, at: usize, byte: u8) {
        assert!(at < self.bytes);
        // SAFETY: within the mapping, as above.
        unsafe { self.base.add(at).write_volatile(byte) };
    }
}

/// Maps a descriptor, shared.
pub fn map(fd: impl AsFd, bytes: usize, access: ProtFlags) -> rustix::io::Result<*mut u8> {
    // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing.
    let at = unsafe { mmap(std::ptr::null_mut(), bytes, access, MapFlags::SHARED, fd, 0) };
    at.map(<*mut std::ffi::c_void>::cast)
}

impl Peer {
    /// Asks for the arena; its descriptor, as the node passes it.
    pub fn map(&mut self) -> (OwnedFd, MapReply) {
        let reply = self.ask(Opcode::Map, &MapRequest);
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut byte = [1];
        let mut bytes = [IoSliceMut::new(&mut byte)];
        let flags = RecvFlags::CMSG_CLOEXEC;
        let received = recvmsg(&self.stream, &mut bytes, &mut control, flags).expect("a byte");
        assert_eq!((received.bytes, byte), (1, [0]));
        let mut passed = control.drain().filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
            _ => None,
        });
        (passed.next().expect("a descriptor"), reply)
    }

    /// Whether nothing more waits here, and so no descriptor either.
    pub fn came_with_nothing(&mut self) -> bool {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut byte = [1];
        let mut bytes = [IoSliceMut::new(&mut byte)];
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
        let received = recvmsg(&self.stream, &mut bytes, &mut control, flags);
        received.err() == Some(rustix::io::Errno::AGAIN)
    }

    /// Offers a staging of `bytes`, with or without a descriptor; the answer is the caller's.
    pub fn offer(&mut self, fd: Option<&OwnedFd>, bytes: u64) {
        self.correlation += 1;
        let (code, correlation) = (Opcode::Stage as u8, self.correlation);
        let head = FrameHead { version: VERSION, code, flags: 0, correlation, payload_bytes: 1 };
        let mut out = Vec::new();
        let body = |out: &mut Vec<u8>| {
            use keepwarm_wire::codec::Body;
            StageRequest { bytes }.write(out);
        };
        append_frame(&mut out, head, body).expect("a body that fits");
        self.send_bytes(&out).expect("the node takes it");
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let passed = fd.map(AsFd::as_fd);
        if let Some(passed) = &passed {
            assert!(control.push(SendAncillaryMessage::ScmRights(std::slice::from_ref(passed))));
        }
        let byte = [IoSlice::new(&[0])];
        sendmsg(&self.stream, &byte, &mut control, SendFlags::NOSIGNAL).expect("a byte goes");
    }

    pub fn stage(&mut self, memory: &Memfd) {
        self.offer(Some(&memory.fd), memory.bytes as u64);
        let StageReply = self.receive_body();
    }
}
