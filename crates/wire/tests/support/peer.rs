//! A peer that speaks frames by hand, well or badly.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use keepwarm_store::types::Epoch;
use keepwarm_wire::codec::{Body, decode};
use keepwarm_wire::frames::{
    FrameHead, HEADER_BYTES, Header, Opcode, VERSION, append_frame, flags,
};
use keepwarm_wire::messages::{
    AttachReply, AttachRequest, Greeting, GreetingReply, Refusal, Token,
};

use super::{key_check, spec};

pub struct Peer {
    pub stream: UnixStream,
    pub correlation: u64,
}

pub fn greeting(version_oldest: u16, version: u16) -> Greeting {
    let (token, name) = (Token([7; 16]), String::from("by hand"));
    Greeting { version_oldest, version, token, pid: 1, name, credential: None }
}

impl Peer {
    pub fn connect(path: &Path) -> Peer {
        let stream = UnixStream::connect(path).expect("the node listens");
        stream.set_read_timeout(Some(Duration::from_secs(10))).expect("a timeout");
        stream.set_write_timeout(Some(Duration::from_secs(10))).expect("a timeout");
        Peer { stream, correlation: 0 }
    }

    /// A peer over TCP; both kinds of sockets read and write alike.
    pub fn over_tcp(host: &str, port: u16) -> Peer {
        let stream = TcpStream::connect((host, port)).expect("the node listens");
        stream.set_read_timeout(Some(Duration::from_secs(10))).expect("a timeout");
        Peer { stream: UnixStream::from(OwnedFd::from(stream)), correlation: 0 }
    }

    /// A peer after its greeting.
    pub fn greeted(path: &Path) -> Peer {
        let mut peer = Peer::connect(path);
        peer.ask::<GreetingReply>(Opcode::Hello, &greeting(1, VERSION));
        peer
    }

    /// A peer that has attached the namespace of model `m`.
    pub fn attached(path: &Path) -> (Peer, AttachReply) {
        let mut peer = Peer::greeted(path);
        let reply = peer.attach();
        (peer, reply)
    }

    /// Attaches the namespace of model `m`.
    pub fn attach(&mut self) -> AttachReply {
        let spec = spec("m", 1);
        let (encoding, key_check) = (spec.encoding().to_vec(), key_check(&spec));
        let request =
            AttachRequest { encoding, key_check, epoch: Epoch(0), terms: Default::default() };
        self.ask(Opcode::Attach, &request)
    }

    pub fn frame(&mut self, code: u8, flags: u8, payload_bytes: u64, body: &impl Body) -> Vec<u8> {
        let mut out = Vec::new();
        let (version, correlation) = (VERSION, self.correlation);
        let head = FrameHead { version, code, flags, correlation, payload_bytes };
        append_frame(&mut out, head, |out| body.write(out)).expect("a body that fits");
        out
    }

    pub fn send(&mut self, opcode: Opcode, body: &impl Body) {
        self.correlation += 1;
        let frame = self.frame(opcode as u8, 0, 0, body);
        self.stream.write_all(&frame).expect("the node takes it");
    }

    /// Sends as much as the node takes.
    pub fn send_bytes(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes)
    }

    pub fn receive(&mut self) -> io::Result<(Header, Vec<u8>)> {
        let mut head = [0; HEADER_BYTES];
        self.stream.read_exact(&mut head)?;
        let header = Header::parse(&head).expect("a good header");
        let mut body = vec![0; header.body_bytes as usize];
        self.stream.read_exact(&mut body)?;
        header.check(&body).expect("a good checksum");
        Ok((header, body))
    }

    pub fn receive_body<B: Body>(&mut self) -> B {
        let (header, body) = self.receive().expect("an answer");
        assert!(!header.has(flags::REFUSED), "refused: {:?}", decode::<Refusal>(VERSION, &body));
        decode(VERSION, &body).expect("a good body")
    }

    pub fn ask<B: Body>(&mut self, opcode: Opcode, body: &impl Body) -> B {
        self.send(opcode, body);
        self.receive_body()
    }

    pub fn refusal(&mut self) -> Refusal {
        let (header, body) = self.receive().expect("an answer");
        assert!(header.has(flags::REPLY | flags::REFUSED));
        decode(VERSION, &body).expect("a refusal")
    }

    /// Whether the node has ended the connection; reads whatever comes before that.
    pub fn is_ended(&mut self) -> bool {
        let mut buffer = [0; 4096];
        loop {
            match self.stream.read(&mut buffer) {
                Ok(0) => return true,
                Ok(_) => {}
                Err(error) => return error.kind() == io::ErrorKind::ConnectionReset,
            }
        }
    }
}
