//! A `keepwarm.workload.trace.Batch` as Rust's own columns: copied, so that nobody changes them
//! while they are worked on without the GIL.

use keepwarm_sim::requests::Requests;
use pyo3::prelude::*;

use crate::errors::argument;
use crate::export::Export;

/// Items that a copy moves at a time.
const COPY_ITEMS: usize = 8_192;

/// The columns of a batch.
pub struct Columns {
    times_s: Vec<f64>,
    input_tokens: Vec<u32>,
    output_tokens: Vec<u32>,
    sessions: Vec<u64>,
    tenants: Vec<u64>,
    offsets: Vec<u64>,
    ids: Vec<u64>,
}

impl Columns {
    /// Copies a batch's columns.
    ///
    /// # Errors
    /// `ArgumentError` for columns that are missing, of another type, or do not fit together, and
    /// for times out of order.
    pub fn of(batch: &Bound<'_, PyAny>) -> PyResult<Columns> {
        let columns = Columns {
            times_s: column(batch, "times_s", b"d", f64::from_ne_bytes)?,
            input_tokens: column(batch, "input_tokens", b"IL", u32::from_ne_bytes)?,
            output_tokens: column(batch, "output_tokens", b"IL", u32::from_ne_bytes)?,
            sessions: column(batch, "sessions", b"LQ", u64::from_ne_bytes)?,
            tenants: column(batch, "tenants", b"LQ", u64::from_ne_bytes)?,
            offsets: column(batch, "offsets", b"LQ", u64::from_ne_bytes)?,
            ids: column(batch, "block_ids", b"LQ", u64::from_ne_bytes)?,
        };
        columns.check()?;
        Ok(columns)
    }

    fn check(&self) -> PyResult<()> {
        let count = self.times_s.len();
        let same = [
            self.input_tokens.len(),
            self.output_tokens.len(),
            self.sessions.len(),
            self.tenants.len(),
        ];
        if same.iter().any(|&len| len != count) || self.offsets.len() != count + 1 {
            return Err(argument(format!("a batch's columns do not all have {count} requests")));
        }
        let is_in_order = self.times_s.is_sorted() && self.times_s.iter().all(|at| at.is_finite());
        if !is_in_order {
            return Err(argument("a batch's times_s must be finite numbers that never run back"));
        }
        let grows = self.offsets.windows(2).all(|pair| pair[0] <= pair[1]);
        if self.offsets[0] != 0 || !grows || self.offsets[count] != self.ids.len() as u64 {
            return Err(argument("a batch's offsets must grow from 0 to the number of block ids"));
        }
        Ok(())
    }

    /// The requests.
    pub fn requests(&self) -> Requests<'_> {
        Requests {
            times_s: &self.times_s,
            input_tokens: &self.input_tokens,
            output_tokens: &self.output_tokens,
            sessions: &self.sessions,
            tenants: &self.tenants,
            offsets: &self.offsets,
            ids: &self.ids,
        }
    }
}

fn column<const N: usize, T>(
    batch: &Bound<'_, PyAny>,
    name: &str,
    kinds: &[u8],
    read: fn([u8; N]) -> T,
) -> PyResult<Vec<T>> {
    let missing = |_| argument(format!("a batch has no {name}: pass a keepwarm.workload Batch"));
    column_of(&batch.getattr(name).map_err(missing)?, name, kinds, read)
}

/// Copies an array of items of one of these kinds.
///
/// # Errors
/// `ArgumentError` for anything else.
pub fn column_of<const N: usize, T>(
    values: &Bound<'_, PyAny>,
    name: &str,
    kinds: &[u8],
    read: fn([u8; N]) -> T,
) -> PyResult<Vec<T>> {
    let unfit = || argument(format!("{name} must be a contiguous array of {N} byte numbers"));
    let buffer = Export::get(values).map_err(|_| unfit())?;
    // Alone, without the sign of another order of bytes before it.
    let is_kind = matches!(buffer.format(), [kind] if kinds.contains(kind));
    if !is_kind || buffer.item_bytes() != N || buffer.dimensions() != 1 {
        return Err(unfit());
    }
    let count = buffer.len() / N;
    let mut column = Vec::with_capacity(count);
    let mut copy = vec![0; COPY_ITEMS * N];
    while column.len() < count {
        let bytes = (count - column.len()).min(COPY_ITEMS) * N;
        if !buffer.copy_to(column.len() * N, &mut copy[..bytes]) {
            return Err(unfit());
        }
        column.extend(copy[..bytes].as_chunks::<N>().0.iter().map(|&item| read(item)));
    }
    Ok(column)
}
