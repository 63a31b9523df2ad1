//! A model of one node for `keepwarm.workload`: what it has of each request, without its bytes.

use std::sync::{Mutex, PoisonError};

use keepwarm_sim::interner::Interner;
use keepwarm_sim::memory::{Memory, Tier};
use keepwarm_sim::twin::{
    FlashModel, NodeModel, StoreTwin as Inner, TwinCounts, TwinError, key_of,
};
use keepwarm_store::PolicyKind;
use pyo3::buffer::PyBuffer;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

use crate::errors::{argument, detached, fault};
use crate::flash::admission_named;
use crate::store::policy_named;

/// Bytes of the device, of a segment, and which blocks are written there.
type FlashRow = (u64, Option<u64>, String);

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
    #[pyo3(signature = (
        capacity_bytes, block_bytes, *, policy, ghost_seed=0, max_blocks=None,
        call_blocks=None, flash=None
    ))]
    fn new(
        capacity_bytes: u64,
        block_bytes: u32,
        policy: &str,
        ghost_seed: u64,
        max_blocks: Option<u32>,
        call_blocks: Option<u32>,
        flash: Option<FlashRow>,
    ) -> PyResult<StoreTwin> {
        let policy: PolicyKind = policy_named(policy)?;
        let flash = flash.map(flash_model).transpose()?;
        let model = NodeModel {
            capacity_bytes,
            block_bytes,
            policy,
            max_blocks,
            ghost_seed,
            call_blocks,
            flash,
        };
        let twin = Inner::new(&model).map_err(refused)?;
        Ok(StoreTwin { state: Mutex::new(State { twin, numbers: Interner::default() }) })
    }

    /// Keys by which the same ids may be put into a node that is to equal this one: 16 bytes each.
    fn block_keys<'py>(
        &self,
        py: Python<'py>,
        ids: PyBuffer<u64>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let ids = ids.to_vec(py)?;
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let numbers = state.numbers(&ids)?;
        let keys: Vec<u8> = numbers.into_iter().flat_map(|number| key_of(number).0).collect();
        Ok(PyBytes::new(py, &keys))
    }

    /// Serves requests: request `i` has `ids[offsets[i]:offsets[i + 1]]`. Two 32-bit numbers each,
    /// native order: blocks of its unbroken prefix in memory, and on flash alone, just before.
    fn serve<'py>(
        &self,
        py: Python<'py>,
        offsets: PyBuffer<u64>,
        ids: PyBuffer<u64>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let (offsets, ids) = (offsets.to_vec(py)?, ids.to_vec(py)?);
        let within = |pair: &[u64]| pair[0] <= pair[1] && pair[1] <= ids.len() as u64;
        if !offsets.windows(2).all(within) {
            let text = "offsets must grow and end within ids: pass those of one batch";
            return Err(argument(text));
        }
        let work = || {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            let numbers = state.numbers(&ids)?;
            let mut found = Vec::with_capacity(8 * offsets.len());
            for pair in offsets.windows(2) {
                let blocks = &numbers[pair[0] as usize..pair[1] as usize];
                let tiers = state.twin.serve(blocks, 0.0);
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

fn flash_model((device_bytes, segment_bytes, admission): FlashRow) -> PyResult<FlashModel> {
    let admission = admission_named(&admission)?;
    Ok(FlashModel { admission, ..FlashModel::new(device_bytes, segment_bytes) })
}

fn refused(error: TwinError) -> PyErr {
    argument(error.to_string())
}
