//! Bodies of everything a client may send; the first byte says which. Also headers.
#![no_main]

use keepwarm_fuzz::one_encoding;
use keepwarm_wire::frames::{BODY_BYTES_MAX, HEADER_BYTES, Header, Opcode, PAYLOAD_BYTES_MAX};
use keepwarm_wire::messages::*;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some((code, body)) = data.split_first() else { return };
    match Opcode::from_code(*code) {
        Some(Opcode::Hello) => one_encoding::<Greeting>(body),
        Some(Opcode::Attach) => one_encoding::<AttachRequest>(body),
        Some(Opcode::Lookup) => one_encoding::<LookupRequest>(body),
        Some(Opcode::Get) => one_encoding::<GetRequest>(body),
        Some(Opcode::Put) => one_encoding::<PutRequest>(body),
        Some(Opcode::PutData) => one_encoding::<PutDataHead>(body),
        Some(Opcode::Touch) => one_encoding::<TouchRequest>(body),
        Some(Opcode::Renew) => one_encoding::<RenewRequest>(body),
        Some(Opcode::Release) => one_encoding::<ReleaseRequest>(body),
        Some(Opcode::Report) => one_encoding::<ReportRequest>(body),
        Some(Opcode::Drop) => one_encoding::<DropRequest>(body),
        Some(Opcode::Epoch) => one_encoding::<EpochRequest>(body),
        Some(Opcode::Stat) => one_encoding::<StatRequest>(body),
        Some(Opcode::Subscribe) => one_encoding::<SubscribeRequest>(body),
        Some(Opcode::Ping) => one_encoding::<PingRequest>(body),
        Some(Opcode::Detach) => one_encoding::<DetachRequest>(body),
        Some(Opcode::Map) => one_encoding::<MapRequest>(body),
        Some(Opcode::Locate) => one_encoding::<LocateRequest>(body),
        Some(Opcode::Landed) => one_encoding::<Landed>(body),
        Some(Opcode::Stage) => one_encoding::<StageRequest>(body),
        Some(Opcode::PutStaged) => one_encoding::<PutRequest>(body),
        Some(Opcode::StagedData) => one_encoding::<StagedData>(body),
        None => {
            let Some((head, body)) = body.split_first_chunk::<HEADER_BYTES>() else { return };
            if let Ok(header) = Header::parse(head) {
                assert!(header.body_bytes as usize <= BODY_BYTES_MAX);
                assert!(header.payload_bytes <= PAYLOAD_BYTES_MAX);
                let _ = header.check(body);
            }
        }
    }
});
