//! Writes the seeds of every target: `seeds <folder>` makes `<folder>/<target>/`.

use std::fs;
use std::path::Path;

use keepwarm_fuzz::seeds::{client_side, flash_pages, node_side, replies, requests};
use keepwarm_store::epochs::encode;
use keepwarm_store::types::Epoch;

fn main() -> std::io::Result<()> {
    let folder = std::env::args().nth(1).unwrap_or_else(|| String::from("corpus"));
    let write = |target: &str, name: usize, bytes: &[u8]| {
        let folder = Path::new(&folder).join(target);
        fs::create_dir_all(&folder)?;
        fs::write(folder.join(format!("seed-{name:02}")), bytes)
    };
    for (name, (opcode, body)) in requests().into_iter().enumerate() {
        write("requests", name, &[vec![opcode as u8], body].concat())?;
    }
    for (name, (opcode, flags, body)) in replies().into_iter().enumerate() {
        write("replies", name, &[vec![opcode as u8], body.clone()].concat())?;
        for call in 0..6u8 {
            let stream = node_side(opcode, flags, &body);
            write("client", name * 6 + usize::from(call), &[vec![call], stream].concat())?;
        }
    }
    write("session", 0, &client_side())?;
    write("session", 1, &[vec![0], keepwarm_fuzz::stream(&client_side())].concat())?;
    write("namespace", 0, keepwarm_fuzz::namespace().encoding())?;
    for (name, (what, page)) in flash_pages().into_iter().enumerate() {
        write("flash", name, &[vec![what], page].concat())?;
    }
    for count in 0..3u8 {
        let records: Vec<_> = (0..count).map(|n| ([n; 32], n.into(), Epoch(n.into()))).collect();
        write("epochs", count.into(), &[vec![1], encode(&records)].concat())?;
    }
    Ok(())
}
