//! A hint to the processor; a miss on another thread of memory costs a lookup most of its time.

/// Starts loading `items[at]` into the cache, if there is such an item. Reads nothing.
#[inline(always)]
pub(crate) fn prefetch<T>(items: &[T], at: usize) {
    #[cfg(target_arch = "x86_64")]
    if let Some(item) = items.get(at) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch never faults and reads nothing; SSE is part of x86_64. Held by every
        // index test, under which a wrong address could at most be slow.
        unsafe { _mm_prefetch(std::ptr::from_ref(item).cast::<i8>(), _MM_HINT_T0) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (items, at);
}
