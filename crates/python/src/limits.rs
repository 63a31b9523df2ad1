//! The limits of `keepwarm_bench` for `keepwarm.bench`: what this machine can do without Keepwarm.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use keepwarm_bench::bytes::Place;
use keepwarm_bench::copies::{Way, copy};
use keepwarm_bench::file::RawFile;
use keepwarm_bench::index::Table;
use keepwarm_bench::streams::{Client, serve};
use keepwarm_bench::tls::{Acceptor, Connector};
use pyo3::prelude::*;

use crate::buffers::{Access, Regions};
use crate::errors::{argument, detached, fault};

fn places(
    buffers: &Bound<'_, PyAny>,
    count: usize,
    access: Access,
) -> PyResult<(Regions, Vec<Place>)> {
    let regions = Regions::find(buffers, count, access)?;
    let places = regions.list.iter().map(|each| Place { ptr: each.ptr, len: each.len }).collect();
    Ok((regions, places))
}

/// Copies `count` blocks, `way` memcpy, hashed or unhashed; seconds.
#[pyfunction]
pub fn limit_copy(
    py: Python<'_>,
    way: &str,
    to: &Bound<'_, PyAny>,
    from_: &Bound<'_, PyAny>,
    count: usize,
) -> PyResult<f64> {
    let way = match way {
        "memcpy" => Way::Memcpy,
        "hashed" => Way::Hashed,
        "unhashed" => Way::Unhashed,
        _ => return Err(argument(format!("way is {way:?}: pass memcpy, hashed or unhashed"))),
    };
    let (_to, to) = places(to, count, Access::Write)?;
    let (_from, from) = places(from_, count, Access::Read)?;
    // SAFETY: both regions are held until the end of this function, `to` writable; who makes them
    // overlap breaks the contract. tests/test_bench.py compares what arrived.
    detached(py, || unsafe { copy(way, &to, &from) }).map_err(fault)
}

/// Serves the bare loop to whoever connects to this listening socket; ends with the process.
#[pyfunction]
#[pyo3(signature = (listener, pool_bytes, buffers, certificate, key))]
pub fn limit_serve(
    py: Python<'_>,
    listener: i32,
    pool_bytes: usize,
    buffers: Option<usize>,
    certificate: Option<Vec<u8>>,
    key: Option<Vec<u8>>,
) -> PyResult<()> {
    let listener = taken(listener)?;
    let tls = match (certificate, key) {
        (Some(certificate), Some(key)) => Some(Acceptor::new(&certificate, &key)?),
        _ => None,
    };
    Ok(detached(py, || serve(&listener, pool_bytes, buffers, tls)).map_err(fault)??)
}

/// A duplicate of one of Python's descriptors.
fn taken(fd: i32) -> PyResult<OwnedFd> {
    if fd < 0 {
        return Err(argument(format!("descriptor is {fd}: pass an open one")));
    }
    // SAFETY: the caller, who holds the GIL, vouches that the descriptor is open; it is borrowed
    // for this call alone. A closed one is an error of the system's: tests/test_bench.py.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    Ok(fd.try_clone_to_owned()?)
}

/// The client of the bare loop, over one connected, blocking socket or several.
#[pyclass(frozen, module = "keepwarm._core")]
pub struct LimitStreams {
    inner: Mutex<Client>,
}

#[pymethods]
impl LimitStreams {
    #[new]
    #[pyo3(signature = (sockets, authority=None, name="localhost"))]
    fn new(
        py: Python<'_>,
        sockets: Vec<i32>,
        authority: Option<Vec<u8>>,
        name: &str,
    ) -> PyResult<LimitStreams> {
        let sockets = sockets.into_iter().map(taken).collect::<PyResult<Vec<_>>>()?;
        let tls = authority.map(|pem| Connector::new(&pem, name)).transpose()?;
        let client = detached(py, || Client::new(sockets, tls.as_ref())).map_err(fault)??;
        Ok(LimitStreams { inner: Mutex::new(client) })
    }

    /// Receives `count` blocks, the server's pool read from block `first` on; seconds.
    fn get(
        &self,
        py: Python<'_>,
        buffers: &Bound<'_, PyAny>,
        count: usize,
        first: u64,
    ) -> PyResult<f64> {
        let (_held, places) = places(buffers, count, Access::Write)?;
        let work = || {
            let mut client = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
            // SAFETY: the regions are held, writable and disjoint until the end of this function;
            // tests/test_bench.py compares what arrived.
            unsafe { client.get(&places, first) }
        };
        Ok(detached(py, work).map_err(fault)??)
    }

    /// Sends `count` blocks into the server's pool, from its block `first` on; seconds.
    fn put(
        &self,
        py: Python<'_>,
        buffers: &Bound<'_, PyAny>,
        count: usize,
        first: u64,
    ) -> PyResult<f64> {
        let (_held, places) = places(buffers, count, Access::Read)?;
        let work = || {
            let mut client = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
            // SAFETY: the regions are held until the end of this function; as above.
            unsafe { client.put(&places, first) }
        };
        Ok(detached(py, work).map_err(fault)??)
    }
}

/// A bare io_uring loop over one file, O_DIRECT.
#[pyclass(frozen, module = "keepwarm._core")]
pub struct LimitFile {
    inner: Mutex<RawFile>,
}

#[pymethods]
impl LimitFile {
    #[new]
    fn new(path: PathBuf, bytes: u64, call_bytes: usize, depth: u32) -> PyResult<LimitFile> {
        Ok(LimitFile { inner: Mutex::new(RawFile::new(&path, bytes, call_bytes, depth)?) })
    }

    /// Reads blocks, from the `first`th on; seconds.
    fn read(&self, py: Python<'_>, first: u64, blocks: u32, length: u32) -> PyResult<f64> {
        let work = || {
            let mut file = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
            file.read(first, blocks, length)
        };
        Ok(detached(py, work).map_err(fault)??)
    }

    /// Writes blocks, from the `first`th on, with `flush` until the device has them; seconds.
    fn write(
        &self,
        py: Python<'_>,
        first: u64,
        blocks: u32,
        length: u32,
        flush: bool,
    ) -> PyResult<f64> {
        let work = || {
            let mut file = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
            file.write(first, blocks, length, flush)
        };
        Ok(detached(py, work).map_err(fault)??)
    }
}

/// The store's index alone, full.
#[pyclass(frozen, module = "keepwarm._core")]
pub struct IndexTable {
    inner: Mutex<Table>,
}

#[pymethods]
impl IndexTable {
    #[new]
    fn new(py: Python<'_>, entries: usize, shuffled: bool, seed: u64) -> PyResult<IndexTable> {
        if !(1..=1 << 26).contains(&entries) {
            return Err(argument(format!("entries is {entries}: pass 1 to {}", 1 << 26)));
        }
        let table = detached(py, || Table::new(entries, shuffled, seed)).map_err(fault)?;
        Ok(IndexTable { inner: Mutex::new(table) })
    }

    /// Bytes of the tables for each entry.
    #[getter]
    fn bytes_an_entry(&self) -> f64 {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner).bytes_an_entry()
    }

    /// Finds, uses and leases `keys` keys of prompts drawn at random; nanoseconds of CPU a key.
    fn run(&self, py: Python<'_>, run: u64, keys: usize) -> PyResult<f64> {
        let work = || {
            let mut table = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
            table.run(run, keys)
        };
        detached(py, work).map_err(fault)
    }
}
