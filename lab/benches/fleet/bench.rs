//! What all exhibits are made with.

use crate::costs::Costs;
use crate::report::{Axis, Cell, Content, Exhibit, Figure, Part, Role, Scale, Series};

/// The part as it grows, and what every simulation begins with.
pub(crate) struct Bench {
    pub(crate) part: Part,
    pub(crate) costs: Costs,
    pub(crate) seed: u64,
    pub(crate) is_full: bool,
}

impl Bench {
    /// Adds a figure; all of them are of one simulated run.
    pub(crate) fn figure(&mut self, id: &str, says: &str, value: f64, unit: &str) -> &mut Figure {
        let statistic = "simulated, one seed";
        let figure = Figure::new(&format!("fleet.{id}"), says, value, unit, statistic);
        self.part.figures.push(figure);
        self.part.figures.last_mut().expect("just added")
    }

    /// The same that must lie between two numbers.
    pub(crate) fn must(
        &mut self,
        id: &str,
        says: &str,
        value: f64,
        unit: &str,
        from: f64,
        to: f64,
    ) {
        let figure = self.figure(id, says, value, unit);
        *figure = figure.clone().at_least(from).at_most(to).or_fail();
    }

    /// The same that is a goal.
    pub(crate) fn goal(&mut self, id: &str, says: &str, value: f64, unit: &str, to: f64) {
        let figure = self.figure(id, says, value, unit);
        *figure = figure.clone().at_most(to);
    }

    pub(crate) fn exhibit(&mut self, id: &str, title: &str, caption: &str, content: Content) {
        self.part.exhibits.push(Exhibit {
            id: format!("fleet.{id}"),
            title: format!("{title} (simulated)"),
            caption: caption.into(),
            content,
        });
    }
}

pub(crate) fn line(name: &str, role: Role, points: Vec<(f64, f64)>) -> Series {
    Series { name: name.into(), role, points, steps: false }
}

pub(crate) fn log(label: &str, unit: &str) -> Axis {
    Axis::new(label, unit, Scale::Log)
}

pub(crate) fn linear(label: &str, unit: &str) -> Axis {
    Axis::new(label, unit, Scale::Linear)
}

pub(crate) fn table(columns: &[&str], rows: Vec<Vec<Cell>>) -> Content {
    Content::Table { columns: columns.iter().map(|name| (*name).to_owned()).collect(), rows }
}

pub(crate) fn text(cell: &str) -> Cell {
    Cell::Text(cell.into())
}

pub(crate) fn number(cell: f64) -> Cell {
    // Tables are read by people.
    Cell::Number((cell * 1000.0).round() / 1000.0)
}
