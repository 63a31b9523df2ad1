//! One account of several nodes: sums first, then each node's own figures.
//!
//! ```text
//! store.…  tenant.…  server.…     sums of numbers; the smaller of what is yes or no; a text that
//!                                 is the same on all
//! namespace.N.…                   summed by fingerprint, numbered anew
//! node.N.name, .state, .share …   how node N stands
//! node.N.figure.…                 its own figures
//! ```

use std::collections::HashMap;

use crate::client::{HealthState, NodeHealth, NodeStat};
use crate::messages::StatValue;

type Figures = Vec<(String, StatValue)>;

/// Numbers that are yes or no: of all nodes only if of each.
const OF_ALL: [&str; 1] = ["store.epochs_durable"];
/// Numbers whose sum means nothing.
const OF_ONE: [&str; 5] = [
    "store.incarnation",
    "store.events_next",
    "server.pid",
    "server.age_ms",
    "server.weight_permille",
];

/// The account of nodes that stand as `health` says; `stats` are those that answered, by place.
pub(super) fn merge(health: &[NodeHealth], stats: Vec<(usize, NodeStat)>) -> NodeStat {
    let mut sums = Sums::default();
    for (_, stat) in &stats {
        sums.add(stat);
    }
    let mut figures = sums.figures;
    figures.extend(namespaces(&stats));
    for (place, node) in health.iter().enumerate() {
        let own = stats.iter().find(|(of, _)| *of == place).map(|(_, stat)| stat);
        of_node(&mut figures, place, node, own);
    }
    NodeStat(figures)
}

#[derive(Default)]
struct Sums {
    figures: Figures,
    places: HashMap<String, usize>,
}

impl Sums {
    fn add(&mut self, stat: &NodeStat) {
        for (name, value) in &stat.0 {
            if name.starts_with("namespace.") || OF_ONE.contains(&name.as_str()) {
                continue;
            }
            let Some(place) = self.places.get(name) else {
                self.places.insert(name.clone(), self.figures.len());
                self.figures.push((name.clone(), value.clone()));
                continue;
            };
            let sum = &mut self.figures[*place].1;
            *sum = match (&*sum, value) {
                (StatValue::Number(a), StatValue::Number(b)) => {
                    let all = OF_ALL.contains(&name.as_str());
                    StatValue::Number(if all { *a.min(b) } else { a.saturating_add(*b) })
                }
                (StatValue::Ratio(a), StatValue::Ratio(b)) => StatValue::Ratio(a.max(*b)),
                (StatValue::Text(a), StatValue::Text(b)) if a == b => StatValue::Text(a.clone()),
                _ => StatValue::Text(String::from("several")),
            };
        }
    }
}

/// Namespaces by fingerprint: each node has numbers of its own.
fn namespaces(stats: &[(usize, NodeStat)]) -> Figures {
    let mut known: Vec<(String, Figures)> = Vec::new();
    for (_, stat) in stats {
        for (fingerprint, figures) in of_one_node(stat) {
            let Some((_, sums)) = known.iter_mut().find(|(of, _)| *of == fingerprint) else {
                known.push((fingerprint, figures));
                continue;
            };
            for (name, value) in figures {
                let sum = sums.iter_mut().find(|(of, _)| *of == name).map(|(_, sum)| sum);
                if let (Some(StatValue::Number(sum)), StatValue::Number(more)) = (sum, value) {
                    *sum = if name == "epoch" { more.max(*sum) } else { sum.saturating_add(more) };
                }
            }
        }
    }
    let numbered = known.into_iter().enumerate().flat_map(|(number, (_, figures))| {
        let name = move |(name, value)| (format!("namespace.{number}.{name}"), value);
        figures.into_iter().map(name)
    });
    numbered.collect()
}

/// The namespaces of one node: fingerprint, and figures without the number.
fn of_one_node(stat: &NodeStat) -> Vec<(String, Figures)> {
    let mut found: Vec<(String, String, Figures)> = Vec::new();
    for (name, value) in &stat.0 {
        let Some(rest) = name.strip_prefix("namespace.") else { continue };
        let Some((number, figure)) = rest.split_once('.') else { continue };
        if found.last().is_none_or(|(of, ..)| of != number) {
            found.push((number.to_owned(), String::new(), Vec::new()));
        }
        if let Some((_, fingerprint, figures)) = found.last_mut() {
            if let ("fingerprint", StatValue::Text(text)) = (figure, value) {
                fingerprint.clone_from(text);
            }
            figures.push((figure.to_owned(), value.clone()));
        }
    }
    found.into_iter().map(|(_, fingerprint, figures)| (fingerprint, figures)).collect()
}

fn of_node(figures: &mut Figures, place: usize, node: &NodeHealth, own: Option<&NodeStat>) {
    let mut push = |name: &str, value| figures.push((format!("node.{place}.{name}"), value));
    push("name", StatValue::Text(node.name.clone()));
    push("state", StatValue::Text(node.state.name().to_owned()));
    push("up", StatValue::Number((node.health.state == HealthState::Up).into()));
    push("share", StatValue::Ratio(node.share));
    push("weight", StatValue::Ratio(node.weight));
    push("transport", StatValue::Text(node.health.transport.to_owned()));
    push("incarnation", StatValue::Number(node.health.incarnation.unwrap_or(0)));
    push("last_error", StatValue::Text(node.health.last_error.clone().unwrap_or_default()));
    for (name, value) in own.map_or(&[][..], |stat| &stat.0) {
        push(&format!("figure.{name}"), value.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::{Health, NodeState};

    fn stat(figures: &[(&str, u64)], fingerprint: &str) -> NodeStat {
        let number = |(name, value): &(&str, u64)| ((*name).to_owned(), StatValue::Number(*value));
        let mut all: Vec<_> = figures.iter().map(number).collect();
        let text = StatValue::Text(fingerprint.to_owned());
        all.push((String::from("namespace.4.fingerprint"), text));
        all.push((String::from("namespace.4.blocks"), StatValue::Number(10)));
        all.push((String::from("namespace.4.epoch"), StatValue::Number(figures[0].1)));
        NodeStat(all)
    }

    fn health(name: &str) -> NodeHealth {
        let (last_error, fallback, incarnation, node) = (None, None, Some(1), None);
        let state = HealthState::Up;
        let health = Health { state, last_error, transport: "unix", fallback, incarnation, node };
        let (name, state) = (name.to_owned(), NodeState::Steady);
        NodeHealth { name, health, state, share: 0.5, weight: 1.0 }
    }

    #[test]
    fn numbers_add_up_and_namespaces_meet_by_fingerprint() {
        let one = stat(&[("store.blocks", 3), ("store.epochs_durable", 1)], "aa");
        let two = stat(&[("store.blocks", 4), ("store.epochs_durable", 0)], "aa");
        let three = stat(&[("store.blocks", 5), ("store.incarnation", 9)], "bb");
        let healths = ["a", "b", "c", "d"].map(health);
        let merged = merge(&healths, vec![(0, one), (2, two), (3, three)]);
        assert_eq!(merged.number("store.blocks"), Some(12));
        assert_eq!(merged.number("store.epochs_durable"), Some(0));
        assert_eq!(merged.number("store.incarnation"), None);
        assert_eq!(merged.number("namespace.0.blocks"), Some(20));
        assert_eq!(merged.number("namespace.0.epoch"), Some(4));
        assert_eq!(merged.number("namespace.1.blocks"), Some(10));
        assert_eq!(merged.number("node.2.figure.store.blocks"), Some(4));
        assert_eq!(merged.number("node.1.figure.store.blocks"), None, "it did not answer");
        assert_eq!(merged.number("node.1.up"), Some(1));
    }
}
