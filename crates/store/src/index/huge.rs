//! Tables on huge pages: a table of hundreds of megabytes that is read at random costs a page walk
//! for each read on 4 KiB pages, which is more than the read itself.

/// `len` copies of `value`, on huge pages where the system gives them; all of it touched.
pub(crate) fn filled<T: Clone>(len: usize, value: T) -> Vec<T> {
    let mut table = Vec::with_capacity(len);
    advise(table.as_mut_ptr(), len);
    table.resize(len, value);
    table
}

/// Asks for huge pages for the whole pages of a range. Only advice: an error changes nothing.
fn advise<T>(start: *mut T, len: usize) {
    #[cfg(target_os = "linux")]
    {
        use rustix::mm::{Advice, madvise};
        const PAGE: usize = 4096;
        let (first, bytes) = (start.addr(), len * size_of::<T>());
        let (low, high) = (first.next_multiple_of(PAGE), (first + bytes) / PAGE * PAGE);
        if high > low {
            let low_page = start.cast::<u8>().wrapping_add(low - first);
            // SAFETY: the range lies within one allocation of ours, and this advice changes which
            // pages back it, never its content. Any index test would see changed content.
            let _ = unsafe { madvise(low_page.cast(), high - low, Advice::LinuxHugepage) };
        }
    }
    #[cfg(not(target_os = "linux"))]
    let _ = (start, len);
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_filled_table_is_full_whatever_its_size() {
        for len in [0, 1, 1000, 1 << 20] {
            let table = super::filled(len, 7u64);
            assert_eq!(table.len(), len);
            assert!(table.iter().all(|value| *value == 7));
        }
    }
}
