//! A store's second tier, as Python gives it.

use std::path::PathBuf;
use std::time::Duration;

use keepwarm_store::flash::FlashPath;
use keepwarm_store::{FlashAdmission, FlashConfig};
use pyo3::prelude::*;

use crate::errors::ConfigError;

/// Devices (path, bytes), whether to erase them, bytes a day, admission, bytes of a segment.
pub type FlashRow =
    (Vec<(PathBuf, Option<u64>)>, bool, Option<u64>, String, Option<u64>, Option<f64>);

/// What the row says.
pub fn flash_config(row: FlashRow) -> PyResult<FlashConfig> {
    let (devices, format, day_bytes, admission, segment_bytes, read_patience_s) = row;
    let mut config = FlashConfig {
        devices: devices.into_iter().map(|(path, bytes)| FlashPath { path, bytes }).collect(),
        day_bytes,
        admission: admission_named(&admission)?,
        ..FlashConfig::default()
    };
    config.settings.format = format;
    config.settings.segment_bytes = segment_bytes;
    if let Some(patience) = read_patience_s {
        config.read_patience = Duration::try_from_secs_f64(patience).unwrap_or_default();
    }
    Ok(config)
}

pub fn admission_named(name: &str) -> PyResult<FlashAdmission> {
    let all = [FlashAdmission::Reuse, FlashAdmission::All];
    all.into_iter().find(|one| one.name() == name).ok_or_else(|| {
        let text = format!("flash_admission is {name:?}: give reuse or all");
        ConfigError::new_err((text, "flash_admission"))
    })
}
