//! The journal: what this process' node tells its operator, for the thread that writes it down.

use keepwarm_store::log::{self, Event, Field, Level, Line, Record};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::errors::{argument, detached, fault};
use crate::space::seconds;

/// Event, level, Unix time in milliseconds, fields.
type Row<'py> = (&'static str, &'static str, u64, Bound<'py, PyDict>);

/// Value of a field on its way in.
#[derive(FromPyObject)]
pub enum Given {
    Number(u64),
    Ratio(f64),
    Text(String),
}

/// Records of this level and above are kept from now on; without one, none.
#[pyfunction]
pub fn log_listen(level: Option<&str>) -> PyResult<()> {
    let level = level.map(level_named).transpose()?;
    log::journal().listen(level);
    Ok(())
}

/// Waits for records and takes them.
#[pyfunction]
pub fn log_next(py: Python<'_>, wait_s: f64) -> PyResult<Vec<Row<'_>>> {
    let wait = seconds(wait_s, "wait_s")?;
    let records = detached(py, || log::journal().next(wait)).map_err(fault)?;
    rows(py, records)
}

/// What is left, without waiting.
#[pyfunction]
pub fn log_last(py: Python<'_>) -> PyResult<Vec<Row<'_>>> {
    let records = detached(py, || log::journal().last()).map_err(fault)?;
    rows(py, records)
}

/// Says that something happened.
#[pyfunction]
pub fn log_say(event: &str, fields: Vec<(String, Given)>) -> PyResult<()> {
    let known = Event::named(event)
        .ok_or_else(|| argument(format!("event {event} is not in the catalogue: add it there")))?;
    log::say(known, |line| fields.into_iter().for_each(|(name, value)| add(line, name, value)));
    Ok(())
}

/// The catalogue: name, level, meaning.
#[pyfunction]
pub fn log_events() -> Vec<(&'static str, &'static str, &'static str)> {
    Event::ALL.iter().map(|event| (event.name(), event.level().name(), event.help())).collect()
}

/// Names of the levels, the least first.
#[pyfunction]
pub fn log_levels() -> Vec<&'static str> {
    Level::ALL.iter().map(|level| level.name()).collect()
}

fn level_named(name: &str) -> PyResult<Level> {
    let found = Level::ALL.into_iter().find(|level| level.name() == name);
    found.ok_or_else(|| argument(format!("level {name} is unknown: give one of log_levels()")))
}

fn add(line: &mut Line, name: String, value: Given) {
    match value {
        Given::Number(number) => line.number(name, number),
        Given::Ratio(ratio) => line.ratio(name, ratio),
        Given::Text(text) => line.text(name, text),
    };
}

fn rows(py: Python<'_>, records: Vec<Record>) -> PyResult<Vec<Row<'_>>> {
    let row = |record: Record| {
        let fields = PyDict::new(py);
        for (name, value) in record.fields {
            match value {
                Field::Number(number) => fields.set_item(name, number)?,
                Field::Ratio(ratio) => fields.set_item(name, ratio)?,
                Field::Text(text) => fields.set_item(name, text)?,
            }
        }
        Ok((record.event.name(), record.event.level().name(), record.unix_ms, fields))
    };
    records.into_iter().map(row).collect()
}
