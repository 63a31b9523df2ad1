//! Requests as columns, as Python hands them over.

/// Some requests in order of arrival: request `i` has `ids[offsets[i]..offsets[i + 1]]`.
#[derive(Clone, Copy, Debug)]
pub struct Requests<'a> {
    /// Seconds since the trace's first request; never less than before.
    pub times_s: &'a [f64],
    /// Tokens of each prompt.
    pub input_tokens: &'a [u32],
    /// Tokens of each answer.
    pub output_tokens: &'a [u32],
    /// Keyed hash of the session; 0: not known.
    pub sessions: &'a [u64],
    /// Keyed hash of the tenant; 0: not known.
    pub tenants: &'a [u64],
    /// One more than there are requests, from 0, growing.
    pub offsets: &'a [u64],
    /// All requests' blocks. Equal ids: equal blocks behind equal prefixes.
    pub ids: &'a [u64],
}

impl<'a> Requests<'a> {
    /// How many requests.
    pub fn len(&self) -> usize {
        self.times_s.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.times_s.is_empty()
    }

    /// A request's blocks, from token 0.
    pub fn blocks(&self, request: usize) -> &'a [u64] {
        &self.ids[self.offsets[request] as usize..self.offsets[request + 1] as usize]
    }
}
