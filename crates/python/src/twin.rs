//! A model of one node for `keepwarm.workload`: what it has of each request, without its bytes.

use std::sync::{Mutex, PoisonError};

use keepwarm_sim::interner::Interner;
use keepwarm_sim::memory::{Memory, Tier};
use keepwarm_sim::twin::{
    FlashModel, NodeModel, StoreTwin as Inner, TwinCounts, TwinError, key_of,
};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

use crate::columns::{Columns, column_of};
use crate::errors::{argument, detached, fault};
use crate::flash::admission_named;
use crate::store::policy_named;

/// Bytes of the device, of a segment, and which blocks are written there.
type FlashRow = (u64, Option<u64>, String);
/// Bytes of the arena and of a block, policy, seed of the ghost list, entries of the index, blocks
/// of one call, flash.
pub type NodeRow = (u64, u32, String, u64, Option<u32>, Option<u32>, Option<FlashRow>);

struct State {
    twin: Inner,
    numbers: Interner,
}

impl State {
    /// The ids' numbers; more than 2^32 distinct ones are refused.
    fn numbers(&mut self, ids: &[u64]) -> PyResult<Vec<u32>> {
        let number = |id: &u64| {
            let number = self.numbers.number(*id);
            number.ok_or_else(|| argument("more than 4294967295 distinct blocks: replay fewer"))
        };
        ids.iter().map(number).collect()
    }
}

/// One node, of whom requests are asked in order.
#[pyclass(frozen, module = "keepwarm._core")]
pub struct StoreTwin {
    state: Mutex<State>,
}

#[pymethods]
impl StoreTwin {
    #[new]
    fn new(node: NodeRow) -> PyResult<StoreTwin> {
        let state = State { twin: twin_of(&model_of(node)?)?, numbers: Interner::default() };
        Ok(StoreTwin { state: Mutex::new(state) })
    }

    /// Keys by which the same ids may be put into a node that is to equal this one: 16 bytes each.
    fn block_keys<'py>(
        &self,
        py: Python<'py>,
        ids: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let ids = column_of(ids, "block_ids", b"LQ", u64::from_ne_bytes)?;
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let numbers = state.numbers(&ids)?;
        let keys: Vec<u8> = numbers.into_iter().flat_map(|number| key_of(number).0).collect();
        Ok(PyBytes::new(py, &keys))
    }

    /// Serves a batch's requests. Two 32-bit numbers each, native order: blocks of its unbroken
    /// prefix in memory, and on flash alone, just before.
    fn serve<'py>(
        &self,
        py: Python<'py>,
        batch: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let columns = Columns::of(batch)?;
        let work = || {
            let requests = columns.requests();
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            let mut found = Vec::with_capacity(8 * requests.len());
            for (request, now_s) in requests.times_s.iter().enumerate() {
                let numbers = state.numbers(requests.blocks(request))?;
                let tiers = state.twin.serve(&numbers, *now_s);
                found.extend(tiers[Tier::Dram as usize].to_ne_bytes());
                found.extend(tiers[Tier::Flash as usize].to_ne_bytes());
            }
            Ok::<_, PyErr>(found)
        };
        let found = detached(py, work).map_err(fault)??;
        Ok(PyBytes::new(py, &found))
    }

    /// What moved so far, by name.
    fn counts<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let TwinCounts { stored, evicted, written, rewritten, promoted, reclaimed, shed } =
            state.twin.counts();
        let out = PyDict::new(py);
        for (name, count) in [
            ("stored", stored),
            ("evicted", evicted),
            ("written", written),
            ("rewritten", rewritten),
            ("promoted", promoted),
            ("reclaimed", reclaimed),
            ("shed", shed),
        ] {
            out.set_item(name, count)?;
        }
        Ok(out)
    }
}

/// The node that a row says.
pub fn model_of(row: NodeRow) -> PyResult<NodeModel> {
    let (capacity_bytes, block_bytes, policy, ghost_seed, max_blocks, call_blocks, flash) = row;
    let flash = flash.map(flash_model).transpose()?;
    let policy = policy_named(&policy)?;
    Ok(NodeModel {
        capacity_bytes,
        block_bytes,
        policy,
        max_blocks,
        ghost_seed,
        call_blocks,
        flash,
    })
}

/// An empty node.
pub fn twin_of(model: &NodeModel) -> PyResult<Inner> {
    Inner::new(model).map_err(unfit)
}

/// A node that cannot be.
pub fn unfit(error: TwinError) -> PyErr {
    argument(error.to_string())
}

fn flash_model((device_bytes, segment_bytes, admission): FlashRow) -> PyResult<FlashModel> {
    let admission = admission_named(&admission)?;
    Ok(FlashModel { admission, ..FlashModel::new(device_bytes, segment_bytes) })
}
