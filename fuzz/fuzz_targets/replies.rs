//! Bodies of everything a node may send; the first byte says which.
#![no_main]

use keepwarm_fuzz::one_encoding;
use keepwarm_wire::frames::Opcode;
use keepwarm_wire::messages::*;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some((code, body)) = data.split_first() else { return };
    match Opcode::from_code(*code) {
        Some(Opcode::Hello) => one_encoding::<GreetingReply>(body),
        Some(Opcode::Attach) => one_encoding::<AttachReply>(body),
        Some(Opcode::Lookup) => one_encoding::<LookupReply>(body),
        Some(Opcode::Get) => {
            one_encoding::<GetData>(body);
            one_encoding::<GetMisses>(body);
        }
        Some(Opcode::Put) => {
            one_encoding::<PutGrants>(body);
            one_encoding::<PutDone>(body);
        }
        Some(Opcode::Touch) => one_encoding::<TouchReply>(body),
        Some(Opcode::Renew) => one_encoding::<RenewReply>(body),
        Some(Opcode::Release) => one_encoding::<ReleaseReply>(body),
        Some(Opcode::Report) => one_encoding::<ReportReply>(body),
        Some(Opcode::Drop) => one_encoding::<DropReply>(body),
        Some(Opcode::Epoch) => one_encoding::<EpochReply>(body),
        Some(Opcode::Stat) => one_encoding::<StatReply>(body),
        Some(Opcode::Subscribe) => one_encoding::<EventsReply>(body),
        Some(Opcode::Ping) => one_encoding::<PingReply>(body),
        Some(Opcode::Detach) => one_encoding::<DetachReply>(body),
        Some(Opcode::Map) => one_encoding::<MapReply>(body),
        Some(Opcode::Locate) => one_encoding::<LocateReply>(body),
        Some(Opcode::Stage) => one_encoding::<StageReply>(body),
        Some(Opcode::PutStaged) => {
            one_encoding::<PutGrants>(body);
            one_encoding::<PutDone>(body);
        }
        Some(Opcode::StagedData) => one_encoding::<StagedTaken>(body),
        Some(Opcode::PutData | Opcode::Landed) | None => one_encoding::<Refusal>(body),
    }
});
