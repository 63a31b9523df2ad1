//! The store of this process, and its figures.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use keepwarm_store::arena::{ArenaError, HugePages};
use keepwarm_store::identity::TenantSecret;
use keepwarm_store::retune::TenantTuning;
use keepwarm_store::types::Priority;
use keepwarm_store::{
    PolicyKind, Store as Inner, StoreConfig, StoreError, SystemClock, TenantConfig,
};
use keepwarm_wire::messages::StatValue;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::errors::{ClosedError, ConfigError, NodeError, detached, fault, identity};
use crate::flash::{FlashRow, flash_config};
use crate::space::seconds;

/// A tenant: name, secret file, quota in bytes, time to live in seconds, quota of flash in bytes,
/// highest priority.
type Tenant = (String, Option<PathBuf>, Option<u64>, Option<f64>, Option<u64>, Option<u8>);

/// What a tenant is to have from now on: name, quota in bytes, time to live in seconds.
type Tuning = (String, Option<u64>, Option<f64>);

/// The store of this process.
#[pyclass(frozen, module = "keepwarm._core")]
pub struct Store {
    /// Gone after `close`; locked only while the GIL is held and never across a wait.
    inner: Mutex<Option<Arc<Inner>>>,
}

#[pymethods]
impl Store {
    #[new]
    #[pyo3(signature = (
        capacity_bytes, *, policy, max_blocks=None, tenants=None, ttl_s=None, state_dir=None,
        populate=true, huge_pages="auto", reads_watermark=None, flash=None, by_hand=None
    ))]
    #[expect(clippy::too_many_arguments, reason = "one keyword per setting")]
    fn new(
        py: Python<'_>,
        capacity_bytes: u64,
        policy: &str,
        max_blocks: Option<u32>,
        tenants: Option<Vec<Tenant>>,
        ttl_s: Option<f64>,
        state_dir: Option<PathBuf>,
        populate: bool,
        huge_pages: &str,
        reads_watermark: Option<u32>,
        flash: Option<FlashRow>,
        by_hand: Option<u64>,
    ) -> PyResult<Store> {
        let mut config = StoreConfig::new(capacity_bytes);
        config.policy = policy_named(policy)?;
        config.max_blocks = max_blocks;
        config.ttl = ttl_s.map(|time| time_to_live(time, "ttl_s")).transpose()?;
        config.state_dir = state_dir;
        config.populate = populate;
        config.huge_pages = huge_pages_named(huge_pages)?;
        if let Some(reads) = reads_watermark {
            config.limits.reads_watermark = reads;
        }
        if let Some(row) = flash {
            config.flash = flash_config(row)?;
        }
        if let Some(seed) = by_hand {
            // As a simulation does it: what forgets, forgets alike, and one block moves at a time.
            config.ghost_seed = Some(seed);
            config.flash.is_by_hand = true;
            config.flash.read_depth = 1;
        }
        for tenant in tenants.unwrap_or_default() {
            config.tenants.push(tenant_config(tenant)?);
        }
        let opened = detached(py, || Inner::open(config, Arc::new(SystemClock))).map_err(fault)?;
        let store = opened.map_err(refused)?;
        Ok(Store { inner: Mutex::new(Some(store)) })
    }

    fn set_quota(&self, py: Python<'_>, tenant: &str, bytes: Option<u64>) -> PyResult<()> {
        let store = self.inner()?;
        detached(py, || store.set_quota(tenant, bytes)).map_err(fault)?.map_err(refused)
    }

    /// Changes quotas and times to live, of all of these tenants or of none.
    fn retune(&self, py: Python<'_>, tenants: Vec<Tuning>) -> PyResult<()> {
        let store = self.inner()?;
        let tuning = |(name, quota_bytes, ttl_s): Tuning| {
            let ttl = ttl_s.map(|time| time_to_live(time, "ttl_s")).transpose()?;
            Ok(TenantTuning { name, quota_bytes, ttl })
        };
        let tenants: Vec<_> = tenants.into_iter().map(tuning).collect::<PyResult<_>>()?;
        detached(py, || store.retune(&tenants)).map_err(fault)?.map_err(refused)
    }

    /// None, or the first thing that does not add up.
    fn check(&self, py: Python<'_>) -> PyResult<Option<String>> {
        let store = self.inner()?;
        detached(py, || store.check()).map_err(fault).map(Result::err)
    }

    /// Writes what memory alone holds to flash, the hottest first, for at most this long. Blocks
    /// written, their bytes, blocks that found no time or room, and whether all of it is durable.
    fn drain_flash(&self, py: Python<'_>, time_s: f64) -> PyResult<(u64, u64, u64, bool)> {
        let time = seconds(time_s, "drain")?;
        let store = self.inner()?;
        let drained = detached(py, || store.drain_flash(time)).map_err(fault)?;
        Ok((drained.blocks, drained.bytes, drained.left, drained.is_flushed))
    }

    /// Moves everything to flash that is to move, of a store that was opened `by_hand`.
    fn settle_flash(&self, py: Python<'_>) -> PyResult<()> {
        let store = self.inner()?;
        detached(py, || store.run_flash_by_hand()).map_err(fault)
    }

    /// Lets go of it, and of its flash devices whoever still holds the store.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let taken = self.inner.lock().unwrap_or_else(PoisonError::into_inner).take();
        detached(py, || {
            if let Some(store) = &taken {
                store.close_flash();
            }
            drop(taken);
        })
        .map_err(fault)
    }
}

impl Store {
    pub fn inner(&self) -> PyResult<Arc<Inner>> {
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.clone().ok_or_else(|| ClosedError::new_err("the store is closed: open it again"))
    }
}

pub fn policy_named(name: &str) -> PyResult<PolicyKind> {
    PolicyKind::named(name).ok_or_else(|| {
        let names = policy_names().join(", ");
        ConfigError::new_err((format!("policy is {name:?}: give one of {names}"), "policy"))
    })
}

fn huge_pages_named(name: &str) -> PyResult<HugePages> {
    HugePages::ALL.into_iter().find(|known| known.name() == name).ok_or_else(|| {
        let text = format!("huge_pages is {name:?}: give one of auto, on, off");
        ConfigError::new_err((text, "huge_pages"))
    })
}

/// Names of the policies: `default`, then what each is called, the default first.
#[pyfunction]
pub fn policy_names() -> Vec<&'static str> {
    std::iter::once("default").chain(PolicyKind::ALL.map(PolicyKind::name)).collect()
}

fn time_to_live(time: f64, name: &str) -> PyResult<Duration> {
    match Duration::try_from_secs_f64(time) {
        Ok(time) if !time.is_zero() => Ok(time),
        _ => {
            let text = format!("{name} is {time}: give seconds above 0, or nothing for no end");
            Err(ConfigError::new_err((text, name.to_owned())))
        }
    }
}

fn tenant_config(
    (name, secret, quota_bytes, ttl_s, flash_quota_bytes, priority_max): Tenant,
) -> PyResult<TenantConfig> {
    let secret = match secret {
        Some(path) => TenantSecret::from_file(&path).map_err(identity)?,
        None => TenantSecret::public_default(),
    };
    let ttl = ttl_s.map(|time| time_to_live(time, "ttl_s")).transpose()?;
    let priority_max = priority_max.map_or(Ok(Priority::MAX), |number| {
        let text = || format!("priority_max is {number}: give a whole number from 0 to 3");
        Priority::new(number).ok_or_else(|| ConfigError::new_err((text(), "priority_max")))
    })?;
    Ok(TenantConfig { name, secret, quota_bytes, flash_quota_bytes, ttl, priority_max })
}

fn refused(error: StoreError) -> PyErr {
    let text = error.to_string();
    match error {
        StoreError::Config { setting, found, want } => {
            // In Python sizes carry their unit, so that the names do not.
            let setting = setting.strip_suffix("_bytes").unwrap_or(setting);
            ConfigError::new_err((format!("{setting} is {found}: give {want}"), setting))
        }
        StoreError::Arena(ArenaError::HugePages { .. }) => {
            ConfigError::new_err((text, "huge_pages"))
        }
        StoreError::Arena(_) => ConfigError::new_err((format!("capacity: {text}"), "capacity")),
        StoreError::Epochs { .. } => ConfigError::new_err((text, "state_dir")),
        StoreError::Flash { .. } => ConfigError::new_err((text, "flash")),
        _ => NodeError::new_err(text),
    }
}

/// Figures that came over the wire, under their dotted names.
pub fn figures<'py>(
    py: Python<'py>,
    figures: &[(String, StatValue)],
) -> PyResult<Bound<'py, PyDict>> {
    let out = PyDict::new(py);
    for (name, value) in figures {
        match value {
            StatValue::Number(number) => out.set_item(name, number)?,
            StatValue::Ratio(ratio) => out.set_item(name, ratio)?,
            StatValue::Text(text) => out.set_item(name, text)?,
        }
    }
    Ok(out)
}

/// Seconds that a server may take for something.
pub fn server_time(value: f64, name: &str) -> PyResult<Duration> {
    seconds(value, name).map_err(|_| {
        let text = format!("{name} is {value}: give seconds from 0 to 86400");
        ConfigError::new_err((text, name.to_owned()))
    })
}
