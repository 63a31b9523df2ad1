//! Callers' memory: found, checked, and held for as long as a call may touch it.
//!
//! ```text
//! one buffer for n keys      [ block 0 | block 1 | … | block n-1 ]   split evenly
//! a sequence of n            [ buffer | (pointer, length) | … ]      each its own length
//! ```
//! A buffer's export is held (`Py_buffer`) until the call returns, so that its owner can neither
//! free nor resize it. Behind a bare pointer stands the caller's word alone.

use keepwarm_store::types::BlockKey;
use pyo3::exceptions::PyBufferError;
use pyo3::prelude::*;
use pyo3::types::{PySequence, PyTuple};

use crate::errors::argument;
use crate::export::Export;

/// Bytes of a key.
pub const KEY_BYTES: usize = 16;
/// Keys of one call.
pub const KEYS_MAX: usize = 65_536;

/// Whether a call reads or writes the caller's memory.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Access {
    Read,
    Write,
}

/// One block's place in the caller's memory.
#[derive(Clone, Copy, Debug)]
pub struct Region {
    pub ptr: *mut u8,
    pub len: usize,
}

/// As many places as there are keys, with whatever keeps them in place.
pub struct Regions {
    pub list: Vec<Region>,
    _held: Vec<Export>,
}

// SAFETY: a region is an address and a length; it touches nothing by itself. Who uses it relies on
// the export in `Regions`, or on the caller's word, which hold on any thread; tests/test_threads.py
// moves blocks from many threads at once.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Regions {
    /// Finds a place for each of `count` keys in `buffers`.
    ///
    /// # Errors
    /// `ArgumentError` for anything that cannot be used, with its place and what to do.
    pub fn find(buffers: &Bound<'_, PyAny>, count: usize, access: Access) -> PyResult<Regions> {
        let mut found = Regions { list: Vec::with_capacity(count), _held: Vec::new() };
        if count == 0 {
            return Ok(found); // whatever was given, none of it is touched
        }
        if let Some(whole) = found.whole(buffers, access)? {
            found.split(whole, count)?;
        } else {
            found.each(buffers, count, access)?;
        }
        if access == Access::Write {
            found.refuse_overlaps()?;
        }
        Ok(found)
    }

    fn whole(&mut self, buffers: &Bound<'_, PyAny>, access: Access) -> PyResult<Option<Region>> {
        if is_pointer_pair(buffers) {
            return pointer_pair(buffers, "buffers").map(Some);
        }
        match Export::get(buffers) {
            Ok(buffer) => self.hold(buffer, access, "buffers").map(Some),
            Err(error) if Export::is_possible(buffers) => Err(unusable("buffers", buffers, &error)),
            Err(_) => Ok(None),
        }
    }

    fn split(&mut self, whole: Region, count: usize) -> PyResult<()> {
        if !whole.len.is_multiple_of(count) {
            return Err(argument(format!(
                "buffers has {} bytes, which do not split evenly over {count} keys: pass a \
                 multiple of {count} bytes, or one buffer per key",
                whole.len
            )));
        }
        let len = whole.len / count;
        let place = |i: usize| Region { ptr: whole.ptr.wrapping_add(i * len), len };
        self.list.extend((0..count).map(place));
        Ok(())
    }

    fn each(&mut self, buffers: &Bound<'_, PyAny>, count: usize, access: Access) -> PyResult<()> {
        let Ok(sequence) = buffers.cast::<PySequence>() else {
            return Err(argument(format!(
                "buffers is {}: pass one buffer, or a sequence with one buffer or one (pointer, \
                 length) per key",
                type_name(buffers)
            )));
        };
        let given = sequence.len()?;
        if given != count {
            return Err(argument(format!(
                "buffers has {given} entries for {count} keys: pass one per key"
            )));
        }
        for (i, item) in sequence.try_iter()?.take(count + 1).enumerate() {
            let item = item?;
            let name = format!("buffers[{i}]");
            let region = if is_pointer_pair(&item) {
                pointer_pair(&item, &name)?
            } else {
                let buffer = Export::get(&item).map_err(|error| unusable(&name, &item, &error))?;
                self.hold(buffer, access, &name)?
            };
            self.list.push(region);
        }
        // A sequence may shrink while it is walked.
        if self.list.len() == count { Ok(()) } else { Err(argument("buffers changed its length")) }
    }

    fn hold(&mut self, buffer: Export, access: Access, name: &str) -> PyResult<Region> {
        if access == Access::Write && buffer.is_readonly() {
            return Err(argument(format!(
                "{name} is read-only: pass writable memory, such as a bytearray or a writable array"
            )));
        }
        if !buffer.is_contiguous() {
            return Err(argument(format!(
                "{name} is not C-contiguous: pass a contiguous slice, or copy it first"
            )));
        }
        if holds_objects(buffer.format()) {
            return Err(argument(format!(
                "{name} holds Python objects, whose bytes mean nothing elsewhere: pass plain data"
            )));
        }
        let region = Region { ptr: buffer.ptr(), len: buffer.len() };
        check(region, name)?;
        self._held.push(buffer);
        Ok(region)
    }

    fn refuse_overlaps(&self) -> PyResult<()> {
        let mut places: Vec<_> = (0..self.list.len()).collect();
        places.sort_unstable_by_key(|&i| self.list[i].ptr as usize);
        for pair in places.windows(2) {
            let (one, two) = (self.list[pair[0]], self.list[pair[1]]);
            // Neither wraps: `check` saw to that.
            if one.ptr as usize + one.len > two.ptr as usize {
                return Err(argument(format!(
                    "buffers[{}] and buffers[{}] overlap: give each key its own memory",
                    pair[0].min(pair[1]),
                    pair[0].max(pair[1])
                )));
            }
        }
        Ok(())
    }
}

/// Whether a format has an `O` outside of its fields' names, which stand between colons.
fn holds_objects(format: &[u8]) -> bool {
    format.split(|byte| *byte == b':').step_by(2).any(|part| part.contains(&b'O'))
}

fn check(region: Region, name: &str) -> PyResult<()> {
    if region.len == 0 {
        return Err(argument(format!("{name} is empty: a block has one byte or more")));
    }
    if region.ptr.is_null() {
        return Err(argument(format!("{name} is a null pointer: pass the address of the memory")));
    }
    if (region.ptr as usize).checked_add(region.len).is_none() {
        return Err(argument(format!(
            "{name} goes beyond the end of the address space: check its length"
        )));
    }
    Ok(())
}

fn is_pointer_pair(object: &Bound<'_, PyAny>) -> bool {
    use pyo3::types::PyInt;
    object.cast::<PyTuple>().is_ok_and(|pair| {
        pair.len() == 2 && pair.iter_borrowed().all(|item| item.is_instance_of::<PyInt>())
    })
}

fn pointer_pair(pair: &Bound<'_, PyAny>, name: &str) -> PyResult<Region> {
    let (ptr, len): (usize, usize) = pair
        .extract()
        .map_err(|_| argument(format!("{name} is no (pointer, length): both are 0 to 2^64 - 1")))?;
    let region = Region { ptr: std::ptr::with_exposed_provenance_mut(ptr), len };
    check(region, name)?;
    Ok(region)
}

fn unusable(name: &str, object: &Bound<'_, PyAny>, error: &PyErr) -> PyErr {
    if error.is_instance_of::<PyBufferError>(object.py()) {
        return argument(format!("{name} cannot be used: {}", error.value(object.py())));
    }
    argument(format!(
        "{name} is {}: pass an object with the buffer protocol, or (pointer, length)",
        type_name(object)
    ))
}

/// The name of an object's type, for messages.
pub fn type_name(object: &Bound<'_, PyAny>) -> String {
    object.get_type().name().map_or_else(|_| "of unknown type".into(), |name| name.to_string())
}

/// Copies keys out of one buffer of n × 16 bytes.
///
/// # Errors
/// `ArgumentError` for another length, more than [`KEYS_MAX`], or no buffer.
pub fn keys(object: &Bound<'_, PyAny>, name: &str) -> PyResult<Vec<BlockKey>> {
    let buffer = Export::get(object).map_err(|_| {
        argument(format!(
            "{name} is {}: pass one buffer with 16 bytes per key, such as the bytes of block_keys",
            type_name(object)
        ))
    })?;
    let bytes = buffer.len();
    if !buffer.is_contiguous() || !bytes.is_multiple_of(KEY_BYTES) {
        return Err(argument(format!(
            "{name} has {bytes} bytes, which is no contiguous multiple of 16: pass 16 bytes per key"
        )));
    }
    let count = bytes / KEY_BYTES;
    if count > KEYS_MAX {
        return Err(argument(format!(
            "{name} holds {count} keys, more than {KEYS_MAX} for one call: split it into several \
             calls"
        )));
    }
    let mut keys = vec![BlockKey::default(); count];
    if count > 0 {
        // SAFETY: the export holds `bytes` readable bytes at `buf_ptr` while `buffer` lives, and
        // `keys` has room for exactly as many; tests/test_arguments.py passes slices at odd
        // addresses.
        unsafe {
            let from = buffer.ptr();
            std::ptr::copy_nonoverlapping(from, keys.as_mut_ptr().cast::<u8>(), bytes);
        }
    }
    Ok(keys)
}

/// Keys as one `bytes` would hold them.
pub fn key_bytes(keys: &[BlockKey]) -> Vec<u8> {
    keys.iter().flat_map(|key| key.0).collect()
}
