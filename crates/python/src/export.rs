//! One object's exported memory, held.

use std::ffi::c_int;
use std::mem::MaybeUninit;

use pyo3::ffi;
use pyo3::prelude::*;

/// A `Py_buffer`, released on drop: as long as it lives, the exporter neither frees nor moves the
/// memory. The view is boxed because some exporters keep pointers into it.
pub struct Export(Box<ffi::Py_buffer>);

// SAFETY: the view is only read from other threads; its release takes the GIL.
// tests/test_threads.py holds exports while other threads run.
unsafe impl Send for Export {}
// SAFETY: as above.
unsafe impl Sync for Export {}

impl Export {
    /// Takes an export of any kind, read-only and strided ones too: the caller looks and can say
    /// more than "no".
    pub fn get(object: &Bound<'_, PyAny>) -> PyResult<Export> {
        let mut view = Box::new(MaybeUninit::<ffi::Py_buffer>::uninit());
        // SAFETY: the object is live, the GIL is held, and `view` has room; it is filled if and
        // only if 0 is returned.
        let done = unsafe {
            ffi::PyObject_GetBuffer(object.as_ptr(), view.as_mut_ptr(), ffi::PyBUF_FULL_RO)
        };
        if done != 0 {
            return Err(PyErr::fetch(object.py()));
        }
        // SAFETY: filled, as above.
        Ok(Export(unsafe { view.assume_init() }))
    }

    /// Whether objects of this kind can export memory at all.
    pub fn is_possible(object: &Bound<'_, PyAny>) -> bool {
        // SAFETY: the object is live and the GIL is held.
        unsafe { ffi::PyObject_CheckBuffer(object.as_ptr()) != 0 }
    }

    pub fn ptr(&self) -> *mut u8 {
        self.0.buf.cast()
    }

    /// Bytes; never negative.
    pub fn len(&self) -> usize {
        usize::try_from(self.0.len).unwrap_or(0)
    }

    pub fn item_bytes(&self) -> usize {
        usize::try_from(self.0.itemsize).unwrap_or(0)
    }

    pub fn dimensions(&self) -> usize {
        usize::try_from(self.0.ndim).unwrap_or(0)
    }

    pub fn is_readonly(&self) -> bool {
        self.0.readonly != 0
    }

    pub fn is_contiguous(&self) -> bool {
        // SAFETY: the view is filled.
        unsafe { ffi::PyBuffer_IsContiguous(&raw const *self.0, b'C' as _) != c_int::from(false) }
    }

    /// The items' format; bytes where the exporter does not say.
    pub fn format(&self) -> &[u8] {
        if self.0.format.is_null() {
            return b"B";
        }
        // SAFETY: an exporter's format is a C string that lives as long as the export.
        unsafe { std::ffi::CStr::from_ptr(self.0.format) }.to_bytes()
    }

    /// Copies bytes from `at` on into `to`: each is read once, by address, since whoever else has
    /// the memory may be writing it. False: it is not contiguous, or ends before.
    pub fn copy_to(&self, at: usize, to: &mut [u8]) -> bool {
        let ends = at.checked_add(to.len()).is_some_and(|end| end <= self.len());
        if !ends || !self.is_contiguous() {
            return false;
        }
        // SAFETY: the export holds `len` readable bytes in one piece while it lives, and `to` is
        // Rust's own; tests/test_identity.py writes an array while its tokens are read.
        unsafe { std::ptr::copy_nonoverlapping(self.ptr().add(at), to.as_mut_ptr(), to.len()) };
        true
    }
}

impl Drop for Export {
    fn drop(&mut self) {
        // An interpreter that is gone has freed the memory's owner already.
        Python::try_attach(|_| {
            // SAFETY: the view is filled and released once, with the GIL held.
            unsafe { ffi::PyBuffer_Release(&raw mut *self.0) }
        });
    }
}
